// Package embedded is a NATS server with JetStream in this process: a fleet of one host in one
// command. It is apart from package fleet so that who only submits has no server in the binary.
//
// Its one user has a password made for this start, which lies, beside its address, in a file that
// only the user of this process can read. It has no TLS: on more than a loopback address, run
// nats-server itself, with accounts and TLS.
package embedded

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/atomicfile"
)

// Name is what clients give as the URL of the embedded server of their home.
const Name = "embedded"

// file is where a home has its server's address, below the home.
const file = "fleet/embedded.json"

// address is the file's content.
type address struct {
	URL      string `json:"url"`
	User     string `json:"user"`
	Password string `json:"password"`
}

// startTime bounds the start, which reads what JetStream has stored.
const startTime = 30 * time.Second

// Server is a running server. Close it.
type Server struct {
	nats *server.Server
	name string
	at   address
}

// Start starts a server for a home. listen is nats://HOST:PORT; "" is a free port of the loopback
// address.
func Start(home, listen string) (*Server, error) {
	host, port := "127.0.0.1", -1
	if listen != "" && listen != Name {
		u, err := url.Parse(listen)
		if err == nil {
			host = u.Hostname()
			port, err = strconv.Atoi(u.Port())
		}
		if err != nil || u.Scheme != "nats" || u.User != nil || host == "" {
			return nil, fmt.Errorf("address of the embedded server %q: use nats://HOST:PORT", listen)
		}
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			return nil, fmt.Errorf("address of the embedded server %q: it has no TLS, so it serves a loopback address (127.0.0.1) only: for more hosts run nats-server", listen)
		}
	}
	at := address{User: "unitask", Password: rand.Text()}
	ns, err := server.NewServer(&server.Options{
		ServerName: "unitask", Host: host, Port: port, Username: at.User, Password: at.Password, JetStream: true,
		StoreDir: filepath.Join(home, "fleet"), NoSigs: true, NoLog: true, MaxPayload: 1 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("start the embedded NATS server: %w", err)
	}
	s := &Server{nats: ns, name: filepath.Join(home, file), at: at}
	if err := os.MkdirAll(filepath.Dir(s.name), 0o700); err != nil {
		return nil, fmt.Errorf("start the embedded NATS server: %w", err)
	}
	ns.Start()
	if !ns.ReadyForConnections(startTime) {
		ns.Shutdown()
		return nil, fmt.Errorf("start the embedded NATS server at %s:%d: it does not listen: is the port taken, or another one under way in %s?", host, port, filepath.Dir(s.name))
	}
	s.at.URL = ns.ClientURL()
	return s, nil
}

// Config is how the worker of this process reaches it.
func (s *Server) Config() fleet.Config {
	return fleet.Config{URL: s.at.URL, User: s.at.User, Password: s.at.Password}
}

// Announce writes its address down for the clients of the home.
func (s *Server) Announce() error {
	text, err := json.Marshal(s.at)
	if err == nil {
		err = atomicfile.Write(s.name, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write down where the embedded NATS server is: %w", err)
	}
	return nil
}

// Close ends the server, and then removes its address: who waits for that finds nothing under way.
func (s *Server) Close() {
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	_ = os.Remove(s.name)
}

// Gone says that a home's server has ended.
func Gone(home string) bool {
	_, err := os.Stat(filepath.Join(home, file))
	return errors.Is(err, fs.ErrNotExist)
}

// Find completes a configuration whose URL is Name, or is a home's embedded server's own: it has
// the address and the password.
func Find(home string, c fleet.Config) (fleet.Config, error) {
	if c.Creds != "" || c.User != "" || c.URL == "" {
		return c, nil
	}
	text, err := os.ReadFile(filepath.Join(home, file))
	var at address
	if err == nil {
		err = json.Unmarshal(text, &at)
	}
	switch {
	case c.URL != Name && (err != nil || c.URL != at.URL):
		return c, nil
	case errors.Is(err, fs.ErrNotExist):
		return c, fmt.Errorf("no embedded fleet is under way for %s: `unitask worker --embedded` starts one", home)
	case err != nil:
		return c, fmt.Errorf("find the embedded fleet: %w", err)
	}
	c.URL, c.User, c.Password = at.URL, at.User, at.Password
	return c, nil
}
