package unitask_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
)

// approvalCode prints the result of its requests, and how long the first took by its own clock.
const approvalCode = `
const get = (url) => fetch(url).then((r) => r.text(), (e) => e.cause?.code ?? e.message);
(async () => {
  const begin = performance.now();
  console.log("first", await get("http://good.example/"));
  console.log("took", Math.round(performance.now() - begin));
  console.log("again", await get("http://good.example/"));
  console.log("denied", await get("http://a.b.wild.example/"));
  process.exit(3);
})();`

// The machine is stopped while somebody is asked, and its time limit does not run. The answer may come from another
// process, which can only answer open questions.
func TestAttackApproval(t *testing.T) {
	if testing.Short() {
		t.Skip("boots real machines; not in -short")
	}
	web := newSite(t)
	const thinks, limit = 3 * time.Second, 2 * time.Minute
	for _, kernel := range []image.Kernel{image.Linux} {
		t.Run(string(kernel), func(t *testing.T) {
			home := newHome(t)
			rt, err := unitask.Open(unitask.Options{Home: home, Upstream: web.upstream})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			refused := func(what, want string, err error) {
				t.Helper()
				got := "allowed"
				if err != nil {
					_, got, _ = strings.Cut(err.Error(), ": ")
				}
				attack.Check(t, "an answer "+what, want, got)
			}
			approve := func(ctx context.Context, q unitask.Question) unitask.Verdict {
				switch q.Host {
				case "good.example:80":
					takeTime(ctx, thinks)
					if list, err := rt.Approvals().Questions(ctx); err != nil || len(list) != 1 || list[0].Host != q.Host ||
						list[0].RunID != q.RunID || list[0].Rule != "ask good.example" {
						t.Errorf("%+v %v", list, err)
					}
					refused("about another port", `it asks about good.example:80, not about "good.example:443"`,
						rt.Approvals().Approve(ctx, q.RunID, "good.example:443", "", unitask.AllowRun))
					refused("that is none", `"perhaps": use deny, once or allow`,
						rt.Approvals().Approve(ctx, q.RunID, q.Host, "", "perhaps"))
					if err := rt.Approvals().Approve(ctx, q.RunID, q.Host, "", unitask.AllowRun); err != nil {
						t.Error(err)
					}
					<-ctx.Done()
					return ""
				case "a.b.wild.example:80":
					return unitask.Deny
				}
				t.Errorf("%+v", q)
				return ""
			}
			var out bytes.Buffer
			res, err := rt.Run(t.Context(), unitask.Request{Kernel: kernel, Cold: true, Code: approvalCode, Timeout: limit,
				Ask: []string{"good.example", "*.wild.example"}}, unitask.IO{Stdout: &out, Approve: approve})
			if err != nil || res.Outcome != unitask.OutcomeExited || res.ExitCode != 3 {
				t.Fatalf("%v %+v %s", err, res, out.String())
			}
			said := map[string]string{}
			for line := range strings.Lines(out.String()) {
				what, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
				said[what] = rest
			}
			attack.Check(t, "a connection that was allowed", "HTTP/1.1 GET good.example", said["first"])
			attack.Check(t, "the next one, of the same run", "HTTP/1.1 GET good.example", said["again"])
			attack.Check(t, "one that was denied", "ECONNREFUSED",
				strings.Replace(said["denied"], "ECONNRESET", "ECONNREFUSED", 1))
			if took, err := strconv.Atoi(said["took"]); err != nil || time.Duration(took)*time.Millisecond > res.Duration.Run {
				t.Errorf("the code's clock ran while it stood still: %q of %v", said["took"], res.Duration)
			}
			if len(res.Approvals) != 2 || res.Approvals[0].Verdict != unitask.AllowRun ||
				res.Approvals[0].By != "unitask approve" || res.Approvals[0].Ms < thinks.Milliseconds() ||
				res.Approvals[1].Host != "a.b.wild.example:80" || res.Approvals[1].Verdict != unitask.Deny {
				t.Errorf("%+v", res.Approvals)
			}
			if res.Duration.Run > res.Duration.Total-thinks ||
				res.Hint() != "a.b.wild.example:80 was denied by the caller of the run" {
				t.Errorf("%v %q", res.Duration, res.Hint())
			}
			wroteApprovals(t, rt, res.RunID)
		})
	}
}

// wroteApprovals checks the netlog and audit log of both questions, and that the run takes no more answers.
func wroteApprovals(t *testing.T, rt *unitask.Runtime, run string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(rt.Runs().Dir(), run, "netlog.jsonl"))
	if err != nil || !bytes.Contains(text, []byte("not approved: a.b.wild.example:80 was denied")) {
		t.Errorf("%s %v", text, err)
	}
	var asked []string
	_ = rt.Audit().Read(func(_ int64, line []byte) error {
		var e audit.Entry
		if json.Unmarshal(line, &e) == nil && e.Kind == audit.NetAsked {
			asked = append(asked, fmt.Sprint(e.Detail))
		}
		return nil
	})
	if len(asked) != 2 || !strings.Contains(asked[0], "host:good.example:80") ||
		!strings.Contains(asked[0], "verdict:allow") {
		t.Errorf("%q", asked)
	}
	if err := rt.Approvals().Approve(t.Context(), run, "good.example:80", "", unitask.AllowRun); err == nil {
		t.Error("a run that has ended takes an answer")
	}
}
