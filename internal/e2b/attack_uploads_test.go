package e2b

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// place asks for a place for an archive, and returns its path.
func (a *api) place(hash string) string {
	a.t.Helper()
	link := a.want(http.StatusCreated, "GET", "/templates/any/files/"+hash, nil)
	return strings.TrimPrefix(link["url"].(string), a.url)
}

// Callers learn no path of the host, and old archives go without a further request.
func TestAttackUploads(t *testing.T) {
	a := newAPI(t, false)
	home := a.rt.Images().Home()
	at := a.place("one")
	if err := os.Rename(home, home+".away"); err != nil {
		t.Fatal(err)
	}
	_, failed := a.e2b.receive(httptest.NewRecorder(), httptest.NewRequest("PUT", at, strings.NewReader("x")))
	status, text := a.send("PUT", at, []byte("x"), nil)
	if err := os.Rename(home+".away", home); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	a.e2b.fail(w, httptest.NewRequest("PUT", at, nil), failed)
	text = append(text, w.Body.Bytes()...)
	if !strings.Contains(fmt.Sprint(failed), home) {
		t.Errorf("the error names no path: %v", failed)
	}
	attack.Check(t, "an archive that the host can't store", "500", fmt.Sprint(status))
	shown := map[bool]string{true: "shown", false: "hidden"}[strings.Contains(string(text), home)]
	attack.Check(t, "the host's path in the answer", "hidden", shown)
	a.want(http.StatusOK, "PUT", at, "x")
	u := &a.e2b.uploads
	u.mu.Lock()
	u.list[0].began = time.Now().Add(-2 * uploadedTime)
	content := u.list[0].content
	u.mu.Unlock()
	status, _ = a.send("PUT", at, []byte("x"), nil)
	attack.Check(t, "the URL of an archive that is old", "404", fmt.Sprint(status))
	u.put(&archive{}, nil) // as of another caller
	_, err := content.Stat()
	attack.Check(t, "an old archive's file", "closed", map[bool]string{true: "open", false: "closed"}[err == nil])
}

// A client keeps the place of an archive and sends nothing.
func TestAttackSlowUpload(t *testing.T) {
	over := make(chan error, 1)
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &steadyBody{from: r.Body, control: http.NewResponseController(w), began: time.Now().Add(100*time.Millisecond -
			uploadPause)}
		_, err := b.Read(make([]byte, 10))
		over <- err
	}))
	defer hs.Close()
	conn, err := net.Dial("tcp", hs.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
	got := "waits"
	select {
	case err := <-over:
		got = map[bool]string{true: "refused", false: fmt.Sprint(err)}[os.IsTimeout(err)]
	case <-time.After(20 * time.Second):
	}
	attack.Check(t, "an upload without a byte in its time", "refused", got)
}

// Callers upload more than the host's disk has room for.
func TestAttackUploadsFillDisk(t *testing.T) {
	var u uploads
	place := func(owner string) *archive {
		token, _, err := u.offer(owner, "hash")
		if err != nil {
			t.Fatal(err)
		}
		return u.of(token)
	}
	const free = minFree + 100<<20 // bytes
	outcome := func(err error) string {
		return map[bool]string{true: "no room", false: fmt.Sprint(err)}[errors.Is(err, syscall.ENOSPC)]
	}
	attack.Check(t, "an archive for which there is room", "<nil>", outcome(u.reserve(place("alice"), 60<<20, free)))
	attack.Check(t, "another one while it comes", "no room", outcome(u.reserve(place("mallory"), 60<<20, free)))
	u.put(place("alice"), nil)
	attack.Check(t, "another one when it has not come", "<nil>", outcome(u.reserve(place("mallory"), 60<<20, free)))
	attack.Check(t, "an archive on a full disk", "no room", outcome(u.reserve(place("eve"), 1, minFree)))
}
