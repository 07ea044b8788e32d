package unitask

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// lying is a fleet whose worker says what it likes of a run.
type lying func(*FleetRun) *Result

func (l lying) Run(_ context.Context, run *FleetRun) (*Result, error) {
	run.SaidBy("w1\x1b[2J")
	return l(run), nil
}

// told is what of a run was written down here: the lines of its netlog, and its audit log by kind.
type told struct {
	lines  []string
	audit  map[audit.Kind]string
	took   time.Duration
	result *Result
}

// tell has a worker say something of a run that has a secret, bound to good.example.
func tell(t *testing.T, say lying) (got told) {
	t.Helper()
	rt, err := Open(Options{Home: testdir.Private(t), Fleet: say})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	begin := time.Now()
	req := Request{Code: "1", AllowNet: []string{"good.example"}, Secrets: map[string]string{"KEY": "value-of-the-key"}, SecretHosts: map[string][]string{"KEY": {"good.example"}}}
	if got.result, err = rt.Run(t.Context(), req, IO{Events: func(Event) {}}); err != nil {
		t.Fatal(err)
	}
	got.took = time.Since(begin)
	text, err := os.ReadFile(rt.Runs().Path(got.result.RunID, record.NetlogFile))
	if err != nil {
		t.Fatal(err)
	}
	got.lines = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	got.audit = map[audit.Kind]string{}
	err = rt.Audit().Read(func(_ int64, line []byte) error {
		var e audit.Entry
		err := json.Unmarshal(line, &e)
		detail, _ := json.Marshal(e.Detail)
		got.audit[e.Kind] += string(detail)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func exited() *Result { return &Result{Outcome: OutcomeExited} }

// use is a line that says that KEY went to a host.
func use(host, secrets string) []byte {
	return fmt.Appendf(nil, `{"proto":"http","name":%q,"verdict":"allowed","secrets":[%s]}`, host, secrets)
}

// What a worker says of a run is bounded as what runs here say, marked, and hides nothing that was said before.
func TestAttackWorkerSays(t *testing.T) {
	flood := func(line func(int) []byte) told {
		return tell(t, func(r *FleetRun) *Result {
			r.Decided(use("good.example", `"KEY"`))
			for i := range 2_000_000 {
				if !r.Decided(line(i)) {
					break
				}
			}
			return exited()
		})
	}
	long := strings.Repeat("x", 10_000)
	for name, line := range map[string]func(int) []byte{
		"empty lines":        func(int) []byte { return []byte("{}") },
		"lines that are not": func(int) []byte { return []byte("x") },
		"uses of the secret": func(i int) []byte { return use(fmt.Sprint(i, long), `"KEY"`) },
		"other secrets":      func(i int) []byte { return use("a.example", fmt.Sprintf(`"KEY%d","OTHER"`, i)) },
		"protocols":          func(i int) []byte { return fmt.Appendf(nil, `{"proto":"%d","name":"%s"}`, i, long) },
		"brackets":           func(int) []byte { return []byte(`{"secrets":` + strings.Repeat("[", 5000)) },
		"many values":        func(int) []byte { return []byte(`{"secrets":[""` + strings.Repeat(`,""`, 5000) + `]}`) },
	} {
		got := flood(line)
		size := 0
		for _, text := range got.lines {
			size = max(size, len(text))
		}
		said := "bounded"
		switch used := got.audit[audit.SecretUsed]; {
		case len(got.lines) > maxSaidDecisions || size > maxSaidLine:
			said = fmt.Sprintf("%d lines of %d bytes", len(got.lines), size)
		case got.took > 20*time.Second:
			said = got.took.String()
		case !strings.Contains(used, `"good.example"`) || !strings.Contains(used, `"saidBy":"worker w1?[2J"`) || strings.Contains(used, "OTHER") || strings.Contains(used, "KEY1"):
			said = used
		case !strings.Contains(got.lines[0], `"worker":"w1?[2J"`):
			said = got.lines[0]
		case !strings.Contains(got.audit[audit.RunEnded], `"saidBy"`):
			said = got.audit[audit.RunEnded]
		case strings.Contains(strings.Join(got.lines, ""), "OTHER"):
			said = "a secret that was not granted"
		}
		attack.Check(t, "a worker's netlog has many "+name, "bounded", said)
	}
	got := tell(t, func(*FleetRun) *Result {
		res := exited()
		res.Error = "\x1b[2J" + strings.Repeat("e", 1<<20)
		res.Policy.Denials = make([]policy.Denial, 50_000)
		res.ArtifactsRefused = make([]record.Refusal, 50_000)
		return res
	}).result
	attack.Check(t, "a worker's result has endless lists", fmt.Sprint(maxSaidError, " ", maxSaidList, " ", maxSaidList),
		fmt.Sprint(len(got.Error), " ", len(got.Policy.Denials), " ", len(got.ArtifactsRefused)))
}

// A worker's list of what did not come back makes no success of a run that has none, and has no secret, no line of its
// own and no end.
func TestAttackWorkerUndelivered(t *testing.T) {
	said := func(outcome Outcome, path string) *Result {
		return tell(t, func(*FleetRun) *Result {
			return &Result{Outcome: outcome, ArtifactsRefused: []record.Refusal{{Path: path, Reason: "is beyond", Missed: true}}}
		}).result
	}
	for _, c := range []struct {
		outcome Outcome
		want    int
	}{{OutcomeExited, ExitUndelivered}, {OutcomeUndelivered, ExitUndelivered}, {OutcomeTimeout, ExitTimeout}, {OutcomeOOM, ExitOOM}} {
		attack.Check(t, fmt.Sprintf("a worker that says %s, with 0 for its exit code, of a run whose files did not come", c.outcome), fmt.Sprint(c.want), fmt.Sprint(said(c.outcome, "x").ExitCode))
	}
	text := func(res *Result) string { return res.Error + res.ArtifactsRefused[0].Path }
	attack.Check(t, "a worker that names a secret among the files that did not come", "told false", fmt.Sprintf("told %v", strings.Contains(text(said(OutcomeExited, "a value-of-the-key")), "value-of-the-key")))
	hint := tell(t, func(*FleetRun) *Result {
		return &Result{Outcome: OutcomeExited, Hint: "value-of-the-key", Value: "value-of-the-key", Policy: Policy{Denials: []policy.Denial{{Reason: "value-of-the-key"}}}}
	}).result
	attack.Check(t, "a worker that puts a secret into a hint, a value and a denial", "told false", fmt.Sprintf("told %v", strings.Contains(fmt.Sprint(hint), "value-of-the-key")))
	attack.Check(t, "a worker that forges a line with a file that did not come", "forged false", fmt.Sprintf("forged %v", strings.ContainsAny(text(said(OutcomeExited, "x\n\x1b[2J")), "\n\x1b")))
	attack.Check(t, "a worker that names a file of a megabyte", "cut true", fmt.Sprintf("cut %v", len(text(said(OutcomeExited, strings.Repeat("x", 1<<20)))) < 4000))
}
