package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
)

// A search prints results as text and as JSON, is in the audit log, and obeys the ceiling.
func TestWebSearch(t *testing.T) {
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"results":[{"title":"about %s","url":"https://a.example/","content":"some\u001b[31m text",`+
			`"publishedDate":"2026-01-02T00:00:00"}]}`, r.FormValue("q"))
	}))
	t.Cleanup(s.Close)
	home := testdir.Private(t)
	t.Setenv("UNITASK_HOME", home)
	t.Chdir(testdir.Private(t))
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want int, text string, args ...string) {
		t.Helper()
		code, out, errs := said(t, args...)
		if all := out + errs; code != want || !strings.Contains(all, text) || strings.Contains(all, "\x1b") {
			t.Errorf("%v: %d %q, want %d %q", args, code, all, want, text)
		}
	}
	expect(unitask.ExitHost, "there is no search backend", "web", "search", "go")
	write(filepath.Join(home, "config.toml"), "[search.searxng]\nurl = \""+s.URL+"\"\n")
	expect(0, "about go maps (2026-01-02)\n  https://a.example/\n  some[31m text\n", "web", "search", "go", "maps")
	expect(0, `"title": "about go"`, "web", "search", "--json", "go")
	expect(0, "search.ended", "audit", "ls", "--kind", "search.ended")
	expect(2, "since", "web", "search", "--since", "ever", "go")
	write(".unitask.toml", "webSearch = []\n")
	expect(unitask.ExitHost, "there is no search backend", "web", "search", "go")
	write(".unitask.toml", "webSearch = [\"searxng\"]\n")
	expect(0, "about go", "web", "search", "go")
	status = http.StatusForbidden
	expect(unitask.ExitHost, "formats: [html, json]", "web", "search", "go")
	code, out, _ := said(t, "doctor", "--accel", "tcg", "--offline")
	all := strings.Join(strings.Fields(out), " ")
	if code != 1 || !strings.Contains(all, "search searxng: JSON is not enabled there") {
		t.Errorf("doctor: %d\n%s", code, out)
	}
}
