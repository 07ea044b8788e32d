package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
)

// sessionHome returns a home for a worker with sessions.
func sessionHome(t *testing.T) string {
	t.Helper()
	if os.Getenv("UNITASK_TEST_LONG") == "" {
		t.Skip("a session on two workers is make long's (UNITASK_TEST_LONG=1)")
	}
	if !machine.CanClone {
		t.Skip("sessions are paused on Linux only")
	}
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	return testhome.New(t, base)
}

func connect(t *testing.T, config fleet.Config) *fleet.Client {
	t.Helper()
	client, err := fleet.Connect(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func value(t *testing.T, s *fleet.Session, code, want string) {
	t.Helper()
	res, err := s.Run(t.Context(), unitask.Step{Code: code})
	if err != nil || res.Value != want {
		t.Fatalf("%s: %v %s", code, err, asJSON(res))
	}
}

// hostSessions starts a worker that hosts sessions in its own home, until end is called.
func hostSessions(t *testing.T, s *secured, times fleet.Times) (w *fleet.Worker, home string, end func()) {
	t.Helper()
	home = sessionHome(t)
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	config := s.worker(4)
	config.Times, config.SessionKey = times, sessionKey
	if w, err = fleet.NewWorker(t.Context(), config, fleet.OnHost(rt, nil)); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() { defer close(over); _ = w.Run(context.Background()) }()
	end = func() { w.Drain(); <-over }
	t.Cleanup(func() { end(); w.Close() })
	return w, home, end
}

// A session over two workers, with two tenants in the fleet. Its worker stops, and it continues at the other one with
// its variables and files. The other tenant reaches nothing of it.
func TestFleetSession(t *testing.T) {
	s := startSecured(t)
	times := fleet.Times{Lease: 6 * time.Second}
	first, home, end := hostSessions(t, s, times)
	config := func(tenant, user string) fleet.Config {
		c := s.config(tenant, user)
		c.Times = times
		return c
	}
	alice, bob := connect(t, config("alice", "ALICE")), connect(t, config("bob", "BOB"))
	narrow, err := policy.ParseCeiling("submitter.toml", []byte("allowNet = []\n"))
	if err != nil {
		t.Fatal(err)
	}
	hers, err := alice.NewSession(t.Context(), unitask.Caller{Name: "ada", Ceiling: narrow},
		unitask.SessionRequest{Request: unitask.Request{Language: "python", AllowNet: []string{"a.example"}}})
	if err != nil {
		t.Fatal(err)
	}
	if d := asJSON(hers.View.Denials); !strings.Contains(d, "submitter.toml") {
		t.Errorf("the submitter's ceiling does not hold: %s", d)
	}
	var live bytes.Buffer
	res, err := hers.Run(t.Context(), unitask.Step{Code: "x = 40\nprint('hello')", Stdout: &live})
	if err != nil || live.String() != "hello\n" || string(res.Stdout) != "hello\n" {
		t.Fatalf("%v %q %s", err, live.String(), asJSON(res))
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 100_000) // more than fits into a message
	if err := hers.WriteFile(t.Context(), "large", large, 0o600); err != nil {
		t.Fatal(err)
	}
	if res, err := hers.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c",
		"wc -c < large; exit 3"}}); err != nil || strings.TrimSpace(string(res.Stdout)) != "1600000" || res.ExitCode != 3 {
		t.Errorf("%v %s", err, asJSON(res))
	}
	if _, err := hers.ReadFile(t.Context(), "no such"); err == nil || !strings.Contains(err.Error(), "no such") {
		t.Errorf("%v", err)
	}

	otherTenant(t, s, bob, first.Info().ID, hers.ID)

	// The session's worker stops, and pauses the session first.
	end()
	if list, err := alice.SessionViews(t.Context()); err != nil || len(list) != 1 || list[0].State != sessiond.Paused ||
		list[0].ID != hers.ID {
		t.Fatalf("%v %v", list, err)
	}
	if _, err := os.Lstat(filepath.Join(home, "sessions", hers.ID)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is on the old worker's disk: %v", err)
	}
	second, _, _ := hostSessions(t, s, times)
	begin := time.Now()
	value(t, hers, "x + 2", "42")
	t.Logf("going on at the other worker took %s", time.Since(begin).Round(time.Millisecond))
	if back, err := hers.ReadFile(t.Context(), "large"); err != nil || !bytes.Equal(back, large) {
		t.Errorf("%d bytes %v", len(back), err)
	}
	if info := second.Info(); info.Running != 1 || info.UsedMB != 512 {
		t.Errorf("%+v", info)
	}
	if err := hers.Close(t.Context()); err != nil {
		t.Error(err)
	}
	var gone *unitask.SessionError
	if _, err := hers.Run(t.Context(), unitask.Step{Code: "x"}); !errors.As(err, &gone) {
		t.Errorf("after its end: %v", err)
	}
	waitFor(t, func() bool { return second.Info().UsedMB == 0 && second.Info().Running == 0 })
}

