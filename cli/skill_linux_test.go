package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
)

// A skill's script runs with its files, input and exit code; it can't change them. It reaches only hosts that both its
// metadata and the ceiling name, and only if it is trusted. A trusted skill that changed does not run.
func skillRuns(t *testing.T, program *exec.Cmd) {
	t.Helper()
	dir := testdir.Private(t)
	unitask := func(args ...string) (code int, out, errs string) {
		t.Helper()
		cmd := exec.Command(program.Path, args...)
		var stdout, stderr bytes.Buffer
		cmd.Dir, cmd.Env, cmd.Stdin = dir, program.Env, strings.NewReader("input\n")
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
	}
	files := map[string]string{
		".unitask.toml": "allowNet = [\"*.example.com\"]\nallowTcp = [\"127.0.0.1:1\"]\n",
		"demo/SKILL.md": "---\nname: demo\ndescription: A demo.\nmetadata:\n" +
			"  unitask-allow-net: api.example.com other.example.org\n---\n",
		"demo/references/note": "noted\n", "demo/top.sh": "echo at the top; echo made >/out/made.txt\n",
		"demo/scripts/show.sh": `cat "$(dirname "$0")/../references/note" -; printf '%s|' "$@"; pwd` +
			"\n(echo x >> \"$0\") 2>/dev/null || echo same; touch made; exit 4\n",
	}
	writeFiles(t, dir, files)
	hosts := func() string {
		_, text, _ := unitask("inspect", "last", "--json")
		var rec struct {
			Effective struct {
				AllowNet, AllowTCP []string
				AllowNetAny        bool
			}
		}
		if err := json.Unmarshal([]byte(text), &rec); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return fmt.Sprint(rec.Effective.AllowNet, rec.Effective.AllowTCP, rec.Effective.AllowNetAny)
	}
	code, out, errs := unitask("skill", "run", "demo", "--", "a b", "$HOME")
	if code != 4 || out != "noted\ninput\na b|$HOME|/work\nsame\n" || !strings.Contains(errs, "not trusted") {
		t.Fatalf("%d %q %s", code, out, errs)
	}
	attack.Check(t, "skill run: an untrusted skill's hosts", "[] [] false", hosts())
	if code, out, _ := unitask("skill", "trust", "demo"); code != 0 || !strings.Contains(out, "other.example.org") {
		t.Errorf("%d %s", code, out)
	}
	if code, out, errs := unitask("skill", "run", "demo", "top.sh", "--out", "brought"); code != 0 ||
		out != "at the top\n" {
		t.Errorf("a script beside SKILL.md: %d %q %s", code, out, errs)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "brought", "made.txt")); string(text) != "made\n" {
		t.Errorf("--out: got %q, %v", text, err)
	}
	if code, _, errs := unitask("skill", "run", "demo", "show.sh"); code != 4 ||
		!strings.Contains(errs, "denied: --allow-net other.example.org") {
		t.Errorf("%d %s", code, errs)
	}
	attack.Check(t, "skill run: a trusted skill's hosts", "[api.example.com] [] false", hosts())
	added := filepath.Join(dir, "demo/scripts/more.sh")
	if err := os.WriteFile(added, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	code, out, errs = unitask("skill", "run", "demo", "show.sh")
	attack.Check(t, "skill run: a changed skill", "2 ", fmt.Sprint(code, " ", out))
	if !strings.Contains(errs, "new: scripts/more.sh") {
		t.Errorf("%s", errs)
	}
	if _, out, _ := unitask("skill", "ls", "--json"); !strings.Contains(out, `"changed"`) {
		t.Errorf("%s", out)
	}
	for name, args := range map[string][]string{"its own hosts": {"demo", "--allow-net", "x.example.com"}, "none": {},
		"no folder": {"nosuch"}, "no skill": {"demo/scripts"}, "a file": {"demo/SKILL.md"}, "several": {"demo", "a", "b"}} {
		code, _, errs := unitask(append([]string{"skill", "run"}, args...)...)
		attack.Check(t, "skill run: "+name, "2", fmt.Sprint(code))
		if errs == "" {
			t.Errorf("%s: no reason", name)
		}
	}
	if code, _, _ := unitask("skill", "trust", "--forget", "nosuch"); code != 2 {
		t.Errorf("exit code %d", code)
	}
}

// writeFiles writes files by their paths in a folder.
func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
