package unitask_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

type runsRow struct {
	name    string
	req     unitask.Request
	outcome unitask.Outcome
	exit    int
	stdout  string // regular expressions for the whole stream
	stderr  string
	message string // for Result.Error
}

// runsRows are the runs of TestRuns.
func runsRows() []runsRow {
	return []runsRow{
		{"hello", unitask.Request{},
			unitask.OutcomeExited, 0, `hello from linux number\n`, ``, ``},
		{"own exit code", unitask.Request{}, unitask.OutcomeExited, 7, ``, ``, ``},
		{"exit 124 is the code's own", unitask.Request{}, unitask.OutcomeExited, 124, ``, ``, ``},
		{"exception", unitask.Request{}, unitask.OutcomeExited, 1, ``,
			`.*Error: boom\n    at .*`, ``},
		{"timeout keeps output", unitask.Request{Timeout: time.Second},
			unitask.OutcomeTimeout, 124, `tick\n`, ``, `time limit of 1 s.*--timeout.*`},
		{"timeout while idle", unitask.Request{Timeout: time.Second},
			unitask.OutcomeTimeout, 124, ``, ``, `time limit.*`},
		{"abort", unitask.Request{}, unitask.OutcomeSignaled, 134, `a\n`, `.*`,
			`.*signal 6`},
		{"kill -9 of itself", unitask.Request{},
			unitask.OutcomeSignaled, 137, `a\n`, ``, `.*signal 9`},
		{"stack overflow", unitask.Request{}, unitask.OutcomeExited, 1, ``,
			`.*RangeError: Maximum call stack size exceeded.*`, ``},
		{"heap exhausted", unitask.Request{MemoryMB: 192},
			unitask.OutcomeOOM, 137, ``, `.*heap out of memory.*`, `out of memory.*192 MiB.*--memory.*`},
		{
			name:    "memory exhausted outside the heap",
			req:     unitask.Request{MemoryMB: 192},
			outcome: unitask.OutcomeOOM,
			exit:    137,
			stderr:  `.*`,
			message: `out of memory.*192 MiB.*`,
		},
		{"writes to the descriptors",
			unitask.Request{}, unitask.OutcomeExited, 0, `one\nthree\n`, `two\n`, ``},
		{
			name:    "environment is only what was given",
			req:     unitask.Request{Env: map[string]string{"A": "1"}},
			outcome: unitask.OutcomeExited,
			stdout:  `\{("(A|LANG|PATH|HOME)":"[^"]*",?){4}\}\n`,
		},
		{
			name:    "arguments and paths",
			req:     unitask.Request{Args: []string{"x", "--y"}, Dir: "/a/b", Path: "c/d.js"},
			outcome: unitask.OutcomeExited,
			stdout:  `\[ '/a/b/c/d.js', 'x', '--y' \] /a/b /a/b/c/d.js\n`,
		},
		{"in root's home",
			unitask.Request{Dir: "/root/deep"}, unitask.OutcomeExited, 0, `/root/deep /root/deep/code.js\n`, ``, ``},
		{"package type", unitask.Request{PackageType: "module"},
			unitask.OutcomeExited, 0, `undefined /work/code.js\n`, ``, ``},
		{"writes files where it is",
			unitask.Request{}, unitask.OutcomeExited, 0, `\[ 'code.js', 'y' \]\n`, ``, ``},
		// Each attempt is timed alone: under TCG, fetch takes a second to load.
		{"no network", unitask.Request{Timeout: 20 * time.Second}, unitask.OutcomeExited, 0,
			`fetch failed ENOTFOUND fast\nconnect ECONNREFUSED fast\nlookup ENOTFOUND fast\nudp silent\n`, ``, ``},
		{"truncated output", unitask.Request{OutputBytes: 1000}, unitask.OutcomeExited, 0, `x{1000}`, `e\n`, ``},
		// Pending output at the end of the program does not delay its end.
		{"a thread goes on", unitask.Request{OutputBytes: 1000}, unitask.OutcomeExited, 5, `y{1000}`, ``, ``},
	}
}

