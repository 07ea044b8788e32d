package cli

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
)

// verbs are the words that help begins with.
var verbs = strings.Fields(`Answer Boot Build Change Check Copy End Fetch Give Have Hold Keep Let List Look Open Pause
	Print Put Read Remove Replace Resume Return Run Serve Show Sign Start Review Take Update Wait Write`)

// Help begins with a verb, fits 100 columns and narrower terminals, and names the values of flags.
func TestHelp(t *testing.T) {
	t.Setenv("UNITASK_HOME", testdir.Private(t))
	value := regexp.MustCompile(`^[A-Z]+([:=][A-Z]+)?$`)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		_, path, _ := strings.Cut(cmd.CommandPath(), " ")
		if strings.HasPrefix(path, "completion") || path == "help" {
			return
		}
		args := append(strings.Fields(path), "--help")
		_, text, _ := said(t, args...)
		if word, _, _ := strings.Cut(text, " "); !slices.Contains(verbs, strings.TrimRight(word, ",")) {
			t.Errorf("the help of %q begins with %q", path, word)
		}
		for columns, text := range map[int]string{maxHelp: text, 80: shownOn(t, 80, args...), 50: shownOn(t, 50, args...),
			200: shownOn(t, 200, args...)} {
			text, _, _ = strings.Cut(text, "\nExamples:\n")
			for line := range strings.Lines(text) {
				if width := textWidth(strings.TrimSuffix(line, "\n")); width > min(columns, maxHelp) {
					t.Errorf("%s on %d columns: %q", path, columns, line)
				}
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if strings.Contains(f.Usage, "`") {
				t.Errorf("%s --%s has back quotes, which would name its value: %q", path, f.Name, f.Usage)
			}
			kind := f.Value.Type()
			if name := valueName(f); (kind == "bool") != (name == "") || name != "" && !value.MatchString(name) ||
				strings.HasPrefix(kind, "string") && flagTypes[f.Name] == "" {
				t.Errorf("%s --%s has a value %q of type %s: give it a row in flagTypes", path, f.Name, name, kind)
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(Command())
}

// The flags of run are in groups, and flags shared with other commands have the same order there.
func TestHelpGroups(t *testing.T) {
	order := func(path ...string) (names []string) {
		_, text, _ := said(t, append(path, "--help")...)
		for _, title := range []string{"Machine:", "Network:", "Policy and secrets:"} {
			if !strings.Contains(text, "\n"+title+"\n") {
				t.Errorf("%q has no group %s", path, title)
			}
		}
		text, _, _ = strings.Cut(text, "\nGlobal Flags:")
		for _, m := range regexp.MustCompile(`(?m)^  (?:-., |    )--([a-z-]+)`).FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		return names
	}
	run := order("run")
	for _, path := range [][]string{{"session", "new"}, {"shell"}, {"policy", "show"}} {
		other := order(path...)
		both := func(list, in []string) []string {
			return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return !slices.Contains(in, name) })
		}
		if a, b := both(run, other), both(other, run); !slices.Equal(a, b) || len(a) < 15 {
			t.Errorf("%q has another order than run:\n%q\n%q", path, b, a)
		}
	}
}

// The error for a misspelt command or flag suggests the right one.
func TestDidYouMean(t *testing.T) {
	t.Setenv("UNITASK_HOME", testdir.Private(t))
	misspell := func(name string) string { return name[:2] + "x" + name[2:] }
	asks := func(want string, args ...string) {
		t.Helper()
		code, _, errs := said(t, args...)
		if code != unitask.ExitUsage || !strings.Contains(errs, "did you mean "+want+"?") {
			t.Errorf("%q: exit code %d, %s", args, code, errs)
		}
	}
	for path, cmd := range leaves() {
		words := strings.Fields(path)
		if last := words[len(words)-1]; len(last) > 3 {
			asks(last, append(slices.Clone(words[:len(words)-1]), misspell(last))...)
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if len(f.Name) > 4 && !f.Hidden {
				asks("--"+f.Name, append(slices.Clone(words), "--"+misspell(f.Name))...)
			}
		})
	}
	asks("cursor", "mcp", "config", "cursr")
	for _, args := range [][]string{{"run", "--image", "pyton", "--code", "1"}, {"image", "build", "--image", "pyton"},
		{"image", "rm", "pyton"}, {"shell", "--image", "pyton"}} {
		asks("python", args...)
	}
}

// The shell completes every argument and flag that is an image, a language, a run, a session, a client or a kind of
// entry.
func TestCompletion(t *testing.T) {
	listedHome(t)
	named := map[string]string{"IMAGE": "python", "ID": "last", "RUN": "last", "CLIENT": "cursor"}
	complete := func(want string, args ...string) {
		t.Helper()
		if _, out, _ := said(t, append([]string{"__complete"}, args...)...); !strings.Contains("\n"+out, "\n"+want+"\n") {
			t.Errorf("%q completes to %q, without %s", args, out, want)
		}
	}
	checked := 0
	for path, cmd := range leaves() {
		words := strings.Fields(path)
		for at, names := range argumentPlaces(cmd) {
			for _, name := range names {
				if want := named[name]; want != "" && at == 0 {
					complete(want, append(slices.Clone(words), "")...)
					checked++
				}
			}
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			want := map[string]string{"image": "python", "lang": "python", "replay": "last", "attach": "last",
				"kind": "run.started"}[f.Name]
			if want != "" {
				complete(want, append(slices.Clone(words), "--"+f.Name, "")...)
				checked++
			}
		})
		if strings.Contains(cmd.Use, " SESSION") && !strings.Contains(cmd.Use, "SESSION:") && cmd.ValidArgsFunction == nil {
			t.Errorf("%s completes no session", path)
		}
	}
	if checked < 15 {
		t.Errorf("%d completions", checked)
	}
}
