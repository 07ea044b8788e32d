package unitask_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
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
	programs := testarchive.Open(t, "testdata/data.txtar")
	for _, c := range []struct{ name, artifacts string }{
		{"csv_to_chart", "figure-1.png"},
		{"excel", "orders.xlsx summary.xlsx"},
		{"sqlite", ""},
		{"regex", ""},
		{"regex_large", ""},
		{"download", ""},
		{"markup", ""},
		{"pictures", "small.png"},
		{"timeseries", "figure-1.png figure-2.png"},
		{"numbers", ""},
		{"json_report", "report.html"},
		{"cleaning", "tidy.csv"},
	} {
		code, stdout := programs.File(c.name+".py"), programs.File(c.name+".out")
		if kernel == image.Linux && !runsNow(c.name == "timeseries" || c.name == "numbers") { // the longest
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			req := unitask.Request{Path: c.name + ".py", Code: code, Image: "data", Kernel: kernel,
				Timeout: 3 * time.Minute}
			if c.name == "download" {
				req.AllowNet, req.CA = []string{"good.example"}, web.ca
			}
			res, err := rt.Run(t.Context(), req, unitask.IO{})
			if err != nil || res.ExitCode != 0 || !res.Cloned {
				t.Fatalf("%v %+v\n%s", err, res, res.Stderr)
			}
			if string(res.Stdout) != stdout || len(res.Stderr) > 0 {
				t.Errorf("%s\nwant\n%s\n%s", res.Stdout, stdout, res.Stderr)
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

// importedAheadEnds are the cases of TestImportedAheadEnds, and a part of their effects in a new process.
var importedAheadEnds = []struct{ name, seen string }{
	{"an object that a module holds", "end of End"},
	{"in a list that a module holds", "end of End"},
	{"an object that the collector does not know", "end"},
	{"a circle", "end of End\nend of End"},
	{"the program's own", "end of End"},
	{"one that resurrects itself", "end"},
	{"one that raises", "ZeroDivisionError"},
	{"a file", "x 7"},
	{"a file of bytes, and a closed one", "x 7"},
	{"a file of one's own class", "closed"},
	{"an archive", "x.zip 101"},
	{"a temporary folder", ""},
	{"a temporary file", ""},
	{"a generator", "finally"},
	{"a coroutine", "finally"},
	{"one that was never awaited", "never awaited"},
	{"a weak reference", "gone True"},
	{"weakref.finalize", "finalized"},
	{"a handler", "close"},
	{"atexit", "first shutdown\nlast"},
	{"atexit cleared", ""},
	{"a daemon thread", "end of End"},
	{"a thread that ends later", "late\nend of End"},
	{"a child", "child\nend of End\nparent 3\nend of End"},
	{"gc.unfreeze", "end of End"},
	{"gc.freeze", "end of End"},
	{"callbacks of the collector", "called"},
	{"statistics of the collector", ""},
	{"a class whose class has an end", "end of Thing"},
	{"modules in the end", "sys.meta_path is None"},
	{"an exit code", "end of End"},
	{"an exception", "end of End"},
	{"os._exit", ""},
	{"a metaclass", "end of a class"},
	{"a kind of weak reference", "end of a reference"},
	{"a weak reference that calls C", "dead"},
	{"a class with another's name", "end"},
	{"a file that is read, with warnings", "ResourceWarning"},
	{"a database", "x.db 8192"},
	{"a kind of database", "x.db 8192"},
	{"a store of a library's", "x.db 12288"},
	{"a stream that is its own buffer", "True"},
	{"a stream with an end of its own", "own close"},
	{"a folder that is read, with warnings", "ResourceWarning"},
	{"a weak reference to a method", "gone True"},
	{"a stdout of one's own", "flushed True\nflushed True"},
	{"exit functions by hand", "early\nTrue\nTrue"},
	{"another module gc", ""},
	{"a stream that was stdout", "written"},
	{"a stream that was stderr", "written"},
	{"a stdin with an end of its own", "own close"},
	{"a stdout with a flush of its own", "flushed True"},
	{"a buffer of stdout's with a flush of its own", "flushed True"},
	{"a stream with a flush of its own", "own flush"},
	{"a reader with a flush of its own", "own flush"},
	{"a filter of warnings that was changed", "ResourceWarning"},
	{"all filters of warnings", "ResourceWarning"},
	{"one that finds what is called last", "last"},
	{"a broken stdout", "Bad file descriptor"},
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
		if _, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{Image: "early", FreshProcess: fresh}); err != nil {
			t.Fatal(err)
		}
	}
	const same = "import gc, inspect, io, logging, os, random, time, json\n" // as warm.py
	// differs between two runs on one host: addresses, and contents of a libdb file
	differs := regexp.MustCompile(`0x[0-9a-f]+|(x\.db 12288) .*`)
	programs := testarchive.Open(t, "testdata/importedaheadends.txtar")
	for i, c := range importedAheadEnds {
		code := programs.Text(c.name + ".py")
		if !runsNow(i%2 == 1) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			var was string
			for _, fresh := range []bool{true, false} {
				res, err := rt.Run(t.Context(), unitask.Request{Language: "python", Image: "early", Kernel: image.Linux,
					Code: same + code + "\n", FreshProcess: fresh}, unitask.IO{})
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
	for _, c := range []struct{ name, stdout string }{
		{"what is usual", "1,a\nunitask.leave\n"},
		{"an end", "end of End\n"},
	} {
		code := programs.Text(c.name + ".py")
		t.Run(c.name, func(t *testing.T) {
			// A hook that does not keep the program's names.
			hook := programs.File("hook.py")
			res, err := rt.Run(t.Context(), unitask.Request{Language: "python", Image: "early", Kernel: image.Linux,
				Code: same + hook + code + "\n"}, unitask.IO{})
			if err != nil || !res.Cloned || string(res.Stdout) != c.stdout {
				t.Errorf("%v %s%s, want %s", err, res.Stdout, res.Stderr, c.stdout)
			}
		})
	}
}

// Which figures become pictures, and what a clone of the template shows of them.
func TestDataFigures(t *testing.T) {
	rt := dataRuntime(t, image.Linux, unitask.Options{})
	programs := testarchive.Open(t, "testdata/datafigures.txtar")
	for _, c := range []struct {
		name     string
		req      unitask.Request
		stdout   string
		pictures string
	}{
		{
			name:     "shown, saved, left open",
			stdout:   "['figure-1.png', 'figure-2.png', 'figure-3.png', 'opened.png', 'own.png'] [1, 2]\n",
			pictures: "figure-1.png figure-3.png figure-4.png opened.png own.png",
		},
		{name: "one that can't be drawn", stdout: "Image size of 10000 [1]\n", pictures: "figure-1.png figure-2.png"},
		{
			name: "settings beside the code",
			req: unitask.Request{InlineFiles: []unitask.InlineFile{
				{Name: "matplotlibrc", Content: "lines.linewidth: 7\ntimezone: Europe/Berlin\n"},
			}},
			stdout: "7.0 Europe/Berlin module://unitask_figures\n",
		},
		{
			name: "a backend beside the code",
			req: unitask.Request{InlineFiles: []unitask.InlineFile{
				{Name: "matplotlibrc", Content: "backend: svg\n"},
			}},
			stdout: "svg\n",
		},
		{
			name:   "settings that are none",
			req:    unitask.Request{InlineFiles: []unitask.InlineFile{{Name: "matplotlibrc/x"}}},
			stdout: "on\n",
		},
		{
			name: "modules beside the code",
			req: unitask.Request{Path: "numbers.py", InlineFiles: []unitask.InlineFile{
				{Name: "pytz.py", Content: "mine = 6\n"},
				{Name: "queue/__init__.py", Content: "mine = 'q'\n"},
				{Name: "random/data.csv"},
			}},
			stdout: "6 q False /usr/lib/python3.13/random.py\n",
		},
		{
			name: "what only looks like them",
			req: unitask.Request{Path: "numbers.py", InlineFiles: []unitask.InlineFile{
				{Name: "six.csv"}, {Name: "random/data.csv"}, {Name: "lib/six.py"},
			}},
			stdout: "True\n",
		},
		{name: "at sys.exit", pictures: "figure-1.png"},
		{name: "another backend", stdout: "agg [1]\n"},
		{name: "nothing of it", stdout: "[] False\n"},
	} {
		c.req.Code = programs.Text(c.name + ".py")
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			c.req.Image, c.req.Timeout = "data", 3*time.Minute
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
	code := testarchive.Open(t, "testdata/clonesofdata.txtar").Text("clones.py")
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
