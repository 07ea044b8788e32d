package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/socketpair"
)

// The guest's own C programs on this host, compiled with the address and the
// undefined-behaviour sanitizer (testdata/hosted.c), with Conn as their host.

// gateway is the host's address for a hosted agent. The relay listens on 127.0.0.1
// and carries to the gateway, so it is another one.
const gateway = "127.0.0.2"

// hostedDir is the program's folder, once it is made.
var hostedDir string

func TestMain(m *testing.M) {
	code := m.Run()
	if hostedDir != "" {
		os.RemoveAll(hostedDir)
	}
	os.Exit(code)
}

var hostedProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "unitask-hosted-")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "hosted")
	hostedDir = dir
	var wrap []string
	for _, call := range []string{"socket", "bind", "listen", "sendto", "recvfrom", "accept4", "opendir", "open", "clock_settime"} {
		wrap = append(wrap, "-Wl,--wrap="+call)
	}
	args := append(wrap, "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-pthread", "-o", program,
		"testdata/hosted.c", "agent/agent.c", "agent/frames.c", "agent/files.c", "agent/artifacts.c", "agent/host.c", "agent/relay.c", "nanos/nanos.c", "nanos/session.c", "init/session.c", "init/sessionfiles.c")
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return program, nil
})

// hosted is a guest on this host: a process with the agent, and the test in the place
// of Node and of the kernel. It is the Network that leads to it.
type hosted struct {
	t          *testing.T
	cmd        *exec.Cmd
	udp        *net.UDPConn
	agent      net.Addr // its UDP socket
	tcp        net.Addr
	gone       chan struct{}
	said, errs bytes.Buffer

	out    string   // folder that is /out
	stdin  *os.File // the program's ends
	stdout *os.File
	stderr *os.File
	ctl    *os.File
	event  *os.File
}

func needHosted(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("needs gcc with its sanitizers: apt-get install gcc libc6-dev")
	}
	program, err := hostedProgram()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// host starts a hosted agent; mode is agent or nanos.
func host(t *testing.T, mode string, env ...string) *hosted {
	t.Helper()
	program := needHosted(t)
	h := &hosted{t: t, gone: make(chan struct{}), out: t.TempDir()}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var theirs []*os.File
	give := func(f *os.File, err error) { must(err); theirs = append(theirs, f) }
	inside, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(gateway)})
	must(err)
	h.agent = inside.LocalAddr()
	give(inside.File())
	inside.Close()
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.ParseIP(gateway)})
	must(err)
	h.tcp = listener.Addr()
	give(listener.File())
	listener.Close()
	h.udp, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(gateway)})
	must(err)
	pipe := func(read, write **os.File) { // of which one end is theirs
		r, w, err := os.Pipe()
		must(err)
		if read != nil {
			*read = r
			give(w, nil)
		} else {
			*write = w
			give(r, nil)
		}
	}
	if mode == "nanos" {
		pipe(nil, &h.event)
	} else {
		pipe(&h.stdin, nil)
		pipe(nil, &h.stdout)
		pipe(nil, &h.stderr)
		a, b, err := socketpair.New("ctl")
		must(err)
		h.ctl = a
		give(b, nil)
		pipe(nil, &h.event)
	}
	h.cmd = exec.Command(program, mode)
	h.cmd.ExtraFiles = theirs
	h.cmd.Env = append([]string{"GATEWAY=" + gateway, "OUT=" + h.out, "HOST_PORT=" + strconv.Itoa(h.udp.LocalAddr().(*net.UDPAddr).Port),
		"ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:handle_abort=0:exitcode=99"}, env...)
	h.cmd.Stdout, h.cmd.Stderr = &h.said, &h.errs
	must(h.cmd.Start())
	for _, f := range theirs {
		f.Close()
	}
	go func() { _ = h.cmd.Wait(); close(h.gone) }()
	t.Cleanup(h.close)
	return h
}

// close ends it. A sanitizer's report fails the test.
func (h *hosted) close() {
	h.udp.Close()
	for _, f := range []*os.File{h.stdin, h.stdout, h.stderr, h.ctl, h.event} {
		if f != nil {
			f.Close()
		}
	}
	select {
	case <-h.gone:
	case <-time.After(100 * time.Millisecond):
		_ = h.cmd.Process.Kill()
		<-h.gone
	}
	if h.cmd.ProcessState.ExitCode() == 99 || strings.Contains(h.errs.String(), "runtime error") || strings.Contains(h.errs.String(), "Sanitizer") {
		h.t.Errorf("%v\n%s", h.cmd.ProcessState, h.errs.String())
	}
}

