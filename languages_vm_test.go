package unitask_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// Behavior of Python and the shell in machines that the differential tests do not compare.

const pythonFetch = `
import os, urllib.request
r = urllib.request.Request('https://good.example/key', headers={'Authorization': 'Bearer ' + os.environ['KEY']})
print(urllib.request.urlopen(r).read()[:12].decode())`

func TestLanguages(t *testing.T) {
	needClones(t)
	web := newSite(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Upstream: web.upstream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	bound := func(language, code string) unitask.Request {
		return unitask.Request{Language: language, Code: code, AllowNet: []string{"good.example"}, CA: web.ca,
			Secrets: map[string]string{"KEY": "sk-Vn41xZp0Qw7eRt6y"}, SecretHosts: map[string][]string{"KEY": {"good.example"}}}
	}
	for _, c := range []struct {
		name   string
		req    unitask.Request
		stdout string // a regular expression
		exit   int
	}{
		// Variables that are read only at the start.
		{"python: a hash seed", unitask.Request{Language: "python", Code: "print(hash('a')); import sys; print(sys.flags.hash_randomization, sys.orig_argv[1:] == sys.argv)", Env: map[string]string{"PYTHONHASHSEED": "0"}}, `4644417185603328019\n0 True\n`, 0},
		{"python: a path and no buffers", unitask.Request{Language: "python", Code: "import sys; print(sys.path[1], sys.stdout.write_through)", Env: map[string]string{"PYTHONPATH": "/work/lib", "PYTHONUNBUFFERED": "1"}}, `/work/lib True\n`, 0},
		{"python: a locale", unitask.Request{Language: "python", Code: "import sys, os; print(sys.flags.utf8_mode, sys.stdout.encoding, os.environ['LC_ALL'], 'LC_CTYPE' in os.environ)", Env: map[string]string{"LC_ALL": "C.UTF-8"}}, `0 utf-8 C.UTF-8 False\n`, 0},
		{"python: a time zone", unitask.Request{Language: "python", Code: "import time; print(time.tzname, time.localtime(0).tm_hour)", Env: map[string]string{"TZ": "Asia/Tokyo"}}, `\('JST', 'JST'\) 9\n`, 0},
		{"python: a process of its own", unitask.Request{Language: "python", Code: "import sys; print(sys.argv[1:], __file__)", Args: []string{"ü", ""}, FreshProcess: true}, `\['ü', ''\] /work/script.py\n`, 0},
		// Code without a file hides no module of the standard library from imports.
		{"python: modules that import code", unitask.Request{Language: "python", Code: "import pdb, doctest, code, codeop; print('once', code.__file__.startswith('/usr/lib/'), hasattr(pdb, 'Pdb'))"}, `once True True\n`, 0},
		{"python: the name of code's file", unitask.Request{Language: "python", Code: "import sys, os; print([n for n in sys.stdlib_module_names if n == os.path.splitext(os.path.basename(__file__))[0]], os.listdir('.'))"}, `\[\] \['script.py'\]\n`, 0},
		// A write to a fixed file of the image gives the same error as on any machine, not a read-only error.
		{"python: its own library", unitask.Request{Kernel: image.Linux, Language: "python", Code: `
import errno, os
def said(call, *args):
    try: call(*args)
    except OSError as e: return errno.errorcode[e.errno]
for folder in '/usr/lib/python3.13', '/usr/lib/python3.13/json', '/usr/share/zoneinfo/Europe':
    print(said(os.unlink, folder + '/none'), said(open, folder + '/none', 'w'), said(os.mkdir, folder + '/none'), said(os.rename, folder, folder + '.old'))
library = os.__file__
print(said(os.unlink, library), said(open, library, 'a'), said(os.chmod, library, 0o777), said(os.utime, library), os.stat(library).st_uid, len(open(library).read()) > 30000)`},
			`(ENOENT EACCES EACCES EACCES\n){3}EACCES EACCES EPERM EACCES 0 True\n`, 0},
		{"shell: its programs", unitask.Request{Language: "shell", Code: "rm -f /usr/bin/none; echo $?; touch /usr/bin/none; : >> /usr/bin/bash; ls -ld /usr/bin | cut -c1-10"}, `0\ndrwxr-xr-x\n`, 0},
		// Certificates, and bound secrets.
		{"python: HTTPS and a bound secret", bound("python", pythonFetch), `with the key\n`, 0},
		{"python: HTTPS in a child", bound("python", "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '''"+pythonFetch+"'''])"), `with the key\n`, 0},
		{"shell: HTTPS and a bound secret", bound("shell", `curl -sS -H "Authorization: Bearer $KEY" https://good.example/key | head -c 12`), `with the key`, 0},
		{"shell: no HTTPS without trust", unitask.Request{Language: "shell", Code: `curl -s https://good.example/; echo $?`, AllowNet: []string{"good.example"}}, `60\n`, 0},
		// Hostile code. The machine ends, and the reported reason is correct.
		{"python: every descriptor is closed", unitask.Request{Language: "python", Code: "import os\nprint('x', flush=True)\nos.closerange(0, 4096)\nos._exit(3)"}, `x\n`, 3},
		{"python: words for the agent", unitask.Request{Language: "python", Code: "import os, socket, stat\nprint([n for n in map(int, os.listdir('/proc/self/fd')) if n < 64 and n > 2])\nfor n in range(3, 1024):\n    try: os.write(n, b'RSWN\\x00')\n    except OSError: pass\nprint('on')"}, `\[3\]\non\n`, 0},
		{"python: its parent is killed", unitask.Request{Language: "python", Code: "import os, signal\nfor pid in (1, os.getppid()):\n    try: os.kill(pid, signal.SIGKILL)\n    except PermissionError as e: print(e.errno)\ntry: open('/proc/1/mem', 'rb')\nexcept PermissionError: print('no')"}, `1\n1\nno\n`, 0},
		{"python: everything is killed", unitask.Request{Language: "python", Code: "import os\nprint('x', flush=True)\nos.kill(-1, 9)\nprint('alive', flush=True)"}, `x\nalive\n`, 0},
		{"python: processes without end", unitask.Request{Language: "python", Code: "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(600)\n        n += 1\nexcept BlockingIOError: print(300 < n < 600)"}, `True\n`, 0},
		{"python: memory without end", unitask.Request{Language: "python", Code: "x = []\nwhile True: x.append(bytearray(1 << 22))", MemoryMB: 256}, ``, unitask.ExitOOM},
		{"shell: processes are counted", unitask.Request{Language: "shell", Code: "ulimit -u; ulimit -Hu; ulimit -u 5000"}, `4096\n4096\n`, 1},
		{"shell: its parent is killed", unitask.Request{Language: "shell", Code: "kill -9 1; echo $?; kill -9 $PPID; echo $?; ls /proc/1/fd; echo on"}, `1\n1\non\n`, 0},
		{"shell: every descriptor is closed", unitask.Request{Language: "shell", Code: "echo x; for n in {0..20}; do eval \"exec $n>&-\"; done; exit 4"}, `x\n`, 4},
		{"shell: what it leaves running", unitask.Request{Language: "shell", Code: "(while :; do echo more; sleep 0.01; done) & sleep 0.1; exit 5"}, `(more\n)+`, 5},
		{"shell: a signal", unitask.Request{Language: "shell", Code: "kill -USR1 $$"}, ``, 138},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
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
		})
	}
}

