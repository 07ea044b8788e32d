package policy

import (
	"cmp"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// greedy asks for the maximum of everything.
var greedy = Request{
	Timeout: time.Hour, MemoryMB: 4096, CPUs: 8, MaxProcesses: 2048,
	AllowNet: []string{"a.com"}, AllowNetAny: true, Ask: []string{"b.com"}, AllowTCP: []string{"c.com:25"},
	AllowHTTP: []string{"* a.com"}, MaxConnections: 99, MaxUpload: 1 << 40, MaxDownload: 1 << 40,
	OutputBytes: 1 << 30, Image: "python",
	Packages: []string{"pip:x"}, Kernel: "nanos", Secrets: []string{"KEY"}, MaxArtifacts: 1 << 30, Debug: true,
	WebFetch: true, Tools: []string{"docs"},
}

// Each key of a ceiling limits a request for everything, and docs/policy.md has the key.
func TestAttackEachKey(t *testing.T) {
	page, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	strict := map[string]struct{ value, want string }{
		"timeoutSeconds": {"1", "1000"}, "memoryMb": {"256", "256"}, "cpus": {"1", "1"}, "maxProcesses": {"1", "1"},
		"allowNet": {"[]", "[]"}, "allowNetAny": {"false", "false"}, "ask": {"[]", "[]"}, "allowTcp": {"[]", "[]"},
		"maxConnections": {"1", "1"}, "maxUploadBytes": {"1", "1"}, "maxDownloadBytes": {"1", "1"}, "outputBytes": {"1", "1"},
		"images": {`["node"]`, `""`}, "packages": {"[]", "[]"}, "kernel": {`"linux"`, `"linux"`}, "secrets": {"[]", "[]"},
		"maxArtifactBytes": {"1", "1"}, "debug": {"false", "false"}, "webFetch": {"false", "false"},
		"requireJail":     {`["network"]`, `["network"]`},
		"requireHardware": {"true", "true"}, "audit": {`"required"`, "true"}, "tools": {"[]", "[]"},
		"net": {}, "filesUnder": {}, "dirsUnder": {}, // TestAttackHTTPRules, TestAttackHostPaths
	}
	for _, f := range Fields {
		key := cmp.Or(f.Ceiling, f.Name, f.Key)
		if !strings.Contains(string(page), "`"+key+"`") && key != "net" {
			t.Errorf("docs/policy.md does not have %s", key)
		}
		c, known := strict[key]
		if !known {
			t.Errorf("nothing is tried with %s", key)
		}
		if c.want == "" {
			continue
		}
		e, _, err := Resolve(greedy, ceiling(t, key+" = "+c.value))
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var granted map[string]json.RawMessage
		if err := json.Unmarshal(text, &granted); err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a request for everything under "+key+" = "+c.value, c.want, string(granted[f.Key]))
	}
	for _, f := range Limits {
		if key := cmp.Or(f.Ceiling, f.Name, f.Key); !strings.Contains(string(page), "`"+key+"`") {
			t.Errorf("docs/policy.md does not have %s", key)
		}
	}
}
