package unitask_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// hostDrivers run steps in a persistent interpreter on the host. Each step is a JSON text on one line. Each answer is a
// line with a JSON list of the output and of a failure flag.
var hostDrivers = map[string][]string{
	"js": {"node", "-e", `const vm = require('vm'), out = []; console.log = (x) => out.push(x + '\n')
require('readline').createInterface({ input: process.stdin }).on('line', (l) => { let bad = false; out.length = 0
  try { vm.runInThisContext(JSON.parse(l)) } catch { bad = true }
  process.stdout.write(JSON.stringify([out.join(''), bad]) + '\n') })`},
	"python": {"python3", "-c", `import sys, json, io, contextlib
space = {}
for line in sys.stdin:
    out, bad = io.StringIO(), False
    with contextlib.redirect_stdout(out):
        try: exec(json.loads(line), space)
        except Exception: bad = True
    print(json.dumps([out.getvalue(), bad]), flush=True)`},
	"shell": {"python3", "-c", `import sys, json, subprocess
bash = subprocess.Popen(['bash'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for line in sys.stdin:
    bash.stdin.write(json.loads(line) + '\nprintf "\\036%s\\n" $?\n'); bash.stdin.flush()
    text = ''
    while '\036' not in text: text += bash.stdout.readline()
    out, code = text.split('\036')
    print(json.dumps([out, code != '0\n']), flush=True)`},
}

// agentSteps returns an agent's typical steps with a number: the same in each language except for the words.
var agentSteps = map[string][]string{
	"js": {"var n%[1]d = (globalThis.last || 1) * 31 %% 1009 + %[1]d; globalThis.last = n%[1]d; console.log(n%[1]d)",
		"globalThis.list = (globalThis.list || []).concat(%[1]d); console.log(list.join(' '))",
		"globalThis.last = %[1]d; throw new Error('on purpose')",
		"process.getBuiltinModule('fs').appendFileSync('DIR/log', 'line %[1]d\\n'); " +
			"console.log(process.getBuiltinModule('fs').readFileSync('DIR/log', 'utf8').length)"},
	"shell": {"n%[1]d=$((${last:-1} * 31 %% 1009 + %[1]d)); last=$n%[1]d; echo $n%[1]d", "list+=(%[1]d); echo ${list[*]}",
		"last=%[1]d; cat /no/such/file 2>/dev/null", "echo line %[1]d >> DIR/log; wc -c < DIR/log",
		"f%[1]d() { echo f $1 $last; }; f%[1]d %[1]d"},
	"python": {"n%[1]d = globals().get('last', 1) * 31 %% 1009 + %[1]d; last = n%[1]d; print(n%[1]d)",
		"list_ = globals().get('list_', []) + [%[1]d]; print(*list_)",
		"last = %[1]d\nraise ValueError('on purpose')",
		"with open('DIR/log', 'a') as f: _ = f.write('line %[1]d\\n')\nwith open('DIR/log') as f: print(len(f.read()))"},
}

// A short version of an agent's hour: steps with failures and time limits, between pauses and forks. The results must
// equal those of an interpreter on the host. UNITASK_AGENT_STEPS and UNITASK_AGENT_SEED vary it.
func TestSessionAgent(t *testing.T) {
	if !long() {
		t.Skip("takes 20 seconds: make long")
	}
	needClones(t)
	number := func(name string, usual int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return usual
	}
	steps, seed := number("UNITASK_AGENT_STEPS", 24), uint64(number("UNITASK_AGENT_SEED", 1))
	t.Logf("%d steps, seed %d", steps, seed)
	home := newHome(t)
	open := func() *unitask.Runtime { return openRuntime(t, unitask.Options{Home: home}) }
	process := &agentProcess{open: open, rt: open()}
	for _, row := range []struct {
		language string
		kernel   unitask.Kernel
	}{{"js", unitask.Linux}, {"python", unitask.Linux}, {"shell", unitask.Linux}, {"js", unitask.Nanos}} {
		language := row.language
		t.Run(language+" on "+string(row.kernel), func(t *testing.T) {
			if row.kernel == unitask.Nanos {
				needNanos(t, image.HostArch())
			}
			line := hostDrivers[language]
			if _, err := exec.LookPath(line[0]); err != nil {
				t.Skipf("the host has no %s", line[0])
			}
			random := rand.New(rand.NewPCG(seed, 1))
			a := &agent{
				t: t, process: process, language: language, dir: t.TempDir(), lost: true, host: startHost(t, line),
				did: map[string]int{}, took: map[string]time.Duration{},
			}
			defer func() { a.host.end() }()
			a.s = openSession(t, process.rt, unitask.SessionRequest{Request: unitask.Request{Language: language,
				Kernel: row.kernel}})
			for n := range steps / 3 {
				a.disturb(n, random.IntN(12))
				a.step(n, seed, random)
			}
			t.Logf("%v in %v", a.did, a.took)
		})
	}
}

// agentProcess is the process that holds a session. It may end, and another one continues the session.
type agentProcess struct {
	open func() *unitask.Runtime
	rt   *unitask.Runtime
}

// agent runs steps in a session and on the host, and compares them.
type agent struct {
	t             *testing.T
	process       *agentProcess
	s             *unitask.Session
	host          *hostInterpreter
	language, dir string
	lost          bool // no interpreter yet, or a time limit has ended it
	did           map[string]int
	took          map[string]time.Duration
}

func (a *agent) note(what string, began time.Time) {
	a.did[what]++
	a.took[what] += time.Since(began).Round(time.Millisecond)
}

