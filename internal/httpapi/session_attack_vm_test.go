package httpapi

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

// examples returns the document's examples of bodies in JSON, by operation.
func (s *sessionServer) examples() map[string]json.RawMessage {
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(s.api.doc.text, &doc); err != nil {
		s.t.Fatal(err)
	}
	all := map[string]json.RawMessage{}
	for _, item := range doc.Paths {
		for method, text := range item {
			var op struct {
				OperationID string
				RequestBody struct {
					Content map[string]struct{ Example json.RawMessage }
				}
			}
			if !slices.Contains(methods, method) {
				continue
			}
			if err := json.Unmarshal(text, &op); err != nil {
				s.t.Fatal(err)
			}
			all[op.OperationID] = op.RequestBody.Content[jsonType].Example
		}
	}
	return all
}

// Every operation of the document answers for another caller's session as for an unknown one.
func TestAttackOthersSession(t *testing.T) {
	s := newSessionServer(t, true)
	at := s.start(nil)
	begun := s.want(202, "POST", at+"/commands?wait=false", object{"args": []string{"sleep", "600"}})
	id, run := strings.TrimPrefix(at, "/v1/sessions/"), begun["runId"].(string)
	s.want(204, "PUT", at+"/values/a", object{})
	none := "20200101-000000000-000000"
	examples := s.examples()
	tried := 0
	for name, op := range s.api.doc.operations {
		if !strings.HasPrefix(op.path, "/v1/sessions/{id}") {
			continue
		}
		tried++
		ask := func(caller, id string) string {
			path := strings.NewReplacer("{id}", id, "{run}", run, "{name}", "a", "{port}", "80",
				"{path}", "x").Replace(op.path)
			for _, p := range op.Parameters {
				if p.In == "query" && p.Required {
					path += "?" + p.Name + "=a"
				}
			}
			var body any
			if examples[name] != nil {
				body = examples[name]
			}
			var with []string
			switch name {
			case "openTerminal":
				with = []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13",
					"Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
			case "writeFolder":
				with = []string{"Content-Type", tarType}
			}
			res, text := s.send(caller, op.method, path, body, with...)
			return fmt.Sprintf("%d %s", res.StatusCode, strings.ReplaceAll(string(text), id, "ID"))
		}
		got := ask("mallory", id)
		attack.Check(t, "another caller's session: "+name, ask("mallory", none), got)
		if !strings.HasPrefix(got, "404 ") || !strings.Contains(got, `"code":"session.gone"`) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if tried < 30 {
		t.Errorf("only %d operations", tried)
	}
	_, list := s.send("mallory", "GET", "/v1/sessions", nil)
	attack.Check(t, "another caller's session: the list", `{"sessions":[]}`, strings.TrimSpace(string(list)))
	if got := s.list(at); len(got) != 1 {
		t.Errorf("hers is not what it was: %v", got)
	}
	own := s.startAs("mallory")
	for _, path := range []string{own + "/runs/" + run + "/events", own + "/runs/" + run} {
		method := map[bool]string{true: "GET", false: "DELETE"}[strings.HasSuffix(path, "events")]
		res, _ := s.send("mallory", method, path, nil)
		attack.Check(t, "another caller's command through an own session: "+method, "404", fmt.Sprint(res.StatusCode))
	}
	res, _ := s.send("mallory", "POST", own+"/commands/"+run+"/signal", object{"signal": "SIGKILL"})
	attack.Check(t, "a signal to another caller's command", "404", fmt.Sprint(res.StatusCode))
}

// startAs starts a session of a caller.
func (s *sessionServer) startAs(caller string) string {
	s.t.Helper()
	res, text := s.send(caller, "POST", "/v1/sessions", object{"language": "python"})
	var made struct{ ID string }
	if err := json.Unmarshal(text, &made); err != nil || res.StatusCode != 201 {
		s.t.Fatalf("%d %s", res.StatusCode, text)
	}
	return "/v1/sessions/" + made.ID
}

// list returns the running commands of a session of alice.
func (s *sessionServer) list(at string) (list []object) {
	s.t.Helper()
	for _, one := range s.want(200, "GET", at+"/commands", nil)["commands"].([]any) {
		list = append(list, one.(object))
	}
	return list
}

// Hostile tars leave nothing behind, in the machine or out of it.
func TestAttackTars(t *testing.T) {
	s := newSessionServer(t, true)
	at := s.start(nil)
	file := func(name, text string) []any {
		return []any{&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}, text}
	}
	link := func(name, to string, kind byte) []any {
		return []any{&tar.Header{Name: name, Linkname: to, Typeflag: kind}, ""}
	}
	for _, c := range []struct {
		name    string
		entries [][]any
	}{
		{"a name that leads out", [][]any{file("../out", "x")}},
		{"an absolute name", [][]any{file("/work/out", "x")}},
		{"a link out", [][]any{link("l", "../../../etc", tar.TypeSymlink)}},
		{"an absolute link", [][]any{link("l", "/etc/passwd", tar.TypeSymlink)}},
		{"a file through a link", [][]any{link("l", ".", tar.TypeSymlink), file("l/x", "x")}},
		{"a hard link out", [][]any{link("l", "../../etc/passwd", tar.TypeLink)}},
		{"a hard link to no file", [][]any{link("l", "none", tar.TypeLink)}},
		{"a device", [][]any{{&tar.Header{Name: "d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, ""}}},
		{"a block device", [][]any{{&tar.Header{Name: "d", Typeflag: tar.TypeBlock}, ""}}},
		{"a pipe", [][]any{{&tar.Header{Name: "p", Typeflag: tar.TypeFifo}, ""}}},
		{"a name twice", [][]any{file("a", "x"), file("a", "y")}},
		{"a folder that is a file", [][]any{file("a", "x"), file("a/b", "y")}},
		{"a deep name", [][]any{file(strings.Repeat("d/", 80)+"x", "x")}},
	} {
		var text bytes.Buffer
		w := tar.NewWriter(&text)
		for _, e := range c.entries {
			if err := w.WriteHeader(e[0].(*tar.Header)); err != nil {
				t.Fatal(err)
			}
			_, _ = w.Write([]byte(e[1].(string)))
		}
		w.Close()
		res, got := s.send("alice", "PUT", at+"/tar?path=box/new", text.Bytes(), "Content-Type", tarType)
		attack.Check(t, "a tar with "+c.name, "422", fmt.Sprint(res.StatusCode))
		if strings.Contains(string(got), "/sessions/") || strings.Contains(string(got), "/tmp") {
			t.Errorf("%s: it names the host's folder: %s", c.name, got)
		}
	}
	var huge bytes.Buffer
	h := &tar.Header{Name: "huge", Size: 1 << 40, Format: tar.FormatGNU}
	if err := tar.NewWriter(&huge).WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"a huge file": huge.Bytes(), "noise": bytes.Repeat([]byte("noise "), 1000),
		"a cut file": append(huge.Bytes()[:500], 0)} {
		res, _ := s.send("alice", "PUT", at+"/tar?path=box/new", text, "Content-Type", tarType)
		attack.Check(t, "a tar with "+name, "422", fmt.Sprint(res.StatusCode))
	}
	attack.Check(t, "what hostile tars left", "", s.shell(at, "ls -A box 2>/dev/null; ls -A | grep out; true"))
	s.shell(at, "mkdir h && ln -s /etc h/etc && mkdir p && mkfifo p/pipe")
	for _, name := range []string{"h", "p"} {
		res, _ := s.send("alice", "GET", at+"/tar?path="+name, nil)
		attack.Check(t, "a machine's folder with a link out or a pipe", "422", fmt.Sprint(res.StatusCode))
	}
	// Its disk has 16 MiB left, which an upload fills soon.
	s.want(200, "POST", at+"/steps", object{"code": "import os\nroom = os.statvfs('.')\nwith open('room', 'wb') as f:\n" +
		"    os.posix_fallocate(f.fileno(), 0, room.f_bavail * room.f_frsize - (16 << 20))"})
	res, text := s.send("alice", "PUT", at+"/files?path=full", &endlessText{})
	attack.Check(t, "an endless upload", "refused", map[bool]string{true: "refused"}[res.StatusCode >= 400])
	t.Logf("%d %s", res.StatusCode, text)
	if got := s.want(200, "POST", at+"/steps", object{"code": "1 + 1"}); got["value"] != "2" {
		t.Errorf("after all: %+v", got)
	}
}

// Clients that read nothing hold no more than their bounds.
func TestAttackSlowReaders(t *testing.T) {
	s := newSessionServer(t, true)
	at := s.start(nil)
	conn, _, err := s.dialTerminal(t.Context(), at+"/terminal?command=yes+terminal")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	ends := testwait.Holds(time.Minute, func() bool { return s.shell(at, "pgrep -f 'yes termina[l]' || true") == "" })
	attack.Check(t, "a terminal whose client reads nothing", "ended", map[bool]string{true: "ended"}[ends])

	begun := s.want(202, "POST", at+"/commands?wait=false", object{"args": []string{"yes"}})
	run := begun["runId"].(string)
	raw, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	fmt.Fprintf(raw, "GET %s/runs/%s/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n", at, run,
		tokenOf("alice"))
	p := s.api.progresses.find(run, "alice")
	size := func() (bytes int, dropped int64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.bytes, p.dropped
	}
	testwait.Until(t, "output is dropped", func() bool { _, dropped := size(); return dropped > 100 })
	bytes, _ := size()
	attack.Check(t, "what is kept of endless output", "at most the bound", map[bool]string{
		true: "at most the bound"}[bytes <= keptBytes])
	res := s.request(t.Context(), "alice", "GET", at+"/runs/"+run+"/events", nil)
	all := eventsOf(t, bufio.NewReader(res.Body), func(e told) bool { return e.kind == "stdout" })
	res.Body.Close()
	attack.Check(t, "who follows late learns what was lost", "lost", all[0].kind)
	s.want(204, "DELETE", at+"/runs/"+run, nil)
	testwait.Until(t, "the command has ended", func() bool { return len(s.list(at)) == 0 })

	s.shell(at, "head -c 64M /dev/zero > big")
	other, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	fmt.Fprintf(other, "GET %s/files?path=big HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n", at,
		tokenOf("alice"))
	if line, err := bufio.NewReaderSize(other, 16).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatal(line, err)
	}
	if got := s.want(200, "POST", at+"/steps", object{"code": "1 + 1"}); got["value"] != "2" {
		t.Errorf("while a client reads nothing of a file: %+v", got)
	}
}

// A caller gets no more than its share of the work that continues without a request.
func TestAttackManyCommands(t *testing.T) {
	s := newSessionServer(t, true)
	at := s.start(nil)
	last := 0
	for range maxRunsOf + 1 {
		res, _ := s.send("alice", "POST", at+"/commands?wait=false", object{"args": []string{"sleep", "600"}})
		last = res.StatusCode
	}
	attack.Check(t, "one command more than a caller may leave running", fmt.Sprint(http.StatusTooManyRequests),
		fmt.Sprint(last))
	if got := len(s.list(at)); got != maxRunsOf {
		t.Errorf("%d commands", got)
	}
	s.want(204, "DELETE", at, nil)
	testwait.Until(t, "their places are free", func() bool {
		s.api.sessions.runs.mu.Lock()
		defer s.api.sessions.runs.mu.Unlock()
		return s.api.sessions.runs.all == 0
	})
}
