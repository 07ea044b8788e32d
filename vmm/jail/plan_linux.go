package jail

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A level is a way to start the process: its namespaces, and the user that it becomes.
type level struct {
	name   string
	attr   syscall.SysProcAttr
	flags  uintptr // namespaces
	become int     // the user that the stage becomes; -1 to keep its user
	user   string  // description of the user, for the report
	why    string  // why the user layer does not hold; "" if it does
}

// spaces are the namespaces of every level that uses namespaces.
const spaces = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID |
	unix.CLONE_NEWCGROUP

// ambient are the capabilities that a stage that is not root needs in its own user namespace.
var ambient = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SETPCAP}

// levels returns the ways to start a process, the strongest first.
func levels(uid, gid, own int, kvm []uint32) []level {
	within := func(id, group int) syscall.SysProcAttr {
		return syscall.SysProcAttr{
			Cloneflags: spaces | unix.CLONE_NEWUSER, AmbientCaps: ambient,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: group, HostID: group, Size: 1}},
		}
	}
	self := level{name: "user namespace", attr: within(uid, gid), flags: spaces | unix.CLONE_NEWUSER, become: -1,
		user: fmt.Sprintf("a namespace of its own, as uid %d", uid)}
	if uid != 0 {
		return []level{self, {name: "no namespaces", become: -1, why: fmt.Sprintf("it runs as uid %d itself", uid)}}
	}
	self.why = "it runs as root, without root's rights"
	other := level{name: "user namespace for another user", attr: within(own, own), flags: spaces | unix.CLONE_NEWUSER,
		become: -1,
		user:   fmt.Sprintf("a namespace of its own, as uid %d", own)}
	other.attr.Credential = &syscall.Credential{Uid: uint32(own), Gid: uint32(own), Groups: kvm}
	other.attr.GidMappingsEnableSetgroups = true
	return []level{
		{name: "namespaces", attr: syscall.SysProcAttr{Cloneflags: spaces}, flags: spaces, become: own,
			user: fmt.Sprintf("uid %d", own)},
		other,
		self,
		{name: "no namespaces", become: own, user: fmt.Sprintf("uid %d", own)},
	}
}

// facts are the inputs of a plan in addition to the spec and the level.
type facts struct {
	groups   []int    // our supplementary groups
	kvmGroup []uint32 // none unless the jail opens KVM
	lastCap  int
	abi      int                       // Landlock's; 0 for none
	rules    int                       // the ruleset's descriptor in the stage
	noRules  string                    // why there is none
	mount    string                    // a folder to mount the new root on
	hard     func(resource int) uint64 // our own hard limits
	status   int                       // the status socket's descriptor in the stage
	self     int                       // the stage's own
	once     bool                      // a filter's listener can let a call continue
	asks     bool                      // the listener is asked about every file that is opened (seal_linux.go)
	refused  string                    // why the previous levels were refused
}

// maxTasks bounds the threads of a process. QEMU has one or more for processors, a few helpers, and up to 64 for
// blocking reads.
const maxTasks = 128

// limitTable bounds what the process may use. The jail is the security boundary; these limits only contain accidents.
var limitTable = []struct {
	name     string
	resource int
	value    uint64 // 0 if the spec decides
}{
	// With 0, the kernel still sends a core, with the guest's memory, to a program that collects cores. With 1 it does
	// not (fs/coredump.c).
	{LimitCore, unix.RLIMIT_CORE, 1},
	{LimitFiles, unix.RLIMIT_NOFILE, 256},
	{LimitFileSize, unix.RLIMIT_FSIZE, 0},
	{LimitMemory, unix.RLIMIT_AS, 0},
	{LimitLocked, unix.RLIMIT_MEMLOCK, 64 << 10},
	{LimitQueues, unix.RLIMIT_MSGQUEUE, 0},
	{LimitProcesses, unix.RLIMIT_NPROC, maxTasks},
}

