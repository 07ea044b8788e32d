package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/home/config"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// searchHome returns a home with a configuration.
func searchHome(t *testing.T, text string) string {
	t.Helper()
	dir := testdir.Private(t)
	if err := os.WriteFile(filepath.Join(dir, config.File), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// noted collects the entries of an audit log.
type noted []string

func (n *noted) note(kind audit.Kind, detail map[string]any) error {
	text, err := json.Marshal(detail)
	*n = append(*n, string(kind)+" "+string(text))
	return err
}

// answers are examples of each API's documented form.
var answers = map[string]string{
	"searxng": `{"query":"go","number_of_results":0,"results":[{"url":"https://go.dev/","title":"The Go language",` +
		`"content":"An open source\nlanguage","publishedDate":"2026-01-02T00:00:00","engine":"x","score":1.0},` +
		`{"url":"https://pkg.go.dev/","title":"Packages","content":"","publishedDate":null}],` +
		`"answers":[],"corrections":[],"infoboxes":[],"suggestions":["go lang"],"unresponsive_engines":[["y","timeout"]]}`,
	"brave": `{"type":"search","query":{"original":"go"},"web":{"type":"search","results":[{"title":"The Go language",` +
		`"url":"https://go.dev/","description":"An open source language","page_age":"2026-01-02T10:00:00","age":"x",` +
		`"profile":{"name":"Go"}},{"title":"Packages","url":"https://pkg.go.dev/","description":""}]}}`,
	"tavily": `{"query":"go","answer":null,"images":[],"results":[{"title":"The Go language","url":"https://go.dev/",` +
		`"content":"An open source language","score":0.9,"raw_content":null,"published_date":"2026-01-02"},` +
		`{"title":"Packages","url":"https://pkg.go.dev/","content":""}],"response_time":1.1}`,
	"exa": `{"requestId":"1","results":[{"id":"https://go.dev/","title":"The Go language","url":"https://go.dev/",` +
		`"publishedDate":"2026-01-02T01:36:32.547Z","author":null,"text":"An open source language"},` +
		`{"id":"p","title":"Packages","url":"https://pkg.go.dev/"}],"costDollars":{"total":0.005}}`,
}

// Each API gets a request as it documents it, with its key, and its answer becomes the same results.
func TestSearch(t *testing.T) {
	t.Setenv("SEARCH_KEY", "s3cret-key")
	for kind, want := range map[string]string{
		"searxng": `GET /x/search?format=json&q=go+%26+c&time_range=week  `,
		"brave": `GET /x/res/v1/web/search?count=5&freshness=pw&q=go+%26+c&result_filter=web&text_decorations=false ` +
			`s3cret-key `,
		"tavily": `POST /x/search Bearer s3cret-key {"max_results":5,"query":"go \u0026 c","time_range":"week"}`,
		"exa": `POST /x/search s3cret-key {"contents":{"text":{"maxCharacters":1000}},"numResults":5,` +
			`"query":"go \u0026 c","startPublishedDate":"` + time.Now().AddDate(0, 0, -7).UTC().Format(time.DateOnly),
	} {
		got := make(chan string, 1)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			h := r.Header
			got <- fmt.Sprintf("%s %s %s%s%s %s", r.Method, r.RequestURI, h.Get("X-Subscription-Token"),
				h.Get("Authorization"), h.Get("X-Api-Key"), body)
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, answers[kind])
		}))
		t.Cleanup(s.Close)
		text := fmt.Sprintf("[search.mine]\nbackend = %q\nurl = %q\n", kind, s.URL+"/x")
		if kind != "searxng" {
			text += "key = \"env:SEARCH_KEY\"\n"
		}
		var log noted
		f := Searcher{Home: searchHome(t, text), Note: log.note}
		found, err := f.Search(t.Context(), SearchRequest{Query: " go & c ", Since: "week", Limit: 5})
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if g := <-got; !strings.HasPrefix(g, want) {
			t.Errorf("%s got %s, want %s", kind, g, want)
		}
		if fmt.Sprint(*found) != "{mine [{The Go language https://go.dev/ An open source language 2026-01-02} "+
			"{Packages https://pkg.go.dev/  }]}" {
			t.Errorf("%s: %v", kind, *found)
		}
		if len(log) != 2 || !strings.HasPrefix(log[0], `search.started {"backend":"mine","host":"127.0.0.1:`) ||
			!strings.HasPrefix(log[1], `search.ended `) || strings.Contains(fmt.Sprint(log), "s3cret") {
			t.Errorf("%s: the log has %q", kind, log)
		}
	}
}

