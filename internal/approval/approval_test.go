package approval

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// An answer is one of the listed answers. The first in time counts, while the run lasts. Nothing else is an answer.
func TestAttackAnswers(t *testing.T) {
	never := func(ctx context.Context, _ run.Question) run.Verdict { <-ctx.Done(); return run.AllowRun }
	says := func(v run.Verdict) func(context.Context, run.Question) run.Verdict {
		return func(context.Context, run.Question) run.Verdict { return v }
	}
	const host = "a.example:443"
	for _, row := range []struct {
		name   string
		caller func(context.Context, run.Question) run.Verdict
		heard  []asked // on the socket, once it is asked
		ends   bool    // the run, once it is asked
		want   string
	}{
		{"nobody is there", nil, nil, false, "nobody"},
		{"who is asked answers when it is too late", never, nil, false, "nobody"},
		{"who is asked has nobody", says(""), nil, false, "nobody"},
		{"who is asked says what is no answer", says("allow everything"), nil, false, "nobody"},
		{"the run ends", never, nil, true, "nobody"},
		{"the run ends, and nobody is there", nil, nil, true, "nobody"},
		{"who is asked allows it", says(run.AllowRun), nil, false, "allow by " + byCaller},
		{"who is asked allows it for good", says(run.AllowAlways), nil, false, "always by " + byCaller},
		{"an MCP client allows it for good", says(run.AllowAlways), nil, false, "nobody"},
		{"a caller of a shared server allows it for good", says(run.AllowAlways), nil, false, "nobody"},
		{"another process allows it for good", nil, []asked{{Host: host, Verdict: run.AllowAlways}}, false, "nobody"},
		{"another process denies it", never, []asked{{Host: host, Verdict: run.Deny}}, false, "deny by " + byCommand},
		{"another process, where who is asked has nobody", says(""), []asked{{Host: host, Verdict: run.AllowOnce}}, false,
			"once by " + byCommand},
		{"answers about another host, and none", nil, []asked{
			{Host: "b.example:443", Verdict: run.AllowRun}, {Host: "", Verdict: run.AllowRun}, {Host: host, Verdict: ""},
			{Host: host, Verdict: "yes"}, {Host: "A.EXAMPLE:443", Verdict: run.AllowRun},
			{Host: host + "\x00", Verdict: run.AllowRun}}, false, "nobody"},
		{"an answer, and then another", nil, []asked{{Host: host, Verdict: run.Deny}, {Host: host, Verdict: run.AllowRun}},
			false, "deny by " + byCommand},
	} {
		via := run.ViaCLI
		switch {
		case strings.HasPrefix(row.name, "an MCP client"):
			via = run.ViaMCP
		case strings.HasPrefix(row.name, "a caller of"):
			via = run.ViaHTTP
		}
		asking := make(chan struct{}) // is closed when the question is open
		a := &Asker{Config: Config{Approver: func() run.Approver { close(asking); return row.caller },
			Record: &record.Run{Record: record.Record{Via: via}}, Wait: 50 * time.Millisecond}}
		if row.heard != nil || row.ends {
			a.Wait = time.Minute
		}
		if strings.HasPrefix(row.name, "answers about another") || row.heard != nil && row.want == "nobody" {
			a.Wait = time.Second
		}
		ctx, end := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			<-asking
			if row.ends {
				end()
			}
			for _, asked := range row.heard {
				a.handle(asked)
			}
		})
		said, by := a.put(ctx, run.Question{Host: host, Until: time.Now().Add(a.Wait)})
		end()
		group.Wait()
		got := "nobody"
		if said != "" || by != "" {
			got = fmt.Sprintf("%s by %s", said, by)
		}
		attack.Check(t, "an answer: "+row.name, row.want, got)
		attack.Check(t, "an answer to what is asked no longer: "+row.name, "it asks nothing now",
			a.handle(asked{Host: host, Verdict: run.AllowRun}).Error)
	}
	a := &Asker{open: &openQuestion{Question: run.Question{Host: host}, answered: make(chan struct{})}}
	attack.Check(t, "an answer, not taken yet", "", a.handle(asked{Host: host, Verdict: run.Deny}).Error)
	attack.Check(t, "a second answer", "it was answered already", a.handle(asked{Host: host, Verdict: run.AllowRun}).Error)
	attack.Check(t, "what is taken of two answers", "deny", string(a.open.said))
}

// asking makes a run's folder in a separate home, with an open question.
func asking(t *testing.T, id string) (c *Client, dir string, a *Asker) {
	t.Helper()
	c = &Client{Records: record.Open(filepath.Join(testdir.Private(t), "runs"))}
	dir = filepath.Join(c.Records.Dir(), id)
	text := fmt.Sprintf(`{"schemaVersion": 1, "id": %q, "status": "running"}`, id)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "run.json"), []byte(text),
		0o600)); err != nil {
		t.Fatal(err)
	}
	a = &Asker{talk: time.Hour, open: &openQuestion{Question: run.Question{RunID: id, Host: "a.example:443"},
		answered: make(chan struct{})}}
	l, err := localsocket.Listen(dir, controlSocket)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() { a.listen(l, &group) })
	t.Cleanup(func() { l.Close(); group.Wait() })
	return c, dir, a
}

