package httpapi

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/unitask/unitask/internal/testwait"
)

// One session for many cases, because each takes a machine.
func TestSession(t *testing.T) {
	s := newSessionServer(t, true)
	made := s.want(201, "POST", "/v1/sessions", object{"language": "python", "env": object{"FROM": "api"},
		"allowNet": []string{"example.com"}, "lifeSeconds": 3600, "root": true})
	at := "/v1/sessions/" + made["id"].(string)
	if denials := made["denials"].([]any); len(denials) != 1 || denials[0].(object)["field"] != "allowNet" ||
		made["language"] != "python" || made["paused"] != false {
		t.Errorf("%+v", made)
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T, *sessionServer, string)
	}{{"steps", steps}, {"commands", commands}, {"terminal", terminals}, {"files", files}, {"folders", folders},
		{"watch", watching}, {"values", values}, {"ports", ports}, {"life", life}} {
		t.Run(test.name, func(t *testing.T) { test.run(t, &sessionServer{t, s.url, s.api, s.stop}, at) })
	}
}

func steps(t *testing.T, s *sessionServer, at string) {
	s.want(200, "POST", at+"/steps", object{"code": "x = 41", "timeoutSeconds": 30})
	got := s.want(200, "POST", at+"/steps", object{"code": "import sys\nprint('hi')\nprint('err', file=sys.stderr)\nx + 1",
		"files": []object{{"name": "beside.txt", "content": "text"}}})
	if got["value"] != "42" || got["stdout"] != "hi\n" || got["stderr"] != "err\n" || got["outcome"] != "exited" ||
		got["runId"] == "" {
		t.Errorf("%+v", got)
	}
	if got := s.want(200, "POST", at+"/steps", object{"code": "1/0"}); got["exitCode"] != 1.0 ||
		!strings.Contains(got["stderr"].(string), "ZeroDivisionError") {
		t.Errorf("%+v", got)
	}
	if got := s.shell(at, "cat beside.txt"); got != "text" {
		t.Errorf("%q", got)
	}
	got = s.want(200, "POST", at+"/steps", object{"code": "import urllib.request as u\nu.urlopen('http://no.example/')"})
	if hints := got["hints"].([]any); len(hints) != 1 || hints[0].(object)["field"] != "allowNet" ||
		strings.Contains(hints[0].(object)["text"].(string), "--") {
		t.Errorf("%+v", hints)
	}
	s.want(422, "POST", at+"/steps", object{"code": "1", "more": 1})
	s.want(422, "POST", at+"/steps", object{"code": "1", "language": "cobol"})

	begun := s.want(202, "POST", at+"/steps?wait=false", object{"code": "for i in range(3): print('line', i)\ni"})
	events := s.events(at + "/runs/" + begun["runId"].(string) + "/events")
	if got := events.text("stdout"); got != "line 0\nline 1\nline 2\n" {
		t.Errorf("%q of %+v", got, events)
	}
	if last := events[len(events)-1]; last.kind != "end" || last.data["value"] != "2" || last.data["outcome"] != "exited" {
		t.Errorf("%+v", last)
	}
	again := s.events(at+"/runs/"+begun["runId"].(string)+"/events", "Last-Event-ID", "1")
	if len(again) != len(events)-1 {
		t.Errorf("%d events after the first, of %d", len(again), len(events))
	}
	begun = s.want(202, "POST", at+"/steps?wait=false", object{"code": "while True: pass"})
	run := at + "/runs/" + begun["runId"].(string)
	s.want(204, "DELETE", run, nil)
	events = s.events(run + "/events")
	if last := events[len(events)-1]; last.kind != "end" || last.data["outcome"] == "exited" {
		t.Errorf("%+v", last)
	}
}

// told is an event of a stream.
type told struct {
	kind string
	data object
}

type tolds []told

func (all tolds) text(kind string) (text string) {
	for _, e := range all {
		if e.kind == kind {
			text += e.data["text"].(string)
		}
	}
	return text
}

// events reads a stream until its end.
func (s *sessionServer) events(path string, headers ...string) tolds {
	s.t.Helper()
	res := s.request(s.t.Context(), "alice", "GET", path, nil, headers...)
	defer res.Body.Close()
	if res.StatusCode != 200 {
		s.t.Fatalf("%s: %d", path, res.StatusCode)
	}
	return eventsOf(s.t, bufio.NewReader(res.Body), func(told) bool { return false })
}

