package unitask_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// Node's behavior that a machine must have, where the differential test can't compare. Each row's output is a regular
// expression for the whole stream.
func TestFidelity(t *testing.T) {
	needVM(t)
	setup := filepath.Join(t.TempDir(), "setup.cjs")
	if err := os.WriteFile(setup, []byte(`console.log("setup", process.cwd(), process.env.GREETING)`), 0o644); err != nil {
		t.Fatal(err)
	}
	linux, both := []image.Kernel{image.Linux}, []image.Kernel{image.Linux, image.Nanos}
	env := func(name, value string) map[string]string { return map[string]string{name: value} }
	home := newHome(t)
	programs := testarchive.Open(t, "testdata/fidelity.txtar")
	for _, c := range []struct {
		name           string
		kernels        []image.Kernel
		req            unitask.Request
		stdout, stderr string
	}{
		{"--expose-gc", both, unitask.Request{NodeArgs: []string{"--expose-gc"}}, `function \[ '--expose-gc' \]\n`, ``},
		{"--no-warnings", both, unitask.Request{NodeArgs: []string{"--no-warnings"}}, `1\n`, ``},
		{"NODE_NO_WARNINGS", both, unitask.Request{Env: env("NODE_NO_WARNINGS", "1")}, `1\n`, ``},
		{"a warning", both, unitask.Request{}, ``, `\(node:\d+\) Warning: x\n.*`},
		{"NODE_PATH", both, unitask.Request{Env: env("NODE_PATH", "/tmp/m")}, `7\n`, ``},
		{"TZ", both, unitask.Request{Env: env("TZ", "Asia/Tokyo")}, `9\n`, ``},
		{"a worker's limits", both, unitask.Request{Timeout: time.Minute}, `ERR_WORKER_OUT_OF_MEMORY\n1\n`, `.*`},

		{
			name:    "an argument that Node reads at its start",
			kernels: linux,
			req:     unitask.Request{NodeArgs: []string{"--disable-proto=delete", "--stack-size=500"}},
			stdout: `undefined \[ '--disable-proto=delete', '--stack-size=500' \] 2 true\n\[ '--disable-proto=delete', ` +
				`'--stack-size=500' \]\n`,
		},
		{"NODE_OPTIONS, and a child's", linux, unitask.Request{Env: env("NODE_OPTIONS", "--disable-proto=delete")},
			`undefined \[\] --disable-proto=delete\nundefined\n`, ``},
		{"a heap in NODE_OPTIONS", linux, unitask.Request{Env: env("NODE_OPTIONS", "--max-old-space-size=50")}, `true\n`, ``},
		{"NODE_DEBUG", linux, unitask.Request{Env: env("NODE_DEBUG", "timer")}, `1\n`, `TIMER \d+: .*`},
		{"what is printed before the start", linux, unitask.Request{NodeArgs: []string{"--inspect"}},
			`1\n`, `Debugger listening on ws://127.*`},
		{"a module that is loaded first", linux,
			unitask.Request{Env: map[string]string{"NODE_OPTIONS": "--require ./setup.cjs", "GREETING": "hello"},
				Files: []unitask.Mount{{Host: setup, Guest: "/work/setup.cjs"}}},
			`setup /work hello\ncode true\n`, ``},

		{
			name:    "IPv6 on the loopback, and nowhere else",
			kernels: linux,
			req:     unitask.Request{},
			stdout:  `six lo IPv4,IPv6,eth0 IPv4\nE(NETUNREACH|ADDRNOTAVAIL)\n`,
		},
		{"a file of the system", linux, unitask.Request{}, `true true\n(EACCES\n){7}`, ``},
	} {
		c.req.Code = programs.Text(c.name + ".js")
		for _, kernel := range kernels(t) {
			if !slices.Contains(c.kernels, kernel) {
				continue
			}
			t.Run(string(kernel)+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				slot(t)
				req := c.req
				req.Kernel = kernel
				res, err := unitask.Run(t.Context(), req, unitask.Options{Home: home})
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range []struct{ what, got, want string }{{"stdout", string(res.Stdout), c.stdout},
					{"stderr", string(res.Stderr), c.stderr}} {
					if !regexp.MustCompile(`(?s)\A` + s.want + `\z`).MatchString(s.got) {
						t.Errorf("exit code %d, %s is %q, want %q", res.ExitCode, s.what, s.got, s.want)
					}
				}
			})
		}
	}
	t.Run("an argument that Node does not know", func(t *testing.T) {
		_, err := unitask.Run(t.Context(), unitask.Request{NodeArgs: []string{"--no-such-thing"}, Code: "1"},
			unitask.Options{Home: home})
		wantField(t, err, `nodeArgs --no-such-thing`, `bad option: --no-such-thing`)
	})
}

// Arguments without effect are refused, never ignored.
func TestNodeArgsRefused(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for _, c := range []struct {
		req         unitask.Request
		what, words string
	}{
		{unitask.Request{Kernel: image.Nanos, NodeArgs: []string{"--expose-gc", "--stack-size=500"}},
			"nodeArgs --stack-size=500", "needs the linux kernel"},
		{unitask.Request{Kernel: image.Nanos, Env: map[string]string{"NODE_OPTIONS": "--expose-gc"}}, "env NODE_OPTIONS",
			"needs the linux kernel"},
		{unitask.Request{NodeArgs: []string{"code.js"}}, `nodeArgs "code.js"`, "must begin with -"},
		{unitask.Request{NodeArgs: []string{"--eval=1"}}, `nodeArgs "--eval=1"`, "something else than the code"},
	} {
		_, err := rt.Run(t.Context(), c.req, unitask.IO{})
		wantField(t, err, c.what, c.words)
	}
}

func wantField(t *testing.T, err error, what, words string) {
	t.Helper()
	var field *policy.FieldError
	if !errors.As(err, &field) || field.Field+" "+field.Value != what ||
		!regexp.MustCompile(regexp.QuoteMeta(words)).MatchString(field.Reason) {
		t.Errorf("%v, want %s: %s", err, what, words)
	}
}
