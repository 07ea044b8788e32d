package e2b

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
)

// ran is what a command printed, and how it ended.
type ran struct {
	pid            uint32
	stdout, stderr string
	end            *endEvent
}

// run runs a line of shell in a sandbox.
func (b *box) run(line string, with ...string) (r ran, err error) {
	no := false
	in := &startRequest{Process: processConfig{Cmd: "/bin/sh", Args: []string{"-c", line}}, Stdin: &no}
	s, err := stream[startRequest, eventMessage](b.t.Context(), b, "/process.Process/Start", in, with...)
	if err != nil {
		return r, err
	}
	defer s.Close()
	for s.Receive() {
		switch e := s.Msg().Event; {
		case e.Start != nil:
			r.pid = e.Start.PID
		case e.Data != nil:
			r.stdout, r.stderr = r.stdout+string(e.Data.Stdout), r.stderr+string(e.Data.Stderr)
		case e.End != nil:
			r.end = e.End
		}
	}
	return r, s.Err()
}

// One sandbox for many cases, because each takes a machine.
func TestSandbox(t *testing.T) {
	a := newAPI(t, true)
	b := a.create(nil, object{"envVars": object{"FROM_SANDBOX": "yes"}, "metadata": object{"for": "test"}})
	t.Run("commands", func(t *testing.T) { b.commands(t) })
	t.Run("input", func(t *testing.T) { b.input(t) })
	t.Run("files", func(t *testing.T) { b.files(t) })
	t.Run("transfers", func(t *testing.T) { b.transfers(t) })
	t.Run("elevated", func(t *testing.T) { b.elevated(t) })
	t.Run("watch", func(t *testing.T) { b.watch(t) })
	t.Run("port", func(t *testing.T) { b.port(t) })
	t.Run("control", func(t *testing.T) { b.control(t) })
	t.Run("copies", func(t *testing.T) { b.copies(t) })
	t.Run("end", func(t *testing.T) { b.ends(t) })
}

func (b *box) commands(t *testing.T) {
	for line, want := range map[string]string{
		"echo $FROM_SANDBOX $E2B_SANDBOX; pwd": "yes true\n/home/user\n", "exit 3": "",
		"id -u; sudo id -u": "1000\n0\n", "echo to stderr >&2": "",
	} {
		r, err := b.run(line)
		if err != nil || r.stdout != want || r.pid == 0 || r.end == nil || !r.end.Exited {
			t.Errorf("%s: %+v %v", line, r, err)
		}
		if line == "exit 3" && (r.end.ExitCode != 3 || r.end.Status != "exit status 3") {
			t.Errorf("%s: %+v", line, r.end)
		}
	}
	name, value := as("root")
	if r, err := b.run("id -u; echo $HOME", name, value); err != nil || r.stdout != "0\n/root\n" {
		t.Errorf("as root: %+v %v", r, err)
	}
	name, value = as("nobody")
	if _, err := b.run("true", name, value); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("as nobody: %v", err)
	}
	if r, err := b.run("kill -9 $$"); err != nil || r.end == nil || r.end.Exited {
		t.Errorf("killed: %+v %v", r, err)
	}
	tag, no := strings.Repeat("x", maxTag+1), false
	for name, in := range map[string]*startRequest{
		"a long tag":            {Process: processConfig{Cmd: "true"}, Tag: &tag, Stdin: &no},
		"a variable's odd name": {Process: processConfig{Cmd: "true", Envs: map[string]string{"A=B": "c"}}, Stdin: &no},
		"no command":            {Stdin: &no},
	} {
		s, err := stream[startRequest, eventMessage](t.Context(), b, "/process.Process/Start", in)
		if err != nil {
			t.Fatal(err)
		}
		if s.Receive() || connect.CodeOf(s.Err()) != connect.CodeInvalidArgument {
			t.Errorf("%s: %+v %v", name, s.Msg(), s.Err())
		}
		s.Close()
	}
}

