package jail

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A control group of version 2 (the kernel's Documentation/admin-guide/cgroup-v2.rst) bounds what a process and its
// threads use together: memory, tasks, processor time, and disk traffic. unitask creates groups only below the nearest
// group of this process that is delegated to it. Except for the processor's, each limit is backed by an rlimit.

// groupPrefix begins the names of unitask's groups; its process id and a number follow.
const groupPrefix = "unitask-"

// cpuPeriod is the period to which a quota of processor time refers, in microseconds: the kernel's default.
const cpuPeriod = 100_000

// groupRoom is the memory allowed in addition to that of the Spec. It is for the program, its libraries and its data,
// including TCG's translation buffer of 128 MiB.
const groupRoom = 512 << 20

// control is one limit of a group.
type control struct {
	limit      string // its name in reports
	controller string // the kernel's
	files      func(b Bounds, disks []string) [][2]string
	detail     func(b Bounds, disks []string) string
}

var controls = []control{
	{LimitGroupMemory, "memory", func(b Bounds, _ []string) [][2]string {
		return [][2]string{{"memory.max", strconv.FormatInt(b.Memory+groupRoom, 10)}, {"memory.swap.max", "0"},
			{"memory.oom.group", "1"}}
	}, func(b Bounds, _ []string) string { return strconv.FormatInt(b.Memory+groupRoom, 10) + ", no swap" }},
	{LimitTasks, "pids", func(b Bounds, _ []string) [][2]string {
		return [][2]string{{"pids.max", strconv.Itoa(maxTasks)}}
	}, func(Bounds, []string) string { return strconv.Itoa(maxTasks) }},
	{LimitCPU, "cpu", func(b Bounds, _ []string) [][2]string {
		return [][2]string{{"cpu.max", fmt.Sprintf("%d %d", int(b.CPUs*cpuPeriod), cpuPeriod)}}
	}, func(b Bounds, _ []string) string { return strconv.FormatFloat(b.CPUs, 'f', -1, 64) + " processors" }},
	{LimitIO, "io", func(b Bounds, disks []string) (files [][2]string) {
		for _, disk := range disks {
			files = append(files, [2]string{"io.max", fmt.Sprintf("%s rbps=%d wbps=%d riops=%d wiops=%[4]d", disk, b.IO, b.IO,
				max(1, b.IO/ioSize))})
		}
		return files
	}, func(b Bounds, disks []string) string {
		return fmt.Sprintf("%d bytes a second from and to %s", b.IO, strings.Join(disks, ", "))
	}},
}

// ioSize is the number of bytes that one disk operation counts as: the number of operations limits a program that reads
// smaller pieces.
const ioSize = 16 << 10

// delegation describes the delegated part of the group hierarchy.
type delegation struct {
	dir  string            // groups are made in it; "" for none
	with []string          // controllers
	why  map[string]string // reasons that other controllers are unavailable
}

var delegated = sync.OnceValue(func() delegation {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	self, _ := os.ReadFile("/proc/self/cgroup")
	_, err := os.Stat("/run/systemd/system")
	return findDelegation(string(mounts), string(self), err == nil)
})

// findDelegation finds the nearest group, from this process's group upwards, in which groups with all needed
// controllers can be created. If there is none, it finds the one with most of them. It enables the controllers there.
// With systemd, root may only use delegated groups: systemd expects to manage all others alone.
func findDelegation(mountinfo, self string, systemd bool) delegation {
	var best delegation
	none := func(why string) delegation {
		best.why = map[string]string{}
		for _, c := range controls {
			best.why[c.controller] = why
		}
		return best
	}
	mount, own := groupMount(mountinfo), ""
	for line := range strings.Lines(self) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			own = strings.TrimSuffix(path, "\n")
		}
	}
	if mount.point == "" || own == "" {
		return none("no control groups of version 2 are mounted here")
	}
	rest, below := strings.CutPrefix(own, strings.TrimSuffix(mount.root, "/"))
	if !below || strings.Contains(own, "/..") {
		return none("our control group is outside of what is mounted at " + mount.point)
	}
	whyNot := "none of our control groups is delegated to us"
	begin := filepath.Join(mount.point, rest)
	if filepath.Base(begin) == groupPrefix+"self" { // the starting process has moved aside
		begin = filepath.Dir(begin)
	}
	for dir := begin; ; dir = filepath.Dir(dir) {
		with, err := prepare(dir, systemd)
		if err == nil && len(with) > len(best.with) {
			best.dir, best.with = dir, with
		} else if err != nil && dir == begin {
			whyNot = err.Error()
		}
		if len(best.with) == len(controls) || dir == mount.point {
			break
		}
	}
	if best.dir == "" {
		return none(whyNot)
	}
	best.why = map[string]string{}
	for _, c := range controls {
		if !slices.Contains(best.with, c.controller) {
			best.why[c.controller] = fmt.Sprintf("groups in %s have no %s controller", best.dir, c.controller)
		}
	}
	sweep(best.dir)
	return best
}

// CanShare returns nil if a process can be limited to a part of a processor's time, else the reason.
func CanShare() error {
	if why := delegated().why["cpu"]; why != "" {
		return errors.New(why + "; " + Remedy(Hold{Name: LimitCPU}))
	}
	return nil
}

type groupMountPoint struct{ root, point string }

