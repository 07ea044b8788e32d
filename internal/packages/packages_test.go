package packages

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

func environment(vars map[string]string) Env {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// The files and variables of pip, in the order in which they count.
func TestPipRegistry(t *testing.T) {
	home := t.TempDir()
	own := write(t, filepath.Join(home, "own.conf"),
		"[install]\nindex_url: https://own.example/simple\n[list]\nindex-url = https://list.example\n")
	write(t, filepath.Join(home, ".pip/pip.conf"),
		"[global]\nindex-url = https://old.example/simple\nproxy = http://proxy.example:8080\ncert = ~/ca.pem\n")
	write(t, filepath.Join(home, "ca.pem"), "PEM")
	write(t, filepath.Join(home, ".config/pip/pip.conf"),
		"# c\n[global]\nindex-url = https://user.example/simple\nextra-index-url =\n    https://one.example/simple\n"+
			"    https://two.example/simple\ntimeout = 3\n")
	quiet := map[string]string{"XDG_CONFIG_DIRS": filepath.Join(home, "none")}
	for _, c := range []struct {
		vars map[string]string
		url  string
		more []string
	}{
		{nil, "https://user.example/simple", []string{"https://one.example/simple", "https://two.example/simple"}},
		{map[string]string{"PIP_CONFIG_FILE": own}, "https://own.example/simple",
			[]string{"https://one.example/simple", "https://two.example/simple"}},
		{map[string]string{"PIP_CONFIG_FILE": own, "PIP_INDEX_URL": "https://env.example/"}, "https://env.example/",
			[]string{"https://one.example/simple", "https://two.example/simple"}},
		{map[string]string{"PIP_CONFIG_FILE": os.DevNull, "PIP_INDEX_URL": "https://env.example/",
			"PIP_EXTRA_INDEX_URL": "https://a.example https://b.example"}, "https://env.example/",
			[]string{"https://a.example", "https://b.example"}},
	} {
		vars := map[string]string{}
		for _, m := range []map[string]string{quiet, c.vars} {
			for k, v := range m {
				vars[k] = v
			}
		}
		r, err := PipRegistry(environment(vars), home, nil)
		if err != nil || r.URL != c.url || !slices.Equal(r.More, c.more) {
			t.Errorf("%v: %+v %v", c.vars, r, err)
		}
		if vars["PIP_CONFIG_FILE"] != os.DevNull && (r.Proxy != "http://proxy.example:8080" || r.CA != "PEM") {
			t.Errorf("%v: proxy %q, certificates %q", c.vars, r.Proxy, r.CA)
		}
	}
	if _, err := PipRegistry(environment(map[string]string{"PIP_CONFIG_FILE": os.DevNull, "PIP_CERT": "/nosuch",
		"PIP_INDEX_URL": "https://x.example"}), home, nil); err == nil || !strings.Contains(err.Error(), "PIP_CERT") {
		t.Errorf("certificates that are not there: %v", err)
	}
}

func TestNpmRegistry(t *testing.T) {
	home := t.TempDir()
	fallback := func() (string, error) { return "https://usual.example/", nil }
	none := write(t, filepath.Join(home, "global"), "")
	base := map[string]string{"npm_config_globalconfig": none, "TOKEN_HOST": "var.example"}
	if r, err := NpmRegistry(environment(base), filepath.Join(home, "empty"), fallback); err != nil ||
		r.URL != "https://usual.example/" {
		t.Errorf("nothing is configured: %+v %v", r, err)
	}
	write(t, filepath.Join(home, ".npmrc"),
		"; c\nregistry = \"https://${TOKEN_HOST}/npm/\"\n"+
			"@acme:registry=https://acme.example/\n//acme.example/:_authToken=secret\nca[]=\"ONE\\nA\"\nca[]=TWO\n"+
			"https-proxy=http://p.example:1\n")
	r, err := NpmRegistry(environment(base), home, fallback)
	if err != nil || r.URL != "https://var.example/npm/" || r.Scopes["@acme"] != "https://acme.example/" ||
		r.Proxy != "http://p.example:1" || !strings.Contains(r.CA, "ONE\nA\nTWO") {
		t.Errorf("%+v %v", r, err)
	}
	hosts, err := r.All()
	if err != nil || fmt.Sprint(hosts) != "[{var.example 443 false} {acme.example 443 false}]" {
		t.Errorf("%v %v", hosts, err)
	}
	base["npm_config_registry"] = "http://127.0.0.1:4873/"
	if r, err = NpmRegistry(environment(base), home, fallback); err != nil || r.URL != "http://127.0.0.1:4873/" ||
		r.From != "npm_config_registry" {
		t.Errorf("%+v %v", r, err)
	}
}

func TestRegistryHosts(t *testing.T) {
	for address, says := range map[string]string{
		"https://u:hunter2@h.example/simple": "has a user or password", "ftp://h.example": "no address of a registry",
		"file:///x": "no address", "h.example": "no address", "https://": "no address", "http://[::1": "no address",
	} {
		if _, err := (&Registry{URL: address}).All(); err == nil || !strings.Contains(err.Error(), says) ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", address, err)
		}
	}
	hosts, err := (&Registry{URL: "http://127.0.0.1:8080/simple", More: []string{"https://b.example"},
		Hosts: []string{"files.example"}}).All()
	if err != nil || fmt.Sprint(hosts) != "[{127.0.0.1 8080 true} {b.example 443 false} {files.example 443 false}]" {
		t.Errorf("%v %v", hosts, err)
	}
}

