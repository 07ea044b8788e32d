package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/toolhost"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// testConsole returns a console without sessions and runs of its own.
func testConsole(t *testing.T, records *record.Store) *Console {
	t.Helper()
	c := New(Options{Host: "127.0.0.1:1", Approvals: &approval.Client{Records: records},
		History: &history.Store{Records: records},
		Sessions: func(context.Context, sessiond.Request, sessiond.Streams) (sessiond.Answer, error) {
			return sessiond.Answer{}, sessiond.ErrNone
		},
		Policy: func() (*policy.ForPeople, error) { return &policy.ForPeople{}, nil }})
	t.Cleanup(c.Close)
	return c
}

// Other pages, other names and old links do not open the console.
func TestAttackConsoleDoor(t *testing.T) {
	records := record.Open(testdir.Private(t))
	c := testConsole(t, records)
	ask := func(method, path, host, origin, cookie, body string) *httptest.ResponseRecorder {
		early := method == "PREFETCH"
		if early {
			method = "GET"
		}
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Host = host
		if early {
			r.Header.Set("Sec-Purpose", "prefetch;prerender")
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		if cookie != "" {
			r.AddCookie(&http.Cookie{Name: cookieName, Value: cookie})
		}
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r)
		return w
	}
	const own = "http://127.0.0.1:1"
	link := strings.TrimPrefix(c.Link(), own)
	for _, row := range []struct{ name, method, path, host, origin, cookie, body, want string }{
		{"no cookie", "GET", c.base + "/runs", c.host, "", "", "", "401"},
		{"a guessed cookie", "GET", c.base + "/runs", c.host, "", "x", "", "401"},
		{"rebinding", "GET", link, "evil.example:1", "", "", "", "403"},
		{"a wrong link", "GET", "/open?link=x", c.host, "", "", "", "403"},
		{"the link, before anybody opens it", "PREFETCH", link, c.host, "", "", "", "403"},
		{"the link", "GET", link, c.host, "", "", "", "200"},
		{"the link again", "GET", link, c.host, "", "", "", "403"},
		{"the page", "GET", c.base + "/runs", c.host, "", c.cookie, "", "200"},
		{"the page without its folder", "GET", "/runs", c.host, "", c.cookie, "", "401"},
		{"a way out of the folder", "GET", c.base + "/../runs", c.host, "", c.cookie, "", "307"},
		{"an id that is a path", "GET", c.base + "/run?id=..%2Frun", c.host, "", c.cookie, "", "404"},
		{"another method", "PUT", c.base + "/runs", c.host, own, c.cookie, "", "405"},
		{"the link by HEAD", "HEAD", link, c.host, "", "", "", "403"},
		{"another origin", "POST", c.base + "/answer", c.host, "http://evil.example", c.cookie, "form=" + c.form, "403"},
		{"no origin", "POST", c.base + "/answer", c.host, "", c.cookie, "form=" + c.form, "403"},
		{"the origin null", "POST", c.base + "/answer", c.host, "null", c.cookie, "form=" + c.form, "403"},
		{"a form without its token", "POST", c.base + "/answer", c.host, own, c.cookie, "verdict=once", "403"},
		{"a button that is none", "POST", c.base + "/answer", c.host, own, c.cookie,
			"form=" + c.form + "&verdict=always", "400"},
		{"a large form", "POST", c.base + "/answer", c.host, own, c.cookie,
			"form=" + c.form + "&x=" + strings.Repeat("a", formBytes), "403"},
	} {
		w := ask(row.method, row.path, row.host, row.origin, row.cookie, row.body)
		attack.Check(t, "console: "+row.name, row.want, strconv.Itoa(w.Code))
		h := w.Header()
		want := closed // it must not tell the base to others
		if row.cookie == c.cookie && strings.Contains("200 400 404 405 307", row.want) {
			want = c.rules
		}
		if h.Get("Content-Security-Policy") != want || h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("X-Frame-Options") != "DENY" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: headers %v", row.name, h)
		}
		if set := h.Get("Set-Cookie"); set != "" && (!strings.Contains(set, "; HttpOnly; SameSite=Strict") ||
			!strings.Contains(set, "; Path="+c.base+"/;") ||
			!strings.HasPrefix(set, "unitask-ui=")) {
			t.Errorf("%s: %s", row.name, set)
		}
	}
	sent := ""
	jar, _ := cookiejar.New(nil)
	jar.SetCookies(&url.URL{Scheme: "http", Host: c.host, Path: "/open"},
		[]*http.Cookie{{Name: cookieName, Value: c.cookie, Path: c.base + "/"}})
	for _, cookie := range jar.Cookies(&url.URL{Scheme: "http", Host: "127.0.0.1:2", Path: "/"}) {
		sent += cookie.Name
	}
	attack.Check(t, "console: the cookie at another port of this host", "", sent)
	c.opened = time.Now().Add(-openTime - time.Second)
	attack.Check(t, "console: an old cookie", "401",
		strconv.Itoa(ask("GET", c.base+"/runs", c.host, "", c.cookie, "").Code))
	c.link, c.linkEnds = "x", time.Now().Add(-time.Second)
	attack.Check(t, "console: an old link", "403", strconv.Itoa(ask("GET", "/open?link=x", c.host, "", "", "").Code))
}

