package machine_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/vmm"
)

// lasting returns a source of a home that borrows, and the spec of persistent Node machines.
func lasting(t testing.TB, kernel image.Kernel) (*machine.Source, machine.Spec) {
	t.Helper()
	if !machine.CanClone {
		t.Skip("snapshots need Linux's memfd")
	}
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	home := testhome.New(t, base)
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	if _, err := rt.Images().Parts().Get(image.HostArch(), "nanos"); err != nil && kernel == image.Nanos {
		t.Skip("no Nanos kernel in the vendor store: it is in no package; unitask image vendor --nanos, or --from DIR")
	}
	testhome.Ready(t, base, kernel)
	source := machine.Open(machine.Options{Home: home, Images: rt.Images(), Accel: vmm.Auto, Programs: programs})
	t.Cleanup(func() { source.Close() })
	im, err := rt.Images().Lookup(kernel, image.HostArch())
	if err != nil {
		t.Fatal(err)
	}
	spec, err := source.Spec(t.Context(), im, machine.Class{MemoryMB: 512})
	if err != nil {
		t.Fatal(err)
	}
	spec.Life = machine.Lasting
	return source, spec
}

// runs runs a program in a machine, and ends the machine.
func runs(t testing.TB, m *machine.Machine) {
	t.Helper()
	ctx := t.Context()
	conn, err := m.Connect(ctx, 25*time.Second, func(ctx context.Context, conn *guest.Conn) error {
		const code = "console.log('hello')"
		for _, f := range []guest.File{
			{Path: "/home/user/main.js", Mode: 0o644, Size: int64(len(code)), User: true},
			{Path: contract.MainLink, Mode: os.ModeSymlink, Target: "/home/user/main.js"},
		} {
			if err := conn.Put(f, strings.NewReader(code)); err != nil {
				return err
			}
		}
		return conn.Start(ctx, guest.Start{Argv: []string{"/home/user/main.js"}, Dir: "/home/user"})
	})
	if err != nil {
		t.Fatal(m.Explain(err))
	}
	defer conn.Close()
	var stdout, stderr strings.Builder
	if end, err := conn.Stream(ctx, strings.NewReader(""), &stdout, &stderr); err != nil || end.Code != 0 ||
		stdout.String() != "hello\n" {
		t.Errorf("%+v %v %q %q", end, err, stdout.String(), stderr.String())
	}
	m.Close()
}

