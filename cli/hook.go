package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/realpath"
	"github.com/unitask/unitask/internal/sessiond"
)

func (a *app) hookCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "hook",
		Short: "Answer the hooks of an agent's program",
	}, a.hookClaude())
}

// Limits on a call of a hook.
const (
	maxHookCall    = 16 << 20 // a call has the text of a file that the agent writes
	maxHookCommand = 64 << 10 // becomes one argument in base64; a system's limit is 128 KiB
)

// claudeHook are the flags of hook claude-code.
type claudeHook struct {
	run  runFlags
	life time.Duration
	ask  bool

	// Of the command lines that the hook itself makes.
	session, in, command, end string
}

func (a *app) hookClaude() *cobra.Command {
	var h claudeHook
	cmd := &cobra.Command{
		Use:   "claude-code [flags]",
		Short: "Answer Claude Code's hooks: commands of its Bash tool run in a machine",
		Long: `Claude-code reads the call of a hook from stdin and answers it. PreToolUse of Bash: the command
runs in a session's machine instead, which has the project's files, under the policy of a
run. The session starts with the first command and is one for each session of Claude Code.
PostToolUse of Write and Edit: the machine gets the file. SessionEnd: the session ends, and
what changed in the project is a proposal for unitask apply. A command that can't run in a
machine is denied. unitask mcp config claude-code --plugin writes the configuration.`,
		Example: `  unitask hook claude-code
  unitask hook claude-code --image node --allow-net api.example.com --ask-user`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case h.session != "":
				return a.claudeRun(cmd.Context(), h)
			case h.end != "":
				return a.claudeEnd(cmd.Context(), h.end)
			}
			return a.claudeCalled(cmd, h)
		},
	}
	h.run.machineFlags(cmd, &h.life)
	fl := cmd.Flags()
	fl.BoolVar(&h.ask, "ask-user", false, "have Claude Code ask its user before each command")
	fl.StringVar(&h.session, "session", "", "run --command in this session")
	fl.StringVar(&h.in, "in", "", "the folder in which --command begins")
	fl.StringVar(&h.command, "command", "", "a shell command, in base64")
	fl.StringVar(&h.end, "end", "", "end the session of this name")
	for _, name := range []string{"session", "in", "command", "end"} {
		_ = fl.MarkHidden(name)
	}
	return cmd
}

// claudeCall is the call of a hook. Claude Code writes it; the model chooses what is in Input.
type claudeCall struct {
	Event   string                     `json:"hook_event_name"`
	Session string                     `json:"session_id"`
	Dir     string                     `json:"cwd"`
	Tool    string                     `json:"tool_name"`
	Input   map[string]json.RawMessage `json:"tool_input"`
}

// text returns a text of the tool's input.
func (c *claudeCall) text(name string) (s string, err error) {
	raw, ok := c.Input[name]
	if !ok {
		return "", fmt.Errorf("the tool's input has no %s", name)
	}
	if err := json.Unmarshal(raw, &s); err != nil || raw[0] != '"' {
		return "", fmt.Errorf("the tool's %s is no text", name)
	}
	if strings.ContainsRune(s, 0) {
		return "", fmt.Errorf("the tool's %s has a NUL character", name)
	}
	return s, nil
}

// project returns the project's folder: the one where Claude Code was started. A link to it is another name.
func (c *claudeCall) project() (string, error) {
	dir := os.Getenv("CLAUDE_PROJECT_DIR")
	if dir == "" {
		dir = c.Dir
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("the project's folder %.200q: must be an absolute path", dir)
	}
	dir = filepath.Clean(dir)
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return "", fmt.Errorf("the project's folder %.200q: there is no such folder", dir)
	}
	return dir, nil
}

// name returns the name of the session for a project.
func (c *claudeCall) name(project string) (string, error) {
	if c.Session == "" {
		return "", errors.New("the call has no session_id")
	}
	return "claude-" + shortDigest(c.Session+"\x00"+project), nil
}

// claudeAnswer is the answer to a call.
type claudeAnswer struct {
	Message  string         `json:"systemMessage,omitempty"` // for the user
	Specific claudeSpecific `json:"hookSpecificOutput"`
}

type claudeSpecific struct {
	Event    string                     `json:"hookEventName"`
	Decision string                     `json:"permissionDecision,omitempty"`
	Reason   string                     `json:"permissionDecisionReason,omitempty"`
	Input    map[string]json.RawMessage `json:"updatedInput,omitempty"`
	Context  string                     `json:"additionalContext,omitempty"` // for the model
}