// TestRuns lists the ways in which code can end, and the results.
func TestRuns(t *testing.T) {
	needVM(t)
	home := newHome(t)
	programs := testarchive.Open(t, "testdata/runs.txtar")
	cases := runsRows()
	for i, c := range cases {
		cases[i].req.Code = programs.Text(c.name + ".js")
	}
	for _, kernel := range kernels(t) {
		pooled, err := unitask.Open(unitask.Options{Home: home,
			Machines: unitask.Pool(unitask.PoolSize{Max: 2}, unitask.MachineClass{})})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { pooled.Close() })
		ways := []string{"clone", "cold", "pool"}
		if kernel == image.Linux {
			ways = append(ways, "fresh")
		}
		for i := range len(ways) * len(cases) {
			c, how := cases[i%len(cases)], ways[i/len(cases)]
			cold := how == "cold"
			if !runsNow(cold && i%4 != 0 || how == "fresh" && i%2 != 0) { // the code ends in the same guest
				continue
			}
			t.Run(string(kernel)+"/"+how+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				slot(t)
				req := c.req
				req.Kernel, req.Cold, req.FreshProcess = kernel, cold, how == "fresh"
				rt := pooled
				if how != "pool" {
					if rt, err = unitask.Open(unitask.Options{Home: home}); err != nil {
						t.Fatal(err)
					}
					defer rt.Close()
				}
				res, err := rt.Run(t.Context(), req, unitask.IO{Events: func(e unitask.Event) { t.Log(e.Kind, e.Message) }})
				if err != nil {
					if res != nil { // the machine's last output
						said, _ := os.ReadFile(filepath.Join(home, "runs", res.RunID, record.ConsoleFile))
						t.Logf("its console: %s", said[max(0, len(said)-2000):])
					}
					t.Fatal(err)
				}
				if res.Outcome != c.outcome || res.ExitCode != c.exit {
					t.Errorf("%s with exit code %d, want %s with %d", res.Outcome, res.ExitCode, c.outcome, c.exit)
				}
				for _, s := range []struct{ what, got, want string }{
					{"stdout", string(res.Stdout), c.stdout}, {"stderr", string(res.Stderr), c.stderr},
					{"error", res.Error, c.message}} {
					if !regexp.MustCompile(`(?s)\A` + s.want + `\z`).MatchString(s.got) {
						t.Errorf("%s is %q, want %q", s.what, s.got, s.want)
					}
				}
				if want := req.OutputBytes > 0; res.Truncated != want {
					t.Errorf("truncated: %v", res.Truncated)
				}
				if res.Cloned == cold && (cold || req.MemoryMB == 0 && !req.FreshProcess) {
					t.Errorf("cloned: %v", res.Cloned)
				}
				if res.Kernel != kernel || res.Accelerator == "" || res.Duration.Total < res.Duration.Run ||
					(res.Duration.Boot == 0 && !res.Pooled) {
					t.Errorf("incomplete: %+v", res)
				}
			})
		}
	}
}

// TestOutputFlood checks that 120 MiB of output cost little memory and do not stall the machine.
func TestOutputFlood(t *testing.T) {
	needVM(t)
	code := testarchive.Open(t, "testdata/outputflood.txtar").Text("flood.js")
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			before := rss(t)
			res, err := unitask.Run(t.Context(), unitask.Request{Kernel: kernel, Timeout: 4 * time.Minute, Code: code},
				unitask.Options{Home: newHome(t)})
			if err != nil {
				t.Fatal(err)
			}
			if len(res.Stdout) != policy.DefaultOutputBytes || !res.Truncated || res.ExitCode != 0 ||
				string(res.Stderr) != "done\n" {
				t.Errorf("%d bytes, truncated %v, exit %d, stderr %q", len(res.Stdout), res.Truncated, res.ExitCode, res.Stderr)
			}
			if grown := rss(t) - before; grown > 80<<20 {
				t.Errorf("memory grew by %d MiB", grown>>20)
			}
		})
	}
}

