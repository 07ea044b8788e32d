package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// The defaults of a repository's file have no effect until the file is trusted. Then all of them apply until the file
// changes.
func TestAttackDefaults(t *testing.T) {
	t.Setenv("UNITASK_HOME", testdir.Private(t))
	t.Setenv("TOKEN", "a-value-of-eight")
	t.Chdir(testdir.Private(t))
	shown := func() string {
		t.Helper()
		code, out, errs := said(t, "policy", "show", "--json")
		if code != 0 {
			t.Fatal(errs)
		}
		_, effective, _ := strings.Cut(out, `"effective"`)
		return effective
	}
	usual := shown()
	for name, line := range map[string]string{"hosts": `allow-net = ["a.example"]`, "every host": "allow-net-any = true",
		"TCP": `allow-tcp = ["127.0.0.1:22"]`, "requests": `allow-http = ["GET a.example/x"]`,
		"questions": `ask = ["a.example"]`,
		"a secret":  `secret = ["TOKEN@a.example"]`, "an image": `image = "evil.example/x:1"`, "packages": `with = ["pip:x"]`,
		"memory": `memory = "64G"`, "time": `timeout = "24h"`, "traffic": `max-upload = "1T"`,
		"no hardware": "require-hardware = true"} {
		text := "[defaults]\n" + line + "\n"
		if strings.Contains(line, "secret") {
			text += `allow-net = ["a.example"]`
		}
		if err := os.WriteFile(policy.CeilingFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a stranger's defaults: "+name, usual, shown())
		if code, _, errs := said(t, "policy", "trust"); code != 0 {
			t.Fatal(errs)
		}
		if shown() == usual {
			t.Errorf("%s of a file that is trusted does not apply", name)
		}
		if err := os.WriteFile(policy.CeilingFile, []byte(text+"\n# changed\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a stranger's defaults, changed since they were trusted: "+name, usual, shown())
	}
}
