package e2b

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"

	"connectrpc.com/connect"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/session"
)

// Limits of processes.
const (
	maxProcesses   = 64        // of a sandbox at once
	maxInput       = 1 << 20   // bytes of a message to a sandbox
	maxTag         = 256       // bytes
	maxListed      = 4 << 10   // bytes of a process's arguments and variables in a list; longer ones are not in it
	maxUnread      = 16 << 20  // bytes of output that a client may leave unread
	maxEnvironment = 128 << 10 // bytes of a command's variables
)

// processes are a sandbox's running ones.
type processes struct {
	mu  sync.Mutex
	all []*process
}

// process is a command that the API started.
type process struct {
	info  processInfo
	run   session.Running
	stdin *io.PipeWriter // nil if the command has none
	pty   bool
	sizes chan unitask.TerminalSize
	out   output
}

// register adds a process that has started.
func (p *processes) register(one *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, one)
}

func (p *processes) remove(one *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.all {
		if other == one {
			p.all = append(p.all[:i:i], p.all[i+1:]...)
			return
		}
	}
}

// full reports whether a sandbox has its maximum number of processes.
func (p *processes) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all) >= maxProcesses
}

func (p *processes) list() []processInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]processInfo, 0, len(p.all))
	for _, one := range p.all {
		list = append(list, one.info)
	}
	return list
}

// find returns the process that a request selects.
func (p *processes) find(by selector) (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.all {
		if by.PID != nil && *by.PID == one.info.PID || by.Tag != nil && one.info.Tag != nil && *by.Tag == *one.info.Tag {
			return one, nil
		}
	}
	if by.PID != nil {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", *by.PID))
	}
	return nil, connect.NewError(connect.CodeNotFound, errors.New("process with this tag not found"))
}

// userOf returns the user that a request to a sandbox's daemon names.
func (box *sandbox) userOf(h http.Header) (string, error) {
	text, ok := strings.CutPrefix(h.Get("Authorization"), "Basic ")
	if !ok {
		return box.setup.usual(), nil
	}
	plain, err := base64.StdEncoding.DecodeString(text)
	name, _, _ := strings.Cut(string(plain), ":")
	if err == nil && name == "" {
		return box.setup.usual(), nil
	}
	return knownUser(name, err)
}

// knownUser returns an error for a user that sandboxes do not have.
func knownUser(name string, err error) (string, error) {
	if err != nil || name != defaultUser && name != "root" {
		return "", connect.NewError(connect.CodeUnauthenticated,
			fmt.Errorf("invalid username: %.80q: a sandbox has user and root", name))
	}
	return name, nil
}

// start runs a command, and streams its events until it ends or the client leaves. The command continues then, unless
// the client's deadline has passed.
func (s *Server) start(ctx context.Context, req *connect.Request[startRequest],
	stream *connect.ServerStream[eventMessage]) error {
	box := sandboxOf(ctx)
	user, err := box.userOf(req.Header())
	if err != nil {
		return err
	}
	in := req.Msg
	if in.Process.Cmd == "" || sizeOf(in.Process.Envs) > maxEnvironment {
		return connect.NewError(connect.CodeInvalidArgument,
			fmt.Errorf("a process needs a cmd, and at most %d bytes of envs", maxEnvironment))
	}
	if box.processes.full() {
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("the sandbox runs %d processes", maxProcesses))
	}
	if err := checkNames(in.Process.Envs); err != nil || in.Tag != nil && len(*in.Tag) > maxTag {
		return connect.NewError(connect.CodeInvalidArgument,
			cmp.Or(err, fmt.Errorf("the tag has more than %d bytes", maxTag)))
	}
	if err := s.opts.Admit(box.caller); err != nil {
		return connect.NewError(connect.CodeResourceExhausted, err)
	}
	p := &process{info: processInfo{Config: in.Process.listed(), Tag: in.Tag}, pty: in.PTY != nil}
	events := p.out.subscribe()
	defer p.out.leave(events)
	started := make(chan struct{})
	ended := make(chan error, 1)
	c := p.command(box, user, in)
	c.Started = func(run session.Running) {
		p.run, p.info.PID = run, uint32(run.PID)
		box.processes.register(p)
		close(started)
	}
	life, end := context.WithCancel(context.Background())
	go func() {
		defer end()
		res, err := box.session.Exec(life, c)
		box.processes.remove(p)
		if p.stdin != nil {
			p.stdin.Close()
		}
		p.out.end(res, err)
		ended <- err
	}()
	select {
	case <-started:
	case <-ctx.Done():
		end()
		return ctx.Err()
	case err := <-ended:
		select {
		case <-started:
		default:
			return startError(err, in.Process)
		}
	}
	box.log.add(fmt.Sprintf("process %d started: %.200s", p.info.PID, in.Process.Cmd))
	if err := stream.Send(&eventMessage{processEvent{Start: &startedEvent{p.info.PID}}}); err != nil {
		return err
	}
	err = p.follow(ctx, box, events, stream.Send)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		_ = p.run.Signal(syscall.SIGKILL)
	}
	return err
}

