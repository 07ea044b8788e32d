package history

import (
	"fmt"
	"slices"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/run"
)

// A worker's hints are few, of kinds that there are, and name no flag or ceiling of its own.
func TestAttackSaidHints(t *testing.T) {
	for _, row := range []struct {
		name string
		said run.Hint
		want string
	}{
		{"an honest one", run.Hint{Kind: run.HintConnection, Cause: run.CausePolicy, Flag: "--allow-net", Field: "allowNet"},
			"[{connection   policy --allow-net allowNet }]"},
		{"a kind that there is not", run.Hint{Kind: "advice", Text: "x"}, "[]"},
		{"a cause that there is not", run.Hint{Kind: run.HintConnection, Cause: "you"}, "[]"},
		{"another flag", run.Hint{Kind: run.HintModule, Flag: "--allow-net-any", Field: "packages"},
			"[{module    --with packages }]"},
		{"one from before there were kinds", run.Hint{Text: "x"}, "[{ x     }]"},
		{"a field that there is not", run.Hint{Kind: run.HintModule, Flag: "--x", Field: "x"}, "[{module      }]"},
		{"a ceiling", run.Hint{Kind: run.HintModule, Rule: "/etc/x"}, "[{module      }]"},
	} {
		attack.Check(t, "a worker's hint: "+row.name, row.want,
			fmt.Sprint(slices.Concat([]run.Hint{}, saidHints([]run.Hint{row.said}))))
	}
	many := slices.Repeat([]run.Hint{{Kind: run.HintModule}}, 1000)
	attack.Check(t, "a worker's 1000 hints: kept", "8", fmt.Sprint(len(saidHints(many))))
}