// Invalid data on the socket gets no answer, and delays nobody. Dead runs leave sockets without a question.
func TestAttackApprovalSocket(t *testing.T) {
	const id = "20261123T000000-aaaaaaaa"
	c, dir, a := asking(t, id)
	for name, junk := range map[string]string{
		"nothing": "", "no JSON": "hello\n", "an endless value": `{"host": "` + strings.Repeat("a", talkBytes) + `"}`,
		"deep JSON": strings.Repeat("[", talkBytes-1) + "\n",
		"a list":    "[]", "another type": `{"host": 1}`,
	} {
		conn, err := net.Dial("unix", filepath.Join(dir, controlSocket))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = io.WriteString(conn, junk)
			_ = conn.(*net.UnixConn).CloseWrite()
		}()
		got, _ := io.ReadAll(conn) // a reset, if we have not read all of it
		conn.Close()
		attack.Check(t, "to the socket of a question: "+name, "", string(got))
	}
	crowd(t, filepath.Join(dir, controlSocket))
	for other, leave := range map[string]func(string) error{
		"20261123T000000-bbbbbbbb": func(path string) error { // nobody listens
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		},
		"20261123T000000-cccccccc": func(path string) error {
			return os.WriteFile(path, []byte(`{"open": {"host": "evil.example:1"}}`), 0o600)
		},
		"20261123T000000-dddddddd": func(path string) error { return os.Mkdir(path, 0o700) },
		"20261123T000000-eeeeeeee": func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		at := filepath.Join(c.Records.Dir(), other)
		text := fmt.Sprintf(`{"schemaVersion": 1, "id": %q, "status": "running"}`, other)
		if err := errors.Join(os.MkdirAll(at, 0o700), os.WriteFile(filepath.Join(at, "run.json"), []byte(text), 0o600),
			leave(filepath.Join(at, controlSocket))); err != nil {
			t.Fatal(err)
		}
		got := "allowed"
		if err := c.Approve(t.Context(), other, "a.example:443", "", run.AllowRun); err != nil &&
			strings.Contains(err.Error(), "asks nothing: it has ended") {
			got = "refused"
		}
		attack.Check(t, "an answer to a run that is gone: "+other, "refused", got)
	}
	for { // until the connections above are closed
		list, err := c.Questions(t.Context())
		if err != nil || len(list) > 1 {
			t.Fatal(list, err)
		}
		if len(list) == 1 && list[0].RunID == id {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for _, name := range []string{"../" + id, ".", "", "x/../" + id} {
		if err := c.Approve(t.Context(), name, "a.example:443", "", run.AllowRun); err == nil {
			t.Errorf("%q names a run", name)
		}
	}
	if err := c.Approve(t.Context(), id, "a.example:443", "", run.AllowRun); err != nil {
		t.Error(err)
	}
	attack.Check(t, "what the run is told after all that", "allow", string(a.open.said))
}

// crowd connects more processes to a run's socket than it accepts at once. The accepted ones get data only after a
// request.
func crowd(t *testing.T, socket string) {
	t.Helper()
	var held []net.Conn
	for range 4 * maxApprovers {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	closed, answers := make(chan bool, len(held)), make(chan bool, len(held))
	for _, conn := range held {
		go func() {
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				answers <- true
			}
			closed <- true
		}()
	}
	for range len(held) - maxApprovers { // exceed the room
		<-closed
	}
	attack.Check(t, "processes that are told before they have asked", "0", fmt.Sprint(len(answers)))
	for _, conn := range held {
		_, _ = io.WriteString(conn, "{}\n")
	}
	for range maxApprovers {
		<-closed
	}
	if n := len(answers); n == 0 || n > maxApprovers {
		t.Errorf("%d are told at once", n)
	}
	for _, conn := range held {
		conn.Close()
	}
}

// Another user's process gets no answer from the socket and can give none, although the folders are open to it.
func TestAttackApprovalStranger(t *testing.T) {
	perl, err := exec.LookPath("perl")
	if err != nil || os.Getuid() != 0 {
		t.Skip("wants root, to become somebody else, and perl")
	}
	c, dir, a := asking(t, "20261123T000000-aaaaaaaa")
	st, err := os.Stat(filepath.Join(dir, controlSocket))
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "the mode of a question's socket", "-rw-------", strings.Replace(st.Mode().String(), "S", "-", 1))
	if err := os.Chmod(filepath.Join(dir, controlSocket), 0o666); err != nil {
		t.Fatal(err)
	}
	folder, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	asked, err := json.Marshal(asked{Host: "a.example:443", Verdict: run.AllowRun})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(perl, "-e",
		`use IO::Socket::UNIX; $SIG{PIPE} = "IGNORE"; `+
			`my $s = IO::Socket::UNIX->new(Peer => "control.sock") or die "connect: $!"; print $s $ARGV[0], "\n"; $s->flush; `+
			`print while <$s>`, string(asked))
	cmd.Dir = fmt.Sprintf("/proc/self/fd/%d", folder.Fd())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	attack.Check(t, "another user's process is told", "", out.String())
	a.mu.Lock()
	attack.Check(t, "the answer of another user's process", "", string(a.open.said))
	a.mu.Unlock()
	if err := c.Approve(t.Context(), "20261123T000000-aaaaaaaa", "a.example:443", "", run.Deny); err != nil {
		t.Error(err)
	}
}

