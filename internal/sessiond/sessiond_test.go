package sessiond

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testlack"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/policy"
)

// serving runs a daemon, without a machine, until the test ends.
func serving(t *testing.T, idle time.Duration) (home string, over <-chan error) {
	t.Helper()
	home = filepath.Join(t.TempDir(), strings.Repeat("deep/", 20)) // longer than a socket's address
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	return home, serve(t, home, idle)
}

func serve(t *testing.T, home string, idle time.Duration) <-chan error {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended, told := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(ended)
		told <- Serve(ctx, home, rt, idle)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		rt.Close()
	})
	return told
}

// reach connects to a home's daemon that is about to start.
func reach(t *testing.T, home string) *wire {
	t.Helper()
	var w *wire
	testwait.Until(t, "the daemon answers", func() (ok bool) {
		var err error
		if w, err = connect(t.Context(), home); err != nil && !errors.Is(err, ErrNone) {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() { w.Close() })
	return w
}

func frame(kind byte, size uint32, text string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, size), text...)
}

// Invalid data ends its connection, and nothing else.
func TestHostileClients(t *testing.T) {
	home, _ := serving(t, time.Hour)
	for name, text := range map[string][]byte{
		"nothing":               nil,
		"text":                  []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"half a head":           {kindRequest, 0},
		"half a request":        frame(kindRequest, 100, "{"),
		"a request without end": frame(kindRequest, 1<<32-1, "{"),
		"another kind":          frame(kindAnswer, 2, "{}"),
		"typed before":          frame(kindInput, 1, "x"),
		"no JSON":               frame(kindRequest, 3, "xyz"),
		"JSON of another shape": frame(kindRequest, 2, "[]"),
		"an unknown op":         frame(kindRequest, 10, `{"op":"x"}`),
		"new of nothing":        frame(kindRequest, 12, `{"op":"new"}`),
		"run of nothing":        frame(kindRequest, 12, `{"op":"run"}`),
		"a piece that is too big": append(frame(kindRequest, 30, `{"op":"write","session":"none"}`[:30]),
			frame(kindInput, maxPiece+1, "")...),
	} {
		w := reach(t, home)
		if _, err := w.Write(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = w.Conn.(*net.UnixConn).CloseWrite()
		_ = w.SetReadDeadline(time.Now().Add(time.Minute))
		if rest, err := io.ReadAll(w); errors.Is(err, os.ErrDeadlineExceeded) || len(rest) > 1000 ||
			len(rest) > 0 && !strings.Contains(string(rest), `"error"`) {
			t.Errorf("%s: %q %v", name, rest, err)
		}
	}
	// Many silent clients do not exclude later ones forever: each has its own slot, and more clients than slots are
	// refused.
	var idle []*wire
	for range 40 {
		idle = append(idle, reach(t, home))
	}
	answer, err := Do(t.Context(), home, Request{Op: OpList}, Streams{}, nil)
	if err != nil || len(answer.Sessions) != 0 {
		t.Errorf("%+v %v", answer, err)
	}
	for _, w := range idle {
		w.Close()
	}
}

// Requests with unknown names, and for sessions that do not exist.
func TestNoSession(t *testing.T) {
	home, _ := serving(t, time.Hour)
	reach(t, home)
	for _, op := range []string{OpRun, OpRunBy, OpExec, OpRead, OpWrite, OpPack, OpUnpack, OpCopy, OpPut, OpGet, OpPause,
		OpResume, OpFork, OpFiles, OpWait, OpStop, OpEnd, "x"} {
		for _, name := range []string{"", "build", "../../etc", "20261122-000000000-aaaaaa", strings.Repeat("x", 1<<20),
			"a\x00b\x1b[2J"} {
			_, err := Do(t.Context(), home, Request{Op: op, Session: name, Run: name},
				Streams{Stdin: strings.NewReader("typed")}, nil)
			var told *Error
			if !errors.As(err, &told) || told.Code != CodeGone || len(told.Message) > 500 ||
				strings.Contains(told.Message, "\x1b") {
				t.Errorf("%s %.40q: %v", op, name, err)
			}
		}
	}
	for _, name := range []string{"Build", "1", "a b", "-a", "a/b", "..", "a\n", strings.Repeat("a", 33)} {
		_, err := Do(t.Context(), home, Request{Op: OpNew, New: &New{Name: name}}, Streams{}, nil)
		var field *policy.FieldError
		if !errors.As(err, &field) || field.Field != "name" {
			t.Errorf("%q: %v", name, err)
		}
	}
	// A ceiling that can't be read does not allow everything.
	_, err := Do(t.Context(), home, Request{Op: OpNew,
		New: &New{Name: "a", Ceiling: &policy.Origin{File: filepath.Join(home, "nothing")}}}, Streams{}, nil)
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v", err)
	}
	// After that, the name is free.
	_, err = Do(t.Context(), home, Request{Op: OpNew, New: &New{Name: "a", Request: unitask.Request{Image: "alpine"}}},
		Streams{}, nil)
	if err == nil || strings.Contains(err.Error(), "another session") {
		t.Errorf("%v", err)
	}
}

