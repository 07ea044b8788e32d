package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/clienttools"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// runArgs are run_code's arguments.
type runArgs struct {
	Code      string             `json:"code,omitempty"`
	Snippet   string             `json:"snippet,omitempty"`
	Language  string             `json:"language,omitempty"`
	Filename  string             `json:"filename,omitempty"`
	Image     string             `json:"image,omitempty"`
	Packages  []string           `json:"packages,omitempty"`
	Check     bool               `json:"check,omitempty"`
	Args      []string           `json:"args,omitempty"`
	Stdin     string             `json:"stdin,omitempty"`
	Env       map[string]string  `json:"env,omitempty"`
	AllowNet  []string           `json:"allowNet,omitempty"`
	AllowHTTP []string           `json:"allowHttp,omitempty"`
	AllowTCP  []string           `json:"allowTcp,omitempty"`
	Files     []fileArg          `json:"files,omitempty"`
	Dirs      []string           `json:"dirs,omitempty"`
	Secrets   []string           `json:"secrets,omitempty"`
	Tools     []string           `json:"tools,omitempty"`
	calls     *clienttools.Calls // of ClientTools

	ClientTools    map[string][]clienttools.Tool `json:"clientTools,omitempty"`
	Session        string                        `json:"session,omitempty"`
	Background     bool                          `json:"background,omitempty"`
	TimeoutSeconds float64                       `json:"timeoutSeconds,omitempty"`
	MemoryMB       int                           `json:"memoryMb,omitempty"`
	MaxProcesses   int                           `json:"maxProcesses,omitempty"`
	MaxOutput      *int                          `json:"maxOutput,omitempty"`
}

// runDescriptions describe the arguments to models.
var runDescriptions = map[string]string{
	"code":    "the source text to run; either this or snippet",
	"snippet": "the name of a prompt of this server to run instead of code",
	"language": "the code's language. js is an ES module or CommonJS by its syntax; mjs, cjs, mts and cts say which " +
		"kind of module it is",
	"filename": "a name for the code's file, as app.py",
	"image":    "the image to run it in; the language's first one if not given",
	"packages": "packages the code may import: pip:requests==2.32.3 for Python, npm:zod@4 for JavaScript. Installing " +
		"them takes seconds to minutes, once; the ceiling must allow them",
	"check": "only check the code's syntax: what node --check, py_compile or bash -n print, and their exit code",
	"args": "arguments of the code: what process.argv holds from its third element on, sys.argv from its second, " +
		"$@",
	"stdin": "standard input",
	"env":   "environment variables; nothing of the host's environment is there",
	"allowNet": "hosts the code may speak HTTP and TLS to: example.com, *.example.com, example.com:8443. Without any " +
		"there is no network",
	"allowHttp": "requests the code may send, and no others to these hosts, which it need not name in allowNet: 'GET " +
		"api.example.com/repos/acme/*'; * is every method, /** at a path's end all below",
	"allowTcp": "HOST:PORT pairs the code may open TCP connections to, 127.0.0.1:5432 of the host among them",
	"files": "additional files: {name, content} of a small text file beside the code, which can import it; or, as " +
		"a string, a file of the host that the code may read, at the same path inside (in a session, below " +
		"/work if it is relative): PATH, or PATH:/GUESTPATH",
	"dirs": "folders of the host that the code may read, as files has them: PATH, or PATH:/GUESTPATH",
	"secrets": "names of the server's environment variables, for the code's environment; their values are " +
		"redacted everywhere. NAME@HOST,HOST sets a placeholder, which becomes the value in the headers of HTTPS " +
		"requests to these hosts; NAME@HOST:query+body in other places: header, header.FIELD, query, path, body, " +
		"sigv4 (AWS signatures)",
	"tools": "names of the ceiling's tool servers, whose tools the code calls: import { NAME } from \"unitask:tools\" " +
		"in JavaScript, from unitask_tools import NAME in Python, unitask-tool NAME.TOOL JSON in shell; " +
		"/tools/NAME/ has types",
	"clientTools": "with background: functions of yours, which the code imports as tools: {GROUP: [{name, description, " +
		"inputSchema}]}. wait_command has the calls",
	"session": "new starts a session, a machine that keeps variables and files for the calls that name its id here " +
		"(the result has it); a last expression's value comes back. Without it the machine is destroyed " +
		"after the call",
	"background":     "do not wait: wait_command has the result",
	"timeoutSeconds": "time limit of this code in seconds; 60 if not given",
	"maxOutput":      aboutMaxOutput,
	"memoryMb":       "memory of the machine in MiB; 512 if not given, 128 at least",
	"maxProcesses":   "processes and threads of the code at once, on the linux kernel; 512 if not given",
}

// fileArg is a small inline file, or the path of a file on the host (a string).
type fileArg struct {
	host   string
	beside *unitask.InlineFile // nil for a file of the host
}

func (f *fileArg) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &f.host)
	}
	return json.Unmarshal(data, &f.beside)
}

