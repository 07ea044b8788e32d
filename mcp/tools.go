package mcp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"os"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/audit"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// runArgs are run_code's arguments.
type runArgs struct {
	Code           string            `json:"code,omitempty" jsonschema:"the source text to run; either this or snippet"`
	Snippet        string            `json:"snippet,omitempty" jsonschema:"the name of a prompt of this server to run instead of code"`
	Language       string            `json:"language,omitempty" jsonschema:"js (the default; ES module or CommonJS by its syntax), ts, python, shell or go; mjs, cjs, mts and cts say which kind of module it is"`
	Image          string            `json:"image,omitempty" jsonschema:"the image to run it in, where the language has several: data has numpy, pandas and matplotlib for Python; the language's first one if not given"`
	Packages       []string          `json:"packages,omitempty" jsonschema:"packages the code may import, of its language's registry: pip:requests==2.32.3 for Python, npm:zod@4 for JavaScript. They are installed once, which may take minutes, and kept; without a ceiling that allows them there are none"`
	Check          bool              `json:"check,omitempty" jsonschema:"only check the code's syntax and run nothing of it: what node --check, py_compile or bash -n print, with positions, and their exit code, 0 if there is no error"`
	Args           []string          `json:"args,omitempty" jsonschema:"arguments of the code: what process.argv holds from its third element on, sys.argv from its second, $@"`
	Stdin          string            `json:"stdin,omitempty" jsonschema:"standard input"`
	Env            map[string]string `json:"env,omitempty" jsonschema:"environment variables; nothing of the host's environment is there"`
	AllowNet       []string          `json:"allowNet,omitempty" jsonschema:"hosts the code may speak HTTP and TLS to: example.com, *.example.com, example.com:8443. Without any there is no network"`
	AllowHTTP      []string          `json:"allowHttp,omitempty" jsonschema:"requests the code may send, and no others to these hosts, which it need not name in allowNet: 'GET api.example.com/repos/acme/*'; * is every method, /** at a path's end all below"`
	AllowTCP       []string          `json:"allowTcp,omitempty" jsonschema:"HOST:PORT pairs the code may open TCP connections to, 127.0.0.1:5432 of the host among them"`
	Files          []fileArg         `json:"files,omitempty" jsonschema:"additional files: {name, content} of a small text file beside the code, which can import it; or, as a string, a file of the host that the code may read, at the same path inside: PATH, or PATH:/GUESTPATH"`
	Dirs           []string          `json:"dirs,omitempty" jsonschema:"folders of the host that the code may read, at the same path inside: PATH, or PATH:/GUESTPATH"`
	Secrets        []string          `json:"secrets,omitempty" jsonschema:"names of environment variables of the server to set in the code's environment; their values are redacted from everything. NAME@HOST or NAME@HOST,HOST puts a placeholder there, which becomes the value in the headers of HTTPS requests to these hosts; NAME@HOST:query+body in other places: header, header.FIELD, query, path, body; with pass among them the placeholder may stand elsewhere"`
	Session        string            `json:"session,omitempty" jsonschema:"new starts a session, a machine that keeps variables and files for the calls that name its id here (the result has it); a last expression's value comes back. Without it the machine is destroyed after the call"`
	TimeoutSeconds float64           `json:"timeoutSeconds,omitempty" jsonschema:"time limit of the code in seconds; 60 if not given"`
	MemoryMB       int               `json:"memoryMb,omitempty" jsonschema:"memory of the machine in MiB; 512 if not given, 128 at least"`
}

// fileArg is a small file beside the code, or one of the host: a string.
type fileArg struct {
	host   string
	beside *unitask.Neighbour // nil for one of the host
}

func (f *fileArg) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, &f.host)
	}
	return json.Unmarshal(data, &f.beside)
}

// fileSchema is what a fileArg may be.
func fileSchema() *jsonschema.Schema {
	text := func(description string) *jsonschema.Schema {
		return &jsonschema.Schema{Type: "string", Description: description}
	}
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
		{Type: "object", Properties: map[string]*jsonschema.Schema{"name": text("its path below the folder of the code, such as helper.py or lib/helper.js"), "content": text("its text")},
			Required: []string{"name", "content"}, AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}}},
		text("PATH, or PATH:/GUESTPATH"),
	}}
}

type inspectArgs struct {
	RunID string `json:"runId" jsonschema:"a run's id, a unique prefix of one, or last"`
}

type listArgs struct {
	Status string `json:"status,omitempty" jsonschema:"only runs with this outcome or status: exited, signaled, timeout, oom, cancelled, crashed, failed, running, interrupted"`
	Limit  int    `json:"limit,omitempty" jsonschema:"at most this many, the newest first; 20 if not given"`
}