func (h *hosted) SendDatagram(p []byte) { _, _ = h.udp.WriteTo(p, h.agent) }
func (h *hosted) Done() <-chan struct{} { return h.gone }

func (h *hosted) DialGuest(ctx context.Context, _ uint16) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(gateway)}}
	return d.DialContext(ctx, "tcp4", h.tcp.String())
}

func (h *hosted) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = h.udp.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() { // it has begun: the next one must not meet its deadline
			<-ended
			_ = h.udp.SetReadDeadline(time.Time{})
		}
	}()
	buf := make([]byte, 512)
	n, _, err := h.udp.ReadFrom(buf)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return buf[:n], err
}

// connect has Node say that it is up, and connects.
func (h *hosted) connect() *Conn {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), hostedPatience)
	defer cancel()
	h.say(contract.ControlReady)
	if err := Await(ctx, h); err != nil {
		h.t.Fatal(err)
	}
	c, err := Connect(ctx, h)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// hostedPatience bounds what must happen soon; sanitizers are slow and so may be CI.
const hostedPatience = 20 * time.Second

func (h *hosted) say(words ...byte) {
	h.t.Helper()
	if _, err := h.ctl.Write(words); err != nil {
		h.t.Error(err)
	}
}

// startFrame reads the start as Node does, and says that it has.
func (h *hosted) takeStart() string {
	h.t.Helper()
	kind, payload, err := hostFrame(fileConn{h.ctl})
	if err != nil || kind != contract.FrameStart {
		h.t.Errorf("the start: %q %v", kind, err)
	}
	return string(payload)
}

// fileConn lets hostFrame read from a file.
type fileConn struct{ *os.File }

func (fileConn) LocalAddr() net.Addr  { return nil }
func (fileConn) RemoteAddr() net.Addr { return nil }

// run is Start with the test as Node.
func (h *hosted) run(c *Conn) {
	h.t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); h.takeStart(); h.say(contract.ControlStarted) }()
	ctx, cancel := context.WithTimeout(h.t.Context(), hostedPatience)
	defer cancel()
	if err := c.Start(ctx, Start{Argv: []string{"/x"}, Dir: "/"}); err != nil {
		h.t.Fatal(err)
	}
	<-done
}

// A program may have ended before the agent hears that it has started.
func TestHostedQuickProgram(t *testing.T) {
	t.Parallel()
	h := host(t, "agent")
	c := h.connect()
	go func() { h.takeStart(); h.say(contract.ControlStarted, contract.ControlExit, 3) }()
	ctx, cancel := context.WithTimeout(t.Context(), hostedPatience)
	defer cancel()
	if err := c.Start(ctx, Start{Argv: []string{"/x"}, Dir: "/"}); err != nil {
		t.Fatal(err)
	}
	if end, err := c.Stream(ctx, strings.NewReader(""), io.Discard, io.Discard); err != nil || end != (End{Code: 3}) {
		t.Errorf("%+v %v", end, err)
	}
}

