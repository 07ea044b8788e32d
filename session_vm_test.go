package unitask_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// openSession starts a session that ends with the test.
func openSession(t *testing.T, rt *unitask.Runtime, req unitask.SessionRequest) *unitask.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := rt.NewSession(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.As(err, new(*unitask.SessionError)) {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func TestSession(t *testing.T) {
	needVM(t)
	rt := sessionRuntime(t)
	js := [][4]string{{"const x = 41", "", "", ""}, {"console.log('hi'); x + 1", "42", "hi\n", ""},
		{"throw new Error('no')", "", "", "Error: no\n    at step-3:1:7\n"},
		{"import os from 'node:os'\nos.userInfo().uid", "1000", "", ""}, {"let n: number = x as number; n", "41", "", ""},
		{"enum Mode { Off, On }\nMode[1]", "'On'", "", ""}, {"Mode.On", "1", "", ""}, {"process.cwd()", "'/work'", "", ""},
		{"await new Promise((r) => setTimeout(r, 5)); process.argv.length", "1", "", ""},
		{"Promise.reject(new TypeError('late'))", "", "", "TypeError: late"},
		{"import { execSync } from 'node:child_process'\nrequire('fs').writeFileSync('a.txt', 'A'); process.env.MARK", "'m'",
			"", ""}}
	nanos := slices.Clone(js)
	nanos[3] = [4]string{"import os from 'node:os'\nos.userInfo().uid", "0", "", ""} // it has no other user
	for _, row := range []struct {
		language string
		kernel   image.Kernel
		steps    [][4]string // code, value, stdout, a part of stderr
	}{
		{"js", image.Linux, js}, {"js", image.Nanos, nanos},
		{"python", image.Linux, [][4]string{{"x = 41", "", "", ""}, {"print('hi'); x + 1", "42", "hi\n", ""},
			{"1/0", "", "", "File \"<step 3>\", line 1, in <module>"},
			{"import os; os.getuid(), os.getcwd()", "(1000, '/work')", "", ""},
			{"open('a.txt', 'w').write('A'); os.environ['MARK']", "'m'", "", ""}}},
		{"shell", image.Linux, [][4]string{{"x=41", "", "", ""}, {"echo $((x + 1)) $MARK", "", "42 m\n", ""},
			{"nothing-there", "", "", "not found"}, {"id -u; pwd; printf A > a.txt", "", "1000\n/work\n", ""}}},
	} {
		t.Run(row.language+" on "+string(row.kernel), func(t *testing.T) {
			// with which bash would not read its driver
			req := unitask.Request{Language: row.language, Env: map[string]string{"MARK": "m", "POSIXLY_CORRECT": "1"}}
			if row.kernel == image.Nanos {
				needNanos(t, image.HostArch())
				req.Kernel = row.kernel
			}
			s := openSession(t, rt, unitask.SessionRequest{Request: req})
			if s.Kernel != row.kernel || s.Language != row.language {
				t.Errorf("kernel %s, language %s", s.Kernel, s.Language)
			}
			for _, step := range row.steps {
				began := time.Now()
				res, err := s.Run(t.Context(), unitask.Step{Code: step[0]})
				if err != nil {
					t.Fatal(err)
				}
				if res.Value != step[1] || string(res.Stdout) != step[2] || !strings.Contains(string(res.Stderr), step[3]) ||
					(step[3] == "") != (res.ExitCode == 0) || res.Session != s.ID {
					t.Errorf("%s: value %q, stdout %q, stderr %q, exit %d, session %s", step[0], res.Value, res.Stdout, res.Stderr,
						res.ExitCode, res.Session)
				}
				t.Logf("%-40.40q %d ms", step[0], time.Since(began).Milliseconds())
				rec, err := rt.Runs().Get(res.RunID)
				if err != nil || rec.Session != s.ID || rec.Status != record.Done {
					t.Errorf("record: %+v %v", rec, err)
				}
			}
			if text, err := s.ReadFile(t.Context(), "a.txt", 0, 0); string(text) != "A" || err != nil {
				t.Errorf("a.txt: %q %v", text, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			var over *unitask.SessionError
			if _, err := s.Run(t.Context(), unitask.Step{Code: "1"}); !errors.As(err, &over) {
				t.Errorf("after its end: %v", err)
			}
		})
	}
}

func TestSessionFiles(t *testing.T) {
	needVM(t)
	rt := sessionRuntime(t)
	t.Run("linux", func(t *testing.T) { sessionFiles(t, rt, unitask.Request{Image: "shell"}) })
	t.Run("nanos", func(t *testing.T) {
		needNanos(t, image.HostArch())
		sessionFiles(t, rt, unitask.Request{Kernel: unitask.Nanos})
	})
}

func sessionFiles(t *testing.T, rt *unitask.Runtime, req unitask.Request) {
	s := openSession(t, rt, unitask.SessionRequest{Request: req})
	ctx := t.Context()
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	for name, text := range map[string][]byte{"a/b/c.txt": []byte("one two\n"), "big": big, "/tmp/empty": nil} {
		if err := s.WriteFile(ctx, name, text, 0o640); err != nil {
			t.Fatal(err)
		}
		if got, err := s.ReadFile(ctx, name, 0, 0); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if got, err := s.ReadFile(ctx, "big", 16, 5); string(got) != "01234" || err != nil {
		t.Errorf("a part: %q %v", got, err)
	}
	if err := s.Edit(ctx, "a/b/c.txt", "two", "2"); err != nil {
		t.Error(err)
	}
	for old, why := range map[string]string{"o": "", "n": "", "": "it is empty", "e 2\nx": "0 times", "e": "2 times"} {
		if err := s.WriteFile(ctx, "a/b/c.txt", []byte("one 2\ne\n"), 0o640); err != nil {
			t.Fatal(err)
		}
		err := s.Edit(ctx, "a/b/c.txt", old, "X")
		if (why == "") != (err == nil) || err != nil && (!errors.Is(err, unitask.ErrEdit) ||
			!strings.Contains(err.Error(), why)) {
			t.Errorf("edit %q: %v, want %q", old, err, why)
		}
		want := "one 2\ne\n"
		if why == "" {
			want = strings.Replace(want, old, "X", 1)
		}
		if got, err := s.ReadFile(ctx, "a/b/c.txt", 0, 0); string(got) != want || err != nil {
			t.Errorf("edit %q: it is %q, want %q (%v)", old, got, want, err)
		}
	}
	list, more, err := s.List(ctx, "/work", 3)
	if err != nil || more || len(list) != 4 || list[0].Path != "/work/a" || !list[0].Mode.IsDir() ||
		list[2].Path != "/work/a/b/c.txt" || list[2].Mode != 0o640 || list[3].Size != int64(len(big)) {
		t.Errorf("list: %+v %v %v", list, more, err)
	}
	if err := s.Remove(ctx, "a"); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"read what is gone":   func() error { _, err := s.ReadFile(ctx, "a/b/c.txt", 0, 0); return err }(),
		"list what is gone":   func() error { _, _, err := s.List(ctx, "a", 1); return err }(),
		"remove what is gone": s.Remove(ctx, "a"),
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.WriteFile(ctx, "/etc/passwd", nil, 0o644); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("write /etc/passwd: %v", err)
	}
	if _, err := s.ReadFile(ctx, "/dev/zero", 0, 0); err == nil {
		t.Error("a device was read")
	}
	if _, err := s.ReadFile(ctx, "/work", 0, 0); err == nil {
		t.Error("a folder was read")
	}
}

// A ceiling limits sessions, and its reductions are in the record.
func TestSessionCeiling(t *testing.T) {
	needVM(t)
	ceiling, err := policy.ParseCeiling("a ceiling",
		[]byte("callerSessions = 1\nsessionLifeSeconds = 600\npausedBytes = 1048576\n[principals.other]\nsessions = 0\n"))
	if err != nil {
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Ceiling: ceiling})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	shell := unitask.SessionRequest{Request: unitask.Request{Image: "shell"}, Life: time.Hour}
	s := openSession(t, rt, shell)
	if left := time.Until(s.Expires()); left > 10*time.Minute || len(s.Policy.Denials) != 1 ||
		s.Policy.Denials[0].Key != "sessionLifeSeconds" {
		t.Errorf("%s left, %v", left, s.Policy.Denials)
	}
	if rec, err := rt.Runs().Get(s.ID); err != nil || !strings.Contains(string(rec.Denials), "at most 600 s is allowed") {
		t.Errorf("%s %v", rec.Denials, err)
	}
	if _, err := rt.NewSession(t.Context(), shell); !errors.As(err, new(*unitask.BusyError)) {
		t.Errorf("a second one: %v", err)
	}
	if _, err := rt.NewSessionFor(t.Context(), unitask.Caller{Name: "other", Ceiling: ceiling.For("other")},
		shell); err == nil || !strings.Contains(err.Error(), "allows none") {
		t.Errorf("another caller's: %v", err)
	}
	if err := s.Pause(t.Context()); err == nil || machine.CanClone && !strings.Contains(err.Error(), "pausedBytes") {
		t.Errorf("pause: %v", err)
	}
	if res, err := s.Run(t.Context(), unitask.Step{Code: "echo lives"}); err != nil || string(res.Stdout) != "lives\n" {
		t.Errorf("%+v %v", res, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	openSession(t, rt, shell)
}

func TestSessionCommands(t *testing.T) {
	needVM(t)
	s := openSession(t, sessionRuntime(t), unitask.SessionRequest{Request: unitask.Request{Image: "shell",
		Timeout: 20 * time.Second}})
	res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", "read x; echo $x $A; pwd; exit 3"},
		Dir: "/tmp", Env: map[string]string{"A": "b"}, Stdin: strings.NewReader("in\n")})
	if err != nil || res.ExitCode != 3 || string(res.Stdout) != "in b\n/tmp\n" {
		t.Errorf("%+v %v", res, err)
	}
	if res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"no-such-thing"}}); err != nil ||
		res.ExitCode != 127 || !strings.Contains(string(res.Stderr), "no-such-thing") {
		t.Errorf("%+v %v", res, err)
	}
	if res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"/tmp"}}); err != nil || res.ExitCode != 126 {
		t.Errorf("a folder as a program: %+v %v", res, err)
	}
	// A command that exceeds its time ends with its whole process group.
	if res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", "sleep 271 & sleep 272"},
		Timeout: time.Second}); err != nil || res.ExitCode != unitask.ExitTimeout {
		t.Errorf("%+v %v", res, err)
	}
	if res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c",
		"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 27[1]'"}}); err != nil || string(res.Stdout) != "0\n" {
		t.Errorf("it left %+v %v", res, err)
	}
	// A step that exceeds its time is interrupted, and the session continues.
	if res, err := s.Run(t.Context(), unitask.Step{Code: "x=1; sleep 100", Timeout: time.Second}); err != nil ||
		!res.TimedOut || res.ExitCode != unitask.ExitTimeout {
		t.Errorf("%+v %v", res, err)
	}
	if res, err := s.Run(t.Context(), unitask.Step{Code: "echo x$x"}); err != nil || string(res.Stdout) != "x1\n" {
		t.Errorf("%+v %v", res, err)
	}
	// The session's program belongs to root, so the code can't end it.
	if res, err := s.Run(t.Context(), unitask.Step{Code: "kill -9 -1; kill -9 $PPID; true"}); err != nil || res == nil {
		t.Errorf("%+v %v", res, err)
	}
	if res, err := s.Run(t.Context(), unitask.Step{Code: "echo back"}); err != nil || string(res.Stdout) != "back\n" {
		t.Errorf("%+v %v", res, err)
	}
	if res, err := s.Run(t.Context(), unitask.Step{Code: "1", Language: "python"}); err == nil {
		t.Errorf("python in the shell's image: %+v", res)
	}
}

