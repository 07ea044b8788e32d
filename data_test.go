package unitask_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// dataRuntime has a template of the image data.
func dataRuntime(t *testing.T, kernel image.Kernel, opts unitask.Options) *unitask.Runtime {
	t.Helper()
	needClones(t)
	if kernel == image.Nanos {
		needNanos(t, image.HostArch())
	}
	opts.Home = newHome(t)
	rt, err := unitask.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	if _, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{Kernel: kernel, Image: "data"}); err != nil {
		t.Fatal(err)
	}
	return rt
}

// pictures returns the artifacts that are PNG files and not empty.
func pictures(t *testing.T, rt *unitask.Runtime, res *unitask.Result) (names []string) {
	t.Helper()
	for _, a := range res.Artifacts {
		if !strings.HasSuffix(a.Path, ".png") {
			continue
		}
		f, err := rt.Runs().OpenArtifact(res.RunID, a.Path)
		if err != nil {
			t.Fatal(err)
		}
		im, err := png.Decode(f)
		f.Close()
		if err != nil {
			t.Errorf("%s: %v", a.Path, err)
			continue
		}
		colours := map[any]bool{}
		for x := range im.Bounds().Dx() {
			for y := range im.Bounds().Dy() {
				colours[im.At(x, y)] = true
			}
		}
		if len(colours) < 5 {
			t.Errorf("%s has %d colours", a.Path, len(colours))
		}
		names = append(names, a.Path)
	}
	return names
}

// Data scripts work as people write them. The expected output was calculated by hand, or compared with known results;
// the files in /out exist.
func TestDataScripts(t *testing.T) { dataScripts(t, image.Linux) }

func TestDataScriptsNanos(t *testing.T) {
	if !long() {
		t.Skip("the same on the other kernel: make long; TestClonesOfDataDiffer runs here")
	}
	dataScripts(t, image.Nanos)
}

