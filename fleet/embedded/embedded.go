// Package embedded runs a NATS server with JetStream in this process. It serves a fleet of one host by one command, or
// of a few hosts with routes between them. It is separate from package fleet, so that programs that only submit contain
// no server.
//
// Its one user has a password made for this start. A file that only this process's user can read has the password and
// the address. Clients have no TLS, so they are on the same host: each host's clients use its own server. Only servers
// speak to other hosts, by TLS routes with a key that all of them have. For several tenants run nats-server itself,
// with accounts.
package embedded

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/filelock"
	layout "github.com/unitask/unitask/internal/home"
)

// Name is the URL that means the embedded server of the client's home.
const Name = "embedded"

// file has the address of a home's server; its path is relative to the home's Fleet folder.
const file = "embedded.json"

// lockFile is locked by a home's running server. If it is free, the server was killed, and anyone may use its address.
const lockFile = "lock"

// lockTime bounds the wait for a process that checks the lock, which takes moments.
const lockTime = time.Second

// address is the file's content.
type address struct {
	URL      string `json:"url"`
	User     string `json:"user"`
	Password string `json:"password"`
}

// startTime bounds the start, which reads what JetStream has stored.
const startTime = 30 * time.Second

// Options configures the start of a server.
type Options struct {
	Listen  string       // for clients: nats://HOST:PORT of a loopback address; "" is a free port of 127.0.0.1
	Cluster *Cluster     // nil is a server alone
	Log     *slog.Logger // nil is none
}

// Server is a running server. Close it.
type Server struct {
	nats     *server.Server
	name     string // of the file
	at       address
	cluster  bool
	log      *slog.Logger
	lock     *filelock.Lock
	watching sync.WaitGroup
	stop     context.CancelFunc
}

// Start starts a server for a home, which has at most one. The server of a cluster waits for a quorum of the others,
// until ctx ends.
func Start(ctx context.Context, home string, o Options) (_ *Server, err error) {
	opts, err := o.server(home)
	if err != nil {
		return nil, err
	}
	folder := layout.Dir(home).Fleet()
	s := &Server{name: filepath.Join(folder, file), at: address{User: opts.Username, Password: opts.Password},
		cluster: o.Cluster != nil, log: o.Log, stop: func() {}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	taking, stop := context.WithTimeout(ctx, lockTime)
	s.lock, err = filelock.Wait(taking, filepath.Join(folder, lockFile), func() {})
	stop()
	if errors.Is(err, context.DeadlineExceeded) {
		return nil,
			fmt.Errorf(
				"start the embedded NATS server: another one is under way in %s: give this worker a home of its own (UNITASK_HOME)",
				folder)
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err == nil {
		if err = os.Remove(s.name); errors.Is(err, fs.ErrNotExist) { // of a killed server
			err = nil
		}
	}
	if err == nil && opts.ServerName == "" {
		opts.ServerName, err = serverName(folder)
	}
	if err == nil && o.Cluster != nil {
		err = o.Cluster.free() // the server would only log it, and hang
	}
	if err == nil {
		s.nats, err = server.NewServer(opts)
	}
	if err != nil {
		return nil, fmt.Errorf("start the embedded NATS server: %w", err)
	}
	s.nats.SetLoggerV2(&natsLog{log: s.log}, false, false, false)
	s.nats.Start()
	if !s.nats.ReadyForConnections(startTime) {
		return nil, fmt.Errorf("start the embedded NATS server at %s:%d: it does not listen: is the port taken?", opts.Host,
			opts.Port)
	}
	s.at.URL = s.nats.ClientURL()
	if !s.cluster {
		return s, nil
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.watching.Go(func() { s.watch(ctx) })
	return s, nil
}

// server returns the options of the server itself.
func (o Options) server(home string) (*server.Options, error) {
	host, port := "127.0.0.1", -1
	if o.Listen != "" && o.Listen != Name {
		u, err := url.Parse(o.Listen)
		if err == nil {
			host = u.Hostname()
			port, err = strconv.Atoi(u.Port())
		}
		if err != nil || u.Scheme != "nats" || u.User != nil || host == "" {
			return nil, fmt.Errorf("address of the embedded server %q: use nats://HOST:PORT", o.Listen)
		}
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			return nil,
				fmt.Errorf(
					"address of the embedded server %q: its clients have no TLS, so it serves a loopback address (127.0.0.1) only: "+
						"other hosts join it by routes, or all use a nats-server", o.Listen)
		}
	}
	opts := &server.Options{
		Host: host, Port: port, Username: "unitask", Password: rand.Text(), JetStream: true,
		StoreDir: layout.Dir(home).Fleet(), NoSigs: true, NoLog: true, MaxPayload: 1 << 20,
	}
	if o.Cluster != nil {
		return opts, o.Cluster.apply(opts)
	}
	return opts, nil
}

// Config returns the configuration for this process's worker to reach the server.
func (s *Server) Config() fleet.Config {
	return fleet.Config{URL: s.at.URL, User: s.at.User, Password: s.at.Password}
}

// Announce writes the server's address into the home, for clients.
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

// Close stops the server, and then removes its address. Whoever waits for the removal finds the server stopped.
func (s *Server) Close() {
	s.stop()
	s.watching.Wait()
	if s.nats != nil {
		s.nats.Shutdown()
		s.nats.WaitForShutdown()
		_ = os.Remove(s.name)
	}
	s.lock.Unlock()
}

// Gone reports whether a home's server has ended.
func Gone(home string) bool {
	_, err := os.Stat(filepath.Join(layout.Dir(home).Fleet(), file))
	return errors.Is(err, fs.ErrNotExist)
}

// Find adds address and password to a configuration whose URL is Name or the address of the home's embedded server.
func Find(home string, c fleet.Config) (fleet.Config, error) {
	if c.Creds != "" || c.User != "" || c.URL == "" {
		return c, nil
	}
	text, err := os.ReadFile(filepath.Join(layout.Dir(home).Fleet(), file))
	var at address
	if err == nil {
		err = json.Unmarshal(text, &at)
	}
	if err == nil && !filelock.Held(filepath.Join(layout.Dir(home).Fleet(), lockFile)) {
		err = fs.ErrNotExist
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