// A paused machine continues wherever it is resumed, more than once, can be paused again, and is gone meanwhile: booted
// or cloned, on both kernels.
func TestPause(t *testing.T) {
	for name, c := range map[string]struct {
		kernel image.Kernel
		get    func(*machine.Source, context.Context, machine.Spec, machine.Config) (*machine.Machine, error)
	}{
		"linux, cloned": {image.Linux, (*machine.Source).Clone},
		"linux, booted": {image.Linux, (*machine.Source).Boot},
		"nanos, cloned": {image.Nanos, (*machine.Source).Clone},
	} {
		t.Run(name, func(t *testing.T) {
			source, spec := lasting(t, c.kernel)
			ctx, folder := t.Context(), filepath.Join(t.TempDir(), "paused")
			m, err := c.get(source, ctx, spec, machine.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			pid := m.Pid()
			if err := source.Pause(ctx, m, folder); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("its QEMU is still there: %v", err)
			}
			if st, err := os.Stat(folder); err != nil || st.Mode().Perm() != 0o700 {
				t.Errorf("%v %v", st, err)
			}
			p, err := machine.ReadPause(folder)
			if err != nil || p.Class != spec.Class() {
				t.Errorf("%+v %v", p, err)
			}
			for range map[string]int{"linux, cloned": 2}[name] {
				m, err := source.Resume(ctx, folder, spec, machine.Config{})
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				runs(t, m)
			}
			if m, err = source.Resume(ctx, folder, spec, machine.Config{}); err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if err := source.Pause(ctx, m, folder); err != nil {
				t.Fatal(err)
			}
			again, err := machine.ReadPause(folder)
			if err != nil || !again.At.After(p.At) {
				t.Errorf("%v, before %v: %v", again.At, p.At, err)
			}
			if m, err = source.Resume(ctx, folder, spec, machine.Config{}); err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			runs(t, m)
			if left, err := os.ReadDir(filepath.Dir(folder)); err != nil || len(left) != 1 {
				t.Errorf("%v %v", left, err)
			}
		})
	}
	source, spec := lasting(t, image.Linux)
	spec.Life = machine.OneRun
	m, err := source.Clone(t.Context(), spec, machine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := source.Pause(t.Context(), m, filepath.Join(t.TempDir(), "paused")); !errors.Is(err, machine.ErrLasting) {
		t.Errorf("a machine of one run: %v", err)
	}
	if _, err := source.Snapshot(t.Context(), m); !errors.Is(err, machine.ErrLasting) {
		t.Errorf("a machine of one run: %v", err)
	}
}

type pauseDamageRow struct {
	damage func(dir string) error
	want   error // for errors.Is; nil if it is resumed
	says   string
}

// pauseDamageRows are the cases of TestPauseDamage.
func pauseDamageRows(
	flip func(name string, at int64) func(string) error,
	edit func(name string, old string, with string) func(string) error, other *machine.OtherHostError,
) map[string]pauseDamageRow {
	return map[string]pauseDamageRow{
		"copied":         {func(string) error { return nil }, nil, ""},
		"memory cut":     {func(dir string) error { return os.Truncate(dir+"/memory", 1<<20) }, machine.ErrPause, "memory"},
		"memory longer":  {func(dir string) error { return os.Truncate(dir+"/memory", 1<<30) }, machine.ErrPause, "memory"},
		"memory changed": {flip("memory", 64<<20), machine.ErrPause, "memory"},
		"memory gone":    {func(dir string) error { return os.Remove(dir + "/memory") }, machine.ErrPause, "memory"},
		"memory a pipe": {func(dir string) error {
			return errors.Join(os.Remove(dir+"/memory"), unix.Mkfifo(dir+"/memory", 0o600))
		}, machine.ErrPause, "memory"},
		"state cut":         {func(dir string) error { return os.Truncate(dir+"/state", 100) }, machine.ErrPause, "state"},
		"state changed":     {flip("state", 5000), machine.ErrPause, "state"},
		"state without end": {func(dir string) error { return os.Truncate(dir+"/state", 1<<40) }, machine.ErrPause, "state"},
		"state a pipe": {func(dir string) error {
			return errors.Join(os.Remove(dir+"/state"),
				unix.Mkfifo(dir+"/state", 0o600))
		}, machine.ErrPause, "state"},
		"description cut": {func(dir string) error { return os.Truncate(dir+"/pause.json", 20) }, machine.ErrPause,
			"pause.json"},
		"description long": {func(dir string) error { return os.Truncate(dir+"/pause.json", 1<<40) }, machine.ErrPause,
			"pause.json"},
		"another version": {edit("pause.json", `"version": 1`, `"version": 9`), machine.ErrPause, "version 9"},
		"description gone": {func(dir string) error { return os.Remove(dir + "/pause.json") }, fs.ErrNotExist,
			"pause.json"},
		"others may read it": {func(dir string) error { return os.Chmod(dir, 0o755) }, machine.ErrPause, "alone"},
		"another QEMU":       {edit("pause.json", `"qemu": "`, `"qemu": "6.`), other, "QEMU"},
		"another image":      {edit("pause.json", `"imageDigest": "`, `"imageDigest": "0`), other, "image"},
		"another memory":     {edit("pause.json", `"memoryMb": 512`, `"memoryMb": 513`), other, "513 MiB"},
		"nothing":            {os.RemoveAll, fs.ErrNotExist, ""},
	}
}

// A changed or truncated pause is not resumed, and the error says so; a mere copy is resumed.
func TestPauseDamage(t *testing.T) {
	source, spec := lasting(t, image.Linux)
	ctx, folder := t.Context(), filepath.Join(t.TempDir(), "paused")
	m, err := source.Clone(ctx, spec, machine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := source.Pause(ctx, m, folder); err != nil {
		t.Fatal(err)
	}
	edit := func(name, old, with string) func(string) error {
		return func(dir string) error {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err == nil && !strings.Contains(string(text), old) {
				err = errors.New("no " + old)
			}
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, name), []byte(strings.Replace(string(text), old, with, 1)), 0o600)
		}
	}
	flip := func(name string, at int64) func(string) error {
		return func(dir string) error {
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, at); err != nil {
				return err
			}
			b[0] ^= 1
			_, err = f.WriteAt(b, at)
			return err
		}
	}
	var other *machine.OtherHostError
	for name, c := range pauseDamageRows(flip, edit, other) {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "paused")
			if text, err := exec.Command("cp", "-r", "--preserve=mode", "--sparse=always", folder,
				to).CombinedOutput(); err != nil {
				t.Fatalf("%v %s", err, text)
			}
			if err := c.damage(to); err != nil {
				t.Fatal(err)
			}
			m, err := source.Resume(ctx, to, spec, machine.Config{})
			if err == nil {
				defer m.Close()
			}
			switch {
			case c.want == nil && err == nil:
				runs(t, m)
			case err == nil || !strings.Contains(err.Error(), c.says):
				t.Errorf("%v", err)
			case c.want == error(other):
				if !errors.As(err, new(*machine.OtherHostError)) {
					t.Errorf("%v", err)
				}
			case !errors.Is(err, c.want):
				t.Errorf("%v", err)
			}
		})
	}
}