// eventsOf reads events until enough is true, or the stream ends.
func eventsOf(t *testing.T, from *bufio.Reader, enough func(told) bool) (all tolds) {
	t.Helper()
	var one told
	for {
		line, err := from.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch name {
		case "event":
			one = told{kind: value}
		case "data":
			if err := json.Unmarshal([]byte(value), &one.data); err != nil {
				t.Fatal(err)
			}
			if all = append(all, one); enough(one) {
				return all
			}
		}
	}
}

func commands(t *testing.T, s *sessionServer, at string) {
	got := s.want(200, "POST", at+"/commands", object{"args": []string{"sh", "-c", "cat; echo $A $FROM; pwd; exit 3"},
		"env": object{"A": "b"}, "stdin": "in ", "dir": "/tmp"})
	if got["stdout"] != "in b api\n/tmp\n" || got["exitCode"] != 3.0 {
		t.Errorf("%+v", got)
	}
	got = s.want(200, "POST", at+"/commands", object{"args": []string{"id", "-u"}, "user": "root"})
	if got["stdout"] != "0\n" {
		t.Errorf("%+v", got)
	}
	got = s.want(200, "POST", at+"/commands", object{"args": []string{"sleep", "60"}, "timeoutSeconds": 1})
	if got["outcome"] == "exited" {
		t.Errorf("%+v", got)
	}
	s.want(422, "POST", at+"/commands", object{"args": []string{"cat"}, "interactive": true})
	begun := s.want(202, "POST", at+"/commands?wait=false", object{"args": []string{"cat"}, "interactive": true,
		"stdin": "a"})
	run := begun["runId"].(string)
	list := s.want(200, "GET", at+"/commands", nil)["commands"].([]any)
	if len(list) != 1 || list[0].(object)["runId"] != run || list[0].(object)["pid"] != begun["pid"] {
		t.Errorf("%+v", list)
	}
	s.want(204, "POST", at+"/commands/"+run+"/stdin", object{"text": "b"})
	s.want(422, "POST", at+"/commands/"+run+"/stdin", object{"base64": "%"})
	s.want(422, "POST", at+"/commands/"+run+"/resize", object{"columns": 10, "rows": 10})
	s.want(204, "POST", at+"/commands/"+run+"/stdin", object{"base64": "/w==", "close": true})
	events := s.events(at + "/runs/" + run + "/events")
	all := ""
	for _, e := range events {
		text, _ := e.data["text"].(string)
		exact, _ := e.data["base64"].(string)
		plain, err := base64.StdEncoding.DecodeString(exact)
		if all += text + string(plain); err != nil {
			t.Error(err)
		}
	}
	if all != "ab\xff" || events[len(events)-1].data["exitCode"] != 0.0 {
		t.Errorf("%q of %+v", all, events)
	}
	s.want(404, "POST", at+"/commands/"+run+"/stdin", object{"text": "b"})

	begun = s.want(202, "POST", at+"/commands?wait=false", object{"terminal": object{"columns": 101, "rows": 33},
		"args": []string{"sh", "-c", "stty size; exec sleep 600"}})
	run = begun["runId"].(string)
	res := s.request(t.Context(), "alice", "GET", at+"/runs/"+run+"/events", nil)
	eventsOf(t, bufio.NewReader(res.Body), func(e told) bool { return e.kind == "stdout" })
	res.Body.Close()
	s.want(204, "POST", at+"/commands/"+run+"/resize", object{"columns": 10, "rows": 10})
	s.want(204, "POST", at+"/commands/"+run+"/signal", object{"signal": "SIGTERM"})
	events = s.events(at + "/runs/" + run + "/events")
	if got := events.text("stdout"); !strings.Contains(got, "33 101") || events[len(events)-1].data["exitCode"] != 143.0 {
		t.Errorf("%q of %+v", got, events)
	}
	testwait.Until(t, "no command is listed", func() bool {
		return len(s.want(200, "GET", at+"/commands", nil)["commands"].([]any)) == 0
	})
}

