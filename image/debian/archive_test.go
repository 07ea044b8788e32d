package debian_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/image/debian"
	"github.com/unitask/unitask/image/debian/debiantest"
	"github.com/unitask/unitask/internal/attack"
)

// archiveOf returns a client of a test's server, and what it logs.
func archiveOf(t *testing.T, server *debiantest.Archive) (*debian.Archive, *[]string) {
	t.Helper()
	mirrors, err := debian.Named(server.URL + "/debian")
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	return &debian.Archive{Mirrors: mirrors, Suite: "trixie", Arch: "amd64", Cache: t.TempDir(), Keys: server.Keys,
		Logf: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}, &said
}

func TestIndexOfArchive(t *testing.T) {
	server := debiantest.New(t)
	server.Add(t, "trixie", "amd64", debiantest.Package{Name: "a", Version: "1.9-1", Data: "old"},
		debiantest.Package{Name: "b", Version: "2", Fields: "Depends: a\n", Data: "b"})
	a, said := archiveOf(t, server)
	index, err := a.Index(t.Context())
	if err != nil || index.Packages["a"].Version != "1.9-1" {
		t.Fatalf("%+v %v", index, err)
	}
	if all := strings.Join(*said, "\n"); !strings.Contains(all, "security updates of trixie can't be read") {
		t.Errorf("said %q of a mirror without security updates", all)
	}
	server.Add(t, "trixie-security", "amd64", debiantest.Package{Name: "a", Version: "1.10-1", Data: "new"})
	a, said = archiveOf(t, server)
	if index, err = a.Index(t.Context()); err != nil || index.Packages["a"].Version != "1.10-1" || len(*said) > 0 {
		t.Fatalf("with security updates: %+v %v, said %q", index.Packages["a"], err, *said)
	}
	to := filepath.Join(t.TempDir(), "a.deb")
	if err := a.Fetch(t.Context(), index.Packages["a"].File, to); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to); string(got) != "new" {
		t.Errorf("%q %v", got, err)
	}
}