// archive returns an archive that a machine might have written.
func archive(headers ...*tar.Header) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		if h.Typeflag == tar.TypeReg && h.Size < 1<<20 {
			_, _ = w.Write(bytes.Repeat([]byte("x"), int(h.Size)))
		}
	}
	_ = w.Flush()
	return out.Bytes()
}

// No link of foreign code leads outside, and a refused archive leaves nothing.
func TestAttackAdd(t *testing.T) {
	many := []*tar.Header{}
	for i := range MaxFiles + 1 {
		many = append(many, &tar.Header{Name: fmt.Sprint("d/", i), Typeflag: tar.TypeDir})
	}
	deep := []*tar.Header{}
	for i := range MaxFiles/(maxDepth-1) + 1 {
		deep = append(deep, &tar.Header{Name: fmt.Sprint(i, strings.Repeat("/d", maxDepth-1), "/x")})
	}
	for name, c := range map[string]struct {
		stream []byte
		says   string
	}{
		"many folders":     {archive(deep...), "folders"},
		"a path outside":   {archive(&tar.Header{Name: "a/../../x", Size: 1}), "whose name can't be"},
		"an absolute path": {archive(&tar.Header{Name: "/etc/x", Size: 1}), "whose name can't be"},
		"no text":          {archive(&tar.Header{Name: "a\xff", Size: 1}), "whose name can't be"},
		"too deep": {archive(&tar.Header{Name: strings.Repeat("a/", maxDepth+2) + "x", Size: 1}),
			"whose name can't be"},
		"a long name": {archive(&tar.Header{Name: strings.Repeat("a", maxPath+1), Size: 1}),
			"whose name can't be"},
		"a device":         {archive(&tar.Header{Name: "d", Typeflag: tar.TypeBlock}), "neither a file"},
		"a pipe":           {archive(&tar.Header{Name: "d", Typeflag: tar.TypeFifo}), "neither a file"},
		"more than may be": {archive(&tar.Header{Name: "a", Size: MaxBytes + 1}), "has more than"},
		"more than counts": {archive(&tar.Header{Name: "a", Size: 1}, &tar.Header{Name: "b", Size: math.MaxInt64}),
			"has more than"},
		"many":               {archive(many...), "has more than"},
		"twice":              {archive(&tar.Header{Name: "a", Size: 1}, &tar.Header{Name: "a", Size: 1}), "exists"},
		"a file as a folder": {archive(&tar.Header{Name: "a", Size: 1}, &tar.Header{Name: "a/b", Size: 1}), "a"},
		"cut off":            {archive(&tar.Header{Name: "a", Size: 1000})[:700], "EOF"},
		"nothing":            {archive(), "nothing was installed"},
		"links only": {archive(&tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}),
			"nothing was installed"},
		"a name of a file outside": {archive(&tar.Header{Name: "a", Size: 1},
			&tar.Header{Name: "b", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}), "no file that came before"},
		"a name of one above": {archive(&tar.Header{Name: "a", Size: 1},
			&tar.Header{Name: "b", Typeflag: tar.TypeLink, Linkname: "../lock.json"}), "no file that came before"},
		"a name of a link": {archive(&tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "c"},
			&tar.Header{Name: "b", Typeflag: tar.TypeLink, Linkname: "a"}), "no file that came before"},
		"a name of itself": {archive(&tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "a"}),
			"no file that came before"},
		"a file by way of a link": {archive(&tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "."},
			&tar.Header{Name: "b", Typeflag: tar.TypeSymlink, Linkname: "../x"}, &tar.Header{Name: "b/../../x", Size: 1}),
			"whose name can't be"},
		"no archive": {bytes.Repeat([]byte("x"), 2000), "read what was built"},
	} {
		s := &Store{Dir: filepath.Join(t.TempDir(), "packages")}
		err := s.Add(&Lock{Key: "k"}, bytes.NewReader(c.stream))
		left, _ := os.ReadDir(s.Dir)
		got := fmt.Sprintf("refused %t, %d files left", err != nil && strings.Contains(err.Error(), c.says), len(left))
		attack.Check(t, "what an install leaves: "+name, "refused true, 0 files left", got)
	}
}

