package unitask_test

import (
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Languages of images, as their files declare them. The images are built on first use, from the packages of this host's
// Debian mirror.

func needApt(t *testing.T) {
	t.Helper()
	needVM(t)
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("apt-get is not on this machine, by which packages of Debian are resolved")
	}
}

// declaredPrograms has NAME/PROGRAM.EXTENSION for each shipped image, and NAME/PROGRAM.want: the exit code, and stdout.
// NAME/PROGRAM.says matches stderr. Each program has the arguments "one" and "two words", two lines of input, and may
// leave /out/result.txt, whose text follows stdout.
const declaredPrograms = "testdata/declared.txtar"

var declaredKinds = []string{"hello", "stdin", "args", "error", "out"}

// declaredRun runs a program of a shipped image, by its file's name, and compares what it does.
func declaredRun(t *testing.T, rt *unitask.Runtime, home string, programs *testarchive.Archive,
	e *imagefile.Environment, kind string) {
	t.Helper()
	name := path.Join(e.Name, kind)
	req := unitask.Request{Path: kind + e.Language.Extensions[0], Args: []string{"one", "two words"},
		Code: programs.File(name + e.Language.Extensions[0]), Timeout: 4 * time.Minute}
	res, err := rt.Run(t.Context(), req, unitask.IO{Stdin: strings.NewReader("alpha\nbeta\n")})
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	got := "exit " + itoa(res.ExitCode) + "\n" + string(res.Stdout)
	for _, a := range res.Artifacts {
		text, err := os.ReadFile(filepath.Join(home, "runs", res.RunID, record.ArtifactsDir, a.Path))
		if err != nil {
			t.Error(err)
		}
		got += string(text)
	}
	if want := programs.File(name + ".want"); got != want {
		t.Errorf("%s: got\n%s\nwant\n%s\nstderr %s", name, got, want, res.Stderr)
	}
	says := ""
	if kind == "error" {
		says = strings.TrimSpace(programs.File(name + ".says"))
	}
	if !regexp.MustCompile(says).Match(res.Stderr) || says == "" && len(res.Stderr) > 0 {
		t.Errorf("%s: stderr %q, want %q", name, res.Stderr, says)
	}
}

// A language is built on first use, and runs by its file's name, its own name, and its image's.
func TestDeclaredLanguage(t *testing.T) {
	needApt(t)
	home := newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted()})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	slot(t)
	ran := func(req unitask.Request, ceiling *policy.Ceiling) (*unitask.Result, error) {
		return rt.RunFor(t.Context(), unitask.Caller{Ceiling: ceiling}, req, unitask.IO{})
	}
	// Models get it only if the ceiling names it; nothing is built before.
	models, err := policy.LoadForModels(home, t.TempDir(), "", false)
	if err != nil {
		t.Fatal(err)
	}
	var denied *policy.FieldError
	if _, err := ran(unitask.Request{Language: "lua", Code: "print(1)"}, models.Ceiling); !errors.As(err, &denied) ||
		denied.Field != "image" {
		t.Errorf("under the models' ceiling: %v", err)
	}
	if own := rt.Catalog().Customs(); len(own) > 0 {
		t.Errorf("a denied run built %s", own[0].Name)
	}
	// A session builds it, too. Its steps are in the language of the base.
	s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Request: unitask.Request{Image: "lua"}})
	if err != nil {
		t.Fatal(err)
	}
	step, err := s.Exec(t.Context(), unitask.Command{Args: []string{"lua5.4", "-e", "print(6 * 7)"}})
	if err != nil || string(step.Stdout) != "42\n" {
		t.Errorf("a session's command: %v %+v", err, step)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		req  unitask.Request
		exit int
		out  string
	}{
		{unitask.Request{Path: "hello.lua", Code: "print(_VERSION)\nos.exit(3)"}, 3, "Lua 5.4\n"},
		{unitask.Request{Language: "lua", Code: "print(...)", Args: []string{"$(id)"}}, 0, "$(id)\n"},
		{unitask.Request{Image: "lua", Path: "a $(touch b) '.txt", Code: "print(arg[0])"}, 0, "/work/a $(touch b) '.txt\n"},
		{unitask.Request{Image: "lua", Language: "shell", Code: "lua5.4 -e 'print(2)'"}, 0, "2\n"},
		{unitask.Request{Language: "lua", Check: true, Code: "print(1"}, 1, ""},
	} {
		if res, err := ran(c.req, nil); err != nil || res.ExitCode != c.exit || string(res.Stdout) != c.out {
			t.Errorf("%+v: %v %+v", c.req, err, res)
		}
	}
}

// Programs in every shipped language do what the archive says.
func TestDeclaredLanguages(t *testing.T) {
	needApt(t)
	if !long() {
		t.Skip("images with the other languages take minutes: make long (UNITASK_TEST_LONG=1)")
	}
	home := newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	programs := testarchive.Open(t, declaredPrograms)
	for _, e := range imagefile.Languages() {
		t.Run(e.Name, func(t *testing.T) {
			slot(t)
			for _, kind := range declaredKinds {
				declaredRun(t, rt, home, programs, e, kind)
			}
		})
	}
}
