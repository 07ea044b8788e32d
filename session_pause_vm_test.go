package unitask_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/vmm"
)

// whenWritten is a writer that closes a channel at its first write.
func whenWritten(to chan struct{}) io.Writer {
	var once sync.Once
	return writerFunc(func(p []byte) (int, error) {
		once.Do(func() { close(to) })
		return len(p), nil
	})
}

// A session continues after a pause as if nothing had happened.
func TestSessionPause(t *testing.T) {
	needClones(t)
	home := newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "python"}})
	run := func(code, value string) {
		t.Helper()
		if res, err := s.Run(t.Context(), unitask.Step{Code: code}); err != nil || res.Value != value || res.ExitCode != 0 {
			t.Fatalf("%s: %+v %v", code, res, err)
		}
	}
	run("x = 40; f = open('kept', 'w+'); f.write('text'); f.flush(); import subprocess, threading, time\n"+
		"p = subprocess.Popen(['sleep', '1000'])\np.poll()", "")
	// A background command continues, and prints.
	run("n = 0\ndef tick():\n    global n\n    while True:\n"+
		"        n += 1; print('tick', n, flush=True); time.sleep(0.01)\nthreading.Thread(target=tick, daemon=True).start()",
		"")
	folder := pauseUnderStep(t, s, home, run)
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder after its end: %v", err)
	}
	if _, err := s.Run(t.Context(), unitask.Step{Code: "1"}); !errors.As(err, new(*unitask.SessionError)) {
		t.Errorf("after its end: %v", err)
	}

	t.Run("life", func(t *testing.T) {
		liveOut(t, rt)
	})
	t.Run("idle", func(t *testing.T) {
		s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}, Idle: time.Second})
		for n := range 2 {
			if res, err := s.Run(t.Context(), unitask.Step{Code: "n=$((n+1)); echo $n"}); err != nil ||
				string(res.Stdout) != fmt.Sprintf("%d\n", n+1) {
				t.Fatalf("%+v %v", res, err)
			}
			testwait.Until(t, "it is paused", func() bool {
				select {
				case <-s.Done():
					t.Fatal(s.Close())
				default:
				}
				return s.Paused()
			})
		}
	})
	t.Run("damaged", func(t *testing.T) {
		resumeDamaged(t, rt, home)
	})
	t.Run("a host that can't", func(t *testing.T) { // and then can
		pauseWithoutRoom(t, rt, home)
	})
	t.Run("another QEMU", func(t *testing.T) { // instead of the one that it started with
		resumeOnAnotherQEMU(t, rt)
	})
	t.Run("secret", func(t *testing.T) {
		s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell",
			Secrets: map[string]string{"KEY": "do-not-tell-this"}}})
		if err := s.Pause(t.Context()); err == nil || !strings.Contains(err.Error(), "bind them to hosts") {
			t.Errorf("%v", err)
		}
		if res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", "echo $KEY"}}); err != nil ||
			strings.Contains(string(res.Stdout), "tell-this") {
			t.Errorf("%+v %v", res, err)
		}
	})
}

// pauseUnderStep pauses a session during a step, while a background command prints.
func pauseUnderStep(t *testing.T, s *unitask.Session, home string, run func(code string, value string)) string {
	t.Helper()
	busy, under := make(chan *unitask.Result, 1), make(chan struct{})
	go func() {
		res, _ := s.Run(t.Context(), unitask.Step{Code: "print('begun', flush=True); time.sleep(1.5)",
			Stdout: whenWritten(under)})
		busy <- res
	}()
	<-under
	folder := filepath.Join(home, "sessions", s.ID)
	for range 2 {
		var full *unitask.BusyError
		var err error
		testwait.Until(t, "the step has ended", func() bool {
			err = s.Pause(t.Context())
			return !errors.As(err, &full)
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Pause(t.Context()); err != nil {
			t.Errorf("twice: %v", err)
		}
		if st, err := os.Stat(folder); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%v %v", st, err)
		}
		before := time.Now()
		run("x += 1; f.seek(0); (x > 40, f.read(), p.poll() is None, abs(time.time() - "+fmt.Sprint(before.Unix())+") < 30)",
			"(True, 'text', True, True)")
		t.Logf("resumed and answered after %d ms", time.Since(before).Milliseconds())
		if text, err := s.ReadFile(t.Context(), "kept", 0, 0); string(text) != "text" || err != nil {
			t.Errorf("%q %v", text, err)
		}
	}
	if res := <-busy; res == nil || res.ExitCode != 0 {
		t.Errorf("the step beside: %+v", res)
	}
	return folder
}

// liveOut checks that a paused session ends with its life.
func liveOut(t *testing.T, rt *unitask.Runtime) {
	t.Helper()
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}, Life: 12 * time.Second})
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if _, err := s.Exec(t.Context(), unitask.Command{Args: []string{"true"}}); err == nil ||
		!strings.Contains(err.Error(), "it had lived for 12s") {
		t.Errorf("%v", err)
	}
}

