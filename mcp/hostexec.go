package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/hostexec"
	"github.com/unitask/unitask/policy"
)

// The tool host_exec runs commands of the host that the ceiling declares. It exists only on a server's stdin and
// stdout, and only if the ceiling has a [host] table. Its user is asked before each command, unless the table says
// otherwise.

// hostArgs are host_exec's arguments.
type hostArgs struct {
	Op        string            `json:"op,omitempty"`
	Name      string            `json:"name,omitempty"`
	Values    map[string]string `json:"values,omitempty"`
	Argv      []string          `json:"argv,omitempty"`
	MaxOutput *int              `json:"maxOutput,omitempty"`
}

var hostDescriptions = map[string]string{
	"op": "run (the usual one) a command by its name, list them all, or request: ask the user to declare the command " +
		"line argv",
	"name":      "the command to run",
	"values":    "a value for each of its placeholders, by name",
	"argv":      "with request: the program and its arguments",
	"maxOutput": aboutMaxOutput,
}

// hostResult is how a command ended, or the list of commands.
type hostResult struct {
	Name     string        `json:"name,omitempty"`
	Argv     []string      `json:"argv,omitempty"`
	ExitCode *int          `json:"exitCode,omitempty"` // -1 if a signal ended it
	TimedOut bool          `json:"timedOut,omitempty"`
	Ms       int64         `json:"ms,omitempty"`
	Stdout   string        `json:"stdout,omitempty"`
	Stderr   string        `json:"stderr,omitempty"`
	Commands []hostCommand `json:"commands,omitempty"`
}

// hostCommand describes a command to models.
type hostCommand struct {
	Name   string            `json:"name"`
	About  string            `json:"about,omitempty"`
	Argv   []string          `json:"argv"`
	Values map[string]string `json:"values,omitempty"` // the type of each placeholder
	Asks   bool              `json:"asks,omitempty"`   // the user is asked each time
}

// addHostCommands adds host_exec, if the ceiling has a table of commands.
func (s *Server) addHostCommands() {
	commands := s.opts.Ceiling.HostCommands()
	if commands == nil {
		return
	}
	yes := true
	addTool(s, &sdk.Tool{
		Name: "host_exec", Title: "Run a command of the host",
		Description: "Run one of the user's own commands on the host, outside of any machine. Only declared commands run, " +
			"without a shell; the user may be asked first.",
		InputSchema: inputSchema[hostArgs](hostDescriptions, func(p map[string]*jsonschema.Schema) {
			p["op"].Enum = anys([]string{"run", "list", "request"})
			if len(commands) > 0 {
				p["name"].Enum = anys(slices.Sorted(maps.Keys(commands)))
			}
			boundMaxOutput(p)
		}),
		OutputSchema: outputSchema[hostResult](nil),
		Annotations:  &sdk.ToolAnnotations{DestructiveHint: &yes, OpenWorldHint: &yes},
	}, told(s, s.hostExec))
}

func (s *Server) hostExec(ctx context.Context, req *sdk.CallToolRequest, in hostArgs) (*sdk.CallToolResult, any,
	error) {
	caller := s.caller(req.Extra)
	commands := caller.Ceiling.HostCommands()
	if remote(caller) || commands == nil { // the tool is not there for them
		return nil, nil, errors.New("host_exec is for the server's own user, whose ceiling has a [host] table")
	}
	if in.Op == "list" {
		return listHostCommands(commands)
	}
	run := func(ctx context.Context, ask asker) (*sdk.CallToolResult, any, error) {
		return s.runOnHost(ctx, newLive(ctx, req), caller, commands[in.Name], in, ask)
	}
	if in.Op == "request" {
		run = func(ctx context.Context, ask asker) (*sdk.CallToolResult, any, error) {
			return s.requestHostCommand(ctx, in.Argv, ask)
		}
	} else if commands[in.Name] == nil {
		return nil, nil, fmt.Errorf("name %.60q: there is no such command; op list has them", in.Name)
	}
	if inRounds(caller, req) {
		return s.round(ctx, caller, req, run)
	}
	return run(ctx, askerOf(ctx, caller, req))
}

