package unitask_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const module = "github.com/unitask/unitask"

// floors lists the packages from the lowest floor up. A package imports packages of lower floors, and those inside its
// own folder. Packages of one floor don't import each other. "" is the root.
var floors = [][]string{
	{
		"guest/contract", "internal/accepting", "internal/atomicfile", "internal/attack", "internal/collector",
		"internal/disuse",
		"internal/edit",
		"internal/entropy", "internal/exact", "internal/filelock", "internal/gotest", "internal/guestport",
		"internal/hostname",
		"internal/httppath", "internal/nesting", "internal/offspring", "internal/publicaddr", "internal/realpath",
		"internal/regular",
		"internal/socketpair", "internal/stopclock", "internal/tail", "internal/testarchive", "internal/testcert",
		"internal/testdir",
		"internal/testlack", "internal/testprogram", "internal/testregistry", "internal/testroot",
		"internal/testsignals", "internal/testwait", "internal/unseen", "internal/userdir",
		"guest/system",
	},
	{"internal/bounded", "internal/export", "internal/fetch", "internal/home", "internal/hostexec", "internal/localsocket",
		"internal/testjupyter", "internal/vault", "internal/zmtp"},
	{
		"guest", "guest/container", "guest/golang", "guest/node", "guest/python", "guest/shell", "guest/tools",
		"image/debian", "image/debian/debiantest", "image/erofs", "image/oci", "image/tfs",
		"internal/audit", "internal/compiled",
		"internal/packages", "internal/selfupdate", "internal/signing", "internal/telemetry", "netstack/broker",
		"policy", "vmm/jail",
	},
	{"guest/supervisor", "guest/web", "image", "internal/changes", "netstack", "vmm", "internal/audit/webhook"},
	{"debug", "internal/hostfiles", "internal/skill", "internal/wrapped", "machine", "record"},
	{"run", "internal/home/config", "internal/project"},
	{"internal/egress", "internal/failure", "internal/toolhost", "internal/web"},
	{"internal/audit/runlog", "internal/clienttools", "internal/spans"},
	{"internal/approval", "internal/paused"},
	{"internal/history", "internal/language", "internal/learn"},
	{"internal/imagefile"},
	{"debug/attach", "internal/catalog"},
	{"internal/doctor", "internal/hints", "internal/install", "internal/program", "internal/webterm"},
	{"internal/engine", "internal/imagebuild"},
	{"session"},
	{""},
	{"internal/sessiond", "internal/testhome"},
	{"internal/console"},
	{"fleet", "internal/codexexec", "internal/pykernel", "mcp"},
	{"internal/e2b", "internal/jupyter"},
	{"internal/httpapi"},
	{"fleet/embedded"},
	{"cli"},
	{"cli/unitask", "clients",
		"hack/adapters",
		"hack/api", "hack/attack", "hack/bench", "hack/browser", "hack/compare", "hack/conformance", "hack/cover",
		"hack/dist", "hack/e2b", "hack/escapes",
		"hack/fidelity", "hack/fleet", "hack/limits", "hack/lock",
		"hack/packages", "hack/picture", "hack/report", "hack/seccomp", "hack/soak"},
}

