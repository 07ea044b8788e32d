package unitask_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// archive is an archive of Debian packages on loopback, which this process's apt uses.
type archive struct {
	*httptest.Server
	mu    sync.Mutex
	debs  map[string][]byte // by NAME_VERSION
	about map[string]string // the control file of each package
	lies  bool              // it serves other content than its index says
}

func newArchive(t *testing.T) *archive {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("apt-get is not on this machine, by which packages of Debian are resolved")
	}
	a := &archive{debs: map[string][]byte{}, about: map[string]string{}}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.Close)
	dir := t.TempDir()
	list := filepath.Join(dir, "sources.list")
	config := fmt.Sprintf("Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts \"/dev/null\";\n"+
		"Acquire::http::Proxy::127.0.0.1 \"DIRECT\";\n"+
		"Acquire::AllowInsecureRepositories \"true\";\nAPT::Get::AllowUnauthenticated \"true\";\n", list)
	err := errors.Join(os.WriteFile(list, []byte("deb [trusted=yes] "+a.URL+" ./\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "apt.conf"), []byte(config), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APT_CONFIG", filepath.Join(dir, "apt.conf"))
	t.Setenv("UNITASK_DEBIAN_MIRROR", a.URL+"/debian")
	return a
}

// serve has all packages in the archive's root, where the host's sources have them, and as a release below debian,
// which nobody has signed.
func (a *archive) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := path.Base(r.URL.Path)
	security := strings.HasPrefix(r.URL.Path, "/debian-security/")
	deb, ok := a.debs[strings.TrimSuffix(name, "_all.deb")]
	switch {
	case name == "Packages":
		fmt.Fprint(w, a.list(security))
	case name == "Release" && strings.HasPrefix(r.URL.Path, "/debian"):
		suite := path.Base(path.Dir(r.URL.Path))
		fmt.Fprintf(w, "Origin: test\nCodename: %s\nArchitectures: amd64 arm64\nComponents: main\nSHA256:\n", suite)
		for _, arch := range []image.Arch{image.AMD64, image.ARM64} {
			list := a.list(security)
			fmt.Fprintf(w, " %s %d main/binary-%s/Packages\n", sha256Hex([]byte(list)), len(list), arch)
		}
	case !ok || security:
		http.NotFound(w, r)
	default:
		if a.lies {
			deb = slices.Clone(deb)
			deb[len(deb)-1] ^= 1
		}
		_, _ = w.Write(deb)
	}
}

// list returns the index of all packages, or an empty one.
func (a *archive) list(empty bool) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(a.debs)) {
		if !empty {
			fmt.Fprintf(&b, "%sFilename: %s_all.deb\nSize: %d\nSHA256: %s\n\n", a.about[key], key, len(a.debs[key]),
				sha256Hex(a.debs[key]))
		}
	}
	return b.String()
}

