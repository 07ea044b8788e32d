package console

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Other pages, other names and old links do not open the console.
func TestAttackConsoleDoor(t *testing.T) {
	records := record.Open(testdir.Private(t))
	c := New("127.0.0.1:1", &approval.Client{Records: records}, &history.Store{Records: records})
	ask := func(method, path, host, origin, cookie, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Host = host
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		if cookie != "" {
			r.AddCookie(&http.Cookie{Name: c.cookieName(), Value: cookie})
		}
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r)
		return w
	}
	const own = "http://127.0.0.1:1"
	link := strings.TrimPrefix(c.Link(), own)
	for _, row := range []struct{ name, method, path, host, origin, cookie, body, want string }{
		{"no cookie", "GET", "/runs", c.host, "", "", "", "401"},
		{"a guessed cookie", "GET", "/runs", c.host, "", "x", "", "401"},
		{"rebinding", "GET", link, "evil.example:1", "", "", "", "403"},
		{"a wrong link", "GET", "/open?link=x", c.host, "", "", "", "403"},
		{"the link", "GET", link, c.host, "", "", "", "303"},
		{"the link again", "GET", link, c.host, "", "", "", "403"},
		{"the page", "GET", "/runs", c.host, "", c.cookie, "", "200"},
		{"another origin", "POST", "/answer", c.host, "http://evil.example", c.cookie, "form=" + c.form, "403"},
		{"no origin", "POST", "/answer", c.host, "", c.cookie, "form=" + c.form, "403"},
		{"the origin null", "POST", "/answer", c.host, "null", c.cookie, "form=" + c.form, "403"},
		{"a form without its token", "POST", "/answer", c.host, own, c.cookie, "verdict=once", "403"},
		{"a button that is none", "POST", "/answer", c.host, own, c.cookie, "form=" + c.form + "&verdict=always", "400"},
		{"a large form", "POST", "/answer", c.host, own, c.cookie,
			"form=" + c.form + "&x=" + strings.Repeat("a", formBytes), "403"},
	} {
		w := ask(row.method, row.path, row.host, row.origin, row.cookie, row.body)
		attack.Check(t, "console: "+row.name, row.want, strconv.Itoa(w.Code))
		h := w.Header()
		if h.Get("Content-Security-Policy") != rules || h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("X-Frame-Options") != "DENY" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: headers %v", row.name, h)
		}
		if set := h.Get("Set-Cookie"); set != "" && (!strings.Contains(set, "HttpOnly; SameSite=Strict") ||
			!strings.HasPrefix(set, "unitask-ui-1=")) {
			t.Errorf("%s: %s", row.name, set)
		}
	}
	c.opened = time.Now().Add(-openTime - time.Second)
	attack.Check(t, "console: an old cookie", "401", strconv.Itoa(ask("GET", "/runs", c.host, "", c.cookie, "").Code))
	c.link, c.linkEnds = "x", time.Now().Add(-time.Second)
	attack.Check(t, "console: an old link", "403", strconv.Itoa(ask("GET", "/open?link=x", c.host, "", "", "").Code))
}

// Script in code, output and host names stays text.
func TestAttackConsoleText(t *testing.T) {
	const evil = "<script>alert(1)</script>\x1b]0;x\x07"
	c := &Console{}
	w := httptest.NewRecorder()
	c.show(w, "run.html", map[string]any{"Run": &history.Inspection{Record: &record.Record{ID: evil, Error: evil},
		Code: evil, Stdout: evil, Stderr: evil, Decisions: []netstack.Decision{{Name: evil, Path: evil, Reason: evil}}}})
	body, got := w.Body.String(), "text"
	if strings.Contains(body, "<script") || strings.Contains(body, "\x07") || w.Code != 200 ||
		strings.Count(body, "&lt;script") < 6 {
		got = "markup"
	}
	attack.Check(t, "console: script in a run", "text", got)
	const hidden = "a\u200b\u061c\u200f\u2028\u202e\u2066\ufeff\u3164\U000e0041\u0085b"
	w = httptest.NewRecorder()
	c.show(w, "inbox.html", map[string]any{"Questions": []run.Question{{Host: hidden, Request: hidden, Rule: hidden}}})
	got = "seen"
	if shown := "a" + strings.Repeat("\ufffd", 10) + "b"; strings.Count(w.Body.String(), shown) != 3 {
		got = "hidden"
	}
	attack.Check(t, "console: characters that nobody sees, in a question", "seen", got)
}
