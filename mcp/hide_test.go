package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// A remote caller learns no path of the host from hints and denials, in a result or in its record.
func TestAttackHints(t *testing.T) {
	const secret = "/etc/My Data"
	res := unitask.Result{
		Hints: []run.Hint{
			{Kind: run.HintFile, Subject: "/etc/x.csv", Text: "/etc/x.csv is on the host, and not in the machine"},
			{Kind: run.HintConnection, Subject: "a.example", Rule: secret + "/.unitask.toml",
				Text: "a.example was not reached: its allowNet is not allowed by " + secret + "/.unitask.toml"},
		},
		Policy: run.Policy{Denials: []policy.Denial{{Field: "memoryMb", Rule: secret + "/.unitask.toml", Line: 3}}},
	}
	text, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	h := newHider("/srv/dir", "/srv/home")
	in := history.Inspection{Record: &record.Record{Result: text}}
	h.inspection(&in)
	attack.Check(t, "a remote caller reads hints in a record: paths", "false",
		fmt.Sprint(strings.Contains(string(in.Record.Result), "Data/")))
	attack.Check(t, "a remote caller reads denials in a record: lines of the ceiling", "false",
		fmt.Sprint(strings.Contains(string(in.Record.Denials)+string(in.Record.Result), `"line"`)))
	h.result(&res)
	if text, err = json.Marshal(res); err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "a remote caller reads hints in a result: paths", "false",
		fmt.Sprint(strings.Contains(string(text), "Data/")))
	if !strings.Contains(string(text), "a.example was not reached") {
		t.Errorf("the hint is gone: %s", text)
	}
}