// listed returns what lists show of a command.
func (c processConfig) listed() processConfig {
	size := sizeOf(c.Envs)
	for _, arg := range c.Args {
		size += len(arg)
	}
	if size > maxListed {
		c.Args, c.Envs = nil, nil
	}
	c.Cmd = c.Cmd[:min(len(c.Cmd), maxListed)]
	return c
}

// startError returns why a command did not start.
func startError(err error, c processConfig) error {
	if err == nil {
		err = errors.New("it ended before it began")
	}
	code := connect.CodeInternal
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EACCES):
		code = connect.CodeInvalidArgument
	case statusOf(err) == http.StatusTooManyRequests:
		code = connect.CodeResourceExhausted
	case statusOf(err) == http.StatusBadGateway:
		code = connect.CodeUnavailable
	case statusOf(err) == http.StatusBadRequest:
		code = connect.CodeInvalidArgument
	}
	return connect.NewError(code, fmt.Errorf("start %.200q: %w", c.Cmd, err))
}

// command returns the session's command for a request.
func (p *process) command(box *sandbox, user string, in *startRequest) unitask.Command {
	c := unitask.Command{Args: append([]string{in.Process.Cmd}, in.Process.Args...), User: user,
		Dir: box.setup.folder(user), Env: box.environment(user, in.Process.Envs), Endless: true, Unbounded: true,
		ResultBytes: 1, Stdout: p.out.stream(outStdout), Stderr: p.out.stream(outStderr)}
	if in.Process.Cwd != nil && *in.Process.Cwd != "" {
		c.Dir = absolute(*in.Process.Cwd, user)
	}
	switch {
	case in.PTY != nil:
		p.sizes = make(chan unitask.TerminalSize, 1)
		t := &unitask.Terminal{Size: unitask.TerminalSize{Columns: 80, Rows: 24}, Resized: p.sizes}
		if size := in.PTY.Size; size != nil && size.Cols > 0 && size.Rows > 0 {
			t.Size = terminalSize(size)
		}
		c.Terminal, c.Stdout, c.Stderr = t, p.out.stream(outPTY), nil
		var from *io.PipeReader
		from, p.stdin = io.Pipe()
		c.Stdin = from
	case in.Stdin == nil || *in.Stdin:
		var from *io.PipeReader
		from, p.stdin = io.Pipe()
		c.Stdin = from
	}
	return c
}

func terminalSize(size *ptySize) unitask.TerminalSize {
	return unitask.TerminalSize{Columns: uint16(min(size.Cols, 10_000)), Rows: uint16(min(size.Rows, 10_000))}
}

// attach streams the further events of a running process.
func (s *Server) attach(ctx context.Context, req *connect.Request[selectRequest],
	stream *connect.ServerStream[eventMessage]) error {
	box := sandboxOf(ctx)
	p, err := box.processes.find(req.Msg.Process)
	if err != nil {
		return err
	}
	events := p.out.subscribe()
	if events == nil {
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%d clients follow the process", maxReaders))
	}
	if err := stream.Send(&eventMessage{processEvent{Start: &startedEvent{p.info.PID}}}); err != nil {
		p.out.leave(events)
		return err
	}
	return p.follow(ctx, box, events, stream.Send)
}

