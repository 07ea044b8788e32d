package unitask_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/policy"
)

// An error of standard input is not its end: otherwise code would succeed with half of the input.
func TestStdinThatBreaks(t *testing.T) {
	needVM(t)
	broken := errors.New("the sender hung up")
	half := func() io.Reader { return io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)) }
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	check := func(name string, res *unitask.Result, err error, code int) {
		t.Helper()
		want, fails := unitask.OutcomeExited, error(nil)
		if code == 0 {
			want, fails, code = unitask.OutcomeFailed, broken, unitask.ExitHost
		}
		if res == nil || !errors.Is(err, fails) || (err == nil) != (fails == nil) || res.Outcome != want ||
			res.ExitCode != code || string(res.Stdout) != "half" {
			t.Fatalf("%s: %+v, %v", name, res, err)
		}
		in, err := rt.History().Inspect(res.RunID, 0)
		if err != nil || in.Ended == nil || in.Ended.Outcome != want || in.Ended.ExitCode != code {
			t.Errorf("%s: the record has %+v, %v", name, in, err)
		}
	}
	for _, kernel := range kernels(t) {
		for code, text := range map[int]string{0: "process.stdin.pipe(process.stdout)",
			3: "process.stdin.pipe(process.stdout); process.exitCode = 3"} {
			res, err := rt.Run(t.Context(), unitask.Request{Code: text, Kernel: kernel}, unitask.IO{Stdin: half()})
			check(string(kernel), res, err, code)
		}
	}
	s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Request: unitask.Request{Language: "shell"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for code, text := range map[int]string{0: "cat", 3: "cat; exit 3"} {
		res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", text}, Stdin: half()})
		check(text, res, err, code)
	}

	// Runs and commands read in turn from one pipe, each the part sent to it.
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	defer to.Close()
	const line = "a line\n"
	turn := func(do func() (*unitask.Result, error)) {
		t.Helper()
		if _, err := to.WriteString(line); err != nil {
			t.Fatal(err)
		}
		if res, err := do(); err != nil || res.ExitCode != 0 || string(res.Stdout) != line {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	for range 2 {
		turn(func() (*unitask.Result, error) {
			return s.Exec(t.Context(), unitask.Command{Args: []string{"head", "-n", "1"}, Stdin: from})
		})
		turn(func() (*unitask.Result, error) {
			return rt.Run(t.Context(),
				unitask.Request{Code: `process.stdin.once("data", (d) => { process.stdout.write(d); process.exit() })`},
				unitask.IO{Stdin: from})
		})
	}
}

// A command whose QEMU is killed has no exit code.
func TestCommandOfKilledQEMU(t *testing.T) {
	needVM(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Request: unitask.Request{Language: "shell"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", "echo up; sleep 1000"},
		Stdout: writerFunc(func(p []byte) (int, error) {
			for _, pid := range qemuChildren(t, os.Getpid()) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			return len(p), nil
		})})
	if !errors.As(err, new(*unitask.SessionError)) || res == nil || res.Outcome != unitask.OutcomeCrashed ||
		res.ExitCode != unitask.ExitHost {
		t.Fatalf("%+v, %v", res, err)
	}
	in, err := rt.History().Inspect(res.RunID, 0)
	if err != nil || in.Ended == nil || in.Ended.Outcome != unitask.OutcomeCrashed ||
		in.Ended.ExitCode != unitask.ExitHost {
		t.Errorf("the record has %+v, %v", in, err)
	}
}

// The audit log has a session's uses of a secret and of the network, even if the session was left paused afterwards.
func TestAuditOfRevived(t *testing.T) {
	t.Parallel()
	needClones(t)
	home, web := newHome(t), newSite(t)
	const value = "sk-Vn41xZp0Qw7eRt6y"
	secrets := map[string]string{"KEY": value}
	open := func() *unitask.Runtime { return openRuntime(t, unitask.Options{Home: home, Upstream: web.upstream}) }
	rt := open()
	s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Request: unitask.Request{Language: "js", CA: web.ca,
		AllowNet: []string{"good.example"}, Secrets: secrets, SecretHosts: map[string][]string{"KEY": {"good.example"}}}})
	if err != nil {
		t.Fatal(err)
	}
	code := testarchive.Open(t, "testdata/sessionsecret.txtar").Text("secret.js")
	res, err := s.Run(t.Context(), unitask.Step{Code: code})
	if err != nil || !strings.Contains(res.Value, "true yes") {
		t.Fatalf("%+v, %v", res, err)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	rt = open()
	if s, err = rt.Revive(t.Context(), unitask.Caller{}, s.ID, secrets); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var kinds []audit.Kind
	if err := rt.Audit().Read(func(_ int64, line []byte) error {
		var e audit.Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		if e.Run == s.ID {
			kinds = append(kinds, e.Kind)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := []audit.Kind{audit.SessionStarted, audit.SecretGranted, audit.SecretUsed, audit.NetRefused,
		audit.SessionStarted, audit.SecretGranted, audit.SessionEnded}
	if !slices.Equal(kinds, want) {
		t.Errorf("%q, want %q", kinds, want)
	}
}

// A step takes as much code as a run. Bash reads its code byte by byte, so the shell takes less, and says how much.
func TestLargeSteps(t *testing.T) {
	needVM(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for language, line := range map[string]string{"python": "# é\n", "js": "// é\n"} {
		s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Request: unitask.Request{Language: language}})
		if err != nil {
			t.Fatal(err)
		}
		code := strings.Repeat("\n", 1000) + strings.Repeat(strings.Repeat(line[:len(line)-1], 200)+"\n", 3000) + "6 * 7"
		for range 2 { // data after the first is not lost
			res, err := s.Run(t.Context(), unitask.Step{Code: code})
			if err != nil || res.ExitCode != 0 || res.Value != "42" {
				t.Errorf("%s, %d bytes: %+v %v", language, len(code), res, err)
			}
		}
		_, err = s.Run(t.Context(), unitask.Step{Code: strings.Repeat("#", unitask.MaxCode+1)})
		var field *policy.FieldError
		if !errors.As(err, &field) || !strings.Contains(err.Error(), strconv.Itoa(unitask.MaxCode)) {
			t.Errorf("%s: %v", language, err)
		}
		_, err = s.Run(t.Context(), unitask.Step{Code: strings.Repeat("#", 1<<20+1), Language: "shell"})
		if !errors.As(err, &field) || !strings.Contains(err.Error(), "at most 1048576 bytes in a session's shell") {
			t.Errorf("%s: %v", language, err)
		}
		s.Close()
	}
}