// The worker of a session is killed. Calls report the loss, and the pause from which the session can continue.
func TestSessionLost(t *testing.T) {
	ns := startNATS(t, nil)
	_, kill := startProcess(t, ns.ClientURL(), "", "FLEET_TEST_HOME="+sessionHome(t))
	client := connect(t, fleet.Config{URL: ns.ClientURL(), Times: quick})
	s, err := client.NewSession(t.Context(), unitask.Caller{},
		unitask.SessionRequest{Request: unitask.Request{Language: "python"}})
	if err != nil {
		t.Fatal(err)
	}
	value(t, s, "x = 1; x", "1")
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	value(t, s, "x += 1; x", "2") // with which it continues
	running := make(chan error, 1)
	go func() {
		_, err := s.Run(context.Background(), unitask.Step{Code: "import time; time.sleep(50)"})
		running <- err
	}()
	time.Sleep(time.Second)
	kill()
	var lost *fleet.SessionLostError
	if err := <-running; !errors.As(err, &lost) || lost.PausedAt.IsZero() {
		t.Fatalf("the call under way: %v", err)
	}
	if _, err := s.Run(t.Context(), unitask.Step{Code: "x"}); !errors.As(err, &lost) || lost.ID != s.ID {
		t.Fatalf("a later call: %v", err)
	}
	startProcess(t, ns.ClientURL(), "", "FLEET_TEST_HOME="+sessionHome(t))
	if err := s.Resume(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	value(t, s, "x", "1") // as at the pause
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// otherTenant checks that another tenant, with all rights in its account, does not reach a session.
func otherTenant(t *testing.T, s *secured, bob *fleet.Client, worker, session string) {
	t.Helper()
	var gone *unitask.SessionError
	if _, err := bob.Session(session).Run(t.Context(), unitask.Step{Code: "x"}); !errors.As(err, &gone) {
		t.Errorf("another tenant calls it: %v", err)
	}
	if list, err := bob.SessionViews(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("another tenant finds it: %v %v", list, err)
	}
	auth, err := nats.NkeyOptionFromSeed(s.seeds["BOB-WORKER"])
	if err != nil {
		t.Fatal(err)
	}
	nc, _ := dial(t, "tls://"+s.Addr().String(), auth, nats.RootCAs(s.ca))
	end := []byte(`{"op":"end","session":"` + session + `"}`)
	for _, to := range []string{"session.alice." + session, "session.bob." + session, "begin.alice." + worker} {
		subject := "unitask." + to
		if msg, err := nc.Request(subject, end, time.Second); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("%s answers: %v %v", subject, msg, err)
		}
	}
	own, err := nats.NkeyOptionFromSeed(s.seeds["ALICE-WORKER"])
	if err != nil {
		t.Fatal(err)
	}
	her, _ := dial(t, "tls://"+s.Addr().String(), own, nats.RootCAs(s.ca))
	written, err := her.SubscribeSync("$KV.unitask-sessions-alice.forged")
	if err == nil {
		err = her.PublishRequest("unitask.session.alice."+session, written.Subject, []byte(`{"op":"resume"}`))
	}
	if err != nil {
		t.Fatal(err)
	}
	if msg, err := written.NextMsg(time.Second); err == nil {
		t.Errorf("a worker answers to a bucket of its own: %s", msg.Data)
	}
	callTwice(t, her, session)
	if err := bob.Session(session).Close(t.Context()); !errors.As(err, &gone) {
		t.Errorf("another tenant ends it: %v", err)
	}
}

// callTwice makes two calls for alice's session with one inbox: the second call is refused.
func callTwice(t *testing.T, nc *nats.Conn, id string) {
	t.Helper()
	both, err := nc.SubscribeSync("_INBOX_alice.twice")
	if err != nil {
		t.Fatal(err)
	}
	sleep := []byte(`{"text":{"op":"exec","command":{"args":["sleep","3"]}}}`)
	for range 2 {
		if err := nc.PublishRequest("unitask.session.alice."+id, both.Subject, sleep); err != nil {
			t.Fatal(err)
		}
	}
	said := ""
	for range 3 { // the first is accepted, then the second's answer
		if m, err := both.NextMsg(10 * time.Second); err == nil {
			said += string(m.Data)
		}
	}
	refused := fmt.Sprint(strings.Contains(said, "another call with this inbox is under way"))
	attack.Check(t, "two calls of a session that want their answers in one inbox", "true", refused)
}