func (b *box) input(t *testing.T) {
	tag := "reader"
	in := &startRequest{Process: processConfig{Cmd: "cat"}, Tag: &tag}
	s, err := stream[startRequest, eventMessage](t.Context(), b, "/process.Process/Start", in)
	if err != nil || !s.Receive() {
		t.Fatal(err, s.Err())
	}
	defer s.Close()
	pid := s.Msg().Event.Start.PID
	list, err := call[empty, listProcesses](b, "/process.Process/List", &empty{})
	if err != nil || len(list.Processes) != 1 || list.Processes[0].PID != pid || *list.Processes[0].Tag != tag {
		t.Fatalf("%+v %v", list, err)
	}
	text := []byte("line\n")
	if _, err := call[inputRequest, empty](b, "/process.Process/SendInput",
		&inputRequest{selector{Tag: &tag}, processInput{Stdin: &text}}); err != nil {
		t.Fatal(err)
	}
	if !s.Receive() || string(s.Msg().Event.Data.Stdout) != "line\n" {
		t.Fatalf("%+v %v", s.Msg(), s.Err())
	}
	if _, err := call[selectRequest, empty](b, "/process.Process/CloseStdin",
		&selectRequest{selector{PID: &pid}}); err != nil {
		t.Fatal(err)
	}
	if !s.Receive() || s.Msg().Event.End == nil || s.Msg().Event.End.ExitCode != 0 {
		t.Fatalf("%+v %v", s.Msg(), s.Err())
	}
	none := uint32(999_999)
	_, err = call[signalRequest, empty](b, "/process.Process/SendSignal",
		&signalRequest{selector{PID: &none}, "SIGNAL_SIGKILL"})
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a signal to nobody: %v", err)
	}
}

func (b *box) files(t *testing.T) {
	made, err := call[pathRequest, entryMessage](b, "/filesystem.Filesystem/MakeDir", &pathRequest{"d/e"})
	if err != nil || made.Entry.Path != "/home/user/d/e" || made.Entry.Type != kindFolder || made.Entry.Owner != "user" {
		t.Fatalf("%+v %v", made, err)
	}
	if _, err = call[pathRequest, entryMessage](b, "/filesystem.Filesystem/MakeDir",
		&pathRequest{"d/e"}); connect.CodeOf(err) != connect.CodeAlreadyExists {
		t.Errorf("a folder twice: %v", err)
	}
	if _, err := b.run("echo hi > d/file; ln -s file d/link; ln -s none d/broken"); err != nil {
		t.Fatal(err)
	}
	list, err := call[listRequest, entryList](b, "/filesystem.Filesystem/ListDir", &listRequest{Path: "~/d", Depth: 1})
	if err != nil || len(list.Entries) != 4 {
		t.Fatalf("%+v %v", list, err)
	}
	for _, e := range list.Entries {
		want := map[string]fileType{"e": kindFolder, "file": kindFile, "link": kindFile, "broken": kindSymlink}[e.Name]
		if e.Type != want {
			t.Errorf("%s: got type %d, want %d", e.Name, e.Type, want)
		}
	}
	moved, err := call[moveRequest, entryMessage](b, "/filesystem.Filesystem/Move", &moveRequest{"d/file", "d/other"})
	if err != nil || moved.Entry.Path != "/home/user/d/other" || moved.Entry.Size != 3 {
		t.Fatalf("%+v %v", moved, err)
	}
	for name, want := range map[string]connect.Code{"none": connect.CodeNotFound,
		"d/other/x": connect.CodeInvalidArgument} {
		if _, err := call[pathRequest, entryMessage](b, "/filesystem.Filesystem/Stat",
			&pathRequest{name}); connect.CodeOf(err) != want {
			t.Errorf("stat %s: got %v, want %s", name, err, want)
		}
	}
	for range 2 { // the second time it is not there
		if _, err := call[pathRequest, empty](b, "/filesystem.Filesystem/Remove", &pathRequest{"d"}); err != nil {
			t.Error(err)
		}
	}
}

func (b *box) transfers(t *testing.T) {
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	part, _ := parts.CreateFormFile("file", "up/one.txt")
	fmt.Fprint(part, "one")
	parts.Close()
	status, text := b.send("POST", "/files", form.Bytes(), b.headers(daemonPort,
		"Content-Type", parts.FormDataContentType(), "X-Metadata-Author", "me"))
	want := `[{"name":"one.txt","path":"/home/user/up/one.txt","type":"file","metadata":{"author":"me"}}]`
	if status != 200 || strings.TrimSpace(string(text)) != want {
		t.Errorf("a form: %d %s", status, text)
	}
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	fmt.Fprint(zip, strings.Repeat("x", 3<<20))
	zip.Close()
	status, text = b.send("POST", "/files?path=big", zipped.Bytes(), b.headers(daemonPort,
		"Content-Type", "application/octet-stream", "Content-Encoding", "gzip"))
	if status != 200 {
		t.Errorf("gzip: %d %s", status, text)
	}
	if status, text = b.send("GET", "/files?path=big", nil, b.headers(daemonPort)); len(text) != 3<<20 {
		t.Errorf("back: %d, %d bytes", status, len(text))
	}
	for path, want := range map[string]int{"none": 404, "up": 400} {
		if status, text := b.send("GET", "/files?path="+path, nil, b.headers(daemonPort)); status != want {
			t.Errorf("%s: got %d %s, want %d", path, status, text, want)
		}
	}
	b.want(200, "POST", "/files/compose", object{"source_paths": []string{"up/one.txt", "up/one.txt"},
		"destination": "both"}, b.headers(daemonPort)...)
	q := url.Values{"path": {"both"}, "username": {""}}
	q.Set("signature", b.e2b.find(b.id).signature("GET", q))
	if status, text := b.send("GET", "/files?"+q.Encode(), nil, nil); status != 200 || string(text) != "oneone" {
		t.Errorf("a signed URL: %d %s", status, text)
	}
}

