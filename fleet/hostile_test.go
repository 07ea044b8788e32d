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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/attack"
)

// A tenant with valid credentials writes data into the queue and its bucket by hand. No data stops the worker, runs
// code that nobody requested, or leaves something outside.
func TestHostileTenant(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	w := startWorker(t, quickly(workerConfig(ns.ClientURL(), 2)), script{log})
	_, js := dial(t, ns.ClientURL())
	kv, err := js.KeyValue(t.Context(), "unitask-runs-default")
	if err != nil {
		t.Fatal(err)
	}
	inline := inlined
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
		if _, err := js.Publish(t.Context(), "unitask.queue."+string(unitask.HostArch())+".default.normal",
			[]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(dir, "outside")
	wrong := inline("other")
	wrong["sha256"] = strings.Repeat("0", 64)
	huge := map[string]any{"sha256": strings.Repeat("a", 64), "size": int64(1) << 60}
	for name, row := range hostileTenantRows(request, entry, inline, huge, wrong, archive, outside) {
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
			if err := json.Unmarshal([]byte(text), &e); err != nil || row.says != "" &&
				!strings.Contains(string(e.Report.Inline), row.says) {
				t.Errorf("%v %s does not say %q", err, e.Report.Inline, row.says)
			}
		})
	}
	// Nothing of the tenant's data is left in the queue, nothing ran, and the worker still works.
	outliveNonsense(t, js, w, log, outside, ns)
}

// outliveNonsense checks that the worker has run none of it, and still works.
func outliveNonsense(t *testing.T, js jetstream.JetStream, w *fleet.Worker, log, outside string, ns *server.Server) {
	t.Helper()
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
	if res, err := rt.Run(t.Context(), unitask.Request{Code: "out fine"}, unitask.IO{}); err != nil ||
		string(res.Stdout) != "fine\n" {
		t.Errorf("after them: %v %s", err, asJSON(res))
	}
}

// inlined returns content in the form of a message.
func inlined(text string) map[string]any {
	sum := sha256.Sum256([]byte(text))
	return map[string]any{"sha256": hex.EncodeToString(sum[:]), "size": len(text), "inline": []byte(text)}
}

// forge submits a task by hand, as a tenant may, and returns the run's last entry.
func forge(t *testing.T, js jetstream.JetStream, id string, task any) (last string) {
	t.Helper()
	kv, err := js.KeyValue(t.Context(), "unitask-runs-default")
	if err != nil {
		t.Fatal(err)
	}
	arch := string(unitask.HostArch())
	if _, err := kv.Put(t.Context(), id, []byte(asJSON(map[string]any{"state": "queued", "class": arch,
		"task": inlined(asJSON(task))}))); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "unitask.queue."+arch+".default.normal",
		[]byte(asJSON(map[string]string{"run": id}))); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		v, err := kv.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		last = string(v.Value())
		return !strings.Contains(last, `"state":"queued"`) && !strings.Contains(last, `"state":"claimed"`)
	})
	var e struct {
		State  string
		Report struct{ Inline []byte }
	}
	if err := json.Unmarshal([]byte(last), &e); err != nil {
		t.Fatal(err)
	}
	var r struct{ Left struct{ Inline []byte } }
	if err := json.Unmarshal(e.Report.Inline, &r); err != nil {
		t.Fatal(err)
	}
	return e.State + string(e.Report.Inline) + string(r.Left.Inline)
}

// sparse returns a tar of 2 KiB. Its file claims this number of bytes, all of them holes.
func sparse(size int64) string {
	block := func(text string) string { return text + strings.Repeat("\x00", (512-len(text)%512)%512) }
	header := func(name string, kind byte, size int) string {
		h := fmt.Sprintf("%s%s0000644\x000000000\x000000000\x00%011o\x0000000000000\x00        %c", name,
			strings.Repeat("\x00", 100-len(name)), size, kind)
		h = block(h + strings.Repeat("\x00", 100) + "ustar\x0000")
		sum := 0
		for _, c := range []byte(h) {
			sum += int(c)
		}
		return h[:148] + fmt.Sprintf("%06o\x00 ", sum) + h[156:]
	}
	records := ""
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=big",
		fmt.Sprintf("GNU.sparse.realsize=%d", size)} {
		records += fmt.Sprintf("%d %s\n", len(r)+4, r) // of two digits
	}
	holes := fmt.Sprintf("1\n%d\n0\n", size)
	return header("x", 'x', len(records)) + block(records) + header("big", '0', 512) + block(holes) +
		strings.Repeat("\x00", 1024)
}

