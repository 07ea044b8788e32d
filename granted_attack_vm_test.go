package unitask_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/machine"
)

// Code gets no more time than granted, whatever it does to its signals, streams, disks and processes.
func TestAttackTime(t *testing.T) {
	needVM(t)
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	const head = `const fs = require("fs"), { spawn } = require("child_process"); console.log("up");` + "\n"
	programs := testarchive.Open(t, "testdata/attacktime.txtar")
	for _, does := range []string{
		"leaves children that ignore signals",
		"forks without end",
		"closes its streams",
		"fills its disks",
		"stops all that it can",
		"ends all that it can",
	} {
		req := unitask.Request{Code: head + programs.Text(does+".js"), Kernel: unitask.Linux, Timeout: time.Second,
			MemoryMB: 256}
		begin := time.Now()
		res, err := rt.Run(t.Context(), req, unitask.IO{})
		for try := 1; try < 4 && err == nil && len(res.Stdout) == 0; try++ { // its time limit was over before the code began
			begin = time.Now()
			res, err = rt.Run(t.Context(), req, unitask.IO{})
		}
		got := fmt.Sprint(err)
		if err == nil {
			got = strings.Replace(string(res.Outcome), "oom", "timeout", 1) // disks are in memory
		}
		if took := time.Since(begin); took > 30*time.Second {
			got += fmt.Sprintf(" after %v", took)
		}
		if err == nil && !bytes.HasPrefix(res.Stdout, []byte("up")) {
			got += " before it began"
		}
		attack.Check(t, "code with one second that "+does, "timeout", got)
	}
}

// Code gets no more of the host's memory than granted, plus QEMU's own, wherever it puts it.
func TestAttackMemory(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("no /proc on this system")
	}
	needVM(t)
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	const granted, beside = 256, 512 // MiB
	const head = `const fs = require("fs"), { spawn } = require("child_process");` + "\n"
	const ticks = `setInterval(() => console.log("."), 50);`
	for _, c := range []struct{ name, code string }{
		{"in buffers", `for (const kept = []; ; console.log(kept.length)) kept.push(Buffer.alloc(16 << 20, 1));`},
		{"in its disks", `const b = Buffer.alloc(4 << 20, 1);
for (const d of ["/tmp", "/dev/shm", "/out"])
	try { for (;;) { fs.appendFileSync(d + "/f", b); console.log(d) } } catch {}` + ticks},
		{"in processes", `for (let n = 0; n < 4; n++) spawn("sh", ["-c", "x=aaaaaaaa; while :; do x=$x$x; done"]);` + ticks},
	} {
		peak := 0
		streams := unitask.IO{Stdout: writerFunc(func(p []byte) (int, error) {
			for _, pid := range qemuChildren(t, os.Getpid()) {
				peak = max(peak, peakOf(pid)>>10)
			}
			return len(p), nil
		})}
		req := unitask.Request{Code: head + c.code, Kernel: unitask.Linux, Timeout: 3 * time.Second, MemoryMB: granted}
		res, err := rt.Run(t.Context(), req, streams)
		if err != nil || res.Outcome != unitask.OutcomeOOM && res.Outcome != unitask.OutcomeTimeout {
			t.Errorf("%s: %v %+v", c.name, err, res)
		}
		const want = "at most 768 MiB, and at least half of what it may have"
		got := want
		if peak > granted+beside || peak < granted/2 {
			got = fmt.Sprintf("%d MiB", peak)
		}
		attack.Check(t, "memory of the host that code with 256 MiB takes "+c.name, want, got)
	}
}

// Of code that prints without end on both streams, no more output is kept than granted.
func TestAttackOutput(t *testing.T) {
	needVM(t)
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	for _, c := range []struct{ name, code string }{
		{"on both streams", `const b = Buffer.alloc(1 << 16, "x");
for (;;) for (const to of [1, 2]) try { fs.writeSync(to, b) } catch {}`},
		{"by a byte at a time", `for (;;) for (const to of [1, 2]) try { fs.writeSync(to, "x") } catch {}`},
		{"from many processes", `const print = ["-c", "while :; do echo xxxx; echo xxxx >&2; done"];
for (let n = 0; n < 8; n++) spawn("sh", print, { stdio: "inherit" });`},
	} {
		const most = 1000
		code := `const fs = require("fs"), { spawn } = require("child_process");` + c.code
		req := unitask.Request{Code: code, Timeout: 2 * time.Second, OutputBytes: most, Kernel: unitask.Linux}
		res, err := rt.Run(t.Context(), req, unitask.IO{})
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprintf("%d and %d bytes, truncated %t, %s", len(res.Stdout), len(res.Stderr), res.Truncated, res.Outcome)
		}
		attack.Check(t, "code prints without end "+c.name, "1000 and 1000 bytes, truncated true, timeout", got)
	}
}