// npm's own lock comes from a machine that ran foreign code: it does not grow to many times its size.
func TestAttackLock(t *testing.T) {
	nested := func(deep, values int) string {
		return `{"a":` + strings.Repeat("[", deep-1) + "1" + strings.Repeat(",1", values-deep) + strings.Repeat("]", deep-1) +
			"}"
	}
	long := make([]Package, 5000)
	for i := range long {
		long[i] = Package{"a", "1", "sha512-" + strings.Repeat("a", 4000)}
	}
	for name, c := range map[string]struct {
		lock *Lock
		says string // "" means accepted
	}{
		"nested deep": {&Lock{Npm: []byte("{\"a\":" + strings.Repeat("[", 1000) + "1" + strings.Repeat(",1", 20000) +
			strings.Repeat("]", 1000) + "}")}, "brackets"},
		"nested too deep":    {&Lock{Npm: []byte(nested(maxNpmNesting+1, 100))}, "brackets"},
		"many values":        {&Lock{Npm: []byte(nested(2, maxNpmValues+1))}, "values"},
		"an array":           {&Lock{Npm: []byte("[1]")}, "no object"},
		"nothing":            {&Lock{Npm: []byte("null")}, "no object"},
		"all that may be":    {&Lock{Npm: []byte(nested(maxNpmNesting, 100_000))}, ""},
		"brackets in a text": {&Lock{Npm: []byte(`{"a":"\"` + strings.Repeat("[", 1000) + `\\"}`)}, ""},
		"a long text":        {&Lock{Packages: long}, "more than 16 MiB"},
		"a text as npm's":    {&Lock{Packages: long[:2000]}, ""},
	} {
		s := &Store{Dir: filepath.Join(t.TempDir(), "packages")}
		c.lock.Key = "k"
		err := s.Add(c.lock, bytes.NewReader(archive(&tar.Header{Name: "a", Size: 1})))
		if c.says == "" {
			if _, got := s.Get("k"); err != nil || got != nil {
				t.Errorf("%s: %v, %v", name, err, got)
			}
			continue
		}
		left, _ := os.ReadDir(s.Dir)
		got := fmt.Sprintf("refused %t, %d files left", err != nil && strings.Contains(err.Error(), c.says), len(left))
		attack.Check(t, "a lock with "+name, "refused true, 0 files left", got)
	}
	s := &Store{Dir: t.TempDir()}
	write(t, filepath.Join(s.Dir, "k", lockName), `{"schema":1,"key":"k"}`+strings.Repeat(" ", maxLock))
	if _, err := s.Get("k"); !errors.Is(err, ErrDamaged) {
		t.Errorf("a lock that is too large: %v", err)
	}
}

