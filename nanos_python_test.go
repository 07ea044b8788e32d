package unitask_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

const (
	childless = "the code asked for child processes, which the nanos kernel does not have: --kernel linux does"
	noOther   = "the code asked for other programs, which the nanos kernel does not have: --kernel linux does"
	noPipes   = "the code asked for named pipes, which the nanos kernel does not have: --kernel linux does"
)

type nanosPythonRow struct {
	name, code string
	req        unitask.Request
	stdout     string // a regular expression
	exit       int
	hint       string
}

// nanosPythonRows are the cases of TestNanosPython.
func nanosPythonRows(web *site) []nanosPythonRow {
	return append([]nanosPythonRow{
		{"no child", "import subprocess\nsubprocess.run(['ls'])", unitask.Request{}, ``, 1, childless},
		{"no child, and no harm", "import os\ntry: os.fork()\nexcept OSError as e: print(e)", unitask.Request{},
			`\[Errno 38\] Function not implemented\n`, 0, ""},
		{"no child of any kind", `
import os, subprocess, multiprocessing
for f in (lambda: os.posix_spawn('/bin/ls', ['ls'], {}), lambda: subprocess.run('ls', shell=True, close_fds=False), lambda: os.popen('ls'), multiprocessing.Process(target=print).start):
    try: f(); print('there is one')
    except OSError as e: print(e.errno)
print(os.system('ls'))
try: os.wait()
except ChildProcessError: print('none')
raise SystemExit(4)`, unitask.Request{}, `38\n38\n38\n38\n-1\nnone\n`, 4, childless},
		{"no other program", "import os\nos.execv('/bin/ls', ['ls'])", unitask.Request{}, ``, 1, noOther},
		{"no named pipe", "import os\nos.mkfifo('x')", unitask.Request{}, ``, 1, noPipes},
		{"HTTPS and a bound secret", pythonFetch, unitask.Request{AllowNet: []string{"good.example"}, CA: web.ca,
			Secrets: map[string]string{"KEY": "sk-Vn41xZp0Qw7eRt6y"}, SecretHosts: map[string][]string{"KEY": {"good.example"}}},
			`with the key\n`, 0, ""},
		{"a time zone", "import time; print(time.tzname, time.localtime(0).tm_hour)",
			unitask.Request{Env: map[string]string{"TZ": "Asia/Tokyo"}}, `\('JST', 'JST'\) 9\n`, 0, ""},
		{"what may be written", `
import os
for p in '/tmp/x', 'y', '/out/z', '/home/user/w', '/dev/shm/s', '/etc/passwd', '/usr/lib/python3.13/os.py', '/unitask/lib/python.so', '/new', '/none/x':
    try: open(p, 'w').close(); print(end='y')
    except OSError as e: print(end=f' {e.errno}')
print()`, unitask.Request{}, `yyyyy 13 13 13 13 2\n`, 0, ""},
		{"files and links", `
import os, shutil, tempfile, mmap
os.mkdir('d'); open('d/f', 'w').write('x'); os.link('d/f', 'd/g'); os.chmod('d/f', 0o640); os.utime('d/f', (1, 2))
shutil.copytree('d', 'e'); print(oct(os.stat('e/g').st_mode), os.stat('d/g').st_nlink, os.stat('e/f').st_mtime, os.listxattr('d'))
with tempfile.TemporaryFile() as f:
    f.write(b'x' * 8192); f.flush(); m = mmap.mmap(f.fileno(), 0); m[:3] = b'abc'; m.flush(); f.seek(0); print(f.read(5))
fd = os.memfd_create('m'); os.write(fd, b'mem'); print(os.pread(fd, 9, 1))`,
			unitask.Request{}, `0o100640 2 2\.0 \[\]\nb'abcxx'\nb'em'\n`, 0, ""},
		// The kernel notifies Python little of another thread's actions on a stream. Python's sockets wait with poll, with
		// and without a timeout.
		{"streams between threads", `
import socket, threading, select, selectors
for family, where in ((socket.AF_INET, ('127.0.0.1', 0)), (socket.AF_UNIX, '/tmp/s')):
    l = socket.socket(family); l.bind(where); l.listen()
    def serve():
        c, _ = l.accept(); c.settimeout(20); n = 0
        while d := c.recv(65536): n += len(d)
        c.settimeout(None); c.sendall(b'y' * n); c.close()
    t = threading.Thread(target=serve); t.start()
    s = socket.socket(family); s.settimeout(20); s.connect(l.getsockname()); s.settimeout(None)
    s.sendall(b'x' * 3000000); s.shutdown(socket.SHUT_WR); s.setblocking(False); n = 0
    while True:
        assert select.select([s], [], [], 20)[0] == [s]
        d = s.recv(1 << 20)
        if not d: break
        n += len(d)
    t.join(); print(n)
a, b = socket.socketpair(); sel = selectors.PollSelector(); sel.register(a, selectors.EVENT_READ)
threading.Timer(0.2, lambda: b.send(b'late')).start(); print(len(sel.select(20)), a.recv(9), select.select([a], [], [], 0.05))`,
			unitask.Request{}, `3000000\n3000000\n1 b'late' \(\[\], \[\], \[\]\)\n`, 0, ""},
	}, moreNanosPythonRows(web)...)
}

