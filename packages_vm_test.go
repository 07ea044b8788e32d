package unitask_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// registry is a registry of pip and npm on loopback, with files from a test.
type registry struct {
	*httptest.Server
	mu    sync.Mutex
	files map[string][]byte            // by their names
	bins  map[string]map[string]string // commands of npm packages, by the package's name
	asked int
}

func newRegistry(t *testing.T) *registry {
	t.Helper()
	return startRegistry(t, httptest.NewServer, "")
}

// newSecureRegistry returns a registry with its own certificate.
func newSecureRegistry(t *testing.T) *registry {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	r := startRegistry(t, httptest.NewTLSServer, ca)
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

func startRegistry(t *testing.T, start func(http.Handler) *httptest.Server, ca string) *registry {
	t.Helper()
	r := &registry{files: map[string][]byte{}, bins: map[string]map[string]string{}}
	r.Server = start(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	none := t.TempDir() // npm needs two configuration files, which may be missing
	for name, value := range map[string]string{
		"PIP_INDEX_URL": r.URL + "/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.DevNull, "PIP_CERT": ca,
		"npm_config_registry": r.URL + "/npm/", "npm_config_userconfig": filepath.Join(none, "user"),
		"npm_config_globalconfig": filepath.Join(none, "global"), "npm_config_cafile": ca,
	} {
		t.Setenv(name, value)
	}
	return r
}

func (r *registry) serve(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	kind, rest, _ := strings.Cut(strings.Trim(req.URL.Path, "/"), "/")
	switch {
	case kind == "files" && r.files[rest] != nil:
		w.Write(r.files[rest])
		return
	case kind == "simple" && rest == "":
		return
	case kind == "simple":
		for name, content := range r.files {
			if before, _, _ := strings.Cut(name, "-"); before == rest {
				fmt.Fprintf(w, "<a href=\"/files/%s#sha256=%s\">%[1]s</a>\n", name, sha256Hex(content))
			}
		}
		return
	case kind == "npm" && rest != "":
		versions := map[string]any{}
		for name, content := range r.files {
			if version, ok := strings.CutSuffix(strings.TrimPrefix(name, rest+"-"), ".tgz"); ok &&
				strings.HasPrefix(name, rest+"-") {
				sum := sha512.Sum512(content)
				versions[version] = map[string]any{"name": rest, "version": version, "hasInstallScript": true, "bin": r.bins[rest],
					"dist": map[string]any{"tarball": r.URL + "/files/" + name,
						"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}}
			}
		}
		if len(versions) > 0 {
			_ = json.NewEncoder(w).Encode(map[string]any{"name": rest, "dist-tags": map[string]string{"latest": "1.0.0"},
				"versions": versions})
			return
		}
	case kind == "npm":
		return
	}
	http.NotFound(w, req)
}

func (r *registry) put(name string, content []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files[name] = content
}

// wheel is a package of pip with one module.
func wheel(t *testing.T, name, version, module string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	info := name + "-" + version + ".dist-info/"
	for _, f := range [][2]string{
		{name + "/__init__.py", module}, {info + "METADATA",
			"Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", ""},
	} {
		w, err := z.Create(f[0])
		if err == nil {
			_, err = w.Write([]byte(f[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func tgz(t *testing.T, files ...[2]string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, f := range files {
		err := w.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1])), Typeflag: tar.TypeReg})
		if err == nil {
			_, err = w.Write([]byte(f[1]))
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

// evil is a package whose installation runs its own program. The program tries to leave its machine, and records the
// result in the module that it installs.
func evil(t *testing.T) []byte {
	backend := testarchive.Open(t, "testdata/evilpackage.txtar").File("backend.py")
	return tgz(t, [2]string{"evil-1.0/PKG-INFO", "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n"},
		[2]string{"evil-1.0/pyproject.toml",
			"[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n"},
		[2]string{"evil-1.0/backend.py", backend})
}

// Packages are installed in a separate machine, once. Later runs use them without a registry.
func TestPackages(t *testing.T) {
	needVM(t)
	if !long() {
		t.Skip("pip takes half a minute in a machine that is emulated: make long")
	}
	r := newRegistry(t)
	r.put("good-1.2-py3-none-any.whl", wheel(t, "good", "1.2", "NAME = 'good'\n"))
	r.put("evil-1.0.tar.gz", evil(t))
	home := newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted()})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	req := unitask.Request{Language: "python", Packages: []string{"pip:Evil==1.0"},
		Code: "import evil, sys\nprint(evil.RESULT, evil.__file__, flush=True)\nimport subprocess\n" +
			"subprocess.run([sys.executable, '-c', 'import good; print(good.NAME)'])"}
	want := "ConnectionRefusedError gaierror PermissionError PermissionError 1000 " +
		"/usr/local/lib/python3.13/dist-packages/evil/__init__.py\ngood\n"
	res, err := rt.Run(t.Context(), req, unitask.IO{})
	if err != nil || string(res.Stdout) != want {
		t.Fatalf("%v\n%s%s", err, res.Stdout, res.Stderr)
	}
	if text := fmt.Sprint(res.Packages); !strings.Contains(text,
		"{pip:evil 1.0 sha256-"+sha256Hex(r.files["evil-1.0.tar.gz"])) || !strings.Contains(text, "{pip:good 1.2 sha256-") {
		t.Errorf("installed %s", text)
	}
	r.Close()
	asked := r.asked
	if res, err = rt.Run(t.Context(), req, unitask.IO{}); err != nil || string(res.Stdout) != want || r.asked != asked ||
		len(res.Packages) != 2 {
		t.Fatalf("the second run: %v\n%s%s", err, res.Stdout, res.Stderr)
	}

	// A missing package is not looked up again for minutes, and leaves nothing.
	other := req
	other.Packages = []string{"pip:nosuch"}
	begin := time.Now()
	if _, err = rt.Run(t.Context(), other, unitask.IO{}); err == nil ||
		!strings.Contains(err.Error(), "the registry "+r.URL+"/simple (PIP_INDEX_URL) does not answer") ||
		time.Since(begin) > time.Minute {
		t.Errorf("a registry that is gone: %v after %v", err, time.Since(begin))
	}
	if keys, err := rt.Packages().Keys(); err != nil || len(keys) != 1 {
		t.Errorf("kept: %v %v", keys, err)
	}
	if n, _, err := rt.RemovePackages(t.Context(), time.Time{}, false); err != nil || n != 1 {
		t.Errorf("removed %d %v", n, err)
	}
	if left, _ := os.ReadDir(filepath.Join(home, "packages")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// A process that starts during the build of packages has the registry's certificate and the commands of other packages.
// A file with two names exists under both.
func TestPackagesBuilt(t *testing.T) {
	needVM(t)
	if !long() {
		t.Skip("pip and npm take a minute in machines that are emulated: make long")
	}
	fetchTools(t)
	r := newSecureRegistry(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Machines: unitask.Booted()})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	r.put("helper-1.0-py3-none-any.whl", wheel(t, "helper", "1.0", "NAME = 'helper'\n"))
	backend := testarchive.Open(t, "testdata/builtpackage.txtar").File("backend.py")
	r.put("built-1.0.tar.gz", tgz(t, [2]string{"built-1.0/PKG-INFO", "Metadata-Version: 2.1\nName: built\nVersion: 1.0\n"},
		[2]string{"built-1.0/backend.py", backend},
		[2]string{"built-1.0/pyproject.toml",
			"[build-system]\nrequires = [\"helper\"]\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n"}))
	res, err := rt.Run(t.Context(), unitask.Request{Language: "python", Packages: []string{"pip:built"},
		Code: "import built; print(built.WITH)"}, unitask.IO{})
	if err != nil || string(res.Stdout) != "helper\n" {
		t.Errorf("pip: %v %+v", err, res)
	}

	r.bins["tool"] = map[string]string{"make-it": "run.js"}
	r.put("tool-1.0.0.tgz", tgz(t, [2]string{"package/package.json",
		`{"name":"tool","version":"1.0.0","bin":{"make-it":"run.js"}}`},
		[2]string{"package/run.js", "#!/usr/bin/env node\nrequire('node:fs').linkSync('main.js', 'other.js')\n"}))
	r.put("made-1.0.0.tgz", tgz(t, [2]string{"package/package.json",
		`{"name":"made","version":"1.0.0","main":"other.js","scripts":{"install":"make-it"}}`},
		[2]string{"package/main.js", "exports.name = 'made'\n"}))
	code := "console.log(require('made').name, require('node:fs').readlinkSync('/node_modules/.bin/make-it'))"
	res, err = rt.Run(t.Context(), unitask.Request{Language: "js", Packages: []string{"npm:tool", "npm:made"}, Code: code,
		Kernel: "linux"}, unitask.IO{})
	if err != nil || string(res.Stdout) != "made ../tool/run.js\n" {
		t.Errorf("npm: %v %+v", err, res)
	}
}

// Packages that a request may ask for, checked before anything is built.
func TestPackagesRefused(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for _, c := range []struct{ language, image, pack, says string }{
		{"python", "", "npm:zod", "is not for python, whose packages are pip:NAME"},
		{"js", "", "pip:requests", "is not for js, whose packages are npm:NAME"},
		{"shell", "", "pip:requests", "is not for shell"},
		{"python", "python:3.12-slim", "pip:requests", "bundled images"},
		{"python", "", "pip:*", "is no package"},
		{"python", "", "requests", "begins with neither"},
		{"python", "", "pip:--index-url=http://h/", "is no package of pip"},
	} {
		_, err := rt.Run(t.Context(), unitask.Request{Code: " ", Language: c.language, Image: c.image,
			Packages: []string{c.pack}}, unitask.IO{})
		var field *policy.FieldError
		if !errors.As(err, &field) || field.Field != "packages" || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s in %s%s: %v", c.pack, c.language, c.image, err)
		}
	}
}

// fetchTools gets pip and npm from the host's registries, because a test's registry lacks them.
func fetchTools(t *testing.T) {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)}) // its parts are the base home's
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for _, tool := range []string{"pip", "npm"} {
		if _, _, err := rt.Images().Parts().Tool(t.Context(), image.HostArch(), tool); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := rt.Images().Parts().Headers(t.Context(), image.HostArch()); err != nil { // for Node
		t.Fatal(err)
	}
}

// boxCode prints the name of the package box, and what is left of its changes.
const boxCode = "import('box').then(m => console.log(m.default.name, require('box').late, " +
	"require('node:fs').existsSync('/node_modules/box/link')))"

// putHostileNPM adds a package that fills the disk, and one that changes its own files.
func putHostileNPM(t *testing.T, r *registry) {
	r.put("full-1.0.0.tgz", tgz(t, [2]string{"package/package.json",
		`{"name":"full","version":"1.0.0","scripts":{"postinstall":"cat /dev/zero > /tmp/build/zero; ` +
			`cat /dev/zero > /out/zero; exit 1"}}`}))
	r.put("box-1.0.0.tgz", tgz(t, [2]string{"package/package.json",
		`{"name":"box","version":"1.0.0","main":"a.js","scripts":{"postinstall":"ln -s /etc/passwd link; ` +
			`echo 'exports.late=1' >> a.js"}}`}, [2]string{"package/a.js", "exports.name='box';\n"}))
}

// Failed builds leave nothing, and a lock makes a registry keep to its earlier contents.
func TestPackagesAttacked(t *testing.T) {
	needVM(t)
	if !long() {
		t.Skip("installs five times: make long")
	}
	home := newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted()})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	fetchTools(t)
	r := newRegistry(t)
	run := func(ctx context.Context, language, pack, code string) (string, error) {
		res, err := rt.Run(ctx, unitask.Request{Language: language, Packages: []string{pack}, Code: code, Kernel: "linux"},
			unitask.IO{})
		if res == nil {
			return "", err
		}
		return string(res.Stdout), err
	}
	kept := func(want int) {
		t.Helper()
		if left, _ := os.ReadDir(filepath.Join(home, "packages")); len(left) != want {
			t.Errorf("kept: %v", left)
		}
	}
	r.put("good-1.2-py3-none-any.whl", wheel(t, "good", "1.2", "NAME = 'good'\n"))
	putHostileNPM(t, r)

	if _, err := run(t.Context(), "js", "npm:nosuch", " "); err == nil || !strings.Contains(err.Error(), "nosuch") ||
		!strings.Contains(err.Error(), "404") {
		t.Errorf("no such package: %v", err)
	}
	if _, err := run(t.Context(), "python", "pip:good==9", " "); err == nil ||
		!strings.Contains(err.Error(), "No matching distribution found for good==9") {
		t.Errorf("no such version: %v", err)
	}
	if _, err := run(t.Context(), "js", "npm:full", " "); err == nil {
		t.Error("a package that fills the disk was installed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	if _, err := run(ctx, "js", "npm:box", " "); err == nil {
		t.Log("the build was done before it was cancelled")
	} else {
		kept(0)
	}

	// The limits of the run's ceiling apply to the installation. The tool's program in it does not see them.
	c, err := policy.ParseCeiling("test.toml", []byte("maxDownloadBytes = 2000\n"))
	if err != nil {
		t.Fatal(err)
	}
	module := strings.Builder{}
	for range 2000 { // incompressible in an archive
		fmt.Fprintf(&module, "# %s\n", rand.Text())
	}
	r.put("large-1.0-py3-none-any.whl", wheel(t, "large", "1.0", module.String()))
	large := unitask.Request{Language: "python", Packages: []string{"pip:large"}, Code: "import large", Kernel: "linux"}
	if res, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: c}, large, unitask.IO{}); err == nil {
		t.Errorf("more than the ceiling's bound was downloaded: %s", res.Outcome)
	}
	kept(0)

	// Two concurrent requests build once.
	var wait sync.WaitGroup
	for range 2 {
		wait.Go(func() {
			if out, err := run(t.Context(), "js", "npm:box", boxCode); err != nil || out != "box 1 false\n" {
				t.Errorf("%v %s", err, out)
			}
		})
	}
	wait.Wait()
	kept(1)

	// Changed files are built again, as the lock says; a registry with other contents is refused.
	changeInstalled(t, run, rt, r, kept)
}

// changeInstalled changes packages on the disk and in the registry, and checks the result.
func changeInstalled(
	t *testing.T, run func(ctx context.Context, language string, pack string, code string) (string, error),
	rt *unitask.Runtime, r *registry, kept func(want int),
) {
	t.Helper()
	if out, err := run(t.Context(), "python", "pip:good", "import good; print(good.NAME)"); err != nil || out != "good\n" {
		t.Fatalf("%v %s", err, out)
	}
	list, err := rt.Packages().List()
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	if err := os.WriteFile(filepath.Join(list[0].Folder(), "good/__init__.py"), []byte("NAME = 'evil'\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	honest := r.files["good-1.2-py3-none-any.whl"]
	r.put("good-1.2-py3-none-any.whl", wheel(t, "good", "1.2", "NAME = 'another'\n"))
	if out, err := run(t.Context(), "python", "pip:good", "import good; print(good.NAME)"); err == nil ||
		!strings.Contains(err.Error(), "HASHES") {
		t.Errorf("a registry that lies: %v %s", err, out)
	}
	r.put("good-1.2-py3-none-any.whl", honest)
	if out, err := run(t.Context(), "python", "pip:good", "import good; print(good.NAME)"); err != nil || out != "good\n" {
		t.Errorf("after a change: %v %s", err, out)
	}
	kept(2)
}
