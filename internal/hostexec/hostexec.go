// Package hostexec runs one command of the host that a ceiling declares. The command has no shell and no standard
// input, and its environment only what the caller gives. The package never decides whether a command may run, and
// interprets no output. Package mcp calls it.
package hostexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// Command is what to run.
type Command struct {
	Argv    []string          // the program's name or absolute path, and its arguments
	Dir     string            // "" means an empty folder, which is removed afterwards
	User    string            // "" means this process's
	Env     map[string]string // the whole environment
	Timeout time.Duration
	// Stdout and Stderr get the output. They should keep a bounded part of it, since a command may print any amount.
	Stdout, Stderr io.Writer
}

// Result is how a command ended.
type Result struct {
	ExitCode int // -1 if a signal ended it
	TimedOut bool
	Took     time.Duration
}

// endTime is how long a killed command's output may stay open: a process that left its group may hold it.
const endTime = 2 * time.Second

// Run runs a command. When the command ends, or ctx does, or its time is over, all processes of its group are killed.
// An error means that it did not start, or that ctx ended.
func Run(ctx context.Context, c Command) (res Result, err error) {
	program, err := exec.LookPath(c.Argv[0])
	if err != nil {
		return res, fmt.Errorf("%s: %w", c.Argv[0], errors.Unwrap(err))
	}
	dir := c.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "unitask-host-"); err != nil {
			return res, err
		}
		defer os.RemoveAll(dir)
	}
	attr := &syscall.SysProcAttr{Setpgid: true}
	if c.User != "" {
		if attr.Credential, err = credential(c.User); err != nil {
			return res, err
		}
		if c.Dir == "" {
			if err = os.Chown(dir, int(attr.Credential.Uid), int(attr.Credential.Gid)); err != nil {
				return res, err
			}
		}
	}
	timed, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	cmd := exec.CommandContext(timed, program, c.Argv[1:]...)
	cmd.Args[0] = c.Argv[0]
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr, cmd.WaitDelay = dir, c.Stdout, c.Stderr, attr, endTime
	cmd.Env = []string{}
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	slices.Sort(cmd.Env)
	var late atomic.Bool // its time was over while it ran
	cmd.Cancel = func() error {
		late.Store(ctx.Err() == nil)
		return killGroup(cmd.Process.Pid)
	}
	begin := time.Now()
	if err = cmd.Start(); err != nil {
		return res, err
	}
	err = cmd.Wait()
	_ = killGroup(cmd.Process.Pid) // what it left behind
	res = Result{ExitCode: cmd.ProcessState.ExitCode(), TimedOut: late.Load(), Took: time.Since(begin)}
	if ctx.Err() != nil {
		return res, context.Cause(ctx)
	}
	var exited *exec.ExitError
	if errors.As(err, &exited) || errors.Is(err, exec.ErrWaitDelay) || errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return res, err
}

func killGroup(pid int) error { return syscall.Kill(-pid, syscall.SIGKILL) }

// credential returns a user's ids, without further groups.
func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("user %s has the id %q", name, u.Uid)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("user %s has the group %q", name, u.Gid)
	}
	if os.Geteuid() != 0 && uint64(os.Geteuid()) != uid {
		return nil, fmt.Errorf("only root may run a command as %s", name)
	}
	c := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: os.Geteuid() != 0}
	return c, nil
}
