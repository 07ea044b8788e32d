package mcp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

type attackModelCeilingsRow struct{ how, text, principal, ask, want string }

// attackModelCeilingsRows are the cases of TestAttackModelCeilings.
func attackModelCeilingsRows(
	stranger, all, nothing, file, folder, token, raw, named, shared string,
) []attackModelCeilingsRow {
	return []attackModelCeilingsRow{
		{stranger, "", "", all, nothing},
		{stranger, "outputBytes = 1048576", "", all, nothing},
		{stranger, "[principals.alice]\nmemoryMb = 512", "", all, nothing},
		{stranger, "[principals.alice]\nmemoryMb = 512", "bob", all, nothing},
		{stranger, `filesUnder = ["/"]`, "", file, nothing},
		{stranger, `dirsUnder = ["/"]`, "", folder, nothing},
		{stranger, `filesUnder = [".."]`, "", file, nothing},
		{stranger, `filesUnder = ["link"]`, "", file, nothing},
		{stranger, `secrets = ["A_TOKEN"]`, "", token, nothing},
		{stranger, `allowTcp = ["127.0.0.1:22"]`, "", raw, nothing},
		{stranger, "[principals.\"\"]\nsecrets = [\"A_TOKEN\"]", "", token, nothing},
		{stranger, "[principals.a]\nsecrets = [\"A_TOKEN\"]", "a", token, nothing},
		{stranger, "memoryMb = 256", "", `"memoryMb":4096`, "files 0, dirs 0, secrets [], tcp [], memory 256"},
		{stranger, `filesUnder = []`, "", `"files":["data.csv"]`, nothing},
		{stranger, `filesUnder = ["/"]`, "", `"files":["data.csv"]`, "files 1, dirs 0, secrets [], tcp [], memory 512"},
		{named, "outputBytes = 1048576", "", all, nothing},
		{named, "[principals.alice]\nmemoryMb = 512", "", all, nothing},
		{named, "[principals.alice]\nmemoryMb = 512", "alice", all, nothing},
		{named, "[principals.alice]\nsecrets = [\"A_TOKEN\"]\nfilesUnder = [\"/\"]\n" +
			"allowTcp = [\"127.0.0.1:22\"]\ndirsUnder = [\"/\"]", "alice", all, nothing},
		{named, "secrets = [\"A_TOKEN\"]\n[principals.alice]\nmemoryMb = 512", "bob", all,
			"files 0, dirs 0, secrets [A_TOKEN], tcp [], memory 512"},
		{named, "secrets = [\"A_TOKEN\"]\n[principals.alice]\nsecrets = []", "alice", all, nothing},
		{named, `filesUnder = ["/"]`, "", all, "files 1, dirs 0, secrets [], tcp [], memory 512"},
		{named, `allowTcp = ["127.0.0.1:22"]`, "", all, "files 0, dirs 0, secrets [], tcp [127.0.0.1:22], memory 512"},
		{named, `secrets = ["A_TOKEN"]`, "", all, "files 0, dirs 0, secrets [A_TOKEN], tcp [], memory 512"},
		{shared, "outputBytes = 1048576", "", `"files":["data.csv"]`, nothing},
		{shared, `secrets = ["A_TOKEN"]`, "", all, "files 0, dirs 0, secrets [A_TOKEN], tcp [], memory 512"},
	}
}

