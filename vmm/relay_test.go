package vmm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/socketpair"
)

// relayTo serves a relay over a fake QEMU and returns a client's connection to it.
func relayTo(t *testing.T, m *Monitor, grant func(Access, json.RawMessage) error) *net.UnixConn {
	t.Helper()
	a, b, err := socketpair.New("relay")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	ours, err := net.FileConn(a)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := net.FileConn(b)
	if err != nil {
		t.Fatal(err)
	}
	r := Relay{Monitor: func() *Monitor { return m }, Grant: grant}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // until the cleanup cancels it
		defer close(done)
		_ = r.Serve(ctx, theirs.(*net.UnixConn))
	}()
	t.Cleanup(func() {
		cancel()
		ours.Close()
		<-done
	})
	return ours.(*net.UnixConn)
}

// What a console may do with each access, and the results.
func TestAttackRelay(t *testing.T) {
	secret := errors.New("the machine holds secrets")
	for _, c := range []struct{ name, access, command, want string }{
		{"query", "", `{"execute":"query-status"}`, "passed"},
		{"info", "", `{"execute":"human-monitor-command","arguments":{"command-line":"info registers"}}`, "passed"},
		{"stop", "", `{"execute":"stop"}`, "refused"},
		{"quit", "", `{"execute":"quit"}`, "refused"},
		{"device_add", "", `{"execute":"device_add","arguments":{"driver":"x"}}`, "refused"},
		{"migrate", "", `{"execute":"migrate","arguments":{"uri":"exec:id"}}`, "refused"},
		{"hmp that writes", "", `{"execute":"human-monitor-command","arguments":{"command-line":" savevm x"}}`, "refused"},
		{"hmp that reads memory", "", `{"execute":"human-monitor-command","arguments":{"command-line":"x/4xb 0"}}`,
			"refused"},
		{"hmp with no command line", "", `{"execute":"human-monitor-command","arguments":[]}`, "refused"},
		{"upper case", "", `{"execute":"STOP"}`, "refused"},
		{"dump", "", `{"execute":"dump-guest-memory","arguments":{"paging":false,"protocol":"fd:x"}}`, "refused"},
		{"getfd without a descriptor", "memory", `{"execute":"getfd","arguments":{"fdname":"x"}}`, "refused"},
		{"memory may be read", "memory", `{"execute":"human-monitor-command","arguments":{"command-line":"xp /4xb 0"}}`,
			"passed"},
		{"memory does not write", "memory", `{"execute":"cont"}`, "refused"},
		{"memsave writes a file", "memory", `{"execute":"memsave","arguments":{"val":0,"size":1,"filename":"/x"}}`,
			"refused"},
		{"write", "write", `{"execute":"cont"}`, "passed"},
		{"access that is none", "everything", `{"execute":"cont"}`, "refused"},
		{"access of a machine with secrets", "memory, with a secret inside",
			`{"execute":"human-monitor-command","arguments":{"command-line":"x /1xb 0"}}`, "refused"},
		{"no JSON", "", `execute stop`, "refused"},
		{"an array", "", `[{"execute":"stop"}]`, "refused"},
		{"two commands in one", "", `{"execute":"query-status"}{"execute":"stop"}`, "refused"},
		{"a nested one", "", `{"execute":"qmp_capabilities","arguments":{"execute":"stop"}}`, "answered"},
	} {
		passed := false
		m := fakeQEMU(t, func(w io.Writer, name, id string) {
			passed = true
			fmt.Fprintf(w, `{"return": {}, "id": %q}`+"\n", id)
		})
		access, secrets := c.access, false
		access, _, secrets = strings.Cut(access, ",")
		conn := relayTo(t, m, func(Access, json.RawMessage) error {
			if secrets {
				return secret
			}
			return nil
		})
		lines := bufio.NewScanner(conn)
		if !lines.Scan() || !strings.Contains(lines.Text(), `"QMP"`) {
			t.Fatalf("%s: no greeting: %s", c.name, lines.Text())
		}
		ask := func(command string) string {
			if _, err := io.WriteString(conn, command+"\n"); err != nil {
				return err.Error()
			}
			lines.Scan()
			return lines.Text()
		}
		if access != "" {
			ask(fmt.Sprintf(`{"execute":"unitask-access","arguments":{"access":%q}}`, access))
		}
		reply := ask(c.command)
		got := "answered"
		switch {
		case passed:
			got = "passed"
		case strings.Contains(reply, `"error"`):
			got = "refused"
		}
		attack.Check(t, "console: "+c.name, c.want, got)
	}
}

// A client's id comes back, and events reach it.
func TestRelay(t *testing.T) {
	m := fakeQEMU(t, func(w io.Writer, name, id string) {
		fmt.Fprintf(w, `{"event": "STOP", "timestamp": {"seconds": 1, "microseconds": 2}}`+"\n"+
			`{"return": {"running": true}, "id": %q}`+"\n", id)
	})
	client := NewMonitor(relayTo(t, m, nil))
	defer client.Disconnect()
	if err := client.ConnectContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	events, err := client.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var status struct{ Running bool }
	if err := client.Do(t.Context(), "query-status", nil, &status); err != nil || !status.Running {
		t.Errorf("%v %v", status, err)
	}
	if e := <-events; e.Event != "STOP" {
		t.Errorf("%+v", e)
	}
	if client.Version() != "7.2.22" {
		t.Error(client.Version())
	}
	err = client.Do(t.Context(), "stop", nil, nil)
	if err == nil || !strings.Contains(err.Error(), "--write") {
		t.Errorf("a refusal that does not say the remedy: %v", err)
	}
}

// An endless command line ends the connection, not the machine's monitor.
func TestRelayEndlessLine(t *testing.T) {
	m := fakeQEMU(t, func(w io.Writer, name, id string) { fmt.Fprintf(w, `{"return": {}, "id": %q}`+"\n", id) })
	conn := relayTo(t, m, nil)
	junk := strings.Repeat("x", 64<<10)
	for range 2 * maxRelayLine / len(junk) {
		if _, err := io.WriteString(conn, junk); err != nil {
			break
		}
	}
	if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	if err := m.Do(t.Context(), "query-status", nil, nil); err != nil {
		t.Error(err)
	}
}

// A state saved at a breakpoint, or for Xen, becomes paused, and nothing else changes.
func TestPausedState(t *testing.T) {
	state := "before\x0bglobalstate\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x06debug\x00\x00\x00after"
	want := strings.Replace(state, "\x06debug\x00\x00", "\x07paused\x00", 1)
	if got := string(pausedState([]byte(state))); got != want {
		t.Errorf("%q", got)
	}
	if got := string(pausedState([]byte(strings.Replace(state, "\x06debug\x00\x00", "\x08running", 1)))); got != want {
		t.Errorf("%q", got)
	}
	for _, other := range []string{"", "globalstate", "globalstate\x00\x00", strings.Replace(state, "debug", "shutd", 1)} {
		if got := string(pausedState([]byte(other))); got != other {
			t.Errorf("%q: %q", other, got)
		}
	}
}
