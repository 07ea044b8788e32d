package fleet_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
)

// What a tenant with valid credentials puts into the queue and its bucket by hand: none of it stops
// the worker, runs code that was not asked for, or leaves something outside.
func TestHostileTenant(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	w := startWorker(t, workerConfig(ns.ClientURL(), 2), script{log})
	_, js := dial(t, ns.ClientURL())
	kv, err := js.KeyValue(t.Context(), "unitask-runs-default")
	if err != nil {
		t.Fatal(err)
	}
	inline := func(text string) map[string]any {
		sum := sha256.Sum256([]byte(text))
		return map[string]any{"sha256": hex.EncodeToString(sum[:]), "size": len(text), "inline": []byte(text)}
	}
	archive := func(h *tar.Header, text string) map[string]any {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		h.Size = int64(len(text))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(w, text)
		w.Close()
		return inline(b.String())
	}
	entry := func(task any) map[string]any {
		return map[string]any{"state": "queued", "class": string(unitask.HostArch()), "memoryMb": 64, "task": task}
	}
	request := func(more map[string]any) map[string]any {
		m := map[string]any{"request": map[string]any{"code": "out run"}}
		for k, v := range more {
			m[k] = v
		}
		return inline(asJSON(m))
	}
	send := func(text string) {
		t.Helper()
		if _, err := js.Publish(t.Context(), "unitask.queue."+string(unitask.HostArch())+".default", []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(dir, "outside")
	wrong := inline("other")
	wrong["sha256"] = strings.Repeat("0", 64)
	huge := map[string]any{"sha256": strings.Repeat("a", 64), "size": int64(1) << 60}
	for name, row := range map[string]struct {
		ticket string
		entry  any
		ends   string // the state that it comes to; "" is that nothing is done
		says   string
	}{
		"no-json":          {ticket: "{{{{"},
		"deep-json":        {ticket: strings.Repeat("[", 1000)},
		"id-is-a-path":     {ticket: `{"run":"../../etc/passwd"}`},
		"id-is-a-wildcard": {ticket: `{"run":"*"}`},
		"no-such-run":      {},
		"entry-garbage":    {entry: "text"},
		"attempt-negative": {entry: map[string]any{"state": "queued", "class": "amd64", "attempt": -5}},
		"attempt-many":     {entry: map[string]any{"state": "queued", "class": "amd64", "attempt": 1 << 40}},
		"state-unknown":    {entry: map[string]any{"state": "finished?", "class": "amd64", "memoryMb": 1, "task": request(nil)}},
		"memory-negative":  {entry: map[string]any{"state": "queued", "class": "amd64", "memoryMb": -1 << 40}},
		"task-garbage":     {entry: entry(inline("]")), ends: "ended", says: "malformed"},
		"task-misspelled":  {entry: entry(inline(`{"Request":{}}`)), ends: "ended", says: "malformed"},
		"task-huge":        {entry: entry(huge), ends: "ended", says: "malformed"},
		"task-name-lies":   {entry: entry(wrong), ends: "ended", says: "malformed"},
		"task-missing":     {entry: entry(map[string]any{"sha256": strings.Repeat("b", 64), "size": 10}), ends: "ended", says: "not found"},
		"caller-long":      {entry: entry(request(map[string]any{"caller": strings.Repeat("x", 10_000)})), ends: "ended", says: "malformed"},
		"archive-up":       {entry: entry(request(map[string]any{"files": archive(&tar.Header{Name: "../../outside", Typeflag: tar.TypeReg}, "x")})), ends: "ended", says: "malformed"},
		"archive-root":     {entry: entry(request(map[string]any{"files": archive(&tar.Header{Name: outside, Typeflag: tar.TypeReg}, "x")})), ends: "ended", says: "malformed"},
		"archive-device":   {entry: entry(request(map[string]any{"files": archive(&tar.Header{Name: "dev", Typeflag: tar.TypeChar}, "")})), ends: "ended", says: "neither file"},
		"archive-garbage":  {entry: entry(request(map[string]any{"files": inline(strings.Repeat("x", 2000))})), ends: "ended", says: "brings"},
	} {
		ticket := row.ticket
		if ticket == "" {
			ticket = asJSON(map[string]string{"run": name})
		}
		if row.entry != nil {
			if _, err := kv.Put(t.Context(), name, []byte(asJSON(row.entry))); err != nil {
				t.Fatal(err)
			}
		}
		send(ticket)
		if row.ends == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			var text string
			waitFor(t, func() bool {
				v, err := kv.Get(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				text = string(v.Value())
				return strings.Contains(text, `"state":"`+row.ends+`"`)
			})
			var e struct{ Report struct{ Inline []byte } }
			if err := json.Unmarshal([]byte(text), &e); err != nil || !strings.Contains(string(e.Report.Inline), row.says) {
				t.Errorf("%v %s does not say %q", err, e.Report.Inline, row.says)
			}
		})
	}
	// Nothing of it is left in the queue, nothing ran, and the worker still works.
	waitFor(t, func() bool {
		s, err := js.Stream(t.Context(), "unitask-queue")
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.Msgs == 0 && w.Info().Running == 0
	})
	if ran := lines(log); len(ran) != 0 {
		t.Errorf("code of these ran: %q", ran)
	}
	if _, err := os.Stat(outside); err == nil {
		t.Error("a file was written outside")
	}
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL()})
	if res, err := rt.Run(t.Context(), unitask.Request{Code: "out fine"}, unitask.IO{}); err != nil || string(res.Stdout) != "fine\n" {
		t.Errorf("after them: %v %s", err, asJSON(res))
	}
}