// Browsers leave out the port 80.
func TestPort80(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		c := New(Options{Host: host + ":80"})
		w := httptest.NewRecorder()
		c.ServeHTTP(w, httptest.NewRequest("GET", c.Link(), nil))
		if w.Code != 200 || len(w.Result().Cookies()) != 1 {
			t.Errorf("%s: %d, cookies %v", host, w.Code, w.Result().Cookies())
		}
	}
}

// Script in code, output and host names stays text.
func TestAttackConsoleText(t *testing.T) {
	const evil = "<script>alert(1)</script>\x1b]0;x\x07"
	c := &Console{}
	w, q := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
	c.show(w, q, "run.html", map[string]any{"Run": &history.Inspection{Record: &record.Record{ID: evil, Error: evil},
		Code: evil, Stdout: evil, Stderr: evil, Decisions: []netstack.Decision{{Name: evil, Path: evil, Reason: evil}},
		Tools: []toolhost.Call{{Server: evil, Tool: evil, Arguments: json.RawMessage(`"` + evil + `"`), Error: evil}},
		Ended: &run.Result{Artifacts: []record.Artifact{{Path: evil}}, Hints: []run.Hint{{Text: evil}}}},
		"Pictures": []string{evil}, "Lines": []wanted{{evil, evil, []string{evil}, ""},
			{Error: evil}}})
	body, got := w.Body.String(), "text"
	if strings.Contains(body, "<script>") || strings.Contains(body, "\x07") || w.Code != 200 ||
		strings.Count(body, "&lt;script") < 12 {
		got = "markup"
	}
	attack.Check(t, "console: script in a run", "text", got)
	const hidden = "a\u200b\u061c\u200f\u2028\u202e\u2066\ufeff\u3164\U000e0041\u0085b"
	w = httptest.NewRecorder()
	c.show(w, q, "inbox.html", map[string]any{"Questions": []run.Question{{Host: hidden, Request: hidden, Rule: hidden}}})
	got = "seen"
	if shown := "a" + strings.Repeat("\ufffd", 10) + "b"; strings.Count(w.Body.String(), shown) != 4 {
		got = "hidden"
	}
	attack.Check(t, "console: characters that nobody sees, in a question", "seen", got)
}

// A page of a run with large logs and many files is bounded.
func TestAttackConsoleLarge(t *testing.T) {
	records := record.Open(testdir.Private(t))
	c := testConsole(t, records)
	c.opened = time.Now()
	r, err := records.CreateAs("20261129T000000-aaaaaaaaaaaa", time.Now(), "", record.ViaCLI, "code.js", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var ended run.Result
	for range 5000 {
		ended.Artifacts = append(ended.Artifacts, record.Artifact{Path: "a/b"})
	}
	if r.Result, err = json.Marshal(ended); err != nil {
		t.Fatal(err)
	}
	r.Status = record.Done
	if err := r.Finish(time.Now()); err != nil {
		t.Fatal(err)
	}
	for name, line := range map[string]string{record.NetlogFile: `{"name": "a.example"}`,
		record.ToolsFile: `{"server": "a"}`} {
		if err := os.WriteFile(records.Path(r.ID, name), []byte(strings.Repeat(line+"\n", 1<<16)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	q := httptest.NewRequest("GET", c.base+"/run?id="+r.ID, nil)
	q.Host = c.host
	q.AddCookie(&http.Cookie{Name: cookieName, Value: c.cookie})
	w := httptest.NewRecorder()
	c.ServeHTTP(w, q)
	got := "bounded"
	if w.Code != 200 || w.Body.Len() > 2<<20 || strings.Count(w.Body.String(), "&amp;path=") != shownFiles ||
		!strings.Contains(w.Body.String(), "the list of files") {
		got = fmt.Sprintf("%d, %d bytes", w.Code, w.Body.Len())
	}
	attack.Check(t, "console: a run with 5000 files and long logs", "bounded", got)
	in, err := c.History.Inspect(r.ID, shownBytes)
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "console: the calls of tools that are read", "true", fmt.Sprint(len(in.Tools) < 10_000 &&
		slices.Contains(in.Cut, record.ToolsFile)))
}