// moreNanosPythonRows are the other half.
func moreNanosPythonRows(web *site) []nanosPythonRow {
	return []nanosPythonRow{
		{"depth as on linux", `
import sys, resource, threading
sys.setrecursionlimit(10**6)
class C:
    def __init__(s, n): s.n = n
    def __eq__(s, o): return s.n is None or s.n == o.n
def deep(n):
    a = b = None
    for i in range(n): a = C(a); b = C(b)
    return a == b
print(deep(3000)); resource.setrlimit(resource.RLIMIT_STACK, (1 << 27, resource.RLIM_INFINITY))
try: deep(50000)
except RecursionError as e: print(e)
r = []; t = threading.Thread(target=lambda: r.append(deep(3000))); t.start(); t.join(); print(r)`,
			unitask.Request{}, `True\nmaximum recursion depth exceeded in comparison\n\[True\]\n`, 0, ""},
		{"signals", `
import signal, os, time, threading
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
signal.signal(signal.SIGALRM, lambda *a: print('alarm')); signal.setitimer(signal.ITIMER_REAL, 0.1); time.sleep(0.3)
threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.time()
try: time.sleep(20)
except KeyboardInterrupt: print('interrupted', time.time() - begin < 10, flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.raise_signal(signal.SIGTERM)`,
			unitask.Request{}, `True True\nalarm\ninterrupted True\n`, 143, ""},
		// Hostile code. The machine ends, and the reported reason is correct.
		{"every descriptor is closed", "import os\nprint('x', flush=True)\nos.closerange(0, 4096)\nos._exit(3)",
			unitask.Request{}, `x\n`, 3, ""},
		{"words for the agent",
			"import os\nfor n in range(3, 1024):\n    try: os.write(n, b'RSWN\\x00')\n    except OSError: pass\nprint('on')",
			unitask.Request{}, `on\n`, 0, ""},
		{"memory without end", "x = []\nwhile True: x.append(bytearray(1 << 22))", unitask.Request{MemoryMB: 256}, ``,
			unitask.ExitOOM, ""},
		{"more memory than there is",
			"import mmap\nfor f in (lambda: bytearray(1 << 40), lambda: b'x' * (1 << 30), lambda: [0] * (1 << 29), lambda: mmap.mmap(-1, 1 << 32)):\n    try: f()\n    except (MemoryError, OSError) as e: print(getattr(e, 'errno', ''))",
			unitask.Request{}, `\n\n\n12\n`, 0, ""},
		{"a loop without end", "print('x', flush=True)\nwhile True: pass", unitask.Request{Timeout: 3 * time.Second}, `x\n`,
			unitask.ExitTimeout, ""},
		{"abort", "import os\nprint('x', flush=True)\nos.abort()", unitask.Request{}, `x\n`, 134, ""},
		{"a fault", "import ctypes\nprint('x', flush=True)\nctypes.string_at(0)", unitask.Request{}, `x\n`, 139, ""},
		{"a fault by a signal that was left alone",
			"import ctypes, faulthandler, signal\nfaulthandler.enable()\nprint('x', flush=True)\nctypes.string_at(0)",
			unitask.Request{}, `x\n`, 139, ""},
		{"a stack without end", `
import sys, threading
sys.setrecursionlimit(10**8)
class C:
    def __eq__(s, o): return s.n == o.n
a = C(); a.n = a; b = C(); b.n = b
print('x', flush=True)
threading.stack_size(1 << 16) # Python bounds the depth, which is too deep for this stack
threading.Thread(target=lambda: a == b).start()`,
			unitask.Request{}, `x\n`, 139, ""},
		{"killed", "import os\nprint('x', flush=True)\nos.kill(os.getpid(), 9)", unitask.Request{}, `x\n`, 137, ""},
		{"many threads",
			"import threading\ne = threading.Event(); l = [threading.Thread(target=e.wait) for _ in range(300)]\n" +
				"for t in l: t.start()\ne.set()\nfor t in l: t.join()\nprint(threading.active_count())",
			unitask.Request{}, `1\n`, 0, ""},
	}
}

// TestNanosPython tests Python on Nanos beyond the differential tests. It tests missing features and their errors, the
// end of hostile code, and system calls that Node never makes.
func TestNanosPython(t *testing.T) {
	needNanos(t, image.HostArch())
	web := newSite(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Upstream: web.upstream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	if _, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{Kernel: image.Nanos, Image: "python"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range nanosPythonRows(web) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			c.req.Language, c.req.Kernel, c.req.Code = "python", image.Nanos, c.code
			if c.req.Timeout == 0 {
				c.req.Timeout = time.Minute
			}
			res, err := rt.Run(t.Context(), c.req, unitask.IO{})
			if err != nil {
				t.Fatalf("%v %+v", err, res)
			}
			if !regexp.MustCompile(`\A(?:` + c.stdout + `)\z`).Match(res.Stdout) {
				t.Errorf("%q %q, want %s", res.Stdout, res.Stderr, c.stdout)
			}
			if res.ExitCode != c.exit {
				t.Errorf("exit %d, want %d: %s", res.ExitCode, c.exit, res.Stderr)
			}
			if c.hint != "" && res.Hint() != c.hint || c.hint == "" && strings.Contains(res.Hint(), "nanos") {
				t.Errorf("hint %q, want %q", res.Hint(), c.hint)
			}
			t.Logf("exit %d, %q, pooled %v cloned %v", res.ExitCode, res.Hint(), res.Pooled, res.Cloned)
		})
	}
}
