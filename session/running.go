package session

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Running is a command that runs. Any goroutine may call its methods; they resume a paused session.
type Running struct {
	// PID is its process in the machine, and that process's group.
	PID int
	// RunID identifies its record.
	RunID string

	s   *Session
	cmd *supervisor.Command
}

// Signal sends a signal to the command's process group. The error is os.ErrProcessDone if the command has ended.
func (r Running) Signal(sig syscall.Signal) error {
	if sig < 1 || sig > 64 {
		return policy.Bad("signal", fmt.Sprint(int(sig)), "must be from 1 to 64")
	}
	return r.use(func(ctx context.Context) error { return r.cmd.Signal(ctx, sig) })
}

// Resize changes the size of the command's terminal, if it has one.
func (r Running) Resize(columns, rows int) error {
	if columns < 1 || rows < 1 || columns > maxTerminal || rows > maxTerminal {
		return policy.Bad("terminal", fmt.Sprintf("%dx%d", columns, rows), "must be from 1 to %d", maxTerminal)
	}
	size := guest.Size{Columns: uint16(columns), Rows: uint16(rows)}
	return r.use(func(ctx context.Context) error { return r.cmd.Resize(ctx, size) })
}

// maxTerminal bounds a terminal's columns and rows.
const maxTerminal = 1<<16 - 1

// use calls do while the session's machine runs, unless the command has ended.
func (r Running) use(do func(context.Context) error) error {
	select {
	case <-r.cmd.Done():
		return os.ErrProcessDone
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), fileTimeout)
	defer cancel()
	done, err := r.s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	return do(ctx)
}

// isRoot reports whether a user of the machine is root, or returns why the session has no such user.
func (s *Session) isRoot(user string) (root bool, err error) {
	switch {
	case user == "" || user == "user":
		return false, nil
	case user != "root":
		return false, policy.Bad("user", fmt.Sprintf("%.40q", user), "must be user or root")
	case !s.client.MayRoot:
		return false, policy.Bad("user", user, "needs a session that was started with root")
	}
	return true, nil
}

// start returns the start of a command, or an error if the command is invalid.
func (s *Session) start(c Command) (supervisor.Exec, error) {
	bad := func(field, value, reason string) (supervisor.Exec, error) {
		return supervisor.Exec{}, policy.Bad(field, value, "%s", reason)
	}
	if err := s.hasCommands("commands"); err != nil {
		return supervisor.Exec{}, err
	}
	if len(c.Args) == 0 {
		return bad("command", "", "is empty")
	}
	for i, arg := range slices.Concat(c.Args, []string{c.Dir}, slices.Collect(maps.Keys(c.Env)),
		slices.Collect(maps.Values(c.Env))) {
		if strings.ContainsRune(arg, 0) || (i == 0 && arg == "") {
			return bad("command", fmt.Sprintf("%.80q", arg), "holds a NUL byte, or nothing")
		}
	}
	if c.Timeout < 0 {
		return bad("timeoutMs", c.Timeout.String(), "must be positive")
	}
	root, err := s.isRoot(c.User)
	if err != nil {
		return supervisor.Exec{}, err
	}
	env := s.env
	if root {
		env = withEnv(env, map[string]string{"HOME": "/root", "USER": "root", "LOGNAME": "root"})
	}
	return supervisor.Exec{Args: c.Args, Env: withEnv(env, c.Env), Dir: s.at(c.Dir), Stdin: c.Stdin, Root: root}, nil
}

// asked returns the request for a command's record.
func (s *Session) asked(c Command) run.Request {
	return run.Request{Args: c.Args, Dir: s.at(c.Dir), Env: c.Env}
}

// startCommand starts a command of a run, and tells its caller once it runs.
func (s *Session) startCommand(ctx context.Context, c Command, e supervisor.Exec, id string) (*supervisor.Command,
	error) {
	if c.Started != nil {
		e.PID = func(cmd *supervisor.Command, pid int) { c.Started(Running{PID: pid, RunID: id, s: s, cmd: cmd}) }
	}
	return s.client.Start(ctx, e)
}

// withEnv returns an environment with more variables, which replace those with the same names.
func withEnv(env []string, more map[string]string) []string {
	list := slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, other := more[name]
		return other
	})
	for _, name := range slices.Sorted(maps.Keys(more)) {
		list = append(list, name+"="+more[name])
	}
	return list
}
