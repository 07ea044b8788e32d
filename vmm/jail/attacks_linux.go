package jail

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attacks are all attempts, one line each.
var attacks = []one{
	// Files.
	{"read /etc/passwd", func(a *script, t *targets) { a.read("/etc/passwd") }, false},
	{"read a file that everybody may read", func(a *script, t *targets) { a.read(filepath.Join(t.dir, targetFile)) },
		false},
	{"read it through ../..", func(a *script, t *targets) {
		a.read("/proc/self/../../../.." +
			filepath.Join(t.dir, targetFile))
	}, false},
	{"read it through our own root", func(a *script, t *targets) {
		a.read(fmt.Sprintf("/proc/%d/root%s", t.pid, filepath.Join(t.dir, targetFile)))
	}, false},
	{"write a file that everybody may write", func(a *script, t *targets) {
		a.call("write", unix.SYS_WRITE, a.open(filepath.Join(t.dir, targetFile), unix.O_WRONLY), "x", 1)
	}, false},
	{"truncate it", func(a *script, t *targets) {
		a.call("truncate", unix.SYS_TRUNCATE, filepath.Join(t.dir, targetFile), 0)
	}, false},
	{"remove it", func(a *script, t *targets) {
		a.call("unlinkat", unix.SYS_UNLINKAT, atCWD, filepath.Join(t.dir, targetFile), 0)
	}, false},
	{"create a file where everybody may", func(a *script, t *targets) { a.open(t.dir+"-file", unix.O_CREAT|unix.O_RDWR) },
		false},
	{"create a file in the root", func(a *script, t *targets) { a.open("/unitask-attack", unix.O_CREAT|unix.O_RDWR) },
		true},
	{"list the root", func(a *script, t *targets) {
		a.call("getdents64", unix.SYS_GETDENTS64, a.open("/", unix.O_RDONLY|unix.O_DIRECTORY), make([]byte, 1024), 1024)
	}, false},
	{"write to its disk", func(a *script, t *targets) { a.call("write", unix.SYS_WRITE, standInDisk, "x", 1) }, false},
	{"open its disk again, for writing", func(a *script, t *targets) {
		a.call("write", unix.SYS_WRITE, a.open(fmt.Sprintf("/proc/self/fd/%d", standInDisk), unix.O_WRONLY), "x", 1)
	}, false},
	{"open its own program, once it has started", func(a *script, t *targets) {
		a.seal()
		a.read(filepath.Join(t.dir, "stand-in"))
	}, false},
	{"list the root, once it has started", func(a *script, t *targets) {
		a.seal()
		a.call("getdents64", unix.SYS_GETDENTS64, a.open("/", unix.O_RDONLY|unix.O_DIRECTORY), make([]byte, 1024), 1024)
	}, false},
	{"open its own memory, once it has started", func(a *script, t *targets) {
		a.seal()
		a.open("/proc/self/mem", unix.O_RDWR)
	}, false},
	{"open its disk again, once it has started", func(a *script, t *targets) {
		a.seal()
		a.read(fmt.Sprintf("/proc/self/fd/%d", standInDisk))
	}, false},
	{"open by a path that does not begin at the root, once it has started", func(a *script, t *targets) {
		a.seal()
		a.read("./proc/self/status")
	}, false},
	{"open by a folder that it has kept open, once it has started", func(a *script, t *targets) {
		a.seal()
		a.call("read", unix.SYS_READ, a.call("openat", unix.SYS_OPENAT, a.open("/", unix.O_PATH), "proc/self/status",
			unix.O_RDONLY, 0), make([]byte, 8), 1)
	}, false},
	{"undo the seal", func(a *script, t *targets) {
		a.seal()
		a.call("fchmodat", unix.SYS_FCHMODAT, atCWD, "/", 0o755)
		a.read("/proc/self/status")
	}, true},
	{"let others write to its disk", func(a *script, t *targets) { a.call("fchmod", unix.SYS_FCHMOD, standInDisk, 0o777) },
		false},
	{"make a folder", func(a *script, t *targets) {
		a.call("mkdirat", unix.SYS_MKDIRAT, atCWD, filepath.Join(t.dir, "d"), 0o777)
	}, false},
	{"make a link", func(a *script, t *targets) {
		a.call("symlinkat", unix.SYS_SYMLINKAT, "/etc/passwd", atCWD, filepath.Join(t.dir, "l"))
	}, false},
	{"change its own program", func(a *script, t *targets) { a.open(filepath.Join(t.dir, "stand-in"), unix.O_RDWR) },
		false},
	{"reach the host's processes through /proc", func(a *script,
		t *targets) {
		a.read(fmt.Sprintf("/proc/%d/cmdline", t.pid))
	}, false},
	{"read the environment of process 1", func(a *script, t *targets) { a.read("/proc/1/environ") }, false},
	{"read the kernel's settings", func(a *script, t *targets) { a.read("/proc/sys/kernel/core_pattern") }, false},
	{"change the kernel's settings", func(a *script, t *targets) {
		a.open("/proc/sys/kernel/core_pattern",
			unix.O_WRONLY)
	}, false},
	{"read the kernel's memory", func(a *script, t *targets) { a.read("/proc/kcore") }, false},
	{"read /sys", func(a *script, t *targets) { a.read("/sys/kernel/mm/transparent_hugepage/enabled") }, false},
	{"open /dev/null", func(a *script, t *targets) { a.open("/dev/null", unix.O_RDWR) }, false},
	{"open the terminal", func(a *script, t *targets) { a.open("/dev/tty", unix.O_RDWR) }, false},
	{"open the memory device", func(a *script, t *targets) { a.open("/dev/mem", unix.O_RDONLY) }, false},
	{"make a device", func(a *script, t *targets) {
		a.call("mknodat", unix.SYS_MKNODAT, atCWD, filepath.Join(t.dir, "null"), unix.S_IFCHR|0o666, 1<<8|3)
	}, false},
	{"take the handle of a file", func(a *script, t *targets) {
		handle := make([]byte, 136)
		binary.NativeEndian.PutUint32(handle, 128)
		a.call("name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, atCWD, filepath.Join(t.dir, targetFile), handle,
			make([]byte, 8), 0)
	}, false},
	{"execute a shell", func(a *script, t *targets) {
		a.call("execve", unix.SYS_EXECVE, "/bin/sh", a.vector([]string{"sh", "-c", "head -c 16 /dev/zero >&3"}),
			a.vector(nil))
	}, false},

	{"execute its program again, at the address that its filter knows", func(a *script, t *targets) {
		again := a.string(filepath.Join(t.dir, "stand-in")) // the first string, as a stage's is
		const mark = 100                                    // a descriptor that was open at the start
		a.steps[a.call("fcntl", unix.SYS_FCNTL, mark, unix.F_GETFD)].then = goOn
		a.steps[0].skip = 2
		a.call("dup3", unix.SYS_DUP3, standInDisk, mark, 0)
		a.call("execve", unix.SYS_EXECVE, again, a.vector(nil), a.vector(nil))
	}, false},
	{"have the kernel signal it when others use its disk", func(a *script, t *targets) {
		a.call("fcntl", unix.SYS_FCNTL, standInDisk, unix.F_SETSIG, int(unix.SIGUSR1))
	}, false},
	{"have others wait for its disk", func(a *script, t *targets) {
		a.call("fcntl", unix.SYS_FCNTL, standInDisk, unix.F_SETLEASE, unix.F_RDLCK)
	}, false},

	// Sockets.
	{"connect to a Unix socket that everybody may use", func(a *script, t *targets) {
		a.connect(unix.AF_UNIX, unix.SOCK_STREAM, 0, unixAddress(filepath.Join(t.dir, targetSocket)))
	}, false},
	{"connect to an abstract Unix socket", func(a *script, t *targets) {
		a.connect(unix.AF_UNIX, unix.SOCK_STREAM, 0, unixAddress(t.abstract))
	}, false},
	{"connect to the host's loopback by TCP", func(a *script, t *targets) {
		a.connect(unix.AF_INET, unix.SOCK_STREAM, 0, inetAddress(t.port))
	}, false},
	{"connect to it by MPTCP", func(a *script, t *targets) {
		a.connect(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, inetAddress(t.port))
	}, false},
	{"send to it by UDP", func(a *script, t *targets) {
		a.call("sendto", unix.SYS_SENDTO, a.call("socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, 0), "x", 1, 0,
			inetAddress(t.port), 16)
	}, false},
	{"listen on TCP", func(a *script, t *targets) {
		a.call("bind", unix.SYS_BIND, a.call("socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0), inetAddress(0),
			16)
	}, false},
	{"a raw socket", func(a *script, t *targets) {
		a.call("socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	}, false},
	{"a netlink socket", func(a *script, t *targets) {
		a.call("socket", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	}, false},
	{"a socket to the hypervisor", func(a *script, t *targets) {
		a.call("socket", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	}, false},
	{"attach a program to a socket", func(a *script, t *targets) {
		code := a.bytes([]byte{6, 0, 0, 0, 0, 0, 0, 0}) // ret 0
		a.call("setsockopt", unix.SYS_SETSOCKOPT, standInStatus, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			a.words(1, uint64(code)), 16)
	}, false},
	{"a packet socket", func(a *script, t *targets) {
		a.call("socket", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0)
	}, false},

	// Processes.
	{"signal the process that started it", func(a *script, t *targets) { a.call("kill", unix.SYS_KILL, t.pid, 0) }, false},
	{"signal process groups of the host", func(a *script, t *targets) { a.call("kill", unix.SYS_KILL, -t.pid, 0) }, false},
	{"signal everybody", func(a *script, t *targets) { a.call("kill", unix.SYS_KILL, -1, 0) }, false},
	{"trace the process that started it", func(a *script, t *targets) {
		a.call("ptrace", unix.SYS_PTRACE, unix.PTRACE_SEIZE, t.pid, 0, 0)
	}, false},
	{"read that process's memory", func(a *script, t *targets) {
		a.call("process_vm_readv", unix.SYS_PROCESS_VM_READV, t.pid, a.words(uint64(a.bytes(make([]byte, 8))), 8), 1,
			a.words(uint64(uintptr(unsafe.Pointer(&t.memory[0]))), 8), 1, 0)
	}, false},
	{"open a descriptor of that process", func(a *script,
		t *targets) {
		a.call("pidfd_open", unix.SYS_PIDFD_OPEN, t.pid, 0)
	}, false},
	{"change that process's limits", func(a *script, t *targets) {
		a.call("prlimit64", unix.SYS_PRLIMIT64, t.pid, unix.RLIMIT_CORE, 0, a.words(0, 0))
	}, false},

	// The kernel.
	{"mount", func(a *script, t *targets) { a.call("mount", unix.SYS_MOUNT, "tmpfs", "/proc", "tmpfs", 0, "") }, true},
	{"unmount", func(a *script, t *targets) { a.call("umount2", unix.SYS_UMOUNT2, "/proc/self", unix.MNT_DETACH) }, true},
	{"change the root", func(a *script, t *targets) { a.call("chroot", unix.SYS_CHROOT, "/proc") }, false},
	{"make the root writable", func(a *script, t *targets) {
		a.call("mount_setattr", unix.SYS_MOUNT_SETATTR, atCWD, "/", 0, a.words(0, unix.MOUNT_ATTR_RDONLY, 0, 0), 32)
	}, true},
	{"enter a namespace", func(a *script, t *targets) {
		a.call("setns", unix.SYS_SETNS, a.open("/proc/self/ns/net", unix.O_RDONLY), 0)
	}, false},
	{"set the host's name", func(a *script, t *targets) { a.call("sethostname", unix.SYS_SETHOSTNAME, "attack", 6) },
		true},
	{"set the clock", func(a *script, t *targets) {
		var now unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_REALTIME, &now)
		a.call("clock_settime", unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, a.words(uint64(now.Sec), uint64(now.Nsec)))
	}, true},
	{"become root", func(a *script, t *targets) { a.call("setresuid", unix.SYS_SETRESUID, 0, 0, 0) }, false},
	{"become somebody else", func(a *script, t *targets) { a.call("setresuid", unix.SYS_SETRESUID, 1, 1, 1) }, false},
	{"take groups", func(a *script, t *targets) { a.call("setgroups", unix.SYS_SETGROUPS, 1, []byte{0, 0, 0, 0}) }, false},
	{"take capabilities", func(a *script, t *targets) {
		a.call("capset", unix.SYS_CAPSET, a.words(unix.LINUX_CAPABILITY_VERSION_3),
			a.words(1<<unix.CAP_SYS_ADMIN|1<<(32+unix.CAP_SYS_ADMIN), 0, 0))
	}, false},
	{"load a module", func(a *script, t *targets) {
		a.call("finit_module", unix.SYS_FINIT_MODULE, a.open(filepath.Join(t.dir, targetFile), unix.O_RDONLY), "", 0)
	}, false},
	{"read the kernel's log", func(a *script, t *targets) { a.call("syslog", unix.SYS_SYSLOG, 3, make([]byte, 64), 64) },
		false},

	{"make a user namespace", func(a *script, t *targets) { a.call("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER) },
		false},
	{"start a process", func(a *script, t *targets) { a.call("clone", unix.SYS_CLONE, int(unix.SIGCHLD), 0, 0, 0, 0) },
		false},
	{"start a process by clone3", func(a *script, t *targets) {
		a.call("clone3", unix.SYS_CLONE3, a.words(0, 0, 0, 0, uint64(unix.SIGCHLD), 0, 0, 0), 64)
	}, false},
	{"execute a file in memory", func(a *script, t *targets) {
		a.call("execveat", unix.SYS_EXECVEAT, a.call("memfd_create", unix.SYS_MEMFD_CREATE, "", 0), "", a.vector(nil),
			a.vector(nil), unix.AT_EMPTY_PATH)
	}, false},
	{"load a BPF program", func(a *script, t *targets) {
		code := a.bytes([]byte{0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0}) // r0 = 0; exit
		a.call("bpf", unix.SYS_BPF, unix.BPF_PROG_LOAD, a.words(unix.BPF_PROG_TYPE_SOCKET_FILTER|2<<32, uint64(code),
			uint64(a.string("GPL")), 0, 0, 0), 48)
	}, false},
	{"watch performance counters", func(a *script, t *targets) {
		a.call("perf_event_open", unix.SYS_PERF_EVENT_OPEN, a.words(unix.PERF_TYPE_SOFTWARE|64<<32, 0, 0, 0, 0, 0, 0, 0), 0,
			-1, -1, 0)
	}, false},
	{"handle page faults", func(a *script, t *targets) { a.call("userfaultfd", unix.SYS_USERFAULTFD, 1) }, false},
	{"open a queue of io_uring", func(a *script, t *targets) {
		a.call("io_uring_setup", unix.SYS_IO_URING_SETUP, 4, make([]byte, 120))
	}, false},
	{"add a key", func(a *script, t *targets) {
		a.call("add_key", unix.SYS_ADD_KEY, "user", "unitask-attack", "x", 1, -2)
	}, false},
	{"read keys", func(a *script, t *targets) { a.call("keyctl", unix.SYS_KEYCTL, 0, -5, 1) }, false},
	{"change its personality", func(a *script, t *targets) { a.call("personality", unix.SYS_PERSONALITY, 0x0040000) },
		false},
	{"account for processes", func(a *script, t *targets) { a.call("acct", unix.SYS_ACCT, 0) }, true},
	{"restart the host by a key", func(a *script, t *targets) {
		a.call("reboot", unix.SYS_REBOOT, 0xfee1dead, unix.LINUX_REBOOT_MAGIC2, 0, 0)
	}, true},
	{"outlive the process that started it", func(a *script,
		t *targets) {
		a.call("prctl", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, 0)
	}, false},
	{"allow itself to be dumped", func(a *script, t *targets) { a.call("prctl", unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1) },
		false},
	{"take another processor's time", func(a *script, t *targets) { a.call("setpriority", unix.SYS_SETPRIORITY, 0, 0, 1) },
		false},

	// Less usual ways.
	{"execute its disk by the descriptor", func(a *script, t *targets) {
		a.call("execveat", unix.SYS_EXECVEAT, standInDisk, "", a.vector(nil), a.vector(nil), unix.AT_EMPTY_PATH)
	}, false},
	{"open its disk for writing by its handle", func(a *script, t *targets) {
		handle := make([]byte, 136)
		binary.NativeEndian.PutUint32(handle, 128)
		at := a.bytes(handle)
		a.call("name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, standInDisk, "", at, make([]byte, 8), unix.AT_EMPTY_PATH)
		a.call("write", unix.SYS_WRITE, a.call("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, standInDisk, at, unix.O_RDWR),
			"x", 1)
	}, false},
	{"lock its disk, so that others wait", func(a *script, t *targets) {
		a.call("flock", unix.SYS_FLOCK, standInDisk, unix.LOCK_EX|unix.LOCK_NB)
	}, false},
	{"watch a file of the host", func(a *script, t *targets) {
		a.call("inotify_add_watch", unix.SYS_INOTIFY_ADD_WATCH, a.call("inotify_init1", unix.SYS_INOTIFY_INIT1, 0),
			filepath.Join(t.dir, targetFile), unix.IN_ALL_EVENTS)
	}, false},
	{"watch a file system", func(a *script, t *targets) { a.call("fanotify_init", unix.SYS_FANOTIFY_INIT, 0, 0) }, false},
	{"write over its program in memory, through /proc", func(a *script, t *targets) {
		a.call("pwrite64", unix.SYS_PWRITE64, a.open("/proc/self/mem", unix.O_RDWR), make([]byte, 8), 1, codeBase+codeSize-1)
	}, false},
	{"take a descriptor of the process that started it", func(a *script, t *targets) {
		a.call("pidfd_getfd", unix.SYS_PIDFD_GETFD, a.call("pidfd_open", unix.SYS_PIDFD_OPEN, t.pid, 0), 0, 0)
	}, false},
	{"write to that process's memory", func(a *script, t *targets) {
		a.call("process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, t.pid, a.words(uint64(a.bytes(make([]byte, 8))), 8), 1,
			a.words(uint64(uintptr(unsafe.Pointer(&t.memory[0]))), 8), 1, 0)
	}, false},
	{"signal that process as one of its threads", func(a *script,
		t *targets) {
		a.call("tgkill", unix.SYS_TGKILL, t.pid, t.pid, 0)
	}, false},
	{"queue a signal to that process", func(a *script, t *targets) {
		a.call("rt_sigqueueinfo", unix.SYS_RT_SIGQUEUEINFO, t.pid, 0,
			a.words(0, 0xffffffff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
	}, false},
	{"compare itself with that process", func(a *script, t *targets) {
		a.call("kcmp", unix.SYS_KCMP, t.pid, t.pid, 1, 0, 0) // KCMP_VM
	}, false},
	{"move that process to another processor", func(a *script, t *targets) {
		a.call("sched_setaffinity", unix.SYS_SCHED_SETAFFINITY, t.pid, 8, a.words(^uint64(0)))
	}, false},
	{"run before everybody else", func(a *script, t *targets) {
		a.call("sched_setscheduler", unix.SYS_SCHED_SETSCHEDULER, 0, 1, a.words(1)) // SCHED_FIFO
	}, false},
	{"read disks before everybody else", func(a *script, t *targets) {
		a.call("ioprio_set", unix.SYS_IOPRIO_SET, 1, 0, 1<<13) // IOPRIO_CLASS_RT
	}, false},
	{"have the kernel take a page of memory for broken", func(a *script, t *targets) {
		m := a.call("mmap", unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1,
			0)
		a.call("madvise", unix.SYS_MADVISE, m, 4096, unix.MADV_HWPOISON)
	}, true},
	{"say that its program is another", func(a *script, t *targets) {
		a.call("prctl", unix.SYS_PRCTL, unix.PR_SET_MM, unix.PR_SET_MM_EXE_FILE, standInDisk, 0, 0)
	}, true},
	{"add a filter that asks it", func(a *script, t *targets) {
		code := a.bytes([]byte{6, 0, 0, 0, 0, 0, 0xff, 0x7f}) // ret SECCOMP_RET_ALLOW
		a.call("seccomp", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
			a.words(1, uint64(code)))
	}, false},
	{"reserve memory as a file", func(a *script, t *targets) {
		a.call("fallocate", unix.SYS_FALLOCATE, a.call("memfd_create", unix.SYS_MEMFD_CREATE, "", 0), 0, 0, 1<<30)
	}, false},
	{"keep 100 MiB in pipes", func(a *script, t *targets) {
		for i := range 100 {
			a.call("pipe2", unix.SYS_PIPE2, make([]byte, 8), 0)
			a.call("fcntl", unix.SYS_FCNTL, standInDisk+1+2*i, unix.F_SETPIPE_SZ, 1<<20)
		}
	}, false},

	// Limits.
	{"raise the limit on files", func(a *script, t *targets) {
		a.call("prlimit64", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, a.words(1<<16, 1<<16), 0)
	}, false},
	{"open 300 files", func(a *script, t *targets) {
		for range 300 {
			a.call("dup", unix.SYS_DUP, standInStatus)
		}
	}, false},
	{"map 64 GiB of memory", func(a *script, t *targets) {
		a.call("mmap", unix.SYS_MMAP, 0, 64<<30, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1, 0)
	}, false},
	{"write a file in memory", func(a *script, t *targets) {
		a.call("write", unix.SYS_WRITE, a.call("memfd_create", unix.SYS_MEMFD_CREATE, "", 0), bytes.Repeat([]byte{1}, 64), 64)
	}, false},
	{"lock a gigabyte in memory", func(a *script, t *targets) {
		const size = 1 << 30
		m := a.call("mmap", unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1,
			0)
		a.call("mlock", unix.SYS_MLOCK, m, size)
	}, false},
	{"make a message queue", func(a *script, t *targets) {
		a.call("mq_open", unix.SYS_MQ_OPEN, "unitask-attack", unix.O_CREAT|unix.O_RDWR, 0o600, 0)
	}, false},
	{"start a core dump", func(a *script, t *targets) {
		a.call("prlimit64", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, a.words(1<<30, 1<<30), 0)
	}, false},
}
