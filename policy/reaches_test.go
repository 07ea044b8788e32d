package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// Each field says whether it lets a run make connections. Each built-in ceiling limits the field, or leaves it open on
// purpose. A new field fails here until somebody has decided.
func TestAttackUndecidedFields(t *testing.T) {
	reaching := map[string]string{"allowNet": `["a.example"]`, "allowNetAny": "true", "ask": `["a.example"]`,
		"allowTcp": `["a.example:25"]`}
	quiet := map[string]string{
		"timeoutMs": "1000", "memoryMb": "256", "cpus": "1", "maxProcesses": "1",
		"allowHttp": `["* a.example"]`, "maxConnections": "1",
		"maxUploadBytes":   "1",
		"maxDownloadBytes": "1", "outputBytes": "1", "image": `"node"`, "packages": `["npm:x"]`, "kernel": `"linux"`,
		"secrets": `["KEY"]`,
		"files":   `[{"host":"/a"}]`, "dirs": `[{"host":"/a"}]`, "maxArtifactBytes": "1", "debug": "true", "webFetch": "true",
		"requireJail":     `["network"]`,
		"requireHardware": "true", "audit": "true",
		"tools": `["docs"]`,
	}
	// A model's run reaches the public hosts that it names; docs/policy.md lists what a ceiling leaves open.
	open := []string{
		"timeoutSeconds", "memoryMb", "cpus", "maxProcesses", "allowNet", "allowNetAny", "ask", "net",
		"maxConnections", "maxUploadBytes",
		"maxDownloadBytes", "outputBytes", "kernel", "maxArtifactBytes", "debug", "requireJail", "requireHardware", "audit",
	}
	model, worker := BuiltIn(t.TempDir(), t.TempDir()), ForFleet(nil)
	for i := range Fields {
		f := &Fields[i]
		value, reaches := reaching[f.Key]
		if !reaches {
			value = quiet[f.Key]
		}
		var r Request
		if err := json.Unmarshal(fmt.Appendf(nil, "{%q: %s}", f.Key, value), &r); err != nil {
			t.Errorf("%s: %v", f.Key, err)
		}
		attack.Check(t, "a run that asks for "+f.Key+" alone: may connect", fmt.Sprint(reaches), fmt.Sprint(Reaches(r)))
		if key := f.ceiling(); !slices.Contains(open, key) {
			attack.Check(t, "the ceiling of models bounds "+key, "true", fmt.Sprint(model.Bounds(key)))
		}
		if key := f.ceiling(); !slices.Contains(append(open, "secrets", "filesUnder", "dirsUnder"), key) {
			attack.Check(t, "the ceiling of workers bounds "+key, "true", fmt.Sprint(worker.Bounds(key)))
		}
	}
}