type goPackage struct {
	ImportPath, Doc string
	Imports         []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Doc,Imports", "./...", "./hack/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p goPackage
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

func room(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

func TestImportsPointDown(t *testing.T) {
	floor := map[string]int{}
	for i, rooms := range floors {
		for _, r := range rooms {
			floor[r] = i
		}
	}
	for _, p := range packages(t) {
		from := room(p.ImportPath)
		at, known := floor[from]
		if !known {
			t.Errorf("package %s has no floor in the house", p.ImportPath)
		}
		for _, i := range p.Imports {
			if !strings.HasPrefix(i, module) || from != "" && strings.HasPrefix(room(i), from+"/") {
				continue
			}
			if floor[room(i)] >= at {
				t.Errorf("%s imports %s, which is not below it", p.ImportPath, i)
			}
		}
	}
}

// Budgets may only fall: a change that needs less lowers the number here.
var budgets = map[string]int{
	"files of the root":            5,
	"lines of the root":            908,
	"methods of Runtime":           36,
	"functions of over 80 lines":   0,
	"tests of over 80 lines":       0,
	"files of over 500 lines":      0,
	"lines of over 120 characters": 0,
	"sentences of over 25 words":   0,
	"methods of image.Store":       43,
	"sleeps in tests":              10,
	"bytes of ARCHITECTURE.md":     10_524,
}

func TestBudgets(t *testing.T) {
	got := map[string]int{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".go") {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		isTest := strings.HasSuffix(name, "_test.go")
		lines := strings.Count(string(text), "\n")
		if filepath.Dir(name) == "." && !isTest {
			got["files of the root"]++
			got["lines of the root"] += lines
			got["methods of Runtime"] += strings.Count(string(text), "\nfunc (rt *Runtime) ")
		}
		if filepath.Dir(name) == "image" && !isTest {
			got["methods of image.Store"] += strings.Count(string(text), "\nfunc (s *Store) ")
		}
		if lines > 500 {
			got["files of over 500 lines"]++
		}
		for _, f := range function.FindAllString(string(text), -1) {
			if strings.Count(f, "\n") > 80 {
				if isTest {
					got["tests of over 80 lines"]++
				} else {
					got["functions of over 80 lines"]++
				}
			}
		}
		for line := range strings.Lines(string(text)) {
			if utf8.RuneCountInString(line) > 121 {
				got["lines of over 120 characters"]++
			}
		}
		for _, c := range commentsOf(string(text), "//") {
			_, long := c.sentences()
			got["sentences of over 25 words"] += len(long)
			if len(long) > 0 {
				t.Logf("%s:%d: a long sentence: %q", name, c.line, long)
			}
		}
		if isTest {
			got["sleeps in tests"] += len(sleep.FindAll(text, -1))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	got["bytes of ARCHITECTURE.md"] = len(page)
	for what, most := range budgets {
		if got[what] > most {
			t.Errorf("%s: got %d, want at most %d", what, got[what], most)
		}
		if got[what] < most {
			t.Logf("%s: %d, which is below its budget of %d: lower that", what, got[what], most)
		}
	}
}

// The files, folders and functions that ARCHITECTURE.md names exist.
func TestArchitectureNames(t *testing.T) {
	page, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	err = filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			var text []byte
			text, err = os.ReadFile(name)
			code.Write(text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, m := range regexp.MustCompile("`([\\w./]+)`").FindAllStringSubmatch(string(page), -1) {
		name := m[1]
		first, last := name[:max(0, strings.IndexByte(name, '.'))], name[strings.LastIndexByte(name, '.')+1:]
		switch {
		case strings.HasSuffix(name, ".go") || strings.HasPrefix(name, "internal/"):
			if _, err := os.Stat(name); err != nil {
				t.Errorf("ARCHITECTURE.md names %s: %v", name, err)
			}
		case first != "" && last != "json" && last != "jsonl" && last != "toml" && last != "lock" && last != "md":
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + last + `[(\[]`).MatchString(code.String()) {
				t.Errorf("ARCHITECTURE.md names %s: no such function", name)
			}
		default:
			continue
		}
		checked++
	}
	if checked < 20 {
		t.Errorf("got %d names, want 20 or more", checked)
	}
}

// sleep matches a wait for a time instead of an event. A select may have a time limit.
var sleep = regexp.MustCompile(`(?m)\btime\.Sleep\(|^\s*<-time\.After\(`)

// function matches a whole function.
var function = regexp.MustCompile(`(?ms)^func .*?^\}`)

// A program for one host contains no NATS, and a program that submits to a fleet contains no NATS server. A program
// that embeds unitask sends spans through its own provider, or sends none.
func TestNoNATS(t *testing.T) {
	for _, row := range []struct{ room, without string }{{".", "nats-io"}, {"./mcp", "nats-io"},
		{"./fleet", "nats-io/nats-server"}, {"./mcp", "otel/sdk"}, {"./mcp", "google.golang.org/grpc"},
		{"./fleet", "otel/sdk"}} {
		out, err := exec.Command("go", "list", "-deps", row.room).Output()
		if err != nil {
			t.Fatal(err)
		}
		if at := strings.Index(string(out), row.without); at >= 0 {
			line, _, _ := strings.Cut(string(out[at:]), "\n")
			t.Errorf("%s brings %s along", row.room, line)
		}
	}
}

// Each package has a comment that describes it.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.Doc) < 20 {
			t.Errorf("package %s has no comment", p.ImportPath)
		}
	}
}

// make long runs the cases that a test leaves to it.
func TestLongIsRun(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(makefile), "UNITASK_TEST_LONG=1 ")
	list, _, _ = strings.Cut(list, "\n")
	names, rooms, _ := strings.Cut(list, ")$$'")
	_, names, _ = strings.Cut(names, "'^(")
	var left []string
	err = filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") || name == "house_test.go" {
			return err
		}
		text, err := os.ReadFile(name)
		for _, f := range test.FindAllStringSubmatch(string(text), -1) {
			if !leaves.MatchString(f[2]) {
				continue
			}
			left = append(left, f[1])
			if dir := filepath.Dir(name); !slices.Contains(strings.Split(names, "|"), f[1]) ||
				dir != "." && !slices.Contains(strings.Fields(rooms), "./"+dir) {
				t.Errorf("%s: %s leaves something to make long, which does not run it", name, f[1])
			}
		}
		return err
	})
	if err != nil || len(left) < 20 {
		t.Errorf("only %v: %v", left, err)
	}
}

