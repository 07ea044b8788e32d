package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask/internal/nesting"
	"github.com/unitask/unitask/internal/pykernel"
)

// Times of a kernel.
const (
	startTime  = 5 * time.Minute  // in which Python must take code, under emulation, too
	lookupTime = 10 * time.Second // of a completion or an inspection, which may call the code
	endTime    = 5 * time.Second  // in which code must end after an interrupt of ours
)

// Limits of what Python sends.
const (
	maxNested    = 1000     // brackets in one another in a message
	maxMembers   = 1 << 20  // values of a message
	maxText      = 64 << 10 // bytes of a name, a prompt or a line
	maxTraceback = 2000     // lines
	maxMatches   = 5000     // of a completion
	mergedText   = 1 << 20  // bytes of printed text in one message to the clients
)

// output is a message of Python's, of any type. Nothing in it is trusted.
type output struct {
	Type    string `json:"type"`
	Version string `json:"version"`
	Text    string `json:"text"`

	Data     map[string]json.RawMessage `json:"data"`
	Metadata map[string]json.RawMessage `json:"metadata"`
	Display  string                     `json:"display"`
	Update   bool                       `json:"update"`
	Wait     bool                       `json:"wait"`

	Name      string   `json:"name"`
	Value     string   `json:"value"`
	Traceback []string `json:"traceback"`

	ID       int    `json:"id"`
	Prompt   string `json:"prompt"`
	Password bool   `json:"password"`

	Error       string                `json:"error"`
	Expressions map[string]expression `json:"expressions"`
	Pages       []string              `json:"pages"`
	Matches     []string              `json:"matches"`
	Start       int                   `json:"start"`
	End         int                   `json:"end"`
	State       string                `json:"state"`
	Indent      string                `json:"indent"`
}

// expression is the value of a user expression.
type expression struct {
	Status    string                     `json:"status"`
	Data      map[string]json.RawMessage `json:"data"`
	Name      string                     `json:"ename"`
	Value     string                     `json:"evalue"`
	Traceback []string                   `json:"traceback"`
}

// read reads a message of Python's.
func read(line []byte) (o output, err error) {
	if err = nesting.Check(line, maxNested, maxMembers); err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil {
		return o, fmt.Errorf("the kernel in the machine sent what no kernel does: %w", err)
	}
	o.Name, o.Prompt, o.Display = cut(o.Name, maxText), cut(o.Prompt, maxText), cut(o.Display, maxID)
	o.Traceback = o.Traceback[:min(len(o.Traceback), maxTraceback)]
	return o, nil
}