// In each language, values that must differ between clones do: no two clones draw the same value.
func TestClonesOfLanguagesDiffer(t *testing.T) {
	needClones(t)
	const clones = 12
	const python = `
import json, multiprocessing, os, random, secrets, sqlite3, ssl, tempfile, time, uuid
hello = ssl.MemoryBIO()
try: ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname='x').do_handshake()
except ssl.SSLWantReadError: pass
now = time.time()
print(json.dumps({'now': now, 'sane': 0 < time.monotonic() < 3600 and abs(time.time_ns() / 1e9 - now) < 5, 'random': random.random(), 'own': random.Random().random(), 'system': random.SystemRandom().random(),
  'uuid1': str(uuid.uuid1()), 'uuid4': str(uuid.uuid4()), 'temp': tempfile.mkdtemp(), 'bytes': os.urandom(16).hex(), 'getrandom': os.getrandom(16).hex(), 'token': secrets.token_hex(),
  'ssl': ssl.RAND_bytes(16).hex(), 'hello': hello.read()[11:43].hex(), 'key': multiprocessing.current_process().authkey.hex(),
  'sqlite': sqlite3.connect(':memory:').execute('select hex(randomblob(16))').fetchone()[0]}))`
	for _, c := range []struct {
		language string
		kernel   image.Kernel
		code     string
		values   int
	}{
		{"python", image.Linux, python, 13},
		{"python", image.Nanos, python, 13},
		{"shell", image.Linux, `echo "{\"now\": $EPOCHREALTIME, \"sane\": true, \"srandom\": \"$SRANDOM $SRANDOM\", \"random\": \"$RANDOM $RANDOM $RANDOM\", \"temp\": \"$(mktemp)\", \"bytes\": \"$(head -c 16 /dev/urandom | od -An -tx1)\", \"uuid\": \"$(cat /proc/sys/kernel/random/uuid)\", \"shuf\": \"$(shuf -i 1-100000 -n 4 | tr '\n' ' ')\", \"sqlite\": \"$(sqlite3 :memory: 'select random()')\"}"`, 7},
	} {
		t.Run(c.language+"/"+string(c.kernel), func(t *testing.T) {
			if c.kernel == image.Nanos {
				needNanos(t, image.HostArch())
			}
			rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			if _, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{Kernel: c.kernel, Image: c.language}); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			seen := map[string]int{}
			var group sync.WaitGroup
			for i := range clones {
				group.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					begin := time.Now()
					res, err := rt.Run(t.Context(), unitask.Request{Language: c.language, Kernel: c.kernel, Code: c.code}, unitask.IO{})
					end := time.Now()
					var out map[string]any
					if err == nil {
						err = json.Unmarshal(res.Stdout, &out)
					}
					if err != nil {
						t.Errorf("clone %d: %v %+v", i, err, res)
						return
					}
					now := time.UnixMilli(int64(1000 * out["now"].(float64)))
					if now.Before(begin.Add(-50*time.Millisecond)) || now.After(end.Add(50*time.Millisecond)) {
						t.Errorf("clone %d: its clock says %s, between %s and %s", i, now, begin, end)
					}
					if out["sane"] != true {
						t.Errorf("clone %d: its clocks disagree", i)
					}
					delete(out, "now")
					delete(out, "sane")
					mu.Lock()
					defer mu.Unlock()
					for what, value := range out {
						key := fmt.Sprint(what, " ", value)
						if other, ok := seen[key]; ok {
							t.Errorf("clones %d and %d have the same %s", other, i, key)
						}
						seen[key] = i
					}
				})
			}
			group.Wait()
			if len(seen) != clones*c.values {
				t.Errorf("%d values of %d clones", len(seen), clones)
			}
		})
	}
}
