package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/testwait"
)

// One server for many cases: each takes a machine.
func TestRuns(t *testing.T) {
	a := newAPI(t, setup{vm: true})
	t.Run("waiting", func(t *testing.T) { a.waiting(t) })
	t.Run("events", func(t *testing.T) { a.events(t) })
	t.Run("leaving", func(t *testing.T) { a.leaving(t) })
	t.Run("keys", func(t *testing.T) { a.onceOnly(t) })
	t.Run("restart", func(t *testing.T) { a.restarted(t) })
}

const program = `import os, sys
os.makedirs("/out/d", exist_ok=True)
open("/out/d/a.txt", "w").write("artifact")
print("0123456789", os.environ["A"], sys.stdin.read(), open("note.txt").read())
sys.stderr.buffer.write(b"\xff\n")
import urllib.request
try:
    urllib.request.urlopen("http://example.com/")
except Exception:
    pass
sys.exit(3)
`

func (a *api) waiting(t *testing.T) {
	in := python(program)
	in["env"], in["stdin"], in["allowNet"] = object{"A": "b"}, "c", []string{"nowhere.invalid"}
	in["files"], in["cpus"], in["kernel"] = []object{{"name": "note.txt", "content": "d"}}, 1, "linux"
	out := a.want(200, "POST", "/v1/runs", in)
	id, _ := out["runId"].(string)
	if out["outcome"] != "exited" || out["exitCode"] != 3.0 || out["stdout"] != "0123456789 b c d\n" ||
		out["stderrBase64"] != "/wo=" || out["cut"] != nil {
		t.Fatalf("%v", out)
	}
	at := "/v1/runs/" + id
	if rec := a.want(200, "GET", at, nil); rec["status"] != "done" || rec["via"] != "http" || rec["code"] != program {
		t.Errorf("%v", rec)
	}
	if again := a.want(200, "GET", at+"/result", nil); fmt.Sprint(again) != fmt.Sprint(out) {
		t.Errorf("%v\nis not\n%v", again, out)
	}
	for _, c := range []struct {
		path, ranges, want string
		status             int
	}{
		{"/stdout", "", "0123456789 b c d\n", 200}, {"/stderr", "", "\xff\n", 200},
		{"/stdout", "bytes=2-4", "234", 206}, {"/artifacts/d/a.txt", "", "artifact", 200},
		{"/artifacts/d/a.txt", "bytes=-3", "act", 206},
	} {
		res, text := a.send("GET", at+c.path, nil, "Range", c.ranges)
		if res.StatusCode != c.status || string(text) != c.want || res.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: %d %q", c.path, c.ranges, res.StatusCode, text)
		}
	}
	a.refused(416, "range", "GET", at+"/stdout", nil, "Range", "bytes=100-")
	a.refused(404, "file", "GET", at+"/artifacts/d/b.txt", nil)
	list := a.want(200, "GET", at+"/artifacts", nil)
	if one := list["artifacts"].([]any)[0].(object); one["path"] != "d/a.txt" || one["size"] != 8.0 {
		t.Errorf("%v", list)
	}
	res, text := a.send("GET", at+"/netlog", nil)
	if res.Header.Get("Content-Type") != "application/x-ndjson" || !strings.Contains(string(text), "example.com") {
		t.Errorf("%s", text)
	}
	if state := a.want(200, "POST", at+"/cancel", nil); state["status"] != "done" {
		t.Errorf("%v", state)
	}
	page := a.want(200, "GET", "/v1/runs?limit=1&status=exited", nil)
	if one := page["runs"].([]any)[0].(object); one["id"] != id || one["exitCode"] != 3.0 {
		t.Errorf("%v", page)
	}
	if older := a.want(200, "GET", "/v1/runs?before="+id, nil); len(older["runs"].([]any)) != 0 {
		t.Errorf("%v", older)
	}
}

// sse is an event of a stream.
type sse struct {
	id, kind string
	data     object
}