type listResult struct {
	Runs []unitask.Summary `json:"runs"`
}

// Bounds of what a result carries; the record has all of it.
const (
	outputBytes = 256 << 10 // of each stream
	partBytes   = 64 << 10  // of each part of inspect_run
	imageBytes  = 1 << 20   // of a picture that is shown
	maxImages   = 4
	maxListed   = 200
)

func (s *Server) addTools() {
	yes, no := true, false
	sdk.AddTool(s.sdk, &sdk.Tool{
		Name: "run_code", Title: "Run code",
		Description: "Run code in a fresh virtual machine that is destroyed afterwards: " + strings.Join(s.rt.AboutLanguages(s.opts.Ceiling), "; ") + ". " +
			"Returns stdout, stderr and the exit code. Files that the code leaves in /out come back as artifacts.",
		InputSchema: inputSchema[runArgs](func(p map[string]*jsonschema.Schema) {
			p["language"].Enum = anys(slices.Sorted(slices.Values(s.rt.AllowedLanguages(s.opts.Ceiling))))
			p["image"].Enum = anys(s.rt.AllowedImages(s.opts.Ceiling))
			_, longest := policy.FieldOf("timeoutMs").Bounds()
			least, most := policy.FieldOf("memoryMb").Bounds()
			p["timeoutSeconds"].ExclusiveMinimum, p["timeoutSeconds"].Maximum = float(0), &longest
			p["memoryMb"].Minimum, p["memoryMb"].Maximum = &least, &most
		}),
		OutputSchema: outputSchema[unitask.ResultJSON](map[string]string{
			"runId": "names the record: inspect_run, and the resource unitask://runs/{runId}", "outcome": "how it ended: exited (by itself), signaled, timeout, oom, cancelled, crashed, failed",
			"exitCode": "the code's own when outcome is exited", "stdout": "what it printed", "truncated": "more was printed than is shown",
			"policy": "what was granted (effective), and what was asked for and not given (denials)", "artifacts": "files that it left in /out: the resource unitask://runs/{runId}/artifacts/{path}",
		}),
		// It runs any code, but in a machine of its own, which the code can't leave.
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: false, DestructiveHint: &no, IdempotentHint: false, OpenWorldHint: &yes},
	}, told(s, s.runCode))
	sdk.AddTool(s.sdk, &sdk.Tool{
		Name: "inspect_run", Title: "Inspect a run",
		Description: "Show the record of a run: what was asked, what was granted, how it ended, what it printed, and every network connection it tried.",
		InputSchema: inputSchema[inspectArgs](nil), OutputSchema: &jsonschema.Schema{Type: "object"},
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no},
	}, told(s, s.inspectRun))
	sdk.AddTool(s.sdk, &sdk.Tool{
		Name: "list_runs", Title: "List runs", Description: "List earlier runs, the newest first.",
		InputSchema: inputSchema[listArgs](func(p map[string]*jsonschema.Schema) {
			p["limit"].Minimum, p["limit"].Maximum = float(1), float(maxListed)
		}),
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no},
	}, told(s, s.listRuns))
	sdk.AddTool(s.sdk, &sdk.Tool{
		Name: "doctor", Title: "Check the installation", Description: "Check everything that a run needs on this host, and boot a machine. It takes some seconds.",
		InputSchema: inputSchema[struct{}](nil),
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no},
	}, told(s, s.doctor))
	s.addSessionTools()
	s.sdk.AddReceivingMiddleware(explainArguments)
}

// told has a tool's errors told to its caller as the caller may know them.
func told[In, Out any](s *Server, tool sdk.ToolHandlerFor[In, Out]) sdk.ToolHandlerFor[In, Out] {
	return func(ctx context.Context, req *sdk.CallToolRequest, in In) (*sdk.CallToolResult, Out, error) {
		ctx, end := traced(ctx, req)
		res, out, err := tool(ctx, req, in)
		end(res, err)
		return res, out, s.tell(s.caller(req.Extra), err)
	}
}

func float[N int | float64](n N) *float64 { f := float64(n); return &f }

func anys(list []string) []any {
	out := []any{} // and not nil, which would allow any
	for _, s := range list {
		out = append(out, s)
	}
	return out
}