func dataScripts(t *testing.T, kernel image.Kernel) {
	web := newSite(t, sales)
	rt := dataRuntime(t, kernel, unitask.Options{Upstream: web.upstream})
	for _, c := range []struct{ name, stdout, artifacts string }{
		{"csv_to_chart",
			"          sum        mean  count\nregion                          \nnorth   400.0  133.333333      3\nsouth   175.0   87.500000      2\n", "figure-1.png"},
		{"excel",
			"   item  price  n\n    pen   1.50 10\n   book  12.25  2\nGröße ü   3.00  7\n['01.01.2026', '02.01.2026', '03.01.2026'] 60.5\n['n', 'figures'] =C3*D3\n", "orders.xlsx summary.xlsx"},
		{"sqlite",
			"  name     city  n  total\n Grace New York  2  100.0\n   Ada   London  2   15.0\nEdsger   Austin  0    0.0\n[('Grace', 0.87), ('Ada', 0.13)]\n" +
				"{Timestamp('2026-01-01 00:00:00'): 10.5, Timestamp('2026-02-01 00:00:00'): 104.5}\n", ""},
		{"regex", "True 80000 ['200', '404', '500']\nTrue 10.0.x.x \n", ""},
		{"regex_large", "True True\nTrue ['/', '/api/items', '/login']\n", ""},
		{"download", "            sum  count\ncurrency              \nDKK        6.71      1\nEUR       15.50      2\n" +
			"True [1, 2, 2]\n201 {\"sum\":{\"DKK\":6.71,\"EUR\":15.5},\"count\":{\"DKK\":1,\"EUR\":2}}\n404 Not Found\ngaierror\n", ""},
		{"markup",
			"item,price\ntea & milk,2.5\ncaüe,3.0\nhttps://example.com/x\n['b']\n1=a;2=b;\n1 (1, 11)\n{'a': [1, 2], 'b': ['x', 'y']}\n", ""},
		{"pictures",
			"PNG (200, 100) True\nJPEG (200, 100) True\nGIF (200, 100) True\nWEBP (200, 100) True\nTIFF (200, 100) True\nBMP (200, 100) True\nJPEG2000 (200, 100) True\n(25, 50) (100, 200) uint8 255 0\n", "small.png"},
		{"timeseries",
			"                           min  max  mean\n2026-01-01 00:00:00+01:00 -1.0  1.0  -0.0\n2026-01-02 00:00:00+01:00 -1.0  1.0   0.0\nTrue 2025-12-31 23:00:00+00:00\n2026-03-29 03:00:00+02:00 239\n", "figure-1.png figure-2.png"},
		{"numbers",
			"39.0 [-0.359   0.5897  0.7436] 3\n2.5 1.0 (5,)\n[0.548814 0.715189 0.602763]\n[ 1. -2.] 1.570796\n1.718282 2.25\n-1.0776 0.3126\n-16.0 60.0\n", ""},
		{"json_report",
			"sku           x     y   All\nuser.name                  \nAnn         3.0  10.0  13.0\nBo          7.5   0.0   7.5\nAll        10.5  10.0  20.5\n" +
				"{'both': 3, 'right_only': 1, 'left_only': 0} [2, 0]\n4 | Ann | 3.0 | 10.0 | 13.0 |\n| Bo | 7.5 | 0.0 | 7.5 |\n| All | 10.5 | 10.0 | 20.5 |\n", "report.html"},
		{"cleaning",
			"   name   age     joined  amount\n0   Ann  31.0 2026-01-05  1200.5\n1   Bob   NaN        NaT    30.0\n2   Bob  45.0        NaT    30.0\n3  None  27.0 2026-03-01    -5.0\n4   Zoë   NaN        NaT     NaN\n" +
				"{'name': 1, 'age': 2, 'joined': 3, 'amount': 1} 1\n[{'name': 'Ann', 'age': 31.0, 'band': 'middle'}, {'name': 'Bob', 'age': 45.0, 'band': 'old'}, {'name': 'Zoë', 'age': 31.0, 'band': nan}]\n" +
				"[['Ann', 'age', 31.0], ['Bob', 'age', 45.0], ['Zoë', 'age', 31.0], ['Ann', 'amount', 1200.5], ['Bob', 'amount', 30.0], ['Zoë', 'amount', nan]]\n", "tidy.csv"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			code, err := os.ReadFile(filepath.Join("testdata/data", c.name+".py"))
			if err != nil {
				t.Fatal(err)
			}
			req := unitask.Request{Path: c.name + ".py", Code: string(code), Image: "data", Kernel: kernel,
				Timeout: 3 * time.Minute}
			if c.name == "download" {
				req.AllowNet, req.CA = []string{"good.example"}, web.ca
			}
			res, err := rt.Run(t.Context(), req, unitask.IO{})
			if err != nil || res.ExitCode != 0 || !res.Cloned {
				t.Fatalf("%v %+v\n%s", err, res, res.Stderr)
			}
			if string(res.Stdout) != c.stdout || len(res.Stderr) > 0 {
				t.Errorf("%s\nwant\n%s\n%s", res.Stdout, c.stdout, res.Stderr)
			}
			var left []string
			for _, a := range res.Artifacts {
				left = append(left, a.Path)
			}
			if got := strings.Join(left, " "); got != c.artifacts {
				t.Errorf("left %q, want %q", got, c.artifacts)
			}
			pictures(t, rt, res)
		})
	}
}

// sales serves a table and pages of JSON, and receives a report.
func sales(m *http.ServeMux) {
	const table = "day,currency,amount\n2026-01-31,EUR,10.5\n2026-02-01,DKK,50\n2026-02-02,EUR,5\n"
	m.HandleFunc("GET good.example/sales.csv", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, table) })
	m.HandleFunc("GET good.example/sales.csv.gz", func(w http.ResponseWriter, r *http.Request) {
		packed := gzip.NewWriter(w)
		fmt.Fprint(packed, table)
		packed.Close()
	})
	m.HandleFunc("GET good.example/rates", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("page") == "1" {
			fmt.Fprint(w, `{"rates":{"EUR":1},"next":"https://good.example/rates?page=2"}`)
			return
		}
		fmt.Fprint(w, `{"rates":{"DKK":0.1342},"next":null}`)
	})
	m.HandleFunc("PUT good.example/report", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body)
	})
	m.HandleFunc("GET good.example/nothing", http.NotFound)
}

type importedAheadEndsRow struct{ name, code, seen string }

