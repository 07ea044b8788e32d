package mcp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/policy"
)

// fork forks a caller's session.
func (s *Server) fork(ctx context.Context, caller unitask.Caller, of *heldSession, count int) error {
	forks, err := of.Fork(ctx, count)
	for _, f := range forks {
		s.keep(f, caller)
	}
	return err
}

// runStep runs a call's code in a session, which it may start. The session is nil if none lives afterwards.
func (s *Server) runStep(ctx context.Context, caller unitask.Caller, names []string, in runArgs, run unitask.Request,
	printed *streams, approve unitask.Approver, events func(unitask.Event)) (*unitask.Result, *heldSession, error) {
	if in.Session != newSession && !in.onlyStep() {
		return nil, nil, errors.New("a session has had its machine, network, packages and secrets since it began: " +
			"with session send code, language, files, dirs and timeoutSeconds only")
	}
	if in.Session == newSession && (len(in.Args) > 0 || in.Stdin != "" || in.Check || in.Filename != "") {
		return nil, nil, errors.New("args, stdin, check and filename do not go with session")
	}
	var of *heldSession
	var err error
	if in.Session == newSession {
		of, err = s.newSession(ctx, caller, run, events)
	} else {
		of, err = s.reach(ctx, caller, names, in.Session)
	}
	if err != nil {
		return nil, nil, err
	}
	step := unitask.Step{Code: run.Code, Language: in.Language, Timeout: of.limit(run.Timeout), Stdout: &printed.stdout,
		Stderr: &printed.stderr, ResultBytes: 1, Approve: approve}
	if in.Session != newSession {
		step.Files, step.Dirs, step.InlineFiles = run.Files, run.Dirs, run.InlineFiles
	}
	if in.Session == newSession {
		step.Timeout = min(step.Timeout, of.LongestStep()) // more than that is denied
	}
	res, err := of.Run(ctx, step)
	if err != nil && in.Session == newSession { // the caller never learns an id
		err = errors.Join(err, of.Close())
		s.held.drop(of.ID)
		return res, nil, err
	}
	if res != nil && in.Session == newSession {
		res.Policy.Denials = of.Policy.Denials
	}
	return res, of, err
}

// limit returns the time limit of a step that may request one.
func (s *heldSession) limit(asked time.Duration) time.Duration {
	return cmp.Or(asked, min(policy.DefaultTimeout, s.LongestStep()))
}

// newSession is the value of run_code's session that starts one.
const newSession = "new"

// onlyStep reports whether a call requests nothing that must be set at a session's start.
func (in runArgs) onlyStep() bool {
	return in.Image == "" && len(in.Packages) == 0 && !in.Check && len(in.Args) == 0 && in.Stdin == "" &&
		in.Filename == "" && len(in.Env) == 0 && len(in.AllowNet) == 0 && len(in.AllowHTTP) == 0 && len(in.AllowTCP) == 0 &&
		len(in.Secrets) == 0 && len(in.Tools) == 0 && in.MemoryMB == 0 && in.MaxProcesses == 0
}

