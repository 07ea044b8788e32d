package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

const hostTable = `
[host.say]
about = "say one of two words"
argv = ["echo", "{word}", "it's; done"]
word = { of = ["yes", "no"] }

[host.free]
argv = ["pwd"]
ask = false
`

// hostClient connects a client of a server with the ceiling's table, which answers each form by answer. A nil answer
// means that the client shows no forms. It returns the home, too.
func hostClient(t *testing.T, table, revision string, answer func(message string) *sdk.ElicitResult) (
	cs *sdk.ClientSession, home string) {
	t.Helper()
	return hostClientWith(t, table, revision, answering(answer))
}

// answering returns the options of a client that answers each form by answer. A nil answer means that it shows none.
func answering(answer func(message string) *sdk.ElicitResult) *sdk.ClientOptions {
	opts := &sdk.ClientOptions{}
	if answer != nil {
		opts.ElicitationHandler = func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return answer(r.Params.Message), nil
		}
	}
	return opts
}

// connectAsked connects a client of a revision to a server.
func connectAsked(t *testing.T, s *mcp.Server, revision string, opts *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	a, b := sdk.NewInMemoryTransports()
	if _, err := mcp.SDK(s).Connect(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, opts).Connect(t.Context(), b,
		&sdk.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return cs
}

func hostClientWith(t *testing.T, table, revision string, opts *sdk.ClientOptions) (
	cs *sdk.ClientSession, home string) {
	t.Helper()
	file := filepath.Join(testdir.Private(t), policy.CeilingFile)
	if err := os.WriteFile(file, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := policy.LoadForModels(testdir.Private(t), filepath.Dir(file), file, false)
	if err != nil {
		t.Fatal(err)
	}
	rt := bare(t)
	s := newServer(t, rt, mcp.Options{Dir: filepath.Dir(file), Ceiling: held.Ceiling, Policy: held})
	mcp.AddHostCommands(s)
	return connectAsked(t, s, revision, opts), filepath.Dir(rt.Runs().Dir())
}

func hostCall(t *testing.T, cs *sdk.ClientSession, args object) (text string) {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "host_exec", Arguments: args})
	if err != nil {
		return err.Error()
	}
	return res.Content[0].(*sdk.TextContent).Text
}

// hostEntries returns the kinds of the audit log's entries about commands of the host.
func hostEntries(t *testing.T, home string) (kinds []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(home, "audit", "log.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(e.Kind), "host.") {
			kinds = append(kinds, string(e.Kind))
		}
	}
	return kinds
}

// In clients of each kind of revision, the user sees the whole command line and decides. The audit log has it.
func TestHostExec(t *testing.T) {
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		var asked []string
		answers := []*sdk.ElicitResult{accepts("once"), {Action: "decline"}, accepts("deny"), {Action: "cancel"}}
		cs, home := hostClient(t, hostTable, revision, func(message string) *sdk.ElicitResult {
			asked = append(asked, message)
			next := answers[0]
			answers = answers[1:]
			return next
		})
		say := object{"name": "say", "values": object{"word": "yes"}}
		var got []string
		for range len(answers) {
			got = append(got, hostCall(t, cs, say))
		}
		want := []string{"exit code 0\n--- stdout\nyes it's; done\n", "say was not run: its user denied it",
			"say was not run: its user denied it", "say was not run: its user denied it"}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %q, want %q", revision, got, want)
		}
		if len(asked) != 4 || !strings.Contains(asked[0], ":\necho yes \"it's; done\"") {
			t.Errorf("%s: asked %q", revision, asked)
		}
		if got := hostCall(t, cs, object{"name": "free"}); !strings.Contains(got, "unitask-host-") || len(asked) != 4 {
			t.Errorf("%s: without a question: %q, asked %d", revision, got, len(asked))
		}
		const log = "[host.started host.ended host.refused host.refused host.refused host.started host.ended]"
		if got := fmt.Sprint(hostEntries(t, home)); got != log {
			t.Errorf("%s: the audit log has %s, want %s", revision, got, log)
		}
	}
}

// A call gets no command but the declared ones, whatever it sends, and none that its user can't be asked about.
func TestAttackHostExec(t *testing.T) {
	cs, _ := hostClient(t, hostTable, "2025-11-25", nil)
	for _, row := range []struct {
		name string
		args object
		want string
	}{
		{"a client that shows no forms", object{"name": "say", "values": object{"word": "yes"}}, "can't show a form"},
		{"another word", object{"name": "say", "values": object{"word": "yes; id"}}, "one of yes, no"},
		{"no name", object{}, "there is no such command"},
		{"a name that is not declared", object{"name": "rm"}, "name"},
		{"an argv of its own", object{"name": "free", "argv": []string{"id"}}, "unitask-host-"},
		{"a value of another type", object{"name": "say", "values": object{"word": []string{"yes"}}}, "has type"},
		{"a request with a line's end", object{"op": "request", "argv": []string{"a\nb"}}, "not printable ASCII"},
		{"a request with a look-alike", object{"op": "request", "argv": []string{"g\u0456t"}}, "not printable ASCII"},
		{"a long request", object{"op": "request", "argv": []string{strings.Repeat("a", 4000)}}, "too long"},
	} {
		got := hostCall(t, cs, row.args)
		if strings.Contains(got, row.want) && !strings.Contains(got, "uid=") {
			got = row.want
		}
		attack.Check(t, "host_exec: "+row.name, row.want, got)
	}
	list := hostCall(t, cs, object{"op": "list"})
	if !strings.Contains(list, "say: echo {word} \"it's; done\"\n  word: one of yes, no\n") {
		t.Errorf("got %q", list)
	}
	asks := hostCall(t, cs, object{"op": "request", "argv": []string{"/usr/bin/docker", "ps", "--format={{.ID}}"}})
	lines := asks[strings.Index(asks, "[host."):]
	c, err := policy.ParseCeiling("/x/"+policy.CeilingFile, []byte(lines))
	if err != nil {
		t.Fatalf("%v: %s", err, asks)
	}
	argv, err := c.HostCommands()["docker"].Resolve(nil)
	if want := "[/usr/bin/docker ps --format={{.ID}}]"; err != nil || fmt.Sprint(argv) != want {
		t.Errorf("got %s, %v, want %s", argv, err, want)
	}
}

