package jail

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls that QEMU may make: those that it does make (hack/seccomp finds them), and similar harmless calls
// that another version may make instead. They exclude socket, connect, bind and accept. They start no program except
// QEMU itself and no process except its own threads, and trace, mount or load nothing. Any other call kills the
// machine, and the report names it (watch_linux.go).
//
// The filter is classic BPF (Documentation/userspace-api/seccomp_filter.rst). The kernel remembers the calls that it
// allows regardless of their arguments, so most cost nothing.

// CanFilter reports whether this kernel has system call filters, so that a program needs no other filter.
func CanFilter() bool {
	action := uint32(unix.SECCOMP_RET_KILL_PROCESS)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	return errno == 0
}

// calls that are allowed with any arguments.
var calls = []uintptr{
	// Files and descriptors: the file system and Landlock decide what can be opened.
	unix.SYS_READ, unix.SYS_READV, unix.SYS_PREAD64, unix.SYS_PREADV, unix.SYS_PREADV2,
	unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_PWRITEV2,
	unix.SYS_CLOSE, unix.SYS_LSEEK, unix.SYS_FSTAT, unix.SYS_STATX, unix.SYS_FSTATFS, unix.SYS_STATFS,
	unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_READLINKAT, unix.SYS_GETDENTS64, unix.SYS_GETCWD, unix.SYS_FCHDIR,
	unix.SYS_CHDIR,
	unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_FADVISE64, unix.SYS_FDATASYNC, unix.SYS_FSYNC, unix.SYS_UMASK,
	unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE,

	// Memory.
	unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_BRK, unix.SYS_MADVISE, unix.SYS_MINCORE, unix.SYS_MSYNC,
	unix.SYS_MLOCK, unix.SYS_MUNLOCK, unix.SYS_MEMBARRIER,

	// Threads, signals, waiting.
	unix.SYS_FUTEX, unix.SYS_SET_ROBUST_LIST, unix.SYS_GET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_SET_TID_ADDRESS,
	unix.SYS_GETTID, unix.SYS_GETPID,
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_GETPARAM,
	unix.SYS_SCHED_GETSCHEDULER, unix.SYS_SCHED_GET_PRIORITY_MAX, unix.SYS_SCHED_GET_PRIORITY_MIN, unix.SYS_GETCPU,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_RT_SIGPENDING,
	unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_SIGALTSTACK,
	unix.SYS_RESTART_SYSCALL, unix.SYS_PPOLL, unix.SYS_PSELECT6, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL,
	unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2,
	unix.SYS_EVENTFD2, unix.SYS_SIGNALFD4, unix.SYS_PIPE2, unix.SYS_TIMERFD_CREATE, unix.SYS_TIMERFD_SETTIME,
	unix.SYS_TIMERFD_GETTIME,
	unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_GETTIME, unix.SYS_TIMER_DELETE,
	unix.SYS_TIMER_GETOVERRUN,
	unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_GETTIMEOFDAY,
	unix.SYS_TIMES,
	unix.SYS_GETITIMER, unix.SYS_SETITIMER,

	// Inherited sockets.
	unix.SYS_RECVMSG, unix.SYS_RECVFROM, unix.SYS_SENDMSG, unix.SYS_SENDTO, unix.SYS_GETSOCKOPT, unix.SYS_GETSOCKNAME,
	unix.SYS_GETPEERNAME, unix.SYS_SHUTDOWN,

	// Questions about itself and the host.
	unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETRESUID, unix.SYS_GETRESGID,
	unix.SYS_GETGROUPS, unix.SYS_GETPPID,
	unix.SYS_GETRUSAGE, unix.SYS_GETRLIMIT, unix.SYS_SYSINFO, unix.SYS_UNAME, unix.SYS_GETRANDOM, unix.SYS_GET_MEMPOLICY,
	unix.SYS_CAPGET,
}

// executing are the additional calls for a program that translates code (TCG). KVM needs no executable memory that the
// program has written.
var executing = []uintptr{unix.SYS_MMAP, unix.SYS_MPROTECT}