// importedAheadEndsRows are the cases of TestImportedAheadEnds.
func importedAheadEndsRows(end string) []importedAheadEndsRow {
	return []importedAheadEndsRow{ // its effects in a new process
		{"an object that a module holds", end + "import json; json.held = End()", "end of End"},
		{"in a list that a module holds", end + "import json; json.held = [{'x': (End(), 1)}]", "end of End"},
		{"an object that the collector does not know", "class End:\n  __slots__ = ()\n  def __del__(self): print('end')\nimport json; json.held = End()", "end"},
		{"a circle", end + "import json; a = End(); a.me = a; json.held = a; b = End(); b.me = b", "end of End\nend of End"},
		{"the program's own", end + "x = End()", "end of End"},
		{"one that resurrects itself", "import json\nclass End:\n  def __del__(self): print('end'); json.held = self\njson.held = End()", "end"},
		{"one that raises", "import json\nclass End:\n  def __del__(self): 1 / 0\njson.held = End()", "ZeroDivisionError"},
		{"a file", "import json; json.held = open('/out/x', 'w'); json.held.write('written')", "x 7"},
		{"a file of bytes, and a closed one", "import json; json.held = open('/out/x', 'wb'); json.held.write(b'written')\nwith open('/out/y', 'w') as f: f.write('y')\njson.closed = f", "x 7"},
		{"a file of one's own class", "import io, json\nclass Own(io.StringIO):\n  def close(self): print('closed'); super().close()\njson.held = Own()", "closed"},
		{"an archive", "import zipfile; held = zipfile.ZipFile('/out/x.zip', 'w'); held.writestr(zipfile.ZipInfo('a', (2026, 1, 1, 0, 0, 0)), 'b')", "x.zip 101"},
		{"a temporary folder", "import json, tempfile; json.held = tempfile.TemporaryDirectory(dir='/out', prefix='x'); open(json.held.name + '/y', 'w').close()", ""},
		{"a temporary file", "import json, tempfile; json.held = tempfile.NamedTemporaryFile(dir='/out', prefix='x'); json.held.write(b'y')", ""},
		{"a generator", "import json\ndef count():\n  try: yield 1\n  finally: print('finally')\njson.held = count(); next(json.held)", "finally"},
		{"a coroutine", "import json\nclass Stop:\n  def __await__(self): yield\nasync def wait():\n  try: await Stop()\n  finally: print('finally')\njson.held = wait(); json.held.send(None)", "finally"},
		{"one that was never awaited", "import json\nasync def wait(): pass\njson.held = wait()", "never awaited"},
		{"a weak reference", "import json, sys, types, weakref\nclass Thing:\n  def do(self): pass\ndef gone(r): print('gone', r() is None)\njson.held = Thing()\nsys.watch = weakref.ref(json.held, types.FunctionType(gone.__code__, {'print': print}))", "gone True"},
		{"weakref.finalize", "import json, weakref\nclass Thing: pass\njson.held = Thing(); weakref.finalize(json.held, print, 'finalized')", "finalized"},
		{"a handler", "import logging\nclass Own(logging.Handler):\n  def emit(self, r): print('emit', r.getMessage())\n  def close(self): print('close'); super().close()\nlogging.getLogger().addHandler(Own()); logging.warning('x')", "close"},
		{"atexit", "import atexit, logging; atexit.register(print, 'last'); atexit.register(lambda: print('first', logging.shutdown.__name__))", "first shutdown\nlast"},
		{"atexit cleared", "import atexit; atexit.register(print, 'never'); atexit._clear()", ""},
		{"a daemon thread", end + "import json, threading, time; json.held = End(); threading.Thread(target=time.sleep, args=[60], daemon=True).start(); print('on')", "end of End"},
		{"a thread that ends later", end + "import json, threading, time\ndef late():\n  time.sleep(.3); print('late'); json.held = End()\nthreading.Thread(target=late).start(); print('on')", "late\nend of End"},
		{"a child", end + "import json, os, sys\njson.held = End()\nif os.fork() == 0: print('child'); sys.exit(3)\nsys.stdout.flush(); print('parent', os.waitstatus_to_exitcode(os.wait()[1]))", "child\nend of End\nparent 3\nend of End"},
		{"gc.unfreeze", end + "import gc, json; gc.unfreeze(); json.held = End()", "end of End"},
		{"gc.freeze", end + "import gc, json; json.held = End(); gc.freeze(); print('frozen')", "end of End"},
		{"callbacks of the collector", "import gc\ndef once(phase, info): gc.callbacks.remove(once); print('called')\ngc.callbacks.append(once)", "called"},
		{"statistics of the collector", "import gc; gc.collect(); gc.set_debug(gc.DEBUG_SAVEALL)", ""},
		{"a class whose class has an end", "import json\nclass Meta(type):\n  def __del__(cls): print('end of', cls.__name__)\nclass Thing(metaclass=Meta): pass\njson.held = Thing; del Thing", "end of Thing"},
		{"modules in the end", "import json, sys\nclass End:\n  def __del__(self):\n    print(sys is None, json.JSONDecodeError.__name__, __name__)\n    try: import csv\n    except ImportError as e: print(e)\njson.held = End()", "sys.meta_path is None"},
		{"an exit code", end + "import json, sys; json.held = End(); sys.exit(7)", "end of End"},
		{"an exception", end + "import json; json.held = End(); raise ValueError('x')", "end of End"},
		{"os._exit", end + "import json, os; json.held = End(); os._exit(4)", ""},
		{"a metaclass", "import json\nclass Meta(type):\n  def __del__(cls): print('end of a class')\nclass Thing(metaclass=Meta): pass\njson.held = Thing; del Thing, Meta", "end of a class"},
		{"a kind of weak reference", "import json, weakref\nclass Ref(weakref.ref):\n  def __del__(self): print('end of a reference')\nclass Thing: pass\njson.thing = Thing(); json.held = Ref(json.thing)", "end of a reference"},
		{"a weak reference that calls C", "import json, sys, types, weakref\nclass Thing:\n  def do(self): pass\ndef gone(r): print('gone', r() is None)\njson.held = Thing()\nsys.watch = weakref.ref(json.held, print)", "dead"},
		{"a class with another's name", "import json\njson.held = type('_io.BytesIO', (), {'__del__': lambda self: print('end')})()", "end"},
		{"a file that is read, with warnings", "import json, warnings; warnings.simplefilter('default'); json.held = open('/dev/null', 'rb')", "ResourceWarning"},
		{"a database", "import json, sqlite3; json.held = sqlite3.connect('/out/x.db'); json.held.execute('pragma journal_mode=wal'); json.held.execute('create table t (x)'); json.held.commit()", "x.db 8192"},
		{"a kind of database", "import json, sqlite3\nclass Db(sqlite3.Connection): pass\njson.held = sqlite3.connect('/out/x.db', factory=Db); json.held.execute('pragma journal_mode=wal'); json.held.execute('create table t (x)'); json.held.commit()", "x.db 8192"},
		{"a store of a library's", "import dbm.ndbm, json; json.held = dbm.ndbm.open('/out/x', 'c'); json.held['a'] = 'b'", "x.db 12288"},
		{"a stream that is its own buffer", "import io\nt = io.TextIOWrapper(io.BytesIO())\ntry: t.__init__(t)\nexcept ValueError: print(t.buffer is t)", "True"},
		{"a stream with an end of its own", "import io, json\nb = io.StringIO(); b.close = lambda: print('own close'); b.me = b; json.held = b", "own close"},
		{"a folder that is read, with warnings", "import json, os, warnings; warnings.simplefilter('default'); json.held = os.scandir('/')", "ResourceWarning"},
		{"a weak reference to a method", "import json, sys, types, weakref\nclass Thing:\n  def do(self): pass\ndef gone(r): print('gone', r() is None)\njson.held = Thing()\nsys.watch = weakref.WeakMethod(json.held.do, types.FunctionType(gone.__code__, {'print': print}))", "gone True"},
		{"a stdout of one's own", "import json, sys\nclass Out:\n  def __init__(self, to): self.to = to\n  def write(self, text): return self.to.write(text)\n  def flush(self):\n    import json as again\n    self.to.write(f'flushed {again is json}\\n'); self.to.flush()\nsys.stdout = Out(sys.stdout)", "flushed True\nflushed True"},
		{"exit functions by hand", "import atexit, json, sys\natexit.register(print, 'early'); atexit._run_exitfuncs(); print('json' in sys.modules)\nimport json as again; print(again is json)", "early\nTrue\nTrue"},
		{"another module gc", "import gc; gc.get_objects = lambda: 5; gc.unfreeze = gc.get_debug = None", ""},
		{"a stream that was stdout", "import io, json, sys\nprint('written', end=''); json.held = sys.stdout; sys.stdout = sys.__stdout__ = io.StringIO()", "written"},
		{"a stream that was stderr", "import io, json, sys\nsys.stderr.reconfigure(write_through=False, line_buffering=False); sys.stderr.write('written'); json.held = sys.stderr; sys.stderr = sys.__stderr__ = io.StringIO()", "written"},
		{"a stdin with an end of its own", "import json, sys\nsys.stdin.close = lambda: print('own close'); json.held = sys.stdin", "own close"},
		{"a stdout with a flush of its own", "import json, sys\nwas = sys.stdout.flush\ndef flush():\n  import json as again\n  print('flushed', again is json); was()\nsys.stdout.flush = flush", "flushed True"},
		{"a buffer of stdout's with a flush of its own", "import json, sys\ndef flush():\n  import json as again\n  sys.stderr.write(f'flushed {again is json}\\n')\nsys.stdout.buffer.flush = flush", "flushed True"},
		{"a stream with a flush of its own", "import io, json\nt = io.TextIOWrapper(io.BytesIO()); t.flush = lambda: print('own flush'); json.held = t", "own flush"},
		{"a reader with a flush of its own", "import io, json\nt = io.BufferedReader(io.BytesIO()); t.flush = lambda: print('own flush'); json.held = t", "own flush"},
		{"a filter of warnings that was changed", "import json, os, warnings\nf = warnings.filters; f[-1] = ('default', None, ResourceWarning, None, 0); warnings._filters_mutated(); json.held = os.scandir('/')", "ResourceWarning"},
		{"all filters of warnings", "import json, os, warnings\nf = warnings.filters; f[:] = [('default', None, ResourceWarning, None, 0)] * len(f); warnings._filters_mutated(); json.held = os.scandir('/')", "ResourceWarning"},
		{"one that finds what is called last", "import atexit\nclass Any:\n  def __eq__(self, other):\n    if getattr(other, '__name__', '') == 'leave': other()\n    return False\natexit.register(print, 'last'); atexit.unregister(Any())", "last"},
		{"a broken stdout", "import sys, os; print('lost'); os.close(1)", "Bad file descriptor"},
	}
}

