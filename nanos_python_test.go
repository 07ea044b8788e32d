package unitask_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
)

const (
	childless = "the code asked for child processes, which the nanos kernel does not have: --kernel linux does"
	noOther   = "the code asked for other programs, which the nanos kernel does not have: --kernel linux does"
	noPipes   = "the code asked for named pipes, which the nanos kernel does not have: --kernel linux does"
)

type nanosPythonRow struct {
	name   string
	req    unitask.Request
	stdout string // a regular expression
	exit   int
	hint   string
}

// nanosPythonRows are the cases of TestNanosPython.
func nanosPythonRows(web *site) []nanosPythonRow {
	return []nanosPythonRow{
		{"no child", unitask.Request{}, ``, 1, childless},
		{"no child, and no harm", unitask.Request{}, `\[Errno 38\] Function not implemented\n`, 0, ""},
		{"no child of any kind", unitask.Request{}, `38\n38\n38\n38\n-1\nnone\n`, 4, childless},
		{"no other program", unitask.Request{}, ``, 1, noOther},
		{"no named pipe", unitask.Request{}, ``, 1, noPipes},
		{"HTTPS and a bound secret", unitask.Request{AllowNet: []string{"good.example"}, CA: web.ca,
			Secrets: map[string]string{"KEY": "sk-Vn41xZp0Qw7eRt6y"}, SecretHosts: map[string][]string{"KEY": {"good.example"}}},
			`with the key\n`, 0, ""},
		{"a time zone", unitask.Request{Env: map[string]string{"TZ": "Asia/Tokyo"}}, `\('JST', 'JST'\) 9\n`, 0, ""},
		{"what may be written", unitask.Request{}, `yyyyy 13 13 13 13 2\n`, 0, ""},
		{"files and links", unitask.Request{}, `0o100640 2 2\.0 \[\]\nb'abcxx'\nb'em'\n`, 0, ""},
		// The kernel notifies Python little of another thread's actions on a stream. Python's sockets wait with poll, with
		// and without a timeout.
		{"streams between threads", unitask.Request{}, `3000000\n3000000\n1 b'late' \(\[\], \[\], \[\]\)\n`, 0, ""},
		{"depth as on linux", unitask.Request{}, `True\nmaximum recursion depth exceeded in comparison\n\[True\]\n`, 0, ""},
		{"signals", unitask.Request{}, `True True\nalarm\ninterrupted True\n`, 143, ""},
		// Hostile code. The machine ends, and the reported reason is correct.
		{"every descriptor is closed", unitask.Request{}, `x\n`, 3, ""},
		{"words for the agent", unitask.Request{}, `on\n`, 0, ""},
		{"memory without end", unitask.Request{MemoryMB: 256}, ``, unitask.ExitOOM, ""},
		{"more memory than there is", unitask.Request{}, `\n\n\n12\n`, 0, ""},
		{"a loop without end", unitask.Request{Timeout: 3 * time.Second}, `x\n`, unitask.ExitTimeout, ""},
		{"abort", unitask.Request{}, `x\n`, 134, ""},
		{"a fault", unitask.Request{}, `x\n`, 139, ""},
		{"a fault by a signal that was left alone", unitask.Request{}, `x\n`, 139, ""},
		{"a stack without end", unitask.Request{}, `x\n`, 139, ""},
		{"killed", unitask.Request{}, `x\n`, 137, ""},
		{"many threads", unitask.Request{}, `1\n`, 0, ""},
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
	programs := testarchive.Open(t, "testdata/nanospython.txtar")
	for _, c := range nanosPythonRows(web) {
		code := programs.Text(c.name + ".py")
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			c.req.Language, c.req.Kernel, c.req.Code = "python", image.Nanos, code
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
