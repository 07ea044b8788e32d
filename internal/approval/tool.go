package approval

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/run"
)

const (
	// maxToolQuestions bounds the questions of a run about tools.
	maxToolQuestions = 64
	// maxToolsUnanswered is the number of unanswered ones after which nobody is asked any more.
	maxToolsUnanswered = 2
)

// toolAnswers are the answers about tools so far.
type toolAnswers struct {
	always            map[string]bool // by tool: allowed, or denied, for the run
	asked, unanswered int
}

// AskTool asks whether the code may call a tool with some arguments, which are redacted and cut. The machine is stopped
// until there is an answer.
func (a *Asker) AskTool(ctx context.Context, tool, arguments, rule string) (allowed bool, why string) {
	a.mu.Lock()
	m := a.machine
	said, known := a.tools.always[tool]
	switch {
	case known:
		why = map[bool]string{true: "it was allowed for the run", false: "it was denied for the run"}[said]
	case a.tools.asked == maxToolQuestions:
		known, why = true, "more than "+strconv.Itoa(maxToolQuestions)+" questions about tools in a run"
	case a.tools.unanswered == maxToolsUnanswered:
		known, why = true, "nobody has answered before"
	default:
		a.tools.asked++
	}
	a.mu.Unlock()
	if known {
		return said, why
	}
	done := run.Approval{Host: run.ToolPrefix + tool, Request: printableJSON(arguments), Verdict: run.Deny}
	if !a.ask(ctx, m, rule, &done) {
		return false, pausing
	}
	if done.Verdict == run.AllowAlways { // of a tool nothing is remembered beyond the run
		done.Verdict = run.AllowRun
	}
	a.mu.Lock()
	if a.tools.always == nil {
		a.tools.always = map[string]bool{}
	}
	switch {
	case done.By == "":
		a.tools.unanswered++
	case done.Verdict == run.AllowRun:
		a.tools.always[tool] = true
	case done.Verdict == run.Deny:
		a.tools.always[tool] = false
	}
	a.Result.Approvals = append(a.Result.Approvals, done)
	a.mu.Unlock()
	a.Note(audit.ToolAsked, done)
	return done.Verdict != run.Deny, fmt.Sprint(done)
}

// printableJSON returns JSON in printable ASCII, with the same meaning.
func printableJSON(text string) string {
	var b strings.Builder
	for _, unit := range utf16.Encode([]rune(text)) {
		if unit >= ' ' && unit <= '~' {
			b.WriteByte(byte(unit))
		} else {
			fmt.Fprintf(&b, "\\u%04x", unit)
		}
	}
	return b.String()
}
