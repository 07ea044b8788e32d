package httpapi

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/session"
)

// maxListedArgs bounds a command's arguments in lists, in bytes.
const maxListedArgs = 4 << 10

// command is a command that runs without a request that waits for it.
type command struct {
	view     commandView
	session  string
	running  session.Running
	stdin    *io.PipeWriter // nil if nothing more may come
	over     chan struct{}  // closed when it has ended
	terminal bool
}

// commandView is a command in a list.
type commandView struct {
	RunID       string    `json:"runId"`
	PID         int       `json:"pid"`
	Args        []string  `json:"args"`
	User        string    `json:"user"`
	Began       time.Time `json:"began"`
	Interactive bool      `json:"interactive"`
	Terminal    bool      `json:"terminal"`
}

// commandRequest is the body of a request for a command.
type commandRequest struct {
	Args           []string          `json:"args"`
	Dir            string            `json:"dir"`
	Env            map[string]string `json:"env"`
	User           string            `json:"user"`
	TimeoutSeconds float64           `json:"timeoutSeconds"`
	Stdin          string            `json:"stdin"`
	Interactive    bool              `json:"interactive"`
	Terminal       *terminalSize     `json:"terminal"`
}

type terminalSize struct {
	Columns uint16 `json:"columns"`
	Rows    uint16 `json:"rows"`
}

func (t *terminalSize) terminal() *unitask.Terminal {
	if t == nil {
		return nil
	}
	return &unitask.Terminal{Size: unitask.TerminalSize{Columns: t.Columns, Rows: t.Rows}}
}

func (s *Server) runCommand(c *call) (*answer, error) {
	var in commandRequest
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	wait := c.is("wait", true)
	if wait && (in.Interactive || in.Terminal != nil) {
		return nil, wrong(http.StatusUnprocessableEntity, "interactive and terminal go with wait=false")
	}
	of, err := s.session(c)
	if err != nil {
		return nil, err
	}
	does := unitask.Command{Args: in.Args, Dir: in.Dir, Env: in.Env, User: in.User,
		Stdin: strings.NewReader(in.Stdin)}
	if wait {
		does.Timeout, does.ResultBytes = limit(of, in.TimeoutSeconds), shownBytes+1
		does.Started = func(is session.Running) { c.began(is.RunID) }
		return s.attended(c, func(ctx context.Context) (*unitask.Result, error) { return of.Exec(ctx, does) })
	}
	if err := s.shared.Admit(c.caller); err != nil {
		return nil, err
	}
	does.Timeout, does.Endless, does.Unbounded, does.ResultBytes = seconds(in.TimeoutSeconds), true, true, 1
	does.Terminal = in.Terminal.terminal()
	one := &command{session: of.ID, over: make(chan struct{}), terminal: in.Terminal != nil, view: commandView{
		Args: listed(in.Args), User: cmp.Or(in.User, "user"), Terminal: in.Terminal != nil}}
	if in.Interactive || in.Terminal != nil {
		var from *io.PipeReader
		from, one.stdin = io.Pipe()
		does.Stdin, one.view.Interactive = io.MultiReader(strings.NewReader(in.Stdin), from), true
	}
	return s.detached(c, of, func(ctx context.Context, p *progress, began func(started)) (*unitask.Result, error) {
		stdout, stderr := &stream{to: p, kind: "stdout"}, &stream{to: p, kind: "stderr"}
		does.Stdout, does.Stderr = stdout, stderr
		does.Started = func(is session.Running) {
			one.running, one.view.RunID, one.view.PID, one.view.Began = is, is.RunID, is.PID, time.Now().UTC()
			s.sessions.add(one)
			began(started{is.RunID, of.ID, is.PID})
		}
		defer s.sessions.remove(one)
		res, err := of.Exec(ctx, does)
		stdout.flush()
		stderr.flush()
		return res, err
	})
}

// listed returns arguments for a list.
func listed(args []string) []string {
	left := maxListedArgs
	out := []string{}
	for _, arg := range args {
		if len(arg) > left {
			arg = strings.ToValidUTF8(arg[:left], "") + "…"
		}
		out = append(out, strings.ToValidUTF8(arg, "\ufffd"))
		if left -= len(arg) + 16; left <= 0 {
			break
		}
	}
	return out
}