// A permanent permission applies to the same user's runs under the same ceiling, and to no others. If it can't be
// written, it applies to the run only, with a message.
func TestAttackAlways(t *testing.T) {
	home := testdir.Private(t)
	of := func(ceiling, owner string, via record.Via) *Asker {
		rec := &record.Run{Record: record.Record{ID: "20261123T000000-aaaaaaaa", Owner: owner, Via: via}}
		return &Asker{Config: Config{Home: home, Record: rec, Result: &run.Result{Policy: run.Policy{Ceiling: ceiling}},
			Tell: func(run.Event) {}, Note: func(audit.Kind, any) {}}}
	}
	about := netstack.Question{Name: "a.example", Port: 443, Rule: "ask *.example", Method: "GET", Path: "/a"}
	done := run.Approval{Host: about.Target(), Verdict: run.AllowAlways, By: byCaller}
	first := of("/p/.unitask.toml", "local:me", run.ViaCLI)
	if _, known := first.before(about); known {
		t.Error("it is known before it was said")
	}
	if first.remember(&done); done.Verdict != run.AllowAlways {
		t.Fatal(done)
	}
	for _, row := range []struct {
		name, ceiling, owner string
		via                  record.Via
		port                 uint16
		want                 bool
	}{
		{"the next run", "/p/.unitask.toml", "local:me", run.ViaCLI, 443, true},
		{"the user's model, in the same folder", "/p/.unitask.toml", "local:me", run.ViaMCP, 443, true},
		{"a run elsewhere", "/q/.unitask.toml", "local:me", run.ViaCLI, 443, false},
		{"a run without a ceiling", "", "local:me", run.ViaCLI, 443, false},
		{"another user's", "/p/.unitask.toml", "local:you", run.ViaCLI, 443, false},
		{"a caller of a shared server, by that name", "/p/.unitask.toml", "local:me", run.ViaHTTP, 443, false},
		{"another port", "/p/.unitask.toml", "local:me", run.ViaCLI, 80, false},
	} {
		q := about
		q.Port = row.port
		said, known := of(row.ceiling, row.owner, row.via).before(q)
		attack.Check(t, "what was allowed for good, of "+row.name, fmt.Sprint(row.want, row.want),
			fmt.Sprint(known, said.Allow))
	}
	file := filepath.Join(home, policy.ApprovedFile)
	if err := os.WriteFile(file, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, known := first.before(about); known {
		t.Error("a list that can't be read allows something")
	}
	first.remember(&done)
	attack.Check(t, "always, where it can't be written", "allow true",
		fmt.Sprint(done.Verdict, " ", strings.Contains(done.Why, policy.ApprovedFile)))
}

// A page's button answers the question that the page shows: no later one about the same host.
func TestAttackApproveShown(t *testing.T) {
	c, _, a := asking(t, "20261129T000000-aaaaaaaaaaaa")
	a.open.Request, a.open.Until = "POST /b", time.Now().Add(time.Hour)
	const other = "run 20261129T000000-aaaaaaaaaaaa: it asks another question now"
	for _, row := range []struct {
		name, request string
		moved         time.Duration
		verdict       run.Verdict
		want          string
	}{
		{"the same request, asked again", "POST /b", -time.Second, run.AllowOnce, other},
		{"another request to the host, for the run", "GET /a", 0, run.AllowRun, other},
		{"an old refusal", "POST /b", -time.Second, run.Deny, other},
		{"the question itself", "POST /b", 0, run.AllowOnce, "taken"},
	} {
		got := "taken"
		if err := c.ApproveShown(t.Context(), run.Question{RunID: a.open.RunID, Host: a.open.Host, Request: row.request,
			Until: a.open.Until.Add(row.moved).Round(0)}, row.verdict); err != nil {
			got = err.Error()
		}
		attack.Check(t, "an answer to what a page showed: "+row.name, row.want, got)
	}
}
