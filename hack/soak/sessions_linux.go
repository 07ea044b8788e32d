package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sessionKinds are the disturbances of a session, from its start to its end.
var sessionKinds = []kind{
	{"steps", 30, session(nil)},
	{"a pause", 15, session(func(o *open) { o.ok("session", "pause", o.id) })},
	{"an idle time", 3, session(func(o *open) {
		o.until("paused", func() bool { return o.state() == "paused" })
	}, "--idle", "1s")},
	{"two forks", 8, session(func(o *open) {
		for _, fork := range strings.Fields(o.ok("session", "fork", "-n", "2", o.id)) {
			o.check(fork)
			o.ok("session", "rm", fork)
		}
	})},
	{"a time limit", 5, session(func(o *open) { o.codes(o.in.endless, 124, "--timeout", "1") })},
	{"files", 6, session((*open).files)},
	{"a command in the background", 4, session(func(o *open) {
		o.ok("session", "exec", "--detach", o.id, "--", "sleep",
			"1000")
	})},
	{"the client is killed", 6, session(func(o *open) {
		o.meanwhile(func(c *exec.Cmd) { _ = c.Process.Kill() }, "session", "exec", o.id, "--", "sleep", "1")
	})},
	{"paused, and the daemon is killed", 6, session(func(o *open) {
		o.ok("session", "pause", o.id)
		o.s.stopDaemon(syscall.SIGKILL)
	})},
	{"paused, used, and the daemon is killed", 3, session(func(o *open) {
		o.ok("session", "pause", o.id)
		o.ok("session", "exec", o.id, "--", "true")
		o.s.stopDaemon(syscall.SIGKILL)
	})},
	{"the daemon is ended", 4, session(func(o *open) { o.s.stopDaemon(syscall.SIGTERM) })},
	{"the daemon is killed while it pauses", 4, session(func(o *open) {
		o.ok("session", "pause", o.id) // it continues from here if the second pause is not completed
		o.ok("session", "exec", o.id, "--", "true")
		o.meanwhile(func(*exec.Cmd) { o.s.stopDaemon(syscall.SIGKILL) }, "session", "pause", o.id)
		o.s.waitDaemon()
	})},
	{"the daemon is killed while it resumes", 4, session(func(o *open) {
		o.ok("session", "pause", o.id)
		o.meanwhile(func(*exec.Cmd) { o.s.stopDaemon(syscall.SIGKILL) }, "session", "resume", o.id)
		o.s.waitDaemon()
	})},
	{"a full disk while it pauses", 3, session((*open).fullDisk)},
	{"QEMU is killed", 4, lostSession(func(o *open) {
		o.meanwhile(func(*exec.Cmd) { o.s.killOne("qemu-system") }, "session", "exec", o.id, "--", "sleep", "2")
	})},
	{"the daemon is killed", 4, lostSession(func(o *open) { o.s.stopDaemon(syscall.SIGKILL) })},
}

// open is a session in progress.
type open struct {
	s    *soak
	id   string
	in   *words
	word string // what it remembers
	err  error  // the first error
}

// session starts a session that remembers a word, disturbs it, checks that it still remembers, and ends it.
func session(do func(*open), flags ...string) func(*soak) (string, error) {
	return func(s *soak) (string, error) {
		o := s.begin(flags)
		if o.err == nil && do != nil {
			do(o)
		}
		o.check(o.id)
		o.ok("session", "rm", o.id)
		return o.end()
	}
}

// lostSession is a session whose machine ends. Later calls must return an error, and do nothing else.
func lostSession(do func(*open)) func(*soak) (string, error) {
	return func(s *soak) (string, error) {
		o := s.begin(nil)
		if do(o); o.err == nil {
			if code, out := o.do(nil, "session", "run", o.id, "--code", "1"); code != 125 {
				o.fail("a lost session's step ends with %d: %.200s", code, out)
			}
			_, _ = o.do(nil, "session", "rm", o.id)
		}
		return o.end()
	}
}

// words is code of a language that remembers a word, prints it, and runs forever.
type words struct {
	language, image, remember, say, endless string
	weight                                  int
}

var languages = []words{
	{"shell", "shell", "word=%s", "echo $word", "while :; do :; done", 6},
	{"python", "python", "word = '%s'", "print(word)", "while True: pass", 2},
	{"js", "node", "globalThis.word = '%s'", "console.log(word)", "for (;;);", 2},
}

// warmSessions makes the templates of sessions: booting each session would take most of the time.
func (s *soak) warmSessions() error {
	for _, in := range languages {
		if _, err := s.unitaskDo("image", "build", "--kernel", "linux", "--image", in.image, "--warm",
			"--fresh-process"); err != nil {
			return err
		}
	}
	return nil
}

func (s *soak) begin(flags []string) *open {
	at := s.random.IntN(10)
	in := &languages[slices.IndexFunc(languages, func(w words) bool { at -= w.weight; return at < 0 })]
	o := &open{s: s, in: in, word: "w" + strconv.FormatUint(s.random.Uint64(), 36)}
	o.id = strings.TrimSpace(o.ok(append([]string{"session", "new", "--lang", in.language}, flags...)...))
	o.codes(fmt.Sprintf(in.remember, o.word), 0)
	return o
}

func (o *open) end() (string, error) {
	if o.err != nil {
		_, _ = o.do(nil, "session", "rm", "--all")
		return "failed", o.err
	}
	return "as expected", nil
}

func (o *open) fail(format string, args ...any) {
	if o.err == nil {
		o.err = fmt.Errorf("session %s: "+format, append([]any{o.id}, args...)...)
	}
}

