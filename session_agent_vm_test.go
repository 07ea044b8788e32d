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

// hostDrivers run steps, a JSON text a line, in an interpreter of the host that remembers, and answer each
// with a line: a JSON list of what was printed and whether it failed.
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

// agentSteps are what an agent does, of a number: the same in each language but for the words.
var agentSteps = map[string][]string{
	"js": {"var n%[1]d = (globalThis.last || 1) * 31 %% 1009 + %[1]d; globalThis.last = n%[1]d; console.log(n%[1]d)", "globalThis.list = (globalThis.list || []).concat(%[1]d); console.log(list.join(' '))",
		"globalThis.last = %[1]d; throw new Error('on purpose')", "process.getBuiltinModule('fs').appendFileSync('DIR/log', 'line %[1]d\\n'); console.log(process.getBuiltinModule('fs').readFileSync('DIR/log', 'utf8').length)"},
	"shell": {"n%[1]d=$((${last:-1} * 31 %% 1009 + %[1]d)); last=$n%[1]d; echo $n%[1]d", "list+=(%[1]d); echo ${list[*]}",
		"last=%[1]d; cat /no/such/file 2>/dev/null", "echo line %[1]d >> DIR/log; wc -c < DIR/log", "f%[1]d() { echo f $1 $last; }; f%[1]d %[1]d"},
	"python": {"n%[1]d = globals().get('last', 1) * 31 %% 1009 + %[1]d; last = n%[1]d; print(n%[1]d)", "list_ = globals().get('list_', []) + [%[1]d]; print(*list_)",
		"last = %[1]d\nraise ValueError('on purpose')", "with open('DIR/log', 'a') as f: _ = f.write('line %[1]d\\n')\nwith open('DIR/log') as f: print(len(f.read()))"},
}

// An agent's hour, in small: steps with failures and time limits, between pauses and forks, come to what an
// interpreter of the host comes to. UNITASK_AGENT_STEPS and UNITASK_AGENT_SEED make it another one.
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
	rt := open()
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
			h := startHost(t, line)
			defer func() { h.end() }()
			random, did, took := rand.New(rand.NewPCG(seed, 1)), map[string]int{}, map[string]time.Duration{}
			note := func(what string, began time.Time) {
				did[what]++
				took[what] += time.Since(began).Round(time.Millisecond)
			}
			s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: language, Kernel: row.kernel}})
			dir := t.TempDir()
			lost := true // there is no interpreter yet, or a time limit has ended it
			anew := func(res *unitask.Result) {
				if res.Hint == "" {
					return
				}
				if !lost {
					t.Errorf("an interpreter was lost: %s", res.Hint)
				}
				did[res.Hint]++
				h.end()
				h = startHost(t, line)
			}
			for n := range steps / 3 {
				began := time.Now()
				switch what := random.IntN(12); {
				case what == 0:
					if err := s.Pause(t.Context()); err != nil {
						t.Fatalf("step %d: pause: %v", n, err)
					}
					note("pauses", began)
					t.Logf("step %d: pauses, %s", n, time.Since(began))
				case what == 1: // on in a fork, without the one that it is of
					forks, err := s.Fork(t.Context(), 1)
					if err != nil {
						t.Fatalf("step %d: fork: %v", n, err)
					}
					if err := s.Close(); err != nil {
						t.Errorf("step %d: %v", n, err)
					}
					s = forks[0]
					t.Cleanup(func() { _ = s.Close() })
					note("forks", began)
					t.Logf("step %d: forks, %s", n, time.Since(began))
				case what == 2:
					sleep := map[string]string{"js": "for (;;);", "python": "while True: pass", "shell": "while :; do :; done"}[language]
					if res, err := s.Run(t.Context(), unitask.Step{Code: sleep, Timeout: 300 * time.Millisecond}); err != nil || !res.TimedOut {
						t.Fatalf("step %d: %+v %v", n, res, err)
					} else {
						lost = lost || res.Hint != ""
						anew(res)
					}
					note("time limits", began)
					t.Logf("step %d: time limits, %s", n, time.Since(began))
				case what == 3: // its process ends, and another one goes on with it
					if err := errors.Join(s.Pause(t.Context()), s.Leave(), rt.Close()); err != nil {
						t.Fatalf("step %d: leave: %v", n, err)
					}
					rt = open()
					again, err := rt.Revive(t.Context(), unitask.Caller{}, s.ID, nil)
					if err != nil {
						t.Fatalf("step %d: revive: %v", n, err)
					}
					s = again
					t.Cleanup(func() { _ = again.Close() })
					note("processes", began)
				case what == 4: // what it edits on both sides stays the same
					name, text := filepath.Join(dir, "edited"), fmt.Sprintf("of step %d\n", n)
					if err := errors.Join(os.WriteFile(name, []byte(text), 0o600), s.WriteFile(t.Context(), "edited", []byte(text), 0o644)); err != nil {
						t.Fatalf("step %d: %v", n, err)
					}
					if err := s.Edit(t.Context(), "edited", "of", "after"); err != nil {
						t.Fatalf("step %d: edit: %v", n, err)
					}
					if err := s.Edit(t.Context(), "edited", "nowhere", "x"); err == nil {
						t.Errorf("step %d: an edit of what is not there", n)
					}
					if got, err := s.ReadFile(t.Context(), "edited", 0, 0); err != nil || string(got) != "after"+text[2:] {
						t.Errorf("step %d: %q %v", n, got, err)
					}
					note("edits", began)
				}
				list := agentSteps[language]
				code := fmt.Sprintf(list[random.IntN(len(list))], n)
				text, err := json.Marshal(replaceDir(code, dir))
				if err != nil {
					t.Fatal(err)
				}
				began = time.Now()
				res, err := s.Run(t.Context(), unitask.Step{Code: replaceDir(code, "/work")})
				if err != nil {
					t.Fatalf("step %d: %s: %v", n, code, err)
				}
				anew(res)
				lost = false
				want := h.step(t, string(text))
				if string(res.Stdout) != want[0] || (res.ExitCode != 0) != want[1] {
					t.Errorf("seed %d, step %d: %s: %q, code %d (%q); on the host %q, failed %v", seed, n, code, res.Stdout, res.ExitCode, res.Stderr, want[0], want[1])
				}
				note("steps", began)
				if want[1] == true {
					did["failures"]++
				}
			}
			t.Logf("%v in %v", did, took)
		})
	}
}

func replaceDir(code, dir string) string { return strings.ReplaceAll(code, "DIR", dir) }

// hostInterpreter is one that runs on the host.
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

// step is what a step printed, and whether it failed.
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
