package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/cli"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testprogram"
	"github.com/unitask/unitask/internal/testwait"
)

func TestMain(m *testing.M) {
	testscript.Main(cleaned{m}, map[string]func(){
		"unitask": func() {
			os.Exit(cli.Main(os.Args[1:], cli.Streams{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}))
		},
	})
}

// build builds the unitask command, once. Linking it takes seconds.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "unitask-cli-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	return testprogram.Build(dir)
})

// builtIn is the folder of that command, if a test built it.
var builtIn string

// built returns the path of the unitask command.
func built(t *testing.T) string {
	t.Helper()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// cleaned runs the tests, and removes what build built.
type cleaned struct{ *testing.M }

func (m cleaned) Run() int {
	code := m.M.Run()
	if builtIn != "" {
		os.RemoveAll(builtIn)
	}
	return code
}

// TestScripts runs every script of testdata with the unitask command on PATH. Scripts with a name that begins with "vm"
// boot machines.
func TestScripts(t *testing.T) {
	base := ""
	if !testing.Short() {
		var err error
		if base, err = testhome.Base(); err != nil {
			t.Fatal(err)
		}
		testhome.Ready(t, base, image.Linux)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			// QEMU's user must be able to read the stand-ins for QEMU, which are scripts: a jail copies only the files of
			// programs.
			for dir := env.WorkDir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
				if err := os.Chmod(dir, 0o755); err != nil {
					return err
				}
			}
			if err := closeToOthers(env.WorkDir); err != nil {
				return err
			}
			home := filepath.Join(env.WorkDir, "home")
			env.Setenv("UNITASK_HOME", home)
			env.Setenv("HOME", env.WorkDir)
			if err := os.Mkdir(home, 0o700); err != nil || base == "" {
				return err
			}
			return testhome.Borrow(base, home)
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "root":
				return os.Getuid() == 0, nil
			case "pci":
				found, err := filepath.Glob(filepath.Join(base, "vendor", runtime.GOARCH, "linux", "modules", "virtio_pci.ko*"))
				return len(found) > 0, err
			case "nanos":
				_, err := os.Stat(filepath.Join(base, "vendor", runtime.GOARCH, "nanos", "part.json"))
				return err == nil, nil
			case "kvm":
				f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
				if err == nil {
					f.Close()
				}
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": cmdExits, "sleep": cmdSleep, "first": cmdFirst, "stranger": cmdStranger, "killpool": cmdKillPool,
			"killdaemon": cmdKillDaemon, "enddaemon": cmdEndDaemon, "waitfor": cmdWaitFor, "until": cmdUntil,
			"noqemu": cmdNoQEMU, "tmpfs": cmdTmpfs, "bigfile": cmdBigFile,
			"borrow": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(testhome.Borrow(base, ts.MkAbs(args[0])))
			},
		},
	})
}

// closeToOthers makes a script's files and folders writable only for us, whatever the umask is. A ceiling or a setting
// that others can write is refused.
func closeToOthers(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Mode()&fs.ModeSymlink != 0 {
			return err
		}
		return os.Chmod(path, info.Mode().Perm()&^0o022)
	})
}

// exits CODE COMMAND [ARG...]: the command ends with that exit code.
func cmdExits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if line := strings.Join(args[1:], " "); want == 0 && strings.Contains(line, "image prune") &&
		!strings.Contains(line, "--dry-run") || want == 0 && strings.Contains(line, "image rm") {
		ownStores(ts)
	}
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// ownStores fails a script that would remove what its home has borrowed, because other tests use it.
func ownStores(ts *testscript.TestScript) {
	for _, store := range []string{"images", "templates"} {
		st, err := os.Lstat(filepath.Join(ts.Getenv("UNITASK_HOME"), store))
		if err == nil && st.Mode()&fs.ModeSymlink != 0 {
			ts.Fatalf("the home's %s are borrowed: give the script its own", store)
		}
	}
}

const patience = 60 * time.Second

// waitfor GLOB TEXT: waits until a file with that name contains the text.
func cmdWaitFor(ts *testscript.TestScript, _ bool, args []string) {
	if !testwait.Holds(patience, func() bool {
		files, err := filepath.Glob(ts.MkAbs(args[0]))
		ts.Check(err)
		return slices.ContainsFunc(files, func(f string) bool {
			text, err := os.ReadFile(f)
			return err == nil && bytes.Contains(text, []byte(args[1]))
		})
	}) {
		ts.Fatalf("no %s holds %q", args[0], args[1])
	}
}

// until PATTERN COMMAND [ARG...]: runs the command until its output matches.
func cmdUntil(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile(args[0])
	if !testwait.Holds(patience, func() bool {
		return ts.Exec(args[1], args[2:]...) == nil && pattern.MatchString(ts.ReadFile("stdout"))
	}) {
		ts.Fatalf("%q does not print %q", args[1:], args[0])
	}
}

// first: $FIRST is the id of the oldest run.
func cmdFirst(ts *testscript.TestScript, _ bool, _ []string) {
	runs, err := os.ReadDir(filepath.Join(ts.Getenv("UNITASK_HOME"), "runs"))
	ts.Check(err)
	runs = slices.DeleteFunc(runs, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), ".") })
	ts.Setenv("FIRST", runs[0].Name())
}

// sleep DURATION
func cmdSleep(ts *testscript.TestScript, _ bool, args []string) {
	d, err := time.ParseDuration(args[0])
	ts.Check(err)
	time.Sleep(d)
}

