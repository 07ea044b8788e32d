package unitask_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
)

// needStrace skips the test if Nanos can't report system calls.
func needStrace(t *testing.T) {
	t.Helper()
	needNanos(t, image.HostArch())
	if _, err := os.Stat(filepath.Join(baseHome, "vendor", string(image.HostArch()), "nanos", "klibs",
		"strace")); err != nil {
		t.Skip("the Nanos release in the vendor store has no klibs/strace: unitask image vendor --nanos, or --from DIR")
	}
}

// traced runs code and returns its trace and its console.
func traced(t *testing.T, req unitask.Request) (res *unitask.Result, trace, console string) {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	res, file, err := rt.Trace(t.Context(), unitask.Caller{}, req, unitask.IO{}, unitask.Trace{Syscalls: true})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(filepath.Join(filepath.Dir(file), "console.log"))
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text), string(said)
}

// The trace, and nothing else, has the code's system calls with their results. No part of a path is mistaken for the
// kernel's own words.
func TestTrace(t *testing.T) {
	code := testarchive.Open(t, "testdata/trace.txtar").Text("traced.js")
	for kernel, calls := range map[image.Kernel]string{
		image.Linux: `(?s)sys_mkdir(at)?\(.*sys_mkdir(at)? -> 0x0\n.*sys_open(at)? -> 0xfffffffffffffffe\n`,
		image.Nanos: `(?s)\] mkdir(at)?\([^\n]*"/tmp/traced", ` +
			`0x1ff\) = 0\n.*\] open(at)?\([^\n]*"/tmp/none\nKernel panic - not syncing: ` +
			`none\n[^"]*"[^\n]*\) = -ENOENT\n.*\] close\([0-9]+\) = 0\n`,
	} {
		t.Run(string(kernel), func(t *testing.T) {
			needVM(t)
			if kernel == image.Nanos {
				needStrace(t)
			}
			res, trace, console := traced(t, unitask.Request{Kernel: kernel, Code: code})
			if res.ExitCode != 3 || res.Kernel != kernel || string(res.Stdout) != "ENOENT\n" || len(res.Stderr) > 0 ||
				res.Hint() != "" {
				t.Errorf("%+v %q %q", res, res.Stdout, res.Stderr)
			}
			if !regexp.MustCompile(calls).MatchString(trace) {
				t.Errorf("no %s in %d bytes that end in %q", calls, len(trace), trace[max(0, len(trace)-2000):])
			}
			if strings.Contains(console, "mkdir") || strings.Contains(console, "panic") {
				t.Errorf("the console has %q", console)
			}
		})
	}
}

// A run that is repeated on linux has the trace of the second run.
func TestTraceOfRetry(t *testing.T) {
	needStrace(t)
	res, trace, _ := traced(t, unitask.Request{KernelRetry: true,
		Code: `console.log(String(require("child_process").execSync("echo from a child")).trim())`})
	if res.Kernel != image.Linux || res.Retried == "" || string(res.Stdout) != "from a child\n" {
		t.Errorf("%s %q %q %q", res.Kernel, res.Retried, res.Stdout, res.Stderr)
	}
	if !strings.Contains(trace, "sys_execve(") || strings.Contains(trace, "] close(") {
		t.Errorf("%d bytes: %.500q", len(trace), trace)
	}
}
