// Package console serves pages for a browser: questions of runs, records, and one run with its network. A person opens
// them with a link that works once.
package console

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"html/template"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/unseen"
	"github.com/unitask/unitask/run"
)

const (
	linkTime   = 10 * time.Minute // a link that nobody opened ends
	openTime   = 12 * time.Hour   // a browser stays logged in
	cookieName = "unitask-ui"
	pageRuns   = 50       // rows of a list
	shownBytes = 64 << 10 // of each file of a run
	shownFiles = 1000     // names of a run's files
	formBytes  = 16 << 10 // of a form
)

// rules is what pages may load and do: their style, and forms to us.
const rules = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

//go:embed page
var files embed.FS

var pages = template.Must(template.New("").Funcs(template.FuncMap{"plain": plain}).ParseFS(files, "page/*.html"))

// Console is a http.Handler for one user.
type Console struct {
	host      string // HOST:PORT, without :80 as browsers send it
	approvals *approval.Client
	history   *history.Store
	mux       *http.ServeMux

	cookie, form string // secrets of the one session
	// base is the folder of all pages. A browser sends the cookie to all ports of this host, but below this path only:
	// servers at other ports, as a run's, must not get it.
	base     string
	mu       sync.Mutex
	link     string // "" once it was used
	linkEnds time.Time
	opened   time.Time // when the link was used
}

// New returns a console at an address, HOST:PORT.
func New(host string, approvals *approval.Client, records *history.Store) *Console {
	c := &Console{host: strings.TrimSuffix(host, ":80"), approvals: approvals, history: records, mux: http.NewServeMux(),
		cookie: rand.Text(), form: rand.Text(), link: rand.Text(), base: "/" + rand.Text(),
		linkEnds: time.Now().Add(linkTime)}
	c.mux.HandleFunc("GET /{$}", c.inbox)
	c.mux.HandleFunc("POST /answer", c.answer)
	c.mux.HandleFunc("GET /runs", c.runs)
	c.mux.HandleFunc("GET /run", c.run)
	c.mux.HandleFunc("GET /style.css", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFileFS(w, r, files, "page/style.css")
	})
	return c
}

// Link returns the address that opens the console once.
func (c *Console) Link() string { return "http://" + c.host + "/open?link=" + c.link }

func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", rules)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // without it, a form's Origin would be null
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	origin := r.Header.Get("Origin")
	named := origin == "http://"+c.host || origin == "" && r.Method == http.MethodGet
	below := strings.HasPrefix(r.URL.Path, c.base+"/")
	switch {
	case r.Host != c.host || !named:
		http.Error(w, "this console answers at its own address only", http.StatusForbidden)
	case strings.HasPrefix(r.Header.Get("Sec-Purpose"), "prefetch"):
		http.Error(w, "this console answers no prefetch", http.StatusForbidden)
	case r.Method == http.MethodGet && r.URL.Path == "/open":
		c.open(w, r)
	case !below || !c.known(r):
		http.Error(w, "open the link that unitask ui printed; it works once", http.StatusUnauthorized)
	case r.Method == http.MethodPost && !c.ours(w, r):
		http.Error(w, "the form is not of this console: load its page again", http.StatusForbidden)
	default:
		http.StripPrefix(c.base, c.mux).ServeHTTP(w, r)
	}
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// open exchanges the link for a cookie.
func (c *Console) open(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	good := c.link != "" && time.Now().Before(c.linkEnds) && same(c.link, r.URL.Query().Get("link"))
	if good {
		c.link, c.opened = "", time.Now()
	}
	c.mu.Unlock()
	if !good {
		http.Error(w, "the link was used or is too old: start unitask ui again", http.StatusForbidden)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: c.cookie, Path: c.base + "/", HttpOnly: true,
		MaxAge: int(openTime / time.Second), SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, c.base+"/", http.StatusSeeOther)
}

func (c *Console) known(r *http.Request) bool {
	c.mu.Lock()
	late := time.Since(c.opened) > openTime
	c.mu.Unlock()
	cookie, err := r.Cookie(cookieName)
	return err == nil && !late && same(cookie.Value, c.cookie)
}

func (c *Console) ours(w http.ResponseWriter, r *http.Request) bool {
	r.Body = http.MaxBytesReader(w, r.Body, formBytes)
	return r.ParseForm() == nil && same(r.PostForm.Get("form"), c.form)
}

// show renders a page completely before it writes it.
func (c *Console) show(w http.ResponseWriter, name string, data map[string]any) {
	data["Form"] = c.form
	var page bytes.Buffer
	if err := pages.ExecuteTemplate(&page, name, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page.Bytes())
}

func (c *Console) inbox(w http.ResponseWriter, r *http.Request) {
	list, err := c.approvals.Questions(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	c.show(w, "inbox.html", map[string]any{"Questions": list})
}

func (c *Console) answer(w http.ResponseWriter, r *http.Request) {
	f := r.PostForm
	v := run.Verdict(f.Get("verdict"))
	if v != run.AllowOnce && v != run.AllowRun && v != run.Deny {
		http.Error(w, "verdict: use one of the page's buttons", http.StatusBadRequest)
		return
	}
	until, err := time.Parse(time.RFC3339Nano, f.Get("until"))
	if err != nil || until.IsZero() {
		http.Error(w, "until: use one of the page's buttons", http.StatusBadRequest)
		return
	}
	q := run.Question{RunID: f.Get("run"), Host: f.Get("host"), Request: f.Get("request"), Until: until}
	if err := c.approvals.ApproveShown(r.Context(), q, v); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	http.Redirect(w, r, c.base+"/", http.StatusSeeOther)
}

func (c *Console) runs(w http.ResponseWriter, r *http.Request) {
	list, next, err := c.history.Page(history.Filter{Limit: pageRuns, Before: r.URL.Query().Get("before")})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	c.show(w, "runs.html", map[string]any{"Runs": list, "Next": next})
}

func (c *Console) run(w http.ResponseWriter, r *http.Request) {
	id, err := c.history.Records.Find(r.URL.Query().Get("id"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	in, err := c.history.Inspect(id, shownBytes)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if in.Ended != nil && len(in.Ended.Artifacts) > shownFiles {
		in.Ended.Artifacts = in.Ended.Artifacts[:shownFiles]
		in.Cut = append(in.Cut, "the list of files")
	}
	c.show(w, "run.html", map[string]any{"Run": in})
}

// plain shows control characters, terminal sequences among them, as symbols. Other characters that nobody sees become
// U+FFFD.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < ' ':
			return 0x2400 + r
		case unseen.Is(r):
			return '\ufffd'
		}
		return r
	}, s)
}
