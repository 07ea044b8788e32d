package unitask_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/session"
)

// value runs a step and returns its value, or its output.
func value(t *testing.T, s *unitask.Session, language, code string) string {
	t.Helper()
	res, err := s.Run(t.Context(), unitask.Step{Language: language, Code: code})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%s: %+v %v", code, res, err)
	}
	return res.Value + string(res.Stdout)
}

// forkRow is a property of a session that differs in each of its forks, or that they share.
type forkRow struct {
	what, before, code string // before: the session's earlier actions
	differs            bool
}

// clock returns the row of a clock, in seconds, which must be the host's in each fork (clockOff).
const clock = "the clock"

// stood is how long a machine is stopped before its forks continue. late is how late a machine on a busy host may set
// its clock.
const (
	stood = 3 * time.Second
	late  = time.Second
)

// clockOff reports whether a clock, in seconds, is outside the host's time between begin and end.
func clockOff(said string, begin, end time.Time) bool {
	seconds, err := strconv.ParseFloat(strings.TrimSpace(said), 64)
	now := time.UnixMilli(int64(1000 * seconds))
	return err != nil || now.Before(begin.Add(-late)) || now.After(end.Add(50*time.Millisecond))
}

// testForkTable checks a table with a session and two forks of it.
func testForkTable(t *testing.T, s *unitask.Session, language string, rows []forkRow) {
	for _, row := range rows {
		if row.before != "" {
			value(t, s, language, row.before)
		}
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(stood)
	began := time.Now()
	forks, err := s.Fork(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("forked in %d ms", time.Since(began).Milliseconds())
	for _, row := range rows {
		var got [3]string
		for i, f := range append(forks, s) {
			begin := time.Now()
			if got[i] = value(t, f, language, row.code); got[i] == "" {
				t.Errorf("%s: nothing", row.what)
			}
			if row.what == clock && clockOff(got[i], begin, time.Now()) {
				t.Errorf("%s: %q, at %s", row.what, got[i], begin)
			}
		}
		// Correct clocks may agree to the millisecond, so each is compared with the host's.
		if row.what != clock && ((got[0] != got[1]) != row.differs || (got[0] != got[2]) != row.differs ||
			(got[1] != got[2]) != row.differs) {
			t.Errorf("%s: %q, %q, and of the session that they are of %q; that they differ: %t", row.what, got[0], got[1],
				got[2], row.differs)
		}
	}
	for _, f := range forks {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Properties that differ in each fork of a session, and shared ones (docs/sessions.md).
func TestSessionForkTable(t *testing.T) {
	t.Parallel()
	needClones(t)
	rt := sessionRuntime(t)
	for _, kernel := range []unitask.Kernel{unitask.Linux, unitask.Nanos} {
		t.Run("js on "+string(kernel), func(t *testing.T) {
			if kernel == unitask.Nanos {
				needNanos(t, image.HostArch())
			}
			testForkTable(t, openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Kernel: kernel}}), "js",
				[]forkRow{
					{"Math.random", "Math.random()", "Math.random()", true},
					{"Math.random that the code has kept", "r = Math.random; r()", "r()", true},
					{"crypto.randomUUID", "c = require('crypto'); c.randomUUID()", "c.randomUUID()", true},
					{"crypto.randomUUID, to the end of what was drawn ahead", "",
						"Array.from({ length: 127 }, () => c.randomUUID()).at(-1)", true},
					{"crypto.randomInt", "c.randomInt(2 ** 40)", "c.randomInt(2 ** 40)", true},
					{"crypto.randomBytes", "c.randomBytes(8)", "c.randomBytes(16).toString('hex')", true},
					{"crypto.getRandomValues", "", "crypto.getRandomValues(new Uint8Array(16)).join()", true},
					{"a name of mkdtemp", "f = require('fs'); f.mkdtempSync('/tmp/x')", "f.mkdtempSync('/tmp/x')", true},
					{clock, "", "Date.now() / 1000", true},
					{"process.pid", "", "process.pid", false},
					{"a variable", "v = 7", "v", false},
				})
		})
	}
	t.Run("python", func(t *testing.T) {
		s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "python"}})
		programs := testarchive.Open(t, "testdata/sessionfork.txtar")
		testForkTable(t, s, "python", []forkRow{
			{"random", "import random; random.random()", "random.random()", true},
			{"a generator of the code's own", "own = random.Random(); own.random()", "own.random()", false},
			{"SystemRandom", "import secrets; secrets.token_hex()", "secrets.token_hex()", true},
			{"os.urandom", "import os", "os.urandom(8).hex()", true},
			{"uuid4", "import uuid; uuid.uuid4()", "uuid.uuid4()", true},
			{"the node of uuid1", "uuid.uuid1()", "uuid.uuid1().node", true},
			{"OpenSSL's generator", "import ssl; ssl.RAND_bytes(8)", "ssl.RAND_bytes(8).hex()", true},
			{"the random of a TLS client", programs.Text("hello.py"), "hello()", true},
			{"a name of tempfile", "import tempfile; tempfile.mkdtemp()", "next(tempfile._get_candidate_names())", true},
			{"a module that is imported later", "",
				"import string, importlib; importlib.import_module('email.utils').make_msgid()", true},
			{clock, "import time", "time.time()", true},
			{"hashes of strings", "hash('a')", "hash('a')", false},
			{"addresses", "", "open('/proc/self/maps').readline()", false},
			{"a process that is new: its hashes", "import subprocess",
				"subprocess.check_output(['python3', '-c', 'print(hash(\"a\"))'])", true},
			{"the boot's id, once it was read", "open('/proc/sys/kernel/random/boot_id').read()",
				"open('/proc/sys/kernel/random/boot_id').read()", false},
			{"a UUID of the kernel's", "", "open('/proc/sys/kernel/random/uuid').read()", true},
			{"the network card's address", "", "open('/sys/class/net/eth0/address').read()", false},
			{"the hostname", "", "os.uname().nodename", false},
			{"a key that was drawn before", "k = os.urandom(8)", "k.hex()", false},
		})
		// If an interpreter can't renew its random numbers, the fork has a new interpreter and says so.
		value(t, s, "", "import random\ndef no(*_): raise ValueError\nrandom.seed = no; x = 1")
		forks, err := s.Fork(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		defer forks[0].Close()
		res, err := forks[0].Run(t.Context(), unitask.Step{Code: "'x' in globals()"})
		if err != nil || res.Value != "False" || !strings.Contains(res.Hint(), "random numbers") {
			t.Errorf("%+v %v", res, err)
		}
		if got := value(t, s, "", "x"); got != "1" {
			t.Errorf("the session: %q", got)
		}
	})
	t.Run("shell", func(t *testing.T) {
		testForkTable(t, openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}}), "shell",
			[]forkRow{
				{"RANDOM", "echo $RANDOM", "echo $RANDOM $RANDOM $RANDOM", true},
				{"SRANDOM", "echo $SRANDOM", "echo $SRANDOM", true},
				{"mktemp", "mktemp", "mktemp -u", true},
				{clock, "", "date +%s.%N", true},
				{"$$", "", "echo $$", false},
				{"a variable", "x=5", "echo $x", false},
				{"a file", "echo a > file", "cat file", false},
			})
	})
}