// Python's finalization does the same as without preloaded modules. Modules that have nothing to finalize stay intact
// (guest/python/program/warm.c).
func TestImportedAheadEnds(t *testing.T) {
	needClones(t)
	home := newHome(t)
	file := describe(t, filepath.Join(home, "environments"), "early", "from = 'python'\nwarm = ['json']\n")
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	if _, _, err := rt.BuildImage(t.Context(), file, ""); err != nil {
		t.Fatal(err)
	}
	for _, fresh := range []bool{true, false} {
		for cloned := false; !cloned; {
			res, err := rt.Run(t.Context(), unitask.Request{Language: "python", Image: "early", Kernel: image.Linux, Code: "1",
				FreshProcess: fresh}, unitask.IO{})
			if err != nil || res.ExitCode != 0 {
				t.Fatalf("%v %+v", err, res)
			}
			cloned = res.Cloned
		}
	}
	const same = "import gc, inspect, io, logging, os, random, time, json\n" // as warm.py
	// differs between two runs on one host: addresses, and contents of a libdb file
	differs := regexp.MustCompile(`0x[0-9a-f]+|(x\.db 12288) .*`)
	const end = "class End:\n  def __del__(self): print('end of', type(self).__name__)\n"
	for _, c := range importedAheadEndsRows(end) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			var was string
			for _, fresh := range []bool{true, false} {
				res, err := rt.Run(t.Context(), unitask.Request{Language: "python", Image: "early", Kernel: image.Linux,
					Code: same + c.code + "\n", FreshProcess: fresh}, unitask.IO{})
				if err != nil || !res.Cloned {
					t.Fatalf("%v %+v", err, res)
				}
				got := fmt.Sprintf("%d\n%s\n%s\n", res.ExitCode, res.Stdout, res.Stderr)
				for _, a := range res.Artifacts {
					got += fmt.Sprintln(a.Path, a.Size, a.SHA256)
				}
				got = differs.ReplaceAllString(got, "$1")
				if was == "" {
					was = got
				}
				if fresh && !strings.Contains(got, c.seen) {
					t.Errorf("in a new process it ends as\n%s", got)
				} else if got != was {
					t.Errorf("ends as\n%s\nand in a new process as\n%s", got, was)
				}
			}
		})
	}
	// Common actions of programs don't cause a full finalization.
	for _, c := range []struct{ name, code, stdout string }{
		{"what is usual",
			"import csv, datetime, re\nclass Point:\n  def __init__(self, x): self.x = x\nall = [Point(i) for i in range(1000)]\nwith open('/tmp/x', 'w') as f: csv.writer(f).writerow([1, 'a'])\nwith open('/tmp/x') as f: print(f.read(), end='')\n" +
				"out = io.StringIO(); print(json.dumps({'a': 1}), file=out)\nnext(x for x in [1]); re.findall('a', 'b'); datetime.date(2026, 1, 1)\n", "1,a\nunitask.leave\n"},
		{"an end", end + "x = End()", "end of End\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A hook that does not keep the program's names.
			hook := "import sys, types; sys.addaudithook(types.FunctionType((lambda event, _: event.startswith('unitask') and print(event)).__code__, {'print': print}))\n"
			res, err := rt.Run(t.Context(), unitask.Request{Language: "python", Image: "early", Kernel: image.Linux,
				Code: same + hook + c.code + "\n"}, unitask.IO{})
			if err != nil || !res.Cloned || string(res.Stdout) != c.stdout {
				t.Errorf("%v %s%s, want %s", err, res.Stdout, res.Stderr, c.stdout)
			}
		})
	}
}