// plan returns the stage of a spec on a level, and what will hold if no step fails.
func plan(s Spec, l level, f facts) (*stage, Report) {
	st := newStage()
	var r Report
	call := func(part, what string, nr uintptr, args ...uintptr) int {
		e := step{call: nr, part: part, what: what}
		copy(e.args[:], args)
		return st.add(e)
	}
	must := func(what string, nr uintptr, args ...uintptr) {
		st.steps[call("", what, nr, args...)].then = giveUp
	}
	layer := func(name, detail, why string) {
		r.Layers = append(r.Layers, Hold{Name: name, Holds: why == "", Detail: detail, Why: why})
	}

	root := -1
	path := st.string(s.Program.Path) // the first, so that its address is always the same
	must("mark the status socket", unix.SYS_FCNTL, uintptr(f.status), unix.F_SETFD, unix.FD_CLOEXEC)
	must("close the stage", unix.SYS_CLOSE, uintptr(f.self))
	if !s.Open {
		limits(s, l, f, st, &r, call)
		root = namespaces(s, l, f, st, layer, call)
		privileges(s, l, f, st, layer, call)
	}
	if s.SmallPages {
		call("", "refuse huge pages", unix.SYS_PRCTL, unix.PR_SET_THP_DISABLE, 1)
	}
	must("die with the parent", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL))
	// If the starter has died before, the write fails.
	hello := len(st.steps)
	must("report", unix.SYS_WRITE, uintptr(f.status), st.words(0, uint64(hello)), reportSize)
	if !s.Open {
		seal(s, l, f, root, hello, st, layer, call)
		confine(f, st, layer, call)
	}
	argv, env := st.vector(append([]string{s.Program.Path}, s.Args...)), st.vector(s.Env)
	switch {
	case s.Open || s.Unfiltered:
	case len(s.Program.Files) == 0: // a script that starts QEMU makes its own calls
		layer(Seccomp, "", s.Program.Path+" is "+ErrNoProgram.Error())
	default:
		listCalls(s, f, path, hello, st, layer, call)
	}
	must("execute "+s.Program.Path, unix.SYS_EXECVE, path, argv, env)
	return st, r
}

type caller = func(part, what string, nr uintptr, args ...uintptr) int

func limits(s Spec, l level, f facts, st *stage, r *Report, call caller) {
	for _, row := range limitTable {
		value := row.value
		switch row.resource {
		case unix.RLIMIT_AS:
			value = s.AddressSpace
		case unix.RLIMIT_FSIZE:
			value = s.FileSize
		}
		h := Hold{Name: row.name, Holds: true}
		switch hard := f.hard(row.resource); {
		case row.resource == unix.RLIMIT_NPROC && l.become < 0 && l.flags&unix.CLONE_NEWUSER == 0:
			h.Holds, h.Why = false, "without a user of its own it would count all of the user's processes"
		default:
			value = min(value, hard)
			h.Detail = strconv.FormatUint(value, 10)
			call(row.name, "limit "+row.name, unix.SYS_PRLIMIT64, 0, uintptr(row.resource), st.words(value, value), 0)
		}
		r.Limits = append(r.Limits, h)
	}
}

// namespaces returns the step that opens the root to be sealed, or -1.
func namespaces(s Spec, l level, f facts, st *stage, layer func(name, detail, why string), call caller) (root int) {
	for _, n := range []struct {
		name string
		flag uintptr
	}{{Network, unix.CLONE_NEWNET}, {Processes, unix.CLONE_NEWPID}, {IPC, unix.CLONE_NEWIPC}, {UTS, unix.CLONE_NEWUTS},
		{CgroupSpace, unix.CLONE_NEWCGROUP}} {
		if l.flags&n.flag == 0 {
			layer(n.name, "", f.refused)
			continue
		}
		layer(n.name, "a namespace of its own", "")
		if n.flag == unix.CLONE_NEWUTS {
			call(UTS, "set the host's name", unix.SYS_SETHOSTNAME, st.string("machine"), uintptr(len("machine")))
		}
	}
	switch {
	case l.flags&unix.CLONE_NEWNS == 0:
		layer(Filesystem, "", f.refused)
	case len(s.Program.Files) == 0:
		layer(Filesystem, "", "the files of "+s.Program.Path+" can't be listed: it is "+ErrNoProgram.Error())
	case f.mount == "":
		layer(Filesystem, "", "no folder to mount it on")
	default:
		layer(Filesystem, "the program's files, read-only", "")
		return newRoot(s, f, st, call)
	}
	return -1
}

