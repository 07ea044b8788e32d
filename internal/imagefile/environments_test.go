package imagefile

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

var along = []string{"node", "python"}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// A file begins with another, whose entries come before its own.
func TestChain(t *testing.T) {
	dir, folder := t.TempDir(), t.TempDir()
	write(t, dir, map[string]string{
		"report.toml": "from = 'mine'\npip = ['b']\nwarm = ['b']\nmemoryMb = 300\ntimeoutSeconds = 2.5\n" +
			"description = 'two'\n[env]\nA = '2'\n" +
			"[files]\n'/opt/x' = 'x'\n",
		"python.toml": "from = 'python'\nnpm = []\n", "x/deep/file": "content", "x/run": "#!",
	})
	write(t, folder,
		map[string]string{"mine.toml": "from = 'node'\npip = ['a']\nwarm = ['a.b']\nmemoryMb = 200\ntimeoutSeconds = 9\n" +
			"[env]\nA = '1'\n" +
			"B = '1'\n" +
			"[files]\n'/opt/x' = 'other'\n'/srv/y' = 'y'\n", "y": "why"})
	// The host's file modes, with an umask that excludes others, are not the machine's.
	if err := errors.Join(os.Chmod(filepath.Join(dir, "x/run"), 0o700),
		os.Chmod(filepath.Join(dir, "x/deep/file"), 0o600)); err != nil {
		t.Fatal(err)
	}
	e, err := Read(filepath.Join(dir, "report.toml"), folder, along)
	if err != nil {
		t.Fatal(err)
	}
	if e.Name != "report" || e.From != "node" || !slices.Equal(e.Pip, []string{"a", "b"}) ||
		!slices.Equal(e.Warm, []string{"a.b", "b"}) || e.MemoryMB != 300 || e.Timeout != 2500*time.Millisecond ||
		e.Description != "two" ||
		!maps.Equal(e.Env, map[string]string{"A": "2", "B": "1"}) || len(e.Chain) != 2 {
		t.Errorf("%+v", e)
	}
	if self, err := Read(filepath.Join(dir, "python.toml"), folder, along); err != nil || self.From != "python" {
		t.Errorf("an image in the place of the one that it begins with: %+v %v", self, err)
	}
	var out bytes.Buffer
	to := tar.NewWriter(&out)
	if err := errors.Join(e.WriteTo(to), to.Close()); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		text, err2 := io.ReadAll(r)
		if err = errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		got[h.Name] = h.FileInfo().Mode().String() + " " + string(text)
	}
	want := map[string]string{"opt/x/deep/file": "-rw-r--r-- content", "opt/x/run": "-rwxr-xr-x #!",
		"srv/y": "-rw-r--r-- why"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestBadFiles(t *testing.T) {
	long := strings.Repeat("x", 400)
	for text, says := range map[string]string{
		"":                                 "has no from",
		"from = ":                          "line 1",
		"from = 'python'\ndebain = ['jq']": `unknown key "debain": there are from, debian, pip, npm, run, network`,
		"from = 'python'\nPip = ['x']":     `unknown key "Pip"`,
		"from = 'python'\npip = 'x'":       "incompatible types",
		"from = 'python@3.10'":             `from = "python@3.10" is no image: use node, python`,
		// Not the file of that name.
		"from = 'python@3.11'": `from = "python@3.11" is no image: use node, python`,
		"from = 'pyton'": `from = "pyton" is no image: ` +
			`use node, python, a container image's reference, or the name of a file of yours`,
		"from = 'Python'":                                               "is no image",
		"from = 'python'\nrun = ['']":                                   "run: step 1",
		"from = 'python'\nrun = ['x', \"a\\u0000\"]":                    "run: step 2",
		"from = 'python'\nrun = ['" + strings.Repeat("x", 17000) + "']": "run: step 1",
		"from = 'a'":                                                       "begins with",
		"from = 'loop'":                                                    "goes round in a circle",
		"from = 'python'\ntimeoutSeconds = -1":                             "timeoutSeconds: -1",
		"from = 'python'\ntimeoutSeconds = nan":                            "timeoutSeconds: NaN",
		"from = 'python'\ntimeoutSeconds = 1e300":                          "timeoutSeconds: 1e+300",
		"from = 'python'\nmemoryMb = -1":                                   "memoryMb: -1",
		"from = 'python'\nwarm = ['os;x']":                                 `warm: "os;x" is no name of a module`,
		"from = 'python'\nwarm = ['a\\nb']":                                "is no name of a module",
		"from = 'python'\nenv = {'A=B' = ''}":                              "env: \"A=B\" can't be a variable",
		"from = 'python'\nenv = {A = \"x\\u0000\"}":                        "can't be a variable",
		"from = 'python'\ndescription = \"a\\nb\"":                         "description: must be one line",
		"from = 'python'\ndescription = 'a\u202eb'":                        "description: must be one line",
		"from = 'python'\ndescription = '" + long + "'":                    "description: must be one line",
		"from = 'python'\nfiles = {'/opt/a' = '../a'}":                     "not below the file's own folder",
		"from = 'python'\nfiles = {'/opt/a' = '/etc/passwd'}":              "not below the file's own folder",
		"from = 'python'\nfiles = {'/opt/a' = ''}":                         "not below the file's own folder",
		"from = 'python'\nfiles = {'opt/a' = 'a'}":                         "is no path in the machine",
		"from = 'python'\nfiles = {'/opt/../etc/x' = 'a'}":                 "is no path in the machine",
		"from = 'python'\nfiles = {\"/o\\nx\" = 'a'}":                      "is no path in the machine",
		"from = 'python'\nfiles = {'/o/x' = 'a','/o/x/y' = 'b'}":           "/o/x/y lies in /o/x",
		"from = 'python'\npip = [" + strings.Repeat("'x',", 101) + "]":     "pip has 101 entries",
		"from = 'python'\nnetwork = [" + strings.Repeat("'x',", 101) + "]": "network has 101 entries",
		"from = 'python'\n#" + strings.Repeat(long, 1000):                  "more than 262144 bytes",
	} {
		dir := t.TempDir()
		write(t, dir, map[string]string{"a.toml": text, "loop.toml": "from = 'a'\n",
			"python@3.11.toml": "from = 'python'\n"})
		if text == "from = 'a'" {
			text, says = "from = 'a'", `from = "a" is no image`
		}
		if _, err := Read(filepath.Join(dir, "a.toml"), t.TempDir(), along); err == nil ||
			!strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "a.toml") {
			t.Errorf("%.60q: %v", text, err)
		}
	}
	dir := t.TempDir()
	for i := range 12 {
		write(t, dir, map[string]string{"f" + string(rune('a'+i)) + ".toml": "from = 'f" + string(rune('a'+i+1)) + "'\n"})
	}
	refused := func(name, says string) {
		t.Helper()
		if _, err := Read(filepath.Join(dir, name), dir, along); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("read %s: got %v, want %q", name, err, says)
		}
	}
	refused("fa.toml", "more than 8 files")
	write(t, dir, map[string]string{"old.toml": "from = 'python@3.11'\n", "python@3.11.toml": "from = 'node'\n"})
	refused("Big Name.toml", "is no name of an image")
	for _, name := range []string{"python@3.11", "python@", "@3.11"} {
		write(t, dir, map[string]string{name + ".toml": "from = 'python'\n"})
		refused(name+".toml", "is no name of an image")
	}
	if e, err := Read(filepath.Join(dir, "old.toml"), dir, append(along, "python@3.11")); err != nil ||
		e.From != "python@3.11" || Contained(e.From) {
		t.Errorf("over an older version: %+v %v", e, err)
	}
	if _, err := Read(filepath.Join(dir, "none.toml"), dir, along); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.toml"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("pipe.toml", "not a regular file")
}

