// Package hints words what a run seems to have lacked, and what provides it. The engine and sessions call it with
// what they saw. It starts nothing; of the host it looks only for files that the ceiling would grant.
package hints

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/realpath"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Facts is what was seen of a run or a step.
type Facts struct {
	Language *language.Language
	Image    *language.Image
	Code     string // its text
	Path     string // of the code in the guest
	Dir      string // its working directory
	Stderr   string // its end
	Failed   bool   // the exit code is not 0

	Connections []netstack.Decision // that failed (Connections.Take)
	Granted     policy.Effective
	Denials     []policy.Denial
	Ceiling     *policy.Ceiling // nil if there is none
	// HostFiles says that a path in the guest is the same file on this host, if the file is brought.
	HostFiles bool
}

// Of returns the hints for these facts, the most useful one first.
func Of(f Facts) (list []run.Hint) {
	if f.Failed {
		for _, hint := range []func(Facts) *run.Hint{otherLanguage, missingModule, missingFile} {
			if h := hint(f); h != nil {
				list = append(list, *h)
				break
			}
		}
	}
	for _, d := range f.Connections {
		list = append(list, connection(d, f.Granted, f.Denials))
	}
	return list
}

// otherLanguage is about Python that was sent as JavaScript, and the like.
func otherLanguage(f Facts) *run.Hint {
	is := language.Guess(f.Code)
	if is == "" || is == f.Language.Name || is == "ts" && f.Language.Name == "js" {
		return nil
	}
	of, _, err := language.Named(is)
	if err != nil {
		return nil
	}
	return &run.Hint{Kind: run.HintLanguage, Subject: of.Name, Flag: "--lang", Field: "language",
		Text: fmt.Sprintf("the code looks like %s, and ran as %s: --lang %s runs it as %[1]s", of.About,
			f.Language.About, is)}
}

// missingModule is about an import that found nothing.
func missingModule(f Facts) *run.Hint {
	name := f.Language.Missing(f.Stderr)
	if name == "" {
		return nil
	}
	h := &run.Hint{Kind: run.HintModule, Subject: name}
	lacks := name + " is not in the machine: "
	if beside := besideCode(f, name); beside != "" {
		h.Flag, h.Field = "--project", "dirs"
		h.Text = lacks + beside + " is beside the code, and --project or --dir copies it in"
		return h
	}
	var ways []string
	if other := f.Language.ImageWith(name); other != "" && (f.Image == nil || other != f.Image.Payload.Name) {
		h.Flag, h.Field = "--image", "image"
		ways = append(ways, "--image "+other+" has it")
	}
	if spec := f.Language.PackageOf(name); spec != "" {
		if d := denied(f.Ceiling, spec); d != nil {
			h.Rule = d.Rule
			ways = append(ways, fmt.Sprintf("--with %s would install it, but %s does not allow that (key %s)", spec,
				d.Rule, d.Key))
		} else {
			if h.Flag == "" {
				h.Flag, h.Field = "--with", "packages"
			}
			ways = append(ways, "--with "+spec+" installs it, if it is a package")
		}
	}
	if len(ways) == 0 {
		h.Flag, h.Field = "--project", "dirs"
		ways = append(ways, "--project or --dir copies what is beside the code")
	}
	h.Text = lacks + strings.Join(ways, "; ")
	return h
}

// denied returns the ceiling's denial of a package, nil if it would be granted.
func denied(ceiling *policy.Ceiling, spec string) *policy.Denial {
	if ceiling == nil {
		return nil
	}
	_, denials, err := policy.Resolve(policy.Request{Packages: []string{spec}}, ceiling)
	if err != nil || len(denials) == 0 {
		return nil
	}
	return &denials[0]
}

// besideCode returns the name of the file or folder of the host, beside the code, that an import means; "" if there is
// none that the run may have.
func besideCode(f Facts, module string) string {
	module = strings.TrimPrefix(module, "./")
	var names []string
	if f.Language.Name == "python" {
		top, _, _ := strings.Cut(module, ".")
		names = []string{top + ".py", top}
	} else {
		for _, ext := range append([]string{""}, f.Language.Extensions...) {
			names = append(names, module+ext)
		}
	}
	for _, name := range names {
		at := path.Join(path.Dir(f.Path), name)
		if path.IsAbs(name) {
			at = name
		}
		if onHost(f, at) {
			return name
		}
	}
	return ""
}

// noFile is what programs print when a file is missing: Python, Node, Go, and the shell's commands.
var noFile = []*regexp.Regexp{
	regexp.MustCompile(`FileNotFoundError: \[Errno 2\] No such file or directory: '([^'\n]{1,1000})'`),
	regexp.MustCompile(`ENOENT: no such file or directory, [a-z]+ '([^'\n]{1,1000})'`),
	regexp.MustCompile(`(?:open|stat|lstat|chdir) (\S{1,1000}): no such file or directory`),
	regexp.MustCompile(`(?m)(?:^|: )(?:cannot (?:open|access|stat) )?['‘]?([^'‘’:\n]{1,1000})['’]?(?: for reading)?: No such file or directory`),
}

// missingFile is about a file that is on the host, and not in the machine.
func missingFile(f Facts) *run.Hint {
	for _, pattern := range noFile {
		all := pattern.FindAllStringSubmatch(f.Stderr, -1)
		if len(all) == 0 {
			continue
		}
		at := all[len(all)-1][1]
		if !path.IsAbs(at) {
			at = path.Join(f.Dir, at)
		}
		if at = path.Clean(at); !onHost(f, at) {
			continue
		}
		flag, field := "--file", "files"
		if info, err := os.Stat(at); err == nil && info.IsDir() {
			flag, field = "--dir", "dirs"
		}
		return &run.Hint{Kind: run.HintFile, Subject: at, Flag: flag, Field: field,
			Text: fmt.Sprintf("%s is on the host, and not in the machine: %s %s copies it in", at, flag, at)}
	}
	return nil
}

// onHost reports whether this host has a file at a path, if the run would be granted it. A path that the ceiling would
// not grant is not looked at: whether it exists is no matter of the code's.
func onHost(f Facts, at string) bool {
	if !f.HostFiles || strings.ContainsFunc(at, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return false
	}
	real, err := realpath.Of(at)
	if err != nil {
		return false
	}
	asked := policy.Request{Files: []policy.Mount{{Host: at, Real: real, Guest: at}}}
	_, denials, err := policy.Resolve(asked, f.Ceiling)
	return err == nil && len(denials) == 0
}