// dialTerminal opens a terminal of alice.
func (s *sessionServer) dialTerminal(ctx context.Context, path string, headers ...string) (*websocket.Conn,
	*http.Response, error) {
	with := http.Header{"Authorization": {"Bearer " + tokenOf("alice")}}
	for i := 0; i < len(headers); i += 2 {
		with.Set(headers[i], headers[i+1])
	}
	return websocket.Dial(ctx, s.url+path, &websocket.DialOptions{HTTPHeader: with})
}

func terminals(t *testing.T, s *sessionServer, at string) {
	s.want(426, "GET", at+"/terminal", nil)
	conn, _, err := s.dialTerminal(t.Context(), at+"/terminal?columns=90&rows=20")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	write := func(kind websocket.MessageType, text string) {
		if err := conn.Write(t.Context(), kind, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	seen := ""
	until := func(want string) {
		for !strings.Contains(seen, want) {
			_, text, err := conn.Read(t.Context())
			if err != nil {
				t.Fatalf("waited for %q: %v after %q", want, err, seen)
			}
			seen += string(text)
		}
	}
	write(websocket.MessageBinary, "stty size\n")
	until("20 90")
	write(websocket.MessageText, `{"resize":[77,44]}`)
	write(websocket.MessageBinary, "while [ \"$(stty size)\" != '44 77' ]; do sleep 0.1; done; echo the''new; exit 5\n")
	until("thenew")
	until(`{"exitCode":5}`)
	if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Error(err)
	}
}

func files(t *testing.T, s *sessionServer, at string) {
	got := s.want(200, "PUT", at+"/files?path=d/e.bin&mode=600", []byte("0123456789"))
	if got["path"] != "/work/d/e.bin" || got["size"] != 10.0 || got["mode"] != "0600" || got["kind"] != "file" {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct{ query, header, want, parts string }{
		{"", "", "0123456789", ""}, {"&offset=3", "", "3456789", ""}, {"&offset=3&length=2", "", "34", ""},
		{"&offset=30", "", "", ""}, {"", "bytes=2-4", "234", "bytes 2-4/10"}, {"", "bytes=7-", "789", "bytes 7-9/10"},
		{"", "bytes=-2", "89", "bytes 8-9/10"}, {"", "bytes=0-99", "0123456789", "bytes 0-9/10"},
		{"", "bytes=1-2,4-5", "0123456789", ""}, {"", "lines=1-2", "0123456789", ""},
	} {
		var with []string
		if c.header != "" {
			with = []string{"Range", c.header}
		}
		res, text := s.send("alice", "GET", at+"/files?path=d/e.bin"+c.query, nil, with...)
		if string(text) != c.want || res.Header.Get("Content-Range") != c.parts ||
			(res.StatusCode == 206) != (c.parts != "") {
			t.Errorf("%+v: %d %q %s", c, res.StatusCode, text, res.Header.Get("Content-Range"))
		}
	}
	s.want(416, "GET", at+"/files?path=d/e.bin", nil, "Range", "bytes=10-")
	s.want(404, "GET", at+"/files?path=none", nil)
	s.want(409, "GET", at+"/files?path=d", nil)
	s.want(404, "GET", at+"/files/stat?path=none", nil)
	if got := s.want(201, "POST", at+"/files/mkdir", object{"path": "d/f"}); got["kind"] != "folder" {
		t.Errorf("%+v", got)
	}
	got = s.want(200, "POST", at+"/files/move", object{"from": "d/e.bin", "to": "d/f/g"})
	if got["path"] != "/work/d/f/g" {
		t.Errorf("%+v", got)
	}
	list := s.want(200, "GET", at+"/files/list?path=d&depth=2", nil)
	var names []string
	for _, e := range list["entries"].([]any) {
		names = append(names, e.(object)["path"].(string))
	}
	slices.Sort(names)
	if strings.Join(names, " ") != "/work/d/f /work/d/f/g" || list["more"] != false {
		t.Errorf("%+v", list)
	}
	s.want(200, "PUT", at+"/files?path=/root/own&user=root&mode=600", []byte("root's"))
	s.want(403, "GET", at+"/files?path=/root/own", nil)
	s.want(204, "DELETE", at+"/files?path=d", nil)
	big := bytes.Repeat([]byte("x"), 5<<20)
	s.want(200, "PUT", at+"/files?path=big", io.LimitReader(&endlessText{}, 5<<20))
	if _, text := s.send("alice", "GET", at+"/files?path=big", nil); !bytes.Equal(text, big) {
		t.Errorf("%d bytes", len(text))
	}
}

// endlessText is a file that never ends.
type endlessText struct{}

func (*endlessText) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func folders(t *testing.T, s *sessionServer, at string) {
	s.shell(at, "mkdir -p t/sub && echo one > t/one && ln -s ../one t/sub/link && chmod 755 t/one")
	res, text := s.send("alice", "GET", at+"/tar?path=t", nil)
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/x-tar" {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, h.Name+h.Linkname)
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "./ one sub/ sub/link../one" {
		t.Errorf("%q", got)
	}
	s.want(201, "PUT", at+"/tar?path=copy/of", text, "Content-Type", "application/x-tar")
	if got := s.shell(at, "cat copy/of/sub/link; stat -c %a copy/of/one; ls -A copy/of"); got != "one\n755\none\nsub\n" {
		t.Errorf("%q", got)
	}
	s.want(422, "PUT", at+"/tar?path=copy/of", text, "Content-Type", "application/x-tar")
	s.want(404, "GET", at+"/tar?path=none", nil)
	s.want(415, "PUT", at+"/tar?path=other", text, "Content-Type", "text/plain")
}

func watching(t *testing.T, s *sessionServer, at string) {
	s.want(404, "GET", at+"/files/watch?path=none", nil)
	s.shell(at, "mkdir -p w")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res := s.request(ctx, "alice", "GET", at+"/files/watch?path=w", nil)
	defer res.Body.Close()
	from := bufio.NewReader(res.Body)
	eventsOf(t, from, func(e told) bool { return e.kind == "ready" })
	s.shell(at, "echo x > w/new")
	all := eventsOf(t, from, func(e told) bool { return e.data["kind"] == "write" })
	if all[0].kind != "change" || all[0].data["name"] != "new" || all[0].data["kind"] != "create" {
		t.Errorf("%+v", all)
	}
}

func values(t *testing.T, s *sessionServer, at string) {
	s.want(204, "PUT", at+"/values/big", json.RawMessage(`{"n":12345678901234567890}`))
	_, text := s.send("alice", "GET", at+"/values/big", nil)
	if strings.TrimSpace(string(text)) != `{"n":12345678901234567890}` {
		t.Errorf("%s", text)
	}
	if got := s.want(200, "GET", at+"/values", nil)["names"].([]any); len(got) != 1 || got[0] != "big" {
		t.Errorf("%+v", got)
	}
	s.want(404, "GET", at+"/values/none", nil)
	s.want(400, "GET", at+"/values/a.b", nil)
}

func life(t *testing.T, s *sessionServer, at string) {
	s.want(200, "POST", at+"/steps", object{"code": "kept = 'yes'"})
	before := s.want(200, "GET", at, nil)["expiresAt"]
	if got := s.want(200, "POST", at+"/extend", object{"lifeSeconds": 7200}); got["expiresAt"] == before {
		t.Errorf("%+v", got)
	}
	forks := s.want(201, "POST", at+"/fork", object{"count": 1})["sessions"].([]any)
	fork := "/v1/sessions/" + forks[0].(object)["id"].(string)
	if got := s.want(200, "POST", fork+"/steps", object{"code": "kept"}); got["value"] != "'yes'" {
		t.Errorf("%+v", got)
	}
	s.want(204, "DELETE", fork, nil)
	s.want(404, "GET", fork, nil)
	if got := s.want(200, "POST", at+"/pause", nil); got["paused"] != true {
		t.Errorf("%+v", got)
	}
	if got := s.want(200, "GET", at, nil); got["paused"] != true {
		t.Errorf("%+v", got)
	}
	if got := s.want(200, "POST", at+"/resume", nil); got["paused"] != false {
		t.Errorf("%+v", got)
	}
	if got := s.want(200, "POST", at+"/steps", object{"code": "kept"}); got["value"] != "'yes'" {
		t.Errorf("%+v", got)
	}
	if got := s.want(200, "GET", "/v1/sessions", nil)["sessions"].([]any); len(got) != 1 {
		t.Errorf("%+v", got)
	}
	s.want(204, "DELETE", at, nil)
	if got := s.want(200, "GET", "/v1/sessions", nil)["sessions"].([]any); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}