// A third-generation fork has the variables of all its ancestors, and new random numbers.
func TestSessionForksInTurn(t *testing.T) {
	t.Parallel()
	needClones(t)
	rt := sessionRuntime(t)
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "js"}})
	value(t, s, "", "var kept = ['0']")
	seen := map[string]bool{}
	for i := range 3 {
		forks, err := s.Fork(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		s = forks[0]
		t.Cleanup(func() { _ = s.Close() })
		res, err := s.Run(t.Context(),
			unitask.Step{Code: fmt.Sprintf("kept.push('%d'), console.log(Math.random()), kept.join()", i+1)})
		if want := "'0,1,2,3'"[:2*i+4] + "'"; err != nil || res.Value != want ||
			res.Hint() != "" || seen[string(res.Stdout)] {
			t.Errorf("%d: %+v %v, want %s", i, res, err, want)
		}
		seen[string(res.Stdout)] = true
	}
}

// Forks continue from the session's state and are independent of each other. A paused session can be forked, and forks
// can be paused and forked.
func TestSessionFork(t *testing.T) {
	t.Parallel()
	needClones(t)
	home := newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "python",
		Env: map[string]string{"MARK": "m"}}, Life: 30 * time.Minute})
	value(t, s, "",
		"x = [1]; import os, subprocess, time, threading; p = subprocess.Popen(['sleep', '1000'])\nn = 0\ndef tick():\n"+
			"    global n\n    while True:\n        n += 1; print('tick', n, flush=True); time.sleep(0.01)\n"+
			"threading.Thread(target=tick, daemon=True).start()")
	if err := s.WriteFile(t.Context(), "f", []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{-1, 0, unitask.MaxForks + 1, 1000} {
		if _, err := s.Fork(t.Context(), n); err == nil || !strings.Contains(err.Error(), "must be from 1 to") {
			t.Errorf("%d forks: %v", n, err)
		}
	}
	began, under := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(under)
		_, _ = s.Run(t.Context(), unitask.Step{Code: "print('begun', flush=True); time.sleep(1)", Stdout: whenWritten(began)})
	}()
	<-began
	var busy *unitask.BusyError
	if _, err := s.Fork(t.Context(), 1); !errors.As(err, &busy) {
		t.Errorf("while a step is under way: %v", err)
	}
	<-under
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	forks, err := s.Fork(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	again, err := forks[0].Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	all := append(append(forks, again...), s)
	ids := map[string]bool{}
	for i, f := range all {
		res, err := f.Run(t.Context(),
			unitask.Step{Code: fmt.Sprintf(
				"x.append(%d); open('f', 'a').write('%d'); (x, p.poll(), os.environ['MARK'], open('f').read())", i, i)})
		if want := fmt.Sprintf("([1, %d], None, 'm', 'text%d')", i, i); err != nil || res.Value != want ||
			res.Session != f.ID {
			t.Errorf("%d: %+v %v, want %s", i, res, err, want)
		}
		rec, err := rt.Runs().Get(f.ID)
		if err != nil || ids[f.ID] || rec.Session != f.ID || rec.Parent != f.Parent || !f.Expires().Equal(s.Expires()) {
			t.Errorf("%d: %s of %s, expires %s: %v", i, f.ID, rec.Parent, f.Expires(), err)
		}
		ids[f.ID] = true
	}
	if again[0].Parent != forks[0].ID || forks[0].Parent != s.ID || s.Parent != "" {
		t.Errorf("parents: %q, %q, %q", again[0].Parent, forks[0].Parent, s.Parent)
	}
	if err := forks[1].Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Fork(t.Context(), unitask.MaxForks-2); !errors.As(err, &busy) {
		t.Errorf("more than there may be: %v", err)
	}
	// The end of one does not end another.
	endForks(t, s, all, forks, home)
}

// endForks checks that forks outlive their parent, and that a cancelled fork leaves nothing.
func endForks(t *testing.T, s *unitask.Session, all, forks []*session.Session, home string) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for i, f := range all[:3] {
		if got := value(t, f, "", "x[1]"); !strings.HasPrefix(got, fmt.Sprint(i)) {
			t.Errorf("%d: %q", i, got)
		}
		if text, err := f.ReadFile(t.Context(), "f", 0, 0); string(text) != fmt.Sprintf("text%d", i) || err != nil {
			t.Errorf("%d: %q %v", i, text, err)
		}
	}
	// A cancelled fork leaves nothing.
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if made, err := forks[0].Fork(ctx, 3); err == nil {
		t.Logf("%d forks were there before they were given up", len(made))
		for _, f := range made {
			f.Close()
		}
	}
	for _, f := range all[:3] {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := forks[0].Fork(t.Context(), 1); !errors.As(err, new(*unitask.SessionError)) {
		t.Errorf("after its end: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(home, "sessions")); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
}