// A list of packages is fetched once, and again when the release has changed.
func TestIndexCache(t *testing.T) {
	server := debiantest.New(t)
	server.Add(t, "trixie", "amd64", debiantest.Package{Name: "a", Version: "1", Data: "a"})
	first, _ := archiveOf(t, server)
	lists := func(a *debian.Archive) (version string, fetched int) {
		t.Helper()
		again := debian.Archive{Mirrors: a.Mirrors, Suite: a.Suite, Arch: a.Arch, Cache: a.Cache, Keys: a.Keys, Logf: a.Logf}
		server.Got()
		index, err := again.Index(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range server.Got() {
			if strings.HasSuffix(path, "Packages.gz") {
				fetched++
			}
		}
		return index.Packages["a"].Version, fetched
	}
	for i, want := range []int{1, 0} {
		if version, fetched := lists(first); version != "1" || fetched != want {
			t.Errorf("time %d: version %s, %d lists fetched, want %d", i, version, fetched, want)
		}
	}
	server.Add(t, "trixie", "amd64", debiantest.Package{Name: "a", Version: "2", Data: "a"})
	if version, fetched := lists(first); version != "2" || fetched != 1 {
		t.Errorf("after a change: version %s, %d lists fetched", version, fetched)
	}
}

// Neither a mirror nor an attacker on the way to it can choose packages. An index needs the archive's signature, and a
// file needs the right digest.
func TestAttackMirror(t *testing.T) {
	server, other := debiantest.New(t), debiantest.New(t)
	server.Add(t, "trixie", "amd64", debiantest.Package{Name: "a", Version: "1", Data: "good"})
	const in, list = "/debian/dists/trixie/InRelease", "/debian/dists/trixie/main/binary-amd64/Packages.gz"
	release := string(server.Files[in])
	good, _ := archiveOf(t, server)
	index, err := good.Index(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	body := "Origin: Debian\nCodename: trixie\nSHA256:\n " + strings.Repeat("0", 64) +
		" 10 main/binary-amd64/Packages.gz\n"
	for name, row := range map[string]struct{ path, text, says string }{
		"signed by another key": {in, string(other.Sign(t, body)), "no signature of Debian's archive"},
		"not signed":            {in, body, "is no signed text"},
		"a changed text": {in, strings.Replace(release, "trixie", "trixiE", 1),
			"no signature of Debian's archive"},
		"text behind the signature": {in, release + "\nCodename: trixie\n", "is no signed text"},
		"another release": {in, string(server.Sign(t, strings.ReplaceAll(body, "trixie", "sid"))),
			`is of the release "sid"`},
		"an old one": {in, string(server.Sign(t, "Valid-Until: Sat, 21 Nov 2020 09:15:44 UTC\n"+body)),
			"was valid until Sat, 21 Nov 2020"},
		"empty":           {in, "", "is no signed text"},
		"another list":    {list, "x", "its digest is sha256-"},
		"a list too long": {list, strings.Repeat("x", 1<<20), "its digest is sha256-"},
	} {
		old := server.Files[row.path]
		server.Files[row.path] = []byte(row.text)
		a, _ := archiveOf(t, server)
		_, err := a.Index(t.Context())
		server.Files[row.path] = old
		if err == nil || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v, want %q", name, err, row.says)
		}
		attack.Check(t, "a mirror's index: "+name, "refused", map[bool]string{true: "refused", false: "taken"}[err != nil])
	}
	for name, text := range map[string]string{"of another digest": "evil", "cut": "goo", "longer": "good and more"} {
		server.Files["/debian/"+index.Packages["a"].Path] = []byte(text)
		to := filepath.Join(t.TempDir(), "a.deb")
		err := good.Fetch(t.Context(), index.Packages["a"].File, to)
		_, left := os.Stat(to)
		got := fmt.Sprintf("taken %t, left behind %t, gone %t", err == nil, left == nil, errors.Is(err, debian.ErrGone))
		attack.Check(t, "a mirror's package: "+name, "taken false, left behind false, gone false", got)
	}
}

// If a mirror lacks a file or is down, the next one is asked. The file is gone only if all mirrors lack it.
func TestMirrorsInOrder(t *testing.T) {
	server := debiantest.New(t)
	server.Add(t, "trixie", "amd64", debiantest.Package{Name: "a", Version: "1", Data: "a"})
	empty := httptest.NewServer(http.NotFoundHandler())
	defer empty.Close()
	f := debian.File{Path: "pool/main/a_1_amd64.deb", SHA256: debiantest.Digest("a"), Size: 1}
	for name, row := range map[string]struct {
		mirrors []string
		want    string // of the error
		gone    bool
	}{
		"the second has it":      {[]string{empty.URL, server.URL + "/debian"}, "", false},
		"none has it":            {[]string{empty.URL, empty.URL + "/x"}, "no mirror has it", true},
		"there is none":          {nil, "no mirror of Debian is known", false},
		"one is no mirror's URL": {[]string{"http://a b"}, "malformed", false},
	} {
		a, _ := archiveOf(t, server)
		a.Mirrors = debian.Mirrors{Main: row.mirrors}
		err := a.Fetch(t.Context(), f, filepath.Join(t.TempDir(), "a.deb"))
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) ||
			errors.Is(err, debian.ErrGone) != row.gone {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An address may have a login, which no message shows.
func TestAttackMirrorLogin(t *testing.T) {
	mirrors, err := debian.Named("http://someuser:verysecret@127.0.0.1:1/debian")
	if err != nil {
		t.Fatal(err)
	}
	a := &debian.Archive{Mirrors: mirrors, Suite: "trixie", Arch: "amd64", Cache: t.TempDir(), Logf: t.Logf}
	err = a.Fetch(t.Context(), debian.File{Path: "pool/main/a.deb", SHA256: "0", Size: 1}, filepath.Join(t.TempDir(), "a"))
	_, err2 := a.Index(t.Context())
	all := fmt.Sprint(err, err2, mirrors)
	shown := err == nil || err2 == nil || strings.Contains(all, "someuser") || strings.Contains(all, "verysecret")
	attack.Check(t, "a mirror's login in messages", "false", fmt.Sprint(shown))
}

func TestNamed(t *testing.T) {
	for address, want := range map[string]string{
		"http://a.example/debian": "[http://a.example/debian] [http://a.example/debian-security]",
		"https://a.example:8080/pub/debian/": "[https://a.example:8080/pub/debian] " +
			"[https://a.example:8080/pub/debian-security]",
		"http://a.example/archive": "[http://a.example/archive] []",
		"a.example/debian":         "", "ftp://a.example/debian": "", "http://": "", "": "",
		"http://[2001:db8::1]/debian": "[http://[2001:db8::1]/debian] [http://[2001:db8::1]/debian-security]",
		"http://a.example/d ebian":    "", "http://:80/debian": "", "http://a.example/debian?": "",
		"http://a.example/debian\nx": "", "http://a.example/x sid main #/debian": "",
		"http://a.example/debian?x": "", "http://a.example/debian#x": "", "http://a b/": "",
	} {
		m, err := debian.Named(address)
		got := fmt.Sprint(m.Main, m.Security)
		if (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %s, %v, want %s", address, got, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "http://HOST/debian") {
			t.Errorf("%q: the error does not say how: %v", address, err)
		}
	}
}

func TestMirrorsOfHost(t *testing.T) {
	for name, row := range map[string]struct {
		files    map[string]string
		main     []string
		security []string
	}{
		"lines": {map[string]string{"sources.list": "# deb http://no.example/debian trixie main\n" +
			"deb-src http://no.example/debian trixie main\n" +
			"deb [arch=amd64 signed-by=/x] http://a.example/debian/ bookworm main contrib # the rest\n" +
			"deb http://a.example/debian bookworm-updates main\ndeb http://s.example/debian-security bookworm-security main\n"},
			[]string{"http://a.example/debian"},
			[]string{"http://s.example/debian-security", "http://a.example/debian-security"}},
		"paragraphs": {map[string]string{"sources.list.d/debian.sources": "Types: deb\n# a comment\n" +
			"URIs: http://a.example/debian\n" +
			"  https://b.example/debian\nSuites: trixie\n trixie-updates\nComponents: main\n\n" +
			"Types: deb\nEnabled: no\nURIs: http://no.example/debian\nSuites: trixie\nComponents: main\n"},
			[]string{"http://a.example/debian", "https://b.example/debian"},
			[]string{"http://a.example/debian-security", "https://b.example/debian-security"}},
		"others' packages": {map[string]string{
			"sources.list.d/docker.list": "deb https://no.example/linux/debian bookworm stable\n",
			"sources.list.d/own.list":    "deb https://own.example stable main\n",
			"sources.list.d/sdk.list":    "deb https://no.example/apt cloud-sdk-bookworm main\n",
			"sources.list.d/ubuntu.list": "deb http://no.example/ubuntu noble main\n",
			"sources.list.d/x.sources":   "Types: deb\nURIs: http://a.example/debian\nSuites: sid\nComponents: main\n",
			"sources.list.d/x.save":      "deb http://no.example/debian sid main\n"},
			[]string{"http://a.example/debian", "https://own.example"}, []string{"http://a.example/debian-security"}},
		"malformed": {map[string]string{"sources.list": "deb http://[a/debian sid main\ndeb http://%zz/debian sid main\n" +
			"deb http:///debian sid main\ndeb http://no.example/debian?token=x sid main\ndeb cdrom:[Debian 13]/ sid main\n" +
			"deb\n[\ndeb [\ndeb http://a.example/debian\n\x00\ndeb http://a.example/debian sid main\n",
			"sources.list.d/x.sources": " http://no.example\n:\nURIs\nTypes: deb\nSuites:\n"},
			[]string{"http://a.example/debian"}, []string{"http://a.example/debian-security"}},
		"a list of mirrors": {map[string]string{"sources.list": "deb mirror+file:ETC/mirrors bookworm main\n",
			"mirrors": "# first\nhttpx://no.example/debian\nhttps://a.example/debian priority:1\nftp://no.example/debian\n"},
			[]string{"https://a.example/debian"}, []string{"https://a.example/debian-security"}},
		"nothing": {},
	} {
		etc := t.TempDir()
		for file, text := range row.files {
			at := filepath.Join(etc, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700),
				os.WriteFile(at, []byte(strings.ReplaceAll(text, "ETC", etc)), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if m := debian.OfFolder(etc); !slices.Equal(m.Main, row.main) || !slices.Equal(m.Security, row.security) {
			t.Errorf("%s: %q %q, want %q %q", name, m.Main, m.Security, row.main, row.security)
		}
	}
}

// A package's path leads to nothing else on the server.
func TestAttackPackagePath(t *testing.T) {
	server := debiantest.New(t)
	a, _ := archiveOf(t, server)
	for _, path := range []string{"", "../secret", "pool/../../secret", "pool//a", "pool/a?x=y", "pool/%2e%2e/a",
		"pool/a#b", "http://other.example/a", "/pool/a", "pool/a b", "dists/trixie/InRelease"} {
		err := a.Fetch(t.Context(), debian.File{Path: path, SHA256: "0", Size: 1}, filepath.Join(t.TempDir(), "a"))
		got := fmt.Sprint(err != nil && strings.Contains(err.Error(), "no path of a package"), server.Got())
		attack.Check(t, fmt.Sprintf("a package's path %q", path), "true []", got)
	}
}

// A server may declare a list that is a .gz file as encoded with gzip.
func TestEncodedList(t *testing.T) {
	server := debiantest.New(t)
	server.Add(t, "trixie", "amd64", debiantest.Package{Name: "a", Version: "1", Data: "a"})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".gz") {
			w.Header().Set("Content-Encoding", "gzip")
		}
		server.ServeHTTP(w, r)
	}))
	defer front.Close()
	a, _ := archiveOf(t, server)
	a.Mirrors = debian.Mirrors{Main: []string{front.URL + "/debian"}}
	if index, err := a.Index(t.Context()); err != nil || index.Packages["a"].Version != "1" {
		t.Error(err)
	}
}

// A server that requires a login for a missing file counts as lacking the file.
func TestClosedMirror(t *testing.T) {
	server := debiantest.New(t)
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusGone} {
		closed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		a, _ := archiveOf(t, server)
		a.Mirrors.Main = append(a.Mirrors.Main, closed.URL)
		f := debian.File{Path: "pool/main/a.deb", SHA256: "0", Size: 1}
		err := a.Fetch(t.Context(), f, filepath.Join(t.TempDir(), "a"))
		if !errors.Is(err, debian.ErrGone) {
			t.Errorf("%d: %v", status, err)
		}
		closed.Close()
	}
}