// A hostile or broken backend gets no second request, and what it answers becomes bounded results or an error.
func TestAttackWebSearchBackend(t *testing.T) {
	reached := make(chan string, 100)
	inside := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reached <- r.URL.Path }))
	t.Cleanup(inside.Close)
	one := `{"title":"t","url":"https://a.example/","content":"c"}`
	long := strings.Repeat("long ", 4000)
	redirect := func(to string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Location", to); w.WriteHeader(302) }
	}
	prints := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
	}
	for _, c := range []struct {
		how    string
		answer http.HandlerFunc
		want   string
	}{
		{"HTML", prints("<html><script>alert(1)</script>"), "not JSON of a search"},
		{"nothing", prints(""), "not JSON of a search"},
		{"another JSON", prints(`{"error":{"code":"x"}}`), "no results member"},
		{"a list", prints(`[` + one + `]`), "not JSON of a search"},
		{"results that are no list", prints(`{"results":{"a":1}}`), "not JSON of a search"},
		{"10,000 results", prints(`{"results":[` + strings.Repeat(one+",", 9999) + one + `]}`), "8 results"},
		{"deep JSON", prints(`{"results":` + strings.Repeat("[", 1<<20)), "not JSON of a search"},
		{"deep JSON in a title", prints(`{"results":[{"url":"https://a.example/","title":` + strings.Repeat(`{"a":`, 9000) +
			"1" + strings.Repeat("}", 9000) + "}]}"), "1 results"},
		{"wrong types", prints(`{"results":[1,"a",null,{"url":5},{"url":["https://a.example/"]},` + one + `]}`), "1 results"},
		{"bad URLs", prints(`{"results":[{"url":"javascript:x"},{"url":"file:///etc/passwd"},` +
			`{"url":"https://u:p@a.example/"},{"url":"https://a.example/?hidden=\udb40\udd01\udb40\udd02"}]}`), "0 results"},
		{"long texts", prints(`{"results":[{"url":"https://a.example/","title":"` + long + `","content":"` + long + `"}]}`),
			"1 results"},
		{"unseen characters", prints(`{"results":[{"url":"https://a.example/","title":"a\u202e\u200bb\udb40\udc41"}]}`),
			"1 results"},
		{"the key", prints(`{"results":[{"url":"https://a.example/?k3y-of-mine","title":"no"},` +
			`{"url":"https://a.example/","title":"k3y-of-mine"},` +
			`{"url":"https://a.example/","title":"k3y\u200b-of\udb40\udd01-mine"}]}`), "2 results"},
		{"a line that is no header", hijacked("HTTP/1.1 200 OK\r\n\x1b[31mk3y-of-mine " + long + "\r\n\r\n"),
			"missing colon: \"\\x1b[31m[key] long"},
		{"a redirect with the key", redirect("https://a.example/?k3y-of-mine"), "redirects to"},
		{"a gigabyte", func(w http.ResponseWriter, r *http.Request) {
			for n := 0; n < 1<<30 && r.Context().Err() == nil; n += 1 << 16 {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, "more than 2097152 bytes"},
		{"a bomb", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprint(w, "\x1f\x8b")
		}, "not JSON of a search"},
		{"long headers", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("a", 1<<20)) },
			"header"},
		{"a redirect to the metadata service", redirect("http://169.254.169.254/latest"), "redirects to \"http://169.254"},
		{"a redirect to loopback", redirect(inside.URL), "redirects to"},
		{"a redirect to itself", redirect("/again"), "redirects to"},
		{"403", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, "refuses the key"},
		{"429", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, "try later"},
		{"500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "status 500"},
		{"an early end", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "99")
			fmt.Fprint(w, "{")
		}, "unexpected EOF"},
	} {
		asked := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked++; c.answer(w, r) }))
		t.Setenv("SEARCH_KEY", "k3y-of-mine")
		f := Searcher{Note: new(noted).note, Home: searchHome(t, "[search.a]\nbackend = \"tavily\"\n"+
			"key = \"env:SEARCH_KEY\"\nurl = \""+s.URL+"\"")}
		found, err := f.Search(t.Context(), SearchRequest{Query: "q"})
		s.Close()
		attack.Check(t, "a search backend answers with "+c.how, c.want, sawOf(found, err, c.want))
		attack.Check(t, "requests to a search backend that answers with "+c.how, "1", fmt.Sprint(asked))
	}
	attack.Check(t, "requests that a search backend led to loopback", "0", fmt.Sprint(len(reached)))
}