// Ceiling files that try to give models rights for which no key exists.
func TestAttackModelCeilings(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "shadow")
	for _, name := range []string{secret, filepath.Join(dir, "data.csv")} {
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("A_TOKEN", "a-token-of-the-server")
	const (
		stranger = "a file in the folder"
		named    = "--policy"
		shared   = "--policy, over HTTP"
		file     = `"files":["/SECRET:/x"]`
		folder   = `"dirs":["/:/y"]`
		token    = `"secrets":["A_TOKEN"]`
		raw      = `"allowTcp":["127.0.0.1:22"]`
		all      = file + "," + folder + "," + token + "," + raw
		nothing  = "files 0, dirs 0, secrets [], tcp [], memory 512"
	)
	for _, row := range attackModelCeilingsRows(stranger, all, nothing, file, folder, token, raw, named, shared) {
		at, policyFile := filepath.Join(dir, policy.CeilingFile), ""
		if row.how != stranger {
			at = filepath.Join(t.TempDir(), "policy.toml")
			policyFile = at
		}
		_ = os.Remove(filepath.Join(dir, policy.CeilingFile))
		_ = os.Symlink("/", filepath.Join(dir, "link"))
		if err := os.WriteFile(at, []byte(row.text), 0o600); err != nil {
			t.Fatal(err)
		}
		held, err := policy.LoadForModels(t.TempDir(), dir, policyFile, row.how == shared)
		if err != nil {
			t.Fatal(err)
		}
		s, err := mcp.New(rt, mcp.Options{Dir: dir, Ceiling: held.Ceiling})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		e, denials, err := mcp.Granted(s, row.principal,
			`{"language":"js","code":"1",`+strings.ReplaceAll(row.ask, "/SECRET", secret)+`}`)
		if err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprintf("files %d, dirs %d, secrets %v, tcp %v, memory %d", len(e.Files), len(e.Dirs), e.Secrets,
				e.AllowTCP, e.MemoryMB)
		}
		attack.Check(t, fmt.Sprintf("model's ceiling: %s: %q asked by %q for %s", row.how, row.text, row.principal,
			strings.Replace(row.ask, all, "all of it", 1)), row.want, got)
		for _, d := range denials { // each names the key that would allow it
			if d.Key == "" || !strings.Contains(d.String(), "key "+d.Key+" of the ceiling") {
				t.Errorf("%+v", d)
			}
		}
		s.Close()
	}
}

// The built-in ceiling gives a call every public host that it names, as docs/mcp.md and mcp --help say. A file that
// nobody trusts may say otherwise.
func TestNetworkOfModels(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "net [w.a.example b.test], asked []",
		`allowNet = []`:         "net [], asked []",
		`allowNet = ["b.test"]`: "net [b.test], asked []",
		`ask = ["*.a.example"]`: "net [], asked [w.a.example]",
		"ask = [\"*.a.example\"]\nallowNet = [\"b.test\"]": "net [b.test], asked [w.a.example]",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, policy.CeilingFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		held, err := policy.LoadForModels(t.TempDir(), dir, "", false)
		if err != nil {
			t.Fatal(err)
		}
		e, _, err := mcp.Granted(newServer(t, bare(t), mcp.Options{Dir: dir, Ceiling: held.Ceiling}), "",
			`{"language":"js","code":"1","allowNet":["w.a.example","b.test"]}`)
		if got := fmt.Sprintf("net %v, asked %v", e.AllowNet, e.Ask); err != nil || got != want {
			t.Errorf("%q: %s, want %s; %v", text, got, want, err)
		}
	}
}

// A client that can show a form asks its user about each host, unless a trusted file says which hosts need a question.
// A file that nobody trusts can't end the questions.
func TestAskFirst(t *testing.T) {
	for _, row := range []struct {
		text          string
		trusted       bool
		via           record.Via
		form          bool
		wantOpen, ask string
	}{
		{via: unitask.ViaMCP, form: true, wantOpen: "[]", ask: "[b.test]"},
		{via: unitask.ViaMCP, wantOpen: "[b.test]", ask: "[]"},
		{via: unitask.ViaHTTP, form: true, wantOpen: "[b.test]", ask: "[]"},
		{text: "allowNetAny = true", via: unitask.ViaMCP, form: true, wantOpen: "[]", ask: "[b.test]"},
		{text: "allowNetAny = true", trusted: true, via: unitask.ViaMCP, form: true, wantOpen: "[b.test]", ask: "[]"},
		{text: "allowNetAny = false", trusted: true, via: unitask.ViaMCP, form: true, wantOpen: "[]", ask: "[b.test]"},
		{text: "allowNet = []", trusted: true, via: unitask.ViaMCP, form: true, wantOpen: "[b.test]", ask: "[]"},
		{text: `allowNet = ["b.test"]`, via: unitask.ViaMCP, form: true, wantOpen: "[]", ask: "[b.test]"},
		{text: `allowNet = ["b.test"]`, trusted: true, via: unitask.ViaMCP, form: true, wantOpen: "[b.test]", ask: "[]"},
		{text: `ask = ["c.test"]`, trusted: true, via: unitask.ViaMCP, form: true, wantOpen: "[b.test]", ask: "[]"},
		{text: `memoryMb = 512`, trusted: true, via: unitask.ViaMCP, form: true, wantOpen: "[]", ask: "[b.test]"},
	} {
		home, dir := testdir.Private(t), testdir.Private(t)
		file := filepath.Join(dir, policy.CeilingFile)
		if err := os.WriteFile(file, []byte(row.text), 0o600); err != nil {
			t.Fatal(err)
		}
		named := ""
		if row.trusted {
			named = file
		}
		held, err := policy.LoadForModels(home, dir, named, false)
		if err != nil {
			t.Fatal(err)
		}
		s := newServer(t, bare(t), mcp.Options{Dir: dir, Ceiling: held.Ceiling})
		open, asked := mcp.AskFirst(s, row.via, row.form, "b.test")
		if got := fmt.Sprint(open); got != row.wantOpen || fmt.Sprint(asked) != row.ask {
			t.Errorf("%+v: open %v, asked %v", row, open, asked)
		}
	}
}

