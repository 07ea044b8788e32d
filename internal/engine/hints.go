package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/hints"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/run"
)

// hint adds hints about what failed code seems to have lacked, and about files that any code has left.
func (x *Execution) hint(stderrTail string) {
	if x.Code.Check {
		return
	}
	x.Res.Hints = append(x.Res.Hints, x.Hints(x.Code.Language, x.Code.Text, x.Res.ExitCode != 0, stderrTail, x.start)...)
	x.hintKernel()
}

// Hints returns hints about code that began at since, from what unitask has seen of it.
func (x *Execution) Hints(l *language.Language, code string, failed bool, stderr string, since time.Time,
) (list []run.Hint) {
	x.Live.Lock()
	ceiling, changed := x.Live.Ceiling, len(x.Live.Taken) > 0
	x.Live.Unlock()
	facts := hints.Facts{Language: l, Image: x.Code.Image, Code: code, Path: x.Code.Path, Dir: x.Code.Dir, Stderr: stderr,
		Failed: failed, Connections: x.failed.Take(since), Granted: x.Granted, Denials: x.Res.Policy.Denials,
		Ceiling: ceiling, Changed: changed, Session: x.purpose.Session != nil,
		HostFiles: x.hasHostPaths(), Left: x.left}
	list = hints.Of(facts)
	if why := x.Asked.Denied(); why != "" && failed {
		list = append([]run.Hint{{Kind: run.HintApproval, Text: why}}, list...)
	}
	for i := range list {
		list[i].Text, list[i].Subject = x.Redactor.String(list[i].Text), x.Redactor.String(list[i].Subject)
	}
	return list
}

// hasHostPaths reports whether the code's working folder is the caller's, at the same path: so paths below it are
// those of the caller's files.
func (x *Execution) hasHostPaths() bool {
	return x.hostDir == x.Code.Dir && x.hostDir != "/" && !x.Code.Command && x.purpose.Session == nil
}

// hintKernel adds a hint about a feature that the kernel lacks.
func (x *Execution) hintKernel() {
	if x.Machine == nil || x.Res.ExitCode == 0 || x.Image.Kernel != image.Nanos {
		return
	}
	if lacks := x.Machine.Lacks(); lacks != "" {
		h := run.Hint{Kind: run.HintKernel, Subject: lacks,
			Text: fmt.Sprintf("the code asked for %s, which the %s kernel does not have: --kernel linux does", lacks,
				x.Image.Kernel)}
		if h.Ask("kernel"); !slices.Contains(x.Res.Hints, h) {
			x.Res.Hints = append([]run.Hint{h}, x.Res.Hints...)
		}
	}
}
