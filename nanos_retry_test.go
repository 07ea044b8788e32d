package unitask_test

import (
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// If a request leaves the kernel open and allows it, a run that needs something missing on nanos is repeated on linux.
// Nothing may have left the machine before. The record reports the repetition.
func TestKernelRetry(t *testing.T) {
	needNanos(t, image.HostArch())
	needVM(t)
	home := newHome(t)
	const spawns = `console.log(String(require("child_process").execSync("echo from a child")).trim())`
	for name, c := range map[string]struct {
		req    unitask.Request
		stdin  string
		kernel image.Kernel
		stdout string
	}{
		"again": {unitask.Request{Code: spawns, KernelRetry: true, Kernel: "auto"}, "", image.Linux,
			"from a child\n"},
		"nothing lacks": {unitask.Request{Code: `console.log("none")`, KernelRetry: true}, "", image.Nanos,
			"none\n"},
		"not asked for": {unitask.Request{Code: spawns}, "", image.Nanos, ""},
		"nanos is asked for by name": {unitask.Request{Code: spawns, KernelRetry: true, Kernel: image.Nanos}, "", image.Nanos,
			""},
		"something was printed": {unitask.Request{Code: `require("fs").writeSync(1, "before\n"); ` + pause + spawns,
			KernelRetry: true}, "", image.Nanos, "before\n"},
		"there is a network": {unitask.Request{Code: spawns, KernelRetry: true, AllowNet: []string{"example.com"}},
			"", image.Nanos, ""},
		"there is standard input": {unitask.Request{Code: spawns, KernelRetry: true}, "x", image.Nanos, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			rt, err := unitask.Open(unitask.Options{Home: home})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			var streams unitask.IO
			if c.stdin != "" {
				streams.Stdin = strings.NewReader(c.stdin)
			}
			c.req.Timeout = time.Minute
			res, err := rt.Run(t.Context(), c.req, streams)
			if err != nil || res.Kernel != c.kernel || string(res.Stdout) != c.stdout {
				t.Fatalf("%v %s %q, want %s %q; stderr %q", err, res.Kernel, res.Stdout, c.kernel, c.stdout, res.Stderr)
			}
			again := c.kernel == image.Linux
			if (res.Retried == "on the nanos kernel the code asked for child processes, which it does not have") != again ||
				(res.Hint() != "") == (again || name == "nothing lacks") {
				t.Errorf("retried %q, hint %q", res.Retried, res.Hint())
			}
			rec, err := rt.Runs().Get(res.RunID)
			if err != nil || strings.Contains(string(rec.Result), `"retried": "on the nanos`) != again ||
				rec.Machine.Kernel != string(c.kernel) {
				t.Errorf("%v %s %+v", err, rec.Result, rec.Machine)
			}
		})
	}
}

// pause lets the output reach the host.
const pause = `Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2000); `