// newRoot mounts a file system with only the program's files, read-only, the process's own folder of /proc, and
// /dev/kvm if needed. It returns the step that opens the root to be sealed.
func newRoot(s Spec, f facts, st *stage, call caller) (open int) {
	try := func(what string, nr uintptr, args ...uintptr) {
		st.steps[call(Filesystem, what, nr, args...)].then = abandon
	}
	try("make folders that QEMU's user may enter", unix.SYS_UMASK, 0o022) // whatever this process's umask is
	empty := st.string("")
	bind := func(from, to string) {
		try("mount "+from, unix.SYS_MOUNT, st.string(from), st.string(to), empty, unix.MS_BIND)
	}
	st.begin()
	root := st.string("/")
	try("keep mounts to itself", unix.SYS_MOUNT, empty, root, empty, unix.MS_REC|unix.MS_PRIVATE)
	try("mount a root", unix.SYS_MOUNT, st.string("tmpfs"), st.string(f.mount), st.string("tmpfs"),
		unix.MS_NOSUID|unix.MS_NODEV, st.string("size=1m,nr_inodes=4096,mode=0755"))
	open = openRoot(f.mount, st, call)
	made := map[string]bool{"/": true}
	var mkdir func(dir string)
	mkdir = func(dir string) {
		if made[dir] {
			return
		}
		made[dir] = true
		mkdir(filepath.Dir(dir))
		try("make "+dir, unix.SYS_MKDIRAT, atCWD, st.string(f.mount+dir), 0o755)
	}
	file := func(path string) {
		mkdir(filepath.Dir(path))
		try("make "+path, unix.SYS_MKNODAT, atCWD, st.string(f.mount+path), unix.S_IFREG|0o444, 0)
	}
	for _, dir := range s.Program.Dirs {
		mkdir(dir)
		bind(dir, f.mount+dir)
	}
	for _, path := range s.Program.Files {
		if !slices.ContainsFunc(s.Program.Dirs, func(dir string) bool { return strings.HasPrefix(path, dir+"/") }) {
			file(path)
			bind(path, f.mount+path)
		}
	}
	mkdir("/proc/self")
	bind("/proc/self", f.mount+"/proc/self")
	if s.KVM == KVMOpened {
		file(KVMDevice)
	}
	attr := func(set uint64, flags uintptr, path string) {
		try("make "+path+" read-only", unix.SYS_MOUNT_SETATTR, atCWD, st.string(path), flags, st.words(set, 0, 0, 0), 32)
	}
	attr(unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, atRecursive, f.mount)
	if s.KVM == KVMOpened {
		bind(KVMDevice, f.mount+KVMDevice)
		attr(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, 0, f.mount+KVMDevice)
	}
	try("enter the root", unix.SYS_CHDIR, st.string(f.mount))
	dot := st.string(".")
	// If the root is not a separate mount (a chroot, an initramfs), it can't be exchanged. Then a chroot is used: a
	// process without privileges and open folders can't leave it either.
	st.end()
	st.begin()
	pivot := call("", "exchange the roots", unix.SYS_PIVOT_ROOT, dot, dot)
	st.steps[pivot].then = abandon
	st.steps[call(Filesystem, "detach the old root", unix.SYS_UMOUNT2, dot, unix.MNT_DETACH)].then = giveUp
	st.end()
	call(Filesystem, "change the root", unix.SYS_CHROOT, dot)
	call(Filesystem, "enter the root", unix.SYS_CHDIR, root)
	return open
}

// atCWD is AT_FDCWD (-100) as a register value.
const (
	atCWD       = ^uintptr(99)
	atRecursive = unix.AT_RECURSIVE
)

// privileges drops groups, the user, capabilities, and every way to gain privileges.
func privileges(s Spec, l level, f facts, st *stage, layer func(name, detail, why string), call caller) {
	// no_new_privs makes the bounding set useless anyway; only a privileged process can drop it.
	for c := range f.lastCap + 1 {
		call("", "drop the bounding set", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c))
	}
	var groups []uint32
	detail := "none"
	if len(f.kvmGroup) > 0 {
		groups, detail = f.kvmGroup, fmt.Sprintf("%d, KVM's", f.kvmGroup[0])
	}
	switch {
	case len(groups) == len(f.groups) && len(groups) == 0, l.attr.Credential != nil: // there it was done before the stage
		layer(Groups, detail, "")
	case l.become >= 0:
		layer(Groups, detail, "")
		var list []byte
		for _, g := range groups {
			list = append(list, byte(g), byte(g>>8), byte(g>>16), byte(g>>24))
		}
		call(Groups, "set groups", unix.SYS_SETGROUPS, uintptr(len(groups)), st.bytes(list))
	default:
		layer(Groups, fmt.Sprint(f.groups), "only root may give up groups, and these are ours")
	}
	layer(User, l.user, l.why)
	if l.become >= 0 {
		id := uintptr(l.become)
		call(User, "set the group", unix.SYS_SETRESGID, id, id, id)
		call(User, "set the user", unix.SYS_SETRESUID, id, id, id)
	}
	layer(Capabilities, "none", "")
	call(Capabilities, "drop capabilities", unix.SYS_CAPSET, st.words(unix.LINUX_CAPABILITY_VERSION_3), st.words(0, 0, 0))
	layer(NoPrivileges, "", "")
	call(NoPrivileges, "refuse new privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1)
}