// inputSchema is a type's schema, with what its tags can't say.
func inputSchema[T any](more func(map[string]*jsonschema.Schema)) *jsonschema.Schema {
	schema, err := jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{reflect.TypeFor[fileArg](): fileSchema()}})
	if err != nil {
		panic(err) // of our own types
	}
	for _, p := range schema.Properties { // an absent list is no list, not null
		if len(p.Types) == 2 {
			p.Type, p.Types = p.Types[1], nil
		}
	}
	if more != nil {
		more(schema.Properties)
	}
	return schema
}

// outputSchema is a type's schema with descriptions of its fields.
func outputSchema[T any](describe map[string]string) *jsonschema.Schema {
	text := &jsonschema.Schema{Type: "string"} // what marshals to text, the library takes for objects
	schema, err := jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[policy.NetRule](): text, reflect.TypeFor[policy.TCPRule](): text, reflect.TypeFor[policy.SecretRule](): text}})
	if err != nil {
		panic(err)
	}
	schema.AdditionalProperties = nil // later versions may say more
	for name, text := range describe {
		schema.Properties[name].Description = text
	}
	return schema
}

// explainArguments adds to an error about a tool's arguments what it takes.
func explainArguments(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		res, err := next(ctx, method, req)
		call, ok := res.(*sdk.CallToolResult)
		if !ok || err != nil || !call.IsError || len(call.Content) != 1 {
			return res, err
		}
		text, ok := call.Content[0].(*sdk.TextContent)
		if !ok || !strings.HasPrefix(text.Text, `validating "arguments"`) {
			return res, err
		}
		if p, ok := req.GetParams().(*sdk.CallToolParamsRaw); ok && p.Name == "run_code" {
			text.Text += "\nrun_code takes: code (string), and optionally language, image, packages, check, args, stdin, env, allowNet, allowHttp, allowTcp, files, dirs, secrets, session, timeoutSeconds, memoryMb, snippet"
		}
		return res, nil
	}
}