func rss(t *testing.T) int64 {
	t.Helper()
	runtime.GC()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("no /proc/self/statm on this system")
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

func TestCancel(t *testing.T) {
	needVM(t)
	home := newHome(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("changed my mind")
	// The first line on stderr ends it.
	var begin time.Time
	streams := unitask.IO{Stderr: writerFunc(func(p []byte) (int, error) {
		begin = time.Now()
		cancel(why)
		return len(p), nil
	})}
	res, err := unitask.Run(ctx,
		unitask.Request{Code: `require("fs").writeSync(1, "up\n"); setTimeout(() => console.error("now"), 50); ` +
			`setInterval(() => {}, 1000)`},
		unitask.Options{Home: home, IO: streams})
	if !errors.Is(err, why) || res == nil || res.Outcome != unitask.OutcomeCancelled || unitask.ExitCode(res, err) != 130 {
		t.Fatalf("%v, %+v", err, res)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("stopped after %s", took)
	}
	if string(res.Stdout) != "up\n" {
		t.Errorf("what was printed before is lost: %q", res.Stdout)
	}
}

func TestQEMUKilledFromOutside(t *testing.T) {
	needVM(t)
	home := newHome(t)
	res, err := unitask.Run(t.Context(), unitask.Request{Code: `console.log("up"); setInterval(()=>{}, 1000)`},
		unitask.Options{Home: home, Events: func(e unitask.Event) {
			if e.Kind == unitask.EventStarted {
				for _, pid := range qemuChildren(t, os.Getpid()) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}})
	var host *unitask.HostError
	if !errors.As(err, &host) || !strings.Contains(err.Error(), "killed") || res.ExitCode != 125 {
		t.Fatalf("%v, %+v", err, res)
	}
	rec, err := record.Open(filepath.Join(home, "runs")).Get(res.RunID)
	if err != nil || rec.Status != record.Failed || rec.Error == "" {
		t.Errorf("record: %v %+v", err, rec)
	}
}

// qemuChildren returns the running QEMU processes that a process started.
func qemuChildren(t testing.TB, parent int) []int {
	t.Helper()
	var pids []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), "(")
		name, rest, _ := strings.Cut(rest, ") ")
		fields := strings.Fields(rest)
		if strings.HasPrefix(name, "qemu-system") && fields[0] != "Z" && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestNothingLeft checks that many runs, some at once, leave nothing behind.
func TestNothingLeft(t *testing.T) {
	needVM(t)
	t.Setenv("TMPDIR", t.TempDir()) // excludes others' files
	home := newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	once := func() {
		res, err := rt.Run(t.Context(), unitask.Request{Code: `console.log(1)`}, unitask.IO{})
		if err != nil || string(res.Stdout) != "1\n" {
			t.Errorf("%v %+v", err, res)
		}
	}
	once() // do all one-time setup now
	unitask.Settle(t.Context(), rt)
	before := inventory(t)
	rounds := 20
	if n, err := strconv.Atoi(os.Getenv("UNITASK_TEST_ROUNDS")); err == nil {
		rounds = n
	}
	for range rounds {
		once()
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(once)
	}
	group.Wait()
	unitask.Settle(t.Context(), rt)
	if after := inventory(t); after != before {
		t.Errorf("before: %+v\nafter:  %+v", before, after)
	}
	ids, err := rt.Runs().IDs()
	if err != nil || len(ids) != rounds+9 {
		t.Errorf("%d records: %v", len(ids), err)
	}
}

// stock is the set of resources of a process that a run might leave behind.
type stock struct{ qemus, descriptors, goroutines, tempFiles int }

func inventory(t *testing.T) stock {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc on this system")
	}
	temp, err := filepath.Glob(filepath.Join(os.TempDir(), "*"))
	if err != nil {
		t.Fatal(err)
	}
	return stock{len(qemuChildren(t, os.Getpid())), len(fds), runtime.NumGoroutine(), len(temp)}
}

func TestDamagedImage(t *testing.T) {
	needVM(t)
	for name, damage := range map[string]func(t *testing.T, file string){
		"truncated": func(t *testing.T, file string) {
			if err := os.Truncate(file, 1<<20); err != nil {
				t.Fatal(err)
			}
		},
		"edited": func(t *testing.T, file string) {
			f, err := os.OpenFile(file, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte("evil"), 70<<20); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			home := newHome(t)
			copyImages(t, home)
			disks, _ := filepath.Glob(filepath.Join(home, "images", "*", image.DiskFile))
			for _, disk := range disks {
				if err := os.Chmod(disk, 0o600); err != nil {
					t.Fatal(err)
				}
				damage(t, disk)
			}
			res, err := unitask.Run(t.Context(), unitask.Request{Code: `1`, Kernel: image.Linux}, unitask.Options{Home: home})
			if !errors.Is(err, image.ErrDamaged) || !strings.Contains(err.Error(), "unitask image rm ") || res.ExitCode != 125 {
				t.Errorf("%v", err)
			}
		})
	}
}

