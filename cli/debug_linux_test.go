package cli_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
)

// debugHome returns a home for a debug session of a kernel; it skips the test without the kernel's parts.
func debugHome(t *testing.T, kernel image.Kernel, arch image.Arch) string {
	t.Helper()
	if testing.Short() {
		t.Skip("boots real machines; not in -short")
	}
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	if kernel == image.Nanos {
		if _, err := os.Stat(filepath.Join(base, "vendor", string(arch), "nanos")); err != nil {
			t.Skip("no Nanos kernel in the vendor store: it is in no package; unitask image vendor --nanos, or --from DIR")
		}
	}
	if arch == image.HostArch() {
		testhome.Ready(t, base, kernel)
	}
	return testhome.New(t, base)
}

// unitaskIn is the unitask command.
func unitaskIn(t *testing.T, home string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(built(t), args...)
	cmd.Env = append(os.Environ(), "UNITASK_HOME="+home)
	return cmd
}

// Debian's gdb connects to a stopped machine, stops at a kernel function by its name, and names its callers.
func TestDebugGDB(t *testing.T) {
	for _, c := range []struct {
		kernel image.Kernel
		arch   image.Arch
		at     string
		want   []string // gdb's output
	}{
		{image.Linux, image.AMD64, "do_sys_openat2", []string{"Breakpoint 1, ", "#0  0xffffffff8", " in do_sys_openat2 ()",
			" in __x64_sys_openat ()", "pc             0xffffffff8"}},
		{image.Linux, image.ARM64, "do_sys_openat2", []string{"Breakpoint 1, ", "#0  0xffff80008", " in do_sys_openat2 ()",
			" in __arm64_sys_openat ()", "pc             0xffff80008"}},
		{image.Nanos, image.AMD64, "init_mmu", []string{"Breakpoint 1, ", " in init_mmu ()", " in init_service ()"}},
		{image.Nanos, image.ARM64, "init_setup_stack", []string{"Breakpoint 1, ", " in init_setup_stack ()",
			" in init_mmu ()", " in start ()"}},
	} {
		t.Run(fmt.Sprintf("%s/%s", c.kernel, c.arch), func(t *testing.T) {
			gdb := "gdb"
			if c.arch != image.HostArch() {
				gdb = "gdb-multiarch"
			}
			home := debugHome(t, c.kernel, c.arch)
			if _, err := exec.LookPath(gdb); err != nil {
				t.Skipf("no %s: hack/setup --test installs it", gdb)
			}
			cmd := unitaskIn(t, home, "debug", "run", "--gdb", "--kernel", string(c.kernel), "--arch", string(c.arch), "--code",
				`console.log("hello")`)
			hold, release, err := os.Pipe() // the console lives as long as its input
			if err != nil {
				t.Fatal(err)
			}
			defer hold.Close()
			defer release.Close()
			cmd.Stdin = hold
			said, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			init := ""
			lines := bufio.NewScanner(said)
			for init == "" && lines.Scan() {
				_, init, _ = strings.Cut(lines.Text(), gdb+" -x ")
			}
			if st, err := os.Stat(filepath.Join(filepath.Dir(init), "gdb.sock")); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("the socket: %v %v", st, err)
			}
			out, err := exec.Command("timeout", "120", gdb, "-nx", "-x", init, "-batch", "-ex", "hbreak "+c.at, "-ex",
				"continue", "-ex", "bt 4", "-ex", "info registers pc").CombinedOutput()
			for _, want := range c.want {
				if err != nil || !strings.Contains(string(out), want) {
					t.Errorf("%v: no %q in\n%s", err, want, out)
				}
			}
			release.Close()
			for lines.Scan() {
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Dir(init)); err == nil {
				t.Errorf("%s is left", filepath.Dir(init))
			}
		})
	}
}

// A run whose kernel panics prints how to connect to its machine. The end of a console's input disconnects, and quit
// ends the machine.
func TestDebugKept(t *testing.T) {
	home := debugHome(t, image.Nanos, image.HostArch())
	run := unitaskIn(t, home, "run", "--keep-on-crash", "--kernel", "nanos", "--code",
		`process.dlopen({ exports: {} }, "/tmp/" + "a/".repeat(1500) + "x.node")`)
	said, err := run.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	id, text := "", ""
	lines := bufio.NewScanner(said)
	for id == "" && lines.Scan() {
		text += lines.Text()
		_, id, _ = strings.Cut(lines.Text(), "unitask debug attach ")
	}
	if id == "" {
		t.Fatalf("%v: %s", run.Wait(), text)
	}
	for _, c := range []struct{ input, want string }{
		{"query-status\nbt\n", `"running": false`},
		{"query-status\nquit\n", `"running": false`},
	} {
		console := exec.Command(run.Path, "debug", "attach", id, "--memory")
		console.Env, console.Stdin = run.Env, strings.NewReader(c.input)
		if out, err := console.CombinedOutput(); err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%q: %v\n%s", c.input, err, out)
		}
	}
	for lines.Scan() {
		text += lines.Text()
	}
	if err := run.Wait(); run.ProcessState.ExitCode() != 125 || !strings.Contains(text, "kernel stopped") {
		t.Errorf("%v: %s", err, text)
	}
}

// openTerminal returns a pseudo-terminal's two ends.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := pty.Setsize(master, &pty.Winsize{Rows: 40, Cols: 120}); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// A person types: Tab completes, and the arrow key recalls the last line, also in the next session. The guest's lines
// appear in between, marked.
func TestDebugTerminal(t *testing.T) {
	home := debugHome(t, image.Linux, image.HostArch())
	session := func(steps ...string) {
		t.Helper()
		master, slave := openTerminal(t)
		cmd := unitaskIn(t, home, "debug", "run", "--lang", "shell", "--code", `printf 'from\x1b[2J inside\n'`)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		slave.Close()
		screen := make(chan string, 1024)
		go func() { // until the terminal is closed
			defer close(screen)
			buf := make([]byte, 4096)
			for {
				n, err := master.Read(buf)
				if err != nil {
					return
				}
				screen <- string(buf[:n])
			}
		}()
		seen, timeout := "", time.After(patience)
		for i := 0; i+1 < len(steps); i += 2 { // the input, and the expected output
			if _, err := master.WriteString(steps[i]); err != nil {
				t.Fatal(err)
			}
			for !strings.Contains(seen, steps[i+1]) {
				select {
				case text, ok := <-screen:
					if !ok {
						t.Fatalf("after %q the session ended:\n%s", steps[i], seen)
					}
					seen += text
				case <-timeout:
					t.Fatalf("after %q no %q:\n%q", steps[i], steps[i+1], seen)
				}
			}
			_, seen, _ = strings.Cut(seen, steps[i+1])
		}
		for range screen {
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	const up = "\x1b[A"
	session(
		"", "(unitask) ",
		"query-stat\t", "query-stats", // also query-status: both are shown
		"us\r", `"status": "prelaunch"`,
		up+"\r", `"status": "prelaunch"`,
		"device-list-properties ty\t", "typename=",
		"nothing\r", "not found",
		"cont\r", `stdout| from\x1b[2J inside`,
		"wait end 30s\r", "(unitask) ",
		"quit\r", "\n",
	)
	session(
		"", "(unitask) ",
		up+up+up+"\r", "stdout| from", // cont, from the last session
		"quit\r", "\n",
	)
}
