package history

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/run"
)

// maxSaidHints bounds the hints of a worker.
const maxSaidHints = 8

// saidWords are the texts of a worker's hints, with %s for the subject: unitask shows no words of a worker as its own.
// Kinds without a text are dropped: a worker sees no files of this host, and asks nobody.
var saidWords = map[run.HintKind]string{
	run.HintConnection:  "%s was not reached",
	run.HintInterpreter: "the session's interpreter is a new one, without the variables of the one before",
	run.HintKernel:      "the code asked for a feature that the nanos kernel does not have: --kernel linux has it",
	run.HintLeft:        "files were left outside /out, and went with the machine: what is written to /out comes back",
	run.HintLanguage:    "the code looks like %s: --lang %[1]s runs it as that",
	run.HintMemory:      "the code needed more memory than the machine had: --memory gives more",
	run.HintModule:      "%s is not in the machine",
	run.HintProcesses:   "the code wanted more processes and threads than it may have: --max-processes gives more",
	run.HintOutput:      "not all output was kept",
}

// saidCauses follow the text about a connection.
var saidCauses = map[run.HintCause]string{
	run.CausePolicy:  ": the policy does not allow it",
	run.CauseName:    ": the policy allows it, but the worker can't resolve the name",
	run.CauseAddress: ": the policy allows the name, but it leads to an address that is not public",
	run.CauseServer:  ": the policy allows it, but the connection failed",
}

// saidFields tell how a field provides what is missing.
var saidFields = map[string]string{"allowNet": "%s asks for it", "allowHttp": "%s asks for it",
	"allowTcp": "%s may name it",
	"image":    "%s names an image that has it", "packages": "%s may install it"}

// saidHints returns a worker's hints in unitask's words.
func saidHints(hints []run.Hint) (known []run.Hint) {
	for _, h := range hints {
		words := saidWords[h.Kind]
		if len(known) == maxSaidHints || words == "" {
			continue
		}
		as := run.Hint{Kind: h.Kind, Text: words}
		if strings.Contains(words, "%") {
			if as.Subject = saidSubject(h); as.Subject == "" {
				continue
			}
			as.Text = fmt.Sprintf(words, as.Subject)
		}
		if h.Kind == run.HintConnection {
			if saidCauses[h.Cause] == "" {
				continue
			}
			as.Cause = h.Cause
			as.Text += saidCauses[h.Cause]
		}
		if way := saidFields[h.Field]; way != "" {
			as.Ask(h.Field)
			as.Text += "; " + fmt.Sprintf(way, as.Flag)
		}
		known = append(known, as)
	}
	return known
}

// saidModule matches the names of modules and languages.
var saidModule = regexp.MustCompile(`^[A-Za-z0-9@_][A-Za-z0-9@._/+-]{0,100}$`)

// saidSubject returns the subject of a hint if it is a host, with a port or without, or a module; else "".
func saidSubject(h run.Hint) string {
	if h.Kind != run.HintConnection {
		if saidModule.MatchString(h.Subject) && !strings.Contains(h.Subject, "--") {
			return h.Subject
		}
		return ""
	}
	name, port, is := strings.Cut(h.Subject, ":")
	host := netstack.Decision{Name: name}.Host()
	if _, err := strconv.ParseUint(port, 10, 16); is && err != nil || host != name {
		return ""
	}
	return h.Subject
}