// copyImages replaces a home's borrowed images by a copy of the Linux image.
func copyImages(t *testing.T, home string) {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: baseHome})
	if err != nil {
		t.Fatal(err)
	}
	im, err := rt.Images().Lookup(image.Linux, image.HostArch())
	if err != nil {
		t.Fatal(err)
	}
	images := filepath.Join(home, "images")
	if err := os.Remove(images); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(images, im.Digest), os.DirFS(filepath.Dir(im.Path(image.DiskFile)))); err != nil {
		t.Fatal(err)
	}
}

func TestResultJSON(t *testing.T) {
	needVM(t)
	res, err := unitask.Run(t.Context(),
		unitask.Request{Code: `process.stdout.write(Buffer.from([0xff, 0x41])); console.error("é")`},
		unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"runId", "exitCode", "stdout", "stderr", "truncated", "timedOut", "oom", "durationMs",
		"kernel", "accelerator", "memoryMb", "policy"} {
		if _, ok := fields[name]; !ok {
			t.Errorf("no %s in %s", name, text)
		}
	}
	var back unitask.Result
	if err := json.Unmarshal(text, &back); err != nil || !bytes.Equal(back.Stdout, []byte{0xff, 0x41}) ||
		string(back.Stderr) != "é\n" || back.Duration.Total != res.Duration.Total.Truncate(time.Millisecond) {
		t.Errorf("%v %+v", err, back)
	}
}

func TestBadRequests(t *testing.T) {
	home := testdir.Private(t)
	for field, req := range map[string]unitask.Request{
		"memoryMb":       {MemoryMB: 64},
		"timeoutSeconds": {Timeout: -time.Second},
		"outputBytes":    {OutputBytes: -1},
		"kernel":         {Kernel: "bsd"},
		"path":           {Path: "x.kt"},
		"language":       {Language: "pyton"},
		"image":          {Language: "js", Image: "python"},
		"nodeArgs":       {Language: "python", NodeArgs: []string{"--expose-gc"}},
		"dir":            {Dir: "relative"},
		"args":           {Args: []string{"a\x00b"}},
		"env":            {Env: map[string]string{"A=B": "1"}},
		"packageType":    {PackageType: "other"},
	} {
		res, err := unitask.Run(t.Context(), req, unitask.Options{Home: home})
		var bad *policy.FieldError
		if !errors.As(err, &bad) || bad.Field != field || res != nil || unitask.ExitCode(res, err) != 2 {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, where := range []string{"/usr/x.js", "/proc/self/x.js", "/", "/unitask/main/x.js", "/a/../etc/x.js"} {
		if _, err := unitask.Run(t.Context(), unitask.Request{Path: where},
			unitask.Options{Home: home}); unitask.ExitCode(nil, err) != 2 {
			t.Errorf("%s: %v", where, err)
		}
	}
	if entries, _ := os.ReadDir(filepath.Join(home, "runs")); len(entries) != 0 {
		t.Errorf("refused requests left %d records", len(entries))
	}
}
