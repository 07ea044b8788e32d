package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// asUser asks as the browser that has the cookie; a form makes it a POST.
func asUser(c *Console, path string, form url.Values) *httptest.ResponseRecorder {
	c.mu.Lock()
	c.opened = time.Now()
	c.mu.Unlock()
	q := httptest.NewRequest("GET", c.base+path, nil)
	if form != nil {
		form.Set("form", c.form)
		q = httptest.NewRequest("POST", c.base+path, strings.NewReader(form.Encode()))
		q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		q.Header.Set("Origin", "http://"+c.host)
	}
	q.Host = c.host
	q.AddCookie(&http.Cookie{Name: cookieName, Value: c.cookie})
	w := httptest.NewRecorder()
	c.ServeHTTP(w, q)
	return w
}

// ended makes the record of a run with files in /out.
func ended(t *testing.T, records *record.Store, files map[string]string) string {
	t.Helper()
	r, err := records.Create(time.Now(), "", record.ViaCLI, "code.js", []byte("code"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var res run.Result
	for name, text := range files {
		path := filepath.Join(records.Path(r.ID, record.ArtifactsDir), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		res.Artifacts = append(res.Artifacts, record.Artifact{Path: name, Size: int64(len(text))})
	}
	if r.Result, err = json.Marshal(res); err != nil {
		t.Fatal(err)
	}
	r.Status = record.Done
	if err := r.Finish(time.Now()); err != nil {
		t.Fatal(err)
	}
	return r.ID
}

// A file that code wrote is a download with an origin of its own, unless its bytes begin as a picture's.
func TestAttackConsoleFiles(t *testing.T) {
	const png, script = "\x89PNG\r\n\x1a\n0000", "<script>alert(1)</script>"
	records := record.Open(testdir.Private(t))
	c := testConsole(t, records)
	files := map[string]string{"a.png": png, "b.jpg": "\xff\xd8\xff000000000", "c.gif": "GIF89a000000",
		"d.webp": "RIFF0000WEBP0000", "a.svg": "<svg xmlns='http://www.w3.org/2000/svg'>" + script + "</svg>",
		"a.html": script, "html.png": script, "svg.png": "<svg/>" + script, "short.png": "\x89PNG", "a.js": "alert(1)",
		"a.pdf": "%PDF-1.7 0000", "wave.webp": "RIFF0000WAVE0000", "<b onload=x>\".html": script,
		"png.html": png + script}
	id := ended(t, records, files)
	page := asUser(c, "/run?id="+id, nil).Body.String()
	for name := range files {
		w := asUser(c, "/file?id="+id+"&path="+url.QueryEscape(name), nil)
		h := w.Header()
		want, got := "a download", "a download"
		if strings.HasPrefix(name, "png.") || len(name) > 4 && name[1] == '.' &&
			strings.Contains("png jpg gif webp", name[2:]) {
			want = "a picture"
		}
		switch kind, put := h.Get("Content-Type"), h.Get("Content-Disposition"); {
		case strings.HasPrefix(kind, "image/") && !strings.Contains(kind, "svg") && put == "":
			got = "a picture"
		case kind != "application/octet-stream" || !strings.HasPrefix(put, "attachment"):
			got = kind + " " + put
		}
		if w.Code != 200 || w.Body.String() != files[name] || h.Get("Content-Security-Policy") != sandboxed ||
			h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" {
			got = fmt.Sprint(w.Code, h)
		}
		attack.Check(t, "console: the file "+name, want, got)
	}
	attack.Check(t, "console: pictures on the page", "4", strconv.Itoa(strings.Count(page, "<img")))
	attack.Check(t, "console: markup in names of files", "false", strconv.FormatBool(strings.Contains(page, "<b ")))
	for _, path := range []string{"../code.js", "/etc/passwd", "..", "", "a.png/../../run.json", "run.json"} {
		attack.Check(t, "console: the file "+path, "404",
			strconv.Itoa(asUser(c, "/file?id="+id+"&path="+url.QueryEscape(path), nil).Code))
	}
	for _, of := range []string{"run.json", "../x", "console.log"} {
		attack.Check(t, "console: the stream "+of, "404",
			strconv.Itoa(asUser(c, "/file?id="+id+"&of="+url.QueryEscape(of), nil).Code))
	}
}

// Output of 1 GB is answered in bounded parts, at its end as at its beginning.
func TestAttackConsoleStream(t *testing.T) {
	records := record.Open(testdir.Private(t))
	c := testConsole(t, records)
	id := ended(t, records, nil)
	if err := os.Truncate(records.Path(id, record.StdoutFile), 1<<30); err != nil { // zeros, each longer as text
		t.Fatal(err)
	}
	for _, from := range []string{"0", "1000", strconv.Itoa(1<<30 - 1000), strconv.Itoa(1 << 40)} {
		w := asUser(c, "/output?id="+id+"&stderr=0&stdout="+from, nil)
		got := "bounded"
		if w.Code != 200 || w.Body.Len() > 4*followBytes {
			got = fmt.Sprintf("%d, %d bytes", w.Code, w.Body.Len())
		}
		attack.Check(t, "console: 1 GB of output, from "+from, "bounded", got)
	}
	for _, from := range []string{"-1", "x", ""} {
		attack.Check(t, "console: output from "+from, "400",
			strconv.Itoa(asUser(c, "/output?id="+id+"&stderr=0&stdout="+from, nil).Code))
	}
	w := asUser(c, "/run?id="+id, nil)
	attack.Check(t, "console: the page of a run with 1 GB of output", "true", strconv.FormatBool(w.Body.Len() < 1<<20))
}

// The list of 10 000 runs answers soon.
func TestAttackConsoleManyRuns(t *testing.T) {
	records := record.Open(testdir.Private(t))
	for i := range 10_000 {
		id := fmt.Sprintf("20261129T%06d-aaaaaaaaaaaa", i)
		text := fmt.Sprintf(`{"schemaVersion": 1, "id": %q, "status": "done", "codeFile": "code.js"}`, id)
		if err := os.MkdirAll(records.Path(id, ""), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(records.Path(id, "run.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, most := testConsole(t, records), 100*time.Millisecond
	if testing.Short() { // the race detector's run
		most = time.Second
	}
	for _, page := range []string{"/runs", "/runs?before=20261129T005000-aaaaaaaaaaaa", "/live", "/"} {
		best := time.Hour
		for range 5 { // the machine may be busy
			begin := time.Now()
			if w := asUser(c, page, nil); w.Code != 200 {
				t.Fatal(page, w.Code, w.Body)
			}
			best = min(best, time.Since(begin))
		}
		t.Log(page, best)
		attack.Check(t, "console: 10 000 runs, in time: "+page, "true", strconv.FormatBool(best <= most))
	}
}

// Forms that no page has start nothing, and what a page starts is limited.
func TestAttackConsoleForms(t *testing.T) {
	records := record.Open(testdir.Private(t))
	c := testConsole(t, records)
	asked := make(chan string, 100)
	c.Sessions = func(_ context.Context, r sessiond.Request, _ sessiond.Streams) (sessiond.Answer, error) {
		asked <- r.Op
		return sessiond.Answer{}, sessiond.ErrNone
	}
	c.Run = func(ctx context.Context, _ unitask.Caller, _ unitask.Request, std unitask.IO) (*unitask.Result, error) {
		std.Events(unitask.Event{Kind: unitask.EventRecord, Message: rfc(time.Now())})
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for _, row := range []struct{ path, form, want string }{
		{"/session", "do=new&session=x", "400"}, {"/session", "session=x", "400"},
		{"/session", "do=extend&session=x&minutes=-1", "400"}, {"/session", "do=extend&session=x&minutes=1e9", "400"},
		{"/session", "do=extend&session=x&minutes=307445735", "400"}, // as a duration it would be 25 s
		{"/session", "do=extend&session=x&minutes=1073741824", "400"},
		{"/step", "code=1&session=" + strings.Repeat("x", nameBytes+1), "400"},
		{"/new", "image=evil:latest", "400"}, {"/new", "image=../x", "400"}, {"/step", "session=x&code=+", "400"},
		{"/kill", "run=x", "409"}, {"/code", "language=js", "400"}, {"/code", "language=evil&code=1", "400"},
		{"/code", "language=js&code=1&timeout=-1", "400"}, {"/code", "language=js&code=1&memory=99999999999999", "400"},
	} {
		form, err := url.ParseQuery(row.form)
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "console: POST "+row.path+" "+row.form, row.want, strconv.Itoa(asUser(c, row.path, form).Code))
	}
	attack.Check(t, "console: requests of these forms to sessions", "0", strconv.Itoa(len(asked)))
	code := url.Values{"language": {"js"}, "code": {"1"}}
	got := ""
	for range ownRuns + 2 {
		got += strconv.Itoa(asUser(c, "/code", code).Code) + " "
	}
	attack.Check(t, "console: runs of one console at once", strings.Repeat("303 ", ownRuns)+"503 503 ", got)
	c.Close()
	attack.Check(t, "console: runs after its end", "503", strconv.Itoa(asUser(c, "/code", code).Code))
	attack.Check(t, "console: runs that are left", "0 0", fmt.Sprint(c.begun, len(c.own)))
}

// A page of a session shows this user's sessions only.
func TestAttackConsoleOwners(t *testing.T) {
	records := record.Open(testdir.Private(t))
	c := testConsole(t, records)
	for owner, want := range map[string]string{"alice": "404", unitask.LocalOwner(os.Geteuid()): "200"} {
		r, err := records.Create(time.Now(), owner, record.ViaHTTP, "code.js", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Session, r.Status = r.ID, record.Done
		if err := r.Finish(time.Now()); err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "console: a session of "+owner, want, strconv.Itoa(asUser(c, "/session?id="+r.ID, nil).Code))
	}
}
