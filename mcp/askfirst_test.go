package mcp

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/policy"
)

// Hosts that a call names are asked about where the client can show a question, and no policy says which hosts models
// may reach.
func TestAskFirst(t *testing.T) {
	const form, both = `{"elicitation":{}}`, `{"elicitation":{"form":{},"url":{}}}`
	const url, none = `{"elicitation":{"url":{}}}`, `{}`
	for _, row := range []struct {
		can, ceiling string
		via          unitask.Caller
		asks         bool
	}{
		{form, "", unitask.Caller{Via: unitask.ViaMCP}, true},
		{both, "", unitask.Caller{Via: unitask.ViaMCP}, true},
		{url, "", unitask.Caller{Via: unitask.ViaMCP}, false},
		{none, "", unitask.Caller{Via: unitask.ViaMCP}, false},
		{form, "", unitask.Caller{Via: unitask.ViaHTTP}, false}, // a remote client must not approve
		{form, "memoryMb = 256", unitask.Caller{Via: unitask.ViaMCP}, true},
		{form, `allowNet = ["a.example"]`, unitask.Caller{Via: unitask.ViaMCP}, false},
		{form, "allowNetAny = true", unitask.Caller{Via: unitask.ViaMCP}, false},
		{form, `ask = ["a.example"]`, unitask.Caller{Via: unitask.ViaMCP}, false},
		{form, `[principals."local:root"]` + "\n" + `allowNet = ["a.example"]`, unitask.Caller{Via: unitask.ViaMCP}, false},
	} {
		ceiling, err := policy.ParseCeiling("test", []byte(row.ceiling))
		if err != nil {
			t.Fatal(err)
		}
		s := newServer(t)
		row.via.Ceiling = policy.BuiltIn(t.TempDir(), t.TempDir()).With(ceiling).For("local:root")
		var can map[string]any
		if err := json.Unmarshal([]byte(row.can), &can); err != nil {
			t.Fatal(err)
		}
		req := &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{Meta: sdk.Meta{
			sdk.MetaKeyClientCapabilities: can}}}
		run := unitask.Request{AllowNet: []string{"a.example", "b.example"}}
		s.askFirst(row.via, req, &run)
		want := "[a.example b.example] []"
		if row.asks {
			want = "[] [a.example b.example]"
		}
		if got := fmt.Sprint(run.AllowNet, run.Ask); got != want {
			t.Errorf("%s, %q, %s: %s", row.can, row.ceiling, row.via.Via, got)
		}
	}
}

// A file of a stranger's folder that lists hosts narrows what models may reach. It does not take the question away.
func TestAttackAskFirst(t *testing.T) {
	owner := unitask.LocalOwner(os.Geteuid())
	for _, row := range []struct {
		file, named string
		want        string // what is granted without a question, and with one
	}{
		{"", "", "[] [a.example b.example]"},
		{`allowNet = ["a.example"]`, "", "[] [a.example]"},
		{`allowNetAny = true`, "", "[] [a.example b.example]"},
		{`ask = ["a.example"]`, "", "[] [a.example]"},
		{`allowNet = []`, "", "[] []"},
		{fmt.Sprintf("[principals.%q]\nallowNet = [\"a.example\"]", owner), "", "[] [a.example]"},
		{"", `allowNet = ["a.example"]`, "[a.example] []"},
		{"", fmt.Sprintf("[principals.%q]\nallowNet = [\"a.example\"]", owner), "[a.example] []"},
		{"", `allowNetAny = true`, "[a.example b.example] []"},
		{"", `memoryMb = 256`, "[] [a.example b.example]"},
	} {
		dir, named := t.TempDir(), ""
		files := map[string]string{filepath.Join(dir, policy.CeilingFile): row.file}
		if row.named != "" {
			named = filepath.Join(t.TempDir(), "policy.toml")
			files = map[string]string{named: row.named}
		}
		for name, text := range files {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		held, err := policy.LoadForModels(t.TempDir(), dir, named, false)
		if err != nil {
			t.Fatal(err)
		}
		s := newServer(t)
		s.opts.Policy, s.opts.Ceiling = held, held.Ceiling
		req := &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{Meta: sdk.Meta{
			sdk.MetaKeyClientCapabilities: map[string]any{"elicitation": map[string]any{}}}}}
		caller := s.caller(nil)
		run := unitask.Request{AllowNet: []string{"a.example", "b.example"}}
		s.askFirst(caller, req, &run)
		granted, _, err := policy.Resolve(policy.Asked(run), caller.Ceiling)
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, fmt.Sprintf("hosts without and with a question, file %q, --policy %q", row.file, row.named), row.want,
			fmt.Sprint(granted.AllowNet, granted.Ask))
	}
}
