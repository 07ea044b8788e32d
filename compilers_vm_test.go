package unitask_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
)

// cSource is a package of pip with one C file and no wheel. Its own backend compiles it as setuptools does. before is
// code that the backend runs first.
func cSource(t *testing.T, name, text string, before ...string) []byte {
	t.Helper()
	backend := "NAME = '" + name + "'\n" + strings.Join(before, "\n") + `
import os, subprocess, sysconfig, zipfile
def build_wheel(folder, settings=None, metadata=None):
    so = NAME + sysconfig.get_config_var('EXT_SUFFIX')
    cc = sysconfig.get_config_var('CC').split()[0]
    subprocess.check_call([cc, '-shared', '-fPIC', '-I' + sysconfig.get_path('include'), NAME + '.c', '-o', so])
    wheel = NAME + '-1.0-py3-none-any.whl'
    info = NAME + '-1.0.dist-info/'
    with zipfile.ZipFile(os.path.join(folder, wheel), 'w') as z:
        z.write(so)
        z.writestr(info + 'METADATA', 'Metadata-Version: 2.1\nName: ' + NAME + '\nVersion: 1.0\n')
        z.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        z.writestr(info + 'RECORD', '')
    return wheel
`
	project := "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n"
	metadata := "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n"
	return tgz(t, [2]string{name + "-1.0/PKG-INFO", metadata}, [2]string{name + "-1.0/pyproject.toml", project},
		[2]string{name + "-1.0/backend.py", backend}, [2]string{name + "-1.0/" + name + ".c", text})
}

// refused checks that a build fails if it contacts a host of its choice, or changes the compiler of other packages.
const refused = `
import socket
for attempt in (lambda: socket.create_connection(('198.51.100.7', 80), timeout=20), lambda: open('/usr/bin/gcc', 'a'),
                lambda: open('/usr/include/python3.13/Python.h', 'a'), lambda: open('/usr/include/new.h', 'w')):
    try:
        attempt()
    except OSError:
        continue
    raise SystemExit('one was not refused')
`

// cModule is a C extension for Python with a number in it.
func cModule(name string) string {
	return strings.ReplaceAll(`#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME", NULL, -1, NULL, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_NAME(void)
{
	PyObject *m = PyModule_Create(&module);
	PyModule_AddIntConstant(m, "answer", 42);
	return m;
}
`, "NAME", name)
}

// nodeAddon is a package of npm with a V8 addon that node-gyp compiles. Its function has the name that Node's own macro
// gives.
func nodeAddon(t *testing.T) []byte {
	t.Helper()
	source := `#include <node.h>
NODE_MODULE_INIT(/* exports, module, context */)
{
	v8::Isolate *isolate = v8::Isolate::GetCurrent();
	exports->Set(context, v8::String::NewFromUtf8Literal(isolate, "answer"), v8::Number::New(isolate, 42)).Check();
}
`
	return tgz(t, [2]string{"package/package.json", `{"name":"native","version":"1.0.0","main":"index.js"}`},
		[2]string{"package/index.js", "module.exports = require('./build/Release/native.node')\n"},
		[2]string{"package/binding.gyp", `{"targets":[{"target_name":"native","sources":["native.cc"]}]}`},
		[2]string{"package/native.cc", source})
}

// compiling is a runtime with a registry, and the events of its runs.
type compiling struct {
	*unitask.Runtime
	registry *registry
	home     string
	mu       sync.Mutex
	told     []string
}

