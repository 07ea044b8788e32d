// Package hints describes what a run seems to have lacked, and what provides it. The engine calls it with what it
// observed of a run or a step. It starts nothing. On the host, it looks only for files that the ceiling would grant.
package hints

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/realpath"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Facts is what was observed of a run or a step.
type Facts struct {
	Language *language.Language
	Image    *language.Image
	Code     string      // its text
	Path     string      // the code's path in the guest
	Dir      string      // its working directory
	Stderr   string      // the end of stderr
	Failed   bool        // the exit code is not 0
	Left     *guest.Left // files left in its working directory

	Connections []netstack.Decision // the failed ones (Connections.Take)
	Granted     policy.Effective
	Denials     []policy.Denial
	Ceiling     *policy.Ceiling // nil if none
	Changed     bool            // the network's rules have changed since the grant
	Session     bool            // it is a step; a session's grants are fixed at its start
	// HostFiles reports that a path in the guest would be the same file on this host, if the file is copied there.
	HostFiles bool
}

// Of returns the hints for these facts: hints about the code first, then hints about its connections.
func Of(f Facts) (list []run.Hint) {
	if f.Failed {
		for _, hint := range []func(Facts) *run.Hint{missingTools, missingModule, missingFile, otherLanguage} {
			if h := hint(f); h != nil {
				list = append(list, *h)
				break
			}
		}
	}
	for _, d := range f.Connections {
		list = append(list, connection(d, f))
	}
	if h := leftOutside(f); h != nil {
		list = append(list, *h)
	}
	return list
}

// leftOutside returns a hint about files that the code has written outside /out; nil if there are none, or if no files
// may come back. The code chooses the names, so the hint shows only plain names.
func leftOutside(f Facts) *run.Hint {
	if f.Left == nil || f.Granted.MaxArtifacts <= 0 || policy.Within(contract.OutDir, f.Dir) {
		return nil
	}
	names := slices.DeleteFunc(slices.Clone(f.Left.Names), func(name string) bool {
		return !isPlain(strings.TrimSuffix(name, "/")) || len(name) > maxLeftName || wordsIn(name) > maxLeftWords
	})
	slices.Sort(names)
	names = names[:min(len(names), maxLeft)]
	h := &run.Hint{Kind: run.HintLeft, Subject: strings.Join(names, ", ")}
	more := f.Left.Count - len(names)
	switch {
	case more > 0 && len(names) > 0:
		names = append(names, fmt.Sprintf("%d more", more))
	case more == 1:
		names = []string{"a file"}
	case more > 0:
		names = []string{fmt.Sprintf("%d files", more)}
	}
	what, were := names[0], "was"
	if last := len(names) - 1; last > 0 {
		what, were = strings.Join(names[:last], ", ")+" and "+names[last], "were"
	} else if more > 1 {
		were = "were"
	}
	h.Text = fmt.Sprintf("%s %s left outside /out, and went with the machine: what is written to /out comes back",
		what, were)
	return h
}

// Limits of a hint about files that were left.
const (
	maxLeft      = 4  // names
	maxLeftName  = 60 // bytes of a name
	maxLeftWords = 4  // in a name: more could be a sentence with dashes
)

// wordsIn counts the words of a name, without numbers.
func wordsIn(name string) int {
	return len(strings.FieldsFunc(name, func(r rune) bool { return !unicode.IsLetter(r) }))
}

// notUnderstood is what interpreters print about code in another language.
var notUnderstood = regexp.MustCompile(
	`(?i)syntax ?error|NameError|ReferenceError|command not found|expected 'package'|unexpected token`)

// languageNames are the names of languages for people.
var languageNames = map[string]string{"js": "JavaScript", "ts": "TypeScript", "python": "Python", "shell": "shell",
	"go": "Go"}

// otherLanguage returns a hint that the code may be in another language; nil if nothing indicates that.
func otherLanguage(f Facts) *run.Hint {
	is, ran := language.Guess(f.Code), f.Language.Name
	if is == "" || is == ran || is == "ts" && ran == "js" || languageNames[ran] == "" ||
		!notUnderstood.MatchString(f.Stderr) {
		return nil
	}
	h := &run.Hint{Kind: run.HintLanguage, Subject: is, Text: fmt.Sprintf(
		"the code looks like %s, but ran as %s: --lang %s runs it as %[1]s", languageNames[is], languageNames[ran], is)}
	h.Ask("language")
	return h
}

// noTools is what an interpreter prints about the module of tools in a run without them, at an error's line.
var noTools = regexp.MustCompile(`(?m)^ModuleNotFoundError: No module named 'unitask_tools'|` +
	`^Error \[ERR_UNSUPPORTED_ESM_URL_SCHEME\]: .*'unitask:'|unitask-tool: (command )?not found`)

// missingTools returns a hint that the run has no tools, nil if its code does not want them. No package is named:
// anybody could publish one of that name.
func missingTools(f Facts) *run.Hint {
	if len(f.Granted.Tools) > 0 || !noTools.MatchString(f.Stderr) {
		return nil
	}
	h := &run.Hint{Kind: run.HintModule, Subject: "unitask_tools",
		Text: "this run has no tools: --tools NAME asks for those of a server; `unitask tools ls` lists the servers"}
	h.Ask("tools")
	return h
}

