package unitask_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// A build's steps reach what their file names, under the ceiling, and nothing else. Their pip and npm use the host's
// registries.
func TestOwnNetwork(t *testing.T) {
	needVM(t)
	at := newSite(t, func(mux *http.ServeMux) {
		mux.HandleFunc("/words", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "one two") })
	})
	r := newRegistry(t)
	r.put("good-1.2-py3-none-any.whl", wheel(t, "good", "1.2", ""))
	config := filepath.Join(t.TempDir(), "npmrc")
	if err := os.WriteFile(config, []byte("@acme:registry="+r.URL+
		"/acme/\n//registry.example/:_authToken=npm_Q8vTk2Lw9zXc4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("npm_config_userconfig", config)
	home := newHome(t)
	open := func(c *policy.Ceiling) *unitask.Runtime {
		rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted(), Upstream: at.upstream, Ceiling: c})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { rt.Close() })
		return rt
	}
	rt := open(nil)
	if _, err := rt.Catalog().Import(t.Context(), boxImage(t, "test/box:1", map[string]any{"Env": []string{"PATH=/bin"}}),
		"", ""); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := describe(t, dir, "fetched", testarchive.Open(t, "testdata/ownnetwork.txtar").File("fetched.toml"))
	slot(t)
	own, _, err := rt.BuildImage(t.Context(), file, "")
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.ReadFile(filepath.Join(dir, "fetched.lock.json"))
	if err != nil || !strings.Contains(string(lock), `"network": [`) ||
		strings.Contains(string(lock), "npm_Q8vTk2Lw9zXc4") {
		t.Errorf("the lock: %s %v", lock, err)
	}
	res, err := rt.Run(t.Context(), unitask.Request{Image: "fetched", Language: "shell",
		Code: `cat /words /index /settings; env | grep -i -E '^(pip|npm)_'; ` +
			`nslookup good.example >/tmp/x && echo reached; :`}, unitask.IO{})
	want := "one two\n<a href=\"/files/good-1.2-py3-none-any.whl#sha256=" +
		sha256Hex(r.files["good-1.2-py3-none-any.whl"]) + "\">good-1.2-py3-none-any.whl</a>\n" +
		"127.0.0.1\n@acme:registry=" + r.URL + "/acme/\nregistry=" + r.URL + "/npm/\n"
	if err != nil || string(res.Stdout) != want {
		t.Errorf("%v %q %q", err, res.Stdout, res.Stderr)
	}
	log, err := os.ReadFile(filepath.Join(home, "audit", "log.jsonl"))
	if err != nil || !strings.Contains(string(log), `"network":["good.example","pip","npm"]`) ||
		strings.Contains(string(log), "npm_Q8vTk2Lw9zXc4") {
		t.Errorf("the audit log: %v", err)
	}

	// Under a ceiling, whatever the lock says.
	buildUnderCeilings(t, open, file, own)

	// The ceiling's rules by method and path apply to a step as to a run.
	rules := "allowNet = [\"good.example\"]\n[[net.rule]]\nhost = \"good.example\"\nmethod = \"GET\"\npath = \"/words\"\n"
	c, err := policy.ParseCeiling("test.toml", []byte(rules))
	if err != nil {
		t.Fatal(err)
	}
	describe(t, dir, "ruled", "from = 'test/box:1'\nnetwork = ['good.example']\n"+
		"run = ['wget -q -O /words http://good.example/words || exit 1; "+
		"wget -q -O /other http://good.example/other 2>/err || { grep -q 403 /err && exit 42; }; exit 3']\n")
	// No rule allows the second request.
	failsToBuild(t.Context(), t, open(c), filepath.Join(dir, "ruled.toml"), "exit code 42")

	// A missing registry is reported before a machine starts, and another network needs another build.
	refuseUnreachable(t, r, dir, rt, file, own, home)
}

// refuseUnreachable checks builds that can't reach their hosts.
func refuseUnreachable(
	t *testing.T, r *registry, dir string, rt *unitask.Runtime, file string, own *unitask.CustomImage, home string,
) {
	t.Helper()
	r.Close()
	describe(t, dir, "fetched", "from = 'test/box:1'\nnetwork = ['pip']\nrun = ['echo']\n")
	if _, _, err := rt.BuildImage(t.Context(), file, ""); err == nil ||
		!strings.Contains(err.Error(), "the registry "+r.URL+"/simple (PIP_INDEX_URL) does not answer") {
		t.Errorf("no registry: %v", err)
	}
	describe(t, dir, "fetched", "from = 'test/box:1'\nnetwork = ['good.example']\nrun = ['nslookup a.b.wild.example']\n")
	if _, _, err := rt.BuildImage(t.Context(), file, ""); err == nil || !strings.Contains(err.Error(), "step 1 of run") ||
		!strings.Contains(err.Error(), "it was refused the way to a.b.wild.example") {
		t.Errorf("a host that is not named: %v", err)
	}
	if list := rt.Catalog().Customs(); len(list) != 1 || list[0].Digest != own.Digest {
		t.Errorf("own: %+v", list)
	}
	if kept, _ := os.ReadDir(filepath.Join(home, "layers")); len(kept) != 1 {
		t.Errorf("layers: %v", kept)
	}
}