func newCompiling(t *testing.T) *compiling {
	t.Helper()
	needVM(t)
	if !long() {
		t.Skip("fetches compilers, and compiles in machines that are emulated: make long")
	}
	fetchTools(t)
	c := &compiling{registry: newRegistry(t), home: newHome(t)}
	var err error
	if c.Runtime, err = unitask.Open(unitask.Options{Home: c.home, Machines: unitask.Booted()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// run runs code that imports a package, and returns its output.
func (c *compiling) run(t *testing.T, language, pack, code string) (string, error) {
	t.Helper()
	req := unitask.Request{Language: language, Packages: []string{pack}, Code: code, Kernel: "linux"}
	res, err := c.Run(t.Context(), req, unitask.IO{Events: func(e unitask.Event) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.told = append(c.told, e.Message)
	}})
	if res == nil {
		return "", err
	}
	return string(res.Stdout) + string(res.Stderr), err
}

// Packages without a binary are compiled in an image with compilers. The first run that needs this image builds it,
// once.
func TestPackagesCompiled(t *testing.T) {
	c := newCompiling(t)
	r := c.registry
	const building = "building the image python-compilers, once"

	// Two at once, for different packages: both need the image.
	var both sync.WaitGroup
	for _, name := range []string{"one", "two"} {
		r.put(name+"-1.0.tar.gz", cSource(t, name, cModule(name), refused))
		both.Go(func() {
			out, err := c.run(t, "python", "pip:"+name, "import "+name+"; print("+name+".answer)")
			if err != nil || out != "42\n" {
				t.Errorf("%s: %v %s", name, err, out)
			}
		})
	}
	both.Wait()
	if n := strings.Count(strings.Join(c.told, "\n"), building); n != 1 {
		t.Errorf("the image was built %d times: %q", n, c.told)
	}
	text, err := os.ReadFile(filepath.Join(c.home, "environments/python-compilers.toml"))
	if err != nil || !strings.Contains(string(text), `"g++"`) {
		t.Errorf("the description: %s %v", text, err)
	}

	// For an image, too.
	c.told = nil
	r.put("three-1.0.tar.gz", cSource(t, "three", cModule("three")))
	file := describe(t, t.TempDir(), "threes", "from = 'python'\npip = ['three']\n")
	if _, _, err := c.BuildImage(t.Context(), file, ""); err != nil {
		t.Fatal(err)
	}
	req := unitask.Request{Image: "threes", Code: "import three; print(three.answer)"}
	res, err := c.Run(t.Context(), req, unitask.IO{})
	if err != nil || string(res.Stdout) != "42\n" {
		t.Errorf("an image: %v %+v", err, res)
	}

	// The compiler's message is the error; the image exists.
	c.told = nil
	r.put("bad-1.0.tar.gz", cSource(t, "bad", "int f(void) { return missing; }\n"))
	r.put("lacks-1.0.tar.gz", cSource(t, "lacks", "#include <nosuch/header.h>\n"))
	r.put("rusty-1.0.tar.gz", cSource(t, "rusty", cModule("rusty"), `raise SystemExit("error: can't find Rust compiler")`))
	for name, says := range map[string][]string{
		"bad":   {"the compiler says: bad.c:1:", "missing"},
		"rusty": {"there is no compiler of Rust"},
		"lacks": {"the compiler says: lacks.c:1:10: fatal error: nosuch/header.h", "python-compilers.toml",
			"unitask image build python-compilers"},
	} {
		_, err := c.run(t, "python", "pip:"+name, " ")
		if err == nil || slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(err.Error(), s) }) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if slices.Contains(c.told, building) {
		t.Errorf("the image was built again: %q", c.told)
	}
}

// node-gyp compiles an addon without a network, and the addon's own function loads it. The user's description of the
// image takes precedence.
func TestAddonCompiled(t *testing.T) {
	c := newCompiling(t)
	c.registry.put("native-1.0.0.tgz", nodeAddon(t))
	if out, err := c.run(t, "js", "npm:native", "console.log(require('native').answer)"); err != nil || out != "42\n" {
		t.Fatalf("%v %s\n%q", err, out, c.told)
	}

	file := filepath.Join(c.home, "environments/node-compilers.toml")
	if err := os.WriteFile(file, []byte("from = 'python'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Catalog().RemoveCustom(t.Context(), "node-compilers"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.RemovePackages(t.Context(), time.Time{}, false); err != nil {
		t.Fatal(err)
	}
	_, err := c.run(t, "js", "npm:native", " ")
	if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "must be compiled") {
		t.Errorf("a description of another language: %v", err)
	}
}

// Without Debian's packages the error says so, and suggests an alternative; nothing is left.
func TestCompilersMissing(t *testing.T) {
	c := newCompiling(t)
	c.registry.put("one-1.0.tar.gz", cSource(t, "one", cModule("one")))
	newArchive(t) // it has none
	_, err := c.run(t, "python", "pip:one", " ")
	says := []string{"one: must be compiled", "can't be had", "Unable to locate package gcc",
		"over a container image that has a compiler"}
	if err == nil || slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(err.Error(), s) }) {
		t.Errorf("%v", err)
	}
	if list, err := c.Packages().Keys(); err != nil || len(list) != 0 || len(c.Catalog().Customs()) != 0 {
		t.Errorf("left: %v %v", list, err)
	}
}
