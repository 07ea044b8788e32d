package unitask

import (
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/record"
)

// What a worker says of its machine is not written out as many times its size.
func TestAttackWorkerMachine(t *testing.T) {
	for text, want := range map[string]bool{
		`{"imageDigest":"x","jail":{"layers":[{"name":"user","holds":true}],"limits":[]}}`:                                              true,
		`{"imageDigest":"x","jail":` + strings.Repeat("[", 9000) + "1" + strings.Repeat(",1", 20_000) + strings.Repeat("]", 9000) + `}`: false,
		`{"imageDigest":"x","jail":[1` + strings.Repeat(",1", 20_000) + `]}`:                                                            false,
		`{"imageDigest":"x","jail":"` + strings.Repeat("x", 64<<10) + `"}`:                                                              false,
		`{"imageDigest":`: false,
	} {
		r := &FleetRun{X: &engine.Execution{Rec: &record.Run{}}}
		r.Machine([]byte(text))
		if m := r.X.Rec.Machine; (m != nil) != want || m != nil && m.ImageDigest != "x" {
			t.Errorf("%.80s: %+v", text, m)
		}
	}
}