// hijacked answers with a text that need not be HTTP.
func hijacked(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			fmt.Fprint(conn, text)
			conn.Close()
		}
	}
}

// sawOf describes what came of a search, want if that is a part of it.
func sawOf(found *Found, err error, want string) string {
	saw := fmt.Sprint(err)
	if strings.Contains(saw, "k3y-of") || strings.ContainsAny(saw, "\x1b\u200b") {
		saw = "hidden: " + strings.ReplaceAll(saw, want, "")
	}
	if err == nil {
		saw = fmt.Sprintf("%d results", len(found.Results))
		for _, hit := range found.Results {
			if all := hit.Title + hit.Text; len(hit.Title) > maxTitle || len(hit.Text) > maxHitText || !utf8.ValidString(all) ||
				strings.ContainsAny(all+hit.URL, "\u202e\u200b\U000e0041\n") || strings.Contains(all+hit.URL, "k3y-of-mine") {
				saw += fmt.Sprintf(" %.200q", hit)
			}
		}
	}
	if strings.Contains(saw, want) && (err != nil || saw == want) && len(saw) < 600 {
		return want
	}
	return saw
}

// A backend that never answers ends with the caller.
func TestSearchEnds(t *testing.T) {
	asked, over := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		select {
		case <-r.Context().Done():
		case <-over:
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(over) })
	f := Searcher{Home: searchHome(t, "[search.searxng]\nurl = \""+s.URL+"\""), Note: new(noted).note}
	ctx, cancel := contextUntil(t, asked)
	defer cancel()
	if _, err := f.Search(ctx, SearchRequest{Query: "q"}); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("%v", err)
	}
}

