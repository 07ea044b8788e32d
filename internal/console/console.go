// Package console serves pages for a browser: what lives, questions of runs, records, sessions and the policy. It runs
// code, too. A person opens the pages with a link that works once.
package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/internal/unseen"
	"github.com/unitask/unitask/policy"
)

const (
	linkTime   = 10 * time.Minute // a link that nobody opened ends
	openTime   = 12 * time.Hour   // a browser stays logged in
	cookieName = "unitask-ui"
	pageRuns   = 50       // rows of a list
	shownBytes = 64 << 10 // of each file of a run
	shownFiles = 1000     // names of a run's files
	formBytes  = 16 << 10 // of a form
	codeBytes  = 2 << 20  // of a form with code
	// answerTime is for an answer; actions on sessions and files have actionTime.
	answerTime = 10 * time.Second
	actionTime = 2 * time.Minute
)

// closed is what pages may load and do before the link was opened: nothing.
const closed = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed page vendored/xterm.js vendored/xterm.css
var files embed.FS

var pages = template.Must(template.New("").Funcs(template.FuncMap{"plain": plain, "clock": clock, "rfc": rfc,
	"tool":  func(host string) bool { return strings.HasPrefix(host, "tool:") },
	"bytes": size, "list": func(all ...any) []any { return all },
	"json": func(text json.RawMessage) string { return string(text) }}).ParseFS(files, "page/*.html"))

// Options are what a console shows and uses.
type Options struct {
	Host      string // HOST:PORT that it serves
	Approvals *approval.Client
	History   *history.Store
	// Run runs a request, as Runtime.RunFor does.
	Run func(context.Context, unitask.Caller, unitask.Request, unitask.IO) (*unitask.Result, error)
	// Sessions sends a request to the process that holds the sessions, and starts it if it is needed.
	Sessions func(context.Context, sessiond.Request, sessiond.Streams) (sessiond.Answer, error)
	// Home is the folder of the list of trusted ceilings, of permanent answers and of the audit log.
	Home string
	// Secrets reads the values of a recorded run's secrets, and their hosts, by name; nil if none can be read.
	Secrets func(ctx context.Context, names []string) (values map[string]string, hosts map[string][]string, err error)
	// Tables make what pages show of this host, by name (TablesImages and others).
	Tables map[string]func(context.Context) ([]Table, error)
	// Policy reads the ceiling as it is now.
	Policy func() (*policy.ForPeople, error)
}

// Console is a http.Handler for one user.
type Console struct {
	Options
	host   string // HOST:PORT, without :80 as browsers send it
	rules  string // what pages may load and do
	mux    *http.ServeMux
	ctx    context.Context // ends what the console started
	cancel context.CancelFunc
	going  sync.WaitGroup

	cookie, form string // secrets of the one session
	// base is the folder of all pages. A browser sends the cookie to all ports of this host, but only below this path.
	// Servers at other ports, such as a run's, must not get it.
	base     string
	mu       sync.Mutex
	link     string // "" once it was used
	linkEnds time.Time
	opened   time.Time                     // when the link was used
	begun    int                           // runs that it started and that have not ended
	own      map[string]context.CancelFunc // those of them that have an id
	failed   map[string]string             // why a session's last step did not start, by session
	steps    int                           // that wait for their end
	writes   sync.Mutex                    // held while a reviewed file is written
	typing   int                           // open terminals
	idle     time.Duration                 // of one that ends
	slow     sync.Mutex                    // held while something is verified or examined
	proven   *proof                        // the last verification of the audit log
	examined *part                         // what doctor found last
}

