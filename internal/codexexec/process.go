package codexexec

import (
	"errors"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/unitask/unitask/run"
	"github.com/unitask/unitask/session"
)

// process is a process of the client's. Its output is kept, at most maxOutput of it.
type process struct {
	s         *server
	id        string
	tty, pipe bool
	input     *input
	opened    chan struct{} // closed when the client knows that it has started
	printed   chan struct{} // an element if it has printed before

	sending sync.Mutex // held from a sequence number to its notification

	mu      sync.Mutex
	running *session.Running
	chunks  []chunk
	kept    int
	next    uint64
	exited  bool
	code    int
	closed  bool
	failure string
	changed chan struct{} // closed at the next change
}

// chunk is some output, as the protocol has it.
type chunk struct {
	Seq    uint64 `json:"seq"`
	Stream string `json:"stream"`
	Chunk  []byte `json:"chunk"`
}

type startParams struct {
	ProcessID string            `json:"processId"`
	Argv      []string          `json:"argv"`
	Cwd       string            `json:"cwd"`
	Env       map[string]string `json:"env"`
	EnvPolicy *struct {
		Set map[string]string `json:"set"`
	} `json:"envPolicy"`
	TTY       bool `json:"tty"`
	PipeStdin bool `json:"pipeStdin"`
}

// command returns the command that the parameters ask for. The machine's variables stay, in place of the host's.
func (s *server) command(p startParams) (c session.Command, err error) {
	if p.ProcessID == "" || len(p.ProcessID) > maxName {
		return c, fail(codeParams, "processId must have 1 to %d bytes", maxName)
	}
	if len(p.Argv) == 0 || p.Argv[0] == "" {
		return c, fail(codeParams, "argv must not be empty")
	}
	dir, _, err := s.path(p.Cwd)
	if err != nil {
		return c, err
	}
	c = session.Command{Args: p.Argv, Dir: dir, Env: map[string]string{}, Endless: true, Unbounded: true, ResultBytes: 1}
	if p.EnvPolicy != nil {
		for name, value := range p.EnvPolicy.Set {
			c.Env[name] = value
		}
	}
	for name, value := range p.Env {
		if p.EnvPolicy != nil || name != "PATH" && name != "HOME" { // an older client sends those of the host
			c.Env[name] = value
		}
	}
	return c, nil
}

// start starts a process, and answers when it runs.
func (s *server) start(in *session.Session, m message) (any, error) {
	asked, err := params[startParams](m)
	if err != nil {
		return nil, err
	}
	c, err := s.command(asked)
	if err != nil {
		return nil, err
	}
	p := &process{s: s, id: asked.ProcessID, tty: asked.TTY, pipe: asked.PipeStdin, opened: make(chan struct{}),
		printed: make(chan struct{}, 1), next: 1, changed: make(chan struct{})}
	if err := s.add(p); err != nil {
		return nil, err
	}
	if p.tty || p.pipe {
		p.input = newInput()
		c.Stdin = p.input
	}
	c.Stdout, c.Stderr = output{p, "stdout"}, output{p, "stderr"}
	if p.tty {
		c.Stdout, c.Terminal = output{p, "pty"}, &run.Terminal{Size: run.TerminalSize{Columns: 80, Rows: 24}}
	}
	runs, over := make(chan struct{}), make(chan error, 1)
	c.Started = func(r session.Running) {
		p.mu.Lock()
		p.running = &r
		p.mu.Unlock()
		close(runs)
	}
	s.working.Go(func() {
		res, err := in.Exec(s.ctx, c)
		if p.input != nil {
			p.input.close()
		}
		over <- err
		<-p.opened
		p.end(res, err)
	})
	select {
	case <-runs:
	case <-p.printed: // that it can't start
	case err := <-over:
		if err != nil {
			s.forget(p)
			close(p.opened)
			return nil, fail(codeInternal, "%v", err)
		}
	}
	s.answer(m.ID, map[string]any{"processId": p.id, "sandboxType": "none"}, nil)
	close(p.opened)
	return nil, errAnswered
}

