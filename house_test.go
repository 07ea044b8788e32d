package unitask_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The house: who may import whom. cli → mcp → the root → the first floor → the ground
// floor. The rooms on one floor know nothing of each other.
const module = "github.com/unitask/unitask"

// ground are the rooms on the ground floor.
var ground = []string{"vmm", "image", "guest", "netstack", "packages", "environments", "compiled"}

// first are those on the first floor: the machines, and what stands beside them.
var first = []string{"machine", "hostfiles", "policy", "record", "audit", "debug"}

// tools are what any room may use: they do one small thing each, and know no room.
var tools = []string{"internal/accepting", "internal/atomicfile", "internal/edit", "internal/filelock", "internal/tail"}

func and(rooms ...[]string) []string { return slices.Concat(rooms...) }

var mayImport = map[string][]string{
	"cli/unitask": {"cli"},
	"cli":         and([]string{"fleet", "fleet/embedded", "holder", "mcp", "telemetry", "audit/webhook", "internal/export", "internal/regular", "internal/userdir", "internal/vault", ""}, first, ground),
	"fleet":       {"", "guest", "holder", "hostfiles", "internal/exact", "internal/nesting", "machine", "policy", "record"},
	"holder":      {"", "machine", "policy", "record"},
	"mcp":         and([]string{"", "internal/exact", "internal/fetch", "internal/hostname", "internal/regular", "internal/userdir", "internal/vault"}, first, ground),
	"":            and([]string{"audit/webhook", "guest/container", "guest/node", "guest/python", "guest/session", "guest/shell", "guest/system", "guest/golang", "image/oci", "internal/exact", "internal/export", "internal/nesting", "internal/publicaddr", "internal/regular", "internal/userdir", "internal/vault", "netstack/broker"}, first, ground),

	"machine":       and([]string{"internal/socketpair"}, ground),
	"debug":         {"vmm"},
	"hostfiles":     {"guest", "internal/export", "internal/realpath"},
	"policy":        {"internal/exact", "internal/hostname", "internal/httppath", "internal/realpath", "internal/userdir"},
	"record":        {"internal/entropy", "internal/export"},
	"audit":         {},
	"audit/webhook": {"audit"},
	"telemetry":     {},

	"vmm":             {"internal/socketpair"},
	"vmm/jail":        {"internal/socketpair"},
	"image":           {"internal/fetch"},
	"packages":        {"internal/nesting", "internal/regular"},
	"compiled":        {},
	"environments":    {},
	"image/erofs":     {},
	"image/oci":       {"internal/fetch"},
	"image/tfs":       {},
	"guest":           {},
	"guest/container": {},
	"guest/contract":  {}, // constants, which every room may import
	"guest/node":      {"guest/system"},
	"guest/python":    {"guest/system"},
	"guest/session":   {"guest"},
	"guest/golang":    {},
	"guest/shell":     {"guest/system"},
	"guest/system":    {},
	"netstack":        {"internal/hostname", "internal/publicaddr", "internal/socketpair"},
	"netstack/broker": {"internal/entropy", "internal/httppath"},
	"fleet/embedded":  {"fleet"},

	"internal/accepting":   {},
	"internal/atomicfile":  {},
	"internal/attack":      {},
	"internal/collector":   {},
	"internal/edit":        {},
	"internal/entropy":     {},
	"internal/exact":       {},
	"internal/export":      {},
	"internal/fetch":       {"internal/hostname", "internal/publicaddr"},
	"internal/filelock":    {},
	"internal/gotest":      {},
	"internal/hostname":    {},
	"internal/httppath":    {},
	"internal/nesting":     {},
	"internal/offspring":   {},
	"internal/publicaddr":  {},
	"internal/realpath":    {},
	"internal/socketpair":  {},
	"internal/tail":        {},
	"internal/regular":     {},
	"internal/testcert":    {},
	"internal/testdir":     {},
	"internal/testlack":    {},
	"internal/testsignals": {},
	"internal/userdir":     {},
	"internal/vault":       {},

	"hack/attack":       {"internal/attack", "internal/gotest"},
	"hack/bench":        {"", "image", "image/tfs", "internal/offspring", "mcp", "policy", "vmm"},
	"hack/conformance":  {"netstack/broker"},
	"hack/cover":        {},
	"hack/dist":         {"cli"},
	"hack/escapes":      {"internal/offspring"},
	"hack/fidelity":     {"", "guest/python", "image"},
	"hack/packages":     {""},
	"hack/report":       {"internal/attack", "internal/gotest"},
	"hack/seccomp":      {"vmm/jail"},
	"hack/fleet":        {"", "fleet", "internal/offspring", "policy"},
	"hack/soak":         {"internal/offspring"},
	"internal/testhome": {"", "image", "internal/testdir", "machine"},
}

type goPackage struct {
	ImportPath, Doc string
	Imports         []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Doc,Imports", "./...").Output()
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

func TestImportDirections(t *testing.T) {
	for _, p := range packages(t) {
		allowed, known := mayImport[room(p.ImportPath)]
		if !known {
			t.Errorf("package %s has no place in the house", p.ImportPath)
		}
		for _, i := range p.Imports {
			if !strings.HasPrefix(i, module) {
				continue
			}
			// A package may use those inside its own folder.
			if own := room(p.ImportPath); own != "" && strings.HasPrefix(room(i), own+"/") {
				continue
			}
			if !slices.Contains(allowed, room(i)) && !slices.Contains(tools, room(i)) && room(i) != "guest/contract" {
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
		}
	}
}

// A program that runs on one host has no NATS in it, and one that submits to a fleet no server; who
// embeds unitask sends spans as the program does, or not at all.
func TestNoNATS(t *testing.T) {
	for _, row := range []struct{ room, without string }{{".", "nats-io"}, {"./mcp", "nats-io"}, {"./fleet", "nats-io/nats-server"}, {"./mcp", "otel/sdk"}, {"./mcp", "google.golang.org/grpc"}, {"./fleet", "otel/sdk"}} {
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

// Each package says what it is in a comment of its own.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.Doc) < 20 {
			t.Errorf("package %s has no comment", p.ImportPath)
		}
	}
}

// What a test leaves to make long is run there.
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
			if !strings.Contains(f[2], "long()") && !strings.Contains(f[2], "UNITASK_TEST_LONG") {
				continue
			}
			left = append(left, f[1])
			if dir := filepath.Dir(name); !slices.Contains(strings.Split(names, "|"), f[1]) || dir != "." && !slices.Contains(strings.Fields(rooms), "./"+dir) {
				t.Errorf("%s: %s leaves something to make long, which does not run it", name, f[1])
			}
		}
		return err
	})
	if err != nil || len(left) < 20 {
		t.Errorf("only %v: %v", left, err)
	}
}

// test is a whole test: its name and what it does.
var test = regexp.MustCompile(`(?ms)^func (Test\w+)\(t \*testing\.T\) \{\n(.*?)^\}`)

// docs/security.md says how many fuzz targets there are.
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
	if said := regexp.MustCompile(`\b\d+ fuzz targets`).FindString(string(text)); said != fmt.Sprintf("%d fuzz targets", n) {
		t.Errorf("docs/security.md says %q; there are %d", said, n)
	}
}

// The tests that the documents on security name are there: a promise without its test is
// none.
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
