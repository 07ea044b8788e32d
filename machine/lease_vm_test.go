package machine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/node"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/vmm"
)

// translated returns how many blocks of the guest's code QEMU has translated, 0 if the processor executes them
// directly.
func translated(ctx context.Context, t *testing.T, m *machine.Machine) (blocks int) {
	t.Helper()
	if m.Spec.Accel != vmm.TCG {
		return 0
	}
	var said string
	if err := m.Monitor().Do(ctx, "human-monitor-command", map[string]any{"command-line": "info jit"}, &said); err != nil {
		t.Fatal(err)
	}
	_, count, found := strings.Cut(said, "TB count")
	if _, err := fmt.Sscan(count, &blocks); !found || err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return blocks
}

// programs is the Node of runs.
var programs = map[string]machine.Program{"node": {Arg: node.HeapArg,
	Rehearsal: guest.Rehearsal{Text: node.Rehearsal, File: "code.js", Comment: "//"}}}

// opened returns a home with linux's image, and its images.
func opened(t *testing.T) (home string, images *image.Store) {
	t.Helper()
	if !machine.CanClone {
		t.Skip("snapshots need Linux's memfd")
	}
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	home = testhome.New(t, base)
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	return home, rt.Images()
}

// A machine from another source works like any other: its guest's agent and QMP answer, and it is gone after it is
// closed.
func TestLeasedMachine(t *testing.T) {
	home, images := opened(t)
	opts := machine.Options{Home: home, Images: images, Accel: vmm.Auto, Programs: programs}
	lent, leased := opts, opts
	lent.Pool, leased.Lease = machine.PoolSize{Min: 1, Max: 1}, true
	daemon, source := machine.Open(lent), machine.Open(leased)
	defer daemon.Close()
	defer source.Close()
	spec := giveUpTemplate(t, images, source, daemon, home)
	daemon.Stock(func(context.Context) (machine.Spec, error) { return spec, nil })
	ctx, down := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- daemon.Serve(ctx, time.Hour, spec.Class()) }()
	defer func() {
		down()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	testwait.Until(t, "a machine stands ready", func() bool {
		st := daemon.Pool()
		if st.Idle == 0 && st.Held != "" {
			t.Fatalf("%+v", st)
		}
		return st.Idle > 0
	})
	m, err := source.Get(ctx, spec, machine.Config{})
	if err != nil || m.Origin != machine.Pooled {
		t.Fatalf("%+v %v", m, err)
	}
	defer m.Close()
	status := func(want string) {
		t.Helper()
		var got struct{ Status string }
		if err := m.Monitor().Do(ctx, "query-status", nil, &got); err != nil || got.Status != want {
			t.Errorf("%q, not %q: %v", got.Status, want, err)
		}
	}
	status("running")
	if err := m.Monitor().ConnectContext(ctx); err != nil {
		t.Errorf("connecting again: %v", err)
	}
	before := translated(ctx, t, m)
	conn, err := m.Connect(ctx, 0, func(ctx context.Context, conn *guest.Conn) error {
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
		t.Fatal(err)
	}
	defer conn.Close() // the guest ends with it
	if conn.Hello.Kernel != "linux" {
		t.Errorf("%+v", conn.Hello)
	}
	var stdout, stderr strings.Builder
	if end, err := conn.Stream(ctx, strings.NewReader(""), &stdout, &stderr); err != nil || end.Code != 0 ||
		stdout.String() != "hello\n" {
		t.Errorf("%+v %v %q %q", end, err, stdout.String(), stderr.String())
	}
	// The clone's rehearsals have covered everything: code that only a run executes costs every run of an emulated pool
	// more than all the rest. 900 blocks here, 6900 with one such function.
	endLeased(t, ctx, m, before, status)
}

// giveUpTemplate makes the template fail until it is given up.
func giveUpTemplate(t *testing.T, images *image.Store, source, daemon *machine.Source, home string) machine.Spec {
	t.Helper()
	im, err := images.Lookup(image.Linux, image.HostArch())
	if err != nil {
		t.Fatal(err)
	}
	spec, err := source.Spec(t.Context(), im, machine.Class{MemoryMB: 512})
	if err != nil {
		t.Fatal(err)
	}
	// Given-up templates are tried again when somebody starts a pool.
	if spec, err = daemon.Probe(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	templates := machine.OpenTemplates(filepath.Join(home, "templates"))
	for range 2 {
		templates.Failed(spec.Key(), errors.New("QEMU ended: signal: killed"))
	}
	if templates.GivenUp(spec.Key()) == nil {
		t.Error("they are not given up")
	}
	return spec
}

// endLeased stops a leased machine and checks the reports of its end.
func endLeased(t *testing.T, ctx context.Context, m *machine.Machine, before int, status func(want string)) {
	t.Helper()
	if after := translated(ctx, t, m); after-before > 2000 {
		t.Errorf("%d blocks were translated in the run, %d before it", after-before, before)
	} else {
		t.Logf("%d blocks were translated in the run", after-before)
	}
	if err := m.Monitor().Do(ctx, "stop", nil, nil); err != nil {
		t.Error(err)
	}
	status("paused")
	if err := m.Monitor().Do(ctx, "quit", nil, nil); err != nil && !errors.Is(err, os.ErrClosed) {
		t.Log(err) // QEMU may be gone before it has answered
	}
	testwait.Within(t, 10*time.Second, "the machine is gone", func() bool { return !m.Alive() })
	if err := m.Explain(errors.New("gone")); err == nil {
		t.Error("it has nothing to say")
	}
}

// A clone maps the template's own memory file if the jail makes QEMU read-only, otherwise a sealed copy. The file is
// unchanged after the clone has run.
func TestCloneMemory(t *testing.T) {
	home, images := opened(t)
	im, err := images.Lookup(image.Linux, image.HostArch())
	if err != nil {
		t.Fatal(err)
	}
	clone := func(t *testing.T) (mapped bool) {
		source := machine.Open(machine.Options{Home: home, Images: images, Accel: vmm.Auto, Programs: programs})
		defer source.Close()
		spec, err := source.Spec(t.Context(), im, machine.Class{MemoryMB: 512})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := source.MakeTemplate(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if spec, err = source.Probe(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		m, err := source.Clone(t.Context(), spec, machine.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", m.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		file, sealed := strings.Contains(string(maps), "/templates/"), strings.Contains(string(maps), "/memfd:unitask-memory")
		if file != vmm.MapsFiles(spec.QEMU) || file == sealed {
			t.Errorf("QEMU %s: the template's file %v, a sealed copy %v\n%s", spec.QEMU.Version, file, sealed, maps)
		}
		m.Close()
		if err := source.Templates().Check(spec.Key()); err != nil {
			t.Errorf("after the clone: %v", err)
		}
		return file
	}
	t.Run("held", func(t *testing.T) {
		t.Logf("maps the file: %v", clone(t))
	})
	t.Run("a script that starts QEMU, whose files are unknown", func(t *testing.T) {
		if os.Getenv("UNITASK_TEST_LONG") == "" {
			t.Skip("makes a template of its own: make long")
		}
		qemu, err := vmm.FindQEMU(t.Context(), vmm.Arch(image.HostArch()), nil)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for _, d := range []string{dir, filepath.Dir(dir)} { // QEMU's user needs access
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		script := filepath.Join(dir, "qemu")
		if err := os.WriteFile(script, []byte("#!/bin/sh\nexec "+qemu.Path+" \"$@\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv(vmm.Variable, script)
		if clone(t) {
			t.Error("it has the template's own file")
		}
	})
}
