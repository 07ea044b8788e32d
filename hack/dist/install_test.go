package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/testhome"
)

// packages builds this system's packages for pip and npm, and an environment with a home for machines.
func packages(t *testing.T) (dir string, env []string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds a release's packages and boots real machines; not in -short")
	}
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, "linux")
	home := testhome.New(t, base)
	t.Chdir("../..")
	dir = t.TempDir()
	program := filepath.Join(dir, "unitask")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cli/unitask")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	system := runtime.GOOS + "/" + runtime.GOARCH
	if _, err := wheel("1.2.3", system, program, dir); err != nil {
		t.Fatal(err)
	}
	platform, err := npmPlatform("1.2.3", system, program, dir)
	if err == nil {
		err = npmClient("1.2.3", dir, []string{platform})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "UNITASK_") {
			env = append(env, v)
		}
	}
	return dir, append(env, "UNITASK_HOME="+home)
}

// do runs a command in a folder and returns its output.
func do(t *testing.T, dir string, env []string, command string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command, args...)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", command, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// one returns the file that a pattern matches.
func one(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) != 1 {
		t.Fatalf("%s: %v %v", pattern, files, err)
	}
	return files[0]
}

// What pip and npm install from a release's files runs code in a machine: the command, and the client, which finds the
// program by itself.
func TestInstalled(t *testing.T) {
	dir, env := packages(t)
	t.Run("wheel", func(t *testing.T) {
		venv := filepath.Join(t.TempDir(), "v")
		if out, err := exec.Command("python3", "-m", "venv", venv).CombinedOutput(); err != nil {
			t.Skipf("no Python with venv: %v %s", err, out)
		}
		do(t, dir, env, venv+"/bin/pip", "install", "-q", "--disable-pip-version-check", one(t, dir+"/unitask-1.2.3-*.whl"))
		if out := do(t, dir, env, venv+"/bin/unitask", "run", "--lang", "js", "--code", "console.log(6 * 7)"); out != "42\n" {
			t.Errorf("%q", out)
		}
		sameSkill(t, do(t, dir, env, venv+"/bin/python", "-c", "import importlib.resources as r; "+
			"print(r.files('unitask').joinpath('skills/unitask/SKILL.md').read_text(), end='')"))
		code := "from unitask import Client\n" +
			"with Client() as client: print(client.run('console.log(6 * 7)', language='js').stdout)"
		if out := do(t, dir, env, venv+"/bin/python", "-c", code); out != "42\n\n" {
			t.Errorf("%q", out)
		}
	})
	t.Run("npm", func(t *testing.T) {
		into := t.TempDir()
		do(t, into, env, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts",
			one(t, dir+"/unitask-"+runtime.GOOS+"-*.tgz"), one(t, dir+"/unitask-1.2.3.tgz"))
		command := filepath.Join(into, "node_modules", ".bin", "unitask")
		if out := do(t, into, env, command, "run", "--lang", "js", "--code", "console.log(6 * 7)"); out != "42\n" {
			t.Errorf("%q", out)
		}
		text, err := os.ReadFile(filepath.Join(into, "node_modules", "unitask", "skills", "unitask", "SKILL.md"))
		if err != nil {
			t.Fatal(err)
		}
		sameSkill(t, string(text))
		code := `import { Client } from "unitask"; const client = new Client();
console.log((await client.run("console.log(6 * 7)", { language: "js" })).stdout);`
		if out := do(t, into, env, "node", "--input-type=module", "-e", code); out != "42\n\n" {
			t.Errorf("%q", out)
		}
		cmd := exec.CommandContext(t.Context(), command, "run", "--lang", "js", "--code", "process.exit(7)")
		cmd.Env = env
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 7 {
			t.Errorf("the code's exit code: %v", err)
		}
		remove(t, filepath.Join(into, "node_modules", "@unitask"))
		cmd = exec.CommandContext(t.Context(), command, "--version")
		cmd.Env = env
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "--omit=optional") {
			t.Errorf("without the platform's package: %v %s", err, out)
		}
	})
}

// sameSkill checks that a package has our skill, by its text.
func sameSkill(t *testing.T, got string) {
	t.Helper()
	want, err := os.ReadFile(skill)
	if err != nil || got != string(want) {
		t.Errorf("the package's skill: %v %.200q", err, got)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// Each system's zsh finds its completions: Debian's zsh has a folder for packages, which Fedora's does not read.
func TestLinuxCompletions(t *testing.T) {
	t.Chdir("../..")
	dir := t.TempDir()
	for _, name := range []string{"unitask", "completions/unitask.bash", "completions/_unitask",
		"completions/unitask.fish"} {
		if err := write(filepath.Join(dir, name), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := linuxPackages("1.2.3", "amd64", filepath.Join(dir, "unitask"), dir); err != nil {
		t.Fatal(err)
	}
	rpm, err := os.ReadFile(one(t, dir+"/*.rpm")) // the header has the folders
	if err != nil || !bytes.Contains(rpm, []byte("/usr/share/zsh/site-functions/")) ||
		bytes.Contains(rpm, []byte("vendor-completions")) {
		t.Errorf("the rpm's folder for zsh: %v", err)
	}
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("no dpkg-deb lists the deb")
	}
	out := do(t, dir, os.Environ(), "dpkg-deb", "-c", one(t, dir+"/*.deb"))
	if !strings.Contains(out, "./usr/share/unitask/skills/unitask/SKILL.md") {
		t.Errorf("no skill: %s", out)
	}
	if !strings.Contains(out, "/zsh/vendor-completions/_unitask") || strings.Contains(out, "site-functions") {
		t.Errorf("%s", out)
	}
}

func TestPythonVersion(t *testing.T) {
	for version, want := range map[string]string{"1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3rc1", "1.2.3-alpha.10": "1.2.3a10",
		"1.2.3-x.1": ""} {
		if got, err := pythonVersion(version); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q %v, want %q", version, got, err, want)
		}
	}
}