// One daemon holds a home's sessions. It ends by itself, also when nobody can reach it any more.
func TestOneHolder(t *testing.T) {
	home, over := serving(t, time.Hour)
	w := reach(t, home)
	if err := <-serve(t, home, time.Hour); !errors.Is(err, ErrRuns) {
		t.Errorf("a second one: %v", err)
	}
	w.Close()
	for name, mode := range map[string]fs.FileMode{"": fs.ModeDir | 0o700, socketName: fs.ModeSocket | 0o600,
		lockName: 0o600} {
		if st, err := os.Stat(filepath.Join(home, "sessions", name)); err != nil || st.Mode() != mode {
			t.Errorf("%s: %v %v", name, st.Mode(), err)
		}
	}
	select {
	case err := <-over:
		t.Fatalf("the first: %v", err)
	default:
	}

	home, over = serving(t, 50*time.Millisecond)
	if err := <-over; err != nil {
		t.Error(err)
	}
	if _, err := connect(t.Context(), home); !errors.Is(err, ErrNone) {
		t.Errorf("after its end: %v", err)
	}

	home, over = serving(t, 200*time.Millisecond)
	w = reach(t, home) // a client keeps it
	if err := os.RemoveAll(filepath.Join(home, "sessions")); err != nil {
		t.Fatal(err)
	}
	if err := <-over; err != nil {
		t.Errorf("its folder is gone: %v", err)
	}
	w.Close()
}