// A named file must be a regular one: no links, no pipes, and it must exist.
func TestBadContents(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, filepath.Dir(secret), map[string]string{"secret": "s"})
	for _, c := range []struct {
		files, says string
		make        func(dir string) error
	}{
		{"'/opt/a' = 'none'", "none: no such file", nil},
		{"'/opt/a' = 'link'", "link is a link", func(dir string) error {
			return os.Symlink(secret,
				filepath.Join(dir, "link"))
		}},
		{"'/opt/a' = 'sub/file'", "escapes from parent",
			func(dir string) error { return os.Symlink(filepath.Dir(secret), filepath.Join(dir, "sub")) }},
		{"'/opt/a' = 'folder'", "folder/link is neither", func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "folder"), 0o755),
				os.Symlink(secret, filepath.Join(dir, "folder/link")))
		}},
		{"'/opt/a' = 'pipe'", "pipe is neither", func(dir string) error {
			return syscall.Mkfifo(filepath.Join(dir, "pipe"),
				0o600)
		}},
		{"'/file' = 'a.toml'", "would lie at the root", nil},
	} {
		dir := t.TempDir()
		write(t, dir, map[string]string{"a.toml": "from = 'python'\nfiles = {" + c.files + "}\n"})
		if c.make != nil {
			if err := c.make(dir); err != nil {
				t.Fatal(err)
			}
		}
		e, err := Read(filepath.Join(dir, "a.toml"), dir, along)
		if err == nil {
			err = e.WriteTo(tar.NewWriter(io.Discard))
		}
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.files, err)
		}
	}
}
