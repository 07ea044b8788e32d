package jail

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
)

// Groups are tested in a separate machine, whose PID 1 is this test (asInit). Only there we own all control groups,
// whatever the host's are.
const (
	asInit = "UNITASK_TEST_INIT"
	asGuy  = "UNITASK_TEST_GROUP" // the actions of a process in a group
)

// groupAttacks are the reports of inGroups, one a line.
var groupAttacks = []string{
	"200 MiB of memory of 64", "processes without end", "more of a processor than its share",
	"more of a disk than its share",
}

const groupRow = "groups: try "

func TestAttackControlGroups(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a machine; not in -short")
	}
	home := os.Getenv("UNITASK_TEST_HOME")
	if home == "" {
		dir, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		home = filepath.Join(dir, ".unitask")
	}
	kernel := filepath.Join(home, "vendor", runtime.GOARCH, "linux", "vmlinuz")
	if _, err := os.Stat(kernel); err != nil {
		t.Skipf("no vendored kernel: %v", err)
	}
	how := map[string][]string{
		"amd64": {"qemu-system-x86_64", "-M", "q35", "-cpu", "max,svm=off,la57=off", "-append", "console=ttyS0"},
		"arm64": {"qemu-system-aarch64", "-M", "virt", "-cpu", "max", "-append", "console=ttyAMA0"},
	}[runtime.GOARCH]
	init := filepath.Join(t.TempDir(), "init") // without libraries, whatever we are
	build := exec.Command("go", "test", "-c", "-o", init, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(init)
	if err != nil {
		t.Fatal(err)
	}
	initrd := filepath.Join(t.TempDir(), "initrd")
	files := map[string][]byte{}
	for _, name := range diskModules {
		packed, err := os.Open(filepath.Join(filepath.Dir(kernel), "modules", name+".ko.xz"))
		if err != nil {
			t.Fatal(err)
		}
		defer packed.Close()
		z, err := xz.NewReader(packed)
		if err != nil {
			t.Fatal(err)
		}
		if files[name+".ko"], err = io.ReadAll(z); err != nil {
			t.Fatal(err)
		}
	}
	disk := filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(initrd, cpio(text, files), 0o600), os.WriteFile(disk, nil, 0o600),
		os.Truncate(disk, diskSize)); err != nil {
		t.Fatal(err)
	}
	how[len(how)-1] += " quiet panic=-1 " + asInit + "=1"
	how = append(how, "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio", "-m", "512", "-smp", "2",
		"-accel", "tcg", "-kernel", kernel, "-initrd", initrd,
		"-drive", "if=none,id=disk,format=raw,file="+disk, "-device", "virtio-blk-pci,drive=disk")
	var out []byte
	for range 3 { // a kernel that calibrates its clock on a busy host may hang
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		cmd := exec.CommandContext(ctx, how[0], how[1:]...)
		out, err = cmd.CombinedOutput()
		cancel()
		if err == nil || bytes.Contains(out, []byte("groups:")) {
			break
		}
	}
	if err != nil || !bytes.Contains(out, []byte("groups: all is well")) {
		t.Errorf("%v\n%s", err, out)
	}
	for _, name := range groupAttacks {
		got := "not tried"
		if _, line, ok := bytes.Cut(out, []byte(groupRow+name+": ")); ok {
			line, _, _ = bytes.Cut(line, []byte("\n"))
			got = strings.TrimSpace(string(line))
		}
		attack.Check(t, "in a control group: "+name, "held", got)
	}
}

// diskModules are the kernel's modules for a disk, in the order of loading.
var diskModules = []string{"virtio_blk"}

const diskSize = 16 << 20

// cpio returns an archive with a program as /init, and other files beside it (Linux,
// Documentation/driver-api/early-userspace/buffer-format.rst).
func cpio(program []byte, files map[string][]byte) []byte {
	var out bytes.Buffer
	add := func(name string, mode, rdev int, data []byte) {
		fmt.Fprintf(&out, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00", out.Len(), mode, 0, 0, 1, 0,
			len(data), 0, 0, rdev>>8, rdev&255, len(name)+1, 0, name)
		out.Write(make([]byte, -out.Len()&3))
		out.Write(data)
		out.Write(make([]byte, -out.Len()&3))
	}
	for _, dir := range []string{"dev", "proc", "sys", "tmp"} {
		add(dir, 0o040755, 0, nil)
	}
	add("dev/console", 0o020600, 5<<8|1, nil)
	add("init", 0o100755, 0, program)
	for name, data := range files {
		add(name, 0o100644, 0, data)
	}
	add("TRAILER!!!", 0, 0, nil)
	return out.Bytes()
}