// listening are the additional calls for a program that accepts connections.
var listening = []uintptr{unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4}

// condition restricts one argument of a call. Its lower word, masked, must be one of values, or the process's own
// number if there are none. If the kernel looks at the upper word (wide), the upper word must be 0.
type condition struct {
	argument int
	mask     uint32
	values   []uint32
	wide     bool
}

// ownNumber stands for the process's own number as the values of a condition.
var ownNumber []uint32

// Requests for any descriptor, which golang.org/x/sys does not name.
const (
	fionbio = 0x5421
	fioclex = 0x5451
)

const allBits = ^uint32(0)

// refused are calls that return an error instead of killing the machine: libraries try them and can do without.
var refused = []struct {
	call  uintptr
	errno unix.Errno
}{
	{unix.SYS_CLONE3, unix.ENOSYS}, // a filter can't see its flags; clone follows
	{unix.SYS_IO_URING_SETUP, unix.ENOSYS},
	{unix.SYS_MEMFD_CREATE, unix.ENOSYS},  // no limit counts its unmapped data; QEMU is passed its memory file
	{unix.SYS_SECCOMP, unix.ENOSYS},       // QEMU asks whether it could install its own filter
	{unix.SYS_SET_MEMPOLICY, unix.ENOSYS}, // as in a kernel without NUMA, which QEMU accepts
	{unix.SYS_MBIND, unix.ENOSYS},
	{unix.SYS_SCHED_SETAFFINITY, unix.EPERM},
	{unix.SYS_SCHED_SETSCHEDULER, unix.EPERM},
	{unix.SYS_SETPRIORITY, unix.EPERM},
	{unix.SYS_MLOCKALL, unix.EPERM},
	{unix.SYS_FLOCK, unix.ENOLCK}, // it could lock even a file that it may only read
	// Calls that newer libraries and newer versions of QEMU try first.
	{unix.SYS_CLOSE_RANGE, unix.ENOSYS},
	{unix.SYS_OPENAT2, unix.ENOSYS},
	{unix.SYS_FUTEX_WAITV, unix.ENOSYS},
	{unix.SYS_MAP_SHADOW_STACK, unix.ENOSYS},
	{unix.SYS_MSEAL, unix.ENOSYS},
	{unix.SYS_PKEY_ALLOC, unix.ENOSYS},
	{unix.SYS_SCHED_GETATTR, unix.ENOSYS},
	{unix.SYS_SCHED_SETATTR, unix.ENOSYS},
	{unix.SYS_USERFAULTFD, unix.ENOSYS},
}

// conditional are calls that are allowed with some arguments only.
type conditional struct {
	call uintptr
	when [][]condition // one of these must hold, with all of its conditions
	// errno is the result for other arguments; 0 kills the machine.
	errno unix.Errno
}

// opensNew are the flags of an openat that creates, truncates or extends a file: QEMU never needs them.
const opensNew = unix.O_CREAT | unix.O_EXCL | unix.O_TRUNC | unix.O_APPEND | unix.O_TMPFILE&^unix.O_DIRECTORY