func TestStore(t *testing.T) {
	s := &Store{Dir: filepath.Join(t.TempDir(), "packages")}
	if _, err := s.Get("k"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	stream := archive(&tar.Header{Name: "./a/run", Size: 3, Mode: 0o4755},
		&tar.Header{Name: "a/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		&tar.Header{Name: "b", Size: 2, Mode: 0o600}, &tar.Header{Name: "c/.unitaskignore", Size: 1})
	lock := &Lock{Key: "k", Packages: []Package{{"a", "1", "sha256-00"}}}
	if err := s.Add(lock, bytes.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	got, err := s.Get("k")
	if err != nil || got.Files != 2 || got.Bytes != 5 || len(got.Packages) != 1 || got.Digest != lock.Digest {
		t.Fatalf("%+v %v", got, err)
	}
	if st, err := os.Lstat(filepath.Join(got.Folder(), "a/run")); err != nil || st.Mode() != 0o755 {
		t.Errorf("%v %v", st, err)
	}
	if err := s.Verify(got); err != nil {
		t.Error(err)
	}
	for name, damage := range map[string]func(string) error{
		"content":     func(dir string) error { return os.WriteFile(filepath.Join(dir, "b"), []byte("yy"), 0o644) },
		"a file more": func(dir string) error { return os.WriteFile(filepath.Join(dir, "z"), nil, 0o644) },
		"a file less": func(dir string) error { return os.Remove(filepath.Join(dir, "b")) },
		"a link":      func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "l")) },
		"mode":        func(dir string) error { return os.Chmod(filepath.Join(dir, "b"), 0o755) },
	} {
		if err := errors.Join(s.Add(lock, bytes.NewReader(stream)), damage(lock.Folder())); err != nil {
			t.Fatal(err)
		}
		if err := s.Verify(lock); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	write(t, filepath.Join(s.Dir, "k", lockName), "{")
	if _, err := s.Get("k"); !errors.Is(err, ErrDamaged) {
		t.Error(err)
	}
	if keys, err := s.Keys(); err != nil || len(keys) != 1 {
		t.Error(keys, err)
	}
}

// A file's other names are copies, which count. Links that stay inside remain links, and others are listed.
func TestAddLinks(t *testing.T) {
	s := &Store{Dir: filepath.Join(t.TempDir(), "packages")}
	link := func(name, target string) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
	}
	stream := archive(&tar.Header{Name: "esbuild/bin/esbuild", Size: 5, Mode: 0o755},
		&tar.Header{Name: "./@esbuild/linux/bin/esbuild", Typeflag: tar.TypeLink, Linkname: "./esbuild/bin/esbuild"},
		link(".bin/esbuild", "../esbuild/bin/esbuild"), link("a/absolute", "/etc/passwd"), link("a/out", "../../x"),
		link("a/round", "../esbuild/../../x"), link("here", "a"))
	lock := &Lock{Key: "k"}
	if err := s.Add(lock, bytes.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	got, err := s.Get("k")
	if err != nil || got.Files != 4 || got.Bytes != 10 || got.LeftOutMany != 3 ||
		!slices.Equal(got.LeftOut, []string{"a/absolute", "a/out", "a/round"}) {
		t.Fatalf("%+v %v", got, err)
	}
	for _, name := range []string{"@esbuild/linux/bin/esbuild", ".bin/esbuild"} {
		if st, err := os.Stat(filepath.Join(got.Folder(), name)); err != nil || st.Mode() != 0o755 || st.Size() != 5 {
			t.Errorf("%s: %v %v", name, st, err)
		}
	}
	if target, err := os.Readlink(filepath.Join(got.Folder(), ".bin/esbuild")); err != nil ||
		target != "../esbuild/bin/esbuild" {
		t.Errorf("%q %v", target, err)
	}
	if err := s.Verify(got); err != nil {
		t.Error(err)
	}
	many := []*tar.Header{{Name: "a", Size: 1}}
	for i := range 1000 {
		many = append(many, link(fmt.Sprint("l", i), "/x"))
	}
	if err := s.Add(lock, bytes.NewReader(archive(many...))); err != nil || lock.LeftOutMany != 1000 ||
		len(lock.LeftOut) != maxLeftOut {
		t.Errorf("%v: %d links, %d of them named", err, lock.LeftOutMany, len(lock.LeftOut))
	}
}