// buildUnderCeilings checks a build's network under ceilings.
func buildUnderCeilings(
	t *testing.T, open func(c *policy.Ceiling) *unitask.Runtime, file string, own *unitask.CustomImage,
) {
	t.Helper()
	for text, says := range map[string]string{
		`allowNet = ["good.example"]` + "\npackages = [\"pip:*\"]":                "packages npm:*: is not allowed",
		`allowNet = ["other.example"]` + "\npackages = [\"pip:*\", \"npm:*\"]":    "allowNet good.example: is not allowed",
		`allowNet = ["good.example:443"]` + "\npackages = [\"pip:*\", \"npm:*\"]": "only good.example:443 of it is allowed",
		`allowNet = ["good.example"]` +
			"\npackages = [\"pip:good\", \"npm:good\"]": "packages pip:*: only pip:good of it is allowed",
	} {
		c, err := policy.ParseCeiling("test.toml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := open(c).BuildImage(t.Context(), file, ""); err == nil || !strings.Contains(err.Error(), says) ||
			!strings.Contains(err.Error(), "test.toml") {
			t.Errorf("%s: %v", text, err)
		}
	}
	c, err := policy.ParseCeiling("test.toml",
		[]byte("allowNet = [\"b.example\", \"good.example\"]\npackages = [\"pip:*\", \"npm:*\"]"))
	if err != nil {
		t.Fatal(err)
	}
	if again, _, err := open(c).BuildImage(t.Context(), file, ""); err != nil || again.Digest != own.Digest {
		t.Errorf("what the ceiling allows: %v", err)
	}
}

// Invalid contents of a file over a container image, found before anything is fetched.
func TestOwnLayersRefused(t *testing.T) {
	home := testdir.Private(t)
	offline := true
	rt, err := unitask.Open(unitask.Options{Home: home, Offline: &offline})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	over := "from = 'test/box:1'\n"
	for text, says := range map[string]string{
		over + "network = ['good.example']": "network: " +
			"is for the steps of run, and there are none",
		over + "network = ['*']\nrun = ['x']":                              "network: \"*\" covers every host",
		over + "network = ['http://good.example/v1']\nrun = ['x']":         "network: \"http://good.example/v1\"",
		over + "network = ['good.example:0']\nrun = ['x']":                 "has port \"0\"",
		over + "network = ['']\nrun = ['x']":                               "network: \"\" is empty",
		over + "network = [\"a\\u0000b\"]\nrun = ['x']":                    "network: \"a\\x00b\"",
		over + "network = ['Pip']\nrun = ['x']\nfiles = {'/proc/x' = 'x'}": "/proc/x is not where",
		over + "network = 'pip'\nrun = ['x']":                              "incompatible types",
		over + "pip = ['--index-url=http://h/']":                           "pip: \"pip:--index-url=http://h/\"",
		over + "pip = ['*']":                                               "is no package",
		over + "npm = ['git+https://h/x']":                                 "is no package of npm",
		over + "warm = ['csv']":                                            "warm is for the bundled images",
		"from = 'python'\nnetwork = ['pip']":                               "has no steps",
		"from = 'x:y:z'\nrun = ['x']":                                      "from: x:y:z",
	} {
		_, _, err := rt.BuildImage(t.Context(), describe(t, t.TempDir(), "x", text), "")
		var field *policy.FieldError
		if !errors.As(err, &field) || field.Field != "image" || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(home, "own")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// Packages of a file are checked against the ceiling before anything is fetched, whatever base the image has.
func TestOwnCeiling(t *testing.T) {
	c, err := policy.ParseCeiling("test.toml", []byte("packages = [\"pip:good\"]"))
	if err != nil {
		t.Fatal(err)
	}
	home := testdir.Private(t)
	rt, err := unitask.Open(unitask.Options{Home: home, Ceiling: c})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for _, from := range []string{"python", "test/box:1"} {
		_, _, err := rt.BuildImage(t.Context(), describe(t, t.TempDir(), "x", "from = '"+from+"'\npip = ['good', 'other']\n"),
			"")
		if err == nil || !strings.Contains(err.Error(), "held by test.toml: packages pip:other: is not allowed") {
			t.Errorf("over %s: %v", from, err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(home, "own")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
