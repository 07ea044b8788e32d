package unitask_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
)

// Attacks of code on its own session: each step ends by itself or by its limit, and the next one works.
func TestSessionHostile(t *testing.T) {
	if !long() {
		t.Skip("takes half a minute: make long")
	}
	needVM(t)
	rt := sessionRuntime(t)
	const limit = 1 << 20
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "shell", MemoryMB: 256,
		OutputBytes: limit}})
	exec := func(timeout time.Duration, line string) *unitask.Result {
		t.Helper()
		res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", line}, Timeout: timeout})
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		return res
	}
	works := func(after string) {
		t.Helper()
		if res := exec(time.Minute, "echo fine"); string(res.Stdout) != "fine\n" || res.ExitCode != 0 {
			t.Errorf("after %s: %q %q, code %d", after, res.Stdout, res.Stderr, res.ExitCode)
		}
	}

	// The code prints forever: the kept output is limited, and the time limit ends it.
	if res := exec(time.Second, "yes"); !res.TimedOut || !res.Truncated || len(res.Stdout) > limit {
		t.Errorf("prints for ever: %d bytes, cut %v, %s", len(res.Stdout), res.Truncated, res.Outcome)
	}
	works("output for ever")

	// /work is full: the code gets an error, and so does a caller that writes a file, of which nothing is left.
	if res := exec(time.Minute, "cat /dev/zero > full; ls -A"); res.ExitCode != 0 ||
		!strings.Contains(string(res.Stderr), "No space") {
		t.Errorf("/work is filled: %q %q, code %d", res.Stdout, res.Stderr, res.ExitCode)
	}
	if err := s.WriteFile(t.Context(), "more", make([]byte, 1<<20), 0o644); err == nil ||
		!strings.Contains(err.Error(), "no space") {
		t.Errorf("a file beside it: %v", err)
	}
	if res := exec(time.Minute, "ls -A; rm full"); string(res.Stdout) != "full\n" || res.ExitCode != 0 {
		t.Errorf("what is left: %q %q", res.Stdout, res.Stderr)
	}
	works("a full /work")

	// The code uses all the memory, and all allowed processes.
	if res := exec(time.Minute, "head -c 2G /dev/zero | tail; echo $?"); res.Outcome == unitask.OutcomeFailed {
		t.Errorf("all the memory: %s %q", res.Outcome, res.Error)
	}
	works("all the memory")
	if res := exec(10*time.Second, "f() { f | f & }; f; sleep 5"); res.Outcome == unitask.OutcomeFailed {
		t.Errorf("a fork bomb: %s %q", res.Outcome, res.Error)
	}
	works("a fork bomb")

	// A step ignores Ctrl-C: its interpreter is killed, and the next interpreter reports that it is new.
	for range 2 {
		res, err := s.Run(t.Context(), unitask.Step{Code: "x=1; trap '' INT; while :; do :; done", Timeout: time.Second})
		if err != nil || !res.TimedOut {
			t.Fatalf("does not mind Ctrl-C: %+v %v", res, err)
		}
	}
	if res, err := s.Run(t.Context(), unitask.Step{Code: "echo \"[$x]\"; false"}); err != nil ||
		string(res.Stdout) != "[]\n" || !strings.Contains(res.Hint(), "new interpreter") {
		t.Errorf("behind it: %+v %v", res, err)
	}
	works("steps that do not mind Ctrl-C")
}

// A cancelled write leaves the file unchanged, and nothing beside it.
func TestSessionWriteGivenUp(t *testing.T) {
	needVM(t)
	s := openSession(t, sessionRuntime(t), unitask.SessionRequest{Request: unitask.Request{Image: "shell"}})
	if err := s.WriteFile(t.Context(), "f", []byte("as it was"), 0o644); err != nil {
		t.Fatal(err)
	}
	large, given := bytes.Repeat([]byte("x"), 32<<20), 0
	for i := range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(30+40*i)*time.Millisecond)
		if err := s.WriteFile(ctx, "f", large, 0o644); err != nil {
			given++
		}
		cancel()
	}
	if given == 0 {
		t.Skip("32 MiB are written in 30 ms here")
	}
	list, _, err := s.List(t.Context(), ".", 1)
	if err != nil || len(list) != 1 || given == 4 && list[0].Size != int64(len("as it was")) {
		t.Errorf("%d were given up: %+v %v", given, list, err)
	}
}