// cut returns the beginning of a text.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// begin starts the session and Python in it.
func (s *server) begin(ctx context.Context) (k *pykernel.Kernel, version string, err error) {
	box, err := s.Start(ctx) // which may install packages first
	if err != nil {
		return nil, "", fmt.Errorf("the machine did not start: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if k, err = pykernel.Start(ctx, box, pykernel.Options{Jupyter: true, Dir: s.Dir}); err != nil {
		return nil, "", fmt.Errorf("the machine's Python did not start: %w", err)
	}
	for {
		select {
		case <-k.More:
			for _, line := range k.Take() {
				o, err := read(line)
				switch {
				case err != nil:
					k.End()
					return nil, "", err
				case o.Type == "ready":
					return k, cut(o.Version, maxID), nil
				}
			}
		case <-k.Over:
			return nil, "", fmt.Errorf("the machine's Python did not start: %w", k.Err())
		case <-ctx.Done():
			k.End()
			return nil, "", fmt.Errorf("the machine's Python did not start within %s", startTime)
		}
	}
}

// operation is a request that Python carries out.
type operation struct {
	request *message
	line    map[string]any
	limit   time.Duration      // 0 means none
	show    func(output) error // what Python sends before its last answer
}

// errKernel means that Python ended while it ran code.
var errKernel = errors.New("the kernel ended while it ran the code: restart it, its variables are gone")

// run has Python carry out an operation, and returns its last answer. An error that is fatal ends the kernel.
func (s *server) run(op operation) (last output, fatal error) {
	line, err := json.Marshal(op.line)
	if err != nil {
		return last, err
	}
	var late, gone <-chan time.Time
	if op.limit > 0 {
		late = time.After(op.limit)
	}
	left, questions := maxPrinted, maxQuestions
	s.python.Send(line)
	defer s.ask("")
	for {
		select {
		case <-s.python.More:
			for _, text := range merge(s.python.Take()) {
				if text.err != nil {
					s.python.End()
					return last, text.err
				}
				if left -= text.size; left < 0 && gone == nil {
					gone = time.After(endTime)
					s.note(op.request, fmt.Sprintf("the code printed more than %d bytes, and was interrupted", maxPrinted))
					_ = s.python.Signal(syscall.SIGINT)
				}
				switch {
				case text.Type == "end":
					return text.output, nil
				case gone != nil: // nobody shall see more
				case text.Type == "input":
					if questions--; questions < 0 {
						s.answerInput(text.ID, "", "too many questions")
					} else {
						s.question(op.request, text.output)
					}
				case op.show != nil:
					if err := op.show(text.output); err != nil {
						return last, err
					}
				}
			}
		case value := <-s.inputs:
			s.answerInput(s.questionID, value, "")
		case <-late:
			late, gone = nil, time.After(endTime)
			_ = s.python.Signal(syscall.SIGINT)
		case <-gone:
			s.python.End()
			return last, fmt.Errorf("the code did not end within %s of an interrupt: %w", endTime, errKernel)
		case <-s.python.Over:
			return last, fmt.Errorf("%w: %w", errKernel, s.python.Err())
		case <-s.ctx.Done():
			return last, context.Cause(s.ctx)
		}
	}
}

// between shows what threads of the code print while no cell runs, below the cell before.
func (s *server) between() error {
	for _, text := range merge(s.python.Take()) {
		if text.err != nil {
			s.python.End()
			return text.err
		}
		if s.left -= text.size; s.left < 0 || s.last == nil {
			continue
		}
		if kind, content := s.shown(text.output, s.count); kind == "stream" || kind == "display_data" {
			s.publish(s.last, kind, content, true)
		}
	}
	return nil
}

// sized is a message of Python's, with the bytes that it had; err means that it was none.
type sized struct {
	output
	size int
	err  error
}

// merge reads messages, and makes one of pieces of printed text that follow each other.
func merge(lines [][]byte) []sized {
	var list []sized
	var text []byte // the text of the last of list, if it was printed
	for _, line := range lines {
		o, err := read(line)
		size := len(line) + pykernel.PieceCost
		n := len(list) - 1
		if n >= 0 && err == nil && (o.Type == "stdout" || o.Type == "stderr") && list[n].Type == o.Type &&
			list[n].err == nil && len(text)+len(o.Text) <= mergedText {
			text = append(text, o.Text...)
			list[n].size += size
			continue
		}
		endMerged(list, text)
		text = append(text[:0], o.Text...)
		list = append(list, sized{o, size, err})
	}
	endMerged(list, text)
	return list
}

// endMerged gives the last message its whole text.
func endMerged(list []sized, text []byte) {
	if n := len(list) - 1; n >= 0 && len(text) > len(list[n].Text) {
		list[n].Text = string(text)
	}
}

// question asks the client for a line of text.
func (s *server) question(m *message, o output) {
	var in struct {
		Allow *bool `json:"allow_stdin"`
	}
	_ = json.Unmarshal(m.content, &in)
	frames, err := s.encode(s.session, "input_request", m.header, map[string]any{"prompt": o.Prompt,
		"password": o.Password})
	s.questionID = o.ID
	s.ask(m.peer)
	if err != nil || in.Allow != nil && !*in.Allow || !s.stdin.Send(m.peer, frames) {
		s.ask("")
		s.answerInput(o.ID, "", "the client has no standard input")
	}
}

// ask says who may answer input(), and forgets an earlier answer.
func (s *server) ask(peer string) {
	s.mu.Lock()
	s.asked = peer
	s.mu.Unlock()
	select {
	case <-s.inputs:
	default:
	}
}

// answerInput sends the answer to a question to Python; refused, if not "", says that there is none.
func (s *server) answerInput(id int, value, refused string) {
	if len(value) > maxAnswer {
		refused = fmt.Sprintf("the answer has over %d bytes", maxAnswer)
	}
	answer := map[string]any{"input": id, "value": value}
	if refused != "" {
		answer = map[string]any{"input": id, "error": refused}
	}
	if line, err := json.Marshal(answer); err == nil {
		s.python.Send(line)
	}
}

// note prints a line of ours below a cell.
func (s *server) note(m *message, text string) {
	s.publish(m, "stream", map[string]any{"name": "stderr", "text": "unitask: " + text + "\n"}, false)
}

// ready waits for Python.
func (s *server) ready() error {
	select {
	case <-s.started:
		return s.err
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}