// A folder that others may enter is not used.
func TestFolderOfOthers(t *testing.T) {
	for _, mode := range []fs.FileMode{0o755, 0o711, 0o770} {
		home := testdir.Private(t)
		if err := os.Mkdir(filepath.Join(home, "sessions"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(home, "sessions"), mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Do(t.Context(), home, Request{Op: OpList}, Streams{}, nil); err == nil ||
			!strings.Contains(err.Error(), "not this user's alone") {
			t.Errorf("%s: %v", mode, err)
		}
	}
	home, other := testdir.Private(t), t.TempDir()
	if err := os.Symlink(other, filepath.Join(home, "sessions")); err != nil {
		t.Fatal(err)
	}
	if _, err := Do(t.Context(), home, Request{Op: OpList}, Streams{}, nil); err == nil {
		t.Error("a link to another folder was used")
	}
}

// After a killed daemon, its sessions on the list are lost, and no other session is affected.
func TestLost(t *testing.T) {
	home := testdir.Private(t)
	dir, err := folder(home)
	if err != nil {
		t.Fatal(err)
	}
	soon := time.Now().Add(time.Hour)
	for _, name := range []string{"kept", "sessions/mine", "sessions/old"} {
		if err := os.MkdirAll(filepath.Join(home, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal([]View{
		{ID: "mine", Name: "build", State: Running, ExpiresAt: soon}, {ID: "../kept", ExpiresAt: soon},
		{ID: "..", ExpiresAt: soon}, {ID: "", ExpiresAt: soon}, {ID: ".", ExpiresAt: soon},
		{ID: "old", ExpiresAt: time.Now().Add(-time.Second)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, listName), text, 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(how string) {
		t.Helper()
		answer, err := Do(t.Context(), home, Request{Op: OpList}, Streams{}, nil)
		if err != nil || len(answer.Sessions) != 1 || answer.Sessions[0].Name != "build" || answer.Sessions[0].State != Lost {
			t.Errorf("%s: %+v %v", how, answer, err)
		}
		for _, name := range []string{"mine", "build"} {
			if _, err := Do(t.Context(), home, Request{Op: OpExec, Session: name}, Streams{}, nil); err == nil ||
				!strings.Contains(err.Error(), "session mine is lost") {
				t.Errorf("%s: %v", how, err)
			}
		}
	}
	check("without a daemon")
	serve(t, home, time.Hour)
	reach(t, home)
	check("with one")
	for _, name := range []string{"mine", "old"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the memory of %s is still there: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(home, "kept")); err != nil {
		t.Error(err)
	}
	if _, err := Do(t.Context(), home, Request{Op: OpEnd, Session: "build"}, Streams{}, nil); err != nil {
		t.Error(err)
	}
	if _, err := Do(t.Context(), home, Request{Op: OpEnd, Session: "build"}, Streams{}, nil); err == nil {
		t.Error("it was forgotten twice")
	}
	for _, hostile := range []string{"", "null", "{", `[{"session":5}]`, strings.Repeat("[", 1<<20),
		fmt.Sprintf(`[{"session":"a","expiresAt":%q}`, strings.Repeat("9", 1<<20))} {
		if err := os.WriteFile(filepath.Join(dir, listName), []byte(hostile), 0o600); err != nil {
			t.Fatal(err)
		}
		if list := readList(dir); len(list) != 0 {
			t.Errorf("%.40q: %v", hostile, list)
		}
	}
}

// A session that can't be read is on no list, and its id can end it all the same. Others' sessions are unaffected.
func TestEndUnlisted(t *testing.T) {
	home := testdir.Private(t)
	dir, err := folder(home)
	if err != nil {
		t.Fatal(err)
	}
	const unread, foreign, odd = "20260101-000000000-abcdef", "20260101-000000000-fedcba",
		".20260101-000000000-cccccc.before"
	check := func(how string) {
		t.Helper()
		kept := fmt.Sprintf(
			`{"version":1,"note":{"id":%q,"owner":"token:x","expires":"2999-01-01T00:00:00Z","policy":{"effective":{}}}}`,
			foreign)
		for name, text := range map[string]string{unread: "{", foreign: kept, odd: "{"} {
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, name), 0o700),
				os.WriteFile(filepath.Join(dir, name, "pause.json"), []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		for name, ends := range map[string]bool{unread: true, foreign: false, "20260101-000000000-cccccc": true, odd: false} {
			_, err := Do(t.Context(), home, Request{Op: OpEnd, Session: name}, Streams{}, nil)
			var told *Error
			if (err == nil) != ends || !ends && (!errors.As(err, &told) || told.Code != CodeGone) {
				t.Errorf("%s, %s: %v", how, name, err)
			}
		}
		left, err := filepath.Glob(filepath.Join(dir, "*2026*"))
		if hidden, _ := filepath.Glob(filepath.Join(dir, ".2026*")); err != nil || len(left) != 1 || len(hidden) != 0 ||
			filepath.Base(left[0]) != foreign {
			t.Errorf("%s: left %q %q %v", how, left, hidden, err)
		}
	}
	check("without a daemon")
	serve(t, home, time.Hour)
	reach(t, home)
	check("with one")
}

// The reader does not wait for a fast typist: it must notice when the client disconnects.
func TestTyping(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	c := &client{wire: &wire{Conn: ours}, input: make(chan []byte, 1), resized: make(chan unitask.TerminalSize, 1),
		ctx: ctx, cancel: cancel}
	over := make(chan struct{})
	go func() {
		defer close(over)
		c.read()
	}()
	w := &wire{Conn: theirs}
	for range 2 {
		if err := w.send(kindInput, []byte("typed")); err != nil {
			t.Fatal(err)
		}
	}
	<-over
	if err := context.Cause(ctx); !errors.Is(err, errFrame) {
		t.Error(err)
	}

	// The input of a waiting client is read to its end.
	ours, theirs = net.Pipe()
	ctx, cancel = context.WithCancelCause(t.Context())
	c = &client{wire: &wire{Conn: ours}, input: make(chan []byte, 1), resized: make(chan unitask.TerminalSize, 1),
		ctx: ctx, cancel: cancel}
	go c.read()
	w = &wire{Conn: theirs}
	taken, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		for {
			if _, _, err := w.receive(string(rune(kindTaken))); err != nil {
				return
			}
			taken <- struct{}{}
		}
	}()
	text := strings.Repeat("0123456789", 20_000)
	go w.pass(strings.NewReader(text), taken, done, true)
	got, err := io.ReadAll(c)
	if err != nil || string(got) != text {
		t.Errorf("%d bytes of %d, %v", len(got), len(text), err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("behind the end: %d %v", n, err)
	}
	theirs.Close()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, errLeft) {
		t.Error(err)
	}
}

// Data after the end of a client's input does no harm: nobody waits for it.
func TestInputBehindItsEnd(t *testing.T) {
	c := &client{input: make(chan []byte, 1), ctx: t.Context()}
	go func() {
		c.input <- nil
		c.input <- []byte("more")
	}()
	for range 3 {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Fatalf("%d %v", n, err)
		}
	}
}

// A daemon that can't accept a client does not end, and neither do its sessions.
func TestNoDescriptors(t *testing.T) {
	dir := t.TempDir()
	l, err := listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	h := &Daemon{since: time.Now()}
	over := make(chan struct{})
	go func() {
		defer close(over)
		h.accept(ctx, testlack.Descriptors(2, l.AcceptUnix))
	}()
	conn, err := net.Dial("unix", filepath.Join(dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, _, err := (&wire{Conn: conn}).receive(string(rune(kindGreeting))); err != nil {
		t.Error(err)
	}
	conn.Close()
	cancel()
	l.Close()
	<-over
	h.clients.Wait()
}

// An unreadable file is not sent: the daemon does not get an end, and the caller gets the reason. A command's input
// ends.
func TestInputThatFails(t *testing.T) {
	broken := errors.New("input/output error")
	for op, want := range map[string]string{OpWrite: "half", OpUnpack: "half", OpExec: "half, end"} {
		ours, theirs := net.Pipe()
		got := make(chan string, 1)
		go func() {
			defer theirs.Close()
			w, said := &wire{Conn: theirs}, []string{}
			defer func() { got <- strings.Join(said, ", ") }()
			if _, _, err := w.receive(string(rune(kindRequest))); err != nil {
				return
			}
			for {
				_, text, err := w.receive(string(rune(kindInput)))
				if err != nil {
					return
				}
				if len(text) == 0 {
					said = append(said, "end")
					_ = w.sendJSON(kindAnswer, Answer{})
					return
				}
				said = append(said, string(text))
				_ = w.send(kindTaken, nil)
			}
		}()
		w := &wire{Conn: ours}
		_, err := w.ask(t.Context(), Request{Op: op}, Streams{Stdin: io.MultiReader(strings.NewReader("half"),
			iotest.ErrReader(broken))})
		if said := <-got; said != want || errors.Is(err, broken) != (op != OpExec) || op == OpExec && err != nil {
			t.Errorf("%s: the daemon got %q, expected %q; %v", op, said, want, err)
		}
	}
}
