package httpapi

import (
	"archive/tar"
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// Answers say what a caller needs: the name that it gave, no size that redaction makes wrong, each header once.
func TestSessionAnswers(t *testing.T) {
	const secret = "correct-horse-battery-staple-123"
	t.Setenv("API_TOKEN", secret)
	s := newSessionServer(t, true)
	at := s.start(object{"secrets": []string{"API_TOKEN"}})
	for _, c := range []struct {
		status       int
		method, path string
		body         any
		detail       string
	}{
		{404, "GET", "/files?path=/work/none", nil, `"/work/none": no such file`},
		{404, "GET", "/files/list?path=none", nil, `"none": no such file`},
		{404, "GET", "/files/watch?path=none", nil, `"none": no such file`},
		{409, "GET", "/files?path=/tmp", nil, `"/tmp": is a directory`},
		{403, "PUT", "/files?path=/etc/none", []byte("x"), `"/etc/none": permission denied`},
		{404, "POST", "/files/move", object{"from": "a", "to": "b"}, `"a to b": no such file`},
	} {
		got := s.want(c.status, c.method, at+c.path, c.body)
		if text, _ := got["detail"].(string); !strings.HasPrefix(text, c.detail) || got["code"] != "file" {
			t.Errorf("%s %s: %+v", c.method, c.path, got)
		}
	}
	s.shell(at, "printenv API_TOKEN > secret")
	if res, text := s.send("alice", "GET", at+"/tar?path=.", nil); res.StatusCode != 409 ||
		!strings.Contains(string(text), `"code":"secrets"`) {
		t.Errorf("a folder with a secret: %d %.200q", res.StatusCode, text)
	}
	if res, text := s.send("alice", "GET", at+"/files?path=secret&offset=1", nil); res.StatusCode != 409 ||
		!strings.Contains(string(text), `"code":"secrets"`) {
		t.Errorf("a part of a secret: %d %.200q", res.StatusCode, text)
	}
	res, text := s.send("alice", "GET", at+"/files?path=secret", nil, "Range", "bytes=0-9")
	if res.StatusCode != 200 || res.Header.Get("Content-Range") != "" || res.Header.Get("Accept-Ranges") != "" ||
		strings.Contains(string(text), secret[:10]) {
		t.Errorf("%d %v %s", res.StatusCode, res.Header, text)
	}
	var archive bytes.Buffer
	out := tar.NewWriter(&archive)
	_ = out.WriteHeader(&tar.Header{Name: "a", Mode: 0o644, Size: 1})
	_, _ = out.Write([]byte("x"))
	out.Close()
	s.want(201, "PUT", at+"/tar?path=up", archive.Bytes())
	s.want(415, "PUT", at+"/tar?path=other", archive.Bytes(), "Content-Type", "text/plain")
	proxy := s.serveIn(at, "8100", object{})
	for path, status := range map[string]int{proxy + "/": 200, at + "/ports/9/": 502} {
		res, _ := s.send("alice", "GET", path, nil)
		if kinds := res.Header.Values("X-Content-Type-Options"); res.StatusCode != status || len(kinds) != 1 {
			t.Errorf("%s: %d %q", path, res.StatusCode, kinds)
		}
	}
}

// A terminal trusts the server's check of origins: one that --allow-origin adds has a terminal, and no other.
func TestTerminalOrigins(t *testing.T) {
	s := newSessionServer(t, true, "https://app.example")
	at := s.start(nil)
	for origin, fine := range map[string]bool{"": true, "https://app.example": true, "https://evil.example": false} {
		h := http.Header{"Authorization": {"Bearer " + tokenOf("alice")}}
		if origin != "" {
			h.Set("Origin", origin)
		}
		conn, res, err := websocket.Dial(context.Background(), strings.Replace(s.url, "http", "ws", 1)+at+"/terminal",
			&websocket.DialOptions{HTTPHeader: h})
		if conn != nil {
			conn.CloseNow()
		}
		if (err == nil) != fine || !fine && res.StatusCode != http.StatusForbidden {
			t.Errorf("%q: %v", origin, err)
		}
	}
}