// initMain is PID 1 of the machine.
func initMain() {
	err := inGroups()
	if err != nil {
		fmt.Println("groups:", err)
	} else {
		fmt.Println("groups: all is well")
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

const groupRoot = "/sys/fs/cgroup"

func inGroups() error {
	disks, err := mountForGroups()
	if err != nil {
		return err
	}
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	all := []string{"memory", "pids", "cpu", "io"}
	d := findGroups(true)
	check(d.dir == "" && strings.Contains(d.why["cpu"], "systemd's"), "what is systemd's was taken: %+v", d)

	// Without systemd the hierarchy belongs to root.
	left, kept := filepath.Join(groupRoot, "unitask-99999-1"), filepath.Join(groupRoot, "unitask-1-7")
	_ = os.Mkdir(left, 0o755)
	_ = os.Mkdir(kept, 0o755)
	d = findGroups(false)
	check(d.dir == groupRoot && slices.Equal(d.with, all) && len(d.why) == 0, "without systemd: %+v", d)
	_, err = os.Stat(left)
	check(err != nil, "what a process left that is gone was not removed")
	_, err = os.Stat(kept)
	check(err == nil, "a living process's group was removed")

	// A group that was given to us, with us in it.
	given := filepath.Join(groupRoot, "given")
	if d, err = giveGroup(given, all, check); err != nil {
		return err
	}

	// in runs a process in its own group.
	in := func(what string, b Bounds) (said string, g *group) {
		b.IO = cmp.Or(b.IO, 1<<30)
		g = newGroup(d, b, disks)
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{asGuy + "=" + what}
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.file.Fd())}
		out, err := cmd.CombinedOutput()
		g.file.Close()
		for _, h := range g.holds {
			check(h.Holds, "%s: %s: %s", what, h.Name, h.Why)
		}
		return strings.TrimSpace(fmt.Sprint(string(out), " ", err)), g
	}
	roomy := Bounds{Memory: 64 << 20, CPUs: 2}
	try := func(name string, held bool, format string, args ...any) {
		seen := fmt.Sprintf(format, args...)
		check(held, "%s: %s", name, seen)
		if held {
			seen = "held"
		}
		fmt.Println(groupRow + name + ": " + seen)
	}
	said, g := in("memory", Bounds{Memory: 64<<20 - groupRoom, CPUs: 2})
	try(groupAttacks[0], said == "signal: killed" && g.outOfMemory(), "%s, out of memory %t", said, g.outOfMemory())
	g.remove()
	_, err = os.Stat(g.dir)
	check(err != nil, "a group stayed")

	attackGroupBounds(in, roomy, try, check)

	// A complete jail.
	if err := startInGroup(given, roomy, check); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// mountForGroups mounts what groups need, and returns the numbers of the disks.
func mountForGroups() ([]string, error) {
	for _, m := range [][2]string{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/tmp"},
		{"cgroup2", groupRoot}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	for _, name := range diskModules {
		f, err := os.Open("/" + name + ".ko")
		if err == nil {
			err = errors.Join(unix.FinitModule(int(f.Fd()), "", 0), f.Close())
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("load %s: %w", name, err)
		}
	}
	number, err := os.ReadFile("/sys/class/block/vda/dev")
	if err != nil {
		return nil, err
	}
	return []string{strings.TrimSpace(string(number))}, nil
}

// findGroups finds the groups that a process may make.
func findGroups(systemd bool) delegation {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	self, _ := os.ReadFile("/proc/self/cgroup")
	return findDelegation(string(mounts), string(self), systemd)
}

// giveGroup gives a group as an administrator does, and checks that it is used once nobody else is in it.
func giveGroup(given string, all []string, check func(ok bool, format string, args ...any)) (delegation, error) {
	_ = os.Mkdir(given, 0o755)
	if err := os.WriteFile(given+"/cgroup.procs", []byte("1"), 0); err != nil {
		return delegation{}, err
	}
	check(findGroups(true).dir == "", "a group that was not given was taken")
	if err := unix.Setxattr(given, "user.delegate", []byte("1"), 0); err != nil {
		return delegation{}, err
	}
	other := exec.Command("/proc/self/exe")
	other.Env = []string{asGuy + "=wait"}
	if err := other.Start(); err != nil {
		return delegation{}, err
	}
	d := findGroups(true)
	check(d.dir == "", "a group with another process in it: %+v", d)
	_ = other.Process.Kill()
	_ = other.Wait()
	d = findGroups(true)
	check(d.dir == given && slices.Equal(d.with, all), "a group that was given: %+v", d)
	return d, nil
}

// startInGroup starts a program in its own group.
func startInGroup(given string, roomy Bounds, check func(ok bool, format string, args ...any)) error {
	program, err := Examine("/init", nil, nil)
	if err != nil {
		return err
	}
	p, err := Start(Spec{Program: program, Args: []string{}, Env: []string{asGuy + "=wait"}, Unfiltered: true,
		Bounds: roomy, AddressSpace: 64 << 30})
	if err != nil {
		return err
	}
	check(len(p.Report.Lacks([]string{LimitGroupMemory, LimitTasks, LimitCPU})) == 0, "held by %+v", p.Report.Limits)
	lacks := p.Report.Lacks([]string{LimitIO})
	check(len(lacks) == 1 && strings.Contains(lacks[0].Why, "on a disk"), "a program in memory: %+v", lacks)
	where, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.Pid))
	check(strings.HasPrefix(string(where), "0::/given/unitask-1-"), "it is in %s", where)
	p.Kill()
	p.Wait()
	left, _ := filepath.Glob(given + "/unitask-1-*")
	check(len(left) == 0, "left: %v", left)
	return nil
}

