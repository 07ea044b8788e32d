package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A payload that reaches something of the host is detected: here a program in unitask's place reaches it.
func TestJudge(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	const result = `echo '{"RunID":"1","Outcome":"exited","ExitCode":0,"Stdout":"'"$said"'"}'`
	const record = `echo '{"Status":"done","Netlog":[]}'`
	for _, c := range []struct{ name, run, inspect, want string }{
		{"nothing", result, record, ""},
		{"a variable", `said=$ESCAPES_CANARY; ` + result, record, "printed a variable of unitask's environment"},
		{"the boot id", `said=$(cat /proc/sys/kernel/random/boot_id); ` + result, record, "printed the host's boot id"},
		{"a process", `sleep 20 >/dev/null 2>&1 & ` + result, record, "left processes"},
		{"a file", `touch "$TMPDIR/x"; ` + result, record, "changed the names in"},
		{"a connection", result, `echo '{"Status":"done","Netlog":[{"Verdict":"allowed","Host":"example.com"}]}'`,
			"a connection to example.com"},
		{"a record", result, `echo '{"Status":"running"}'`, "a record that is running"},
		{"memory", `(head -c 100000000 /dev/zero; sleep 1) | tail >/dev/null; ` + result, record,
			"MiB of memory for a machine of 256"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			program := filepath.Join(dir, "unitask")
			script := "#!/bin/sh\ncase $1 in\nrun) " + c.run + ";;\ninspect) " + c.inspect + ";;\nesac\n"
			if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			h := &host{program: program, home: dir, tmp: filepath.Join(dir, "tmp"), settling: 100 * time.Millisecond, mostMB: 60}
			if err := h.open(); err != nil {
				t.Fatal(err)
			}
			var v verdict
			err := h.attempt(&v, nil)
			for pid := range children() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(v.through, "; "); c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("through: %q, want %q", got, c.want)
			}
		})
	}
}
