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
	"time"

	"golang.org/x/sys/unix"
)

// kind is a disturbance of a run.
type kind struct {
	name   string
	weight int
	do     func(s *soak) (end string, err error)
}

var kinds = []kind{
	{"nothing", 60, func(s *soak) (string, error) { return s.expect(0, nil) }},
	{"boots", 2, func(s *soak) (string, error) { return s.expect(0, []string{"--cold"}) }},
	{"its own end", 5, func(s *soak) (string, error) { return s.run("process.exit(7)", nil, nil, 7) }},
	{"much output", 2, func(s *soak) (string, error) {
		return s.run("for (let i = 0; i < 400; i++) process.stdout.write('x'.repeat(65536))", nil, nil, 0)
	}},
	{"artifacts", 5, (*soak).artifacts},
	{"more memory than there is", 2, func(s *soak) (string, error) {
		return s.run("const a = []; for (;;) a.push(Buffer.alloc(8 << 20, 1))", []string{"--memory", "192M"}, nil, 137)
	}},
	{"the time limit", 3, func(s *soak) (string, error) {
		return s.run("for (;;);", []string{"--timeout", "1s"}, nil, 124)
	}},
	{"unitask is killed", 10, func(s *soak) (string, error) {
		return s.run(long, nil, func(c *exec.Cmd) { _ = c.Process.Kill() }, -1)
	}},
	{"unitask is interrupted", 6, (*soak).interrupt},
	{"QEMU is killed", 10, func(s *soak) (string, error) {
		return s.run(long, nil, func(*exec.Cmd) { s.killOne("qemu-system") }, 0, 125)
	}},
	{"the pool's daemon is killed", 4, func(s *soak) (string, error) {
		return s.run("setTimeout(() => {}, 500)", nil, func(*exec.Cmd) { s.killDaemon() }, 0, 125)
	}},
	{"a full disk", 5, (*soak).fullDisk},
	{"little address space", 2, func(s *soak) (string, error) { return s.short("--as=2147483648", 0, 125) }},
	{"few descriptors", 2, func(s *soak) (string, error) { return s.short("--nofile=24", 0, 125) }},
}

// long is code that still runs when the disturbance comes.
const long = "setTimeout(() => {}, 3000)"

// run runs code, disturbs it meanwhile, and reports its end. The exit code must be one of these; -1 allows any.
func (s *soak) run(code string, flags []string, meanwhile func(*exec.Cmd), codes ...int) (string, error) {
	end, _, err := s.runUnder(nil, code, flags, meanwhile, codes...)
	return end, err
}

func (s *soak) runUnder(under []string, code string, flags []string, meanwhile func(*exec.Cmd), codes ...int) (end,
	stdout string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd, stderr := s.command(ctx, under, append([]string{"run", "--kernel", "linux", "--code", code}, flags...)...)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return "not started", "", err
	}
	var timer *time.Timer
	if meanwhile != nil {
		timer = time.AfterFunc(time.Duration(s.random.Int64N(int64(killWithin))), func() { meanwhile(cmd) })
		defer timer.Stop()
	}
	_ = cmd.Wait()
	got := cmd.ProcessState.ExitCode()
	end = "exit " + strconv.Itoa(got)
	if ctx.Err() != nil {
		return "hangs", "", errors.New("it hangs")
	}
	if got < 0 {
		end = "killed"
	}
	if !slices.Contains(codes, got) && !slices.Contains(codes, -1) {
		err = fmt.Errorf("%s, expected %v: %.300s", end, codes, stderr)
	}
	return end, out.String(), err
}

// interrupt interrupts a run. A run whose process has just started ends by the signal itself, like any program, and
// leaves no record.
func (s *soak) interrupt() (string, error) {
	before, err := os.ReadDir(filepath.Join(s.home, "runs"))
	if err != nil {
		return "", err
	}
	end, err := s.run(long, nil, func(c *exec.Cmd) { _ = c.Process.Signal(os.Interrupt) }, 130)
	if end != "killed" {
		return end, err
	}
	after, e := os.ReadDir(filepath.Join(s.home, "runs"))
	if e == nil && len(after) == len(before) {
		return "interrupted before it began", nil
	}
	return end, errors.Join(err, e)
}

// expect runs code that prints a value which only that code knows.
func (s *soak) expect(code int, flags []string) (string, error) {
	word := strconv.FormatUint(s.random.Uint64(), 36)
	end, out, err := s.runUnder(nil, "console.log('"+word+"')", flags, nil, code)
	if err == nil && out != word+"\n" {
		err = fmt.Errorf("it printed %.80q, expected %s", out, word)
	}
	return end, err
}

func (s *soak) artifacts() (string, error) {
	dir, err := os.MkdirTemp("", "soak-out-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	end, err := s.run("for (let i = 0; i < 20; i++) require('fs').writeFileSync('/out/f' + i, 'y'.repeat(i * 1000))",
		[]string{"--out", dir}, nil, 0)
	if err != nil {
		return end, err
	}
	for i := range 20 {
		if st, err := os.Stat(filepath.Join(dir, "f"+strconv.Itoa(i))); err != nil || st.Size() != int64(i*1000) {
			return end, fmt.Errorf("artifact %d: %v", i, err)
		}
	}
	return end, nil
}

// short runs with a shortage of something, then again with enough.
func (s *soak) short(limit string, codes ...int) (string, error) {
	end, _, err := s.runUnder([]string{"prlimit", limit}, "1", []string{"--cold"}, nil, codes...)
	if err != nil {
		return end, err
	}
	_, err = s.expect(0, nil)
	return end, err
}

// fullDisk runs without enough room for the record, then again with room.
func (s *soak) fullDisk() (string, error) {
	filler := filepath.Join(s.home, "runs", ".filler")
	f, err := os.Create(filler)
	if err != nil {
		return "", err
	}
	defer os.Remove(filler) // if a later step fails
	defer f.Close()         // once more below
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return "", err
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, max(1, int64(fs.Bfree)*fs.Bsize-s.random.Int64N(64<<10))); err != nil {
		return "", err
	}
	f.Close() // otherwise its space stays taken
	end, err := s.run("for (let i = 0; i < 40; i++) console.log('z'.repeat(4000))", nil, nil, 0, 125)
	if e := os.Remove(filler); err == nil {
		err = e
	}
	if err == nil {
		_, err = s.expect(0, nil)
	}
	return end, err
}