// peakOf returns the peak memory of a process, in KiB.
func peakOf(pid int) (n int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // it may have ended
	if _, rest, found := strings.Cut(string(text), "VmHWM:"); found {
		_, _ = fmt.Sscan(rest, &n)
	}
	return n
}

// A machine is used once: nothing that code leaves in it is in the next clone of the same template.
func TestAttackLeftInMachine(t *testing.T) {
	needVM(t)
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	const mark = "left-behind-8d1f"
	programs := testarchive.Open(t, "testdata/leftinmachine.txtar")
	leave := programs.Text("leave.js")
	look := programs.Text("look.js")
	class := unitask.MachineClass{Kernel: unitask.Linux}
	if _, err := rt.MakeTemplate(t.Context(), class); err != nil && machine.CanClone {
		t.Fatal(err)
	}
	var said []string
	templates := map[string]bool{}
	for _, code := range []string{leave, look} {
		res, err := rt.Run(t.Context(), unitask.Request{Code: strings.ReplaceAll(strings.ReplaceAll(code, `"MA" + "RK"`,
			`"left-" + "behind"`), "MARK", mark), Kernel: unitask.Linux}, unitask.IO{})
		if err != nil || res.ExitCode != 0 {
			t.Fatalf("%+v %v", res, err)
		}
		rec, err := rt.Runs().Get(res.RunID)
		if err != nil {
			t.Fatal(err)
		}
		templates[rec.Machine.Template] = true
		said = append(said, strings.Split(strings.TrimSpace(string(res.Stdout)), "\n")...)
	}
	if machine.CanClone && (len(templates) != 1 || templates[""]) {
		t.Errorf("the machines are of the templates %v", templates)
	}
	attack.Check(t, "what code left in its machine, in the next one", "nothing", said[2])
	same := "others"
	if first, next := strings.Fields(said[0]), strings.Fields(said[1]); first[0] == next[0] || first[1] == next[1] {
		same = "the same"
	}
	attack.Check(t, "random numbers of two machines of one template", "others", same)
}

// The value of a run's secret is in no other process of the host, and nowhere in the home. (TestWarm checks the
// template of a run with a secret.)
func TestAttackSecretTraces(t *testing.T) {
	needVM(t)
	home := newHome(t)
	rt := openRuntime(t, unitask.Options{Home: home})
	const value = "trace-me-4f81c0d2aa93"
	found := map[string]bool{}
	look := func(name string, whole bool) {
		if text, err := os.ReadFile(name); err == nil && bytes.Contains(text, []byte(value)) {
			if !whole {
				name = filepath.Base(name)
			}
			found[name] = true
		}
	}
	began := false
	streams := unitask.IO{Stdout: writerFunc(func(p []byte) (int, error) {
		began = true
		for _, kind := range []string{"cmdline", "environ"} {
			all, _ := filepath.Glob("/proc/[0-9]*/" + kind)
			for _, name := range all {
				look(name, false)
			}
		}
		return len(p), nil
	})}
	code := `console.log("up", process.env.KEY.length); ` +
		`require("fs").writeFileSync("/out/" + process.env.KEY, "x" + process.env.KEY); console.error(process.env.KEY); ` +
		`throw new Error(process.env.KEY)`
	res, err := rt.Run(t.Context(), unitask.Request{Code: code, Secrets: map[string]string{"KEY": value}}, streams)
	if err != nil || !began {
		t.Fatalf("%+v %v", res, err)
	}
	mustDo(t, filepath.WalkDir(home, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			look(name, true)
		}
		if strings.Contains(name, value) {
			found[name] = true
		}
		return err
	}))
	attack.Check(t, "traces of a secret's value: processes of the host, and the home", "[]",
		fmt.Sprint(slices.Sorted(maps.Keys(found))))
}