func TestHostedConversation(t *testing.T) {
	t.Parallel()
	h := host(t, "agent")
	c := h.connect()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(h.out, "left"), []byte("behind"), 0o600); err != nil {
		t.Fatal(err)
	}
	deep := h.out
	refused := strings.Repeat("d/", 64) + "d"
	for range 70 {
		deep = filepath.Join(deep, "d")
	}
	for name, err := range map[string]error{"deep": errors.Join(os.MkdirAll(deep, 0o755), os.Chmod(filepath.Join(h.out, refused), 0o755)), "link": os.Symlink("/etc/passwd", filepath.Join(h.out, "link"))} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	large := bytes.Repeat([]byte("0123456789"), 50000)
	if err := os.WriteFile(filepath.Join(h.out, "large"), large, 0o644); err != nil {
		t.Fatal(err)
	}
	beyond := filepath.Join(h.out, "beyond")
	if err := errors.Join(os.WriteFile(beyond, nil, 0o644), os.Truncate(beyond, 1<<40)); err != nil {
		t.Fatal(err)
	}
	mtime := time.Unix(1700000000, 5)
	for _, f := range []File{
		{Path: dir + "/a/b/text", Mode: 0o640, Size: 11, ModTime: mtime, User: true},
		{Path: dir + "/empty", Mode: 0o600},
		{Path: dir + "/folder", Mode: os.ModeDir | 0o700},
		{Path: dir + "/folder", Mode: os.ModeDir | 0o755},
		{Path: dir + "/to", Mode: os.ModeSymlink, Target: "a/b/text"},
		{Path: dir + "/to", Mode: os.ModeSymlink, Target: "folder"},
	} {
		if err := c.Put(f, strings.NewReader("hello world")); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Relay([]uint16{1, 65535}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.stdout.WriteString("before the start"); err != nil {
		t.Fatal(err)
	}
	h.run(c)
	text, err := os.ReadFile(dir + "/a/b/text")
	st, _ := os.Stat(dir + "/a/b/text")
	if to, _ := os.Readlink(dir + "/to"); err != nil || string(text) != "hello world" || st.Mode() != 0o640 || !st.ModTime().Equal(mtime) || to != "folder" {
		t.Errorf("%q %v %v %q", text, st, err, to)
	}
	go func() { // the program
		got, err := io.ReadAll(h.stdin)
		_, _ = h.stdout.Write(got)
		fmt.Fprintf(h.stderr, "%d bytes %v", len(got), err)
		h.say(contract.ControlExit, 7)
	}()
	var stdout, stderr bytes.Buffer
	in := bytes.Repeat([]byte("stdin\x00\xff"), 100000)
	end, err := c.Stream(t.Context(), bytes.NewReader(in), &stdout, &stderr)
	if err != nil || end != (End{Code: 7, Out: true}) || !bytes.Equal(stdout.Bytes(), in) || stderr.String() != "700000 bytes <nil>" {
		t.Errorf("%+v %v, %d bytes, %q", end, err, stdout.Len(), stderr.String())
	}
	var s taken
	if err := c.Collect(t.Context(), &s, 1<<20); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(s.log, " ")
	for _, want := range []string{`---------- 0600 "left" behind`, `L--------- 0777 "link"`, `"large" 0123456789`, `too large "beyond"`, `?--------- 0755 "` + refused + `"`} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s among the artifacts", want)
		}
	}
	c.Close()
	<-h.gone
	const want = "seed 64 1\nrelay 1\nrelay 65535\nfreeze\nover 0 7 0\n"
	// A seed whose acknowledgement is late is sent again.
	said := h.said.String()
	for strings.HasPrefix(said, "seed 64 1\nseed") {
		said = strings.TrimPrefix(said, "seed 64 1\n")
	}
	if said != want {
		t.Errorf("the agent said %q, want %q", said, want)
	}
}

// Where the kernel would write files to its disk they are committed while they have no
// length, so many at once, and before anything looks at them.
func TestHostedCommits(t *testing.T) {
	t.Parallel()
	h := host(t, "agent", "COMMITS=1")
	c := h.connect()
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := c.Put(File{Path: dir + "/" + name, Mode: 0o644, Size: int64(len(text)), ModTime: time.Unix(1700000000, 0)}, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "12345")
	put("empty", "")
	put("a", "123") // which is one that waits
	for i := range 70 {
		put(fmt.Sprint(i), "1234567")
	}
	h.run(c)
	c.Close()
	<-h.gone
	one := func(n int) string { return fmt.Sprintf("length %d 1\n", n) }
	want := one(0) + "commit\n" + one(5) + // the first a
		strings.Repeat(one(0), 64) + "commit\n" + one(3) + strings.Repeat(one(7), 63) +
		strings.Repeat(one(0), 7) + "commit\n" + strings.Repeat(one(7), 7)
	if said := h.said.String(); !strings.Contains(said, want) || strings.Count(said, "commit") != 3 {
		t.Errorf("%s\nwant %s", said, want)
	}
	for name, size := range map[string]int64{"a": 3, "empty": 0, "69": 7} {
		if st, err := os.Stat(dir + "/" + name); err != nil || st.Size() != size || st.ModTime().Unix() != 1700000000 {
			t.Errorf("%s: %v %v", name, st, err)
		}
	}
}

