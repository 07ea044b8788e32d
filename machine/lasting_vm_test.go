package machine_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/netstack"
)

// evaluator is a program that evaluates each line of its input as JavaScript and answers it.
const evaluator = `globalThis.require = require
require('readline').createInterface({input: process.stdin}).on('line', async line => {
	let answer
	try { answer = await (0, eval)(line) } catch (e) { answer = 'error ' + (e.code || e) }
	process.stdout.write(JSON.stringify(answer === undefined ? null : answer) + '\n')
})
console.log('"ready"')
`

// talk is a conversation with an evaluator.
type talk struct {
	t    testing.TB
	conn *guest.Conn
	in   *io.PipeWriter
	out  *bufio.Reader
	over chan guest.End
}

// begin starts an evaluator in a machine.
func begin(t testing.TB, m *machine.Machine) *talk {
	t.Helper()
	conn, err := m.Connect(t.Context(), 25*time.Second, func(ctx context.Context, conn *guest.Conn) error {
		for _, f := range []guest.File{
			{Path: "/home/user/main.js", Mode: 0o644, Size: int64(len(evaluator)), User: true},
			{Path: contract.MainLink, Mode: os.ModeSymlink, Target: "/home/user/main.js"},
		} {
			if err := conn.Put(f, strings.NewReader(evaluator)); err != nil {
				return err
			}
		}
		if err := conn.Lasting(); err != nil {
			return err
		}
		return conn.Start(ctx, guest.Start{Argv: []string{"/home/user/main.js"}, Dir: "/home/user"})
	})
	if err != nil {
		t.Fatal(m.Explain(err))
	}
	k := carry(t, conn)
	k.hears("ready")
	return k
}

// rejoin continues with the evaluator of a resumed or forked machine.
func rejoin(t testing.TB, m *machine.Machine) *talk {
	t.Helper()
	conn, err := m.Rejoin(t.Context())
	if err != nil {
		t.Fatal(m.Explain(err))
	}
	return carry(t, conn)
}

func carry(t testing.TB, conn *guest.Conn) *talk {
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	k := &talk{t: t, conn: conn, in: in, out: bufio.NewReader(out), over: make(chan guest.End, 1)}
	go func() {
		end, err := conn.Stream(context.Background(), stdin, stdout, stdout)
		stdout.CloseWithError(fmt.Errorf("the stream ended: %v", err))
		k.over <- end
	}()
	t.Cleanup(k.close)
	return k
}

func (k *talk) close() {
	k.in.Close()
	k.conn.Close()
}

func (k *talk) hears(want string) {
	k.t.Helper()
	if got := k.hear(); got != want {
		k.t.Errorf("%q, not %q", got, want)
	}
}

func (k *talk) hear() string {
	k.t.Helper()
	line, err := k.out.ReadString('\n')
	if err != nil {
		k.t.Fatalf("%q %v", line, err)
	}
	var v any
	if err := json.Unmarshal([]byte(line), &v); err != nil {
		k.t.Fatalf("%q %v", line, err)
	}
	return fmt.Sprint(v)
}

// ask makes the evaluator evaluate a line.
func (k *talk) ask(line string) string {
	k.t.Helper()
	if _, err := io.WriteString(k.in, line+"\n"); err != nil {
		k.t.Fatal(err)
	}
	answer := k.hear()
	if strings.HasPrefix(answer, "error") {
		k.t.Fatalf("%s: %s", line, answer)
	}
	return answer
}

// moreTicks waits until a timer has gone on.
const moreTicks = `new Promise(ok => { const i = setInterval(() => { if (ticks > %s) { clearInterval(i); ` +
	`ok('goes on') } }, 1) })`

