package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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
	"github.com/unitask/unitask/internal/socketpair"
)

// The guest's own C programs on this host, compiled with the address and the undefined-behavior sanitizer
// (testdata/hosted.c), with Conn as their host.

// gateway is the host's address for a hosted agent. The relay listens on 127.0.0.1 and connects to the gateway, so the
// address must differ.
const gateway = "127.0.0.2"

// hostedDir is the program's folder, once it exists.
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
	for _, call := range []string{"socket", "bind", "listen", "sendto", "recvfrom", "accept4", "opendir", "open",
		"clock_settime"} {
		wrap = append(wrap, "-Wl,--wrap="+call)
	}
	args := append(wrap, "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
		"-fno-sanitize-recover=all", "-pthread", "-o", program,
		"testdata/hosted.c", "agent/agent.c", "agent/frames.c", "agent/files.c", "agent/artifacts.c", "agent/left.c",
		"agent/host.c",
		"agent/relay.c", "nanos/nanos.c", "nanos/session.c", "init/session.c", "init/sessionfiles.c")
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return program, nil
})

// hosted is a guest on this host: a process with the agent. The test replaces Node and the kernel. hosted is also the
// Network that leads to it.
type hosted struct {
	t          *testing.T
	cmd        *exec.Cmd
	udp        *net.UDPConn
	agent      net.Addr // its UDP socket
	tcp        net.Addr
	gone       chan struct{}
	said, errs bytes.Buffer

	out    string   // the folder used as /out
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
	pipe := func(read, write **os.File) { // one end of each is theirs
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
	h.cmd.Env = append([]string{"GATEWAY=" + gateway, "OUT=" + h.out,
		"HOST_PORT=" + strconv.Itoa(h.udp.LocalAddr().(*net.UDPAddr).Port),
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
	if h.cmd.ProcessState.ExitCode() == 99 || strings.Contains(h.errs.String(), "runtime error") ||
		strings.Contains(h.errs.String(), "Sanitizer") {
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
		if !stop() { // it has started: the next one must not exceed its deadline
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

// connect makes Node report that it is ready, and connects.
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

// hostedPatience is the limit for quick operations; sanitizers are slow, and CI may be slow too.
const hostedPatience = 20 * time.Second

func (h *hosted) say(words ...byte) {
	h.t.Helper()
	if _, err := h.ctl.Write(words); err != nil {
		h.t.Error(err)
	}
}

// startFrame reads the start as Node does, and confirms it.
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

// run is Start with the test in Node's role.
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

// A program may end before the agent learns that it has started.
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
	refused := leaveArtifacts(t, h)
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
	if to, _ := os.Readlink(dir + "/to"); err != nil || string(text) != "hello world" || st.Mode() != 0o640 ||
		!st.ModTime().Equal(mtime) || to != "folder" {
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
	if err != nil || end != (End{Code: 7, Out: true}) || !bytes.Equal(stdout.Bytes(), in) ||
		stderr.String() != "700000 bytes <nil>" {
		t.Errorf("%+v %v, %d bytes, %q", end, err, stdout.Len(), stderr.String())
	}
	var s taken
	if err := c.Collect(t.Context(), &s, 1<<20); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(s.log, " ")
	for _, want := range []string{`---------- 0600 "left" behind`, `L--------- 0777 "link"`, `"large" 0123456789`,
		`too large "beyond"`, `?--------- 0755 "` + refused + `"`} {
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

// leaveArtifacts leaves files in /out that are deep, large or refused.
func leaveArtifacts(t *testing.T, h *hosted) string {
	t.Helper()
	deep := h.out
	refused := strings.Repeat("d/", 64) + "d"
	for range 70 {
		deep = filepath.Join(deep, "d")
	}
	for name, err := range map[string]error{"deep": errors.Join(os.MkdirAll(deep, 0o755),
		os.Chmod(filepath.Join(h.out, refused), 0o755)), "link": os.Symlink("/etc/passwd", filepath.Join(h.out, "link"))} {
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
	return refused
}

// If the kernel would write files to its disk, the agent commits them while they are empty. It commits many at once,
// and before anything looks at them.
func TestHostedCommits(t *testing.T) {
	t.Parallel()
	h := host(t, "agent", "COMMITS=1")
	c := h.connect()
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := c.Put(File{Path: dir + "/" + name, Mode: 0o644, Size: int64(len(text)), ModTime: time.Unix(1700000000, 0)},
			strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "12345")
	put("empty", "")
	put("a", "123") // one that waits
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

// A program that ends by itself, and one that ends before a host connects.
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
	if end, err := c.Stream(t.Context(), nil, &out, io.Discard); err != nil || end != (End{Signal: 9}) ||
		out.String() != "last words" {
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
	if err := c.Start(t.Context(), Start{}); !errors.As(err, &refused) || refused.Words != "bad option: --a" ||
		refused.End.Code != 9 {
		t.Errorf("%v", err)
	}
	c.Close()
	<-h.gone
	if want := "seed 64 1\nprocess 13 /d\x00--a\x00\x00B=1\x00\x00\nspawn\nover 0 9 0\n"; !strings.HasSuffix(
		h.said.String(), want) {
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
			// More data than fits between the agent and the host at once.
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
