package httpapi

import (
	"context"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/unitask/unitask/internal/testwait"
)

// guestServer is a server of a machine: it answers with the request, and at some paths it attacks.
const guestServer = `
import base64, hashlib, json, socketserver, sys
answers = json.load(open(sys.argv[2]))
class One(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline().decode("latin-1").split()
        headers = {}
        while True:
            h = self.rfile.readline().decode("latin-1").rstrip("\r\n")
            if not h: break
            name, _, value = h.partition(":")
            headers[name.lower()] = value.strip()
        path = line[1].partition("?")[0]
        if path in answers:
            self.wfile.write(answers[path].encode("latin-1"))
        elif path == "/endless":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
            while True: self.wfile.write(b"x" * 65536)
        elif headers.get("upgrade") == "websocket":
            key = (headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()
            accept = base64.b64encode(hashlib.sha1(key).digest()).decode()
            self.wfile.write(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Set-Cookie: a=b\r\nSec-WebSocket-Accept: " + accept + "\r\n\r\n").encode())
            self.wfile.write(b"\x81\x05hello")
            self.rfile.read(2)
        else:
            body = self.rfile.read(int(headers.get("content-length", 0))).decode()
            text = json.dumps({"line": line, "headers": headers, "body": body}).encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            self.wfile.write(head % len(text) + text)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
Server(("127.0.0.1", int(sys.argv[1])), One).serve_forever()
`

// serveIn starts guestServer at a port of a session.
func (s *sessionServer) serveIn(at, port string, answers object) string {
	s.t.Helper()
	s.want(204, "PUT", at+"/values/answers"+port, answers)
	s.want(200, "PUT", at+"/files?path=server.py", []byte(guestServer))
	s.want(202, "POST", at+"/commands?wait=false", object{"args": []string{"python3", "server.py", port,
		"/work/.values/answers" + port + ".json"}})
	proxy := at + "/ports/" + port
	testwait.Until(s.t, "the server answers", func() bool {
		res, _ := s.send("alice", "GET", proxy+"/", nil)
		return res.StatusCode == 200
	})
	return proxy
}

func ports(t *testing.T, s *sessionServer, at string) {
	if got := s.want(502, "GET", at+"/ports/9999/", nil); got["code"] != "port" {
		t.Errorf("%+v", got)
	}
	s.want(400, "GET", at+"/ports/0/", nil)
	proxy := s.serveIn(at, "8100", object{
		"/moved": "HTTP/1.1 302 Found\r\nLocation: /there?q=1\r\nContent-Length: 0\r\n\r\n"})
	got := s.want(200, "POST", proxy+"/a%2Fb/c?x=1;y", object{"a": 1})
	if line := got["line"].([]any); line[0] != "POST" || line[1] != "/a%2Fb/c?x=1;y" || got["body"] != `{"a":1}` {
		t.Errorf("%+v", got)
	}
	if h := got["headers"].(object); h["x-forwarded-prefix"] != proxy || h["host"] != "127.0.0.1:8100" {
		t.Errorf("%+v", h)
	}
	for _, method := range []string{"PUT", "PATCH", "DELETE"} {
		if got := s.want(200, method, proxy+"/", nil); got["line"].([]any)[0] != method {
			t.Errorf("%+v", got)
		}
	}
	res, _ := s.send("alice", "GET", proxy+"/moved", nil)
	if to := res.Header.Get("Location"); res.StatusCode != 302 || to != proxy+"/there?q=1" {
		t.Errorf("%d %q", res.StatusCode, to)
	}
	conn, res, err := s.dialTerminal(t.Context(), proxy+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if kind, text, err := conn.Read(t.Context()); err != nil || kind != websocket.MessageText || string(text) != "hello" ||
		res.Header.Get("Set-Cookie") != "" {
		t.Errorf("%v %q %v %v", kind, text, err, res.Header)
	}
	stream, cancel := context.WithCancel(t.Context())
	endlessText := s.request(stream, "alice", "GET", proxy+"/endless", nil)
	cancel()
	endlessText.Body.Close()
	if !strings.HasPrefix(s.shell(at, "echo fine"), "fine") {
		t.Error("the session is gone")
	}
}