// hostileWorker writes artifacts with invalid names.
type hostileWorker struct{}

func (hostileWorker) MemoryMB(string, unitask.Request) int { return 1 }

func (hostileWorker) Run(_ context.Context, job fleet.Job) (fleet.Done, error) {
	return fleet.Done{
		Result:  &unitask.Result{RunID: "../../x", Outcome: unitask.OutcomeExited},
		Machine: json.RawMessage(`{"kernel":"linux"}`),
		Left: func(add func(string, fs.FileMode, int64, io.Reader) error) error {
			for _, name := range []string{"out/../../../up", "out//etc/root", "out/" + strings.Repeat("a/", 100) + "deep",
				"out/ok", "netlog", "run.json", "../run.json"} {
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

// A submitter checks a worker's data against the local grants: names, sizes, its own record.
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

// startSubmitting starts a server with a worker and a user, alice, that can only submit.
func startSubmitting(t *testing.T, most fleet.Priority) (*server.Server, *fleet.Worker) {
	t.Helper()
	publish, subscribe := fleet.Permissions("alice", most)
	ns := startNATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "worker", Password: "worker"},
			{Username: "alice", Password: "alice", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: publish}, Subscribe: &server.SubjectPermission{Allow: subscribe},
				Response: &server.ResponsePermission{MaxMsgs: 1, Expires: time.Minute},
			}}}
	})
	config := workerConfig(ns.ClientURL(), 2)
	config.User, config.Password, config.Tenant = "worker", "worker", "alice"
	return ns, startWorker(t, config, script{})
}