// A program that ends by itself, and one that ends before there is a host.
func TestHostedEnds(t *testing.T) {
	t.Parallel()
	how := func(code, signal int32) []byte {
		return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, uint32(code)), uint32(signal))
	}
	h := host(t, "agent")
	c := h.connect()
	h.run(c)
	_, _ = h.stdout.WriteString("last words")
	_, _ = h.event.Write(how(0, 9))
	var out bytes.Buffer
	if end, err := c.Stream(t.Context(), nil, &out, io.Discard); err != nil || end != (End{Signal: 9}) || out.String() != "last words" {
		t.Errorf("%+v %v %q", end, err, out.String())
	}
	h = host(t, "agent", "LAZY=1")
	if err := Await(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	c = h.connect2(t.Context())
	if err := c.Process(Process{Dir: "/d", Args: []string{"--a"}, Env: []string{"B=1"}}); err != nil {
		t.Fatal(err)
	}
	go func() {
		h.takeStart()
		_, _ = h.stderr.WriteString("bad option: --a\n")
		_, _ = h.event.Write(how(9, 0))
	}()
	var refused *RefusedError
	if err := c.Start(t.Context(), Start{}); !errors.As(err, &refused) || refused.Words != "bad option: --a" || refused.End.Code != 9 {
		t.Errorf("%v", err)
	}
	c.Close()
	<-h.gone
	if want := "seed 64 1\nprocess 13 /d\x00--a\x00\x00B=1\x00\x00\nspawn\nover 0 9 0\n"; !strings.HasSuffix(h.said.String(), want) {
		t.Errorf("%q", h.said.String())
	}
	h = host(t, "agent", "LAZY=1")
	if err := Await(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	_, _ = h.event.Write(how(3, 0))
	<-h.gone
	if h.said.String() != "over -1 3 0\n" {
		t.Errorf("%q", h.said.String())
	}
}

func TestHostedRehearsal(t *testing.T) {
	t.Parallel()
	h := host(t, "agent")
	ctx, cancel := context.WithTimeout(t.Context(), hostedPatience)
	defer cancel()
	h.say(contract.ControlReady)
	if err := Await(ctx, h); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if text := h.takeStart(); !strings.Contains(text, `"rehearsal":`) {
				t.Errorf("%q", text)
			}
			// More than fits between the agent and the host at once.
			_, _ = h.stdout.Write(bytes.Repeat([]byte("x"), 1<<20))
			h.say(contract.ControlWouldExit, 0)
			h.say(contract.ControlRehearsed)
		}()
		if err := Rehearse(ctx, h, Rehearsal{Text: "1\n", File: "code.js", Comment: "//"}, round == 2, nil); err != nil {
			t.Fatal(err)
		}
		<-done
	}
	c := h.connect2(ctx)
	h.run(c)
	h.say(contract.ControlExit, 0)
	if end, err := c.Stream(ctx, nil, io.Discard, io.Discard); err != nil || end != (End{}) {
		t.Errorf("%+v %v", end, err)
	}
}

