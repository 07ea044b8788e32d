package unitask_test

import (
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// If code fails after a host was refused, a hint names the host. It also names the request's field that allows the
// host, or says that a ceiling forbids it.
func TestRefusedHost(t *testing.T) {
	t.Parallel()
	needVM(t)
	ceiling, err := policy.ParseCeiling("test.toml", []byte(`allowNet = ["other.test.example"]`))
	if err != nil {
		t.Fatal(err)
	}
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	const code = `import urllib.request; urllib.request.urlopen("http://a.test.example/")`
	for _, row := range []struct {
		name    string
		allow   []string
		ceiling *policy.Ceiling
		code    string
		want    string
	}{
		{"no network", nil, nil, code,
			"a.test.example was not reached: the run has no network; --allow-net a.test.example asks for it"},
		{"another host", []string{"other.test.example"}, nil, code,
			"a.test.example was not reached: no rule allows it; --allow-net a.test.example asks for it"},
		{"a ceiling", []string{"a.test.example", "other.test.example"}, ceiling, code,
			"a.test.example was not reached: its allowNet is not allowed by test.toml"},
		{"no name", []string{"nosuch.invalid"}, nil,
			`import urllib.request; urllib.request.urlopen("http://nosuch.invalid/")`,
			"nosuch.invalid was not reached: the policy allows it, but this host can't resolve the name"},
		{"code that ends well", nil, nil,
			"import socket\ntry: socket.create_connection(('a.test.example', 80))\nexcept OSError: pass",
			"a.test.example was not reached: the run has no network; --allow-net a.test.example asks for it"},
	} {
		t.Run(row.name, func(t *testing.T) {
			req := unitask.Request{Language: "python", Code: row.code, AllowNet: row.allow}
			res, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: row.ceiling}, req, unitask.IO{})
			if err != nil || res.Hint() != row.want {
				t.Errorf("got %v, hint %q, want %q; %s", err, res.Hint(), row.want, res.Stderr)
			}
		})
	}
}

// A session's step has its own hints: about its own connections, and without settings that a session can't get later.
func TestRefusedHostOfStep(t *testing.T) {
	t.Parallel()
	needVM(t)
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "python"}})
	const code = `import urllib.request; urllib.request.urlopen("http://a.test.example/")`
	const want = "a.test.example was not reached: the run has no network; " +
		"a new session with --allow-net a.test.example may reach it"
	for _, step := range []struct{ code, want string }{{code, want}, {"1/0", ""}, {"1", ""}} {
		res, err := s.Run(t.Context(), unitask.Step{Code: step.code})
		if err != nil || res.Hint() != step.want {
			t.Errorf("%.20s: got %v, %q, want %q", step.code, err, res.Hint(), step.want)
		}
	}
}

// Code that reaches its time limit gets a hint about the host that it could not reach.
func TestRefusedHostOfTimeout(t *testing.T) {
	t.Parallel()
	needVM(t)
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	const code = `import socket, time
try: socket.create_connection(("a.test.example", 80))
except OSError: time.sleep(1000)`
	res, err := rt.Run(t.Context(), unitask.Request{Language: "python", Code: code, Timeout: 3 * time.Second},
		unitask.IO{})
	if err != nil || !res.TimedOut || !strings.HasPrefix(res.Hint(), "a.test.example was not reached") {
		t.Errorf("got %v, %v, hint %q", err, res.TimedOut, res.Hint())
	}
}