// stranger SOCKET: another user's process connects to a daemon and gets no answer. The process is Perl, because that
// user may execute Debian's programs and not our test's binary.
func cmdStranger(ts *testscript.TestScript, _ bool, args []string) {
	const ask = `use IO::Socket::UNIX; $SIG{PIPE} = "IGNORE"; ` +
		`my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die "connect: $!"; print $s qq({"op":"status"}\n); $s->flush; ` +
		`my $l = <$s>; print defined $l ? "answer: $l" : "nothing";`
	cmd := exec.Command("perl", "-e", ask, filepath.Base(args[0]))
	home, err := os.Open(filepath.Dir(ts.MkAbs(args[0])))
	ts.Check(err)
	defer home.Close()
	// The other process can't enter the folders above, so it gets its folder in another way.
	cmd.Dir = fmt.Sprintf("/proc/self/fd/%d", home.Fd())
	ts.Check(home.Chmod(0o755))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "nothing" {
		ts.Fatalf("%v: %s", err, out)
	}
	ts.Check(home.Chmod(0o700))
}

// killpool kills the pool daemon of the home.
func cmdKillPool(ts *testscript.TestScript, _ bool, _ []string) {
	st, err := unitask.PoolDaemonStatus(ts.Getenv("UNITASK_HOME"))
	ts.Check(err)
	ts.Check(syscall.Kill(st.Pid, syscall.SIGKILL))
}

// killdaemon kills the home's session daemon, and waits until it has ended; enddaemon ends it normally.
func cmdKillDaemon(ts *testscript.TestScript, _ bool, _ []string) { stopDaemon(ts, syscall.SIGKILL) }
func cmdEndDaemon(ts *testscript.TestScript, _ bool, _ []string)  { stopDaemon(ts, syscall.SIGTERM) }

func stopDaemon(ts *testscript.TestScript, by syscall.Signal) {
	home, killed := "\x00"+ts.Getenv("UNITASK_HOME")+"\x00", 0
	list, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range list {
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), home) ||
			!strings.Contains(string(text), "\x00session\x00serve\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		ts.Check(err)
		ts.Check(syscall.Kill(pid, by))
		killed++
	}
	lock := filepath.Join(ts.Getenv("UNITASK_HOME"), "sessions", "holder.lock")
	if free := testwait.Holds(patience, func() bool { return !filelock.Held(lock) }); killed != 1 || !free {
		ts.Fatalf("%d processes held sessions", killed)
	}
}

// noqemu: no QEMU is left that a unitask of this test binary started. The check waits a moment, because the kernel
// kills QEMU after its parent.
func cmdNoQEMU(ts *testscript.TestScript, _ bool, _ []string) {
	var left []string
	if !testwait.Holds(2*time.Second, func() bool {
		left = qemus(ts.Getenv("UNITASK_HOME"))
		return len(left) == 0
	}) {
		ts.Fatalf("still there: %v", left)
	}
}

// qemus returns the running QEMU processes that boot from below home, or whose only parent is init.
func qemus(home string) []string {
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil || !strings.Contains(string(stat), "(qemu-system") {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[0] != "Z" && f[1] == "1" {
			found = append(found, filepath.Base(dir))
		}
	}
	return found
}

// tmpfs DIR SIZE: mounts a small disk.
func cmdTmpfs(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "mode=700,size="+args[1], "unitask-test",
		dir).CombinedOutput(); err != nil {
		ts.Fatalf("mount: %v: %s", err, out)
	}
	ts.Defer(func() { _ = exec.Command("umount", dir).Run() })
}

// bigfile NAME MIB: a file of spaces.
func cmdBigFile(ts *testscript.TestScript, _ bool, args []string) {
	mib, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), append(bytes.Repeat([]byte(" "), mib<<20), "console.log('big')\n"...), 0o644))
}

// An ordinary user without privileges can run it: a user namespace then confines QEMU.
func TestAsUnprivilegedUser(t *testing.T) {
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	if os.Getuid() != 0 {
		t.Skip("wants root, to become somebody else")
	}
	const user = 12345
	dir, err := os.MkdirTemp("", "unitask-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "unitask")
	if out, err := exec.Command("cp", built(t), program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rt, err := unitask.Open(unitask.Options{Home: base})
	if err != nil {
		t.Fatal(err)
	}
	im, err := rt.Images().Lookup(image.Linux, image.HostArch())
	if err != nil {
		t.Fatal(err)
	}
	copies := map[string]string{filepath.Dir(im.Path(image.DiskFile)): filepath.Join("images", im.Digest)}
	parts, _ := filepath.Glob(filepath.Join(base, "vendor", runtime.GOARCH, "*", "part.json"))
	for _, p := range parts {
		if filepath.Base(filepath.Dir(p)) == "nanos" {
			continue
		}
		part := filepath.Dir(p) // complete: a part with missing files is fetched again
		copies[part] = filepath.Join("vendor", runtime.GOARCH, filepath.Base(part))
	}
	for from, to := range copies {
		to = filepath.Join(dir, "home", to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cp", "-r", from, to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if out, err := exec.Command("chown", "-R", strconv.Itoa(user), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// Without --cold, the run would have a template made behind it, which nothing waits for.
	cmd := exec.Command(program, "run", "-v", "--cold", "--code", "console.log(6 * 7)")
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "UNITASK_HOME=" + filepath.Join(dir, "home")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil || out.String() != "42\n" {
		t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
	}
	inspect := exec.Command(program, "inspect", "last")
	inspect.Env, inspect.SysProcAttr = cmd.Env, cmd.SysProcAttr
	if text, err := inspect.Output(); err != nil || !strings.Contains(string(text),
		"held by      network, pid, ipc, uts, cgroup, filesystem, ") {
		t.Errorf("%v\n%s", err, text)
	}
}
