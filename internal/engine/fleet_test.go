package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/record"
)

// A worker's report about its machine does not grow to many times its size.
func TestAttackWorkerMachine(t *testing.T) {
	for text, want := range map[string]bool{
		`{"imageDigest":"x","jail":{"layers":[{"name":"user","holds":true}],"limits":[]}}`: true,
		`{"imageDigest":"x","jail":` + strings.Repeat("[", 9000) + "1" + strings.Repeat(",1", 20_000) +
			strings.Repeat("]", 9000) + `}`: false,
		`{"imageDigest":"x","jail":[1` + strings.Repeat(",1", 20_000) +
			`]}`: false,
		`{"imageDigest":"x","jail":"` + strings.Repeat("x", 64<<10) +
			`"}`: false,
		`{"imageDigest":`: false,
	} {
		r := &FleetRun{x: &Execution{Rec: &record.Run{}}}
		r.Machine([]byte(text))
		m := r.x.Rec.Machine
		if m != nil && m.ImageDigest != "x" {
			t.Errorf("%.80s: %+v", text, m)
		}
		row := fmt.Sprintf("a worker says of a machine %.60s, of %d bytes: taken", text, len(text))
		attack.Check(t, row, fmt.Sprint(want), fmt.Sprint(m != nil))
	}
}