// attackGroupBounds checks the limits of tasks, processors and disks.
func attackGroupBounds(
	in func(what string, b Bounds) (said string, g *group), roomy Bounds,
	try func(name string, held bool, format string, args ...any), check func(ok bool, format string, args ...any),
) {
	var said string
	var g *group
	said, g = in("tasks", roomy)
	n, _ := strconv.Atoi(strings.Fields(said)[0])
	try(groupAttacks[1], n > 50 && n < maxTasks && !g.outOfMemory(), "%s", said)
	g.remove()

	share := func(b Bounds) float64 {
		said, g := in("spin", b)
		g.remove()
		f, err := strconv.ParseFloat(strings.Fields(said)[0], 64)
		check(err == nil, "spin: %s", said)
		return f
	}
	quarter, whole := share(Bounds{Memory: 64 << 20, CPUs: .25}), share(roomy)
	try(groupAttacks[2], quarter < .35 && whole > 1.5*quarter, "a quarter of a processor: %.2f; two: %.2f", quarter, whole)

	readDisk := func(b Bounds) time.Duration {
		said, g := in("read", b)
		g.remove()
		took, err := time.ParseDuration(strings.Fields(said)[0])
		check(err == nil, "read: %s", said)
		return took
	}
	slow, fast := readDisk(Bounds{Memory: 64 << 20, CPUs: 2, IO: diskSize / 2}), readDisk(roomy)
	try(groupAttacks[3], slow > time.Second && slow > 2*fast, "read in %s, not 2 s; without a bound in %s", slow, fast)
}

// inGroup is a process in a group.
func inGroup(what string) {
	switch what {
	case "wait":
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, os.Interrupt)
		<-asked // it is killed
	case "memory":
		var all [][]byte
		for range 200 {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			all = append(all, b)
		}
		fmt.Println(len(all), "MiB")
	case "read":
		f, err := os.OpenFile("/dev/vda", os.O_RDONLY|unix.O_DIRECT, 0)
		if err != nil {
			fmt.Println(err)
			return
		}
		buf, _ := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		begin := time.Now()
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buf)
		fmt.Println(time.Since(begin), n, err)
	case "tasks":
		var started []*exec.Cmd
		for range 2 * maxTasks {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = []string{asGuy + "=raw"}
			if cmd.Start() != nil {
				break
			}
			started = append(started, cmd)
		}
		fmt.Println(len(started))
		for _, cmd := range started {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	case "spin":
		var before, after unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
		begin := time.Now()
		for time.Since(begin) < 2*time.Second {
		}
		wall := time.Since(begin)
		_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
		used := time.Duration(after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano())
		fmt.Printf("%.3f\n", used.Seconds()/wall.Seconds())
	}
}

// The places where groups are searched for.
func TestFindDelegation(t *testing.T) {
	for _, c := range []struct{ mounts, self, why string }{
		{"", "0::/\n", "no control groups of version 2"},
		{"30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "4:memory:/\n",
			"no control groups of version 2"},
		{"30 24 0:26 /a /nowhere rw - cgroup2 cgroup2 rw\n", "0::/b\n", "outside of what is mounted"},
		{"30 24 0:26 / /nowhere rw - cgroup2 cgroup2 rw\n", "0::/../x\n", "outside of what is mounted"},
		{"30 24 0:26 / /no\\040where rw - cgroup2 cgroup2 rw\n", "0::/b\n",
			"/no where/b is not delegated to us: no such file"},
	} {
		d := findDelegation(c.mounts, c.self, false)
		g := newGroup(d, Bounds{}, nil)
		for _, h := range g.holds {
			if h.Holds || !strings.Contains(h.Why, c.why) || Remedy(h) == "" {
				t.Errorf("%q, %q: %+v", c.mounts, c.self, h)
			}
		}
		if len(g.holds) != len(controls) || d.dir != "" {
			t.Errorf("%q: %+v", c.mounts, d)
		}
	}
}

// The limits of a disk apply to its partitions.
func TestDiskOf(t *testing.T) {
	sys := t.TempDir()
	for path, text := range map[string]string{"devices/x/sda/dev": "8:0\n", "devices/x/sda/sda1/dev": "8:1\n",
		"devices/x/sda/sda1/partition": "1\n"} {
		path = filepath.Join(sys, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	links := filepath.Join(sys, "dev", "block")
	if err := errors.Join(os.MkdirAll(links, 0o755), os.Symlink("../../devices/x/sda", links+"/8:0"),
		os.Symlink("../../devices/x/sda/sda1", links+"/8:1")); err != nil {
		t.Fatal(err)
	}
	for minor, want := range []string{"8:0", "8:0", ""} {
		if got := diskOf(sys, 8, uint32(minor)); got != want {
			t.Errorf("8:%d is on %q, expected %q", minor, got, want)
		}
	}
}