// errAnswered means that a request is answered.
var errAnswered = errors.New("answered")

// add adds a process; the oldest one that has ended makes room.
func (s *server) add(p *process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.processes[p.id] != nil {
		return fail(codeRequest, "process %.80q already exists", p.id)
	}
	if len(s.order) >= maxProcesses {
		at := slices.IndexFunc(s.order, (*process).isClosed)
		if at < 0 {
			return fail(codeInternal, "%d processes run: end one", maxProcesses)
		}
		delete(s.processes, s.order[at].id)
		s.order = slices.Delete(s.order, at, at+1)
	}
	s.processes[p.id] = p
	s.order = append(s.order, p)
	return nil
}

func (s *server) forget(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.processes, p.id)
	s.order = slices.DeleteFunc(s.order, func(o *process) bool { return o == p })
}

func (s *server) find(id string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.processes[id]
}

func (p *process) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// change changes the process, and takes the next sequence number.
func (p *process) change(do func(seq uint64)) (seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seq = p.next
	p.next++
	do(seq)
	close(p.changed)
	p.changed = make(chan struct{})
	return seq
}

// end records the end of a process, and tells the client.
func (p *process) end(res *run.Result, err error) {
	p.sending.Lock()
	defer p.sending.Unlock()
	code := -1
	if res != nil {
		code = res.ExitCode
	}
	seq := p.change(func(uint64) {
		p.exited, p.code = true, code
		if err != nil && p.s.ctx.Err() == nil {
			p.failure = err.Error()
		}
	})
	p.s.notify("process/exited", map[string]any{"processId": p.id, "seq": seq, "exitCode": code, "sandboxDenied": false})
	seq = p.change(func(uint64) { p.closed = true })
	p.s.notify("process/closed", map[string]any{"processId": p.id, "seq": seq})
}

// output receives a stream of a process.
type output struct {
	p      *process
	stream string
}

func (o output) Write(data []byte) (int, error) {
	p := o.p
	select {
	case p.printed <- struct{}{}:
	default:
	}
	select {
	case <-p.opened:
	case <-p.s.ctx.Done():
		return len(data), nil
	}
	for part := range slices.Chunk(data, 64<<10) {
		part = slices.Clone(part)
		p.sending.Lock()
		seq := p.change(func(seq uint64) {
			p.chunks, p.kept = append(p.chunks, chunk{seq, o.stream, part}), p.kept+len(part)
			for p.kept > maxOutput || len(p.chunks) > maxChunks {
				p.kept -= len(p.chunks[0].Chunk)
				p.chunks[0] = chunk{}
				p.chunks = p.chunks[1:]
			}
		})
		p.s.notify("process/output", map[string]any{"processId": p.id, "seq": seq, "stream": o.stream, "chunk": part})
		p.sending.Unlock()
	}
	return len(data), nil
}

// longestWait bounds waitMs.
const longestWait = time.Minute

type readParams struct {
	ProcessID string `json:"processId"`
	AfterSeq  uint64 `json:"afterSeq"`
	MaxBytes  *int   `json:"maxBytes"`
	WaitMS    uint32 `json:"waitMs"`
}

// readProcess returns kept output after a sequence number; it waits for some.
func (s *server) readProcess(_ *session.Session, m message) (any, error) {
	asked, err := params[readParams](m)
	if err != nil {
		return nil, err
	}
	p := s.find(asked.ProcessID)
	if p == nil {
		return nil, fail(codeRequest, "unknown process id %.80q", asked.ProcessID)
	}
	timer := time.NewTimer(min(time.Duration(asked.WaitMS)*time.Millisecond, longestWait))
	defer timer.Stop()
	for {
		answer, ready, changed := p.read(asked)
		if ready {
			return answer, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return answer, nil
		case <-s.ctx.Done():
			return answer, nil
		}
	}
}