// put adds a package to the archive: its fields besides name and version, its script, and its files.
func (a *archive) put(t *testing.T, name, version, fields, postinst string, files ...*tar.Header) {
	t.Helper()
	control := fmt.Sprintf(
		"Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: t <t@example.com>\nDescription: a test\n%s", name, version,
		fields)
	pack := func(entries ...*tar.Header) []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		w := tar.NewWriter(z)
		made := map[string]bool{".": true}
		for _, h := range entries {
			if dir := path.Dir(path.Clean(h.Name)); filepath.IsLocal(dir) { // dpkg needs folders before their contents
				at := "."
				for word := range strings.SplitSeq(dir, "/") {
					if at = path.Join(at, word); made[at] {
						continue
					}
					made[at] = true
					if err := w.WriteHeader(&tar.Header{Name: "./" + at + "/", Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
						t.Fatal(err)
					}
				}
			}
			text := h.PAXRecords["text"]
			h := *h
			h.PAXRecords, h.Size = nil, int64(len(text))
			if h.Mode == 0 {
				h.Mode = 0o644
			}
			err := w.WriteHeader(&h)
			if err == nil {
				_, err = w.Write([]byte(text))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	about := []*tar.Header{debFile("./control", control)}
	if postinst != "" {
		script := debFile("./postinst", postinst)
		script.Mode = 0o755
		about = append(about, script)
	}
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	for _, m := range []struct {
		name string
		data []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar.gz", pack(about...)}, {"data.tar.gz", pack(files...)}} {
		fmt.Fprintf(&out, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, 0, 0, 0, "100644", len(m.data))
		out.Write(m.data)
		if len(m.data)%2 == 1 {
			out.WriteByte('\n')
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.debs[name+"_"+version], a.about[name+"_"+version] = out.Bytes(), control
}

func (a *archive) remove(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.debs, key)
}

func debFile(name, text string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeReg, PAXRecords: map[string]string{"text": text}}
}

func debLink(name, target string) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
}

// greets puts a package with a dependency, a link, an alternative and files in other places into an archive.
func greets(t *testing.T, a *archive, version string) {
	program := debFile("./usr/bin/greet", "#!/bin/sh\necho greet "+version+
		" $(cat /usr/lib/greet/link) $(cat /opt/greet/data)\n")
	program.Mode = 0o755
	postinst := "#!/bin/sh\nset -e\necho " + version +
		" configured > /etc/greeted\nupdate-alternatives --install /usr/bin/hello hello /usr/bin/greet 10 \\\n" +
		"  --slave /usr/bin/hi hi /usr/bin/greet\nupdate-alternatives --install /usr/bin/evil evil /etc/../evil 1 || true\n"
	a.put(t, "greet", version, "Depends: libgreet (>= 1), libc6 (>= 2.30), debconf (>= 0.5) | debconf-2.0, adduser\n",
		postinst, program, debFile("./opt/greet/data", "data"), debFile("./usr/share/doc/greet/copyright", "MIT"))
}

// badDebian are packages that can't be installed, and why.
var badDebian = map[string]string{
	"nosuch":       "Unable to locate package nosuch",
	"greet=9":      "Version '9' for 'greet' was not found",
	"needs":        "needs : Depends: nosuchlib but it is not installable",
	"newc":         "newc : Depends: libc6 (>= 99)",
	"twice":        "usr/lib/greet/words: file exists",
	"leaves":       "leads out of the archive",
	"through":      "escapes",
	"device":       "neither a file, a folder nor a link",
	"bomb":         "more than 50000 files",
	"cut":          "unexpected EOF",
	"dpkg=1":       "dpkg",
	"greet bash=1": "Version '1' for 'bash' was not found",
}

// Debian packages over a bundled image: apt resolves them, they are unpacked, and the lock gives the same result again.
func TestOwnDebian(t *testing.T) {
	needVM(t)
	a := newArchive(t)
	greets(t, a, "1.0")
	a.put(t, "libgreet", "1:1.5+b1", "", "", debFile("./usr/lib/greet/words", "words"),
		debLink("./usr/lib/greet/link", "words"))
	many := []*tar.Header{}
	for i := range 100 {
		many = append(many, debFile(fmt.Sprintf("./usr/share/many/%d", i), "x"))
	}
	a.put(t, "many", "1", "", "", many...)
	home := newHome(t)
	var told []string
	open := func(home string) *unitask.Runtime {
		rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted(),
			Events: func(e unitask.Event) { told = append(told, e.Message) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { rt.Close() })
		return rt
	}
	rt := open(home)
	dir := t.TempDir()
	text := "from = 'shell'\ndebian = ['greet', 'many', 'bash']\n[files]\n'/opt/mine' = 'mine'\n"
	file := describe(t, dir, "greeter", text)
	if err := os.WriteFile(filepath.Join(dir, "mine"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	slot(t)
	own, _, err := rt.BuildImage(t.Context(), file, "")
	if err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(told, "\n"); !strings.Contains(all, "bash is in the image already") ||
		!strings.Contains(all, "without their installation scripts: greet") {
		t.Errorf("told %s", all)
	}
	names := []string{}
	for _, d := range own.Debian {
		names = append(names, d.Name+" "+d.Version)
	}
	if !slices.Equal(names, []string{"greet 1.0", "libgreet 1:1.5+b1", "many 1"}) ||
		!slices.Contains(own.Folders, "/opt") {
		t.Errorf("%v, folders %v", names, own.Folders)
	}
	code := "hello; hi; cat /opt/mine /usr/share/many/7; " +
		"ls /etc/greeted /usr/share/doc/greet /usr/bin/evil /evil 2>&1 | wc -l; jq -n 1"
	res, err := rt.Run(t.Context(), unitask.Request{Image: "greeter", Code: code}, unitask.IO{})
	if err != nil || string(res.Stdout) != "greet 1.0 words data\ngreet 1.0 words data\nminex4\n1\n" {
		t.Errorf("%v %q %q", err, res.Stdout, res.Stderr)
	}

	// The lock gives the same result, here and elsewhere, although there is something newer.
	greets(t, a, "2.0")
	for _, home := range []string{home, newHome(t)} {
		if again, _, err := open(home).BuildImage(t.Context(), file, ""); err != nil || again.Digest != own.Digest {
			t.Errorf("from the lock: %v %+v", err, again)
		}
	}
	buildNewer(t, dir, text, rt)

	// An unavailable package leaves nothing, and the built image stays.
	describe(t, dir, "greeter", text)
	home = newHome(t)
	rt = open(home)
	putBadPackages(t, a, many)
	for spec, says := range badDebian {

		list := "'" + strings.ReplaceAll(spec, " ", "','") + "'"
		_, _, err := rt.BuildImage(t.Context(), describe(t, t.TempDir(), "bad", "from = 'shell'\ndebian = ["+list+"]\n"), "")
		var field *policy.FieldError
		if !errors.As(err, &field) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", spec, err)
		}
	}
	// An archive with a false index, one that changed locked packages, and one that no longer has them.
	refuseDebian(t, a, rt, file, many, home)
}

// buildNewer checks that a changed description takes the newer packages.
func buildNewer(t *testing.T, dir, text string, rt *unitask.Runtime) {
	t.Helper()
	describe(t, dir, "greeter", text+"env = 1")
	describe(t, dir, "newer", text)
	if newer, _, err := rt.BuildImage(t.Context(), filepath.Join(dir, "newer.toml"), ""); err != nil ||
		newer.Debian[0].Version != "2.0" {
		t.Errorf("without a lock: %v", err)
	}
}

// refuseDebian checks that packages that differ from the index are refused, and that nothing is left.
func refuseDebian(t *testing.T, a *archive, rt *unitask.Runtime, file string, many []*tar.Header, home string) {
	t.Helper()
	a.mu.Lock()
	a.lies = true
	a.mu.Unlock()
	if _, _, err := rt.BuildImage(t.Context(), file, ""); err == nil ||
		!strings.Contains(err.Error(), "Hash Sum mismatch") {
		t.Errorf("an index that lies: %v", err)
	}
	a.mu.Lock()
	a.lies = false
	a.mu.Unlock()
	a.put(t, "many", "1", "", "", many[1:]...)
	if _, _, err := rt.BuildImage(t.Context(), file, ""); err == nil ||
		!strings.Contains(err.Error(), "many 1 of the archive has digest") {
		t.Errorf("another package under a locked version: %v", err)
	}
	a.remove("greet_1.0")
	if _, _, err := rt.BuildImage(t.Context(), file, ""); err == nil ||
		!strings.Contains(err.Error(), "these versions are the lock file's") {
		t.Errorf("a locked version that is gone: %v", err)
	}
	a.Close()
	for _, of := range []string{file, describe(t, t.TempDir(), "down", "from = 'shell'\ndebian = ['other']\n")} {
		if _, _, err := rt.BuildImage(t.Context(), of, ""); err == nil ||
			!strings.Contains(err.Error(), strings.TrimPrefix(a.URL, "http://127.0.0.1:")) {
			t.Errorf("an archive that is gone: %v", err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(home, "own")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// putBadPackages puts packages into the archive that can't be installed.
func putBadPackages(t *testing.T, a *archive, many []*tar.Header) {
	t.Helper()
	a.put(t, "needs", "1", "Depends: nosuchlib\n", "", debFile("./usr/share/needs", ""))
	a.put(t, "newc", "1", "Depends: libc6 (>= 99)\n", "", debFile("./usr/share/newc", ""))
	a.put(t, "twice", "1", "Depends: libgreet\n", "", debFile("./usr/lib/greet/words", "others"))
	a.put(t, "leaves", "1", "", "", debFile("./../../evil", ""))
	a.put(t, "through", "1", "", "", debLink("./usr/lib/out", "/etc"), debFile("./usr/lib/out/evil", ""))
	a.put(t, "device", "1", "", "", &tar.Header{Name: "./usr/lib/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3})
	a.put(t, "bomb", "1", "", "", append(slices.Clone(many),
		slices.Repeat([]*tar.Header{debFile("./usr/share/doc/x", "")}, 51_000)...)...)
	a.put(t, "cut", "1", "", "", debFile("./usr/share/cut", ""))
	a.mu.Lock()
	a.debs["cut_1"] = a.debs["cut_1"][:len(a.debs["cut_1"])-60]
	a.mu.Unlock()
}

// Invalid descriptions of Debian packages.
func TestOwnDebianRefused(t *testing.T) {
	offline := true
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t), Offline: &offline})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for text, says := range map[string]string{
		"debian = ['--option']":                          `"--option" is no package of Debian: NAME, or NAME=VERSION`,
		"debian = ['-o=Dir::Bin::dpkg=/bin/x']":          "is no package of Debian",
		"debian = ['Jq']":                                "is no package of Debian",
		"debian = ['jq-']":                               "is no package of Debian",
		"debian = ['jq=']":                               "is no package of Debian",
		"debian = ['jq=1 --reinstall']":                  "is no package of Debian",
		"debian = ['jq/sid']":                            "is no package of Debian",
		"debian = ['jq:arm64']":                          "is no package of Debian",
		"debian = ['lib.*']":                             "is no package of Debian",
		"debian = ['./x.deb']":                           "is no package of Debian",
		"debian = ['" + strings.Repeat("x", 101) + "']":  "is no package of Debian",
		"debian = ['']":                                  "is no package of Debian",
		"debian = 'jq'":                                  "incompatible types",
		"debian = [" + strings.Repeat("'x',", 101) + "]": "debian has 101 entries",
	} {
		for _, from := range []string{"shell", "test/box:1"} {
			_, _, err := rt.BuildImage(t.Context(), describe(t, t.TempDir(), "x", "from = '"+from+"'\n"+text), "")
			var field *policy.FieldError
			if !errors.As(err, &field) || field.Field != "image" || !strings.Contains(err.Error(), says) {
				t.Errorf("%s over %s: %v", text, from, err)
			}
		}
	}
	for text, says := range map[string]string{
		`{"name":"xy","version":"1","digest":"sha256-00"}`:                                   "has a package of Debian",
		`{"name":"-xy","version":"1","digest":"sha256-` + strings.Repeat("0", 64) + `"}`:     "has a package of Debian",
		`{"name":"xy","version":"1 --y","digest":"sha256-` + strings.Repeat("0", 64) + `"}`:  "has a package of Debian",
		strings.Repeat(`{"name":"xy","version":"1"},`, 1000) + `{"name":"xy","version":"1"}`: "has 1001 packages of Debian",
	} {
		file := describe(t, t.TempDir(), "x", "from = 'shell'\ndebian = ['xy']\n")
		if err := os.WriteFile(strings.TrimSuffix(file, ".toml")+".lock.json",
			[]byte(`{"schema":1,"builds":[{"debian":[`+text+`]}]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := rt.BuildImage(t.Context(), file, ""); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.80s: %v", text, err)
		}
	}
	_, err = rt.Images().Parts().Debs(t.Context(), image.HostArch(), nil, true, []string{"x"}, nil, t.TempDir())
	if !errors.Is(err, image.ErrOffline) {
		t.Errorf("offline: %v", err)
	}
}
