package mcp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

// searchClient connects a client of a server with a ceiling's text, whose home has a configuration.
func searchClient(t *testing.T, text, config string) *sdk.ClientSession {
	t.Helper()
	home, file := testdir.Private(t), filepath.Join(testdir.Private(t), policy.CeilingFile)
	for name, text := range map[string]string{file: text, filepath.Join(home, "config.toml"): config} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	held, err := policy.LoadForModels(home, filepath.Dir(file), file, false)
	if err != nil {
		t.Fatal(err)
	}
	return inMemory(t, newServer(t, rt, mcp.Options{Dir: filepath.Dir(file), Ceiling: held.Ceiling, Policy: held}), nil)
}

// Models get web_search only if the ceiling names a backend, and reach only those.
func TestAttackWebSearchTool(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		fmt.Fprintf(w, `{"results":[{"title":"about %s","url":"https://a.example/","content":"text"}]}`,
			r.FormValue("q"))
	}))
	t.Cleanup(s.Close)
	config := fmt.Sprintf("[search.one]\nbackend = \"searxng\"\nurl = %q\n"+
		"[search.two]\nbackend = \"searxng\"\nurl = %[1]q\n", s.URL)
	for text, want := range map[string]string{
		"": "false", "webSearch = []": "false", "webFetch = true": "false",
		"[principals.a]\nwebSearch = [\"one\"]": "false", `webSearch = ["one"]`: "true",
	} {
		tools, err := searchClient(t, text, config).ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		has := false
		for _, tool := range tools.Tools {
			has = has || tool.Name == "web_search"
		}
		attack.Check(t, fmt.Sprintf("a model has web_search under %q", text), want, fmt.Sprint(has))
	}
	for _, c := range []struct {
		ceiling string
		args    object
		want    string
		fails   bool
	}{
		{`webSearch = ["one"]`, object{"query": "go"}, "1. about go\nhttps://a.example/\ntext\n", false},
		{`webSearch = ["two", "one"]`, object{"query": "go", "backend": "one", "since": "day", "limit": 1}, "about go",
			false},
		{`webSearch = ["one"]`, object{"query": "go", "backend": "two"}, "backend", true},
		{`webSearch = ["other"]`, object{"query": "go"}, "there is no search backend", true},
		{`webSearch = ["one"]`, object{"query": "go", "url": "http://127.0.0.1/"}, "url", true},
		{`webSearch = ["one"]`, object{"query": "go", "limit": 1000}, "limit", true},
		{`webSearch = ["one"]`, object{"query": strings.Repeat("a", 500)}, "query", true},
		{`webSearch = ["one"]`, object{}, "query", true},
	} {
		before := asked
		res, err := searchClient(t, c.ceiling, config).CallTool(t.Context(),
			&sdk.CallToolParams{Name: "web_search", Arguments: c.args})
		saw, failed := fmt.Sprint(err), true
		if err == nil {
			saw, failed = res.Content[0].(*sdk.TextContent).Text, res.IsError
		}
		if strings.Contains(saw, c.want) && failed == c.fails && (asked == before) == c.fails {
			saw = c.want
		}
		attack.Check(t, fmt.Sprintf("web_search with %v under %s", c.args, c.ceiling), c.want, saw)
	}
}
