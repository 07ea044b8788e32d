package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
)

// A client that stops in the middle of an upload ends it, and a client that continues does not.
func TestAttackSlowUpload(t *testing.T) {
	got := make(chan error, 1)
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := newUpload(&call{w: w, r: r}, 1<<20)
		if r.URL.Path == "/slow" {
			body.until = time.Now().Add(50 * time.Millisecond)
		}
		_, err := io.Copy(io.Discard, body)
		got <- err
	}))
	defer hs.Close()
	conn, err := net.Dial("tcp", hs.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "PUT /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx")
	late := errors.Is(<-got, os.ErrDeadlineExceeded)
	attack.Check(t, "an upload that stops", "ended", map[bool]string{true: "ended"}[late])
	res, err := http.Post(hs.URL+"/fast", "text/plain", strings.NewReader(strings.Repeat("x", 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if err := <-got; err != nil {
		t.Error(err)
	}
	res, err = http.Post(hs.URL+"/fast", "text/plain", strings.NewReader(strings.Repeat("x", 1<<20+1)))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if err := <-got; problemOf(uploaded(err)).Status != http.StatusRequestEntityTooLarge {
		t.Error(err)
	}
}

// Places are bounded for one caller, and for all.
func TestPlaces(t *testing.T) {
	var p places
	leave, err := p.take("a", 2, 1, "things")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.take("a", 2, 1, "things"); !errors.As(err, new(*unitask.BusyError)) {
		t.Error(err)
	}
	if _, err := p.take("b", 2, 1, "things"); err != nil {
		t.Error(err)
	}
	if _, err := p.take("c", 2, 1, "things"); !errors.As(err, new(*unitask.BusyError)) {
		t.Error(err)
	}
	leave()
	leave() // once is enough
	if _, err := p.take("c", 2, 1, "things"); err != nil || p.all != 2 || len(p.of) != 2 {
		t.Error(err, p.all, p.of)
	}
}

// Wrong requests for sessions are told what is wrong, before a machine starts.
func TestSessionRequests(t *testing.T) {
	s := newSessionServer(t, false)
	for text, want := range map[string]string{
		`{"memoryMb":1}`:                "memoryMb",
		`{"code":"1"}`:                  "code",
		`{"language":"cobol"}`:          "cobol",
		`{"project":{"host":"/"}}`:      "project",
		`{"lifeSeconds":1e9}`:           "lifeSeconds",
		`{"env":{"A=B":"c"}}`:           "A=B",
		`{"secrets":["A","A"]}`:         "twice",
		`{"files":[{"name":"../x"}]}`:   "content",
		`{"image":"../../etc/passwd"}`:  "image",
		`{"files":["/etc/passwd:rel"]}`: "rel",
	} {
		res, got := s.send("alice", "POST", "/v1/sessions", []byte(text), "Content-Type", jsonType)
		if res.StatusCode != 422 || !strings.Contains(string(got), want) {
			t.Errorf("%s: %d %s", text, res.StatusCode, got)
		}
	}
	for path, want := range map[string]int{"/v1/sessions/none": 404, "/v1/sessions/none/files": 400,
		"/v1/sessions/none/files?path=a&path=b": 400, "/v1/sessions/none/files?path=a&offset=NaN": 400,
		"/v1/sessions/none/files?path=a&user=x": 400, "/v1/sessions/none/ports/80/a/b?x=y;z": 404,
		"/v1/sessions/none/files/list?depth=65": 400, "/v1/sessions/none/values/a-b": 404} {
		if res, got := s.send("alice", "GET", path, nil); res.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", path, res.StatusCode, got, want)
		}
	}
}

// Bodies in JSON have the limits of MCP's: of size, of names and values, of depth, and of memory.
func TestAttackSessionBodies(t *testing.T) {
	s := newSessionServer(t, false)
	for name, c := range map[string]struct {
		body string
		want int
	}{
		"a body of 17 MiB":          {`{"env":{"A":"` + strings.Repeat("x", 17<<20) + `"}}`, 413},
		"a million values":          {`{"ask":[` + strings.Repeat(`"a",`, 1_000_000) + `"a"]}`, 400},
		"a deep list":               {`{"ask":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "}", 400},
		"two values":                {`{} {}`, 400},
		"no JSON":                   {`{`, 400},
		"nothing":                   {``, 400},
		"names in another spelling": {`{"Root":true}`, 422},
		"a long wrong name":         {`{"env":{"` + strings.Repeat("=", 1<<20) + `":""}}`, 422},
		"a number beyond floats":    {`{"cpus":1e999}`, 400},
	} {
		res, text := s.send("alice", "POST", "/v1/sessions", strings.NewReader(c.body), "Content-Type", jsonType)
		attack.Check(t, "a body with "+name, fmt.Sprint(c.want), fmt.Sprint(res.StatusCode))
		if len(text) > 4096 {
			t.Errorf("%s: an answer of %d bytes", name, len(text))
		}
	}
}
