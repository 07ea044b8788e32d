package unitask_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/record"
)

// A bound secret that its own host exposes is withdrawn the third time. Code that has the value from elsewhere and
// prints it ends the third time. The netlog and the audit log have both.
func TestAttackExposedRun(t *testing.T) {
	needVM(t)
	const value = "sk-Vn41xZp0Qw7eRt6y"
	web := newSite(t, func(m *http.ServeMux) {
		m.HandleFunc("/gives", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, value) })
	})
	file := filepath.Join(t.TempDir(), "value")
	mustDo(t, os.WriteFile(file, []byte(value), 0o600))
	const code = `
const ask = (path, headers) => fetch("https://good.example" + path, { headers })
  .then(async (r) => (await r.text(), r.status)).catch(() => "cut");
(async () => {
  const got = [];
  for (let n = 0; n < 3; n++) got.push(await ask("/gives"));
  got.push(await ask("/key", { authorization: "Bearer " + process.env.KEY }));
  console.log(got.join(" "));
  const value = require("fs").readFileSync("/work/value", "utf8");
  for (let n = 0; n < 9; n++) {
    console.log(n, value);
    await new Promise((r) => setTimeout(r, 100));
  }
  console.log("not ended");
})()`
	for _, kernel := range kernels(t) {
		rt := openRuntime(t, unitask.Options{Home: newHome(t), Upstream: web.upstream})
		req := unitask.Request{Kernel: kernel, Code: code, CA: web.ca, AllowNet: []string{"good.example"},
			Files:   []unitask.Mount{{Host: file, Guest: "/work/value"}},
			Secrets: map[string]string{"KEY": value}, SecretHosts: map[string][]string{"KEY": {"good.example"}}}
		res, err := rt.Run(t.Context(), req, unitask.IO{})
		if res == nil {
			t.Fatal(err)
		}
		answers, printed, _ := strings.Cut(string(res.Stdout), "\n")
		on := ", on " + string(kernel)
		attack.Check(t, "answers with the value of a bound secret, and a request then"+on, "cut cut cut 403", answers)
		seen := fmt.Sprint(strings.Count(printed, record.Redacted), " redacted, whole ", strings.Contains(printed, value))
		attack.Check(t, "code prints the value of a bound secret without end"+on, "2 redacted, whole false", seen)
		attack.Check(t, "the run of that code"+on, "failed 125", fmt.Sprint(res.Outcome, " ", res.ExitCode))
		exposed := ""
		mustDo(t, rt.Audit().Read(func(_ int64, line []byte) error {
			noSecret(t, "the audit log", string(line), value)
			var e struct {
				Kind   audit.Kind
				Detail json.RawMessage
			}
			err := json.Unmarshal(line, &e)
			if e.Kind == audit.SecretExposed {
				exposed += string(e.Detail)
			}
			return err
		}))
		attack.Check(t, "the audit log about an exposed secret"+on, `{"answers":{"KEY":3},"output":3}`, exposed)
		all, err := rt.History().Inspect(res.RunID, 0)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, d := range all.Decisions {
			n += len(d.Exposed)
		}
		attack.Check(t, "lines of the netlog about an exposed secret"+on, "3", fmt.Sprint(n))
	}
}