func (b *box) watch(t *testing.T) {
	if _, err := b.run("mkdir -p w"); err != nil {
		t.Fatal(err)
	}
	s, err := stream[watchRequest, watchEvent](t.Context(), b, "/filesystem.Filesystem/WatchDir",
		&watchRequest{Path: "w", Include: true})
	if err != nil || !s.Receive() || s.Msg().Start == nil {
		t.Fatal(err, s.Err())
	}
	defer s.Close()
	b.want(200, "POST", "/files?path=w/new", []byte("x"), b.headers(daemonPort, "Content-Type",
		"application/octet-stream")...)
	for _, want := range []string{"EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"} {
		if !s.Receive() || s.Msg().Filesystem.Type != want || s.Msg().Filesystem.Name != "new" ||
			s.Msg().Filesystem.Entry["path"] != "/home/user/w/new" {
			t.Fatalf("got %+v, want %s, %v", s.Msg().Filesystem, want, s.Err())
		}
	}
	w, err := call[watchRequest, watcherRequest](b, "/filesystem.Filesystem/CreateWatcher", &watchRequest{Path: "w"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.run("rm w/new"); err != nil {
		t.Fatal(err)
	}
	for {
		got, err := call[watcherRequest, watcherEvents](b, "/filesystem.Filesystem/GetWatcherEvents", w)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Events) > 0 {
			if got.Events[0] != (fileEvent{Name: "new", Type: 3}) {
				t.Errorf("%+v", got.Events)
			}
			break
		}
	}
	if _, err := call[watcherRequest, empty](b, "/filesystem.Filesystem/RemoveWatcher", w); err != nil {
		t.Error(err)
	}
}

// watchEvent is a watchMessage as clients read its JSON form.
type watchEvent struct {
	Start      *empty `json:"start"`
	Filesystem *struct {
		Name, Type string
		Entry      object
	} `json:"filesystem"`
}

func (b *box) port(t *testing.T) {
	serve := `import http.server as h
class H(h.BaseHTTPRequestHandler):
    def do_GET(self):
        open("asked", "w").write(self.path + str(self.headers))
        self.send_response(200); self.end_headers(); self.wfile.write(b"from inside")
h.HTTPServer(("127.0.0.1", 8080), H).handle_request()`
	go func() { _, _ = b.run("python3 -c '" + serve + "'") }()
	late := time.Now().Add(time.Minute)
	for {
		status, text := b.send("GET", "/x", nil, append(b.headers(8080), trafficHeader, b.traffic, "X-Api-Key", "k"))
		if status == 200 && string(text) == "from inside" {
			break
		}
		if status != 502 || time.Now().After(late) {
			t.Fatalf("%d %s", status, text)
		}
	}
	r, err := b.run("cat asked")
	if err != nil || !strings.HasPrefix(r.stdout, "/x") || strings.Contains(r.stdout, b.token) ||
		strings.Contains(strings.ToLower(r.stdout), "x-api-key") {
		t.Errorf("%q %v", r.stdout, err)
	}
}

func (b *box) control(t *testing.T) {
	info := b.want(200, "GET", "/sandboxes/"+b.id, nil)
	if info["state"] != "running" || info["templateID"] != "python" || info["metadata"].(object)["for"] != "test" {
		t.Errorf("%v", info)
	}
	for query, want := range map[string]int{"": 1, "?metadata=for%3Dtest": 1, "?metadata=for%3Dother": 0,
		"?state=paused": 0, "?limit=1": 1} {
		_, text := b.send("GET", "/v2/sandboxes"+query, nil, nil)
		var list []object
		if err := json.Unmarshal(text, &list); err != nil || len(list) != want {
			t.Errorf("%q: %s %v", query, text, err)
		}
	}
	b.want(204, "POST", "/sandboxes/"+b.id+"/timeout", object{"timeout": 600})
	_, text := b.send("GET", "/sandboxes/"+b.id+"/metrics", nil, nil)
	var list []metric
	if err := json.Unmarshal(text, &list); err != nil || len(list) != 1 || list[0].MemTotal < 100<<20 {
		t.Errorf("%s %v", text, err)
	}
	no, tag := false, "ticks" // a command that runs keeps nothing from a pause, and continues after it
	ticks, err := stream[startRequest, eventMessage](t.Context(), b, "/process.Process/Start", &startRequest{Tag: &tag,
		Process: processConfig{Cmd: "sh", Args: []string{"-c", "while :; do echo tick; sleep 0.1; done"}}, Stdin: &no})
	if err != nil || !ticks.Receive() || !ticks.Receive() {
		t.Fatal(err, ticks.Err())
	}
	defer ticks.Close()
	b.want(204, "POST", "/sandboxes/"+b.id+"/pause", nil)
	b.want(409, "POST", "/sandboxes/"+b.id+"/pause", nil)
	if status, _ := b.send("GET", "/health", nil, b.headers(daemonPort)); status != 502 {
		t.Errorf("the health of a paused sandbox: %d", status)
	}
	s := b.e2b.find(b.id).session // a request that came before the pause must not resume it
	if _, err := s.ReadFile(t.Context(), "/etc/passwd", 0, 0); err == nil || !s.Paused() {
		t.Errorf("a file of a paused sandbox: %v, paused: %v", err, s.Paused())
	}
	b.want(201, "POST", "/sandboxes/"+b.id+"/connect", object{"timeout": 300})
	b.want(200, "POST", "/sandboxes/"+b.id+"/connect", object{"timeout": 300})
	if status, _ := b.send("GET", "/health", nil, b.headers(daemonPort)); status != 204 {
		t.Errorf("the health of a resumed sandbox: %d", status)
	}
	for range 20 { // more than were printed before the pause
		if !ticks.Receive() {
			t.Fatalf("the command ended: %v", ticks.Err())
		}
	}
	if _, err := call[signalRequest, empty](b, "/process.Process/SendSignal",
		&signalRequest{selector{Tag: &tag}, "SIGNAL_SIGKILL"}); err != nil {
		t.Error(err)
	}
}

func (b *box) copies(t *testing.T) {
	if _, err := b.run("echo before > state"); err != nil {
		t.Fatal(err)
	}
	status, text := b.send("POST", "/sandboxes/"+b.id+"/fork", object{"count": 1, "timeout": 60}, nil)
	var forks []forkResult
	if err := json.Unmarshal(text, &forks); err != nil || status != 201 || len(forks) != 1 {
		t.Fatalf("%d %s", status, text)
	}
	fork := &box{api: b.api, id: forks[0].Sandbox.SandboxID, token: forks[0].Sandbox.Token}
	snap := b.want(201, "POST", "/sandboxes/"+b.id+"/snapshots", object{"name": "kept"})
	if _, err := b.run("echo after > state"); err != nil {
		t.Fatal(err)
	}
	made := b.want(201, "POST", "/v2/sandboxes", object{"templateID": "kept"})
	of := &box{api: b.api, id: made["sandboxID"].(string), token: made["envdAccessToken"].(string)}
	for _, one := range []*box{fork, of} {
		if r, err := one.run("cat state"); err != nil || r.stdout != "before\n" {
			t.Errorf("%+v %v", r, err)
		}
		one.want(204, "DELETE", "/sandboxes/"+one.id, nil)
	}
	b.want(204, "DELETE", "/templates/"+snap["snapshotID"].(string), nil)
	b.want(404, "DELETE", "/templates/"+snap["snapshotID"].(string), nil)
}

func (b *box) ends(t *testing.T) {
	b.want(204, "POST", "/sandboxes/"+b.id+"/timeout", object{"timeout": 1})
	session := b.e2b.find(b.id).session
	r, err := b.run("sleep 60")
	if err == nil || r.end != nil { // the stream is cut off: the command has no end
		t.Errorf("%+v %v", r, err)
	}
	select {
	case <-session.Done():
	case <-time.After(time.Minute):
		t.Fatal("the session goes on")
	}
	b.want(404, "GET", "/sandboxes/"+b.id, nil)
	if status, _ := b.send("GET", "/health", nil, b.headers(daemonPort)); status != http.StatusBadGateway {
		t.Errorf("the health of an ended sandbox: %d", status)
	}
	if rec, err := b.rt.Runs().Get(session.ID); err != nil || !rec.Root || rec.Via != "http" {
		t.Errorf("%+v %v", rec, err)
	}
}