// leaves matches what leaves something to make long.
var leaves = regexp.MustCompile(`\b(long|runsNow)\(|UNITASK_TEST_LONG`)

// test matches a whole test: its name and its body.
var test = regexp.MustCompile(`(?ms)^func (Test\w+)\(t \*testing\.T\) \{\n(.*?)^\}`)

// docs/security.md says how many fuzz targets exist.
func TestSecurityCountsFuzzTargets(t *testing.T) {
	target, n := regexp.MustCompile(`(?m)^func Fuzz\w+\(`), 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			var text []byte
			text, err = os.ReadFile(path)
			n += len(target.FindAll(text, -1))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	if said := regexp.MustCompile(`\b\d+ fuzz targets`).FindString(string(text)); said != fmt.Sprintf("%d fuzz targets",
		n) {
		t.Errorf("docs/security.md says %q; there are %d", said, n)
	}
}

// The tests in the documents on security exist: a promise without its test is worthless.
func TestSecurityNamesTests(t *testing.T) {
	var all strings.Builder
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			var text []byte
			text, err = os.ReadFile(path)
			all.Write(text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`(Test[A-Z]\\w*)(…?)`").FindAllStringSubmatch(string(text), -1)
	if len(names) < 10 {
		t.Errorf("%d tests are named", len(names))
	}
	for _, name := range names {
		want := "func " + name[1]
		if name[2] == "" {
			want += "("
		}
		if !strings.Contains(all.String(), want) {
			t.Errorf("docs/security.md names %s, which there is not", name[1]+name[2])
		}
	}
	for _, file := range regexp.MustCompile("`([\\w/]+_test\\.go)`").FindAllStringSubmatch(string(text), -1) {
		if _, err := os.Stat(file[1]); err != nil {
			t.Errorf("docs/security.md: %v", err)
		}
	}
}

// oldWords are this project's former words for terms of the field, each with the term (ARCHITECTURE.md, Glossary).
var oldWords = map[*regexp.Regexp]string{
	regexp.MustCompile(`Neighbours?\b|\bneighbours\b`):                      "inline files",
	regexp.MustCompile(`\b(max|Max)?Brought\w*|images? (was|were) brought`): "shipped image",
	regexp.MustCompile(`\b[Oo]wn ?[Ii]mages?\b`):                            "custom image",
	regexp.MustCompile(`\bimages? that (come|comes|came) along`):            "bundled or shipped image",
	regexp.MustCompile(`\bHolder\b|\bpatrons?\b`):                           "session daemon, client",
	regexp.MustCompile(`\bShape\b`):                                         "machine class",
	regexp.MustCompile(`\b[Ss]hel(f|ves)\b`):                                "store, group",
	regexp.MustCompile(`\bGoOn\b|\bgoesOn\(|\.suits\(`):                     "Continue, resumed, matches",
	regexp.MustCompile(`\.(doze|asleep)\(`):                                 "pauseIfIdle, waitForUse",
	regexp.MustCompile(`\b[Ll]iving\b`):                                     "live rules",
}

// keptWords matches lines that may keep an old word: those that read old records, and routes.
var keptWords = regexp.MustCompile(`neighbours\.json|\["neighbours"\]|asked, "neighbours"|its old name|ip route`)

func TestOldWords(t *testing.T) {
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		code := strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
		if err != nil || !code && !strings.HasSuffix(name, ".md") {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for old, term := range oldWords {
			if !old.Match(text) {
				continue
			}
			for at, line := range strings.Split(string(text), "\n") {
				if found := old.FindString(line); found != "" && !keptWords.MatchString(line) {
					t.Errorf("%s:%d: got the old word %q, want %s", name, at+1, found, term)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// No binary is tracked, so no output of a build or a download gets into a commit.
func TestNoTrackedBinaries(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Skip("no git, or no checkout: ", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) { // removed, and not committed yet
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if picture, _ := path.Match("docs/ui-*.png", name); picture && len(text) < 100<<10 { // by make screenshots
			continue
		}
		if bytes.IndexByte(text[:min(len(text), 8000)], 0) >= 0 && !strings.Contains(name, "testdata/") {
			t.Errorf("%s is a binary", name)
		}
	}
}