// Which figures become pictures, and what a clone of the template shows of them.
func TestDataFigures(t *testing.T) {
	rt := dataRuntime(t, image.Linux, unitask.Options{})
	for _, c := range []struct {
		name, code string
		req        unitask.Request
		stdout     string
		pictures   string
	}{
		{"shown, saved, left open", `
import matplotlib.pyplot as plt, io, os
open('/out/figure-2.png', 'xb').close()
def draw(n):
    plt.figure(figsize=(1, 1)); plt.plot(range(n)); return plt.gcf()
draw(2); draw(3); plt.show()          # 1 and 3: 2 is taken
draw(4).savefig('/out/own.png'); plt.show()  # it is there already
draw(5).savefig('/work/own.png'); plt.close()
draw(6).savefig(io.BytesIO())         # saved: not written at the end
with open('/out/opened.png', 'wb') as f: draw(6).savefig(f)
plt.close()
draw(7); plt.close()                  # closed
draw(8)                               # 4, at the end
print(sorted(os.listdir('/out')), plt.get_fignums())
os.remove('/out/figure-2.png')`, unitask.Request{}, "['figure-1.png', 'figure-2.png', 'figure-3.png', 'opened.png', 'own.png'] [1, 2]\n", "figure-1.png figure-3.png figure-4.png opened.png own.png"},
		{"one that can't be drawn", `
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.show()
plt.figure(figsize=(1e6, 1e6)); plt.plot([1, 2])
try: plt.show()
except ValueError as e: print(str(e)[:19], plt.get_fignums())
plt.figure(); plt.plot([1, 2])
`, unitask.Request{}, "Image size of 10000 [1]\n", "figure-1.png figure-2.png"},
		{"settings beside the code",
			"import matplotlib\nprint(matplotlib.rcParams['lines.linewidth'], matplotlib.rcParams['timezone'], matplotlib.get_backend())",
			unitask.Request{InlineFiles: []unitask.InlineFile{{Name: "matplotlibrc",
				Content: "lines.linewidth: 7\ntimezone: Europe/Berlin\n"}}}, "7.0 Europe/Berlin module://unitask_figures\n", ""},
		{"a backend beside the code",
			"import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show(); print(plt.get_backend())",
			unitask.Request{InlineFiles: []unitask.InlineFile{{Name: "matplotlibrc", Content: "backend: svg\n"}}}, "svg\n", ""},
		{"settings that are none", "print('on')",
			unitask.Request{InlineFiles: []unitask.InlineFile{{Name: "matplotlibrc/x"}}}, "on\n", ""},
		{"modules beside the code",
			"import pytz, queue, random, sys\nprint(pytz.mine, queue.mine, 'pandas' in sys.modules, random.__file__)",
			unitask.Request{Path: "numbers.py", InlineFiles: []unitask.InlineFile{{Name: "pytz.py", Content: "mine = 6\n"},
				{Name: "queue/__init__.py", Content: "mine = 'q'\n"}, {Name: "random/data.csv"}}},
			"6 q False /usr/lib/python3.13/random.py\n", ""},
		{"what only looks like them", "import sys\nprint('pandas' in sys.modules)",
			unitask.Request{Path: "numbers.py", InlineFiles: []unitask.InlineFile{{Name: "six.csv"}, {Name: "random/data.csv"},
				{Name: "lib/six.py"}}}, "True\n", ""},
		{"at sys.exit", "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nimport sys\nsys.exit()", unitask.Request{}, "",
			"figure-1.png"},
		{"another backend",
			"import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show(); print(matplotlib.get_backend(), plt.get_fignums())", unitask.Request{}, "agg [1]\n", ""},
		{"nothing of it", "import sys, os\nprint(os.listdir('/out'), 'unitask_figures' in sys.modules['__main__'].__dict__)",
			unitask.Request{}, "[] False\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			c.req.Code, c.req.Image, c.req.Timeout = c.code, "data", 3*time.Minute
			res, err := rt.Run(t.Context(), c.req, unitask.IO{})
			if err != nil || res.ExitCode != 0 {
				t.Fatalf("%v %+v\n%s", err, res, res.Stderr)
			}
			if string(res.Stdout) != c.stdout || bytes.Contains(res.Stderr, []byte("Error")) &&
				!strings.Contains(c.name, "can't") {
				t.Errorf("%s, want %s\n%s", res.Stdout, c.stdout, res.Stderr)
			}
			if got := strings.Join(pictures(t, rt, res), " "); got != c.pictures {
				t.Errorf("pictures %q, want %q", got, c.pictures)
			}
		})
	}
}