// hostileWorker leaves things under names that can't be.
type hostileWorker struct{}

func (hostileWorker) Run(_ context.Context, job fleet.Job) (fleet.Done, error) {
	return fleet.Done{
		Result:  &unitask.Result{RunID: "../../x", Outcome: unitask.OutcomeExited},
		Machine: json.RawMessage(`{"kernel":"linux"}`),
		Left: func(add func(string, fs.FileMode, int64, io.Reader) error) error {
			for _, name := range []string{"out/../../../up", "out//etc/root", "out/" + strings.Repeat("a/", 100) + "deep", "out/ok", "netlog", "run.json", "../run.json"} {
				if err := add(name, 0o4777, 5, strings.NewReader("bytes")); err != nil {
					return err
				}
			}
			return add("stdout", 0o600, 64<<20, io.LimitReader(endless{}, 64<<20))
		},
	}, nil
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A submitter holds what a worker sends to what was granted here: names, sizes, its own record.
func TestHostileWorker(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	startWorker(t, workerConfig(ns.ClientURL(), 1), hostileWorker{})
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL()})
	res, err := rt.Run(t.Context(), unitask.Request{Code: "x", OutputBytes: 1 << 20}, unitask.IO{})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Stdout) != 1<<20 || !res.Truncated {
		t.Errorf("%d bytes of stdout were taken", len(res.Stdout))
	}
	if len(res.Artifacts) != 1 || res.Artifacts[0].Path != "ok" || len(res.ArtifactsRefused) != 3 {
		t.Errorf("taken %s, refused %s", asJSON(res.Artifacts), asJSON(res.ArtifactsRefused))
	}
	if rec, err := rt.Runs().Get(res.RunID); err != nil || rec.ID != res.RunID || strings.Contains(res.RunID, "/") {
		t.Errorf("record of %q: %v", res.RunID, err)
	}
}

