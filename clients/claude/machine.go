package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	maxAnswer = 64 << 20         // bytes of a message of unitask
	endTime   = 3 * time.Minute  // for the changes of a project to leave the machine
	lastWords = 4 << 10          // bytes of what unitask says on stderr
	startTime = 10 * time.Minute // for a machine, whose image may be built first
)

// machine is a session of unitask: a child process that speaks the exec-server protocol (JSON-RPC, a message a line).
type machine struct {
	child *exec.Cmd
	in    io.WriteCloser
	said  *tail
	ready chan struct{} // closed when dir, shell and failed are set
	ended chan struct{} // closed when the child has ended
	exit  error         // of the child; set before ended is closed

	dir, shell string // the working folder, and the shell
	failed     error

	writing sync.Mutex

	mu        sync.Mutex
	next      int
	waiting   map[int]chan answer
	processes map[string]func(event)
}

// answer is a message of the child: an answer, or a notification.
type answer struct {
	ID     int             `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
	Method string `json:"method"`
	Params event  `json:"params"`
}

// event is what happened to a process: it has printed (Chunk), exited, or closed its output.
type event struct {
	ProcessID string `json:"processId"`
	Chunk     []byte `json:"chunk"`
	ExitCode  int    `json:"exitCode"`
	method    string
}

// startMachine starts a machine, and puts files into its working folder. Its first use waits for that.
func startMachine(program string, flags []string, files []file) *machine {
	m := &machine{child: exec.Command(program, append([]string{"codex-exec"}, flags...)...), said: &tail{},
		ready: make(chan struct{}), ended: make(chan struct{}), waiting: map[int]chan answer{},
		processes: map[string]func(event){}}
	m.child.Env = withoutKeys(os.Environ())
	m.child.Stderr = m.said
	m.child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends it by its input
	out, err := m.child.StdoutPipe()
	if err == nil {
		m.in, err = m.child.StdinPipe()
	}
	if err == nil {
		err = m.child.Start()
	}
	if err != nil {
		m.failed = err
		close(m.ended)
		close(m.ready)
		return m
	}
	go m.read(out)
	go func() {
		defer close(m.ready)
		ctx, stop := context.WithTimeout(context.Background(), startTime)
		defer stop()
		if m.failed = m.initialize(ctx); m.failed == nil {
			m.failed = m.bring(ctx, files)
		}
	}()
	return m
}

// withoutKeys leaves out the platform's keys: unitask needs none of them.
func withoutKeys(env []string) (kept []string) {
	for _, v := range env {
		if !strings.HasPrefix(v, "ANTHROPIC_") {
			kept = append(kept, v)
		}
	}
	return kept
}

func (m *machine) initialize(ctx context.Context) error {
	var about struct {
		EnvironmentInfo struct {
			Cwd   string
			Shell struct{ Path string }
		}
	}
	err := m.call(ctx, "initialize", map[string]any{"clientName": "unitask-worker-claude"}, &about)
	if err != nil {
		return err
	}
	where, err := url.Parse(about.EnvironmentInfo.Cwd)
	if err != nil || where.Path == "" {
		return fmt.Errorf("unitask names %q as the working folder", about.EnvironmentInfo.Cwd)
	}
	m.dir, m.shell = where.Path, about.EnvironmentInfo.Shell.Path
	return m.call(ctx, "fs/getMetadata", map[string]any{"path": fileURI(m.dir)}, nil) // waits for the machine
}

// wait waits until the machine can be used, and returns why it can't.
func (m *machine) wait(ctx context.Context) error {
	select {
	case <-m.ready:
	case <-ctx.Done():
		return errors.New("the machine is still starting: try again")
	}
	if m.failed != nil {
		return fmt.Errorf("the machine did not start: %w", m.failed)
	}
	return nil
}

// read hands out the child's messages, until its end.
func (m *machine) read(out io.Reader) {
	defer close(m.ended)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxAnswer)
	for lines.Scan() {
		var a answer
		if json.Unmarshal(lines.Bytes(), &a) != nil {
			continue
		}
		m.mu.Lock()
		to, hear := m.waiting[a.ID], m.processes[a.Params.ProcessID]
		if a.Method == "" {
			delete(m.waiting, a.ID)
		}
		m.mu.Unlock()
		switch {
		case a.Method == "" && to != nil:
			to <- a
		case a.Method != "" && hear != nil:
			a.Params.method = a.Method
			hear(a.Params)
		}
	}
	if lines.Err() != nil { // nobody hears it any more
		_ = m.child.Process.Kill()
	}
	m.exit = m.child.Wait() // all that it said on stderr is here then
}

// call makes a request, and decodes its result unless result is nil.
func (m *machine) call(ctx context.Context, method string, params, result any) error {
	got := make(chan answer, 1)
	m.mu.Lock()
	m.next++
	id := m.next
	m.waiting[id] = got
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.waiting, id)
		m.mu.Unlock()
	}()
	line, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	if err != nil {
		return err
	}
	m.writing.Lock()
	_, err = m.in.Write(append(line, '\n'))
	m.writing.Unlock()
	if err != nil {
		return m.lost()
	}
	select {
	case a := <-got:
		if a.Error != nil {
			return errors.New(a.Error.Message)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(a.Result, result)
	case <-m.ended:
		return m.lost()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lost is the error of a machine that has ended, with what unitask said last.
func (m *machine) lost() error {
	select { // until then it may say why
	case <-m.ended:
	case <-time.After(killTime):
	}
	return fmt.Errorf("the machine has ended: %s", strings.TrimSpace(m.said.String()))
}

// hear has a function called for each event of a process, until nil takes its place.
func (m *machine) hear(id string, with func(event)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if with == nil {
		delete(m.processes, id)
		return
	}
	m.processes[id] = with
}

// close ends the machine and waits for its end.
func (m *machine) close() error {
	if m.child.Process == nil {
		return nil
	}
	_ = m.in.Close()
	kill := time.AfterFunc(endTime, func() { _ = m.child.Process.Kill() })
	defer kill.Stop()
	<-m.ended
	if m.exit != nil {
		return fmt.Errorf("unitask: %w: %s", m.exit, strings.TrimSpace(m.said.String()))
	}
	return nil
}

func fileURI(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - lastWords; over > 0 {
		t.text = append([]byte(nil), t.text[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
