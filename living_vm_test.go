package unitask_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
)

// A session's owner narrows and widens its network while the session lives. Open connections are cut, and a pause and a
// fork keep the changes.
func TestAttackPolicySet(t *testing.T) {
	t.Parallel()
	needClones(t)
	web := newSite(t)
	home := newHome(t)
	open := func() *unitask.Runtime { return openRuntime(t, unitask.Options{Home: home, Upstream: web.upstream}) }
	rt := open()
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "python",
		AllowNet: []string{"*.wild.example"}}})
	get := func(of *unitask.Session, host string) string {
		t.Helper()
		res, err := of.Run(t.Context(), unitask.Step{Code: `
import urllib.request
try: r = urllib.request.urlopen("http://` + host + `/").read().decode()
except Exception as e: r = "refused"
r`})
		if err != nil {
			return err.Error()
		}
		return strings.Trim(res.Value, "'")
	}
	set := func(of *unitask.Session, c unitask.PolicyChange) {
		t.Helper()
		if err := rt.Approvals().SetPolicy(t.Context(), "", of.ID, c); err != nil {
			t.Fatal(err)
		}
	}
	const good, wild = "HTTP/1.1 GET good.example", "HTTP/1.1 GET a.b.wild.example"
	changeLiveRules(t, get, s, set, good, wild)
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "what was denied, behind a pause", "refused", get(s, "a.b.wild.example"))
	attack.Check(t, "what was added, behind a pause", good, get(s, "good.example"))
	forks, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer forks[0].Close()
	attack.Check(t, "what was denied, in a fork", "refused", get(forks[0], "a.b.wild.example"))
	set(s, unitask.PolicyChange{AllowNet: []string{"a.b.wild.example"}})
	attack.Check(t, "what is allowed again", wild, get(s, "a.b.wild.example"))
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	set(s, unitask.PolicyChange{DenyNet: []string{"good.example"}})
	id := s.ID
	if err := errors.Join(s.Leave(), rt.Close()); err != nil {
		t.Fatal(err)
	}
	rt = open()
	if s, err = rt.Revive(t.Context(), unitask.Caller{}, id, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	attack.Check(t, "what was denied while it was paused, in another process", "refused", get(s, "good.example"))
	attack.Check(t, "what is allowed, in another process", wild, get(s, "a.b.wild.example"))
	set(s, unitask.PolicyChange{DenyNet: []string{"a.b.wild.example"}})
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Leave(), rt.Close()); err != nil {
		t.Fatal(err)
	}
	rt = open()
	if s, err = rt.Revive(t.Context(), unitask.Caller{}, id, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	attack.Check(t, "what was denied before its pause, in another process", "refused", get(s, "a.b.wild.example"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	countRuleChanges(t, id, rt)
}

// countRuleChanges checks the changes in the audit log and the record.
func countRuleChanges(t *testing.T, id string, rt *unitask.Runtime) {
	t.Helper()
	attack.Check(t, "a change of one that has ended", fmt.Sprintf("no run or session %q of yours is under way", id),
		fmt.Sprint(rt.Approvals().SetPolicy(t.Context(), "", id, unitask.PolicyChange{DenyNet: []string{"x.example"}})))
	changes := 0
	_ = rt.Audit().Read(func(_ int64, line []byte) error {
		var e audit.Entry
		if json.Unmarshal(line, &e) == nil && e.Kind == audit.PolicyChanged && e.Run == id {
			changes++
		}
		return nil
	})
	rec, err := rt.Runs().Get(id)
	attack.Check(t, "changes in the audit log and the record", "5 5",
		fmt.Sprint(changes, " ", strings.Count(string(rec.Result), `"at"`)))
	if err != nil {
		t.Error(err)
	}
}

// changeLiveRules changes the network of a running session.
func changeLiveRules(
	t *testing.T, get func(of *unitask.Session, host string) string, s *unitask.Session,
	set func(of *unitask.Session, c unitask.PolicyChange), good, wild string,
) {
	t.Helper()
	attack.Check(t, "a host that is not granted", "refused", get(s, "good.example"))
	set(s, unitask.PolicyChange{AllowNet: []string{"good.example"}})
	attack.Check(t, "one that was added", good, get(s, "good.example"))
	if res, err := s.Run(t.Context(), unitask.Step{Code: `
import http.client
c = http.client.HTTPConnection("a.b.wild.example")
c.request("GET", "/"); c.getresponse().read().decode()`}); err != nil || strings.Trim(res.Value, "'") != wild {
		t.Fatal(res, err)
	}
	set(s, unitask.PolicyChange{DenyNet: []string{"a.b.wild.example"}})
	res, err := s.Run(t.Context(), unitask.Step{Code: `
try: c.request("GET", "/"); r = c.getresponse().read().decode()
except OSError as e: r = "cut"
r`})
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "a connection to what is denied now", "cut", strings.Trim(res.Value, "'"))
	attack.Check(t, "a new one", "refused", get(s, "a.b.wild.example"))
}

// The limit of a session's traffic covers all its machines in turn: neither a pause nor another process starts a new
// count.
func TestAttackTrafficOverPauses(t *testing.T) {
	t.Parallel()
	needClones(t)
	web, home := newSite(t), newHome(t)
	open := func() *unitask.Runtime { return openRuntime(t, unitask.Options{Home: home, Upstream: web.upstream}) }
	rt := open()
	s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Request: unitask.Request{Language: "python",
		AllowNet: []string{"good.example"}, MaxUpload: 100_000}})
	if err != nil {
		t.Fatal(err)
	}
	send := func() string {
		t.Helper()
		res, err := s.Run(t.Context(), unitask.Step{Code: `
import urllib.request
try: r = urllib.request.urlopen("http://good.example/digest", b"x" * 40000).read().decode().split()[0]
except Exception as e: r = "cut"
r`})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Trim(res.Value, "'")
	}
	attack.Check(t, "40 kB of 100", "40000", send())
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "80 kB of 100, behind a pause", "40000", send())
	id := s.ID
	if err := errors.Join(s.Pause(t.Context()), s.Leave(), rt.Close()); err != nil {
		t.Fatal(err)
	}
	if s, err = open().Revive(t.Context(), unitask.Caller{}, id, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	attack.Check(t, "120 kB of 100, in another process", "cut", send())
}