// New returns a console. Close ends what it started.
func New(o Options) *Console {
	c := &Console{Options: o, host: strings.TrimSuffix(o.Host, ":80"), mux: http.NewServeMux(),
		cookie: rand.Text(), form: rand.Text(), link: rand.Text(), base: "/" + rand.Text(),
		linkEnds: time.Now().Add(linkTime), own: map[string]context.CancelFunc{}, failed: map[string]string{},
		idle: terminalIdle}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	at := "http://" + c.host + c.base + "/"
	c.rules = "default-src 'none'; script-src " + at + "follow.js " + at + "terminal.js " + at +
		"xterm.js; style-src " + at + "style.css " + at + "xterm.css; img-src " + at +
		"file; connect-src " + at +
		" ws://" + c.host + c.base + "/shell; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	for pattern, do := range map[string]http.HandlerFunc{
		"GET /{$}": c.inbox, "POST /answer": c.answer,
		"GET /live": c.live, "POST /kill": c.kill,
		"GET /runs": c.runs, "GET /run": c.run, "GET /output": c.output, "GET /file": c.file,
		"GET /code": c.code, "POST /code": c.start,
		"GET /session": c.session, "POST /session": c.act, "POST /new": c.begin, "POST /step": c.step,
		"GET /policy": c.policy,
		"GET /audit":  c.audit, "POST /audit": c.verify,
		"GET /store": c.store, "GET /host": c.hostPage, "POST /doctor": c.doctor,
		"GET /allow": c.allow, "POST /allow": c.write, "POST /again": c.again,
		"GET /always": c.always, "POST /always": c.keep,
		"GET /terminal": c.terminal, "GET /shell": c.shell,
		"GET /style.css": static("page/style.css"), "GET /follow.js": static("page/follow.js"),
		"GET /terminal.js": static("page/terminal.js"), "GET /xterm.js": static("vendored/xterm.js"),
		"GET /xterm.css": static("vendored/xterm.css"),
	} {
		c.mux.HandleFunc(pattern, do)
	}
	return c
}

// static serves a file of this program.
func static(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, name) }
}

// Close ends the runs that the console started, and waits for them.
func (c *Console) Close() {
	c.mu.Lock() // whoever starts something has the lock
	c.cancel()
	c.mu.Unlock()
	c.going.Wait()
}

// Link returns the address that opens the console once.
func (c *Console) Link() string { return "http://" + c.host + "/open?link=" + c.link }

func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	within(w, answerTime)
	h := w.Header()
	h.Set("Content-Security-Policy", closed)
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
		http.Error(w, "the form is not of this console, or too large: load its page again", http.StatusForbidden)
	default:
		h.Set("Content-Security-Policy", c.rules) // it names the base: only who has the cookie gets it
		http.StripPrefix(c.base, c.mux).ServeHTTP(w, r)
	}
}

// within bounds the time for the answer from now on.
func within(w http.ResponseWriter, most time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(most)) // a test's recorder has none
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// open exchanges the link for a cookie. Its page forwards by itself: after a redirect from another site's page the
// browser would not send the cookie, which is SameSite=Strict.
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
	c.show(w, r, "open.html", map[string]any{"To": c.base + "/"})
}

func (c *Console) known(r *http.Request) bool {
	c.mu.Lock()
	late := time.Since(c.opened) > openTime
	c.mu.Unlock()
	cookie, err := r.Cookie(cookieName)
	return err == nil && !late && same(cookie.Value, c.cookie)
}

func (c *Console) ours(w http.ResponseWriter, r *http.Request) bool {
	most := int64(formBytes)
	if p := strings.TrimPrefix(r.URL.Path, c.base); p == "/code" || p == "/step" {
		most = codeBytes
	}
	r.Body = http.MaxBytesReader(w, r.Body, most)
	err := r.ParseForm()
	if err == nil && strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") { // with files, all in memory
		err = r.ParseMultipartForm(most)
	}
	return err == nil && same(r.PostForm.Get("form"), c.form)
}

// tagMark is where a page has its own digest: the script asks with it whether the page has changed.
var tagMark = []byte(`data-tag=""`)

// show renders a page completely before it writes it.
func (c *Console) show(w http.ResponseWriter, r *http.Request, name string, data map[string]any) {
	data["Form"] = c.form
	var page bytes.Buffer
	if err := pages.ExecuteTemplate(&page, name, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	tag := fmt.Sprintf(`%x`, sha256.Sum256(page.Bytes()))[:32]
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(bytes.Replace(page.Bytes(), tagMark, []byte(`data-tag="`+tag+`"`), 1))
}

// wrong answers with a page that says what failed, and leads back.
func (c *Console) wrong(w http.ResponseWriter, r *http.Request, status int, err error) {
	var page bytes.Buffer
	if pages.ExecuteTemplate(&page, "wrong.html", map[string]any{"Error": err.Error()}) != nil {
		http.Error(w, err.Error(), status)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(page.Bytes())
}

// to redirects to a page after a form.
func (c *Console) to(w http.ResponseWriter, r *http.Request, page string) {
	http.Redirect(w, r, c.base+"/"+page, http.StatusSeeOther)
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

func clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

func rfc(t time.Time) string { return t.Format(time.RFC3339Nano) }

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}