// The host gives an attempt to connect up when a busy guest takes too long: that was not
// the conversation, and the next attempt is taken.
func TestHostedImpatient(t *testing.T) {
	t.Parallel()
	h := host(t, "agent")
	ctx, cancel := context.WithTimeout(t.Context(), hostedPatience)
	defer cancel()
	h.say(contract.ControlReady)
	if err := Await(ctx, h); err != nil {
		t.Fatal(err)
	}
	if err := seed(ctx, h); err != nil {
		t.Fatal(err)
	}
	for _, linger := range []int{0, -1, 0} { // by a reset, and by an end
		conn, err := h.DialGuest(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		if kind, _, _, err := readFrame(bufio.NewReader(conn), nil); err != nil || kind != contract.FrameHello {
			t.Fatalf("%q %v", kind, err)
		}
		_ = conn.(*net.TCPConn).SetLinger(linger)
		conn.Close()
	}
	c := h.connect2(ctx)
	h.run(c)
	h.say(contract.ControlExit, 7)
	if end, err := c.Stream(ctx, nil, io.Discard, io.Discard); err != nil || end != (End{Code: 7}) {
		t.Errorf("%+v %v", end, err)
	}
}

// connect2 connects to an agent that has rung before.
func (h *hosted) connect2(ctx context.Context) *Conn {
	h.t.Helper()
	c, err := Connect(ctx, h)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// What the agent makes of a host that breaks the protocol, or a program that does: it
// ends the conversation or goes on, and touches no memory that is not its own.
func TestAttackHostedAgent(t *testing.T) {
	t.Parallel()
	file := func(kind, owner byte, size uint64, path, target string) string {
		p := []byte{kind, owner, 0, 0, 1, 0xa4}
		p = binary.BigEndian.AppendUint64(p, size)
		p = binary.BigEndian.AppendUint64(p, 0)
		p = binary.BigEndian.AppendUint16(p, uint16(len(path)))
		return string(p) + path + target
	}
	frame := func(kind byte, payload string) string { return string(appendFrame(nil, kind, []byte(payload))) }
	dir := t.TempDir()
	const goesOn, ends = "goes on", "ends the conversation"
	for _, row := range []struct{ name, send, want string }{
		{"a length of 4 GiB", "\xff\xff\xff\xffI", ends},
		{"a length one over the limit", "\x00\x10\x00\x01I", ends},
		{"an unknown type", frame('Q', ""), ends},
		{"type 0", frame(0, ""), ends},
		{"a guest's frame", frame('x', "{}"), ends},
		{"a file frame of nothing", frame('F', ""), ends},
		{"a file frame of 23 bytes", frame('F', strings.Repeat("f", 23)), ends},
		{"a path of no bytes", frame('F', file('f', 0, 0, "", "")), ends},
		{"a path as long as PATH_MAX", frame('F', file('f', 0, 0, "/"+strings.Repeat("x", 4095), "")), ends},
		{"a path longer than its frame", frame('F', file('f', 0, 0, "/x", "")[:23]+"\xff"), ends},
		{"a kind of its own", frame('F', file('q', 0, 0, dir+"/q", "")), ends},
		{"a link to nothing", frame('F', file('l', 0, 0, dir+"/l", "")), ends},
		{"a link as long as PATH_MAX", frame('F', file('l', 0, 0, dir+"/l", strings.Repeat("x", 4096))), ends},
		{"a file where a folder is", frame('F', file('f', 0, 0, dir, "")), ends},
		{"a file below a file", frame('F', file('f', 0, 0, dir+"/f", "")) + frame('F', file('f', 0, 0, dir+"/f/g", "")), ends},
		{"two files at once", frame('F', file('f', 0, 5, dir+"/a", "")) + frame('F', file('f', 0, 5, dir+"/b", "")), ends},
		{"more data than announced", frame('F', file('f', 0, 5, dir+"/c", "")) + frame('D', "123456"), ends},
		{"data of no file", frame('D', "x"), ends},
		{"data of a folder", frame('F', file('d', 0, 5, dir+"/d", "")) + frame('D', "x"), ends},
		{"a file of 2^64-1 bytes", frame('F', file('f', 0, 1<<64-1, dir+"/e", "")) + frame('D', "x"), goesOn},
		{"an owner of its own", frame('F', file('f', 9, 0, dir+"/o", "")), goesOn},
		{"half a port", frame('L', "x"), ends},
		{"257 ports", frame('L', strings.Repeat("\x00\x01", 257)), ends},
		{"256 ports", frame('L', strings.Repeat("\x00\x01", 256)), goesOn},
		{"no ports", frame('L', ""), goesOn},
		{"a process's arguments, where it runs already", frame('P', "/\x00\x00\x00"), ends},
		{"a terminal, where it runs already", frame('T', "\x00\x50\x00\x18"), ends},
		{"standard input before the start", frame('I', "early"), goesOn},
		{"standard input after its end", frame('Z', "") + frame('I', "late") + frame('Z', "") + frame('I', "later"), goesOn},
		{"the largest frame of standard input", frame('I', strings.Repeat("x", contract.MaxFrame)), goesOn},
		{"empty standard input", frame('I', ""), goesOn},
		{"the request for artifacts before the exit", frame('A', ""), ends},
		{"ports after the start", frame('S', "{}") + frame('L', "\x00\x01"), ends},
		{"a start of a megabyte", frame('S', strings.Repeat(" ", contract.MaxFrame)), goesOn},
	} {
		h := host(t, "agent")
		c := h.connect()
		go func() { _, _ = io.Copy(io.Discard, h.ctl) }()
		go func() { _, _ = io.Copy(io.Discard, h.stdin) }()
		if _, err := c.conn.Write([]byte(row.send)); err != nil {
			t.Fatal(err)
		}
		got := ends
		if row.want == goesOn {
			// Then it answers the program's end.
			_ = c.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if _, _, err := c.read(); err != nil {
				h.say(contract.ControlExit, 1)
			}
		}
		_ = c.conn.SetReadDeadline(time.Now().Add(hostedPatience))
		if kind, _, err := c.read(); errors.Is(err, os.ErrDeadlineExceeded) || kind == contract.FrameExit {
			got = goesOn
		}
		c.Close()
		attack.Check(t, "the agent's host: "+row.name, row.want, got)
		h.close()
	}
}

// Letters on the control channel, which the user's code has inherited.
func TestAttackHostedControl(t *testing.T) {
	t.Parallel()
	var letters, pairs []byte
	for i := range 256 {
		if i != contract.ControlExit {
			letters = append(letters, byte(i))
		}
	}
	// The byte after a word of a rehearsal is taken with it only where the word has one.
	for i := range 256 {
		pairs = append(pairs, contract.ControlWouldExit, byte(i), contract.ControlRehearsed)
		if i != contract.ControlExit {
			pairs = append(pairs, byte(i))
		}
	}
	for _, row := range []struct {
		name  string
		words []byte
		code  int
	}{
		{"every letter", letters, 0},
		{"words of a rehearsal", pairs, 0},
		{"that it has started, 10 000 times", bytes.Repeat([]byte{contract.ControlStarted}, 10000), 0},
		{"that it is ready, 10 000 times", bytes.Repeat([]byte{contract.ControlReady}, 10000), 0},
		{"exit code 255", []byte{contract.ControlExit, 255}, 255},
		{"an exit code after a word of a rehearsal", []byte{contract.ControlRehearsed, contract.ControlExit, 7}, 7},
	} {
		h := host(t, "agent")
		c := h.connect()
		h.run(c)
		go func() {
			_, _ = h.ctl.Write(row.words)
			if row.code == 0 {
				h.ctl.Close()
				_, _ = h.event.Write(make([]byte, 8))
			}
		}()
		end, err := c.Stream(t.Context(), nil, io.Discard, io.Discard)
		attack.Check(t, "the code says "+row.name, fmt.Sprint(End{Code: row.code}, nil), fmt.Sprint(end, err))
		c.Close()
		h.close()
	}
}

// Random bytes from the host, whole frames among them: the agent survives or ends.
func TestHostedNoise(t *testing.T) {
	t.Parallel()
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	seed := uint64(time.Now().UnixNano())
	for round := range rounds {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		h := host(t, "agent")
		c := h.connect()
		go func() { _, _ = io.Copy(io.Discard, h.ctl) }()
		var noise []byte
		for range 1 + random.IntN(20) {
			body := make([]byte, random.IntN(200))
			for i := range body {
				body[i] = byte(random.Uint32())
			}
			switch random.IntN(4) {
			case 0:
				noise = append(noise, body...)
			case 1: // a file below a folder that is ours, or with a path that lies
				body = append([]byte{"fdlq"[random.IntN(4)], byte(random.IntN(3)), 0, 0, 1, 0xff}, body...)
				if len(body) > 22 {
					binary.BigEndian.PutUint16(body[22-2:], uint16(random.IntN(300)))
				}
				if len(body) > 24 {
					copy(body[24:], h.out+"/")
				}
				noise = appendFrame(noise, 'F', body)
			default:
				noise = appendFrame(noise, "DLIZIDQSA"[random.IntN(9)], body)
			}
		}
		_, _ = c.conn.Write(noise)
		_, _ = h.event.Write(make([]byte, 8))
		_ = c.conn.SetReadDeadline(time.Now().Add(hostedPatience))
		_, _ = io.Copy(io.Discard, c.conn)
		c.Close()
		h.close()
		if t.Failed() {
			t.Fatalf("seed %d, round %d: %q", seed, round, noise)
		}
	}
}

// The agent as a thread of the program, as on Nanos.
func TestHostedNanos(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, does string
		want       End
		stdout     string
	}{
		{"returns from main", "p", End{Code: 0}, "printed\n"},
		{"exits", "ppe", End{Code: 7}, "printed\nprinted\n"},
		{"aborts", "pa", End{Signal: 6}, ""},
		{"kills itself", "s", End{Signal: 9}, ""},
		{"is terminated", "t", End{Signal: 15}, ""},
		{"reads", "iie", End{Code: 7}, "ab"},
	} {
		h := host(t, "nanos")
		tell := func(s string) {
			if _, err := h.event.WriteString(s); err != nil {
				t.Error(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), hostedPatience)
		tell("c" + string(rune(contract.ControlReady)))
		if err := Await(ctx, h); err != nil {
			t.Fatal(err)
		}
		conn := h.connect2(ctx)
		tell("rc" + string(rune(contract.ControlStarted)))
		if err := conn.Start(ctx, Start{}); err != nil {
			t.Fatal(err)
		}
		tell(c.does)
		h.event.Close()
		var out bytes.Buffer
		end, err := conn.Stream(ctx, strings.NewReader("ab"), &out, io.Discard)
		if err != nil || end != c.want || out.String() != c.stdout {
			t.Errorf("%s: %+v %v %q", c.name, end, err, out.String())
		}
		conn.Close()
		cancel()
		h.close()
	}
}

// The relay, with an echo server in the gateway's place.
func TestHostedRelay(t *testing.T) {
	t.Parallel()
	program := needHosted(t)
	server, err := net.Listen("tcp4", gateway+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	port := strconv.Itoa(server.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	var errs bytes.Buffer
	cmd := exec.Command(program, "relay", port)
	cmd.Env = []string{"GATEWAY=" + gateway, "ASAN_OPTIONS=detect_leaks=0"}
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("listening\n"))
	if _, err := io.ReadFull(out, line); err != nil {
		t.Fatalf("%v %s", err, errs.String())
	}
	dial := func() *net.TCPConn {
		c, err := net.Dial("tcp4", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(hostedPatience))
		return c.(*net.TCPConn)
	}
	// A megabyte and a half-close.
	c := dial()
	sent := bytes.Repeat([]byte("megabyte"), 1<<17)
	go func() { _, _ = c.Write(sent); _ = c.CloseWrite() }()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	c.Close()
	// More connections than it carries: the rest is turned away, and those that end
	// make room.
	var open []*net.TCPConn
	carried := 0
	for range 140 {
		open = append(open, dial())
	}
	for _, c := range open {
		buf := make([]byte, 1)
		if _, err := c.Write([]byte("x")); err == nil {
			if _, err := io.ReadFull(c, buf); err == nil {
				carried++
			}
		}
	}
	if carried != 128 {
		t.Errorf("%d of 140 connections are carried", carried)
	}
	for i, c := range open {
		if i%2 == 0 {
			_ = c.SetLinger(0) // a reset
		}
		c.Close()
	}
	deadline := time.Now().Add(hostedPatience)
	for again := 0; again < 128 && time.Now().Before(deadline); {
		c := dial()
		_, _ = c.Write([]byte("y"))
		if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
			again++
		}
		c.Close()
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Errorf("the relay is gone: %v", err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Exited() || errs.Len() > 0 {
		t.Errorf("%v %s", err, errs.String())
	}
}

// A terminal's first size comes before the start, the others while the code runs; the end
// of input is a character there.
func TestHostedTerminal(t *testing.T) {
	h := host(t, "agent", "LAZY=1")
	if err := Await(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	c := h.connect2(t.Context())
	resized := make(chan Size)
	if err := c.Terminal(Size{Columns: 80, Rows: 24}, resized); err != nil {
		t.Fatal(err)
	}
	h.run(c)
	done := make(chan error, 1)
	var out bytes.Buffer
	keys, keyboard := io.Pipe()
	go func() {
		_, err := c.Stream(t.Context(), keys, &out, io.Discard)
		done <- err
	}()
	resized <- Size{Columns: 300, Rows: 70}
	_, _ = keyboard.Write([]byte("typed"))
	keyboard.Close()
	typed := make([]byte, 6)
	if _, err := io.ReadFull(h.stdin, typed); err != nil || string(typed) != "typed\x04" {
		t.Errorf("%q %v", typed, err)
	}
	resized <- Size{Columns: 1, Rows: 2} // also when the input has ended
	resized <- Size{Columns: 2, Rows: 2}
	_, _ = h.stdout.WriteString("shown")
	h.say(contract.ControlExit, 0)
	if err := <-done; err != nil || out.String() != "shown" {
		t.Errorf("%v %q", err, out.String())
	}
	c.Close()
	<-h.gone
	if said := h.said.String(); !strings.Contains(said, "terminal 80 24\nspawn\n") || !strings.Contains(said, "terminal 300 70\n") {
		t.Errorf("%q", said)
	}
}
