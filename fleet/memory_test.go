package fleet_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
)

// hostile is a tenant that writes its entries, contents and calls by hand, with a user's permissions.
type hostile struct {
	tenant string
	nc     *nats.Conn
	runs   jetstream.KeyValue
	files  jetstream.ObjectStore
	js     jetstream.JetStream
}

// accounts are the accounts of a NATS server, one for each tenant. The worker's user has the tenant's name; the
// tenant's own user is NAME-user.
func accounts(tenants ...string) func(*server.Options) {
	return func(o *server.Options) {
		for _, name := range tenants {
			account := server.NewAccount(name)
			o.Accounts = append(o.Accounts, account)
			publish, subscribe := fleet.Permissions(name, fleet.High)
			o.Users = append(o.Users, &server.User{Username: name, Password: name, Account: account},
				&server.User{Username: name + "-user", Password: name, Account: account, Permissions: &server.Permissions{
					Publish: &server.SubjectPermission{Allow: publish}, Subscribe: &server.SubjectPermission{Allow: subscribe}}})
		}
	}
}

// startAccounts starts a server whose tenants each have JetStream.
func startAccounts(t *testing.T, tenants ...string) *server.Server {
	ns := startNATS(t, accounts(tenants...))
	for _, name := range tenants {
		account, err := ns.LookupAccount(name)
		if err == nil {
			err = account.EnableJetStream(nil, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return ns
}

func attacker(t *testing.T, url, tenant string) *hostile {
	t.Helper()
	nc, js := dial(t, url, nats.UserInfo(tenant+"-user", tenant), nats.CustomInboxPrefix("_INBOX_"+tenant))
	h := &hostile{tenant: tenant, nc: nc, js: js}
	var err error
	if h.runs, err = js.KeyValue(t.Context(), "unitask-runs-"+tenant); err == nil {
		h.files, err = js.ObjectStore(t.Context(), "unitask-files-"+tenant)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// put stores content in the tenant's object store, unless it is already there.
func (h *hostile) put(t *testing.T, content []byte) map[string]any {
	t.Helper()
	sum := sha256.Sum256(content)
	name := hex.EncodeToString(sum[:])
	if _, err := h.files.GetInfo(t.Context(), name); err != nil {
		if _, err := h.files.Put(t.Context(), jetstream.ObjectMeta{Name: name}, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	return map[string]any{"sha256": name, "size": len(content)}
}

// submit enters a run.
func (h *hostile) submit(t *testing.T, id string, task, code any) {
	t.Helper()
	entry := map[string]any{"state": "queued", "class": string(unitask.HostArch()), "task": task}
	if code != nil {
		entry["code"] = code
	}
	if _, err := h.runs.Put(t.Context(), id, []byte(asJSON(entry))); err != nil {
		t.Fatal(err)
	}
	if _, err := h.js.Publish(t.Context(), "unitask.queue."+string(unitask.HostArch())+"."+h.tenant+".high",
		[]byte(asJSON(map[string]string{"run": id}))); err != nil {
		t.Fatal(err)
	}
}

// ended returns how a run ended: its state, and its report's text.
func (h *hostile) ended(t *testing.T, id string) (state, says string) {
	t.Helper()
	var e struct {
		State, Why string
		Report     struct{ Inline []byte }
	}
	waitFor(t, func() bool {
		v, err := h.runs.Get(t.Context(), id)
		if err != nil || json.Unmarshal(v.Value(), &e) != nil {
			t.Fatal(err)
		}
		return e.State != "queued" && e.State != "claimed"
	})
	return e.State, string(e.Report.Inline) + e.Why
}

// begin calls a worker for a session, and returns the answer.
func (h *hostile) begin(t *testing.T, worker string, text []byte) string {
	t.Helper()
	inbox := h.nc.NewInbox()
	answers, err := h.nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := h.nc.PublishRequest("unitask.begin."+h.tenant+"."+worker, inbox, text); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := answers.NextMsg(time.Minute)
		if err != nil {
			return err.Error()
		}
		if m.Header.Get("Answer") != "" {
			return string(m.Data)
		}
	}
}

// peak returns the peak memory of a process, in MiB.
func peak(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal("the worker is gone: ", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}

// mostMemory is the limit of a worker process's own memory, in MiB.
const mostMemory = 512

// Tenants with a user's permissions send anything, small or large, in sequence and at once. A worker's memory stays
// limited, and its other tenant's runs end normally.
func TestAttackWorkerMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("VmHWM is Linux's")
	}
	if testing.Short() {
		t.Skip("sends a worker some GiB")
	}
	tenants := []string{"mallory", "eve", "trudy", "alice"}
	ns := startAccounts(t, tenants...)
	worker, pid := startMeasured(t, ns.ClientURL(), tenants)
	alice, _ := submitter(t, fleet.Config{URL: ns.ClientURL(), Tenant: "alice", User: "alice-user", Password: "alice",
		Times: quick})
	fine := func() string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		res, err := alice.Run(ctx, unitask.Request{Code: "out fine"}, unitask.IO{})
		if err != nil {
			return err.Error()
		}
		return string(res.Stdout)
	}
	check := func(name string) {
		t.Helper()
		got := fine()
		if most := peak(t, pid); most > mostMemory {
			got += fmt.Sprintf("%d MiB", most)
		}
		attack.Check(t, "memory of a shared worker: "+name, "fine\n", got)
		t.Logf("%s: %d MiB", name, peak(t, pid))
	}
	h := attacker(t, ns.ClientURL(), "mallory")
	for name, text := range hostileTasks() {
		id := strings.NewReplacer(" ", "-", "{},", "braces").Replace(name)
		h.submit(t, id, h.put(t, text), nil)
		state, says := h.ended(t, id)
		if state != "ended" || !strings.Contains(says, "malformed") {
			t.Errorf("%s: %s %s", name, state, says)
		}
		check(name)
	}
	for name, text := range hostileBegins(t, h) {
		var asked sync.WaitGroup
		for range 4 {
			asked.Go(func() {
				if answer := h.begin(t, worker, text); !strings.Contains(answer, "error") {
					t.Errorf("%s: %.200s", name, answer)
				}
			})
		}
		asked.Wait()
		check(name)
	}
	crowd(t, ns.ClientURL(), "mallory")
	h.lookForWorkers(t)
	check("a list of workers of 300 MiB")
	// Three tenants at once, each with as much code as a run may have, several times.
	code := []byte("out run\n" + strings.Repeat("x", 64<<20-8))
	task := inlined(asJSON(map[string]any{"request": map[string]any{}, "code": []int{len(code)}}))
	var all []*hostile
	for _, tenant := range tenants[:3] {
		all = append(all, attacker(t, ns.ClientURL(), tenant))
	}
	for _, h := range all {
		for i := range 4 {
			h.submit(t, fmt.Sprint("large-", i), task, h.put(t, code))
		}
	}
	check("the largest code of three tenants")
	for _, h := range all {
		for i := range 4 {
			if state, says := h.ended(t, fmt.Sprint("large-", i)); state != "ended" || !strings.Contains(says, `"exited"`) {
				t.Errorf("%s: %s %s", h.tenant, state, says)
			}
		}
	}
	check("behind it")
}

// lookForWorkers makes a worker read the list of workers, several times at once.
func (h *hostile) lookForWorkers(t *testing.T) {
	t.Helper()
	lies := inlined(asJSON(map[string]any{"request": map[string]any{"code": "out run", "memoryMb": 2 << 20}}))
	for i := range 4 {
		h.submit(t, fmt.Sprint("crowded-", i), lies, nil)
	}
	for i := range 4 {
		if state, says := h.ended(t, fmt.Sprint("crowded-", i)); state != "ended" ||
			!strings.Contains(says, "no worker has") {
			t.Errorf("%s %s", state, says)
		}
	}
}

// braces returns JSON of about that size: a request with a list of empty objects.
func braces(before string, size int, after string) []byte {
	list := bytes.Repeat([]byte(",{}"), size/3)
	return append(append([]byte(before+`{"request":{"code":"out run","files":[{}`), list...), "]}}"+after...)
}

// hostileTasks are tasks that take much memory, or seem to.
func hostileTasks() map[string][]byte {
	within := func(before, text, after string) []byte {
		return []byte(before + strings.Repeat(text, (1<<20-len(before)-len(after))/len(text)) + after)
	}
	keys := bytes.NewBufferString(`{"request":{"env":{"":""`)
	for i := 0; keys.Len() < 1<<20-100; i++ {
		fmt.Fprintf(keys, `,"%x":""`, i)
	}
	keys.WriteString("}}}")
	return map[string][]byte{
		"78 MiB of {},":     braces("", 78<<20, ""),
		"a MiB of {},":      within(`{"request":{"code":"out run","files":[{}`, ",{}", "]}}"),
		"a MiB of brackets": within(`{"request":{"env":`, "[", ""),
		"a MiB of keys":     keys.Bytes(),
		"a MiB of lists":    within(`{"image":{"modules":[[]`, ",[]", "]}}"),
		"a long string":     []byte(`{"request":{"code":"out run"},"caller":"` + strings.Repeat("x", 78<<20) + `"}`),
		"a string of NULs":  within(`{"request":{"code":"out run"},"caller":"`, `\u0000`, `"}`),
	}
}

// hostileBegins are calls that start a session, and take much memory, or seem to.
func hostileBegins(t *testing.T, h *hostile) map[string][]byte {
	const begins = `{"op":"new","new":`
	blob := asJSON(map[string]any{"blob": h.put(t, append([]byte(`{"op":"new","new":{"request":{"code":"`),
		bytes.Repeat([]byte("x"), 120<<20)...))})
	return map[string][]byte{
		"a session's begin with a blob of 120 MiB": []byte(blob),
		"a session's begin with 78 MiB of {},": []byte(asJSON(map[string]any{"blob": h.put(t,
			braces(begins, 78<<20, "}"))})),
		"a session's begin with a large part": []byte(asJSON(map[string]any{"text": map[string]any{"op": "new"},
			"apart": h.put(t, braces(begins, 78<<20, "}")), "sizes": []int{78 << 20}})),
		"a session's begin with a part that lies": []byte(asJSON(map[string]any{"text": map[string]any{"op": "new"},
			"apart": map[string]any{"sha256": strings.Repeat("a", 64), "size": 64 << 20}, "sizes": []int{64 << 20}})),
		"a session's begin with 120 KiB of {},": braces(`{"text":`+begins, 120<<10, "}}"),
		"a session's begin with 900 KiB of {},": braces(`{"text":`+begins, 900<<10, "}}"),
		"a session's begin with brackets":       bytes.Repeat([]byte("["), 900<<10),
		"a session's begin with a request of lists": []byte(`{"text":{"op":"new","new":{"request":{"files":[{}` +
			strings.Repeat(",{}", 40_000) + `]}}}}`),
	}
}

// crowd fills a tenant's list of workers, as a user with all rights in the account can.
func crowd(t *testing.T, url, tenant string) {
	t.Helper()
	_, js := dial(t, url, nats.UserInfo(tenant, tenant))
	s, err := js.Stream(t.Context(), "KV_unitask-workers")
	if err != nil {
		t.Fatal(err)
	}
	config := s.CachedInfo().Config
	config.MaxAge, config.MaxBytes, config.MaxMsgSize = 0, -1, -1
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		id := fmt.Sprint("w", i)
		text := `{"id":"` + id + `","arch":"amd64","kernels":[""` + strings.Repeat(`,""`, 340_000) + `]}`
		if _, err := js.PublishAsync("$KV.unitask-workers."+id, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if i%20 == 0 {
			<-js.PublishAsyncComplete()
		}
	}
	<-js.PublishAsyncComplete()
}

// startMeasured starts a worker with several tenants and sessions in a separate process.
func startMeasured(t *testing.T, url string, tenants []string) (id string, pid int) {
	t.Helper()
	id, pid, _ = startWorkerProcess(t, url, "", "FLEET_TEST_TENANTS="+strings.Join(tenants, ","),
		"FLEET_TEST_EMPTY_HOME="+testdir.Private(t))
	return id, pid
}

// A worker's ceiling refuses a run before anything that the run brings is fetched.
func TestAttackRefusedFirst(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	startWorker(t, quickly(workerConfig(ns.ClientURL(), 2)), fleet.WithSessions(script{}, rt))
	_, js := dial(t, ns.ClientURL())
	missing := map[string]any{"sha256": strings.Repeat("a", 64), "size": 1 << 20}
	said := forge(t, js, "refused", map[string]any{"request": map[string]any{"image": "alpine:3.20", "exec": true},
		"files": missing})
	got := "refused"
	if !strings.Contains(said, `"Field":"image"`) {
		got = said
	}
	attack.Check(t, "files of a run that the worker's ceiling refuses are fetched", "refused", got)
}

// A run that kills each worker that reads it is lost after the third, and no other worker reads it.
func TestAttackReadersDie(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for three workers to be missed")
	}
	t.Parallel()
	ns := startNATS(t, nil)
	dir := t.TempDir()
	// it creates the buckets
	watcher, err := fleet.NewWorker(t.Context(), quickly(workerConfig(ns.ClientURL(), 1)), script{})
	if err != nil {
		t.Fatal(err)
	}
	watcher.Close()
	for range maxReaders + 1 {
		startProcess(t, ns.ClientURL(), filepath.Join(dir, "log"))
	}
	rt, client := submitter(t, fleet.Config{URL: ns.ClientURL(), Times: quick})
	res, err := rt.Run(t.Context(), unitask.Request{Code: "out run", Env: map[string]string{"READER": "dies"}},
		unitask.IO{})
	var lost *unitask.LostError
	got := fmt.Sprint(err)
	if errors.As(err, &lost) && res.Outcome == unitask.OutcomeLost {
		got = lost.Reason
	}
	attack.Check(t, "a task whose reading ends the worker", "3 workers were lost while they read or ran it", got)
	waitFor(t, func() bool {
		workers, err := client.Workers(t.Context())
		return err == nil && len(workers) == 1
	})
	if res, err := rt.Run(t.Context(), unitask.Request{Code: "out fine"}, unitask.IO{}); err != nil ||
		string(res.Stdout) != "fine\n" {
		t.Errorf("%v %s", err, asJSON(res))
	}
}

// maxReaders is how many workers a task may kill.
const maxReaders = 3