// read returns an answer to process/read, and whether it has something new.
func (p *process) read(asked readParams) (answer map[string]any, ready bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	chunks, total, next := []chunk{}, 0, p.next
	for _, c := range p.chunks {
		if c.Seq <= asked.AfterSeq {
			continue
		}
		if asked.MaxBytes != nil && len(chunks) > 0 && total+len(c.Chunk) > *asked.MaxBytes {
			break
		}
		chunks, total, next = append(chunks, c), total+len(c.Chunk), c.Seq+1
	}
	answer = map[string]any{"chunks": chunks, "nextSeq": next, "exited": p.exited, "exitCode": nil, "closed": p.closed,
		"failure": nil, "sandboxDenied": false}
	if p.exited {
		answer["exitCode"] = p.code
	}
	if p.failure != "" {
		answer["failure"] = p.failure
	}
	return answer, len(chunks) > 0 || p.closed || p.exited && asked.AfterSeq < next-1, p.changed
}

// writeInput queues input for a process.
func (s *server) writeInput(m message) (any, error) {
	asked, err := params[struct {
		ProcessID string `json:"processId"`
		Chunk     []byte `json:"chunk"`
	}](m)
	if err != nil {
		return nil, err
	}
	status := "accepted"
	switch p := s.find(asked.ProcessID); {
	case p == nil:
		status = "unknownProcess"
	case p.input == nil:
		status = "stdinClosed"
	default:
		switch err := p.input.add(asked.Chunk); {
		case errors.Is(err, io.ErrClosedPipe):
			status = "stdinClosed"
		case err != nil:
			return nil, err
		}
	}
	return map[string]any{"status": status}, nil
}

type processParams struct {
	ProcessID string `json:"processId"`
	Signal    string `json:"signal"`
}

func (s *server) signal(_ *session.Session, m message) (any, error) {
	asked, err := params[processParams](m)
	if err != nil {
		return nil, err
	}
	if asked.Signal != "interrupt" {
		return nil, fail(codeParams, "signal %.80q: must be interrupt", asked.Signal)
	}
	p := s.find(asked.ProcessID)
	if p == nil {
		return nil, fail(codeRequest, "unknown process id %.80q", asked.ProcessID)
	}
	_, err = p.kill(syscall.SIGINT)
	return map[string]any{}, err
}

func (s *server) terminate(_ *session.Session, m message) (any, error) {
	asked, err := params[processParams](m)
	if err != nil {
		return nil, err
	}
	running := false
	if p := s.find(asked.ProcessID); p != nil {
		running, err = p.kill(syscall.SIGKILL)
	}
	return map[string]any{"running": running}, err
}

// kill sends a signal to a process and reports whether it ran.
func (p *process) kill(sig syscall.Signal) (running bool, err error) {
	p.mu.Lock()
	r, exited := p.running, p.exited
	p.mu.Unlock()
	if r == nil || exited {
		return false, nil
	}
	if err := r.Signal(sig); err != nil {
		return false, nil // it has just ended
	}
	return true, nil
}

// input is the input of a process: what waits to be read, maxInput at most.
type input struct {
	mu     sync.Mutex
	filled *sync.Cond
	data   []byte
	over   bool
}

func newInput() *input {
	i := &input{}
	i.filled = sync.NewCond(&i.mu)
	return i
}

func (i *input) add(data []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.over:
		return io.ErrClosedPipe
	case len(i.data)+len(data) > maxInput:
		return fail(codeInternal, "%d bytes wait for the process to read them: try again", len(i.data))
	}
	i.data = append(i.data, data...)
	i.filled.Signal()
	return nil
}

func (i *input) Read(to []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.data) == 0 && !i.over {
		i.filled.Wait()
	}
	if len(i.data) == 0 {
		return 0, io.EOF
	}
	n := copy(to, i.data)
	i.data = slices.Clone(i.data[n:])
	return n, nil
}

func (i *input) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = true
	i.filled.Broadcast()
}
