package e2b

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/pykernel"
)

// Limits of the code interpreter.
const (
	maxContexts = 32              // of one sandbox
	maxCode     = 4 << 20         // bytes of a request
	maxPrinted  = 128 << 20       // bytes that one execution prints
	interrupts  = 5 * time.Second // how long code may take to end after an interrupt
)

// languages are the languages of contexts, by the names that clients use. Python has kernels of its own. The others
// are a session's interpreters, and so there is one context of each.
var languages = map[string]string{"": "python", "python": "python", "javascript": "javascript", "js": "javascript",
	"typescript": "typescript", "ts": "typescript", "bash": "bash", "shell": "bash"}

// stepLanguage is the language of a session's interpreter for a context's.
var stepLanguage = map[string]string{"javascript": "js", "typescript": "js", "bash": "shell"}

// codeContext is a context: variables that stay from one request to the next.
type codeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`

	turn   chan struct{}    // has an element while code runs
	kernel *pykernel.Kernel // of Python; nil until the first code. Who has the turn may use it.
	count  int              // executions so far; likewise
}

// contexts are a sandbox's code contexts.
type contexts struct {
	mu   sync.Mutex
	list []*codeContext
}

func newContext(language, cwd string) *codeContext {
	return &codeContext{ID: newToken(), Language: language, Cwd: cwd, turn: make(chan struct{}, 1)}
}

// all returns the contexts; the first two are there from the beginning.
func (c *contexts) all() []*codeContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin()
	return append([]*codeContext(nil), c.list...)
}

func (c *contexts) begin() {
	if c.list == nil {
		c.list = []*codeContext{newContext("python", homeOf(defaultUser)), newContext("javascript", homeOf(defaultUser))}
	}
}

// add adds a context.
func (c *contexts) add(language, cwd string) (*codeContext, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin()
	if len(c.list) >= maxContexts {
		return nil, &unitask.BusyError{What: fmt.Sprintf("the sandbox has %d contexts: remove one", maxContexts),
			After: time.Minute}
	}
	one := newContext(language, cwd)
	c.list = append(c.list, one)
	return one, nil
}

// find returns a context by its id, or the first one of a language, which is made if there is none.
func (c *contexts) find(id, language string) (*codeContext, error) {
	for _, one := range c.all() {
		if id != "" && one.ID == id || id == "" && one.Language == language {
			return one, nil
		}
	}
	if id != "" {
		return nil, nil
	}
	return c.add(language, homeOf(defaultUser))
}

func (c *contexts) remove(id string) *codeContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, one := range c.list {
		if one.ID == id {
			c.list = append(c.list[:i:i], c.list[i+1:]...)
			return one
		}
	}
	return nil
}

// interpreterRoutes returns the handler of a sandbox's code interpreter.
func (s *Server) interpreterRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, "OK") })
	mux.HandleFunc("POST /execute", s.execute)
	mux.HandleFunc("GET /contexts", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, sandboxOf(r.Context()).contexts.all())
	})
	mux.HandleFunc("POST /contexts", s.createContext)
	mux.HandleFunc("POST /contexts/{id}/restart", s.endContext(false))
	mux.HandleFunc("DELETE /contexts/{id}", s.endContext(true))
	return mux
}

func (s *Server) createContext(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Language string `json:"language"`
		Cwd      string `json:"cwd"`
	}
	if !readBody(w, r, &in) {
		return
	}
	language, ok := languages[strings.ToLower(in.Language)]
	if !ok {
		http.Error(w, fmt.Sprintf("language %.40q: use python, javascript, typescript or bash", in.Language),
			http.StatusBadRequest)
		return
	}
	one, err := sandboxOf(r.Context()).contexts.add(language, absolute(cmp.Or(in.Cwd, "~"), defaultUser))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, one)
}

// endContext ends a context's kernel, and removes the context if asked to. Its next code has a new kernel.
func (s *Server) endContext(remove bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		box, id := sandboxOf(r.Context()), r.PathValue("id")
		one, _ := box.contexts.find(id, "")
		if one == nil {
			http.Error(w, fmt.Sprintf("Context %.80s not found", id), http.StatusNotFound)
			return
		}
		if remove {
			box.contexts.remove(id)
		}
		select {
		case one.turn <- struct{}{}:
		case <-time.After(interrupts):
			http.Error(w, "the context runs code that does not end", http.StatusConflict)
			return
		case <-r.Context().Done():
			return
		}
		if one.kernel != nil {
			one.kernel.End()
			one.kernel, one.count = nil, 0
		}
		<-one.turn
		w.WriteHeader(http.StatusOK)
	}
}

// execution is a request to run code.
type execution struct {
	Code     string            `json:"code"`
	Context  string            `json:"context_id"`
	Language string            `json:"language"`
	Env      map[string]string `json:"env_vars"`
}

// execute runs code, and streams what it prints and results in.
func (s *Server) execute(w http.ResponseWriter, r *http.Request) {
	var in execution
	text := http.MaxBytesReader(w, r.Body, maxCode)
	if err := json.NewDecoder(text).Decode(&in); err != nil {
		http.Error(w, "the body: "+err.Error(), http.StatusBadRequest)
		return
	}
	language, ok := languages[strings.ToLower(in.Language)]
	switch {
	case in.Context != "" && in.Language != "":
		http.Error(w, "Only one of context_id or language can be provided", http.StatusBadRequest)
		return
	case !ok:
		http.Error(w, fmt.Sprintf("language %.40q: unitask has python, javascript, typescript and bash here", in.Language),
			http.StatusBadRequest)
		return
	case sizeOf(in.Env) > maxEnvironment || checkNames(in.Env) != nil:
		http.Error(w, fmt.Sprintf("env_vars: names of variables, and at most %d bytes", maxEnvironment),
			http.StatusBadRequest)
		return
	}
	box := sandboxOf(r.Context())
	if err := s.opts.Admit(box.caller); err != nil {
		s.fail(w, r, err)
		return
	}
	of, err := box.contexts.find(in.Context, language)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if of == nil {
		http.Error(w, fmt.Sprintf("Context %.80s not found", in.Context), http.StatusNotFound)
		return
	}
	select {
	case of.turn <- struct{}{}:
	case <-r.Context().Done():
		return
	}
	defer func() { <-of.turn }()
	out := newLines(w)
	defer out.close()
	run := box.runStep
	if of.Language == "python" {
		run = box.runCell
	}
	err = run(r.Context(), of, in, out)
	switch {
	case err != nil && (!box.ready() || r.Context().Err() != nil):
		cutOff()
	case err != nil:
		out.error("ExecutionError", err.Error(), "")
	}
	out.message(map[string]any{"type": "end_of_execution"})
}

// lines sends messages to a client, one in a line, and signs of life between them. Nobody who adds one waits for the
// client.
type lines struct {
	more chan struct{} // has an element if there is something new
	done chan struct{} // closed when the last one is written

	mu    sync.Mutex
	queue [][]byte
	size  int
	over  bool // no further messages come
	lost  bool // the client left too much unread
}

// signOfLife is the time between signs of life.
const signOfLife = 5 * time.Second

func newLines(w http.ResponseWriter) *lines {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	l := &lines{more: make(chan struct{}, 1), done: make(chan struct{})}
	go l.write(w, http.NewResponseController(w))
	return l
}

// write writes the messages until close.
func (l *lines) write(w http.ResponseWriter, control *http.ResponseController) {
	defer close(l.done)
	ticker := time.NewTicker(signOfLife)
	defer ticker.Stop()
	_ = control.Flush()
	for {
		list, over := l.take()
		for _, text := range list {
			_, _ = w.Write(text)
		}
		if len(list) > 0 {
			_ = control.Flush()
		}
		if over {
			return
		}
		select {
		case <-l.more:
		case <-ticker.C:
			l.message(map[string]any{"type": "keepalive"})
		}
	}
}

func (l *lines) take() (list [][]byte, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list, l.queue, l.size = l.queue, nil, 0
	return list, l.over || l.lost
}

// close waits until the client has everything. A client that left too much unread is cut off.
func (l *lines) close() {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.wake()
	<-l.done
	l.mu.Lock()
	lost := l.lost
	l.mu.Unlock()
	if lost {
		cutOff()
	}
}

func (l *lines) wake() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

func (l *lines) message(of any) {
	text, err := json.Marshal(of)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.lost {
		return
	}
	if l.size += len(text) + pieceCost; l.size > pykernel.MaxQueued {
		l.queue, l.size, l.lost = nil, 0, true
	} else {
		l.queue = append(l.queue, append(text, '\n'))
	}
	l.wake()
}

func (l *lines) error(name, value, traceback string) {
	l.message(map[string]any{"type": "error", "name": name, "value": value, "traceback": traceback})
}

// printed sends a stream's output as messages.
type printed struct {
	to   *lines
	kind string
	kept bytes.Buffer // the beginning
}

// maxKept bounds what is kept of a stream to describe an error.
const maxKept = 64 << 10

func (p *printed) Write(text []byte) (int, error) {
	p.kept.Write(text[:min(len(text), maxKept-p.kept.Len())])
	p.to.message(map[string]any{"type": p.kind, "text": strings.ToValidUTF8(string(text), "\ufffd"),
		"timestamp": time.Now().UnixNano()})
	return len(text), nil
}

// runStep runs code in a session's interpreter.
func (box *sandbox) runStep(ctx context.Context, of *codeContext, in execution, out *lines) error {
	of.count++
	out.message(map[string]any{"type": "number_of_executions", "execution_count": of.count})
	stdout, stderr := &printed{to: out, kind: "stdout"}, &printed{to: out, kind: "stderr"}
	if of.count == 1 {
		first := "cd " + shellQuoted(of.Cwd)
		if of.Language != "bash" {
			first = fmt.Sprintf("process.chdir(%q)", of.Cwd)
		}
		if err := box.quietly(ctx, of, first+"\n"+assignments(of.Language, box.envs, nil)); err != nil {
			return err
		}
	}
	if len(in.Env) > 0 {
		if err := box.quietly(ctx, of, assignments(of.Language, in.Env, nil)); err != nil {
			return err
		}
		defer func() { _ = box.quietly(ctx, of, assignments(of.Language, in.Env, box.restored(in.Env))) }()
	}
	res, err := box.session.Run(ctx, unitask.Step{Code: in.Code, Language: stepLanguage[of.Language],
		Stdout: stdout, Stderr: stderr, ResultBytes: 1})
	if err != nil {
		return err
	}
	if res.Value != "" && res.Value != "undefined" {
		out.message(map[string]any{"type": "result", "text": unquoted(res.Value), "is_main_result": true,
			"extra": map[string]string{}})
	}
	if res.ExitCode != 0 && of.Language != "bash" {
		name, value := thrown(stderr.kept.String())
		out.error(name, value, stderr.kept.String())
	}
	return nil
}

// quietly runs code of this server's in an interpreter.
func (box *sandbox) quietly(ctx context.Context, of *codeContext, code string) error {
	_, err := box.session.Run(ctx, unitask.Step{Code: code, Language: stepLanguage[of.Language], ResultBytes: 1})
	return err
}

// restored returns the values that variables have between executions.
func (box *sandbox) restored(env map[string]string) map[string]string {
	values := map[string]string{}
	for name := range env {
		if value, ok := box.envs[name]; ok {
			values[name] = value
		}
	}
	return values
}

// assignments returns code that sets variables: to the values of a second map, if it is not nil. A variable that it
// lacks is removed.
func assignments(language string, env, values map[string]string) string {
	if values == nil {
		values = env
	}
	var code strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value, set := values[name]
		quotedName, _ := json.Marshal(name)
		quoted, _ := json.Marshal(value)
		switch {
		case language == "bash" && set:
			fmt.Fprintf(&code, "export %s\n", shellQuoted(name+"="+value))
		case language == "bash":
			fmt.Fprintf(&code, "unset %s\n", shellQuoted(name))
		case set:
			fmt.Fprintf(&code, "process.env[%s] = %s\n", quotedName, quoted)
		default:
			fmt.Fprintf(&code, "delete process.env[%s]\n", quotedName)
		}
	}
	return code.String()
}

// shellQuoted returns a text as one word of a shell.
func shellQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// unquoted returns a text value without its quotes.
func unquoted(text string) string {
	if n := len(text); n > 1 && text[0] == text[n-1] && strings.ContainsRune("'\"`", rune(text[0])) {
		return text[1 : n-1]
	}
	return text
}

var errorLine = regexp.MustCompile(`(?m)^(?:Uncaught )?([A-Za-z]*(?:Error|Exception)): (.*)$`)

// thrown returns the name and message of the error in what an interpreter printed.
func thrown(text string) (name, value string) {
	if m := errorLine.FindStringSubmatch(text); m != nil {
		return m[1], m[2]
	}
	return "Error", strings.TrimSpace(text)
}

// errKernel means that a kernel ended before its code did.
var errKernel = errors.New("the kernel ended while it ran the code: variables are gone, " +
	"and the next code has a new one")