const (
	killedAt     = "UNITASK_TEST_KILLED_AT"
	killedFolder = "UNITASK_TEST_KILLED_FOLDER"
)

// A process that is killed at any step of a pause leaves the machine complete: as it was paused before, or as it is
// now. It leaves no QEMU.
func TestPauseKilled(t *testing.T) {
	source, spec := lasting(t, image.Linux)
	ctx := t.Context()
	if step := os.Getenv(killedAt); step != "" { // the process that holds the machine
		folder := os.Getenv(killedFolder)
		m, err := source.Resume(ctx, folder, spec, machine.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(folder+".pid", []byte(machinePid(m)), 0o600); err != nil {
			t.Fatal(err)
		}
		machine.AtPauseSteps(func(at string) {
			if at == step {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		})
		t.Fatal(source.Pause(ctx, m, folder))
	}
	folder := filepath.Join(t.TempDir(), "paused")
	m, err := source.Clone(ctx, spec, machine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := source.Pause(ctx, m, folder); err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"folder", "memory", "state", "written", "replaced"} {
		before, err := machine.ReadPause(folder)
		if err != nil {
			t.Fatal(err)
		}
		holder := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestPauseKilled$", "-test.v")
		// it does not live to remove it
		holder.Env = append(os.Environ(), killedAt+"="+step, killedFolder+"="+folder, "TMPDIR="+t.TempDir())
		text, err := holder.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("%s: %v\n%s", step, err, text)
		}
		pid, err := os.ReadFile(folder + ".pid")
		if err != nil {
			t.Fatal(err)
		}
		gone(t, string(pid))
		after, err := machine.ReadPause(folder)
		if err != nil || after.At.After(before.At) != (step == "replaced") {
			t.Errorf("%s: %v, before %v: %v", step, after.At, before.At, err)
		}
	} // each process has resumed what the one before it left
	if m, err = source.Resume(ctx, folder, spec, machine.Config{}); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := source.Pause(ctx, m, folder); err != nil {
		t.Fatal(err)
	}
	if m, err = source.Resume(ctx, folder, spec, machine.Config{}); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	runs(t, m)
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(folder), ".*")); err != nil || len(left) != 0 {
		t.Errorf("%v %v", left, err)
	}
}

// Forks continue from the machine's state, and the machine continues too. Each has separate pages, and can be paused
// and forked.
func TestFork(t *testing.T) {
	for _, kernel := range []image.Kernel{image.Linux, image.Nanos} {
		t.Run(string(kernel), func(t *testing.T) {
			source, spec := lasting(t, kernel)
			ctx := t.Context()
			m, err := source.Clone(ctx, spec, machine.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			forks, err := fork(t, source, m, 2)
			if err != nil || len(forks) != 2 {
				t.Fatalf("%d: %v", len(forks), err)
			}
			for _, f := range forks {
				defer f.Close()
			}
			runs(t, m)
			again, err := fork(t, source, forks[0], 1)
			if err != nil {
				t.Fatal(err)
			}
			defer again[0].Close()
			folder := filepath.Join(t.TempDir(), "paused")
			if err := source.Pause(ctx, forks[1], folder); err != nil {
				t.Fatal(err)
			}
			resumed, err := source.Resume(ctx, folder, spec, machine.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer resumed.Close()
			for _, m := range []*machine.Machine{forks[0], again[0], resumed} {
				runs(t, m)
			}
		})
	}
}

// fork starts several machines at once from a machine's state.
func fork(t testing.TB, source *machine.Source, m *machine.Machine, n int) ([]*machine.Machine, error) {
	snapshot, err := source.Snapshot(t.Context(), m)
	if err != nil {
		return nil, err
	}
	defer snapshot.Close()
	forks, errs := make([]*machine.Machine, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { forks[i], errs[i] = source.Fork(t.Context(), m.Spec, snapshot, machine.Config{}) })
	}
	all.Wait()
	return forks, errors.Join(errs...)
}

func machinePid(m *machine.Machine) string { return strconv.Itoa(m.Pid()) }

// gone waits until a process has ended.
func gone(t testing.TB, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	testwait.Within(t, 20*time.Second, "process "+pid+" is gone",
		func() bool { return errors.Is(syscall.Kill(n, 0), syscall.ESRCH) })
}