func conditionals(s Spec) []conditional {
	const thread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND |
		unix.CLONE_THREAD | unix.CLONE_SYSVSEM
	const harmless = unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID |
		unix.CLONE_CHILD_SETTID | unix.CLONE_DETACHED
	ioctls := condition{1, allBits, []uint32{unix.TCGETS, fionbio, unix.TIOCINQ, fioclex}, false}
	flags := condition{2, opensNew, []uint32{0}, false}
	if s.Given != nil { // all except the one that the listener is asked about
		flags = condition{2, opensNew | unix.O_ACCMODE | unix.O_CLOEXEC,
			[]uint32{unix.O_RDONLY, unix.O_RDONLY | unix.O_CLOEXEC, unix.O_WRONLY, unix.O_WRONLY | unix.O_CLOEXEC,
				unix.O_RDWR | unix.O_CLOEXEC}, false}
	}
	list := []conditional{
		{unix.SYS_OPENAT, [][]condition{{flags}}, 0},
		{unix.SYS_CLONE, [][]condition{{{0, ^uint32(harmless), []uint32{thread}, true}}}, 0},
		{unix.SYS_PRCTL, [][]condition{{{0, allBits, []uint32{unix.PR_SET_NAME, unix.PR_GET_NAME, unix.PR_SET_TIMERSLACK,
			unix.PR_GET_TIMERSLACK, unix.PR_SET_NO_NEW_PRIVS,
			unix.PR_GET_NO_NEW_PRIVS, unix.PR_GET_DUMPABLE, unix.PR_CAPBSET_READ, unix.PR_SET_VMA, unix.PR_GET_SECCOMP,
			unix.PR_MCE_KILL, unix.PR_MCE_KILL_GET}, false}}}, unix.EINVAL},
		// No signals when others use a file, and no leases, which make others wait.
		{unix.SYS_FCNTL, [][]condition{{{1, allBits, []uint32{unix.F_DUPFD, unix.F_DUPFD_CLOEXEC, unix.F_GETFD, unix.F_SETFD,
			unix.F_GETFL, unix.F_SETFL, unix.F_GETLK, unix.F_SETLK,
			unix.F_OFD_GETLK, unix.F_OFD_SETLK, unix.F_ADD_SEALS, unix.F_GET_SEALS, unix.F_GETPIPE_SZ, unix.F_SETPIPE_SZ},
			false}}}, unix.EINVAL},
		// To its own threads only: without namespaces it sees other processes, and may share their user.
		{unix.SYS_TGKILL, [][]condition{{{0, allBits, ownNumber, false}}}, 0},
		// QEMU's own limits may be read, but not set: the third argument must be null.
		{unix.SYS_PRLIMIT64, [][]condition{{{0, allBits, []uint32{0}, false}, {2, allBits, []uint32{0}, true}}}, unix.EPERM},
		// No filter may be attached to a socket.
		{unix.SYS_SETSOCKOPT, [][]condition{{{1, allBits, []uint32{unix.SOL_SOCKET}, false},
			{2, allBits, []uint32{unix.SO_ZEROCOPY, unix.SO_REUSEADDR, unix.SO_SNDBUF, unix.SO_RCVBUF}, false}}},
			unix.ENOPROTOOPT},
	}
	if s.KVM != NoKVM {
		const exec, write = unix.PROT_EXEC, unix.PROT_WRITE
		list = append(list,
			// Code must come from files, in the way that the loader maps them.
			conditional{unix.SYS_MMAP, [][]condition{{{2, exec, []uint32{0}, false}},
				{{2, exec | write, []uint32{exec}, false}, {3, unix.MAP_ANONYMOUS, []uint32{0}, false}}}, unix.EACCES},
			conditional{unix.SYS_MPROTECT, [][]condition{{{2, exec, []uint32{0}, false}}}, unix.EACCES})
		for _, nr := range kvmCalls {
			ioctls.values = append(ioctls.values, kvmIOCTL|uint32(nr))
		}
		ioctls.mask = 0xffff // the rest is the size of a structure, which differs by architecture
	}
	return append(append(list, conditional{unix.SYS_IOCTL, [][]condition{{ioctls}}, unix.ENOTTY}),
		moreConditionals(opensNew)...)
}

// The offsets of struct seccomp_data.
const (
	seccompCall      = 0
	seccompArch      = 4
	seccompArguments = 16
)

// program is a filter that is being built.
type program struct {
	code []unix.SockFilter
	own  int // the statement for the process's own number; 0 if there is none
}

func (p *program) statement(code uint16, k uint32) {
	p.code = append(p.code, unix.SockFilter{Code: code, K: k})
}

// jump skips some statements if the accumulator is k, and others if it is not.
func (p *program) jump(k uint32, equal, other int) {
	p.code = append(p.code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(equal),
		Jf: uint8(other), K: k})
}

func (p *program) load(offset uint32)   { p.statement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset) }
func (p *program) answer(action uint32) { p.statement(unix.BPF_RET|unix.BPF_K, action) }

