package mcp_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

// TestSecretsOfCallers checks that a caller of a shared server gets its own secrets, everybody's, or the server's
// environment, as far as the ceiling allows. It never sees where a secret is stored.
func TestSecretsOfCallers(t *testing.T) {
	t.Setenv("TOKEN", "the server's own")
	t.Setenv("HIDDEN", "the server's own")
	home := testdir.Private(t)
	for name, text := range map[string]string{
		"alice": "alice's", "everybody": "everybody's",
		unitask.ConfigFile: "[secrets]\nKEY = \"file:" + home + "/everybody\"\nLOST = \"file:" + home +
			"/lost\"\n[callerSecrets.alice]\nKEY = \"file:" + home + "/alice\"\n",
		"ceiling.toml": "secrets = [\"TOKEN\", \"KEY\", \"LOST\"]\n",
	} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	vault, err := unitask.Vault(home)
	if err != nil {
		t.Fatal(err)
	}
	held, err := policy.LoadForModels(home, home, filepath.Join(home, "ceiling.toml"), true)
	if err != nil {
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	s, err := mcp.New(rt, mcp.Options{Dir: t.TempDir(), Ceiling: held.Ceiling, Vault: vault})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, row := range []struct {
		caller, secret, want string
	}{
		{"alice", "KEY", "alice's"}, {"https://issuer.example#7 alice", "KEY", "alice's"}, {"bob", "KEY", "everybody's"},
		{"alice", "TOKEN", "the server's own"},
		{"bob", "LOST", "error: secret LOST: the server can't read it; its log says why"},
	} {
		got, err := mcp.Secrets(t.Context(), s, `{"language":"js","code":"1","secrets":["`+row.secret+`"]}`,
			strings.Fields(row.caller)...)
		value := got[row.secret]
		if err != nil {
			value = "error: " + err.Error()
		}
		if value != row.want {
			t.Errorf("%s of %s: %q, want %q", row.secret, row.caller, value, row.want)
		}
	}
	if got, err := mcp.Secrets(t.Context(), s, `{"language":"js","code":"1","secrets":["HIDDEN"]}`, "alice"); err != nil ||
		got["HIDDEN"] == "the server's own" {
		t.Errorf("a secret outside the ceiling: %q, %v", got, err)
	}
}
