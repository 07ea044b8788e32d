package console

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Pipes and links in a record's folder neither delay an answer nor lead elsewhere.
func TestAttackConsoleOddRecord(t *testing.T) {
	records := record.Open(testdir.Private(t))
	c := testConsole(t, records)
	id := ended(t, records, map[string]string{"x": "x", "link.png": "x", "pipe.png": "x"})
	secret := t.TempDir() + "/secret"
	odd := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	odd(os.WriteFile(secret, []byte("\x89PNG\r\n\x1a\n secret"), 0o600))
	for _, name := range []string{record.StdoutFile, record.StderrFile, record.ArtifactsDir + "/link.png",
		record.ArtifactsDir + "/pipe.png"} {
		odd(os.RemoveAll(records.Path(id, name)))
	}
	odd(unix.Mkfifo(records.Path(id, record.StdoutFile), 0o600))
	odd(os.Symlink(secret, records.Path(id, record.StderrFile)))
	odd(unix.Mkfifo(records.Path(id, record.ArtifactsDir+"/pipe.png"), 0o600))
	odd(os.Symlink(secret, records.Path(id, record.ArtifactsDir+"/link.png")))
	for _, page := range []string{"/file?of=stdout&id=", "/file?of=stderr&id=", "/file?path=link.png&id=",
		"/file?path=pipe.png&id=", "/output?stdout=0&stderr=0&id=", "/run?id="} {
		said := make(chan *httptest.ResponseRecorder, 1)
		go func() { said <- asUser(c, page+id, nil) }()
		got := "refused"
		select {
		case w := <-said:
			if w.Code == 200 || strings.Contains(w.Body.String(), "secret\n") || w.Header().Get("Content-Type") == "image/png" {
				got = fmt.Sprint(w.Code, w.Body)
			}
		case <-time.After(20 * time.Second):
			t.Fatal(page, "waits")
		}
		attack.Check(t, "console: a record with pipes and links: "+page, "refused", got)
	}
}

// No name of a file makes a second header, or ends the quoted name.
func TestAttackConsoleNames(t *testing.T) {
	for _, name := range []string{"a\r\nSet-Cookie: x=y", "a\nb", `a"; filename="b.html`, "a\\", `\"`,
		"a\x00b", "\xff\xfe",
		"é\u202etxt.exe", "a;b=c", "", strings.Repeat("é", 300), "a'b*=UTF-8''c", "%0d%0aX: y"} {
		value, got := attached(name), "one name"
		if !strings.HasPrefix(value, "attachment") || strings.ContainsAny(value, "\r\n\x00\u202e") ||
			strings.Count(value, "filename") > 1 && !strings.Contains(value, `\"`) {
			got = value
		}
		attack.Check(t, fmt.Sprintf("console: the header of a download, %.20q", name), "one name", got)
	}
}

// Script in sessions, lists, the policy and errors stays text.
func TestAttackConsolePages(t *testing.T) {
	const evil = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>\x1b]0;x\x07javascript:"
	c := &Console{}
	rec := &record.Record{ID: evil, Error: evil, Owner: evil, Session: evil, Via: evil, Status: evil}
	one := liveSession{View: sessiond.View{ID: evil, Name: evil, Parent: evil, State: evil, Image: evil, Language: evil}}
	in := &history.Inspection{Record: rec, Code: evil, Stdout: evil, Stderr: evil, Cut: []string{evil},
		Ended: &run.Result{Outcome: evil, Value: evil}}
	q := httptest.NewRequest("GET", "/", nil)
	for name, data := range map[string]map[string]any{
		"live.html": {"Runs": []liveRun{{Record: rec, Own: true}, {Record: rec}}, "More": 1, "Sessions": []liveSession{one},
			"Images": []string{evil}},
		"session.html": {"Session": one, "Record": rec, "Forks": []liveSession{one}, "Steps": []shownStep{{in, true}},
			"Failed": evil, "Listed": true, "Files": []unitask.SessionFile{{Path: evil}}, "More": true},
		"policy.html": {"Files": []string{evil}, "Lines": []ceilingLine{{evil, evil, evil}}, "URL": evil, "Method": evil,
			"Answer": evil, "Denials": []policy.Denial{{Field: evil, Requested: evil}}, "File": evil},
		"wrong.html": {"Error": evil},
	} {
		w, got := httptest.NewRecorder(), "text"
		c.show(w, q, name, data)
		body := w.Body.String()
		if strings.Contains(body, "<script>") || strings.Contains(body, "<img") || w.Code != 200 ||
			strings.Contains(body, `="javascript:`) || !strings.Contains(body, "&lt;script") {
			got = body
		}
		attack.Check(t, "console: script in "+name, "text", got)
	}
}

// The link opens the console for one of those who try at the same time.
func TestAttackConsoleRace(t *testing.T) {
	c := testConsole(t, record.Open(testdir.Private(t)))
	codes, q := make(chan int, 50), httptest.NewRequest("GET", c.Link(), nil)
	for range cap(codes) {
		go func() {
			w := httptest.NewRecorder()
			c.ServeHTTP(w, q.Clone(q.Context()))
			codes <- w.Code
		}()
	}
	opened := 0
	for range cap(codes) {
		if <-codes == 200 {
			opened++
		}
	}
	attack.Check(t, "console: 50 openings at once", "1", strconv.Itoa(opened))
}

// Whatever is asked on the page of the policy, the answer is short text, and about GET if no method is given.
func TestAttackConsolePolicy(t *testing.T) {
	c := testConsole(t, record.Open(testdir.Private(t)))
	for address, want := range map[string]string{"a.example": "Yes", "b.example": "No", "a.example/w": "No",
		"[::1]:99999": "port", "https://a:b@a.example": "wanted", "file:///etc/passwd": "wanted", "A.EXAMPLE./": "",
		"a.example:443/../w": "", strings.Repeat("a", 5000): "", "\x00": "", "[::ffff:127.0.0.1]": "", "127.0.0.1:1": "No"} {
		ceiling, err := policy.ParseCeiling("test", []byte("allowNet = [\"a.example\"]\n"+
			"[[net.rule]]\nhost = \"a.example\"\nmethod = [\"GET\"]\npath = \"/\"\n"))
		if err != nil {
			t.Fatal(err)
		}
		c.Policy = func() (*policy.ForPeople, error) { return &policy.ForPeople{Ceiling: ceiling}, nil }
		w, got := asUser(c, "/policy?url="+url.QueryEscape(address), nil), "short"
		at := bytes.Index(w.Body.Bytes(), []byte(`id="answer"`))
		if answer, _, _ := strings.Cut(w.Body.String()[max(at, 0):], "</p>"); at < 0 || w.Code != 200 ||
			w.Body.Len() > 20_000 || !strings.Contains(answer, want) {
			got = fmt.Sprint(w.Code, answer)
		}
		attack.Check(t, fmt.Sprintf("console: may a run reach %.40q", address), "short", got)
	}
}
