package httpapi

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/unitask/unitask/internal/attack"
)

// No way by which the code's output leaves a session returns its secrets.
func TestAttackSessionSecrets(t *testing.T) {
	const secret = "very-secret-value-of-the-server"
	t.Setenv("API_TOKEN", secret)
	t.Setenv("API_HIDDEN", secret)
	s := newSessionServer(t, true)
	made := s.want(201, "POST", "/v1/sessions", object{"language": "python",
		"secrets": []string{"API_TOKEN", "API_HIDDEN"}})
	if denials := made["denials"].([]any); len(denials) != 1 || denials[0].(object)["requested"] != "API_HIDDEN" {
		t.Errorf("%+v", made)
	}
	at := "/v1/sessions/" + made["id"].(string)
	if got := s.shell(at, "printenv API_TOKEN | wc -c"); strings.TrimSpace(got) != "32" {
		t.Fatalf("the code has it not: %q", got)
	}
	check := func(way string, text []byte) {
		t.Helper()
		seen := "redacted"
		if strings.Contains(string(text), secret) || !strings.Contains(string(text), "[redacted]") {
			seen = string(text)
		}
		attack.Check(t, "a secret by "+way, "redacted", seen)
	}
	s.shell(at, "printenv API_TOKEN > file; mkdir -p .values; "+
		"echo \"{\\\"a\\\": \\\"$API_TOKEN\\\"}\" > .values/leak.json")
	_, text := s.send("alice", "GET", at+"/files?path=file", nil)
	check("a file", text)
	_, text = s.send("alice", "GET", at+"/values/leak", nil)
	check("a value", text)
	_, text = s.send("alice", "POST", at+"/steps", object{"code": "import os; print(os.environ['API_TOKEN'])"})
	check("a step", text)
	_, text = s.send("alice", "POST", at+"/steps", object{"code": "os.environ['API_TOKEN']"})
	check("a value of a step", text)
	begun := s.want(202, "POST", at+"/commands?wait=false", object{"args": []string{"printenv", "API_TOKEN"}})
	_, text = s.send("alice", "GET", at+"/runs/"+begun["runId"].(string)+"/events", nil)
	check("events", text)
	conn, _, err := s.dialTerminal(t.Context(), at+"/terminal?command=printenv+API_TOKEN")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	all := ""
	for {
		kind, text, err := conn.Read(t.Context())
		if err != nil {
			break
		}
		if kind == websocket.MessageBinary {
			all += string(text)
		}
	}
	check("a terminal", []byte(all))
	res, _ := s.send("alice", "POST", at+"/pause", nil)
	attack.Check(t, "a pause with a secret in memory", "refused", map[bool]string{true: "refused"}[res.StatusCode >= 400])
}

// A paused session resumes by its use: a port, a terminal, a file.
func TestSessionResumes(t *testing.T) {
	s := newSessionServer(t, true)
	at := s.start(nil)
	proxy := s.serveIn(at, "8400", object{})
	s.want(200, "PUT", at+"/files?path=f", []byte("x"))
	for name, use := range map[string]func(){
		"a port": func() { s.want(200, "GET", proxy+"/", nil) },
		"a file": func() { s.want(200, "GET", at+"/files?path=f", nil) },
		"a terminal": func() {
			conn, _, err := s.dialTerminal(t.Context(), at+"/terminal?command=true")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.CloseNow()
			for err == nil {
				_, _, err = conn.Read(t.Context())
			}
		},
	} {
		if got := s.want(200, "POST", at+"/pause", nil); got["paused"] != true {
			t.Fatalf("%s: %+v", name, got)
		}
		use()
		if got := s.want(200, "GET", at, nil); got["paused"] != false {
			t.Errorf("%s: %+v", name, got)
		}
	}
	conn, _, err := s.dialTerminal(t.Context(), at+"/terminal")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	s.want(200, "POST", at+"/pause", nil)
	if err := conn.Write(t.Context(), websocket.MessageBinary, []byte("echo a''wake\n")); err != nil {
		t.Fatal(err)
	}
	for seen := ""; !strings.Contains(seen, "awake"); {
		_, text, err := conn.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen += string(text)
	}
	for _, message := range []string{`{"resize":[0,1]}`, `nonsense`, `{"resize":[1]}`} {
		conn, _, err := s.dialTerminal(t.Context(), at+"/terminal")
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(message)); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, _, err = conn.Read(t.Context())
		}
		if websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
			t.Errorf("%s: %v", message, err)
		}
		conn.CloseNow()
	}
}

// A server that closes ends all work, and does not wait for endless commands.
func TestSessionsClose(t *testing.T) {
	s := newSessionServer(t, true)
	at := s.start(nil)
	run := s.want(202, "POST", at+"/commands?wait=false", object{"args": []string{"sleep", "6000"}})["runId"].(string)
	conn, _, err := s.dialTerminal(t.Context(), at+"/terminal")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	events := s.request(t.Context(), "alice", "GET", at+"/runs/"+run+"/events", nil)
	defer events.Body.Close()
	watch := s.request(t.Context(), "alice", "GET", at+"/files/watch", nil)
	defer watch.Body.Close()
	began := time.Now()
	s.stop()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	for _, body := range []io.Reader{events.Body, watch.Body} {
		_, _ = io.Copy(io.Discard, body) // which ends
	}
	for err == nil {
		_, _, err = conn.Read(t.Context())
	}
	rec, err := s.api.rt.Runs().Get(run)
	if err != nil || rec.Finished == nil {
		t.Errorf("the record has no end: %+v %v", rec, err)
	}
}
