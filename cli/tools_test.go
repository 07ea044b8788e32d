package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
)

// A stranger's policy file starts nothing on this host before its user trusts it.
func TestAttackToolsPin(t *testing.T) {
	dir := testdir.Private(t)
	t.Setenv("UNITASK_HOME", filepath.Join(dir, "home"))
	t.Chdir(dir)
	file := "[tools.x]\ncommand = [\"touch\", \"" + filepath.Join(dir, "started") + "\"]\n"
	if err := os.WriteFile(".unitask.toml", []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	pin := func() string {
		var said bytes.Buffer
		Main([]string{"tools", "pin", "x"}, Streams{Stdin: strings.NewReader(""), Stdout: &said, Stderr: &said})
		_, err := os.Stat("started")
		return map[bool]string{true: "started", false: "not started"}[err == nil] + ", " +
			map[bool]string{true: "told", false: "not told"}[strings.Contains(said.String(), "unitask policy trust")]
	}
	attack.Check(t, "an untrusted file's command", "not started, told", pin())
	code := Main([]string{"policy", "trust"}, Streams{Stdin: strings.NewReader(""), Stdout: &bytes.Buffer{},
		Stderr: &bytes.Buffer{}})
	if code != 0 {
		t.Fatalf("policy trust: exit code %d", code)
	}
	attack.Check(t, "a trusted file's command", "started, not told", pin())
}
