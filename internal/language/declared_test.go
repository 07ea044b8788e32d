package language

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The scripts of a declared language treat its arguments, the file's name and the code's arguments as text only.
func TestDeclaredScripts(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("this host has no bash")
	}
	dir := t.TempDir()
	odd := filepath.Join(dir, "a $(touch evil) '\"; {out} é\n-n")
	if err := os.WriteFile(odd, []byte("code\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tell := `for a in "$@"; do printf '[%s]' "$a"; done`
	run := func(script string, args ...string) (string, error) {
		main := filepath.Join(dir, "main.sh")
		if err := os.WriteFile(main, []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(bash, append([]string{main, odd}, args...)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	d := Declared{Name: "toy", Extensions: []string{".toy"},
		Run: []string{"bash", "-c", strings.NewReplacer("{", "{{", "}", "}}").Replace(tell), "it's {{x}}", "$HOME",
			"a{file}b"}}
	if err := d.Verify(); err != nil {
		t.Fatal(err)
	}
	want := "[$HOME][a" + odd + "b][$1][][ ']"
	if out, err := run(d.runner(), "$1", "", " '"); err != nil || out != want {
		t.Errorf("%v %q, want %q", err, out, want)
	}
	if d.checker() != "" {
		t.Error("a check")
	}
	// A compiled language: the program is in a folder of its own; a compiler that fails decides the exit code.
	d.Compile, d.Run = []string{"cp", "--", "{file}", "{out}"}, []string{"cat", "{out}"}
	if err := d.Verify(); err != nil {
		t.Fatal(err)
	}
	if out, err := run(d.runner(), "--", odd); err != nil || out != "code\ncode\n" {
		t.Errorf("%v %q", err, out)
	}
	d.Compile = []string{"bash", "-c", "exit 7", "{file}", "{out}"}
	for _, script := range []string{d.runner(), d.checker()} {
		var failed *exec.ExitError
		if out, err := run(script); out != "" || !asExit(err, &failed) || failed.ExitCode() != 7 {
			t.Errorf("%v %q", err, out)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "evil")); err == nil {
		t.Error("a shell has read the file's name")
	}
}

func asExit(err error, to **exec.ExitError) bool {
	e, is := err.(*exec.ExitError)
	*to = e
	return is
}
