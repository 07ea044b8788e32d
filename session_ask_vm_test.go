package unitask_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
)

// A session's step waits for an answer from its caller or from another process. Its time limit does not run meanwhile.
// A denial survives a pause.
func TestAttackSessionAsk(t *testing.T) {
	needClones(t)
	if !long() {
		t.Skip("takes ten seconds: make long")
	}
	web := newSite(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Upstream: web.upstream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	limit := time.Minute
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "python",
		Ask: []string{"good.example", "*.wild.example"}}})
	asked := 0
	get := func(host string, approve unitask.Approver) string {
		t.Helper()
		res, err := s.Run(t.Context(), unitask.Step{Timeout: limit, Approve: approve, Code: `
import urllib.request
try: r = urllib.request.urlopen("http://` + host + `/").read().decode()
except Exception as e: r = "refused"
r`})
		if err != nil {
			return err.Error()
		}
		return strings.Trim(res.Value, "'") + map[bool]string{true: " too late"}[res.TimedOut]
	}
	begin := time.Now()
	attack.Check(t, "a host that is not granted", "refused", get("other.example", nil))
	limit = max(4*time.Second, 10*time.Since(begin)) // of a step without a question
	slow := func(ctx context.Context, q unitask.Question) unitask.Verdict {
		asked++
		if err := s.Pause(t.Context()); err == nil {
			t.Error("it is paused while somebody is asked")
		}
		takeTime(ctx, limit+time.Second)
		if err := ctx.Err(); err != nil {
			t.Errorf("the question ended before its answer: %v", err)
		}
		return map[string]unitask.Verdict{"good.example:80": unitask.AllowRun}[q.Host]
	}
	attack.Check(t, "a step that is allowed after its limit", "HTTP/1.1 GET good.example", get("good.example", slow))
	attack.Check(t, "the next one", "HTTP/1.1 GET good.example", get("good.example", nil))
	attack.Check(t, "one that another process denies", "refused",
		get("a.b.wild.example", func(ctx context.Context, q unitask.Question) unitask.Verdict {
			if err := rt.Approvals().Approve(ctx, s.ID, q.Host, "", unitask.AllowAlways); err == nil {
				t.Error("another process allows it for good")
			}
			if err := rt.Approvals().Approve(ctx, s.ID, q.Host, "", unitask.Deny); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return unitask.AllowRun
		}))
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "what was denied, behind a pause", "refused",
		get("a.b.wild.example", func(context.Context, unitask.Question) unitask.Verdict { asked++; return unitask.AllowRun }))
	attack.Check(t, "questions to who waits for a step", "1", fmt.Sprint(asked))
	if err := rt.Approvals().Approve(t.Context(), s.ID, "a.b.wild.example:80", "", unitask.AllowRun); err == nil {
		t.Error("an answer to nothing is taken")
	}
}
