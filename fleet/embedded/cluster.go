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

// Cluster configures a server as a member of a cluster. All members have the same Name and Key.
type Cluster struct {
	Name   string // "" is unitask
	Listen string // HOST:PORT for the routes of the others
	// Routes are the addresses of the members, nats://HOST:PORT. They may include this server, so that all can have the
	// same list. A cluster starts when all of the routes, at least two, are present, and continues with more than half.
	// The other servers need not name a server that joins later.
	Routes []string
	// Key, KeySize bytes, is the proof of membership. Both ends of a route show each other that they have the key (TLS
	// 1.3) before either sends data. The key must be random: create it with openssl rand.
	Key []byte
	// Server is this server's unique name; "" means a name that is generated at the first start and kept. JetStream's data
	// belongs to the name.
	Server string
}

// KeySize is the size of a cluster's key, in bytes.
const KeySize = 32

// maxRoutes bounds the number of Routes.
const maxRoutes = 64

// Copies is the number of replicas in a cluster with enough servers: one server may be down.
const Copies = 3

// defaultName is the default name of a cluster.
const defaultName = "unitask"

// nameForm is the form of the names of clusters and servers. Such a name is also a safe folder name and one token of a
// NATS subject.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// routeTime bounds the time to prove the key on the routes' port. The number of such connections is unlimited, and each
// one uses a file descriptor of the server. A slower member tries again.
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
		if !slices.Contains(seen, u.Host) { // JetStream counts routes
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
		NoAdvertise: true, // or clients would send their password to another program on their own host
	}
	opts.StoreDir = filepath.Join(opts.StoreDir, "cluster-"+
		c.Name) // another cluster's, or a lone server's, is not this one's
	if c.Server != "" {
		if !nameForm.MatchString(c.Server) {
			return fmt.Errorf("name of the server %.80q: use 1 to 64 of letters, digits, - and _", c.Server)
		}
		opts.ServerName = c.Server
	}
	return nil
}

// free returns an error if the address for the routes is in use.
func (c Cluster) free() error {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	return l.Close()
}

// errStranger means that the other end of a route does not have the key.
var errStranger = errors.New("the other end does not have this cluster's key (--cluster-key)")

// routeTLS makes both ends of a route prove that they have the key. A key pair is derived from it: whoever can sign
// with that pair is a member, whatever its address and name.
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

// SessionKey returns the key for paused sessions that all workers of the cluster share (fleet.WorkerConfig).
func (c Cluster) SessionKey() ([]byte, error) {
	return hkdf.Key(sha256.New, c.Key, nil, "unitask cluster sessions", KeySize)
}

// serverName returns the name of a home's server. The name never changes and is unique, because a cluster knows its
// servers by their names.
func serverName(folder string) (string, error) {
	file := filepath.Join(folder, "server-name")
	text, err := os.ReadFile(file)
	name := strings.TrimSpace(string(text))
	switch {
	case err == nil && nameForm.MatchString(name):
		return name, nil
	case err == nil:
		return "", fmt.Errorf("%s holds no name of a server: remove it for a new one; JetStream then begins again", file)
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
