package cli

import (
	"bufio"
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
)

// Input typed before a question, or that is not an answer, does not count. A name is shown escaped, so a terminal does
// not obey it.
func TestAttackApproverOnTerminal(t *testing.T) {
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	defer ptmx.Close()
	shown := make(chan string, 100)
	go func() {
		defer close(shown)
		r := bufio.NewReader(ptmx)
		for {
			prompt, err := r.ReadString(')')
			if err != nil {
				return
			}
			shown <- prompt
		}
	}()
	until := func(what string) string {
		t.Helper()
		var all strings.Builder
		for text := range shown {
			all.WriteString(text)
			if strings.Contains(text, what) {
				return all.String()
			}
		}
		t.Fatalf("no %q in %q", what, all.String())
		return ""
	}
	a := &app{std: Streams{Stdin: tty, Stderr: tty}}
	a.ui = newUI(a.std)
	approve := a.approver(runFlags{})
	ask := func(ctx context.Context, typed ...string) (string, unitask.Verdict) {
		said := make(chan unitask.Verdict, 1)
		go func() {
			said <- approve(ctx, unitask.Question{RunID: "r", Host: "xn--pple-43d.example:443\x1b[2J", Rule: "ask *.example",
				Until: time.Now().Add(time.Hour)})
		}()
		var text string
		for _, line := range typed {
			text += until("(or in")
			_, _ = io.WriteString(ptmx, line+"\n")
		}
		return text, <-said
	}
	_, _ = io.WriteString(ptmx, "r\no\n") // before the question
	text, said := ask(t.Context(), "yes", "y", " D ")
	attack.Check(t, "an answer after some that are none", string(unitask.Deny), string(said))
	if !strings.Contains(text, `xn--pple-43d.example:443\x1b[2J (ask *.example)`) || strings.Contains(text, "\x1b[2J") {
		t.Errorf("%q", text)
	}
	// Code that has printed a fake question, and hides ours with the colors that it sets.
	_, _ = io.WriteString(tty, "unitask: the machine stands still: its code wants good.example:443 (ask)\n"+
		"unitask: allow it?\x1b[30;40m")
	text, _ = ask(t.Context(), "d")
	_, text, _ = strings.Cut(text, "\x1b[30;40m")
	for _, say := range []string{"\r\n\x1b[0munitask: the machine stands still: its code wants to connect to xn--",
		"\r\n\x1b[0munitask: allow it? o:"} {
		attack.Check(t, "a question under the code's colours", "plain",
			map[bool]string{true: "plain", false: text}[strings.Contains(text, say)])
	}
	for typed, want := range map[string]unitask.Verdict{"o": unitask.AllowOnce, "Run": unitask.AllowRun,
		"A": unitask.AllowAlways, "deny": unitask.Deny} {
		_, said := ask(t.Context(), typed)
		attack.Check(t, "the answer "+typed, string(want), string(said))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, said = ask(ctx)
	attack.Check(t, "no answer in time", "", string(said))
	_ = tty.Close()
}

// A pipe answers no question; the note says which command does.
func TestAttackApproverOnPipe(t *testing.T) {
	var notes strings.Builder
	a := &app{std: Streams{Stdin: strings.NewReader("r\n"), Stderr: &notes}}
	a.ui = newUI(a.std)
	for _, in := range []io.Reader{strings.NewReader("r\n"), os.Stdin} {
		a.std.Stdin = in
		said := a.approver(runFlags{})(t.Context(),
			unitask.Question{RunID: "20261123", Host: "a.example:443", Rule: "ask a.example",
				Until: time.Now().Add(time.Minute)})
		attack.Check(t, "a pipe that answers", "", string(said))
	}
	if !strings.Contains(notes.String(), "unitask approve 20261123 a.example:443") {
		t.Error(notes.String())
	}
}