// noFleet takes runs and answers none.
type noFleet struct{}

func (noFleet) Run(context.Context, *unitask.FleetRun) (*unitask.Result, error) {
	return nil, errors.ErrUnsupported
}

// The runs of a fleet can't ask, and keep the hosts that their calls name.
func TestAskFirstFleet(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t), Fleet: noFleet{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	open, asked := mcp.AskFirst(newServer(t, rt, mcp.Options{}), unitask.ViaMCP, true, "b.test")
	if len(open) != 1 || len(asked) != 0 {
		t.Errorf("open %v, asked %v", open, asked)
	}
}

// A ceiling with only container images leaves run_code no image; it does not mean any image.
func TestAttackNoImages(t *testing.T) {
	named := filepath.Join(t.TempDir(), "policy.toml")
	if err := os.WriteFile(named, []byte(`images = ["alpine:3.20"]`), 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := policy.LoadForModels(t.TempDir(), t.TempDir(), named, false)
	if err != nil {
		t.Fatal(err)
	}
	cs := inMemory(t, newServer(t, bare(t), mcp.Options{Ceiling: held.Ceiling}), nil)
	for _, args := range []object{{"language": "js", "code": "1", "image": "alpine:3.20"},
		{"language": "js", "code": "1", "image": "docker.io/library/alpine:3.20"}, {"language": "js", "code": "1"}} {
		res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "run_code", Arguments: args})
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprintf("taken: %+v", res.Content[0])
		}
		if err == nil && res.IsError {
			text := res.Content[0].(*sdk.TextContent).Text
			got = text
			if strings.Contains(text, "enum") || strings.Contains(text, "only docker.io/library/alpine:3.20 is allowed") {
				got = "refused"
			}
		}
		attack.Check(t, fmt.Sprintf("run_code under a ceiling of container images: %v", args), "refused", got)
	}
}

// Arguments of a call by keys that only resemble the schema's.
func TestAttackArgumentKeys(t *testing.T) {
	cs := inMemory(t, newServer(t, bare(t), mcp.Options{Ceiling: noMachine()}), nil)
	for _, args := range []object{
		{"language": "js", "code": "1", "ALLOWNET": []string{"evil.com"}},
		{"language": "js", "code": "1", "allowNet": []string{}, "allownet": []string{"evil.com"}},
		{"language": "js", "code": "1", "ſecrets": []string{"PATH"}},
		{"language": "js", "Code": "1"}, {"language": "js", "code": "1", "CODE": "2"},
		{"language": "js", "code": "1", "allowNetAny": true}, {"language": "js", "code": "1", "ceiling": object{}},
		{"language": "js", "code": "1", "principal": "root"}, {"language": "js", "code": "1", "owner": "root"},
	} {
		got := "refused"
		if res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "run_code", Arguments: args}); err == nil &&
			!res.IsError {
			got = "taken"
		} else if err == nil && !strings.Contains(fmt.Sprint(res.Content[0].(*sdk.TextContent).Text),
			"run_code has no argument ") && args["Code"] == nil {
			got = fmt.Sprintf("refused, but for %s", res.Content[0].(*sdk.TextContent).Text)
		}
		attack.Check(t, fmt.Sprintf("run_code's keys: %v", args), "refused", got)
	}
}
