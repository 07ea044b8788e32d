package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/unitask/unitask/policy"
)

// Config holds the address of a fleet and the credentials for it.
type Config struct {
	URL    string // of NATS: nats:// on a loopback address, else tls://; several with commas
	Tenant string // "" is DefaultTenant
	// Creds is a file with NATS credentials (a user's JWT and seed) or an nkey's seed, "" for none. User and Password are
	// for a server with its own users.
	Creds, User, Password string
	// CA, Cert and Key are PEM files for TLS; "" is none.
	CA, Cert, Key string
	// Plain allows nats:// to other hosts. Then anyone on the network path can read and change code, files and results.
	Plain bool
	// WorkerKeys are the public keys of the workers that may get secrets. An empty list means any registered worker, and a
	// worker's credentials suffice to register.
	WorkerKeys [][]byte
	Times      Times
}

func (c Config) withDefaults() (Config, error) {
	if c.Tenant == "" {
		c.Tenant = DefaultTenant
	}
	c.Times = c.Times.withDefaults()
	for _, key := range c.WorkerKeys {
		if len(key) != workerKeySize {
			return c, fmt.Errorf("a worker's key has %d bytes: %d are needed", len(key), workerKeySize)
		}
	}
	return c, errors.Join(CheckTenant(c.Tenant), c.checkURL())
}

// workerKeySize is the size of a worker's X25519 key, in bytes.
const workerKeySize = 32

// sealTo returns the key that secrets for a worker are sealed to.
func (c Config) sealTo(w WorkerInfo) (*[workerKeySize]byte, error) {
	if len(w.Key) != workerKeySize {
		return nil, fmt.Errorf("worker %.40q has no key: %w", w.ID, errMalformed)
	}
	if len(c.WorkerKeys) > 0 && !slices.ContainsFunc(c.WorkerKeys,
		func(key []byte) bool { return bytes.Equal(key, w.Key) }) {
		return nil,
			fmt.Errorf("worker %.40q has a key that is none of those that secrets are sent to: --worker-keys names them", w.ID)
	}
	return (*[workerKeySize]byte)(w.Key), nil
}

// checkURL returns an error if the servers' addresses are invalid.
func (c Config) checkURL() error {
	for one := range strings.SplitSeq(c.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		switch {
		case err != nil || u.Hostname() == "" || u.Scheme != "nats" && u.Scheme != "tls":
			return policy.Bad("fleet", fmt.Sprintf("%.100q", redacted(one)),
				"use tls://HOST:PORT, or nats://127.0.0.1:PORT")
		case u.User != nil:
			return fmt.Errorf(
				"fleet %.100q: an address with a password is seen by whoever lists processes: give a file of credentials",
				redacted(one))
		case u.Scheme == "nats" && c.CA == "" && !c.Plain && !loopback(u.Hostname()):
			return fmt.Errorf(
				"fleet %.100q: nats:// to another host is in clear: "+
					"use tls://, or allow it (Config.Plain, --nats-plain) on a network that nobody else is on", one)
		}
	}
	return nil
}

// redacted returns an address without what may be a password.
func redacted(address string) string {
	before, after, found := strings.Cut(address, "@")
	if !found {
		return address
	}
	scheme, _, _ := strings.Cut(before, "://")
	return scheme + "://***@" + after
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// connect opens a connection, which reconnects until it is closed.
func (c Config) connect(name, inbox string) (*nats.Conn, error) {
	opts := []nats.Option{
		nats.Name(name), nats.MaxReconnects(-1), nats.ReconnectWait(500 * time.Millisecond), nats.Timeout(5 * time.Second),
		nats.PingInterval(c.Times.Beat), nats.MaxPingsOutstanding(3),
		nats.CustomInboxPrefix(inbox), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}
	if c.Creds != "" {
		auth, err := credentials(c.Creds)
		if err != nil {
			return nil, err
		}
		opts = append(opts, auth)
	}
	if c.User != "" {
		opts = append(opts, nats.UserInfo(c.User, c.Password))
	}
	if c.CA != "" {
		opts = append(opts, nats.RootCAs(c.CA))
	}
	if c.Cert != "" {
		opts = append(opts, nats.ClientCert(c.Cert, c.Key))
	}
	nc, err := nats.Connect(c.URL, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to the fleet at %s: %w", c.URL, err)
	}
	return nc, nil
}

// credentials reads a user's file: a JWT with its seed, or a seed alone.
func credentials(file string) (nats.Option, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the credentials for NATS: %w", err)
	}
	if bytes.Contains(text, []byte("BEGIN NATS USER JWT")) {
		return nats.UserCredentials(file), nil
	}
	auth, err := nats.NkeyOptionFromSeed(file)
	if err != nil {
		return nil, fmt.Errorf("credentials %s: neither a JWT with its seed nor the seed of an nkey: %w", file, err)
	}
	return auth, nil
}