// A 403 of SearXNG names the line that its owner must add, and so does the check of the backends.
func TestSearchJSONOff(t *testing.T) {
	off := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }))
	t.Cleanup(off.Close)
	on := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, answers["searxng"])
	}))
	t.Cleanup(on.Close)
	home := searchHome(t, fmt.Sprintf("[search.searxng]\nurl = %q\n[search.other]\nbackend = \"searxng\"\nurl = %q\n"+
		"[search.brave]\nkey = \"env:UNSET_SEARCH_KEY\"\n", off.URL, on.URL))
	f := Searcher{Home: home, Note: new(noted).note}
	const line = `"formats: [html, json]" below "search:" of its settings.yml`
	if _, err := f.Search(t.Context(), SearchRequest{Query: "q", Backend: "searxng"}); err == nil ||
		!strings.Contains(err.Error(), line) {
		t.Errorf("%v", err)
	}
	states, err := Backends(t.Context(), home)
	if err != nil || len(states) != 3 {
		t.Fatalf("%v %v", states, err)
	}
	for i, want := range []string{"brave the environment has no UNSET_SEARCH_KEY", "other <nil>", line} {
		if got := fmt.Sprint(states[i].Name, " ", states[i].Err); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// Wrong searches and wrong tables are errors, and nobody is asked.
func TestAttackWebSearchConfig(t *testing.T) {
	ceiling := func(text string) *policy.Ceiling {
		c, err := policy.ParseCeiling("/x", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const searx = "[search.searxng]\nurl = \"http://127.0.0.1:1/\"\n"
	for _, c := range []struct {
		config  string
		in      SearchRequest
		ceiling *policy.Ceiling
		named   bool
		want    string
	}{
		{"", SearchRequest{Query: "q"}, nil, false, "there is no search backend"},
		{searx, SearchRequest{Query: "q"}, nil, true, "there is no search backend"},
		{searx, SearchRequest{Query: "q"}, ceiling(`webSearch = []`), false, "there is no search backend"},
		{searx, SearchRequest{Query: "q"}, ceiling(`webSearch = ["brave"]`), true, "there is no search backend"},
		{searx, SearchRequest{Query: "q", Backend: "brave"}, nil, false, "is not a backend"},
		{searx, SearchRequest{Query: "q", Backend: "searxng"}, ceiling(`webSearch = ["brave"]`), false, "is not a backend"},
		{searx, SearchRequest{Query: " "}, nil, false, "is empty"},
		{searx, SearchRequest{Query: strings.Repeat("ü", MaxQuery+1)}, nil, false, "more than 400 characters"},
		{searx, SearchRequest{Query: "a\nb"}, nil, false, "nobody sees"},
		{searx, SearchRequest{Query: "a\u202eb"}, nil, false, "nobody sees"},
		{searx, SearchRequest{Query: "a\xff"}, nil, false, "nobody sees"},
		{searx, SearchRequest{Query: "q", Limit: MaxResults + 1}, nil, false, "limit"},
		{searx, SearchRequest{Query: "q", Limit: -1}, nil, false, "limit"},
		{searx, SearchRequest{Query: "q", Since: "decade"}, nil, false, "since"},
		{"[search.searxng]", SearchRequest{Query: "q"}, nil, false, "url is missing"},
		{"[search.google]\nurl = \"https://a.example\"", SearchRequest{Query: "q"}, nil, false, "is not known"},
		{"[search.brave]", SearchRequest{Query: "q"}, nil, false, "key is missing"},
		{"[search.Brave]\nbackend = \"brave\"\nkey = \"env:A\"", SearchRequest{Query: "q"}, nil, false, "small letters"},
		{"[search.brave]\nkey = \"env:A\"\nurl = \"http://a.example\"", SearchRequest{Query: "q"}, nil, false, "https://"},
		{"[search.searxng]\nkey = \"env:A\"\nurl = \"https://a.example\"", SearchRequest{Query: "q"}, nil, false, "has none"},
		{"[search.searxng]\nurl = \"https://a.example/?q=\"", SearchRequest{Query: "q"}, nil, false, "has a query"},
		{"[search.searxng]\nurl = \"file:///x\"", SearchRequest{Query: "q"}, nil, false, "must begin with"},
		{"[search.searxng]\naddress = \"x\"", SearchRequest{Query: "q"}, nil, false, "unknown key"},
		{"[search.brave]\nkey = \"env:UNSET_KEY\"", SearchRequest{Query: "q"}, nil, false, "no UNSET_KEY"},
	} {
		var log noted
		f := Searcher{Home: searchHome(t, c.config), Ceiling: c.ceiling, Named: c.named, Note: log.note}
		found, err := f.Search(t.Context(), c.in)
		saw := sawOf(found, err, c.want)
		if slices.ContainsFunc(log, func(line string) bool { return strings.HasPrefix(line, "search.started") }) {
			saw = fmt.Sprint("asked: ", log)
		}
		attack.Check(t, fmt.Sprintf("a search %.60v with %q, named %v", c.in, c.config, c.named), c.want, saw)
	}
	home := searchHome(t, searx)
	if err := os.Chmod(filepath.Join(home, config.File), 0o622); err != nil {
		t.Fatal(err)
	}
	_, err := (&Searcher{Home: home, Note: new(noted).note}).Search(t.Context(), SearchRequest{Query: "q"})
	attack.Check(t, "a search with a configuration that others can write", "others can write it",
		sawOf(nil, err, "others can write it"))
	full := func(audit.Kind, map[string]any) error { return errors.New("disk full") }
	_, err = (&Searcher{Home: searchHome(t, searx), Note: full}).Search(t.Context(), SearchRequest{Query: "q"})
	attack.Check(t, "a search that the audit log can't have", "is not asked", sawOf(nil, err, "is not asked"))
}

// FuzzFound checks that whatever a backend answers, the results are within their limits.
func FuzzFound(f *testing.F) {
	for _, text := range answers {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		hits, err := found(text, 3, "key")
		if err == nil && len(hits) > 3 || sawOf(&Found{Results: hits}, nil, "") != fmt.Sprintf("%d results", len(hits)) {
			t.Errorf("%v %v", hits, err)
		}
	})
}

// contextUntil returns a context that ends when a channel is closed.
func contextUntil(t *testing.T, over <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		select {
		case <-over:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
