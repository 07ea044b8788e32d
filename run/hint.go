package run

import (
	"slices"
	"strings"

	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
)

// HintKind tells hints apart.
type HintKind string

const (
	HintApproval    HintKind = "approval"    // a question about a host was not answered with yes
	HintConnection  HintKind = "connection"  // a host was not reached, or a request to it was refused
	HintFile        HintKind = "file"        // a file of the host is not in the machine
	HintInterpreter HintKind = "interpreter" // a session's interpreter was replaced
	HintKernel      HintKind = "kernel"      // the kernel lacks a feature
	HintLanguage    HintKind = "language"    // the code looks like another language
	HintLeft        HintKind = "left"        // files were left outside /out, and went with the machine
	HintMemory      HintKind = "memory"      // how a program can use less memory
	HintModule      HintKind = "module"      // a module or package is not installed
	HintOutput      HintKind = "output"      // output was not kept
	HintProcesses   HintKind = "processes"   // the code wanted more processes or threads than it may have
)

// HintCause tells why a connection failed.
type HintCause = netstack.Failure

const (
	CausePolicy  = netstack.FailurePolicy  // no rule of the run allows it, or a rule forbids it
	CauseName    = netstack.FailureName    // allowed, but the host can't resolve the name
	CauseAddress = netstack.FailureAddress // allowed, but the name has an address that is not public
	CauseServer  = netstack.FailureServer  // allowed, but the server refused the connection or did not answer
)

// Hint tells what the code seems to have lacked, and what provides it. unitask words it; the code chooses at most
// the name of a host, a module or a file.
type Hint struct {
	Kind HintKind `json:"kind"`
	// Text is one sentence. It names flags of `unitask run`; MCP replaces them with the arguments of run_code.
	Text string `json:"text"`
	// Subject is what was missing: HOST or HOST:PORT, a module, a path; "" if there is nothing to name.
	Subject string `json:"subject,omitempty"`
	// Cause is set for connections only.
	Cause HintCause `json:"cause,omitempty"`
	// Flag is the flag of `unitask run` that asks for it (--allow-net), and Field the field of a request (allowNet).
	// Both are "" if no field would help.
	Flag  string `json:"flag,omitempty"`
	Field string `json:"field,omitempty"`
	// Rule is the ceiling that forbids it, "" if none does.
	Rule string `json:"rule,omitempty"`
}

// Ask sets the field that provides what was missing, and its flag.
func (h *Hint) Ask(field string) {
	h.Field, h.Flag = field, policy.FlagOf(field)
	if field == "language" { // which the policy does not decide
		h.Flag = "--lang"
	}
}

// ShownHints returns the hints for people and models: those about connections only if the code failed, since other
// code has handled the error.
func (r *Result) ShownHints() []Hint {
	return slices.DeleteFunc(slices.Clone(r.Hints), func(h Hint) bool {
		return h.Kind == HintConnection && r.ExitCode == 0
	})
}

// Hint returns the texts of all hints, a line for each; "" if there are none.
func (r *Result) Hint() string { return hintTexts(r.Hints) }

func hintTexts(hints []Hint) string {
	var texts []string
	for _, h := range hints {
		texts = append(texts, h.Text)
	}
	return strings.Join(texts, "\n")
}