// Modules that draw random numbers differ between clones, even preloaded ones.
func TestClonesOfDataDiffer(t *testing.T) {
	for _, kernel := range []image.Kernel{image.Linux, image.Nanos} {
		t.Run(string(kernel), func(t *testing.T) {
			clonesOfDataDiffer(t, dataRuntime(t, kernel, unitask.Options{}), kernel)
		})
	}
}

func clonesOfDataDiffer(t *testing.T, rt *unitask.Runtime, kernel image.Kernel) {
	const code = `
import numpy as np, random, uuid, tempfile, secrets, sys, time, logging, multiprocessing
of = np.random.get_state()
assert of[0] == 'MT19937' and of[2:] == (623, 0, 0.0) and of[1][0] == 0x80000000 and len(set(of[1])) > 600, of
print(np.random.rand(), np.random.RandomState().rand(), np.random.default_rng().random(), np.random.SeedSequence().entropy, random.random(), uuid.uuid4(), uuid.uuid1(), tempfile.mkdtemp(), secrets.token_hex(),
  multiprocessing.current_process().authkey.hex())
print(abs(logging._startTime - time.time()) < 30, [m for m in ('numpy', 'pandas') if m not in sys.modules], file=sys.stderr)`
	seen := map[string]int{}
	for i := range 4 {
		res, err := rt.Run(t.Context(), unitask.Request{Language: "python", Image: "data", Kernel: kernel, Code: code},
			unitask.IO{})
		if err != nil || res.ExitCode != 0 || !res.Cloned || string(res.Stderr) != "True []\n" {
			t.Fatalf("%v %+v %s", err, res, res.Stderr)
		}
		for n, value := range strings.Fields(string(res.Stdout)) {
			key := fmt.Sprint(n, " ", value)
			if other, ok := seen[key]; ok {
				t.Errorf("clones %d and %d have the same %s", other, i, key)
			}
			seen[key] = i
		}
	}
	if len(seen) != 4*10 {
		t.Errorf("%d values", len(seen))
	}
}