func (s *Server) runCode(ctx context.Context, req *sdk.CallToolRequest, in runArgs) (*sdk.CallToolResult, *unitask.Result, error) {
	caller := s.caller(req.Extra)
	run, err := s.request(caller, in)
	if err != nil {
		return nil, nil, err
	}
	done, err := s.begin()
	if err != nil {
		return nil, nil, err
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()

	live := newLive(ctx, req)
	defer s.sessions.add(req.Session.ID(), caller.Name, cancel)()
	asked := time.Now()
	waiting, waits := otel.Tracer(scope).Start(ctx, "queue")
	leave, err := s.queue.enter(waiting, caller.Name, func(before int) { live.say(fmt.Sprintf("waiting for a machine, %d calls ahead", before)) })
	waits.End()
	if err != nil {
		s.metrics.refused(err)
		if full := new(LimitError); errors.As(err, &full) {
			s.rt.AuditRefusal(audit.QueueFull, caller, err, nil)
		}
		return nil, nil, err
	}
	defer leave()
	waited := time.Since(asked)
	var stdout, stderr bytes.Buffer
	var res *unitask.Result
	if in.Session != "" {
		res, err = s.runStep(ctx, caller, req, in, run, live)
	} else {
		res, err = s.rt.RunFor(ctx, caller, run, unitask.IO{Stdin: strings.NewReader(in.Stdin), Stdout: tee{&stdout, live}, Stderr: tee{&stderr, live}, Approve: approver(ctx, caller, req)})
	}
	live.close()
	leave()
	if res == nil {
		if field := new(policy.FieldError); errors.As(err, &field) && field.Field == "neighbours" {
			field.Field = "files" // as run_code has it
		}
		s.opts.Log.Info("run refused", "caller", caller.Name, "error", err)
		return nil, nil, err
	}
	if in.Session == "" {
		res.Stdout, res.Stderr = stdout.Bytes(), stderr.Bytes()
	}
	res.Error, res.Hint = flagNames.Replace(res.Error), flagNames.Replace(res.Hint)
	_ = s.sdk.ResourceUpdated(context.WithoutCancel(ctx), &sdk.ResourceUpdatedNotificationParams{URI: runsURI + res.RunID})
	s.metrics.ran(res, waited)
	s.opts.Log.Info("run", "id", res.RunID, "caller", caller.Name, "outcome", res.Outcome, "exit", res.ExitCode, "ms", res.Duration.Total.Milliseconds(), "waited", waited.Milliseconds(), "denials", len(res.Policy.Denials))
	if remote(caller) {
		s.hider.result(res)
	}
	out := &sdk.CallToolResult{IsError: res.Outcome != unitask.OutcomeExited || res.ExitCode != 0}
	out.Content = append([]sdk.Content{&sdk.TextContent{Text: report(res)}}, s.artifacts(res)...)
	return out, res, nil
}

// request is what a call of a caller asks for.
func (s *Server) request(caller unitask.Caller, in runArgs) (unitask.Request, error) {
	dir := unitask.GuestDir(s.opts.Dir)
	if remote(caller) { // to whom it would tell where the server runs
		dir = remoteDir
	}
	req := unitask.Request{
		Code: in.Code, Language: in.Language, Image: in.Image, Packages: in.Packages, Check: in.Check, Args: in.Args, Env: in.Env, Dir: dir, AllowNet: in.AllowNet, AllowHTTP: in.AllowHTTP, AllowTCP: in.AllowTCP,
		Timeout: time.Duration(in.TimeoutSeconds * float64(time.Second)), MemoryMB: in.MemoryMB, OutputBytes: outputBytes,
		RequireJail: s.require,
	}
	req.AllowNet = append(slices.Clip(req.AllowNet), policy.HTTPHosts(policy.Asked(req))...)
	switch {
	case in.Code == "" && in.Snippet == "":
		return req, errors.New("code is empty: send the source text to run, as a string")
	case in.Code != "" && in.Snippet != "":
		return req, errors.New("send code or snippet, not both")
	case in.Snippet != "":
		snippet := s.snippets[in.Snippet]
		if snippet == nil {
			return req, fmt.Errorf("snippet %q: there is none; prompts/list names them", in.Snippet)
		}
		if missing := snippet.missing(in.Env); len(missing) > 0 {
			return req, fmt.Errorf("snippet %q needs env.%s", in.Snippet, strings.Join(missing, ", env."))
		}
		req.Code, req.Path, req.Language = snippet.code, snippet.file, ""
	case !utf8.ValidString(in.Code):
		return req, errors.New("code is not UTF-8 text")
	}
	for _, f := range in.Files {
		if f.beside != nil {
			req.Neighbours = append(req.Neighbours, *f.beside)
		} else {
			req.Files = append(req.Files, s.mount(caller, f.host))
		}
	}
	for _, m := range in.Dirs {
		req.Dirs = append(req.Dirs, s.mount(caller, m))
	}
	for _, text := range in.Secrets {
		secret, err := policy.ParseSecret(text)
		if err != nil {
			return req, fmt.Errorf("secret %.100q %w", text, err)
		}
		name := secret.Name
		if req.Secrets == nil {
			req.Secrets, req.SecretHosts = map[string]string{}, map[string][]string{}
		}
		if _, twice := req.Secrets[name]; twice {
			return req, fmt.Errorf("secret %s is asked for twice: NAME@HOST,HOST has several hosts", name)
		}
		if bound := secret.Bound(); bound != nil {
			req.SecretHosts[name] = bound
		}
		if !caller.Ceiling.Secret(name) {
			req.Secrets[name] = rand.Text() // the policy denies it, by name; not even its existence is disclosed
			continue
		}
		value := os.Getenv(name)
		if value == "" {
			return req, fmt.Errorf("secret %s: the server's environment has no such variable, or an empty one", name)
		}
		req.Secrets[name] = value
	}
	return req, nil
}

// remoteDir is the working directory of remote callers' code, inside.
const remoteDir = contract.WorkDir

// mount takes relative paths from the server's folder. They are at the same path inside,
// or for remote callers below remoteDir.
func (s *Server) mount(caller unitask.Caller, text string) unitask.Mount {
	m := unitask.ParseMount(text)
	if m.Host != "" && !path.IsAbs(m.Host) {
		if m.Guest == "" && remote(caller) {
			m.Guest = path.Join(remoteDir, m.Host)
		}
		m.Host = path.Join(s.opts.Dir, m.Host)
	}
	return m
}

// flagNames are the arguments of run_code that the flags of the command line stand for, which
// errors and hints name.
var flagNames = func() *strings.Replacer {
	pairs := []string{"--project, or by --dir", "dirs"}
	for _, f := range policy.Fields {
		if f.Flag != "" {
			pairs = append(pairs, "--"+f.Flag, cmp.Or(f.Name, f.Key))
		}
	}
	return strings.NewReplacer(pairs...)
}()

// report is a result as a model reads it.
func report(res *unitask.Result) string {
	var b strings.Builder
	if res.Outcome == unitask.OutcomeExited {
		fmt.Fprintf(&b, "exit code %d, %d ms", res.ExitCode, res.Duration.Run.Milliseconds())
	} else {
		fmt.Fprintf(&b, "%s: %s", res.Outcome, visible(res.Error))
	}
	if res.Hint != "" {
		fmt.Fprintf(&b, "\n%s", visible(res.Hint))
	}
	for _, d := range res.Policy.Denials {
		fmt.Fprintf(&b, "\nnot given: %s", visible(d.String()))
	}
	for _, stream := range []struct {
		name string
		text []byte
	}{{"stdout", res.Stdout}, {"stderr", res.Stderr}} {
		if len(stream.text) > 0 {
			fmt.Fprintf(&b, "\n--- %s\n%s", stream.name, strings.ToValidUTF8(string(stream.text), "\ufffd"))
		}
	}
	if res.Value != "" {
		fmt.Fprintf(&b, "\n--- value\n%s", strings.ToValidUTF8(res.Value, "\ufffd"))
	}
	if res.Truncated {
		fmt.Fprintf(&b, "\n(more was printed than the %d bytes a stream that are kept)", res.Policy.Effective.OutputBytes)
	}
	for _, r := range res.ArtifactsRefused {
		fmt.Fprintf(&b, "\nnot taken from /out: %s: %s", visible(r.Path), visible(r.Reason))
	}
	return b.String()
}

// visible is a text with what can't be seen in it (control and formatting characters,
// line breaks) as escapes: a name that hostile code chose can't forge a line of a report.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsGraphic(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRuneToGraphic(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// artifacts are links to what the code left in /out, and small pictures themselves.
func (s *Server) artifacts(res *unitask.Result) (out []sdk.Content) {
	images := 0
	for _, a := range res.Artifacts {
		size, kind := a.Size, mimeType(a.Path)
		switch kind {
		case "image/png", "image/jpeg", "image/gif", "image/webp":
			if size <= imageBytes && images < maxImages {
				if data, err := s.readArtifact(res.RunID, a.Path); err == nil {
					out = append(out, &sdk.ImageContent{Data: data, MIMEType: kind})
					images++
				}
			}
		}
		out = append(out, &sdk.ResourceLink{URI: artifactURI(res.RunID, a.Path), Name: visible(a.Path), MIMEType: kind, Size: &size})
	}
	return out
}

// mimeType is a file's by its extension.
func mimeType(name string) string {
	kind, _, _ := strings.Cut(mime.TypeByExtension(path.Ext(name)), ";")
	if kind == "" {
		return "application/octet-stream"
	}
	return kind
}

func (s *Server) inspectRun(_ context.Context, req *sdk.CallToolRequest, in inspectArgs) (*sdk.CallToolResult, *unitask.Inspection, error) {
	caller := s.caller(req.Extra)
	id, err := s.find(caller, in.RunID)
	if err != nil {
		return nil, nil, err
	}
	found, err := s.inspection(caller, id)
	return nil, found, err
}

// inspection is a run's record as a caller may see it.
func (s *Server) inspection(caller unitask.Caller, id string) (*unitask.Inspection, error) {
	found, err := s.rt.Inspect(id, partBytes)
	if err == nil && remote(caller) {
		s.hider.inspection(found)
	}
	return found, err
}

// find returns the id that a caller means, of a run that it may see. Another's run is
// like none.
func (s *Server) find(caller unitask.Caller, prefix string) (string, error) {
	own, err := s.rt.Summaries(unitask.Filter{Whose: sees(caller)})
	if err != nil {
		return "", err
	}
	var found []string
	for _, run := range own {
		if run.ID == prefix || prefix == "last" {
			return run.ID, nil
		}
		if prefix != "" && strings.HasPrefix(run.ID, prefix) {
			found = append(found, run.ID)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("runId %q: %w; list_runs has the ids", prefix, record.ErrNotFound)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("runId %q: %d runs begin with it: give more of the id", prefix, len(found))
}

func (s *Server) listRuns(_ context.Context, req *sdk.CallToolRequest, in listArgs) (*sdk.CallToolResult, listResult, error) {
	if in.Limit == 0 {
		in.Limit = 20
	}
	caller := s.caller(req.Extra)
	list, err := s.rt.Summaries(unitask.Filter{Status: in.Status, Limit: in.Limit, Whose: sees(caller)})
	for i := range list {
		if remote(caller) {
			list[i].Error = s.hider.all(list[i].Error)
		}
	}
	return nil, listResult{list}, err
}

func (s *Server) doctor(ctx context.Context, req *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, *unitask.Report, error) {
	caller := s.caller(req.Extra)
	report, err := s.report(ctx, caller)
	if err != nil {
		return nil, nil, err
	}
	if remote(caller) {
		s.hider.report(report)
	}
	if !report.OK {
		return &sdk.CallToolResult{IsError: true}, report, nil
	}
	return nil, report, nil
}
