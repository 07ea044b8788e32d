package unitask_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/unitask/unitask"
)

// cSource is a package of pip with one file in C and no wheel, which its own backend compiles as setuptools does.
func cSource(t *testing.T, name, text string) []byte {
	t.Helper()
	backend := "NAME = '" + name + "'\n" + `
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

// cModule is a module of Python with a number.
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

// nodeAddon is a package of npm with an addon by V8's API that node-gyp compiles. Its function has the name that Node's own
// macro gives.
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

// Packages without a binary are compiled, in an image with compilers that is built once, by whoever first needs it.
func TestPackagesCompiled(t *testing.T) {
	needVM(t)
	if !long() {
		t.Skip("fetches compilers, and compiles in machines that are emulated: make long")
	}
	fetchTools(t)
	r := newRegistry(t)
	home := newHome(t)
	var mu sync.Mutex
	var told []string
	tell := unitask.IO{Events: func(e unitask.Event) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, e.Message)
	}}
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted()})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	const building = "building the image python-compilers, once"

	// Two at once, of different packages: both need the image.
	var both sync.WaitGroup
	for _, name := range []string{"one", "two"} {
		r.put(name+"-1.0.tar.gz", cSource(t, name, cModule(name)))
		both.Go(func() {
			res, err := rt.Run(t.Context(), unitask.Request{Language: "python", Packages: []string{"pip:" + name},
				Code: "import " + name + "; print(" + name + ".answer)"}, tell)
			if err != nil || string(res.Stdout) != "42\n" {
				t.Errorf("%s: %v %+v", name, err, res)
			}
		})
	}
	both.Wait()
	if n := strings.Count(strings.Join(told, "\n"), building); n != 1 {
		t.Errorf("the image was built %d times: %q", n, told)
	}

	// What the compiler says is the error; the image is there.
	told = nil
	r.put("bad-1.0.tar.gz", cSource(t, "bad", "int f(void) { return missing; }\n"))
	r.put("lacks-1.0.tar.gz", cSource(t, "lacks", "#include <nosuch/header.h>\n"))
	for name, says := range map[string][]string{
		"bad":   {"the compiler says: bad.c:1:", "missing"},
		"lacks": {"the compiler says: lacks.c:1:10: fatal error: nosuch/header.h", "python-compilers.toml", "unitask image build python-compilers"},
	} {
		_, err := rt.Run(t.Context(), unitask.Request{Language: "python", Packages: []string{"pip:" + name}, Code: " "}, tell)
		if err == nil || slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(err.Error(), s) }) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if slices.Contains(told, building) {
		t.Errorf("the image was built again: %q", told)
	}

	r.put("native-1.0.0.tgz", nodeAddon(t))
	res, err := rt.Run(t.Context(), unitask.Request{Language: "js", Packages: []string{"npm:native"}, Kernel: "linux",
		Code: "console.log(require('native').answer)"}, tell)
	if err != nil || string(res.Stdout) != "42\n" {
		t.Errorf("npm: %v %+v\n%q", err, res, told)
	}

	// The user's own description is the one that counts.
	text, err := os.ReadFile(filepath.Join(home, "environments/python-compilers.toml"))
	if err != nil || !strings.Contains(string(text), `"g++"`) {
		t.Errorf("the description: %s %v", text, err)
	}
	file := filepath.Join(home, "environments/node-compilers.toml")
	if err := os.WriteFile(file, []byte("from = 'python'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Catalog().RemoveCustom(t.Context(), "node-compilers"); err != nil {
		t.Fatal(err)
	}
	if _, err := rt.RemovePackages(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = rt.Run(t.Context(), unitask.Request{Language: "js", Packages: []string{"npm:native"}, Kernel: "linux", Code: " "}, tell)
	if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "must be compiled") {
		t.Errorf("a description of another language: %v", err)
	}
}
