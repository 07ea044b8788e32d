package mcp_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

// webClient connects a client of a server with a ceiling's text for models.
func webClient(t *testing.T, text string) *sdk.ClientSession {
	t.Helper()
	file := filepath.Join(testdir.Private(t), policy.CeilingFile)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := policy.LoadForModels(testdir.Private(t), filepath.Dir(file), file, false)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, bare(t), mcp.Options{Dir: filepath.Dir(file), Ceiling: held.Ceiling, Policy: held})
	return inMemory(t, s, nil)
}

// Models get web_fetch only if the ceiling has webFetch = true, and only for the hosts that it allows.
func TestAttackWebFetchTool(t *testing.T) {
	names := func(cs *sdk.ClientSession) (list []string) {
		tools, err := cs.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range tools.Tools {
			list = append(list, tool.Name)
		}
		return list
	}
	for text, want := range map[string]string{
		"": "false", "webFetch = false": "false", `allowNet = ["a.example"]`: "false",
		"[principals.a]\nwebFetch = true": "false", "webFetch = true": "true",
	} {
		attack.Check(t, fmt.Sprintf("a model has web_fetch under %q", text), want,
			fmt.Sprint(slices.Contains(names(webClient(t, text)), "web_fetch")))
	}
	if slices.Contains(names(inMemory(t, newServer(t, bare(t), mcp.Options{}), nil)), "web_fetch") {
		t.Error("a server without a ceiling has web_fetch")
	}
	cs := webClient(t, "webFetch = true\nallowNet = [\"a.example\"]\n")
	for _, c := range []struct {
		args object
		want string
	}{
		{object{"url": "https://b.example/"}, "b.example is not allowed by"},
		{object{"url": "https://a.example:22/"}, "a.example:22 is not allowed"},
		{object{"url": "http://127.0.0.1/"}, "127.0.0.1 is not allowed"},
		{object{"url": "file:///etc/passwd"}, "must begin with https://"},
		{object{"url": "https://a.example/", "as": "pdf"}, "as"},
		{object{"url": "https://a.example/", "maxBytes": 1 << 30}, "maxBytes"},
		{object{"url": "https://a.example/", "allowNet": []string{"b.example"}}, "allowNet"},
		{object{}, "url"},
	} {
		res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "web_fetch", Arguments: c.args})
		saw := fmt.Sprint(err)
		if err == nil {
			saw = res.Content[0].(*sdk.TextContent).Text
		}
		if strings.Contains(saw, c.want) && (err != nil || res.IsError) {
			saw = c.want
		}
		attack.Check(t, fmt.Sprintf("web_fetch with %v", c.args), c.want, saw)
	}
}