// next reads the next event; the zero value is the end of the stream.
func next(t *testing.T, from *bufio.Scanner) (e sse) {
	t.Helper()
	for from.Scan() {
		name, value, _ := strings.Cut(from.Text(), ": ")
		switch {
		case from.Text() == "" && e.kind != "":
			return e
		case name == "id":
			e.id = value
		case name == "event":
			e.kind = value
		case name == "data":
			if err := json.Unmarshal([]byte(value), &e.data); err != nil {
				t.Fatal(err)
			}
		}
	}
	return sse{}
}

// until reads events up to one of a kind.
func until(t *testing.T, from *bufio.Scanner, kind string) (last sse, text string) {
	t.Helper()
	for {
		last = next(t, from)
		if said, ok := last.data["text"].(string); ok && last.kind == "stdout" {
			text += said
		}
		if last.kind == kind || last.kind == "" {
			return last, text
		}
	}
}

func (a *api) events(t *testing.T) {
	feed := a.do("GET", "/v1/events", nil, nil)
	defer feed.Body.Close()
	mine := bufio.NewScanner(feed.Body)
	res, text := a.send("POST", "/v1/runs?wait=false",
		python("import time\nprint('on', flush=True)\nwhile True: time.sleep(1)"))
	var state runState
	if err := json.Unmarshal(text, &state); err != nil || res.StatusCode != 202 || state.Status != "running" ||
		res.Header.Get("Location") != "/v1/runs/"+state.RunID {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	at := res.Header.Get("Location")
	stream := a.do("GET", at+"/events", nil, nil)
	from := bufio.NewScanner(stream.Body)
	said, _ := until(t, from, "stdout")
	stream.Body.Close()
	if said.data["text"] != "on\n" {
		t.Fatalf("%+v", said)
	}
	a.refused(409, "run.running", "GET", at+"/result?waitSeconds=0.1", nil)
	if rec := a.want(200, "GET", at, nil); rec["status"] != "running" {
		t.Errorf("%v", rec)
	}
	if now := a.want(200, "GET", "/v1/runs?status=running", nil); len(now["runs"].([]any)) != 1 {
		t.Errorf("%v", now)
	}
	if state := a.want(200, "POST", at+"/cancel", nil); state["status"] == "running" {
		t.Errorf("%v", state)
	}
	rest := a.do("GET", at+"/events", nil, headers{"Last-Event-ID", said.id})
	defer rest.Body.Close()
	end, more := until(t, bufio.NewScanner(rest.Body), "end")
	if end.data["outcome"] != "cancelled" || more != "" {
		t.Errorf("%+v %q", end, more)
	}
	if res, _ := a.send("GET", at+"/events?after="+end.id, nil); res.StatusCode != 204 {
		t.Errorf("after the end: %d", res.StatusCode)
	}
	a.refused(400, "usage", "GET", at+"/events?after=1000", nil)
	if out := a.want(200, "GET", at+"/result", nil); out["outcome"] != "cancelled" || out["stdout"] != "on\n" {
		t.Errorf("%v", out)
	}
	for _, kind := range []string{"begun", "ended"} {
		if e := next(t, mine); e.kind != kind || e.data["runId"] != state.RunID {
			t.Errorf("%+v is not %s", e, kind)
		}
	}
}

// leaving tells what becomes of a run whose client goes away.
func (a *api) leaving(t *testing.T) {
	ctx, leave := testContext(t)
	body, err := json.Marshal(python("import time\ntime.sleep(600)"))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, "POST", a.url+"/v1/runs", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	gone := make(chan error, 1)
	go func() {
		_, err := http.DefaultClient.Do(req)
		gone <- err
	}()
	var id string
	testwait.Until(t, "it runs", func() bool {
		list := a.want(200, "GET", "/v1/runs?status=running", nil)["runs"].([]any)
		if len(list) == 1 {
			id = list[0].(object)["id"].(string)
		}
		return id != ""
	})
	leave()
	if err := <-gone; err == nil {
		t.Error("an answer came")
	}
	testwait.Until(t, "it is cancelled", func() bool {
		return a.want(200, "GET", "/v1/runs?limit=1", nil)["runs"].([]any)[0].(object)["outcome"] == "cancelled"
	})
}

// onceOnly sends requests with the same key.
func (a *api) onceOnly(t *testing.T) {
	in := python("import random\nprint(random.random())")
	key := headers{keyHeader, "first"}
	type got struct {
		res  *http.Response
		text []byte
	}
	both := make(chan got)
	for range 2 { // one joins the other
		go func() {
			res, text := a.send("POST", "/v1/runs", in, key...)
			both <- got{res, text}
		}()
	}
	one, other := <-both, <-both
	if one.res.StatusCode != 200 || strings.TrimSpace(string(one.text)) != strings.TrimSpace(string(other.text)) ||
		one.res.Header.Get(replayedHeader)+other.res.Header.Get(replayedHeader) != "true" {
		t.Fatalf("%s\n%s", one.text, other.text)
	}
	res, text := a.send("POST", "/v1/runs", in, key...)
	if res.StatusCode != 200 || res.Header.Get(replayedHeader) != "true" || string(text) != string(one.text) {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	a.refused(422, "idempotency.mismatch", "POST", "/v1/runs", python("print(2)"), key...)
	a.refused(422, "idempotency.mismatch", "POST", "/v1/runs?wait=false", in, key...)
	a.joined(t)
	long := python("print('x' * 100_000)")
	first := a.want(200, "POST", "/v1/runs", long, keyHeader, "long")
	if again := a.want(200, "POST", "/v1/runs", long, keyHeader, "long"); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("%.300v\nis not\n%.300v", again, first)
	}
}

// joined has a client go away, and come back with its key.
func (a *api) joined(t *testing.T) {
	ctx, leave := testContext(t)
	in := python("import time\nprint('on', flush=True)\ntime.sleep(2)\nprint('off')")
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, "POST", a.url+"/v1/runs", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(keyHeader, "joined")
	gone := make(chan error, 1)
	go func() {
		_, err := http.DefaultClient.Do(req)
		gone <- err
	}()
	running := func() int { return len(a.want(200, "GET", "/v1/runs?status=running", nil)["runs"].([]any)) }
	testwait.Until(t, "it runs", func() bool { return running() == 1 })
	leave()
	if err := <-gone; err == nil {
		t.Error("an answer came")
	}
	res, text := a.send("POST", "/v1/runs", in, keyHeader, "joined")
	if res.StatusCode != 200 || res.Header.Get(replayedHeader) != "true" || !strings.Contains(string(text), "on\\noff") {
		t.Errorf("%d %s", res.StatusCode, text)
	}
}

// restarted sends keys to the next server.
func (a *api) restarted(t *testing.T) {
	in := python("print(1)")
	first := a.want(200, "POST", "/v1/runs", in, keyHeader, "before")
	endless := python("import time\ntime.sleep(600)")
	began := a.want(202, "POST", "/v1/runs?wait=false", endless, keyHeader, "endless")
	a.stop()
	b := newAPI(t, setup{vm: true, home: a.home})
	b.died(t, "before")
	if again := b.want(200, "POST", "/v1/runs", in, keyHeader, "before"); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("%v\nis not\n%v", again, first)
	}
	if again := b.want(202, "POST", "/v1/runs?wait=false", endless, keyHeader, "endless"); again["runId"] !=
		began["runId"] {
		t.Errorf("%v is not %v", again, began)
	}
	b.refused(410, "events.gone", "GET", "/v1/runs/"+began["runId"].(string)+"/events", nil)
	if out := b.want(200, "GET", "/v1/runs/"+began["runId"].(string)+"/result", nil); out["outcome"] != "cancelled" {
		t.Errorf("%v", out)
	}
}

// died removes the answer from a key's file, as if the server had died before it was stored.
func (a *api) died(t *testing.T, key string) {
	t.Helper()
	k, _ := new(keys).begin(home.Dir(a.home).Idempotency(), unitask.LocalOwner(os.Geteuid()), key, "")
	if k.read(); !k.found || k.stored.Status != 200 || k.stored.ID == "" {
		t.Fatalf("%+v", k.stored)
	}
	k.stored.Status, k.stored.Body = 0, nil
	text, err := json.Marshal(k.stored)
	if err == nil {
		err = os.WriteFile(k.path(), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