// low returns the offset of an argument's lower word.
func low(argument int) uint32 { return seccompArguments + 8*uint32(argument) }

// filter returns the program for a process that may execute only the path at an address of its stage. unlisted is the
// action for other calls: USER_NOTIF or KILL_PROCESS. once means that the listener is asked about that execve;
// otherwise a program could repeat the call after writing another path to that address. asks means that the listener is
// asked about every file that is opened. own is the index of the statement whose K must be set to the process's own
// number. The code of the next statement is 0, since a stage's results have 64 bits.
func filter(s Spec, path uintptr, unlisted uint32, once, asks bool) (code []unix.SockFilter, own int) {
	execute, open := uint32(unix.SECCOMP_RET_ALLOW), uint32(unix.SECCOMP_RET_ALLOW)
	if once && unlisted == unix.SECCOMP_RET_USER_NOTIF {
		execute = unlisted
		if asks {
			open = unlisted
		}
	}
	var p program
	p.load(seccompArch)
	p.jump(auditArch, 1, 0)
	p.answer(unix.SECCOMP_RET_KILL_PROCESS)
	p.load(seccompCall) // stays in the accumulator until a conditional call matches
	allowed := append(calls[:len(calls):len(calls)], moreCalls...)
	if s.Listens {
		allowed = append(allowed, listening...)
	}
	if s.KVM == NoKVM {
		allowed = append(allowed, executing...)
	}
	for _, nr := range allowed {
		p.jump(uint32(nr), 0, 1)
		p.answer(unix.SECCOMP_RET_ALLOW)
	}
	for _, r := range refused {
		p.jump(uint32(r.call), 0, 1)
		p.answer(unix.SECCOMP_RET_ERRNO | uint32(r.errno))
	}
	p.jump(unix.SYS_EXECVE, 0, 6)
	p.load(low(0))
	p.jump(uint32(path), 0, 3)
	p.load(low(0) + 4)
	p.jump(uint32(uint64(path)>>32), 0, 1)
	p.answer(execute)
	p.answer(unlisted)
	for _, c := range conditionals(s) {
		allow := uint32(unix.SECCOMP_RET_ALLOW)
		if opens(int(c.call)) {
			allow = open
		}
		otherwise := unlisted
		if c.errno != 0 {
			otherwise = unix.SECCOMP_RET_ERRNO | uint32(c.errno)
		}
		p.conditional(c, allow, otherwise)
	}
	p.answer(unlisted)
	return p.code, p.own
}

// conditional adds a call that is allowed with some arguments, and the action for others.
func (p *program) conditional(c conditional, allow, otherwise uint32) {
	var body program
	for _, alternative := range c.when {
		body.alternative(alternative, allow)
	}
	body.answer(otherwise)
	if len(body.code) > 255 {
		panic("a conditional call is too long for a jump")
	}
	p.jump(uint32(c.call), 0, len(body.code))
	if body.own != 0 {
		p.own = len(p.code) + body.own
	}
	p.code = append(p.code, body.code...)
}

// alternative adds an answer for the case that all of some conditions hold. Each condition falls through to the next
// condition, to the answer, or to the next alternative.
func (p *program) alternative(conditions []condition, allow uint32) {
	var fails []int
	fail := func() {
		fails = append(fails, len(p.code))
		p.statement(unix.BPF_JMP|unix.BPF_JA, 0)
	}
	for _, w := range conditions {
		if w.wide {
			p.load(low(w.argument) + 4)
			p.jump(0, 1, 0)
			fail()
		}
		p.load(low(w.argument))
		if w.mask != allBits {
			p.statement(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, w.mask)
		}
		if w.values == nil {
			p.own = len(p.code)
			p.jump(0, 2, 0)
			p.statement(unix.BPF_LD|unix.BPF_IMM, 0)
		}
		for i, v := range w.values {
			p.jump(v, len(w.values)-i, 0) // past the failure that follows the values
		}
		fail()
	}
	p.answer(allow)
	for _, i := range fails {
		p.code[i].K = uint32(len(p.code) - i - 1)
	}
}
