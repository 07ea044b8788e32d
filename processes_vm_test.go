package unitask_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// forks starts six processes that live for a while, and prints how many it got and why not more.
const forks = `import os, time
got, why = 0, ""
for _ in range(6):
    try:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        got += 1
    except OSError as e:
        why = e.strerror
print(got, why)`

// threads does the same with threads.
const threads = `import threading, time
got, why = 0, ""
for _ in range(6):
    try:
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
        got += 1
    except RuntimeError as e:
        why = "no thread"
print(got, why)`

// escapes tries to leave the control group, and to raise what limits it.
const escapes = `import glob, os
names = [n for kind in ("pids.max", "cgroup.procs") for n in glob.glob("/sys/fs/cgroup/**/" + kind, recursive=True)]
for name in names:
    try:
        open(name, "w").write("max" if name.endswith("max") else "0")
        print("wrote", name)
    except OSError:
        pass
import resource
try:
    resource.setrlimit(resource.RLIMIT_NPROC, (100000, 100000))
    print("raised")
except (OSError, ValueError):
    pass
` + forks

// Code gets as many processes and threads as the request and the ceiling allow, and EAGAIN beyond. The result, the
// record and the audit log name the limit.
func TestAttackProcesses(t *testing.T) {
	needVM(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	ceiling, err := policy.ParseCeiling(policy.CeilingFile, []byte("maxProcesses = 4"))
	if err != nil {
		t.Fatal(err)
	}
	const again, limit = "Resource temporarily unavailable", " [maxProcesses]"
	for _, c := range []struct {
		name   string
		caller unitask.Caller
		code   string
		most   int
		want   string
	}{
		{"as many as it wants", unitask.Caller{}, forks, 0, "6  []"},
		{"exactly as many as it may have", unitask.Caller{}, forks, 7, "6  []"},
		{"three processes", unitask.Caller{}, forks, 3, "2 " + again + limit},
		{"one process", unitask.Caller{}, forks, 1, "0 " + again + limit},
		{"three threads", unitask.Caller{}, threads, 3, "2 no thread" + limit},
		{"more than the ceiling", unitask.Caller{Ceiling: ceiling}, forks, 2048, "3 " + again + limit},
		{"what the ceiling gives", unitask.Caller{Ceiling: ceiling}, forks, 0, "3 " + again + limit},
		{"a way out", unitask.Caller{}, escapes, 3, "2 " + again + limit},
	} {
		res, err := rt.RunFor(t.Context(), c.caller, unitask.Request{Code: c.code, Language: "python", Kernel: "linux",
			MaxProcesses: c.most}, unitask.IO{})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		attack.Check(t, "code that wants seven processes or threads: "+c.name, c.want,
			fmt.Sprint(strings.TrimSuffix(string(res.Stdout), "\n"), " ", res.Limits()))
		hinted := slices.ContainsFunc(res.Hints, func(h run.Hint) bool {
			return h.Kind == run.HintProcesses && h.Flag == "--max-processes"
		})
		if hinted != (res.ProcessesRefused > 0) {
			t.Errorf("%s: %d refused, hints %+v", c.name, res.ProcessesRefused, res.Hints)
		}
	}
}

// A shell's fork bomb ends with the run, and leaves a result that names the limit.
func TestAttackForkBomb(t *testing.T) {
	needVM(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	res, err := rt.Run(t.Context(), unitask.Request{Code: "b() { b | b & }; b 2>/dev/null; sleep 1; echo alive",
		Language: "shell", Kernel: "linux", MaxProcesses: 20}, unitask.IO{})
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "a fork bomb with 20 processes", "true [maxProcesses]",
		fmt.Sprint(res.ProcessesRefused > 0, " ", res.Limits()))
}

// The root of a container's image does not leave the control group by a clone into the hierarchy's root. Nor does it by
// a user namespace, where it owns the group's files.
func TestAttackProcessesContainer(t *testing.T) {
	needClones(t)
	program := filepath.Join(t.TempDir(), "leavegroup")
	build := exec.Command("go", "build", "-o", program, "./testdata/leavegroup")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if _, err := rt.Catalog().Import(t.Context(), boxImage(t, "test/group:1", map[string]any{"Cmd": []string{"sh"},
		"Env": []string{"PATH=/bin"}}), "", ""); err != nil {
		t.Fatal(err)
	}
	const many = "i=0; while [ $i -lt 40 ]; do sleep 30 & i=$((i+1)); done; echo all"
	for _, c := range []struct {
		way, script string
		most        int
		want        string
	}{
		{"stay", many, 100, "all\n"},
		{"stay", many, 30, "exit status 2\n"},
		{"clone", many, 30, "fork/exec /bin/sh: no such file or directory\n"},
		{"raise", "mkdir /tmp/g && mount -t cgroup2 x /tmp/g && echo mounted; echo max > /tmp/g/pids.max && echo raised; " +
			many, 30, "mounted\nexit status 2\n"},
		{"raise", "mkdir /tmp/g && mount -t cgroup2 x /tmp/g && mkdir /tmp/g/own && echo 0 > /tmp/g/own/cgroup.procs && " +
			"echo moved; " + many, 30, "moved\nexit status 2\n"},
	} {
		res, err := rt.Run(t.Context(), unitask.Request{Image: "test/group:1", Exec: true, MaxProcesses: c.most, Cold: true,
			Files: []unitask.Mount{{Host: program, Guest: "/tmp/leavegroup"}},
			Args:  []string{"sh", "-c", `chmod 755 /tmp/leavegroup; exec /tmp/leavegroup "$@"`, "sh", c.way, c.script}},
			unitask.IO{})
		if err != nil {
			t.Fatalf("%s: %v", c.way, err)
		}
		attack.Check(t, fmt.Sprintf("root of an image, %d processes: %s, %.60s", c.most, c.way, c.script), c.want,
			string(res.Stdout))
		t.Logf("%s: %q, %v", c.way, res.Stderr, res.Limits())
	}
}
