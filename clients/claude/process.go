package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync"
)

// maxOutput is how many bytes of a command's output the model gets: the last ones.
const maxOutput = 100 << 10

// errCut means that a command printed more than its caller takes.
var errCut = errors.New("the command printed too much")

// process is a command in the machine.
type process struct {
	m  *machine
	id string

	mu     sync.Mutex
	out    []byte
	keep   int  // bytes of out at most
	cut    bool // out has lost its begin
	total  int  // bytes that it has printed
	code   int
	closed bool
	news   chan struct{} // an element if something has changed
}

// start starts a command in a folder. keep is how many of its last bytes are kept; both streams are in out.
func (m *machine) start(ctx context.Context, keep int, input bool, args ...string) (*process, error) {
	p := &process{m: m, id: rand.Text(), keep: keep, news: make(chan struct{}, 1)}
	m.hear(p.id, p.take)
	err := m.call(ctx, "process/start", map[string]any{"processId": p.id, "argv": args, "cwd": fileURI(m.dir),
		"env": map[string]string{}, "envPolicy": map[string]any{"set": map[string]string{"TERM": "dumb"}},
		"pipeStdin": input}, nil)
	if err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

// take notes an event. The machine's reader calls it, so it must not wait.
func (p *process) take(e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.method {
	case "process/output":
		p.out, p.total = append(p.out, e.Chunk...), p.total+len(e.Chunk)
		if over := len(p.out) - p.keep; over > 0 {
			p.out, p.cut = append([]byte(nil), p.out[over:]...), true
		}
	case "process/exited":
		p.code = e.ExitCode
	case "process/closed":
		p.closed = true
	}
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// wait waits until something has changed, and reports whether the process goes on.
func (p *process) wait(ctx context.Context) (bool, error) {
	select {
	case <-p.news:
	case <-p.m.ended:
		return false, p.m.lost()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.closed, nil
}

// end kills the command and forgets it.
func (p *process) end() {
	p.m.hear(p.id, nil)
	ctx, stop := context.WithTimeout(context.Background(), killTime)
	defer stop()
	_ = p.m.call(ctx, "process/terminate", map[string]any{"processId": p.id}, nil)
}

// output runs a command to its end, and returns what it printed and its exit code.
func (m *machine) output(ctx context.Context, keep int, args ...string) (string, int, error) {
	p, err := m.start(ctx, keep, false, args...)
	if err != nil {
		return "", 0, err
	}
	for goes := true; goes; {
		if goes, err = p.wait(ctx); err != nil {
			p.end()
			return "", 0, err
		}
	}
	p.m.hear(p.id, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return string(p.out), p.code, errCut
	}
	return string(p.out), p.code, nil
}

// shell is a bash that keeps its folder, variables and functions from one command to the next.
type shell struct{ *process }

// startShell starts one. Its two streams are one.
func (m *machine) startShell(ctx context.Context) (*shell, error) {
	args := []string{m.shell}
	if m.shell == "/bin/bash" {
		args = append(args, "--noprofile", "--norc")
	}
	p, err := m.start(ctx, maxOutput, true, args...)
	if err != nil {
		return nil, err
	}
	return &shell{p}, p.write(ctx, "exec 2>&1\n")
}

func (p *process) write(ctx context.Context, text string) error {
	var got struct{ Status string }
	err := p.m.call(ctx, "process/write", map[string]any{"processId": p.id, "chunk": []byte(text)}, &got)
	if err == nil && got.Status != "accepted" {
		err = errors.New("the shell has ended")
	}
	return err
}

// run runs a command, and returns what it printed and its exit code. It reads no input. A line with random letters
// marks the end; a command that prints such a line has its own exit code wrong.
func (s *shell) run(ctx context.Context, command string) (text string, code int, err error) {
	mark := "\n" + rand.Text()
	s.mu.Lock()
	s.out, s.cut, s.total = nil, false, 0
	s.mu.Unlock()
	line := fmt.Sprintf("eval %s </dev/null\nprintf '\\n%s%%d\\n' \"$?\"\n", quote(command), mark[1:])
	if err := s.write(ctx, line); err != nil {
		return "", 0, err
	}
	for seen := 0; ; {
		goes, err := s.wait(ctx)
		s.mu.Lock()
		from := max(0, len(s.out)-(s.total-seen))
		text, code, is := ended(s.out, from, mark)
		seen = max(0, s.total-len(mark)-len("255\n"))
		if s.cut {
			text = "[output truncated]\n" + text
		}
		s.mu.Unlock()
		switch {
		case is:
			return text, code, nil
		case err != nil:
			return text, 0, err
		case !goes:
			return text, 0, errors.New("the shell has ended")
		}
	}
}

// ended looks for the mark in an output, from a place on, and returns what was printed before it, and the exit code.
func ended(out []byte, from int, mark string) (text string, code int, is bool) {
	at := bytes.Index(out[from:], []byte(mark))
	if at < 0 {
		return string(out), 0, false
	}
	digits, _, whole := bytes.Cut(out[from+at+len(mark):], []byte("\n"))
	code, err := strconv.Atoi(string(digits))
	return string(out[:from+at]), code, whole && err == nil
}
