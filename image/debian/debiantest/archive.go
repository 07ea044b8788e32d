// Package debiantest serves an archive of Debian on loopback, signed with a key of its own, for tests of packages image
// and image/debian.
package debiantest

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// Archive is the server. Its releases are below URL/debian, their security updates below URL/debian-security.
type Archive struct {
	URL    string
	Keys   string            // armoured
	Files  map[string][]byte // by path, such as /debian/pool/main/a_1_amd64.deb; a test may change them
	Server *httptest.Server

	key *openpgp.Entity
	mu  sync.Mutex
	got []string
}

// Package is a package of an archive. Its file has Data.
type Package struct {
	Name, Version string
	Fields        string // more lines of its entry, such as "Depends: libc6\n"
	Data          string
}

// New starts an archive without packages.
func New(t testing.TB) *Archive {
	t.Helper()
	a := &Archive{Files: map[string][]byte{}}
	var err error
	a.key, err = openpgp.NewEntity("an archive of a test", "", "", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	w, err := armor.Encode(&text, openpgp.PublicKeyType, nil)
	if err == nil {
		err = a.key.Serialize(w)
	}
	if err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	a.Keys = text.String()
	a.Server = httptest.NewServer(a)
	a.URL = a.Server.URL
	t.Cleanup(a.Server.Close)
	return a
}

func (a *Archive) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	text, there := a.Files[r.URL.Path]
	a.got = append(a.got, r.URL.Path)
	a.mu.Unlock()
	if !there {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(text)
}

// Got returns the paths that were asked for, and forgets them.
func (a *Archive) Got() (paths []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	paths, a.got = a.got, nil
	return paths
}

// Add puts packages into a suite: trixie, or trixie-security.
func (a *Archive) Add(t testing.TB, suite, arch string, packages ...Package) {
	t.Helper()
	root, pool := "/debian", "pool/main"
	if strings.HasSuffix(suite, "-security") {
		root, pool = "/debian-security", "pool/updates/main"
	}
	var list bytes.Buffer
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range packages {
		at := path.Join(pool, p.Name+"_"+p.Version+"_"+arch+".deb")
		a.Files[path.Join(root, at)] = []byte(p.Data)
		fmt.Fprintf(&list, "Package: %s\nVersion: %s\nArchitecture: %s\n%sFilename: %s\nSize: %d\nSHA256: %s\n\n", p.Name,
			p.Version, arch, p.Fields, at, len(p.Data), Digest(p.Data))
	}
	plain := list.String() // apt wants its digest, too
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := io.Copy(z, &list); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	name := path.Join("main/binary-"+arch, "Packages.gz")
	a.Files[path.Join(root, "dists", suite, name)] = packed.Bytes()
	a.Files[path.Join(root, "dists", suite, "InRelease")] = a.Sign(t, fmt.Sprintf(
		"Origin: Debian\nCodename: %s\nDate: Sat, 21 Nov 2026 09:15:44 UTC\nSHA256:\n %s %d %s\n %s %d %s\n", suite,
		Digest(packed.String()), packed.Len(), name, Digest(plain), len(plain), strings.TrimSuffix(name, ".gz")))
}

// Sign returns a text with the archive's signature, as InRelease is.
func (a *Archive) Sign(t testing.TB, text string) []byte {
	t.Helper()
	var signed bytes.Buffer
	w, err := clearsign.Encode(&signed, a.key.PrivateKey, nil)
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	return signed.Bytes()
}

// Digest returns a text's SHA-256 in hexadecimal.
func Digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