// anew restarts the host's interpreter when the session's interpreter restarted.
func (a *agent) anew(res *unitask.Result) {
	if res.Hint() == "" {
		return
	}
	if !a.lost {
		a.t.Errorf("an interpreter was lost: %s", res.Hint())
	}
	a.did[res.Hint()]++
	a.host.end()
	a.host = startHost(a.t, hostDrivers[a.language])
}

// disturb randomly pauses the session, forks it, or does something else to it.
func (a *agent) disturb(n, what int) {
	began := time.Now()
	switch {
	case what == 0:
		if err := a.s.Pause(a.t.Context()); err != nil {
			a.t.Fatalf("step %d: pause: %v", n, err)
		}
		a.note("pauses", began)
		a.t.Logf("step %d: pauses, %s", n, time.Since(began))
	case what == 1: // continue in a fork, without the parent
		forks, err := a.s.Fork(a.t.Context(), 1)
		if err != nil {
			a.t.Fatalf("step %d: fork: %v", n, err)
		}
		if err := a.s.Close(); err != nil {
			a.t.Errorf("step %d: %v", n, err)
		}
		a.s = forks[0]
		a.t.Cleanup(func() { _ = a.s.Close() })
		a.note("forks", began)
		a.t.Logf("step %d: forks, %s", n, time.Since(began))
	case what == 2:
		sleep := map[string]string{"js": "for (;;);", "python": "while True: pass",
			"shell": "while :; do :; done"}[a.language]
		if res, err := a.s.Run(a.t.Context(), unitask.Step{Code: sleep, Timeout: 300 * time.Millisecond}); err != nil ||
			!res.TimedOut {
			a.t.Fatalf("step %d: %+v %v", n, res, err)
		} else {
			a.lost = a.lost || res.Hint() != ""
			a.anew(res)
		}
		a.note("time limits", began)
		a.t.Logf("step %d: time limits, %s", n, time.Since(began))
	case what == 3: // its process ends, and another one continues it
		if err := errors.Join(a.s.Pause(a.t.Context()), a.s.Leave(), a.process.rt.Close()); err != nil {
			a.t.Fatalf("step %d: leave: %v", n, err)
		}
		a.process.rt = a.process.open()
		again, err := a.process.rt.Revive(a.t.Context(), unitask.Caller{}, a.s.ID, nil)
		if err != nil {
			a.t.Fatalf("step %d: revive: %v", n, err)
		}
		a.s = again
		a.t.Cleanup(func() { _ = again.Close() })
		a.note("processes", began)
	case what == 4: // edits on both sides agree
		name, text := filepath.Join(a.dir, "edited"), fmt.Sprintf("of step %d\n", n)
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o600),
			a.s.WriteFile(a.t.Context(), "edited", []byte(text), 0o644)); err != nil {
			a.t.Fatalf("step %d: %v", n, err)
		}
		if err := a.s.Edit(a.t.Context(), "edited", "of", "after"); err != nil {
			a.t.Fatalf("step %d: edit: %v", n, err)
		}
		if err := a.s.Edit(a.t.Context(), "edited", "nowhere", "x"); err == nil {
			a.t.Errorf("step %d: an edit of what is not there", n)
		}
		if got, err := a.s.ReadFile(a.t.Context(), "edited", 0, 0); err != nil || string(got) != "after"+text[2:] {
			a.t.Errorf("step %d: %q %v", n, got, err)
		}
		a.note("edits", began)
	}
}

// step runs a step in the session and on the host, and compares.
func (a *agent) step(n int, seed uint64, random *rand.Rand) {
	list := agentSteps[a.language]
	code := fmt.Sprintf(list[random.IntN(len(list))], n)
	text, err := json.Marshal(replaceDir(code, a.dir))
	if err != nil {
		a.t.Fatal(err)
	}
	began := time.Now()
	res, err := a.s.Run(a.t.Context(), unitask.Step{Code: replaceDir(code, "/work")})
	if err != nil {
		a.t.Fatalf("step %d: %s: %v", n, code, err)
	}
	a.anew(res)
	a.lost = false
	want := a.host.step(a.t, string(text))
	if string(res.Stdout) != want[0] || (res.ExitCode != 0) != want[1] {
		a.t.Errorf("seed %d, step %d: %s: %q, code %d (%q); on the host %q, failed %v", seed, n, code, res.Stdout,
			res.ExitCode, res.Stderr, want[0], want[1])
	}
	a.note("steps", began)
	if want[1] == true {
		a.did["failures"]++
	}
}

func replaceDir(code, dir string) string { return strings.ReplaceAll(code, "DIR", dir) }

// hostInterpreter is an interpreter that runs on the host.
type hostInterpreter struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startHost(t *testing.T, line []string) *hostInterpreter {
	t.Helper()
	h := &hostInterpreter{cmd: exec.CommandContext(t.Context(), line[0], line[1:]...)}
	out, err := h.cmd.StdoutPipe()
	if err == nil {
		h.in, err = h.cmd.StdinPipe()
	}
	if err == nil {
		err = h.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	h.out = bufio.NewScanner(out)
	h.out.Buffer(nil, 1<<20)
	return h
}

func (h *hostInterpreter) end() {
	h.in.Close()
	_ = h.cmd.Wait()
}

// step returns a step's output, and whether it failed.
func (h *hostInterpreter) step(t *testing.T, text string) (want [2]any) {
	t.Helper()
	_, err := io.WriteString(h.in, text+"\n")
	if err != nil || !h.out.Scan() {
		t.Fatalf("the host's: %v", errors.Join(err, h.out.Err()))
	}
	if err := json.Unmarshal(h.out.Bytes(), &want); err != nil {
		t.Fatal(err)
	}
	return want
}