// confine enforces the ruleset, after adding the process's own folder of /proc, which is only known now.
func confine(f facts, st *stage, layer func(name, detail, why string), call caller) {
	if f.noRules != "" {
		layer(Landlock, "", f.noRules)
		return
	}
	layer(Landlock, fmt.Sprintf("ABI %d", f.abi), "")
	st.begin()
	defer st.end()
	beneath := st.words(llRead|llList, 0)
	open := call(Landlock, "open /proc/self", unix.SYS_OPENAT, atCWD, st.string("/proc/self"), unix.O_PATH|unix.O_CLOEXEC)
	st.steps[open].into = beneath + unsafe.Offsetof(unix.LandlockPathBeneathAttr{}.Parent_fd)
	st.steps[open].then = abandon
	st.steps[call(Landlock, "allow /proc/self", unix.SYS_LANDLOCK_ADD_RULE, uintptr(f.rules),
		unix.LANDLOCK_RULE_PATH_BENEATH, beneath, 0)].then = abandon
	call(Landlock, "restrict", unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(f.rules), 0)
	call(Landlock, "close the ruleset", unix.SYS_CLOSE, uintptr(f.rules))
}

// listCalls installs the filter that allows the listed system calls. It sends the filter's listener to this process
// over the status socket. If there can be no listener, because another filter has one, the kernel kills the machine by
// itself, and the system call remains unknown.
func listCalls(s Spec, f facts, path uintptr, hello int, st *stage, layer func(name, detail, why string), call caller) {
	layer(Seccomp, "", "")
	program := func(unlisted uint32) uintptr {
		var code []byte
		list, own := filter(s, path, unlisted, f.once, f.asks)
		for _, i := range list {
			code = binary.LittleEndian.AppendUint16(code, i.Code)
			code = append(code, i.Jt, i.Jf)
			code = binary.LittleEndian.AppendUint32(code, i.K)
		}
		at := st.bytes(code)
		st.steps[call(Seccomp, "find its own number", unix.SYS_GETPID)].into = at + uintptr(own)*unix.SizeofSockFilter +
			unsafe.Offsetof(unix.SockFilter{}.K)
		return st.words(uint64(len(list)), uint64(at)) // struct sock_fprog
	}
	message, rights := fileMessage(st, hello)
	listen := call("", "filter with a listener", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, program(unix.SECCOMP_RET_USER_NOTIF))
	st.steps[listen].into = rights
	send := call("", "send the listener", unix.SYS_SENDMSG, uintptr(f.status), message, unix.MSG_NOSIGNAL)
	alone := call(Seccomp, "filter", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0,
		program(unix.SECCOMP_RET_KILL_PROCESS))
	st.ends[listen], st.steps[listen].then = send+1, abandon
	st.steps[send].then, st.steps[send].skip = giveUp, alone-send
}

// fileMessage returns a message (struct msghdr) that reports a finished step and passes the descriptor stored at
// rights.
func fileMessage(st *stage, step int) (message, rights uintptr) {
	const header = unix.SizeofCmsghdr
	control := st.words(header+4, unix.SOL_SOCKET|unix.SCM_RIGHTS<<32, 1<<32-1) // struct cmsghdr; no descriptor yet
	text := st.words(0, uint64(step))
	return st.words(0, 0, uint64(st.words(uint64(text), reportSize)), 1, uint64(control), header+8, 0), control + header
}

// findFacts examines this host.
func findFacts() facts {
	f := facts{abi: landlockABI(), once: canContinue(), lastCap: bits.Len64(^uint64(0)) - 1, hard: hardLimit}
	if text, err := os.ReadFile("/proc/sys/kernel/cap_last_cap"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			f.lastCap = min(n, f.lastCap)
		}
	}
	f.groups, _ = os.Getgroups()
	return f
}

func hardLimit(resource int) uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil {
		return unix.RLIM_INFINITY
	}
	return limit.Max
}

// mountFolder returns a folder to mount a root on. It must not contain files of the program, since the mount hides
// it.
func mountFolder(p Program) string {
	for _, dir := range []string{"/sys", "/mnt", "/media", "/srv", "/boot", "/home", "/tmp"} {
		in := func(path string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
		if slices.ContainsFunc(p.Files, in) || slices.ContainsFunc(p.Dirs, in) {
			continue
		}
		if st, err := os.Lstat(dir); err == nil && st.IsDir() {
			return dir
		}
	}
	return ""
}
