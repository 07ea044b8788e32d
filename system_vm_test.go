package unitask_test

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
)

// usual is a script that prints what the machine lacks of a usual system. That includes libraries of the manylinux
// policies (PEP 600) with their dependencies, commands that run, folders, and a locale with non-ASCII letters.
func usual(t *testing.T) string {
	t.Helper()
	return testarchive.Open(t, "testdata/usualsystem.txtar").File("usual.sh")
}

func TestUsualSystem(t *testing.T) {
	needClones(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	script := usual(t)
	letters := "s=é日本; echo ${#s} $(printf %s \"$s\" | wc -m)\n"
	inShell := func(language string) string {
		switch language {
		case "js":
			return fmt.Sprintf("process.stdout.write(require('child_process').execFileSync('sh', ['-c', %q]))", script)
		case "python":
			return fmt.Sprintf(
				"import subprocess, sys\nsys.stdout.write(subprocess.run(['sh', '-c', %q], stdout=-1, text=True).stdout)", script)
		}
		return letters + script
	}
	for name, language := range map[string]string{"node": "js", "python": "python", "data": "python", "shell": "shell"} {
		t.Run(name, func(t *testing.T) {
			slot(t)
			res, err := rt.Run(t.Context(), unitask.Request{Language: language, Image: name, Kernel: image.Linux,
				Code: inShell(language)}, unitask.IO{})
			want := "done\n"
			if language == "shell" {
				want = "3 3\n" + want
			}
			if err != nil || string(res.Stdout) != want {
				t.Errorf("%v\n%s%s", err, res.Stdout, res.Stderr)
			}
		})
	}
}

// Git treats a folder that a run brings as the user's own.
func TestGitInFolder(t *testing.T) {
	needClones(t)
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not here")
	}
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	dir := t.TempDir()
	script := "git init -q . && echo one > file && git add file && git -c user.name=a -c user.email=a@b commit -q -m " +
		"first && echo two >> file"
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v %s", git, err, out)
	}
	slot(t)
	code := "cd /repo && git log --format=%s && git status --short && git diff --stat | tail -n 1 && cp -r /repo " +
		"/tmp/own && cd /tmp/own && git -c user.name=a -c user.email=a@b commit -qam second && git log --oneline | wc -l"
	res, err := rt.Run(t.Context(), unitask.Request{Language: "shell", Code: code,
		Dirs: []unitask.Mount{{Host: dir, Guest: "/repo"}}}, unitask.IO{})
	want := "first\n M file\n 1 file changed, 1 insertion(+)\n2\n"
	if err != nil || string(res.Stdout) != want {
		t.Errorf("%v\n%s%s", err, res.Stdout, res.Stderr)
	}
}

// An image's disk has all parts of a usual system, and both architectures have them locked.
func TestUsualParts(t *testing.T) {
	for _, arch := range []image.Arch{image.AMD64, image.ARM64} {
		locked, err := image.Lock(arch)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, p := range locked {
			if names[p.Name] {
				t.Errorf("%s: %s is there twice", arch, p.Name)
			}
			names[p.Name] = true
		}
		for _, part := range strings.Fields(
			"procps util-linux bsdextrautils libx11-6 libgl1 libglib2.0-0 libatomic1 libgomp1 libstdc++ libc-bin") {
			if !names[part] {
				t.Errorf("%s: vendor.lock lacks %s", arch, part)
			}
		}
	}
}

// The libraries that are preloaded into Node and Python export only replacements for libc's functions. Another name
// could also occur in a module of the code, whose calls would then reach ours.
func TestLibrariesHide(t *testing.T) {
	needVM(t)
	vendor := filepath.Join(baseHome, "vendor", string(image.HostArch()))
	names := func(file string) (list []string) {
		f, err := elf.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		symbols, err := f.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range symbols {
			if s.Section != elf.SHN_UNDEF {
				list = append(list, s.Name)
			}
		}
		return list
	}
	found := func(pattern string) []string {
		files, _ := filepath.Glob(filepath.Join(vendor, pattern))
		if len(files) == 0 {
			t.Fatalf("no %s", pattern)
		}
		return files
	}
	var libc []string
	for _, file := range found("libc/root/lib/*/lib*.so.*") {
		libc = append(libc, names(file)...)
	}
	for _, name := range []string{"node", "python"} {
		imageOf(t, name) // its programs are compiled now, if necessary
	}
	// The libraries of linux, and of Nanos if it has a different one.
	for _, library := range slices.Concat(found("guest*/*.node"), found("guest*/*.so")) {
		for _, symbol := range names(library) {
			if !slices.Contains(libc, symbol) {
				t.Errorf("%s exports %s", library, symbol)
			}
		}
	}
}