// claudeCalled answers a call. A usage error blocks what the call is about: its exit code is 2.
func (a *app) claudeCalled(cmd *cobra.Command, h claudeHook) error {
	if err := a.readsFolder(); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(a.std.Stdin, maxHookCall+1))
	if err != nil {
		return usage(fmt.Errorf("read the hook's call: %w", err))
	}
	if len(text) > maxHookCall {
		return usage(fmt.Errorf("the hook's call has more than %d MiB", maxHookCall>>20))
	}
	var call claudeCall
	if err := json.Unmarshal(text, &call); err != nil {
		return usage(fmt.Errorf("the hook's call is not what Claude Code sends: %w", err))
	}
	var answer claudeAnswer
	switch call.Event {
	case "PreToolUse":
		if answer, err = a.claudeBefore(cmd, h, &call); err != nil {
			answer.Specific.Decision = "deny"
			answer.Specific.Reason = "no command runs on the host, and there is no machine for this one: " + err.Error()
		}
	case "PostToolUse":
		err := a.claudeAfter(cmd.Context(), &call)
		if err == nil {
			return nil
		}
		answer.Specific.Context = "The machine of the Bash tool has not got this change of the file: " + err.Error()
	case "SessionEnd":
		return a.claudeEnds(&call)
	default:
		return usage(fmt.Errorf("hook_event_name %.80q: must be PreToolUse, PostToolUse or SessionEnd", call.Event))
	}
	answer.Specific.Event = call.Event
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(answer); err != nil {
		return usage(err)
	}
	if _, err := a.std.Stdout.Write(out.Bytes()); err != nil {
		return usage(err) // no answer would let the command run
	}
	return nil
}

// shellTools are the tools of Claude Code that run a command of a POSIX shell.
var shellTools = []string{"Bash", "Monitor"}

// claudeBefore answers PreToolUse: it replaces the command by one that runs it in a machine.
func (a *app) claudeBefore(cmd *cobra.Command, h claudeHook, call *claudeCall) (answer claudeAnswer, err error) {
	if !slices.Contains(shellTools, call.Tool) {
		return answer, fmt.Errorf("tool %.80q: use Bash", call.Tool)
	}
	command, err := call.text("command")
	if err != nil {
		return answer, err
	}
	if len(command) > maxHookCommand {
		return answer, fmt.Errorf("the command has %s, and %d KiB are the most: put it into a file of the project "+
			"with Write, and run that", count(len(command), "byte"), maxHookCommand>>10)
	}
	project, err := call.project()
	if err != nil {
		return answer, err
	}
	name, err := call.name(project)
	if err != nil {
		return answer, err
	}
	place, err := guestPlace(project)
	if err != nil {
		return answer, err
	}
	session, fresh, err := a.claudeSession(cmd, h, name, project, place)
	if err != nil {
		return answer, err
	}
	home, err := a.homeFolder()
	if err != nil {
		return answer, err
	}
	self, err := os.Executable()
	if err != nil {
		return answer, err
	}
	dir := place
	if rel, err := filepath.Rel(project, call.Dir); err == nil && filepath.IsLocal(rel) {
		dir = path.Join(place, filepath.ToSlash(rel))
	}
	line := append([]string{self}, a.passOn(home)...)
	line = append(line, "hook", "claude-code", "--session", session, "--in", dir,
		"--command="+base64.RawURLEncoding.EncodeToString([]byte(command)))
	for i, word := range line {
		line[i] = shellWord(word)
	}
	input := map[string]json.RawMessage{}
	for key, value := range call.Input {
		input[key] = value
	}
	input["command"] = must(json.Marshal(strings.Join(line, " ")))
	answer.Specific.Input, answer.Specific.Decision = input, "allow"
	if h.ask {
		answer.Specific.Decision = "ask"
	}
	answer.Specific.Reason = "runs in the machine of unitask session " + session + ": " + command
	if fresh {
		answer.Message = "unitask: commands of Bash run in a new machine (session " + session + ")"
		answer.Specific.Context = fmt.Sprintf(claudeContext, session, place, session)
	}
	return answer, nil
}

// claudeContext tells the model about its machine.
const claudeContext = "Commands of Bash run in a new virtual machine (unitask session %s), with a copy of the " +
	"project's files in %s. If there was a machine before, it has ended, with its processes and with what it " +
	"changed. Read, Glob and Grep see the host's files, not the machine's: to see what a command changed, use " +
	"Bash. Files that Write and Edit change go into the machine, too. The user brings changes of the machine to the " +
	"host with: unitask apply %s"

// ownFolders are folders of a machine in which a project of the host can't be.
var ownFolders = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/out", "/proc", "/run", "/sbin", "/sys",
	"/usr"}

// guestPlace returns where a project is in the machine: at its place on the host, which the model knows, if it can be.
func guestPlace(project string) (string, error) {
	real, err := realpath.Of(project)
	if err != nil {
		return "", err
	}
	top := "/" + strings.Split(strings.Trim(real, "/"), "/")[0]
	if real != project || slices.Contains(ownFolders, top) {
		return contract.WorkDir, nil
	}
	return project, nil
}

// claudeShell runs a command where the one before it ended, in Bash if there is one.
const claudeShell = `exec "$(command -v bash || echo sh)" -c '
cd -- "$(cat "$1" 2>/dev/null)" 2>/dev/null
trap "pwd -P > \"$1\"" EXIT
eval "$2"' sh "$1" "$2"`

// claudeRun runs a command in a session: it is what Claude Code starts in place of the command itself.
func (a *app) claudeRun(ctx context.Context, h claudeHook) error {
	command, err := base64.RawURLEncoding.DecodeString(h.command)
	if err != nil {
		return usage(fmt.Errorf("--command: %w", err))
	}
	return a.execIn(ctx, h.session, sessiond.Command{Dir: h.in, Endless: true,
		Args: []string{"/bin/sh", "-c", claudeShell, "sh", "/tmp/.unitask-cwd", string(command)}}, runFlags{})
}