// A submit-only user with the permissions that the command prints: it works, and can't act as a worker.
func TestSubmitterOnly(t *testing.T) {
	t.Parallel()
	ns, _ := startSubmitting(t, fleet.Normal)
	large := strings.Repeat("y", 1<<20)
	rt, client := submitter(t, fleet.Config{URL: ns.ClientURL(), Tenant: "alice", User: "alice", Password: "alice"})
	res, err := rt.Run(t.Context(), unitask.Request{Code: "out " + large + "\nsecret KEY\nstdin\nartifact a",
		Secrets: map[string]string{"KEY": "of-alice"}}, unitask.IO{Stdin: strings.NewReader("typed\n")})
	if err != nil || !strings.HasSuffix(string(res.Stdout), "y\n8 bytes\ntyped\n") || len(res.Artifacts) != 1 {
		t.Fatalf("%v %d bytes", err, len(res.Stdout))
	}
	if _, err := client.Queue(t.Context()); err != nil {
		t.Errorf("what the queue holds: %v", err)
	}
	denied := make(chan error, 64)
	nc, _ := dial(t, ns.ClientURL(), nats.UserInfo("alice", "alice"), nats.CustomInboxPrefix("_INBOX_alice"),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
	for name, try := range map[string]func() error{
		"prints":              func() error { return nc.Publish("unitask.out.alice.x", nil) },
		"passes for a worker": func() error { return nc.Publish("$KV.unitask-workers.w", []byte(`{}`)) },
		"misses a worker":     func() error { return nc.Publish("$KV.unitask-missed.w", nil) },
		"drains a worker":     func() error { return nc.Publish("unitask.drain.w", nil) },
		"asks for secrets":    func() error { return nc.Publish("unitask.ask.alice.x", []byte(`{"what":"secrets"}`)) },
		"reads the queue": func() error {
			return nc.Publish("$JS.API.STREAM.MSG.GET.unitask-queue",
				[]byte(`{"seq":1}`))
		},
		"empties the queue": func() error { return nc.Publish("$JS.API.STREAM.PURGE.unitask-queue", nil) },
		"deletes a bucket":  func() error { return nc.Publish("$JS.API.STREAM.DELETE.KV_unitask-runs-alice", nil) },
		"changes bounds":    func() error { return nc.Publish("$JS.API.STREAM.UPDATE.KV_unitask-runs-alice", nil) },
		"takes runs":        func() error { return nc.Publish("$JS.API.CONSUMER.MSG.NEXT.unitask-queue.x", nil) },
		"hears all":         func() error { _, err := nc.SubscribeSync(">"); return err },
		"hears workers":     func() error { _, err := nc.SubscribeSync("_INBOX.>"); return err },
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
}

// A consumer delivers to any subject of its account, even where its creator may not publish. So a worker ignores
// commands that come this way. Both a submit-only user and one with all rights create a consumer here.
func TestAttackDelivered(t *testing.T) {
	t.Parallel()
	ns, w := startSubmitting(t, fleet.Low)
	all, js := dial(t, ns.ClientURL(), nats.UserInfo("worker", "worker"))
	nc, _ := dial(t, ns.ClientURL(), nats.UserInfo("alice", "alice"), nats.CustomInboxPrefix("_INBOX_alice"))
	if _, err := js.CreateStream(t.Context(),
		jetstream.StreamConfig{Name: "short", Subjects: []string{"x"}, MaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	const key = "$KV.unitask-runs-alice.evil"
	for _, from := range []struct {
		nc              *nats.Conn
		stream, subject string
	}{{nc, "KV_unitask-runs-alice", key}, {all, "short", "x"}} {
		if _, err := from.nc.Request(from.subject, []byte(`{"run":"x"}`), time.Minute); err != nil {
			t.Fatal(err)
		}
		for i, to := range []string{"unitask.drain." + w.Info().ID, "unitask.cancel.alice.x", "unitask.queue." +
			string(unitask.HostArch()) + ".alice.high"} {
			name := fmt.Sprint("c", i)
			sub, err := all.SubscribeSync(to)
			if err != nil {
				t.Fatal(err)
			}
			if err := all.Flush(); err != nil {
				t.Fatal(err)
			}
			made := asJSON(map[string]any{"stream_name": from.stream, "config": map[string]any{
				"name": name, "deliver_subject": to, "ack_policy": "none", "deliver_policy": "all", "mem_storage": true,
				"filter_subject": from.subject}})
			if answer, err := from.nc.Request("$JS.API.CONSUMER.CREATE."+from.stream+"."+name+"."+from.subject, []byte(made),
				time.Minute); err != nil || strings.Contains(string(answer.Data), `"error"`) {
				t.Fatalf("%v %s", err, answer.Data)
			}
			m, err := sub.NextMsg(time.Minute) // so the worker has received it, too
			if err != nil || m.Subject != from.subject {
				t.Fatalf("%s: %v %v", to, m, err)
			}
			_ = sub.Unsubscribe()
		}
	}
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL(), Tenant: "alice", User: "worker", Password: "worker"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := rt.Run(ctx, unitask.Request{Code: "out fine"}, unitask.IO{})
	got := fmt.Sprint(err)
	if err == nil {
		got = string(res.Stdout)
	}
	attack.Check(t, "what JetStream delivers to a worker's subjects", "fine\n", got)
	if publish, _ := fleet.Permissions("alice", "hgih"); slices.ContainsFunc(publish,
		func(s string) bool { return strings.HasPrefix(s, "unitask.queue.") }) {
		t.Errorf("a priority that there is none of lets ask for runs: %q", publish)
	}
}

type answeredRow struct {
	name string
	do   func() error
	want func(*nats.Msg) bool
}

// answeredRows are the cases of TestAttackAnswered: what makes JetStream publish on a worker's subject drain.
func answeredRows(nc *nats.Conn, worker, drain string) []answeredRow {
	const stream, key = "KV_unitask-runs-alice", "$KV.unitask-runs-alice.evil"
	stored := func() *nats.Msg {
		m := nats.NewMsg(key)
		m.Header.Set("Drain", "1")
		m.Reply = drain
		return m
	}
	answer := func(subject, text string) func() error {
		return func() error { return nc.PublishRequest(subject, drain, []byte(text)) }
	}
	consumer := asJSON(map[string]any{"stream_name": stream,
		"config": map[string]any{"name": "beats", "deliver_subject": drain, "ack_policy": "none", "deliver_policy": "all",
			"mem_storage": true, "filter_subject": key, "flow_control": true, "idle_heartbeat": 200 * time.Millisecond}})
	return []answeredRow{
		{
			name: "that a message was stored",
			do:   func() error { return nc.PublishMsg(stored()) },
			want: func(m *nats.Msg) bool { return strings.Contains(string(m.Data), `"seq"`) },
		},
		{
			name: "what a stream is like",
			do:   answer("$JS.API.STREAM.INFO."+stream, ""),
			want: func(m *nats.Msg) bool { return strings.Contains(string(m.Data), "stream_info") },
		},
		{
			name: "a message that a stream has",
			do:   answer("$JS.API.STREAM.MSG.GET."+stream, `{"last_by_subj":"`+key+`"}`),
			want: func(m *nats.Msg) bool { return strings.Contains(string(m.Data), "msg_get") },
		},
		{
			name: "a message as it is",
			do:   answer("$JS.API.DIRECT.GET.KV_unitask-workers.$KV.unitask-workers."+worker, ""),
			want: func(m *nats.Msg) bool { return m.Header.Get("Nats-Stream") != "" },
		},
		{
			name: "that there is no such message",
			do:   answer("$JS.API.DIRECT.GET.KV_unitask-workers.x", ""),
			want: func(m *nats.Msg) bool { return m.Header.Get("Status") == "404" },
		},
		{
			name: "the heartbeat of a consumer",
			do:   answer("$JS.API.CONSUMER.CREATE."+stream+".beats."+key, consumer),
			want: func(m *nats.Msg) bool { return m.Header.Get("Description") == "Idle Heartbeat" },
		},
	}
}

// JetStream answers to any subject that a request names, even if the client may not publish there. It also sends
// heartbeats and requests to the receivers of a consumer. A worker takes none of these for a command to stop.
func TestAttackAnswered(t *testing.T) {
	t.Parallel()
	ns, w := startSubmitting(t, fleet.Low)
	all, _ := dial(t, ns.ClientURL(), nats.UserInfo("worker", "worker"))
	nc, _ := dial(t, ns.ClientURL(), nats.UserInfo("alice", "alice"), nats.CustomInboxPrefix("_INBOX_alice"))
	drain := "unitask.drain." + w.Info().ID
	heard, err := all.SubscribeSync(drain)
	if err != nil {
		t.Fatal(err)
	}
	if err := all.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, row := range answeredRows(nc, w.Info().ID, drain) {
		if err := row.do(); err != nil {
			t.Fatal(err)
		}
		for { // until it exists, at the worker too
			m, err := heard.NextMsg(time.Minute)
			if err != nil {
				t.Fatalf("%s: %v", row.name, err)
			}
			if m.Subject == drain && row.want(m) {
				break
			}
		}
		rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL(), Tenant: "alice", User: "worker", Password: "worker"})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		res, err := rt.Run(ctx, unitask.Request{Code: "out fine"}, unitask.IO{})
		cancel()
		got := fmt.Sprint(err)
		if err == nil {
			got = string(res.Stdout)
		}
		attack.Check(t, "JetStream tells a worker to go: "+row.name, "fine\n", got)
	}
	_, client := submitter(t, fleet.Config{URL: ns.ClientURL(), Tenant: "alice", User: "worker", Password: "worker"})
	if list, err := client.Workers(t.Context()); err != nil || len(list) != 1 || list[0].Draining {
		t.Errorf("after all of them: %v %s", err, asJSON(list))
	}
	if err := client.Drain(t.Context(), w.Info().ID); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		list, err := client.Workers(t.Context())
		return err == nil && len(list) == 0
	})
}