// do runs a unitask command, and returns its exit code and output.
func (o *open) do(meanwhile func(*exec.Cmd), args ...string) (code int, out string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd, stderr := o.s.command(ctx, nil, args...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	if err := cmd.Start(); err != nil {
		o.fail("%v", err)
		return -1, ""
	}
	if meanwhile != nil {
		timer := time.AfterFunc(time.Duration(o.s.random.Int64N(int64(400*time.Millisecond))), func() { meanwhile(cmd) })
		defer timer.Stop()
	}
	_ = cmd.Wait()
	if ctx.Err() != nil {
		o.fail("%q hangs", args)
	}
	if code = cmd.ProcessState.ExitCode(); code != 0 {
		return code, stdout.String() + stderr.String()
	}
	return code, stdout.String()
}

func (o *open) ok(args ...string) string {
	if o.err != nil {
		return ""
	}
	code, out := o.do(nil, args...)
	if code != 0 {
		o.fail("%q ends with %d: %.300s", args, code, out)
	}
	return out
}

// codes runs a step that ends with an exit code.
func (o *open) codes(step string, want int, flags ...string) {
	if o.err != nil {
		return
	}
	if code, out := o.do(nil, append([]string{"session", "run", o.id, "--code", step}, flags...)...); code != want {
		o.fail("%q ends with %d, expected %d: %.300s", step, code, want, out)
	}
}

// meanwhile does something at a random time while a unitask command runs, and ignores the command's result.
func (o *open) meanwhile(what func(*exec.Cmd), args ...string) {
	if o.err == nil {
		_, _ = o.do(what, args...)
	}
}

// check checks that a session remembers its word.
func (o *open) check(id string) {
	if out := o.ok("session", "run", id, "--code", o.in.say); o.err == nil && !strings.HasPrefix(out, o.word+"\n") {
		o.fail("%s remembers %.100q, not %s", id, out, o.word)
	}
}

func (o *open) state() string {
	for line := range strings.Lines(o.ok("session", "ls")) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == o.id {
			return f[1] // it has no name
		}
	}
	return ""
}

func (o *open) until(what string, is func() bool) {
	for late := time.Now().Add(patience); !is(); time.Sleep(100 * time.Millisecond) {
		if o.err != nil || time.Now().After(late) {
			o.fail("it is not %s", what)
			return
		}
	}
}

// files copies a file in and out again.
func (o *open) files() {
	dir, err := os.MkdirTemp("", "soak-files-")
	if err != nil {
		o.fail("%v", err)
		return
	}
	defer os.RemoveAll(dir)
	in, back := filepath.Join(dir, "in"), filepath.Join(dir, "back")
	if err := os.WriteFile(in, bytes.Repeat([]byte(o.word), 100_000), 0o600); err != nil {
		o.fail("%v", err)
	}
	o.ok("session", "cp", in, o.id+":deep/file")
	o.ok("session", "cp", o.id+":deep/file", back)
	a, _ := os.ReadFile(in)
	if b, err := os.ReadFile(back); o.err == nil && (err != nil || !bytes.Equal(a, b)) {
		o.fail("the file came back otherwise: %d bytes, %v", len(b), err)
	}
}

// fullDisk pauses a session without room on the disk. The session must continue.
func (o *open) fullDisk() {
	if !o.s.full {
		return
	}
	filler := filepath.Join(o.s.home, "sessions", ".filler")
	f, err := os.Create(filler)
	if err != nil {
		o.fail("%v", err)
		return
	}
	defer os.Remove(filler)
	defer f.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		o.fail("%v", err)
		return
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, max(1, int64(fs.Bfree)*fs.Bsize-o.s.random.Int64N(16<<20))); err != nil {
		o.fail("%v", err)
		return
	}
	if code, out := o.do(nil, "session", "pause", o.id); code != 125 || !strings.Contains(out, "no space left") {
		o.fail("a pause without room ends with %d: %.300s", code, out)
	}
}

// sessionDaemon returns the session daemon, 0 if none runs.
func sessionDaemon() int { return serving("session\x00serve") }

// stopDaemon sends it a signal, and waits for its end.
func (s *soak) stopDaemon(by syscall.Signal) {
	pid := sessionDaemon()
	if pid == 0 {
		return
	}
	_ = syscall.Kill(pid, by)
	for late := time.Now().Add(settling); time.Now().Before(late); time.Sleep(10 * time.Millisecond) {
		if reap(); errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return
		}
	}
}

// waitDaemon waits for the end of a killed daemon.
func (s *soak) waitDaemon() { time.Sleep(100 * time.Millisecond); reap() }

// lookSessions checks what sessions have left; none is in progress.
func (s *soak) lookSessions(when string) error {
	if pid := sessionDaemon(); pid != 0 {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if s.sessionFiles == 0 {
			s.sessionFiles = len(files)
		}
		if err == nil && len(files) > s.sessionFiles+moreFiles {
			s.fault("%s: the daemon has %d descriptors, and had %d", when, len(files), s.sessionFiles)
		}
		rss, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		fmt.Printf("%s: the daemon has %d descriptors, pages %s", when, len(files), rss)
	}
	if out, err := s.unitaskDo("session", "ls", "--json"); err != nil || strings.TrimSpace(string(out)) != "[]" {
		s.fault("%s: sessions are left: %.300s %v", when, out, err)
		_, _ = s.unitaskDo("session", "rm", "--all")
	}
	s.stopDaemon(syscall.SIGTERM)
	entries, err := os.ReadDir(filepath.Join(s.home, "sessions"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			s.fault("%s: sessions/%s is left", when, e.Name())
			_ = os.RemoveAll(filepath.Join(s.home, "sessions", e.Name()))
		}
	}
	return nil
}