// groupMount returns the mount point of version 2 groups (proc_pid_mountinfo(5)).
func groupMount(mountinfo string) groupMountPoint {
	for s := bufio.NewScanner(strings.NewReader(mountinfo)); s.Scan(); {
		before, after, _ := strings.Cut(s.Text(), " - ")
		fields := strings.Fields(before)
		if strings.HasPrefix(after, "cgroup2 ") && len(fields) > 4 {
			unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace
			return groupMountPoint{unescape(fields[3]), unescape(fields[4])}
		}
	}
	return groupMountPoint{}
}

// prepare enables the needed controllers for the groups in a group, and returns those that are available.
func prepare(dir string, systemd bool) ([]string, error) {
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		if err := unix.Access(filepath.Join(dir, name), unix.W_OK); err != nil {
			return nil, fmt.Errorf("%s is not delegated to us: %w", dir, err)
		}
	}
	if systemd && os.Getuid() == 0 && !marked(dir) {
		return nil, fmt.Errorf("%s is systemd's, and not delegated", dir)
	}
	here := func(file string) []string {
		text, _ := os.ReadFile(filepath.Join(dir, file))
		return strings.Fields(string(text))
	}
	var with []string
	there, enabled := here("cgroup.controllers"), here("cgroup.subtree_control")
	// A group with processes can only contain thread groups. The root is an exception and has no type.
	if _, err := os.Stat(filepath.Join(dir, "cgroup.type")); err == nil && len(here("cgroup.procs")) > 0 &&
		!moveAside(dir) {
		return nil, fmt.Errorf("%s has other processes in it", dir)
	}
	var refused error
	for _, c := range controls {
		if !slices.Contains(there, c.controller) {
			continue
		}
		if !slices.Contains(enabled, c.controller) {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c.controller), 0); err != nil {
				refused = err
				continue
			}
		}
		with = append(with, c.controller)
	}
	if len(with) == 0 && refused != nil {
		return nil, refused
	}
	return with, nil
}

// moveAside moves this process into a separate group if it is alone in a delegated group: only groups without processes
// can contain groups with controllers.
func moveAside(dir string) bool {
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if self := strconv.Itoa(os.Getpid()); err != nil || strings.TrimSpace(string(procs)) != self {
		return false
	}
	aside := filepath.Join(dir, groupPrefix+"self")
	if err := os.Mkdir(aside, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return false
	}
	return os.WriteFile(filepath.Join(aside, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0) == nil
}

// marked reports whether systemd has delegated a group (systemd.resource-control(5), Delegate=).
func marked(dir string) bool {
	for _, name := range []string{"trusted.delegate", "user.delegate"} {
		value := make([]byte, 8)
		if n, err := unix.Getxattr(dir, name, value); err == nil && bytes.Equal(value[:n], []byte("1")) {
			return true
		}
	}
	return false
}

// sweep removes the groups of killed processes. A group that still contains a process stays.
func sweep(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), groupPrefix)
		pid, _, _ := strings.Cut(rest, "-")
		if n, err := strconv.Atoi(pid); ours && err == nil && errors.Is(unix.Kill(n, 0), unix.ESRCH) {
			_ = unix.Rmdir(filepath.Join(dir, e.Name()))
		}
	}
}

// group is a control group for one process.
type group struct {
	dir   string
	file  *os.File // the folder, for clone3
	holds []Hold
}

var groupNumber atomic.Int64

// newGroup creates a group. If that fails, the group's Holds contain the reason.
func newGroup(d delegation, b Bounds, disks []string) *group {
	g := &group{}
	fail := func(err error) *group {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		g.remove()
		return noGroup("no control group could be made in " + d.dir + ": " + err.Error())
	}
	if d.dir == "" {
		for _, c := range controls {
			g.holds = append(g.holds, Hold{Name: c.limit, Why: d.why[c.controller]})
		}
		return g
	}
	g.dir = filepath.Join(d.dir, fmt.Sprintf("%s%d-%d", groupPrefix, os.Getpid(), groupNumber.Add(1)))
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		g.dir = ""
		return fail(err)
	}
	for _, c := range controls {
		h := Hold{Name: c.limit, Why: d.why[c.controller]}
		if slices.Contains(d.with, c.controller) {
			files := c.files(b, disks)
			if len(files) == 0 {
				h.Why = "none of its files is on a disk"
			}
			for _, f := range files {
				err := os.WriteFile(filepath.Join(g.dir, f[0]), []byte(f[1]), 0)
				if err != nil && !(f[0] == "memory.swap.max" && errors.Is(err, fs.ErrNotExist)) { // a kernel without swap
					h.Why = err.Error()
				}
			}
			if h.Why == "" {
				h.Holds, h.Detail = true, c.detail(b, disks)
			}
		}
		g.holds = append(g.holds, h)
	}
	var err error
	if g.file, err = os.Open(g.dir); err != nil {
		return fail(err)
	}
	return g
}

// noGroup returns an empty group, with the reason.
func noGroup(why string) *group {
	g := &group{}
	for _, c := range controls {
		g.holds = append(g.holds, Hold{Name: c.limit, Why: why})
	}
	return g
}

// remove removes the group, which must be empty.
func (g *group) remove() {
	if g.dir != "" {
		_ = unix.Rmdir(g.dir)
	}
}

// outOfMemory reports whether the kernel killed a process of the group because of its memory.
func (g *group) outOfMemory() bool {
	if g.dir == "" {
		return false
	}
	text, _ := os.ReadFile(filepath.Join(g.dir, "memory.events"))
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok && strings.TrimSpace(n) != "0" {
			return true
		}
	}
	return false
}