func (s *Server) runCode(ctx context.Context, req *sdk.CallToolRequest, in runArgs) (*sdk.CallToolResult, *ran, error) {
	caller := s.caller(req.Extra)
	run, err := s.request(caller, in)
	if err != nil {
		return nil, nil, err
	}
	s.askFirst(caller, req, &run)
	asks := inRounds(caller, req)
	switch {
	case len(in.ClientTools) > 0 && !in.Background:
		return nil, nil, errors.New("clientTools go with background true: wait_command has the calls, and takes answers")
	case in.Background && in.Session != "":
		return nil, nil, errors.New("background does not go with session: session_command leaves commands in the background")
	case in.Background:
		return s.runBehind(ctx, caller, req, in, run)
	case asks || taskOf(ctx) != nil:
		out, res, err := s.round(ctx, caller, req, func(live context.Context, ask asker) (*sdk.CallToolResult, any,
			error) {
			if !asks {
				ask = nil
			}
			return s.runNow(live, newLive(ctx, req), caller, req, in, run, ask.approver())
		})
		result, _ := res.(*ran)
		return out, result, err
	}
	return s.runNow(ctx, newLive(ctx, req), caller, req, in, run, askerOf(ctx, caller, req).approver())
}

// argumentOf has run_code's names for fields of a request.
var argumentOf = map[string]string{"inlineFiles": "files", "ask": "allowNet"}

