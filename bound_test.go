package unitask_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/debug/attach"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/vmm"
)

// A bound secret goes only to its hosts and never enters the machine: not its memory, output or record. If the server
// quotes it, the placeholder comes back.
func TestAttackBoundSecret(t *testing.T) {
	needVM(t)
	const value = "sk-Vn41xZp0Qw7eRt6y"
	web := newSite(t)
	code := testarchive.Open(t, "testdata/boundsecret.txtar").Text("clients.js")
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			home := newHome(t)
			rt, err := unitask.Open(unitask.Options{Home: home, Upstream: web.upstream})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			out := &lines{has: map[string]string{}, done: make(chan struct{})}
			stdin, feed := io.Pipe()
			defer feed.Close()
			ids := make(chan string, 1)
			ended := make(chan *unitask.Result, 1)
			go func() {
				res, err := rt.Run(t.Context(), unitask.Request{Kernel: kernel, Code: code, CA: web.ca, Timeout: time.Minute,
					AllowNet: []string{"good.example", "*.wild.example"}, AllowHTTP: []string{"GET good.example/key/**"},
					Secrets: map[string]string{"KEY": value}, SecretHosts: map[string][]string{"KEY": {"good.example"}}},
					unitask.IO{Stdin: stdin, Stdout: out, Events: func(e unitask.Event) {
						if e.Kind == unitask.EventRecord {
							ids <- e.Message
						}
					}})
				if err != nil {
					t.Errorf("%v %+v", err, res)
				}
				ended <- res
			}()
			select {
			case <-out.done:
			case res := <-ended:
				t.Fatalf("it ended: %+v %v", res, out.has)
			}
			id := <-ids
			memory := dumped(t, rt, id)
			fmt.Fprintln(feed)
			res := <-ended

			placeholder := out.has["key"]
			with := "200 with the key; you sent Bearer " + placeholder
			for what, want := range map[string]string{"fetch": with, "https": with, "worker": with,
				"without": "200 no key; you sent "} {
				if out.has[what] != want {
					t.Errorf("%s: %q, want %q", what, out.has[what], want)
				}
			}
			attack.Check(t, "a placeholder of another length", fmt.Sprint(len(value)), fmt.Sprint(len(placeholder)))
			attack.Check(t, "the key for a host that it is not bound to", "200 no key; you sent Bearer "+placeholder,
				out.has["another host"])
			attack.Check(t, "the key in the clear", "403", out.has["in the clear"][:3])
			attack.Check(t, "the key where it is not put", "403", out.has["in the path"][:3])
			attack.Check(t, "a request that no rule allows",
				"403 unitask: GET good.example/big: no rule allows this method and path (GET good.example/key/**): "+
					"--allow-http 'GET good.example/big' asks for it (over MCP allowHttp)", out.has["no rule"])
			if !bytes.Contains(memory, []byte(placeholder)) {
				t.Error("the dump does not even hold the placeholder")
			}
			attack.Check(t, "the key in the machine's memory", "false", fmt.Sprint(bytes.Contains(memory, []byte(value))))
			text, _ := res.MarshalJSON()
			noSecret(t, "the result", string(text)+fmt.Sprint(out.has), value)
			everyFile(t, rt.Runs().Dir(), func(name, content string) { noSecret(t, name, content, value) })
			all, err := rt.History().Inspect(id, 0)
			if err != nil {
				t.Fatal(err)
			}
			asked, refused := boundRequests(all.Decisions)
			if asked != 3 {
				t.Errorf("%d requests with the key in the netlog: %+v", asked, all.Decisions)
			}
			loggedSecret(t, rt, id, value)
			if refused != 1 {
				t.Errorf("%d requests that no rule allows in the netlog: %+v", refused, all.Decisions)
			}
		})
	}
}

// dumped returns the memory of a run's machine.
func dumped(t *testing.T, rt *unitask.Runtime, id string) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	monitor, _, err := rt.Consoles().Join(t.Context(), id, vmm.AccessMemory, false)
	if err != nil {
		t.Fatal(err)
	}
	_, err = attach.Dump(t.Context(), monitor, policy.DefaultMemoryMB, f)
	_ = monitor.Disconnect()
	if err != nil {
		t.Fatal(err)
	}
	memory, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return memory
}

// loggedSecret checks the audit log of a run with a bound secret, and that the value is not in it.
func loggedSecret(t *testing.T, rt *unitask.Runtime, id, value string) {
	t.Helper()
	var logged []string
	if err := rt.Audit().Read(func(_ int64, line []byte) error {
		noSecret(t, "the audit log", string(line), value)
		var e struct {
			Kind, Run string
			Detail    json.RawMessage
		}
		err := json.Unmarshal(line, &e)
		if e.Kind != string(audit.RunStarted) && e.Kind != string(audit.RunEnded) && e.Kind != string(audit.NetRefused) {
			e.Kind += " " + string(e.Detail)
		}
		if e.Run == id {
			logged = append(logged, e.Kind)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if got, want := strings.Join(logged, "; "),
		`run.started; secret.granted {"hosts":["good.example"],"secret":"KEY"}; `+
			`secret.used {"hosts":{"KEY":["good.example"]}}; net.refused; run.ended`; got != want {
		t.Errorf("the audit log has %s, want %s", got, want)
	}
	if n, err := rt.Audit().Verify("", ""); int(n) != len(logged) || err != nil {
		t.Errorf("%d lines: %v", n, err)
	}
}

// boundRequests counts the requests of the netlog with the key, and those that no rule allows.
func boundRequests(decisions []netstack.Decision) (asked, refused int) {
	for _, d := range decisions {
		switch {
		case d.Proto != "http":
		case d.Verdict == netstack.Denied:
			if d.Path == "/big" && d.Rule == "GET good.example/key/**" && d.Status == 403 {
				refused++
			}
		case d.Verdict == unitask.Allowed:
			if d.Path == "/key" && strings.Join(d.Secrets, "") == "KEY" && d.Redacted > 0 {
				asked++
			}
		}
	}
	return asked, refused
}

// Child processes trust the run's authority, too.
func TestBoundSecretInChildren(t *testing.T) {
	needVM(t)
	web := newSite(t)
	code := testarchive.Open(t, "testdata/boundsecretchildren.txtar").Text("child.js")
	res, err := unitask.Run(t.Context(), unitask.Request{Kernel: image.Linux, AllowNet: []string{"good.example"},
		CA: web.ca, Code: code, Timeout: time.Minute,
		Secrets: map[string]string{"KEY": "sk-Vn41xZp0Qw7eRt6y"}, SecretHosts: map[string][]string{"KEY": {"good.example"}}},
		unitask.Options{Home: newHome(t), Upstream: web.upstream})
	if err != nil || string(res.Stdout) != "with the key\n" {
		t.Errorf("%v %s %s", err, res.Stdout, res.Stderr)
	}
}

// lines reads the output of clients.js: a name and a value on each line, with "without" last.
type lines struct {
	text string
	has  map[string]string
	done chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.text += string(p)
	for {
		line, rest, whole := strings.Cut(l.text, "\n")
		if !whole {
			return len(p), nil
		}
		l.text = rest
		for _, name := range []string{"key", "fetch", "https", "worker", "another host", "in the clear", "in the path",
			"no rule", "without"} {
			if value, ok := strings.CutPrefix(line, name+" "); ok {
				l.has[name] = value
				if name == "without" {
					close(l.done)
				}
			}
		}
	}
}