// A list of packages above the limits is refused, not read in part.
func TestAttackLongList(t *testing.T) {
	for name, row := range map[string]struct {
		size int64
		says string
	}{"packed": {1 << 39, "has 524288 MiB"}, "unpacked": {0, "more than 200 MiB"}} {
		server := debiantest.New(t)
		pkg := debiantest.Package{Name: "a", Version: "1", Data: "a"}
		if row.size == 0 {
			pkg.Fields = strings.Repeat("X: "+strings.Repeat("x", 1<<19)+"\n", 401)
		}
		server.Add(t, "trixie", "amd64", pkg)
		if row.size > 0 {
			server.Files["/debian/dists/trixie/InRelease"] = server.Sign(t, fmt.Sprintf(
				"Codename: trixie\nSHA256:\n %s %d main/binary-amd64/Packages.gz\n", strings.Repeat("0", 64), row.size))
		}
		a, _ := archiveOf(t, server)
		_, err := a.Index(t.Context())
		attack.Check(t, "a mirror's long list, "+name, "refused",
			map[bool]string{true: "refused", false: fmt.Sprint(err)}[err != nil && strings.Contains(err.Error(), row.says)])
	}
}

// Without a mirror of security updates, their files are gone, and the index has the release's packages instead.
func TestNoSecurityMirror(t *testing.T) {
	a, _ := archiveOf(t, debiantest.New(t))
	a.Mirrors.Security = nil
	f := debian.File{Path: "pool/updates/main/a.deb", SHA256: "0", Size: 1}
	err := a.Fetch(t.Context(), f, filepath.Join(t.TempDir(), "a"))
	if !errors.Is(err, debian.ErrGone) {
		t.Error(err)
	}
}