func (s *Server) listProcesses(ctx context.Context, _ *connect.Request[empty],
) (*connect.Response[listProcesses], error) {
	return connect.NewResponse(&listProcesses{sandboxOf(ctx).processes.list()}), nil
}

// sendInput writes to a process. It returns when the process has taken the input, so a client can't fill memory.
func (s *Server) sendInput(ctx context.Context, req *connect.Request[inputRequest]) (*connect.Response[empty], error) {
	p, err := sandboxOf(ctx).processes.find(req.Msg.Process)
	if err == nil {
		err = p.input(ctx, req.Msg.Input)
	}
	return connect.NewResponse(&empty{}), err
}

func (p *process) input(ctx context.Context, in processInput) error {
	text := in.Stdin
	if p.pty {
		text = in.PTY
	}
	if text == nil {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("the input is for pty, or for stdin, as the process"))
	}
	if p.stdin == nil {
		return connect.NewError(connect.CodeFailedPrecondition, errors.New("the process was started without stdin"))
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := p.stdin.Write(*text)
		wrote <- err
	}()
	select {
	case err := <-wrote:
		if err != nil {
			return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("the process takes no input any more: %w", err))
		}
		return nil
	case <-ctx.Done():
		p.stdin.CloseWithError(ctx.Err()) // a half of the input is worse than none
		return ctx.Err()
	case <-p.out.over():
		return connect.NewError(connect.CodeNotFound, errors.New("the process has ended"))
	}
}

func (s *Server) streamInput(ctx context.Context, stream *connect.ClientStream[streamInput],
) (*connect.Response[empty], error) {
	var p *process
	for stream.Receive() {
		in := stream.Msg()
		var err error
		switch {
		case in.Start != nil && p == nil:
			p, err = sandboxOf(ctx).processes.find(in.Start.Process)
		case in.Data != nil && p != nil:
			err = p.input(ctx, in.Data.Input)
		case in.Keepalive == nil:
			err = connect.NewError(connect.CodeInvalidArgument, errors.New("the first message must select a process"))
		}
		if err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(&empty{}), stream.Err()
}

func (s *Server) closeInput(ctx context.Context, req *connect.Request[selectRequest],
) (*connect.Response[empty], error) {
	p, err := sandboxOf(ctx).processes.find(req.Msg.Process)
	switch {
	case err != nil:
		return nil, err
	case p.pty:
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("send Ctrl+D (0x04) to a terminal"))
	case p.stdin != nil:
		p.stdin.Close()
	}
	return connect.NewResponse(&empty{}), nil
}

// signals are the signals of the API.
var signals = map[enum]syscall.Signal{"9": syscall.SIGKILL, "SIGNAL_SIGKILL": syscall.SIGKILL,
	"15": syscall.SIGTERM, "SIGNAL_SIGTERM": syscall.SIGTERM}

func (s *Server) sendSignal(ctx context.Context, req *connect.Request[signalRequest],
) (*connect.Response[empty], error) {
	p, err := sandboxOf(ctx).processes.find(req.Msg.Process)
	if err != nil {
		return nil, err
	}
	sig, ok := signals[req.Msg.Signal]
	if !ok {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("signal %.40q: use SIGTERM or SIGKILL",
			string(req.Msg.Signal)))
	}
	if err := p.run.Signal(sig); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	if sig == syscall.SIGKILL { // the client may look for it at once
		select {
		case <-p.out.over():
		case <-ctx.Done():
		}
	}
	return connect.NewResponse(&empty{}), nil
}

func (s *Server) update(ctx context.Context, req *connect.Request[updateRequest]) (*connect.Response[empty], error) {
	p, err := sandboxOf(ctx).processes.find(req.Msg.Process)
	if err != nil {
		return nil, err
	}
	if size := req.Msg.PTY; size != nil && size.Size != nil {
		if !p.pty {
			return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has no terminal"))
		}
		select {
		case p.sizes <- terminalSize(size.Size):
		case <-p.out.over():
		case <-ctx.Done():
		}
	}
	return connect.NewResponse(&empty{}), nil
}
