package unitask

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// lying is a fleet whose worker returns false results.
type lying func(*FleetRun) *Result

func (l lying) Run(_ context.Context, run *FleetRun) (*Result, error) {
	run.SaidBy("w1\x1b[2J")
	return l(run), nil
}

// told is everything written about a run on this host: the lines of its netlog, and its audit log by kind.
type told struct {
	lines  []string
	audit  map[audit.Kind]string
	took   time.Duration
	result *Result
	events []string
	value  []string // places that contain the secret's value: files of the home, events, the result
}

// saidValue is the value of the run's secret.
const saidValue = "value-of-the-key"

// lookForValue records where the secret's value is.
func (got *told) lookForValue(t *testing.T, home string) {
	t.Helper()
	look := func(where, text string) {
		if strings.Contains(text, saidValue) {
			got.value = append(got.value, where)
		}
	}
	text, err := json.Marshal(got.result)
	if err == nil {
		err = filepath.WalkDir(home, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(name)
			look(filepath.Base(name), string(text))
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	look("the result", string(text))
	look("the events", strings.Join(got.events, "\n"))
}

// tell makes a worker report something of a run that has a secret bound to good.example.
func tell(t *testing.T, say lying) (got told) {
	t.Helper()
	home := testdir.Private(t)
	rt, err := Open(Options{Home: home, Fleet: say})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	begin := time.Now()
	req := Request{Code: "1", AllowNet: []string{"good.example"}, Secrets: map[string]string{"KEY": saidValue},
		SecretHosts: map[string][]string{"KEY": {"good.example"}}}
	tell := func(e Event) { got.events = append(got.events, e.Message) }
	if got.result, err = rt.Run(t.Context(), req, IO{Events: tell}); err != nil {
		t.Fatal(err)
	}
	got.took = time.Since(begin)
	got.lookForValue(t, home)
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

// use returns a line that says that KEY went to a host.
func use(host, secrets string) []byte {
	return fmt.Appendf(nil, `{"proto":"http","name":%q,"verdict":"allowed","secrets":[%s]}`, host, secrets)
}

// A worker's report on a run has the same limits as a local run's, is marked, and hides nothing that was recorded
// before.
func TestAttackWorkerSays(t *testing.T) {
	flood := func(line func(int) []byte) told {
		return tell(t, func(r *FleetRun) *Result {
			r.Decided(use("good.example", `"KEY"`))
			for i := range 200_000 {
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
		"uses of the secret": func(i int) []byte { return use(fmt.Sprint(i, long[:1000]), `"KEY"`) },
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
		case len(got.lines) > engine.MaxSaidDecisions || size > engine.MaxSaidLine:
			said = fmt.Sprintf("%d lines of %d bytes", len(got.lines), size)
		case got.took > 20*time.Second:
			said = got.took.String()
		case !strings.Contains(used, `"good.example"`) || !strings.Contains(used, `"saidBy":"worker w1?[2J"`) ||
			strings.Contains(used, "OTHER") || strings.Contains(used, "KEY1"):
			said = used
		case !strings.Contains(got.lines[0], `"worker":"w1?[2J"`):
			said = got.lines[0]
		case !strings.Contains(got.audit[audit.RunEnded], `"saidBy"`):
			said = got.audit[audit.RunEnded]
		case strings.Contains(strings.Join(got.lines, ""), "OTHER"):
			said = "a secret that was not granted"
		}
		t.Logf("%s: %v", name, got.took)
		attack.Check(t, "a worker's netlog has many "+name, "bounded", said)
	}
	got := tell(t, func(*FleetRun) *Result {
		res := exited()
		res.Error = "\x1b[2J" + strings.Repeat("e", 1<<20)
		res.Policy.Denials = make([]policy.Denial, 50_000)
		res.ArtifactsRefused = make([]record.Refusal, 50_000)
		return res
	}).result
	attack.Check(t, "a worker's result has endless lists",
		fmt.Sprint(history.MaxSaidError, history.MaxSaidList, history.MaxSaidList),
		fmt.Sprint(len(got.Error), len(got.Policy.Denials), len(got.ArtifactsRefused)))
}

// A worker also reports which values came back to requests without them. The report may name only the run's secrets,
// and is marked.
func TestAttackWorkerExposes(t *testing.T) {
	got := tell(t, func(r *FleetRun) *Result {
		r.Decided([]byte(`{"proto":"http","name":"good.example","verdict":"denied","exposed":["KEY","OTHER","KEY"]}`))
		for i := range engine.MaxSaidDecisions {
			r.Decided(fmt.Appendf(nil, `{"proto":"http","exposed":["KEY%d","%s"]}`, i, strings.Repeat("x", 900)))
		}
		return exited()
	})
	want := `{"answers":{"KEY":1},"output":0,"saidBy":"worker w1?[2J"}`
	attack.Check(t, "a worker that names other secrets as exposed: the audit log", want, got.audit[audit.SecretExposed])
	lines := strings.Join(got.lines, "\n")
	named := fmt.Sprint(strings.Contains(lines, "OTHER") || strings.Contains(lines, "KEY1"))
	attack.Check(t, "a worker that names other secrets as exposed: they are in the netlog", "false", named)
	endless := fmt.Sprint(math.MaxInt)
	for name, numbers := range map[string]string{
		"endless":        strings.ReplaceAll(`"count":N,"bytesUp":N,"bytesDown":N,"durationMs":N,"redacted":N`, "N", endless),
		"less than none": `"count":-7,"bytesUp":-7,"bytesDown":-7,"durationMs":-7,"redacted":-7`,
	} {
		got := tell(t, func(r *FleetRun) *Result {
			for range 9 {
				r.Decided([]byte(`{"proto":"tcp","name":"a.example","verdict":"denied",` + numbers + `}`))
			}
			return exited()
		})
		sums := "no sum overflows"
		var up, down, count int64
		for _, line := range got.lines {
			var d Decision
			if err := json.Unmarshal([]byte(line), &d); err != nil {
				t.Fatal(err)
			}
			up, down, count = up+d.BytesUp, down+d.BytesDown, count+int64(d.Count)
			if min(up, down, count, d.DurationMs, int64(d.Redacted)) < 0 {
				sums = line
			}
		}
		if refused := got.audit[audit.NetRefused]; strings.Contains(refused, ":-") {
			sums = refused
		}
		attack.Check(t, "a worker's netlog has numbers that are "+name, "no sum overflows", sums)
	}
}

// A worker knows a run's secrets, so their values are removed from all its reports. A fleet's run asks nobody, so a
// worker's report contains no answers.
func TestAttackWorkerTellsValues(t *testing.T) {
	const v = "x " + saidValue
	for name, say := range map[string]func(*FleetRun, *Result){
		"in an event":           func(r *FleetRun, _ *Result) { r.Events(Event{Kind: EventImage, Message: v}) },
		"in why it began again": func(r *FleetRun, _ *Result) { r.Again(v) },
		"of the machine": func(r *FleetRun, _ *Result) {
			r.Machine(fmt.Appendf(nil, `{"arch":%q,"template":%[1]q,"jail":{"layers":[{"name":%[1]q,"why":%[1]q}]}}`, v))
		},
		"of the machine, twice": func(r *FleetRun, _ *Result) {
			r.Machine(fmt.Appendf(nil, `{"kernelVersion":%q,"kernelVersion":null}`, v))
		},
		"of a layer, twice": func(r *FleetRun, _ *Result) {
			r.Machine(fmt.Appendf(nil, `{"jail":{"layers":[{"name":%q,"name":"x"}]}}`, v))
		},
		"in a key of the jail": func(r *FleetRun, _ *Result) {
			r.Machine(fmt.Appendf(nil, `{"jail":{%q:1,"layers":[{%[1]q:2}]}}`, v))
		},
		"in the netlog": func(r *FleetRun, _ *Result) {
			r.Decided(fmt.Appendf(nil, `{"proto":"http","name":%q,"path":%[1]q,"alpn":%[1]q,"rule":%[1]q}`, v))
		},
		"on the console":     func(r *FleetRun, _ *Result) { _ = r.Console(strings.NewReader(v)) },
		"in an error":        func(_ *FleetRun, res *Result) { res.Outcome, res.Error = OutcomeFailed, v },
		"in a package":       func(_ *FleetRun, res *Result) { res.Packages = []InstalledPackage{{Name: v, Version: v}} },
		"in a kernel's name": func(_ *FleetRun, res *Result) { res.Kernel, res.Accelerator = Kernel(v), Accel(v) },
		"in what was granted": func(_ *FleetRun, res *Result) {
			granted := &res.Policy.Effective
			granted.Image, granted.Secrets, granted.MemoryMB = v, []policy.SecretRule{{Name: v}}, 1
		},
		"in an answer": func(_ *FleetRun, res *Result) { res.Approvals = []Approval{{Host: v, By: v}} },
		"in a change of policy": func(_ *FleetRun, res *Result) {
			res.PolicyChanges = []PolicyChange{{AllowNet: []string{v}}}
		},
		"in the outcome":      func(_ *FleetRun, res *Result) { res.Outcome = Outcome(v) },
		"in the session's id": func(_ *FleetRun, res *Result) { res.Session = v },
		"in a file's name":    func(r *FleetRun, _ *Result) { _ = r.Artifact(saidValue, 0o644, strings.NewReader(v)) },
		"in what was kept back": func(_ *FleetRun, res *Result) {
			res.ArtifactsLeft = []record.Refusal{{Path: v,
				Reason: v}}
		},
		"in its own name": func(r *FleetRun, _ *Result) { r.SaidBy(v); r.Decided([]byte("{}")) },
	} {
		got := tell(t, func(r *FleetRun) *Result {
			res := exited()
			say(r, res)
			return res
		})
		attack.Check(t, "a worker says a secret's value "+name, "[]", fmt.Sprint(got.value))
	}
	got := tell(t, func(*FleetRun) *Result {
		res := exited()
		res.Approvals, res.PolicyChanges = make([]Approval, 50_000), make([]PolicyChange, 50_000)
		res.Packages, res.ArtifactsLeft = make([]InstalledPackage, 50_000), make([]record.Refusal, 50_000)
		return res
	}).result
	attack.Check(t, "a worker's result has endless answers, changes, packages and files",
		fmt.Sprint(0, 0, history.MaxSaidList, 0),
		fmt.Sprint(len(got.Approvals), len(got.PolicyChanges), len(got.Packages), len(got.ArtifactsLeft)))
}

// A replay ignores what a worker reports as granted: the record keeps what this host granted.
func TestAttackWorkerGrants(t *testing.T) {
	home := testdir.Private(t)
	rt, err := Open(Options{Home: home, Fleet: lying(func(*FleetRun) *Result {
		res := exited()
		granted := &res.Policy.Effective
		granted.MemoryMB, granted.AllowNetAny, granted.Kernel = 300, true, "linux"
		more, _, err := policy.Resolve(policy.Request{AllowNet: []string{"good.example", "evil.example"}}, nil)
		if err != nil {
			t.Error(err)
		}
		granted.AllowNet, granted.AllowTCP = more.AllowNet, make([]policy.TCPRule, 3)
		granted.Secrets = []policy.SecretRule{{Name: "OTHER"}}
		return res
	})})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	res, err := rt.Run(t.Context(), Request{Code: "1", AllowNet: []string{"good.example"}}, IO{})
	if err != nil {
		t.Fatal(err)
	}
	again, err := rt.History().Request(res.RunID, "")
	if err != nil {
		t.Fatal(err)
	}
	said := res.Policy.Effective
	for what, got := range map[string]string{
		"a replay asks for": fmt.Sprint(again.AllowNet, again.AllowNetAny, len(again.AllowTCP), len(again.Secrets),
			again.MemoryMB, " ", again.Kernel),
		"the result says of": fmt.Sprint(said.AllowNet, said.AllowNetAny, len(said.AllowTCP), len(said.Secrets),
			said.MemoryMB, " ", said.Kernel),
	} {
		attack.Check(t, "a worker says that more was granted: what "+what, "[good.example] false 0 0 300 linux", got)
	}
}

// Truncating a worker's text leaves no part of a secret's value.
func TestAttackWorkerCutsValues(t *testing.T) {
	part := saidValue[:len(saidValue)/2]
	ends := func(limit int) string { return strings.Repeat("x", limit-len(part)) + saidValue }
	got := tell(t, func(r *FleetRun) *Result {
		for _, limit := range []int{64, 300, 1200} {
			r.SaidBy(ends(limit))
			r.Decided(fmt.Appendf(nil, `{"proto":"http","name":%q,"path":%[1]q,"reason":%[1]q}`, ends(limit)))
		}
		return exited()
	})
	for where, text := range map[string]string{
		"in the netlog": strings.Join(got.lines, "\n"), "in the audit log": fmt.Sprint(got.audit),
	} {
		attack.Check(t, "a worker says a secret's value where its words are cut, "+where, "false",
			fmt.Sprint(strings.Contains(text, part)))
	}
}

// A worker's events contain nothing of this host's records and no commands to type, and have limits.
func TestAttackWorkerEvents(t *testing.T) {
	const forged = "20261127-000000000-another"
	for _, row := range []struct {
		kind EventKind
		want string
	}{
		{EventRecord, "not told"}, {EventStore, "not told"}, {EventKept, "not told"}, {EventCapture, "not told"},
		{EventNetwork, "told"}, {"other", "not told"}, {EventImage, "told"}, {EventRetry, "told"},
	} {
		events := strings.Join(tell(t, func(r *FleetRun) *Result {
			r.Events(Event{Kind: row.kind, Message: forged + "\x1b[2J\n" + strings.Repeat("x", 1<<16)})
			return exited()
		}).events, "|")
		seen := map[bool]string{true: "told", false: "not told"}[strings.Contains(events, forged)]
		if len(events) > 2*history.MaxSaidError || strings.ContainsAny(events, "\x1b\n") {
			seen = fmt.Sprintf("%.100q, of %d bytes", events, len(events))
		}
		attack.Check(t, fmt.Sprintf("a worker's event %q", row.kind), row.want, seen)
	}
}

// A worker's list of missing files can't make a failed run a success. It contains no secret and no separate line, and
// its length is limited.
func TestAttackWorkerUndelivered(t *testing.T) {
	said := func(outcome Outcome, path string) *Result {
		return tell(t, func(*FleetRun) *Result {
			return &Result{Outcome: outcome, ArtifactsRefused: []record.Refusal{{Path: path, Reason: "is beyond", Missed: true}}}
		}).result
	}
	for _, c := range []struct {
		outcome Outcome
		want    int
	}{{OutcomeExited, ExitUndelivered}, {OutcomeUndelivered, ExitUndelivered}, {OutcomeTimeout, ExitTimeout},
		{OutcomeOOM, ExitOOM}} {
		attack.Check(t, fmt.Sprintf("a worker that says %s, with 0 for its exit code, of a run whose files did not come",
			c.outcome), fmt.Sprint(c.want), fmt.Sprint(said(c.outcome, "x").ExitCode))
	}
	for outcome, want := range map[Outcome]string{OutcomeCrashed: "crashed 125", OutcomeFailed: "failed 125",
		OutcomeLost: "lost 125", "perfect": "failed 125", "": "failed 125"} {
		res := tell(t, func(*FleetRun) *Result { return &Result{Outcome: outcome} }).result
		got := fmt.Sprint(res.Outcome, " ", res.ExitCode)
		attack.Check(t, fmt.Sprintf("a worker that says %q, with 0 for its exit code", outcome), want, got)
	}
	text := func(res *Result) string { return res.Error + res.ArtifactsRefused[0].Path }
	told := fmt.Sprint(strings.Contains(text(said(OutcomeExited, "a "+saidValue)), saidValue))
	attack.Check(t, "a worker that names a secret among the files that did not come: it is told", "false", told)
	hint := tell(t, func(*FleetRun) *Result {
		denied := Policy{Denials: []policy.Denial{{Reason: saidValue}}}
		return &Result{Outcome: OutcomeExited, Value: saidValue, Policy: denied,
			Hints: []Hint{{Kind: "module", Text: saidValue, Subject: saidValue}}}
	}).result
	told = fmt.Sprint(strings.Contains(fmt.Sprint(hint), saidValue))
	attack.Check(t, "a worker that puts a secret into a hint, a value and a denial: it is told", "false", told)
	attack.Check(t, "a worker that forges a line with a file that did not come", "forged false",
		fmt.Sprintf("forged %v", strings.ContainsAny(text(said(OutcomeExited, "x\n\x1b[2J")), "\n\x1b")))
	attack.Check(t, "a worker that names a file of a megabyte", "cut true",
		fmt.Sprintf("cut %v", len(text(said(OutcomeExited, strings.Repeat("x", 1<<20)))) < 4000))
}