// commandArgs are session_command's arguments.
type commandArgs struct {
	Session        string            `json:"session"`
	Command        string            `json:"command"`
	Cwd            string            `json:"cwd,omitempty"`
	Stdin          string            `json:"stdin,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	TimeoutSeconds float64           `json:"timeoutSeconds,omitempty"`
	MaxOutput      *int              `json:"maxOutput,omitempty"`
	Background     bool              `json:"background,omitempty"`
}

var commandDescriptions = map[string]string{
	"session":        "the session's id, which run_code with session new gives",
	"command":        "a command line for the machine's shell",
	"cwd":            "the folder it runs in; /work if not given",
	"stdin":          "standard input",
	"env":            "environment variables beside the session's",
	"timeoutSeconds": "time limit in seconds; 60 if not given, in the background none",
	"maxOutput":      aboutMaxOutput,
	"background":     "leave it running: the answer has its id, for wait_command",
}

// filesArgs are session_files' arguments, with the names of Anthropic's text editor tool.
type filesArgs struct {
	Session   string `json:"session"`
	Op        string `json:"op"`
	Path      string `json:"path"`
	FileText  string `json:"file_text,omitempty"`
	OldStr    string `json:"old_str,omitempty"`
	NewStr    string `json:"new_str,omitempty"`
	InsertAt  int    `json:"insert_line,omitempty"`
	Insert    string `json:"insert_text,omitempty"`
	ViewRange []int  `json:"view_range,omitempty"`
}

var filesDescriptions = map[string]string{
	"session": "the session's id",
	"op": "view shows a file with line numbers, or a folder. create makes or replaces a file. " +
		"str_replace replaces a text that occurs exactly once. remove removes a file or a folder",
	"path":        "a path in the machine; a relative one begins at /work",
	"file_text":   "of create: the file's text",
	"old_str":     "of str_replace: the text that is replaced",
	"new_str":     "of str_replace: what takes its place",
	"insert_line": "of insert: the line that the text goes behind; 0 is the beginning",
	"insert_text": "of insert: the text",
	"view_range":  "of view: the first and the last line, from 1 on; -1 is the end",
}

// sessionArgs are manage_session's arguments.
type sessionArgs struct {
	Op          string  `json:"op"`
	Session     string  `json:"session,omitempty"`
	LifeSeconds float64 `json:"lifeSeconds,omitempty"`
	Count       int     `json:"count,omitempty"`
	Path        string  `json:"path,omitempty"`
	To          string  `json:"to,omitempty"`
	ToPath      string  `json:"toPath,omitempty"`
	Run         string  `json:"run,omitempty"`
	Name        string  `json:"name,omitempty"`
	Value       any     `json:"value,omitempty"`
}

var sessionDescriptions = map[string]string{
	"op": "extend has a session live for lifeSeconds from now on. pause frees its memory until its next use. " +
		"fork starts copies that go on from where it is. stop ends a command in the background. " +
		"copy copies a file or a folder to another session. " +
		"put gives code of every language a value, as /work/.values/NAME.json; get reads one",
	"session":     "of all but list: its id",
	"lifeSeconds": "of extend: how long it lives from now on, in seconds",
	"count":       "of fork: how many copies; 1 if not given",
	"path":        "of copy: what is copied; a relative path begins at /work",
	"to":          "of copy: the other session's id; the same one if not given",
	"toPath":      "of copy: its path there; path if not given. A folder's name must not be taken",
	"run":         "of stop: the id of the command's run",
	"name":        "of put and get: the value's name, letters, digits, _ and -; get without it gives all names",
	"value":       "of put: the value, any JSON",
}

// filesResult is the result of files.
type filesResult struct {
	Text      string    `json:"text" jsonschema:"what is shown, or was done"`
	ExpiresAt time.Time `json:"expiresAt" jsonschema:"the end of the session"`
}

type sessionsResult struct {
	Sessions  []SessionView `json:"sessions,omitzero"`
	ExpiresAt time.Time     `json:"expiresAt,omitzero" jsonschema:"of copy, put and get: the end of the session"`
	Value     any           `json:"value,omitempty" jsonschema:"of get: the value"` // clients refuse the schema true
	Names     []string      `json:"names,omitempty"`                                // of get without a name
	More      bool          `json:"more,omitempty" jsonschema:"there are other names: ls /work/.values lists them"`
}

func (s *Server) addSessionTools() {
	yes, no := true, false
	addTool(s, &sdk.Tool{
		Name: "session_command", Title: "Run a command",
		Description: "Run a command line in a session's machine, beside its interpreters. Returns stdout, stderr and " +
			"the exit code. With background its run's id comes at once, and wait_command has what it prints.",
		InputSchema: inputSchema[commandArgs](commandDescriptions, func(p map[string]*jsonschema.Schema) {
			boundMaxOutput(p)
			_, longest := policy.FieldOf("timeoutMs").Bounds()
			p["timeoutSeconds"].ExclusiveMinimum, p["timeoutSeconds"].Maximum = float(0), &longest
		}),
		OutputSchema: commandSchema(),
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: false, DestructiveHint: &no, IdempotentHint: false,
			OpenWorldHint: &yes},
	}, told(s, s.runCommand))
	s.addWait()
	addTool(s, &sdk.Tool{
		Name: "session_files", Title: "Read and edit files",
		Description: "View, create, edit, list and remove files of a session's machine.",
		InputSchema: inputSchema[filesArgs](filesDescriptions, func(p map[string]*jsonschema.Schema) {
			p["op"].Enum = anys([]string{"view", "create", "str_replace", "insert", "list", "remove"})
		}),
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: false, DestructiveHint: &yes, IdempotentHint: false,
			OpenWorldHint: &no},
	}, told(s, s.files))
	addTool(s, &sdk.Tool{
		Name: "manage_session", Title: "List, extend, pause, fork and end sessions",
		Description: "List your sessions, machines that keep variables and files between calls. Extend, pause, fork or " +
			"end one; pass files and values between them. run_code with session new starts one.",
		InputSchema: inputSchema[sessionArgs](sessionDescriptions, func(p map[string]*jsonschema.Schema) {
			p["op"].Enum = anys([]string{"list", "extend", "pause", "fork", "end", "stop", "copy", "put", "get"})
			p["lifeSeconds"].Minimum, p["lifeSeconds"].Maximum = float(1), float(86400)
			p["count"].Minimum, p["count"].Maximum = float(1), float(unitask.MaxForks)
		}),
		OutputSchema: outputSchema[sessionsResult](nil),
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: false, DestructiveHint: &yes, IdempotentHint: false,
			OpenWorldHint: &no},
	}, told(s, s.session))
}

const (
	// maxShownFile bounds what view shows, in bytes.
	maxShownFile = usualShown
	// maxToolFile bounds a file that files views or edits, and maxFileCalls the calls that hold such files at
	// once.
	maxToolFile  = 8 << 20
	maxFileCalls = 4 // calls at once
)

func (s *Server) files(ctx context.Context, req *sdk.CallToolRequest, in filesArgs) (*sdk.CallToolResult, filesResult,
	error) {
	caller := s.caller(req.Extra)
	of, err := s.reach(ctx, caller, callerNames(req.Extra), in.Session)
	if err != nil {
		return nil, filesResult{}, err
	}
	leave, err := s.filing.enter(ctx, caller.Name)
	if err != nil {
		return nil, filesResult{}, err
	}
	defer leave()
	text, err := editFiles(ctx, of.Session, in)
	if err != nil {
		return nil, filesResult{}, err
	}
	out := filesResult{of.Redact(text), of.view().ExpiresAt}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: out.Text}}}, out, nil
}

// readTool reads a file that is not too large for a tool.
func readTool(ctx context.Context, of *unitask.Session, name string) ([]byte, error) {
	text, err := of.ReadFile(ctx, name, 0, maxToolFile+1)
	if err == nil && len(text) > maxToolFile {
		err = fmt.Errorf("%s has more than %d bytes: session_command can show or edit a part of it, as by sed", name,
			maxToolFile)
	}
	return text, err
}

// editFiles does what a call requests and returns a message.
func editFiles(ctx context.Context, of *unitask.Session, in filesArgs) (string, error) {
	if in.Path == "" {
		return "", errors.New("path is empty")
	}
	switch in.Op {
	case "view":
		text, err := readTool(ctx, of, in.Path)
		if errors.Is(err, syscall.EISDIR) {
			list, more, err := of.List(ctx, in.Path, 2)
			return listing(list, more), err
		}
		if err != nil {
			return "", err
		}
		return numbered(text, of.Redact, in.ViewRange)
	case "list":
		list, more, err := of.List(ctx, in.Path, 1)
		return listing(list, more), err
	case "create":
		return in.Path + " is written", of.WriteFile(ctx, in.Path, []byte(in.FileText), 0o644)
	case "str_replace":
		if _, err := readTool(ctx, of, in.Path); err != nil {
			return "", err
		}
		return in.Path + " is edited", of.Edit(ctx, in.Path, in.OldStr, in.NewStr)
	case "insert":
		text, err := readTool(ctx, of, in.Path)
		if err == nil {
			text, err = inserted(text, in.InsertAt, in.Insert)
		}
		if err != nil {
			return "", err
		}
		return in.Path + " is edited", of.WriteFile(ctx, in.Path, text, 0o644)
	case "remove":
		return in.Path + " is removed", of.Remove(ctx, in.Path)
	}
	return "", fmt.Errorf("op %.40q: use view, create, str_replace, insert, list or remove", in.Op)
}

// inserted returns a text with another one inserted after the line of that number.
func inserted(text []byte, line int, more string) ([]byte, error) {
	at, seen := 0, 0
	for seen < line && at < len(text) {
		n := bytes.IndexByte(text[at:], '\n')
		if n < 0 {
			n = len(text) - at - 1
		}
		at, seen = at+n+1, seen+1
	}
	if line != seen {
		return nil, fmt.Errorf("insert_line %d: the file has %d lines", line, seen)
	}
	head := text[:at:at]
	if at > 0 && text[at-1] != '\n' {
		head = append(head, '\n')
	}
	if !strings.HasSuffix(more, "\n") {
		more += "\n"
	}
	return slices.Concat(head, []byte(more), text[at:]), nil
}

// numbered returns lines with their numbers. redact comes before the cut: it does not find a value that is cut.
func numbered(text []byte, redact func(string) string, span []int) (string, error) {
	if !utf8.Valid(text) {
		return "", fmt.Errorf("the file has %d bytes and is not UTF-8 text: session_command can show it, as by od",
			len(text))
	}
	given := bytes.Count(text, []byte{'\n'})
	text = []byte(redact(string(text)))
	lines := bytes.Count(text, []byte{'\n'})
	joined := given != lines
	if len(text) > 0 && text[len(text)-1] != '\n' {
		lines++
	}
	from, to := 1, lines
	if len(span) == 2 {
		from, to = span[0], span[1]
		if to == -1 || to > lines {
			to = lines
		}
	}
	if len(span) != 0 && len(span) != 2 || from < 1 || from > to+1 {
		return "", fmt.Errorf("view_range %v: give the first and the last line, from 1 to %d", span, lines)
	}
	var b strings.Builder
	i := 0
	for line := range bytes.Lines(text) {
		if i++; i < from {
			continue
		}
		if i > to {
			break
		}
		if b.Len()+len(line) > maxShownFile && b.Len() > 0 {
			fmt.Fprintf(&b, "(shown to line %d of %d: view_range shows more)\n", i-1, lines)
			break
		}
		if len(line) > maxShownFile {
			fmt.Fprintf(&b, "%6d\t%s…\n(line %d has %d bytes: session_command can show the rest)\n", i,
				strings.ToValidUTF8(string(line[:maxShownFile]), ""), i, len(line))
			continue
		}
		fmt.Fprintf(&b, "%6d\t%s", i, line)
	}
	if joined {
		b.WriteString("\n(a secret of several lines is one here, and the file has other numbers: edit with str_replace)\n")
	}
	return b.String(), nil
}

// listing returns a list of files, a line each.
func listing(list []unitask.SessionFile, more bool) string {
	var b strings.Builder
	for _, f := range list {
		fmt.Fprintf(&b, "%s %9d  %s\n", f.Mode, f.Size, visible(f.Path))
		if b.Len() > maxShownFile {
			more = true
			break
		}
	}
	if more {
		b.WriteString("(there are more)\n")
	}
	if b.Len() == 0 {
		return "(empty)\n"
	}
	return b.String()
}

func (s *Server) session(ctx context.Context, req *sdk.CallToolRequest, in sessionArgs) (*sdk.CallToolResult,
	sessionsResult, error) {
	caller := s.caller(req.Extra)
	if in.Op == "list" {
		return nil, s.sessionsOf(caller), nil
	}
	if in.Op == "end" {
		return s.endSession(caller, in.Session)
	}
	if r := s.rounds.detached(in.Run, caller.Name); r != nil && in.Op == "stop" && in.Session == "" {
		r.stop()
		return nil, s.sessionsOf(caller), nil
	}
	of, err := s.reach(ctx, caller, callerNames(req.Extra), in.Session)
	if err != nil {
		return nil, sessionsResult{}, err
	}
	switch in.Op {
	case "pause":
		err = of.Pause(ctx)
	case "extend":
		err = of.Extend(ctx, time.Duration(in.LifeSeconds*float64(time.Second)))
	case "stop":
		err = of.Stop(ctx, in.Run)
	case "fork":
		err = s.fork(ctx, caller, of, cmp.Or(in.Count, 1))
	default: // copy, put, get
		return s.pass(ctx, caller, of, in, req)
	}
	if err != nil {
		return nil, sessionsResult{}, err
	}
	return nil, s.sessionsOf(caller), nil
}

func (s *Server) endSession(caller unitask.Caller, id string) (*sdk.CallToolResult, sessionsResult, error) {
	if err := s.end(caller, id); err != nil {
		return nil, sessionsResult{}, err
	}
	return nil, s.sessionsOf(caller), nil
}

// end ends a caller's session, whether it is held here or was left paused.
func (s *Server) end(caller unitask.Caller, id string) error {
	of, err := s.held.find(id, caller.Name)
	switch {
	case err == nil:
		err = of.Close()
		s.held.drop(of.ID)
	default:
		if left, e := paused.Find(s.rt.Images().Home(), id); e == nil && leftFor(caller, left) {
			err = paused.Forget(s.rt.Images().Home(), id)
		}
	}
	return err
}