// resumeDamaged checks that nothing resumes from a damaged pause.
func resumeDamaged(t *testing.T, rt *unitask.Runtime, home string) {
	t.Helper()
	s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Request: unitask.Request{Image: "shell"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(home, "sessions", s.ID)
	files, err := os.ReadDir(folder)
	if err != nil || len(files) < 3 {
		t.Fatalf("%v %v", files, err)
	}
	for _, f := range files {
		if err := os.Truncate(filepath.Join(folder, f.Name()), 10); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Exec(t.Context(), unitask.Command{Args: []string{"true"}}); err == nil ||
		!strings.Contains(err.Error(), "damaged") {
		t.Errorf("%v", err)
	}
	<-s.Done()
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("close: %v", err)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder after its end: %v", err)
	}
}

// pauseWithoutRoom checks a pause on a host that has no room, and then has.
func pauseWithoutRoom(t *testing.T, rt *unitask.Runtime, home string) {
	t.Helper()
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}})
	if _, err := s.Run(t.Context(), unitask.Step{Code: "n=7"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := qemuChildren(t, os.Getpid())
	mark := filepath.Join(home, "sessions", s.ID, "resumed")
	if err := os.MkdirAll(filepath.Join(mark, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Run(t.Context(), unitask.Step{Code: "echo $n"}); err == nil ||
			!strings.Contains(err.Error(), "note that the session goes on") || !s.Paused() {
			t.Errorf("paused %v: %v", s.Paused(), err)
		}
	}
	if now := qemuChildren(t, os.Getpid()); len(now) > len(before) {
		t.Errorf("a machine that nobody has: %v, before %v", now, before)
	}
	if err := os.RemoveAll(mark); err != nil {
		t.Fatal(err)
	}
	if res, err := s.Run(t.Context(), unitask.Step{Code: "echo $n"}); err != nil || string(res.Stdout) != "7\n" {
		t.Errorf("%+v %v", res, err)
	}
}

// resumeOnAnotherQEMU resumes a session on another QEMU than it started with.
func resumeOnAnotherQEMU(t *testing.T, rt *unitask.Runtime) {
	t.Helper()
	q, err := vmm.FindQEMU(t.Context(), vmm.Arch(image.HostArch()), nil)
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(t.TempDir(), filepath.Base(q.Path))
	if err := os.Symlink(q.Path, own); err != nil {
		t.Fatal(err)
	}
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}})
	if _, err := s.Run(t.Context(), unitask.Step{Code: "n=7"}); err != nil {
		t.Fatal(err)
	}
	var other *machine.OtherHostError
	t.Setenv("UNITASK_QEMU", own)
	if _, err := s.Fork(t.Context(), 1); !errors.As(err, &other) || other.What != "QEMU" {
		t.Errorf("fork: %v", err)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Run(t.Context(), unitask.Step{Code: "echo $n"}); !errors.As(err, &other) || other.What != "QEMU" ||
		!s.Paused() {
		t.Errorf("paused %v: %v", s.Paused(), err)
	}
	t.Setenv("UNITASK_QEMU", q.Path)
	if res, err := s.Run(t.Context(), unitask.Step{Code: "echo $n"}); err != nil || string(res.Stdout) != "7\n" {
		t.Errorf("%+v %v", res, err)
	}
}