// missingModule returns a hint about an import that failed, nil if there was none.
func missingModule(f Facts) *run.Hint {
	name := f.Language.Missing(f.Stderr)
	if name == "" {
		return nil
	}
	h := &run.Hint{Kind: run.HintModule}
	if plain := strings.TrimLeft(name, "./"); isPlain(plain) { // otherwise it is an unusual name
		h.Subject = name
	} else {
		name = "a module"
	}
	lacks := name + " is not in the machine: "
	if beside := besideCode(f, name); beside != "" {
		h.Ask("dirs")
		h.Text = lacks + beside + " is beside the code, and --project or --dir copies it in"
		return h
	}
	with := ""
	if f.Session {
		with = "a new session with "
	}
	var ways []string
	if f.Image != nil && f.Image.Has(name) {
		return nil // the module exists, and something in it is missing
	}
	spec, other := f.Language.PackageOf(name), f.Language.ImageWith(name, f.Image)
	if d := denied(f.Ceiling, "image", policy.Request{Image: other}); other != "" && d != nil {
		h.Rule = d.Rule
		ways = append(ways, fmt.Sprintf("--image %s has it, but %s does not allow that (key %s)", other, d.Rule, d.Key))
	} else if other != "" {
		h.Ask("image")
		ways = append(ways, with+"--image "+other+" has it")
	}
	if d := denied(f.Ceiling, "packages", policy.Request{Packages: []string{spec}}); spec != "" && d != nil {
		h.Rule = d.Rule
		ways = append(ways, fmt.Sprintf("--with %s would install it, but %s does not allow that (key %s)", spec,
			d.Rule, d.Key))
	} else if spec != "" {
		if h.Field == "" {
			h.Ask("packages")
		}
		ways = append(ways, with+"--with "+spec+" installs it, if it is a package")
	}
	if len(ways) == 0 {
		h.Ask("dirs")
		ways = append(ways, "--project or --dir copies what is beside the code")
	}
	h.Text = lacks + strings.Join(ways, "; ")
	return h
}

// denied returns the ceiling's denial of a request's field, nil if it would be granted.
func denied(ceiling *policy.Ceiling, field string, asked policy.Request) *policy.Denial {
	if ceiling == nil {
		return nil
	}
	_, denials, err := policy.Resolve(asked, ceiling)
	if err != nil {
		return nil
	}
	for _, d := range denials {
		if d.Field == field {
			return &d
		}
	}
	return nil
}

// besideCode returns the path, below the working folder, of the host's file or folder that an import means. It returns
// "" if the run may be granted none.
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
		if found, _ := onHost(f, at); found != "" {
			return found
		}
	}
	return ""
}

// noFile is what programs print when a file is missing: Python, Node, Go, and the shell's commands.
var noFile = []*regexp.Regexp{
	regexp.MustCompile(`FileNotFoundError: \[Errno 2\] No such file or directory: '([^'\n]{1,1000})'`),
	regexp.MustCompile(`ENOENT: no such file or directory, [a-z]+ '([^'\n]{1,1000})'`),
	regexp.MustCompile(`(?:open|stat|lstat|chdir) (\S{1,1000}): no such file or directory`),
	regexp.MustCompile(`(?m)(?:^|: )(?:cannot (?:open|access|stat) )?['‘]?([^'‘’:\n]{1,1000})['’]?` +
		`(?: for reading)?: No such file or directory`),
}

// missingFile returns a hint about a file that is on the host but not in the machine, nil if there is none.
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
		found, folder := onHost(f, path.Clean(at))
		if found == "" {
			continue
		}
		h := &run.Hint{Kind: run.HintFile, Subject: found}
		if h.Ask("files"); folder {
			h.Ask("dirs")
		}
		h.Text = fmt.Sprintf("%s is on the host, and not in the machine: %s %[1]s copies it in", found, h.Flag)
		return h
	}
	return nil
}

// plainPath matches a path that a hint may show: letters, digits and few other characters, so that it can't be a
// sentence.
var plainPath = regexp.MustCompile(`^[\pL\pN_@+][\pL\pN_.@+-]*(?:/[\pL\pN_@+][\pL\pN_.@+-]*)*$`)

// isPlain reports whether a text is a plain path of at most maxPath bytes, and not a flag.
func isPlain(text string) bool {
	hidden := func(r rune) bool { return unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) }
	return len(text) <= maxPath && plainPath.MatchString(text) && !strings.Contains(text, "--") &&
		!strings.ContainsFunc(text, hidden)
}

// onHost returns the host's path, below the working directory, for a path in the guest. It does so only if the run may
// be granted the file and did not have it; folder reports whether it is a folder. The code chooses the path. So onHost
// looks at nothing outside the directory and at nothing hidden, and discloses nothing that the ceiling would not grant.
func onHost(f Facts, at string) (below string, folder bool) {
	below, is := strings.CutPrefix(at, strings.TrimSuffix(f.Dir, "/")+"/")
	if !f.HostFiles || !is || !isPlain(below) {
		return "", false
	}
	brought := func(m policy.Mount) bool { return policy.Within(m.Guest, at) }
	if slices.ContainsFunc(slices.Concat(f.Granted.Files, f.Granted.Dirs), brought) {
		return "", false
	}
	dir, err := realpath.Of(f.Dir)
	if err != nil {
		return "", false
	}
	real, err := realpath.Of(at)
	inside, is := strings.CutPrefix(real, strings.TrimSuffix(dir, "/")+"/")
	if err != nil || !is || !isPlain(inside) { // a link may lead to a hidden file
		return "", false
	}
	info, err := os.Lstat(real)
	if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
		return "", false
	}
	mount := []policy.Mount{{Host: at, Real: real, Guest: at}}
	asked := policy.Request{Files: mount}
	if info.IsDir() {
		asked = policy.Request{Dirs: mount}
	}
	if _, denials, err := policy.Resolve(asked, f.Ceiling); err != nil || len(denials) > 0 {
		return "", false
	}
	return below, info.IsDir()
}

// maxPath limits a path in a hint, in bytes.
const maxPath = 200