func listHostCommands(commands map[string]*policy.HostCommand) (*sdk.CallToolResult, any, error) {
	var out hostResult
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		h := commands[name]
		is := hostCommand{Name: name, About: h.About, Argv: h.Argv, Values: map[string]string{}, Asks: h.Ask}
		fmt.Fprintf(&text, "%s: %s\n", name, shownArgv(h.Argv))
		for value, kind := range h.Values {
			is.Values[value] = kind.String()
		}
		for _, value := range slices.Sorted(maps.Keys(is.Values)) {
			fmt.Fprintf(&text, "  %s: %s\n", value, is.Values[value])
		}
		out.Commands = append(out.Commands, is)
	}
	if len(commands) == 0 {
		text.WriteString("no command is declared; op request asks the user for one")
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text.String()}}}, &out, nil
}

// runOnHost runs a declared command, after its user has allowed it.
func (s *Server) runOnHost(ctx context.Context, live *live, caller unitask.Caller, h *policy.HostCommand, in hostArgs,
	ask asker) (*sdk.CallToolResult, any, error) {
	defer live.close()
	argv, err := h.Resolve(in.Values)
	if err != nil {
		return nil, nil, err
	}
	done, err := s.begin()
	if err != nil {
		return nil, nil, err
	}
	defer done()
	select {
	case s.onHost <- struct{}{}:
		defer func() { <-s.onHost }()
	default:
		return nil, nil, errors.New("another command of the host runs, or waits for its user: call again when it has ended")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	note := func(kind audit.Kind, detail map[string]any) error {
		detail["name"], detail["argv"] = h.Name, argv
		return s.rt.Audit().Append(audit.Entry{Time: time.Now(), Kind: kind, Caller: caller.Name, Via: string(caller.Via),
			Detail: detail})
	}
	err = allowOnHost(ctx, h, argv, ask)
	if again, e := h.Resolve(in.Values); err == nil && (e != nil || !slices.Equal(again, argv)) {
		err = fmt.Errorf("%s was not run: a path of it changed while its user was asked", h.Name)
	}
	if err != nil {
		return nil, nil, errors.Join(err, note(audit.HostRefused, map[string]any{"why": err.Error()}))
	}
	if err := note(audit.HostStarted, map[string]any{"dir": h.Dir, "user": h.User, "asked": h.Ask}); err != nil {
		return nil, nil, fmt.Errorf("%s does not run, since the audit log can't have its entry: %w", h.Name, err)
	}
	printed := newStreams(live, in.MaxOutput)
	res, err := hostexec.Run(ctx, hostexec.Command{Argv: argv, Dir: h.Dir, User: h.User, Env: h.Env, Timeout: h.Timeout,
		Stdout: &printed.stdout, Stderr: &printed.stderr})
	detail := map[string]any{"exitCode": res.ExitCode, "timedOut": res.TimedOut, "ms": res.Took.Milliseconds(),
		"stdoutBytes": printed.stdout.total, "stderrBytes": printed.stderr.total}
	if err != nil {
		detail["error"] = err.Error()
	}
	if unlogged := note(audit.HostEnded, detail); unlogged != nil {
		s.opts.Log.Error("the audit log can't have the end of a host command", "name", h.Name, "error", unlogged)
	}
	if err != nil {
		return nil, nil, err
	}
	return hostAnswer(h.Name, argv, res, printed)
}

func hostAnswer(name string, argv []string, res hostexec.Result, printed *streams) (*sdk.CallToolResult, any, error) {
	shown := unitask.Result{}
	printed.show(&shown)
	out := &hostResult{Name: name, Argv: argv, ExitCode: &res.ExitCode, TimedOut: res.TimedOut,
		Ms: res.Took.Milliseconds(), Stdout: string(shown.Stdout), Stderr: string(shown.Stderr)}
	text := fmt.Sprintf("exit code %d", res.ExitCode)
	if res.TimedOut {
		text = "killed at its time limit"
	}
	for _, one := range []struct{ name, text string }{{"stdout", out.Stdout}, {"stderr", out.Stderr}} {
		if one.text != "" {
			text += "\n--- " + one.name + "\n" + one.text
		}
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, out, nil
}

// allowOnHost asks the user about a command; an error says why it may not run.
func allowOnHost(ctx context.Context, h *policy.HostCommand, argv []string, ask asker) error {
	if !h.Ask {
		return nil
	}
	if ask == nil {
		return fmt.Errorf("%s needs its user's answer, and this client can't show a form: ask = false in [host.%s] of the "+
			"ceiling lets it run unasked", h.Name, h.Name)
	}
	until := time.Now().Add(approval.Patience)
	asked, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	where := "an empty folder"
	if h.Dir != "" {
		where = strconv.QuoteToASCII(h.Dir)
	}
	if h.User != "" {
		where += ", as the user " + strconv.QuoteToASCII(h.User)
	}
	switch ask(asked, func() *sdk.ElicitParams {
		return yesOrNo(fmt.Sprintf("A model wants to run the command %s of the ceiling on this host, outside of any "+
			"machine, in %s. The call waits for %s at most. The command line is:\n%s", h.Name, where,
			time.Until(until).Round(time.Second), shownArgv(argv)), "May it run?", "No", "Yes, this time")
	}) {
	case unitask.AllowOnce:
		return nil
	case "":
		return fmt.Errorf("%s was not run: nobody answered", h.Name)
	}
	return fmt.Errorf("%s was not run: its user denied it", h.Name)
}

// yesOrNo returns a form with two answers: deny and once.
func yesOrNo(message, title, no, yes string) *sdk.ElicitParams {
	return &sdk.ElicitParams{Mode: "form", Message: message, RequestedSchema: map[string]any{
		"type": "object",
		"properties": map[string]any{"answer": map[string]any{"type": "string", "title": title,
			"enum": []any{string(unitask.Deny), string(unitask.AllowOnce)}, "enumNames": []any{no, yes}}},
		"required": []any{"answer"},
	}}
}

// Limits of a requested command line.
const (
	maxRequestedArgs  = 32   // arguments, with the program
	maxRequestedBytes = 2048 // of all arguments
)

// requestHostCommand shows the user the lines that would declare a command. It changes no file.
func (s *Server) requestHostCommand(ctx context.Context, argv []string, ask asker) (*sdk.CallToolResult, any, error) {
	size := 0
	for _, arg := range argv {
		size += len(arg)
	}
	switch {
	case len(argv) == 0:
		return nil, nil, errors.New("argv is missing: the program and its arguments, as a list")
	case len(argv) > maxRequestedArgs || size > maxRequestedBytes:
		return nil, nil, fmt.Errorf("argv is too long: %d arguments and %d bytes are the most", maxRequestedArgs,
			maxRequestedBytes)
	}
	for _, arg := range argv {
		if strings.ContainsFunc(arg, func(r rune) bool { return r < ' ' || r > '~' }) { // the user copies it
			return nil, nil, fmt.Errorf("argv %.80q has a character that is not printable ASCII", arg)
		}
	}
	lines, err := declaration(argv)
	if err != nil {
		return nil, nil, err
	}
	text := fmt.Sprintf("To declare this command, the user adds these lines to %s, trusts that file again "+
		"(unitask policy trust) and restarts the server:\n%s", s.trustedFile(), lines)
	if ask != nil {
		asked, cancel := context.WithTimeout(ctx, approval.Patience)
		defer cancel()
		if ask(asked, func() *sdk.ElicitParams {
			return yesOrNo("A model asks for a command of this host. "+text, "Will you add it?", "No", "Yes, by hand")
		}) == unitask.AllowOnce {
			text = "The user says that they will add it. " + text
		} else {
			text = "The user did not agree. " + text
		}
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, &hostResult{Argv: argv}, nil
}

// trustedFile names the file that the user trusts. Files below it may have come with a repository.
func (s *Server) trustedFile() string {
	for p := s.opts.Policy; p != nil; p = p.Above {
		if p.Trusted && p.File != "" {
			return p.File
		}
	}
	return "a " + policy.CeilingFile + " of their own"
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// declaration returns the table of a command without placeholders.
func declaration(argv []string) (string, error) {
	escaped := make([]string, len(argv))
	for i, arg := range argv {
		escaped[i] = strings.NewReplacer("{", "{{", "}", "}}").Replace(arg)
	}
	var out bytes.Buffer
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(filepath.Base(argv[0])), "-"), "-0123456789")
	if name == "" || len(name) > 40 {
		name = "command"
	}
	fmt.Fprintf(&out, "[host.%s]\n", name)
	err := toml.NewEncoder(&out).Encode(map[string]any{"argv": escaped})
	return out.String(), err
}

var plainArg = regexp.MustCompile(`^[A-Za-z0-9_./:=@%+,{}-]+$`)

// shownArgv shows a command line to a person: what is not plain is quoted, in ASCII.
func shownArgv(argv []string) string {
	list := make([]string, len(argv))
	for i, arg := range argv {
		if list[i] = arg; !plainArg.MatchString(arg) {
			list[i] = strconv.QuoteToASCII(arg)
		}
	}
	return strings.Join(list, " ")
}
