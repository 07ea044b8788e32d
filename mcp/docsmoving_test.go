package mcp_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/cli"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

var (
	codeSpan = regexp.MustCompile("`([^`]+)`")
	toolSpan = regexp.MustCompile(`^([a-z]+(?:_[a-z]+)+)(?:\(([^)]*)\))?$`)
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// movingTools returns the tools of a server whose ceiling allows all of them.
func movingTools(t *testing.T) map[string]*sdk.Tool {
	t.Helper()
	dir := testdir.Private(t)
	file := filepath.Join(dir, policy.CeilingFile)
	for name, text := range map[string]string{filepath.Join(dir, "hello.js"): "1", file: "webFetch = true\n" +
		"webSearch = [\"a\"]\nhostFiles = true\nwriteUnder = [\".\"]\n[host.pull]\nargv = [\"/bin/true\"]\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	held, err := policy.LoadForModels(testdir.Private(t), dir, file, false)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, bare(t), mcp.Options{Dir: dir, Ceiling: held.Ceiling, Policy: held, Prompts: dir})
	mcp.AddHostCommands(s)
	mcp.AddHostFiles(s)
	list, err := inMemory(t, s, nil).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	tools := map[string]*sdk.Tool{}
	for _, tool := range list.Tools {
		tools[tool.Name] = tool
	}
	return tools
}

// Each row of docs/moving.md names tools, arguments, commands, flags, keys and tests that exist, or says why there is
// none.
func TestDocsMoving(t *testing.T) {
	text, err := os.ReadFile("../docs/moving.md")
	if err != nil {
		t.Fatal(err)
	}
	tools, tests := movingTools(t), testNames(t)
	rows, sections := 0, 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "## From ") {
			sections++
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || strings.Contains(line, "---") || strings.HasPrefix(line, "| theirs") {
			continue
		}
		rows++
		if len(cells) != 3 {
			t.Errorf("%d cells: %s", len(cells), line)
			continue
		}
		ours, tested := strings.TrimSpace(cells[1]), codeSpan.FindAllStringSubmatch(cells[2], -1)
		if none := strings.HasPrefix(ours, "not taken, because "); none == (len(tested) > 0) {
			t.Errorf("a test, or the reason why there is none: %s", line)
		}
		for _, m := range tested {
			if !slices.Contains(tests, m[1]) {
				t.Errorf("there is no test %s: %s", m[1], line)
			}
		}
		for _, m := range codeSpan.FindAllStringSubmatch(ours, -1) {
			if wrong := movingName(tools, m[1]); wrong != "" {
				t.Errorf("%s: %s", wrong, line)
			}
		}
	}
	if rows < 80 || sections != 5 {
		t.Errorf("%d rows in %d sections", rows, sections)
	}
}

// testNames returns the names of all tests.
func testNames(t *testing.T) (names []string) {
	t.Helper()
	if err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return names
}

// movingName says what is wrong with a name of ours, "" if nothing is.
func movingName(tools map[string]*sdk.Tool, name string) string {
	if words, is := strings.CutPrefix(name, "unitask "); is {
		return wrongCommand(strings.Fields(words))
	}
	if strings.HasPrefix(name, "unitask://") {
		for _, known := range []string{"unitask://runs/{id}/", "unitask://images", "unitask://stats"} {
			if strings.HasPrefix(name, known) {
				return ""
			}
		}
		return "there is no resource " + name
	}
	if key, _, is := strings.Cut(name, " = "); is {
		_, inFile := policy.ParseCeiling("/x", []byte(name))
		_, ofHost := policy.ParseCeiling("/x", []byte("[host.a]\nargv = [\"/bin/true\"]\n"+name))
		if inFile != nil && ofHost != nil {
			return "there is no key " + key + " with this value: " + inFile.Error()
		}
		return ""
	}
	m := toolSpan.FindStringSubmatch(name)
	if m == nil { // a value, as new
		return ""
	}
	if tools[m[1]] == nil {
		return "there is no tool " + m[1]
	}
	return wrongArguments(tools[m[1]], m[2])
}

// wrongCommand says what a command line lacks.
func wrongCommand(words []string) string {
	path := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.HasPrefix(w, "-") })
	cmd, rest, err := cli.Command().Find(path)
	if err != nil || len(rest) > 0 {
		return "there is no command " + strings.Join(path, " ")
	}
	for _, word := range words {
		flag, is := strings.CutPrefix(word, "--")
		if is && cmd.Flags().Lookup(flag) == nil && cmd.InheritedFlags().Lookup(flag) == nil {
			return "there is no flag " + word
		}
	}
	return ""
}

// wrongArguments says which of the arguments, or of the values of op, a tool lacks.
func wrongArguments(tool *sdk.Tool, arguments string) string {
	text, err := json.Marshal(tool.InputSchema)
	var schema struct {
		Properties map[string]struct{ Enum []string }
	}
	if err == nil {
		err = json.Unmarshal(text, &schema)
	}
	if err != nil {
		return err.Error()
	}
	for _, argument := range strings.Split(arguments, ", ") {
		op, is := strings.CutPrefix(argument, "op ")
		if is && !slices.Contains(schema.Properties["op"].Enum, op) {
			return tool.Name + " has no op " + op
		}
		if _, has := schema.Properties[argument]; !has && !is && argument != "" {
			return tool.Name + " has no argument " + argument
		}
	}
	return ""
}