// A program continues after a pause, in another network, as if nothing had happened: with its variables, files,
// descriptors and timers. The clock is right, and outside connections are reset.
func TestPauseProgram(t *testing.T) {
	source, spec := lasting(t, image.Linux)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); conn.Close() }()
		}
	}()
	port := listener.Addr().(*net.TCPAddr).Port
	rule := netstack.Rule{Text: "ours", Host: "localhost", Port: uint16(port), Raw: true}
	cfg := machine.Config{Network: netstack.Config{Rules: []netstack.Rule{rule},
		Limits: netstack.Limits{Connections: 8, BytesUp: 1 << 20, BytesDown: 1 << 20}}}
	m, err := source.Clone(t.Context(), spec, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	k := begin(t, m)
	k.ask(`x = 41; fs = require('fs'); fs.writeFileSync('/tmp/file', 'text'); fd = fs.openSync('/tmp/file'); 0`)
	k.ask(`said = new Promise(ok => { s = require('net').connect(` + fmt.Sprint(port) + `, '` + contract.GatewayIP +
		`'); s.on('error', e => told(e.code)); s.on('data', ok); s.write('hello') }); ` +
		`reset = new Promise(ok => told = ok); 0`)
	if got := k.ask(`said.then(String)`); got != "hello" {
		t.Fatalf("the connection: %q", got)
	}
	k.ask(`ticks = 0; setInterval(() => ticks++, 10); 0`)
	folder := filepath.Join(t.TempDir(), "paused")
	for round := range 2 {
		before := k.ask(`ticks`)
		if err := source.Pause(t.Context(), m, folder); err != nil {
			t.Fatal(err)
		}
		k.close()
		time.Sleep(time.Second) // the guest must learn of it
		if m, err = source.Resume(t.Context(), folder, spec, cfg); err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		k = rejoin(t, m)
		if got := k.ask(`++x + fs.readFileSync(fd, 'latin1') + (fs.writeFileSync('/tmp/more', 'x'), ` +
			`fs.readdirSync('/tmp').includes('more'))`); got != []string{"42texttrue", "43true"}[round] {
			t.Errorf("%q", got)
		}
		sent := time.Now()
		var ms float64
		if _, err := fmt.Sscan(k.ask(`Date.now()`), &ms); err != nil {
			t.Fatal(err)
		}
		off := time.UnixMilli(int64(ms)).Sub(sent)
		if off < -500*time.Millisecond || off > time.Since(sent)+500*time.Millisecond {
			t.Errorf("the clock is %v off", off)
		}
		if got := k.ask(fmt.Sprintf(moreTicks, before)); got != "goes on" {
			t.Errorf("its timer: %q", got)
		}
		if round == 0 {
			if got := k.ask(`reset`); got != "ECONNRESET" {
				t.Errorf("the connection of before: %q", got)
			}
			k.ask(`said = new Promise((ok, no) => { s = require('net').connect(` + fmt.Sprint(port) + `, '` +
				contract.GatewayIP + `'); s.on('error', no); s.on('data', ok); s.write('again') }); 0`)
			if got := k.ask(`said.then(String)`); got != "again" {
				t.Errorf("a connection of now: %q", got)
			}
		}
	}
	if _, err := io.WriteString(k.in, "process.exit(3)\n"); err != nil {
		t.Fatal(err)
	}
	if end := <-k.over; end != (guest.End{Code: 3}) {
		t.Errorf("%+v", end)
	}
}

// What differs in each fork, and what does not (docs: the table of forks).
func TestForkTable(t *testing.T) {
	source, spec := lasting(t, image.Linux)
	m, err := source.Clone(t.Context(), spec, machine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	k := begin(t, m)
	k.ask(`fs = require('fs'); os = require('os'); generator = require('crypto'); cp = require('child_process'); ` +
		`fs.readFileSync('/proc/sys/kernel/random/boot_id'); generator.randomBytes(1); generator.randomUUID(); ` +
		`Math.random(); 0`)
	forks, err := fork(t, source, m, 2)
	if err != nil {
		t.Fatal(err)
	}
	var talks []*talk
	for _, f := range forks {
		defer f.Close()
		talks = append(talks, rejoin(t, f))
	}
	for _, row := range []struct {
		what, code string
		differs    bool
	}{
		{"the kernel's random bytes", `fs.readSync(fs.openSync('/dev/urandom'), b = Buffer.alloc(16)), b.toString('hex')`,
			true},
		{"a UUID of the kernel's", `fs.readFileSync('/proc/sys/kernel/random/uuid', 'latin1')`, true},
		{
			what: "getrandom in a process that is new",
			code: `(child = JSON.parse(cp.execFileSync(process.execPath, ['-p', ` +
				`'JSON.stringify([crypto.randomBytes(16).toString("hex"), fs.readFileSync("/proc/self/maps", ` +
				`"latin1").match(/.*stack/)[0], process.pid])'])))[0]`,
			differs: true,
		},
		{"the addresses of a process that is new", `child[1]`, true},
		{"the number of the next process", `child[2]`, false},
		{"the addresses of one that ran", `fs.readFileSync('/proc/self/maps', 'latin1').match(/.*stack/)[0]`, false},
		{"the boot's id, once it was read", `fs.readFileSync('/proc/sys/kernel/random/boot_id', 'latin1')`, false},
		{"the hostname", `os.hostname()`, false},
		{"the network card's address", `fs.readFileSync('/sys/class/net/eth0/address', 'latin1')`, false},
		{"a generator that a program keeps", `Math.random() + generator.randomBytes(16).toString("hex")`, false},
	} {
		a, b := talks[0].ask(row.code), talks[1].ask(row.code)
		if (a != b) != row.differs {
			t.Errorf("%s: %q and %q; that they differ: %t", row.what, a, b, row.differs)
		}
	}
	// Each fork has separate pages, and so has the machine.
	for i, k := range append(talks, k) {
		if got := k.ask(fmt.Sprintf(`globalThis.mine === undefined ? (mine = %d) : 'theirs'`, i)); got != fmt.Sprint(i) {
			t.Errorf("fork %d: %q", i, got)
		}
	}
}