// A session causes the template for the next one to be made: at its end, or while it is idle. A pool makes its own
// templates, but none of sessions.
func TestSessionWarm(t *testing.T) {
	needClones(t)
	for _, row := range []struct {
		name     string
		machines unitask.Machines
		lives    bool
	}{{"ended, beside a pool", unitask.Pool(unitask.PoolSize{Max: 1}, unitask.MachineClass{}), false},
		{"idle", unitask.Templates(), true}} {
		t.Run(row.name, func(t *testing.T) {
			home := newHome(t)
			if err := os.Remove(filepath.Join(home, "templates")); err != nil { // the base home's templates
				t.Fatal(err)
			}
			rt, err := unitask.Open(unitask.Options{Home: home, Machines: row.machines})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			for _, cloned := range []bool{false, true} {
				s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"},
					Idle: 4 * time.Second})
				res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"true"}})
				if err != nil || res.ExitCode != 0 || res.Cloned != cloned {
					t.Fatalf("%v %+v, cloned %v is wanted", err, res, cloned)
				}
				if row.lives {
					testwait.Within(t, 5*time.Minute, "there is a template", func() bool { return cloned || templateIn(home) })
				} else if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				unitask.Settle(t.Context(), rt)
			}
		})
	}
}

func templateIn(home string) bool {
	found, _ := filepath.Glob(filepath.Join(home, "templates", "*", "template.json"))
	return len(found) > 0
}

func sessionRuntime(t *testing.T) *unitask.Runtime {
	t.Helper()
	return openRuntime(t, unitask.Options{Home: newHome(t)})
}

// openRuntime opens a runtime that is closed at the test's end, if not before. Another runtime of the same home acts as
// another process.
func openRuntime(t *testing.T, opts unitask.Options) *unitask.Runtime {
	t.Helper()
	rt, err := unitask.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	return rt
}

// If the first step fails, no message mentions an earlier interpreter.
func TestSessionFirstStepFails(t *testing.T) {
	needVM(t)
	s := openSession(t, sessionRuntime(t), unitask.SessionRequest{Request: unitask.Request{Language: "python",
		Kernel: image.Linux}})
	if res, err := s.Run(t.Context(), unitask.Step{Code: "1/0"}); err != nil || res.ExitCode == 0 || res.Hint() != "" {
		t.Errorf("%+v %v", res, err)
	}
}