// Tenants of one account: with the permissions that the command prints, one works, and can neither
// read nor write what is another's.
func TestTenants(t *testing.T) {
	user := func(tenant string) *server.User {
		publish, subscribe := fleet.Permissions(tenant)
		return &server.User{Username: tenant, Password: tenant, Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: publish}, Subscribe: &server.SubjectPermission{Allow: subscribe}, Response: &server.ResponsePermission{MaxMsgs: 1, Expires: time.Minute},
		}}
	}
	ns := startNATS(t, func(o *server.Options) {
		o.Users = []*server.User{user("alice"), user("bob"), {Username: "worker", Password: "worker"}}
	})
	config := workerConfig(ns.ClientURL(), 2)
	config.User, config.Password, config.Tenants = "worker", "worker", []string{"alice", "bob"}
	startWorker(t, config, script{})
	large := strings.Repeat("y", 1<<20)
	for _, tenant := range []string{"alice", "bob"} {
		rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL(), Tenant: tenant, User: tenant, Password: tenant})
		res, err := rt.Run(t.Context(), unitask.Request{Code: "out " + large + "\nsecret KEY\nstdin\nartifact a", Secrets: map[string]string{"KEY": "of-" + tenant}}, unitask.IO{Stdin: strings.NewReader("typed\n")})
		if err != nil || !strings.HasSuffix(string(res.Stdout), "y\n"+fmt.Sprintf("%d bytes\ntyped\n", len("of-"+tenant))) || len(res.Artifacts) != 1 {
			t.Fatalf("%s: %v %d bytes", tenant, err, len(res.Stdout))
		}
	}
	denied := make(chan error, 64)
	nc, js := dial(t, ns.ClientURL(), nats.UserInfo("bob", "bob"), nats.CustomInboxPrefix("_INBOX_bob"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
	arch := string(unitask.HostArch())
	for name, try := range map[string]func() error{
		"runs for her":         func() error { return nc.Publish("unitask.queue."+arch+".alice", []byte(`{"run":"x"}`)) },
		"forges her result":    func() error { return nc.Publish("$KV.unitask-runs-alice.x", []byte(`{"state":"ended"}`)) },
		"cancels hers":         func() error { return nc.Publish("unitask.cancel.alice.x", nil) },
		"prints for her":       func() error { return nc.Publish("unitask.out.alice.x", nil) },
		"prints for himself":   func() error { return nc.Publish("unitask.out.bob.x", nil) },
		"replaces her files":   func() error { return nc.Publish("$O.unitask-files-alice.M.x", nil) },
		"passes for a worker":  func() error { return nc.Publish("$KV.unitask-workers.w", []byte(`{}`)) },
		"drains a worker":      func() error { return nc.Publish("unitask.drain.w", nil) },
		"asks for her secrets": func() error { return nc.Publish("unitask.ask.alice.x", []byte(`{"what":"secrets"}`)) },
		"reads her runs": func() error {
			return nc.Publish("$JS.API.DIRECT.GET.KV_unitask-runs-alice.$KV.unitask-runs-alice.x", nil)
		},
		"reads the queue":    func() error { return nc.Publish("$JS.API.STREAM.MSG.GET.unitask-queue", []byte(`{"seq":1}`)) },
		"empties the queue":  func() error { return nc.Publish("$JS.API.STREAM.PURGE.unitask-queue", nil) },
		"deletes her bucket": func() error { return nc.Publish("$JS.API.STREAM.DELETE.KV_unitask-runs-alice", nil) },
		"changes his bounds": func() error { return nc.Publish("$JS.API.STREAM.UPDATE.KV_unitask-runs-bob", nil) },
		"hears her output":   func() error { _, err := nc.SubscribeSync("unitask.out.alice.>"); return err },
		"hears all":          func() error { _, err := nc.SubscribeSync(">"); return err },
		"hears her answers":  func() error { _, err := nc.SubscribeSync("_INBOX_alice.>"); return err },
		"hears workers":      func() error { _, err := nc.SubscribeSync("_INBOX.>"); return err },
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			if err := try(); err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-denied:
				if !strings.Contains(strings.ToLower(err.Error()), "permissions violation") {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Error("it is allowed")
			}
		})
	}
	if _, err := js.KeyValue(t.Context(), "unitask-runs-bob"); err != nil {
		t.Errorf("his own: %v", err)
	}
}