// runNow runs the code, or a session's step. It reports progress to live, and asks approve the ceiling's questions. It
// releases the run's resources as soon as the run has ended, before anything is written to the client.
func (s *Server) runNow(ctx context.Context, live *live, caller unitask.Caller, req *sdk.CallToolRequest, in runArgs,
	run unitask.Request, approve unitask.Approver) (*sdk.CallToolResult, *ran, error) {
	defer live.close()
	done, err := s.begin()
	if err != nil {
		return nil, nil, err
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()

	defer s.sessions.add(req.Session.ID(), caller.Name, cancel)()
	asked := time.Now()
	waiting, waits := otel.Tracer(scope).Start(ctx, "queue")
	leave, err := s.enter(waiting, caller, live)
	waits.End()
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	waited := time.Since(asked)
	if err := s.readSecrets(ctx, caller, callerNames(req.Extra), &run); err != nil {
		return nil, nil, err
	}
	printed := newStreams(live, in.MaxOutput)
	events, started := s.opts.Progress.of(caller, live, s.hider)
	defer started()
	if in.Session != "" && in.Session != newSession { // its machine exists
		started()
	}
	var res *unitask.Result
	var of *heldSession
	if in.Session != "" {
		res, of, err = s.runStep(ctx, caller, callerNames(req.Extra), in, run, printed, approve, events)
	} else {
		streams := unitask.IO{Stdin: strings.NewReader(in.Stdin), Stdout: &printed.stdout, Stderr: &printed.stderr,
			Approve: approve, Events: events}
		if len(in.ClientTools) > 0 { // in the caller's turn: hostile schemas take processor time
			if streams.Tools, err = in.calls.Servers(ctx, in.ClientTools); err != nil {
				return nil, nil, err
			}
		}
		res, err = s.rt.RunFor(ctx, caller, run, streams)
	}
	leave()
	done()
	live.close()
	if res == nil {
		if field := new(policy.FieldError); errors.As(err, &field) && argumentOf[field.Field] != "" {
			field.Field = argumentOf[field.Field]
		}
		s.opts.Log.Info("run refused", "caller", caller.Name, "error", err)
		return nil, nil, err
	}
	printed.show(res)
	inArguments(res)
	s.updated(caller, res.RunID)
	s.metrics.ran(res, waited, printed)
	s.opts.Log.Info("run", "id", res.RunID, "caller", caller.Name, "outcome", res.Outcome, "exit", res.ExitCode, "ms",
		res.Duration.Total.Milliseconds(), "waited", waited.Milliseconds(), "denials", len(res.Policy.Denials))
	out := s.result(ctx, caller, res, printed)
	return out, answer(out, res, err, printed, of), nil
}

// inArguments makes a result name the arguments of run_code.
func inArguments(res *unitask.Result) {
	for i := range res.Policy.Denials {
		if d := &res.Policy.Denials[i]; d.Field == "ask" { // its call had allowNet (askFirst)
			d.Field, d.Key = "allowNet", strings.Replace(d.Key, "ask", "allowNet", 1)
		}
	}
	for i := range res.Hints {
		h := &res.Hints[i]
		if h.Field == "ask" {
			h.Field, h.Text = "allowNet", strings.Replace(h.Text, ": its ask ", ": its allowNet ", 1)
		}
		if h.Field == "kernel" { // run_code can't choose the kernel
			h.Text, _, _ = strings.Cut(h.Text, ": --kernel")
		}
	}
	withoutFlags(res)
}

// request returns the request for a caller's call.
func (s *Server) request(caller unitask.Caller, in runArgs) (unitask.Request, error) {
	dir := unitask.GuestDir(s.opts.Dir)
	if remote(caller) { // which must not learn the server's folder
		dir = remoteDir
	}
	req := unitask.Request{
		Code: in.Code, Path: in.Filename, Language: in.Language, Image: in.Image, Packages: in.Packages,
		Check: in.Check, Args: in.Args,
		Env: in.Env, Dir: dir, AllowNet: in.AllowNet, AllowHTTP: in.AllowHTTP, AllowTCP: in.AllowTCP, Tools: in.Tools,
		Timeout: time.Duration(in.TimeoutSeconds * float64(time.Second)), MemoryMB: in.MemoryMB,
		MaxProcesses: in.MaxProcesses,
		RequireJail:  s.require,
	}
	req.AllowNet = append(slices.Clip(req.AllowNet), policy.HTTPHosts(policy.Asked(req))...)
	switch {
	case in.Code == "" && in.Snippet == "":
		return req, errors.New("code is empty: send the source text to run, as a string")
	case in.Code != "" && in.Snippet != "":
		return req, errors.New("send code or snippet, not both")
	case in.Snippet != "":
		if is, err := s.script(in, &req); err != nil {
			return req, err
		} else if is {
			break
		}
		snippet := s.snippets[in.Snippet]
		if snippet == nil {
			return req, fmt.Errorf("snippet %q: there is none; prompts/list names them", in.Snippet)
		}
		if missing := snippet.missing(in.Env); len(missing) > 0 {
			return req, fmt.Errorf("snippet %q needs env.%s", in.Snippet, strings.Join(missing, ", env."))
		}
		if in.Filename != "" {
			return req, errors.New("filename goes with code: a snippet has a name")
		}
		req.Code, req.Path, req.Language = snippet.code, snippet.file, ""
	case !utf8.ValidString(in.Code):
		return req, errors.New("code is not UTF-8 text")
	case in.Language == "":
		return req, errors.New(noLanguage(in.Code))
	}
	for _, f := range in.Files {
		if f.beside != nil {
			req.InlineFiles = append(req.InlineFiles, *f.beside)
		} else {
			req.Files = append(req.Files, s.mount(caller, f.host, in.Session != ""))
		}
	}
	for _, m := range in.Dirs {
		req.Dirs = append(req.Dirs, s.mount(caller, m, in.Session != ""))
	}
	if err := askSecrets(&req, in.Secrets); err != nil {
		return req, err
	}
	return req, nil
}

// noLanguage returns the error for code without a language. It names the most likely language, but does not use it.
func noLanguage(code string) string {
	text := "language is missing: say which language the code is in"
	if guess := language.Guess(code); guess != "" {
		text += ", " + guess + " by its looks"
	}
	return text
}

// remoteDir is the working directory of remote callers' code, in the guest.
const remoteDir = contract.WorkDir

// mount resolves relative paths from the server's folder. In the guest they have the same path, or for remote callers a
// path below remoteDir, as in a session.
func (s *Server) mount(caller unitask.Caller, text string, session bool) unitask.Mount {
	m := unitask.ParseMount(text)
	if session && !remote(caller) {
		return unitask.SessionMount(m, s.opts.Dir)
	}
	if m.Host != "" && !path.IsAbs(m.Host) {
		if m.Guest == "" && remote(caller) {
			m.Guest = path.Join(remoteDir, m.Host)
		}
		m.Host = path.Join(s.opts.Dir, m.Host)
	}
	return m
}

// flagNames replaces the command line's flags in errors and hints with the arguments of run_code.
var flagNames = func() *strings.Replacer {
	pairs := []string{"--project or --dir", "dirs", "--lang", "language"}
	for _, f := range policy.Fields {
		if f.Flag != "" {
			pairs = append(pairs, "--"+f.Flag, cmp.Or(f.Name, f.Key))
		}
	}
	return strings.NewReplacer(pairs...)
}()

// withoutFlags makes a result name arguments in place of flags.
func withoutFlags(res *unitask.Result) {
	res.Error = flagNames.Replace(res.Error)
	for i := range res.Hints {
		h := &res.Hints[i]
		h.Text, h.Flag = flagNames.Replace(h.Text), ""
	}
}

// enter waits for a call's turn to run; leave ends the turn.
func (s *Server) enter(ctx context.Context, caller unitask.Caller, live *live) (leave func(), err error) {
	leave, err = s.queue.enter(ctx, caller.Name,
		func(before int) { live.say(fmt.Sprintf("waiting for a machine, %d calls ahead", before)) })
	return leave, s.admitted(caller, err)
}

// admitted counts and logs a call that the queue has refused.
func (s *Server) admitted(caller unitask.Caller, err error) error {
	if err == nil {
		return nil
	}
	s.metrics.refused(err)
	if full := new(LimitError); errors.As(err, &full) {
		s.rt.AuditRefusal(audit.QueueFull, caller, err, unitask.Request{})
	}
	return err
}