func (s *sessions) add(one *command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.commands == nil {
		s.commands = map[string]*command{}
	}
	s.commands[one.view.RunID] = one
}

// remove removes a command that has ended, and ends its input.
func (s *sessions) remove(one *command) {
	s.mu.Lock()
	delete(s.commands, one.view.RunID)
	s.mu.Unlock()
	close(one.over)
	if one.stdin != nil {
		one.stdin.Close()
	}
}

// of returns the commands of a session, in the order of their starts.
func (s *sessions) of(session string) []commandView {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []commandView{}
	for _, one := range s.commands {
		if one.session == session {
			list = append(list, one.view)
		}
	}
	slices.SortFunc(list, func(a, b commandView) int { return strings.Compare(a.RunID, b.RunID) })
	return list
}

func (s *Server) listCommands(c *call) (*answer, error) {
	if _, err := s.view(c, c.text("id")); err != nil {
		return nil, err
	}
	return &answer{Body: map[string]any{"commands": s.sessions.of(c.text("id"))}}, nil
}

// command returns the running command that the path names, in the caller's session.
func (s *Server) command(c *call) (*command, error) {
	of, err := s.session(c)
	if err != nil {
		return nil, err
	}
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	if one := s.sessions.commands[c.text("run")]; one != nil && one.session == of.ID {
		return one, nil
	}
	return nil, noSessionRun(c)
}

// ended is the problem of a command that has ended, or takes no input.
func ended(detail string) error {
	return &Problem{Status: http.StatusConflict, Code: "ended", Detail: detail}
}

func (s *Server) writeStdin(c *call) (*answer, error) {
	var in struct {
		Text, Base64 string
		Close        bool
	}
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	text := []byte(in.Text)
	if in.Base64 != "" {
		var err error
		if text, err = base64.StdEncoding.DecodeString(in.Base64); err != nil || in.Text != "" {
			return nil, wrong(http.StatusUnprocessableEntity, "send text, or base64 that is base64")
		}
	}
	one, err := s.command(c)
	if err != nil {
		return nil, err
	}
	if one.stdin == nil {
		return nil, wrong(http.StatusUnprocessableEntity, "the command was started without interactive")
	}
	if err := one.input(c.r.Context(), text); err != nil {
		return nil, err
	}
	if in.Close {
		one.stdin.Close()
	}
	return &answer{Status: http.StatusNoContent}, nil
}

// input writes to a command. It returns when the command has read all, so a client can't fill memory.
func (one *command) input(ctx context.Context, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := one.stdin.Write(text)
		wrote <- err
	}()
	select {
	case err := <-wrote:
		if err != nil {
			return ended("the command takes no input any more")
		}
		return nil
	case <-ctx.Done():
		one.stdin.CloseWithError(ctx.Err()) // a half of the input is worse than none
		return ctx.Err()
	case <-one.over:
		return ended("the command has ended")
	}
}

// signals are the numbers of signals in a machine, which is Linux.
var signals = map[string]syscall.Signal{"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGKILL": 9, "SIGUSR1": 10,
	"SIGUSR2": 12, "SIGTERM": 15, "SIGCONT": 18, "SIGSTOP": 19, "SIGTSTP": 20}

func (s *Server) signalCommand(c *call) (*answer, error) {
	var in struct{ Signal string }
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	one, err := s.command(c)
	if err != nil {
		return nil, err
	}
	return done(one.running.Signal(signals[in.Signal]))
}

func (s *Server) resizeCommand(c *call) (*answer, error) {
	var in terminalSize
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	one, err := s.command(c)
	if err != nil {
		return nil, err
	}
	if !one.terminal {
		return nil, wrong(http.StatusUnprocessableEntity, "the command has no terminal")
	}
	return done(one.running.Resize(int(in.Columns), int(in.Rows)))
}

// done answers that something was done to a running command.
func done(err error) (*answer, error) {
	if errors.Is(err, os.ErrProcessDone) {
		err = ended("the command has ended")
	}
	return &answer{Status: http.StatusNoContent}, err
}
