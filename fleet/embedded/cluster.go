package embedded

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/unitask/unitask/internal/atomicfile"
)

// Cluster is how a server is one with others, by routes. All of them have the same Name and Key.
type Cluster struct {
	Name   string // "" is unitask
	Listen string // HOST:PORT, where the others reach this one
	// Routes are where others listen, nats://HOST:PORT. This one may be among them, so all can have the same. A cluster
	// begins when all of those are there, which are two at least, and continues with more than half. A server that comes
	// later need not be named by the others.
	Routes []string
	// Key, KeySize bytes, is what makes a server one of them: both ends of a route show each other that they have it
	// (TLS 1.3), before either says anything. It must be random: make it with openssl rand.
	Key []byte
	// Server is this server's name, which no other has; "" is one that is made up at the first start and kept. What is in
	// JetStream is by it.
	Server string
}

// KeySize is the size of a cluster's key, in bytes.
const KeySize = 32

// maxRoutes bounds the routes that are named.
const maxRoutes = 64

// Copies are the replicas that a cluster of enough servers holds: one of them may be away.
const Copies = 3

// defaultName is a cluster's.
const defaultName = "unitask"

// nameForm is the form of the names of clusters and servers: also those of a folder, and of no other subject of NATS.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// routeTime bounds what who connects to the port of the routes takes to show the key: nothing bounds how many do,
// each of which has a descriptor of the server's meanwhile. A member that took longer tries again.
const routeTime = 3 * time.Second

// apply puts the cluster into a server's options.
func (c Cluster) apply(opts *server.Options) error {
	if c.Name == "" {
		c.Name = defaultName
	}
	if !nameForm.MatchString(c.Name) {
		return fmt.Errorf("name of the cluster %.80q: use 1 to 64 of letters, digits, - and _", c.Name)
	}
	host, text, err := net.SplitHostPort(c.Listen)
	port, e := strconv.Atoi(text)
	if err != nil || e != nil || port < 1 || port > 65535 {
		return fmt.Errorf("address for the routes %.100q: use HOST:PORT, where the other servers reach this one", c.Listen)
	}
	if host == "" {
		host = "0.0.0.0"
	}
	if len(c.Key) != KeySize {
		return fmt.Errorf("the key of the cluster has %d bytes: %d are needed, the same for all of its servers", len(c.Key),
			KeySize)
	}
	if len(c.Routes) == 0 || len(c.Routes) > maxRoutes {
		return fmt.Errorf("%d routes to other servers: name 1 to %d", len(c.Routes), maxRoutes)
	}
	var seen []string
	for _, route := range c.Routes {
		u, err := url.Parse(route)
		if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "" || u.Port() == "" || u.User != nil ||
			u.Path != "" || u.RawQuery != "" {
			return fmt.Errorf("route %.100q: use nats://HOST:PORT, which is where another server listens for routes", route)
		}
		if !slices.Contains(seen, u.Host) { // JetStream counts them
			seen = append(seen, u.Host)
			opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: u.Host})
		}
	}
	config, err := routeTLS(c.Key)
	if err != nil {
		return err
	}
	opts.Cluster = server.ClusterOpts{
		Name: c.Name, Host: host, Port: port, TLSConfig: config, TLSTimeout: routeTime.Seconds(),
		AuthTimeout: 2 * routeTime.Seconds(),
		NoAdvertise: true, // or clients would send their password to whatever has another host's port on theirs
	}
	opts.StoreDir = filepath.Join(opts.StoreDir, "cluster-"+c.Name) // another cluster's, or a lone server's, is not this one's
	if c.Server != "" {
		if !nameForm.MatchString(c.Server) {
			return fmt.Errorf("name of the server %.80q: use 1 to 64 of letters, digits, - and _", c.Server)
		}
		opts.ServerName = c.Server
	}
	return nil
}

// free says whether the address for the routes can be had.
func (c Cluster) free() error {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	return l.Close()
}

// errStranger is what either end of a route says of one that does not have the key.
var errStranger = errors.New("the other end does not have this cluster's key (--cluster-key)")

// routeTLS has both ends of a route show that they have the key: a key pair is derived of it, so who can sign by that
// is a member, wherever it is and whatever it is called.
func routeTLS(key []byte) (*tls.Config, error) {
	seed, err := hkdf.Key(sha256.New, key, nil, "unitask cluster routes", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	private := ed25519.NewKeyFromSeed(seed)
	public := private.Public().(ed25519.PublicKey)
	about := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "unitask cluster"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<35, 0)}
	der, err := x509.CreateCertificate(rand.Reader, about, about, public, private)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of the routes: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}},
		ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true, // not by names and authorities, but by:
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || !public.Equal(state.PeerCertificates[0].PublicKey) {
				return errStranger
			}
			return nil
		},
	}, nil
}

// SessionKey returns a key for paused sessions that the workers of all the cluster's servers have (fleet.WorkerConfig).
func (c Cluster) SessionKey() ([]byte, error) {
	return hkdf.Key(sha256.New, c.Key, nil, "unitask cluster sessions", KeySize)
}

// serverName returns the name of the server of a home. It stays the same, and is no other home's: of a cluster's
// servers each is known by it.
func serverName(folder string) (string, error) {
	file := filepath.Join(folder, "server-name")
	text, err := os.ReadFile(file)
	name := strings.TrimSpace(string(text))
	switch {
	case err == nil && nameForm.MatchString(name):
		return name, nil
	case err == nil:
		return "", fmt.Errorf("%s holds no name of a server: remove it for a new one, with which JetStream begins anew", file)
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	host, _ := os.Hostname()
	host = regexp.MustCompile(`[^A-Za-z0-9-]`).ReplaceAllString(host, "-")
	if name = strings.Trim(host[:min(len(host), 40)], "-"); name == "" {
		name = "unitask"
	}
	name += "-" + strings.ToLower(rand.Text()[:8])
	return name, atomicfile.Write(file, []byte(name+"\n"), 0o600)
}