// Without a table, and over HTTP, the tool does not exist.
func TestAttackHostExecAbsent(t *testing.T) {
	cs, _ := hostClient(t, "memoryMb = 512", "2025-11-25", nil)
	got := hostCall(t, cs, object{"op": "list"})
	if strings.Contains(got, `unknown tool "host_exec"`) {
		got = "absent"
	}
	attack.Check(t, "host_exec without a [host] table", "absent", got)

	c, err := policy.ParseCeiling("/x/"+policy.CeilingFile, []byte(hostTable))
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, bare(t), mcp.Options{Ceiling: c})
	got = "absent"
	for _, tool := range toolNames(t, inMemory(t, s, nil)) {
		if tool == "host_exec" {
			got = "there"
		}
	}
	attack.Check(t, "host_exec on a server that serves no stdin", "absent", got)
}

func toolNames(t *testing.T, cs *sdk.ClientSession) (names []string) {
	t.Helper()
	for tool, err := range cs.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	return names
}

// A path that becomes another one while its user is asked is not passed to the command.
func TestAttackHostPathChanges(t *testing.T) {
	dir := testdir.Private(t)
	for _, sub := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	table := fmt.Sprintf("[host.show]\nargv = [\"ls\", \"-d\", \"{path}\"]\npath = { under = %q }", dir)
	cs, home := hostClient(t, table, "2025-11-25", func(string) *sdk.ElicitResult {
		one := filepath.Join(dir, "one")
		if err := errors.Join(os.Remove(one), os.Symlink("two", one)); err != nil {
			t.Error(err)
		}
		return accepts("once")
	})
	got := hostCall(t, cs, object{"name": "show", "values": object{"path": "one"}})
	attack.Check(t, "a path that became a link", "show was not run: a path of it changed while its user was asked", got)
	attack.Check(t, "its entries of the audit log", "[host.refused]", fmt.Sprint(hostEntries(t, home)))
}

// A request names the file that its user trusts, and never one that came with a repository below it.
func TestAttackHostRequestFile(t *testing.T) {
	home, dir := testdir.Private(t), testdir.Private(t)
	repo := filepath.Join(dir, "repo")
	if err := os.Mkdir(repo, 0o755); err != nil {
		t.Fatal(err)
	}
	top, below := filepath.Join(dir, policy.CeilingFile), filepath.Join(repo, policy.CeilingFile)
	if err := errors.Join(os.WriteFile(top, []byte(hostTable), 0o600),
		os.WriteFile(below, []byte("[host.evil]\nargv = [\"id\"]\nask = false"), 0o600)); err != nil {
		t.Fatal(err)
	}
	c, err := policy.ReadCeiling(top)
	if err != nil {
		t.Fatal(err)
	}
	if err := policy.OpenTrust(home).Add(c, time.Now()); err != nil {
		t.Fatal(err)
	}
	held, err := policy.LoadForModels(home, repo, "", false)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, bare(t), mcp.Options{Dir: repo, Ceiling: held.Ceiling, Policy: held})
	mcp.AddHostCommands(s)
	cs := inMemory(t, s, nil)
	got := "the trusted file"
	if text := hostCall(t, cs, object{"op": "request", "argv": []string{"id"}}); strings.Contains(text, repo) ||
		!strings.Contains(text, top) {
		got = text
	}
	attack.Check(t, "the file that a request names", "the trusted file", got)
	list := hostCall(t, cs, object{"op": "list"})
	attack.Check(t, "commands of a file below a trusted one", "absent",
		map[bool]string{true: list, false: "absent"}[strings.Contains(list, "evil")])
}

// The state of a question belongs to one call. It answers no call of another command, and a repeated call without an
// answer is asked again.
func TestAttackHostRounds(t *testing.T) {
	cs, _ := hostClientWith(t, hostTable, "2026-07-28", notAsked(t))
	call := func(args object, state string, answer *sdk.ElicitResult) *sdk.CallToolResult {
		t.Helper()
		params := &sdk.CallToolParams{Name: "host_exec", Arguments: args}
		if params.RequestState = state; answer != nil {
			params.InputResponses = sdk.InputResponseMap{"approval": answer}
		}
		res, err := cs.CallTool(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	say := object{"name": "say", "values": object{"word": "yes"}}
	state := asksAbout(t, call(say, "", nil), "echo yes")
	for name, args := range map[string]object{"of another command": {"name": "free"},
		"with another value": {"name": "say", "values": object{"word": "no"}}} {
		res := call(args, state, accepts("once"))
		got := "refused"
		if text := res.Content[0].(*sdk.TextContent).Text; !strings.Contains(text, "belongs to a call of another tool") {
			got = text
		}
		attack.Check(t, "an answer for a call "+name, "refused", got)
	}
	if again := asksAbout(t, call(say, state, nil), "echo yes"); again != state {
		t.Errorf("got %q, want the same question", again)
	}
	res := call(say, state, accepts("once"))
	if text := res.Content[0].(*sdk.TextContent).Text; !strings.Contains(text, "exit code 0") {
		t.Error(text)
	}
}
