package jail

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/socketpair"
)

// A stand-in for a QEMU that was broken out of tries, from inside the jail, what it must
// not be able to do. Each attempt is a process of its own: some system calls, of which
// all must succeed for the attempt to get through. The stand-in is made like a stage
// (stage_linux.go), so it makes these calls and no others.

// Attempt is one attack and what came of it.
type Attempt struct {
	Name    string `json:"name"`
	Through bool   `json:"through"` // all of its calls succeeded
	Seen    string `json:"seen"`    // what stopped it: "openat: permission denied"
}

// one is an attempt to be made.
type one struct {
	name string
	make func(a *script, t *targets)
	// unsafe: without a jail it would change this host, so it is never made without one.
	unsafe bool
}

// script is the stand-in of one attack.
type script struct{ *stage }

// result is that of an earlier call, by its number.
type result int

// call adds a system call. Arguments are numbers, strings and bytes (their address is
// passed), and results of earlier calls, each to be used once.
func (a script) call(what string, nr uintptr, args ...any) result {
	st := step{call: nr, then: giveUp, what: what}
	index := len(a.steps)
	for i, arg := range args {
		switch v := arg.(type) {
		case int:
			st.args[i] = uintptr(v)
		case uintptr:
			st.args[i] = v
		case uint64:
			st.args[i] = uintptr(v)
		case string:
			st.args[i] = a.string(v)
		case []byte:
			st.args[i] = a.bytes(v)
		case result:
			a.steps[v].into = argument(index, i)
		default:
			panic(fmt.Sprintf("argument of type %T", arg))
		}
	}
	return result(a.add(st))
}

func (a script) open(path string, flags int) result {
	return a.call("openat", unix.SYS_OPENAT, atCWD, path, flags, 0o600)
}

// read opens a file and reads a byte of it.
func (a script) read(path string) {
	a.call("read", unix.SYS_READ, a.open(path, unix.O_RDONLY), make([]byte, 8), 1)
}

func (a script) connect(domain, kind, protocol int, address []byte) {
	a.call("connect", unix.SYS_CONNECT, a.call("socket", unix.SYS_SOCKET, domain, kind, protocol), address, len(address))
}

// targets are what the host has for the attacks: all of it ours.
type targets struct {
	dir      string // everybody may do everything in it
	pid      int    // ours
	memory   []byte // ours
	port     int    // of a TCP socket that listens
	abstract string // of a Unix socket that listens; a path socket is in dir
	close    []func()
}

const (
	targetFile   = "file"
	targetSocket = "socket"
)

func newTargets() (t *targets, err error) {
	t = &targets{pid: os.Getpid(), memory: make([]byte, 8)}
	defer func() {
		if err != nil {
			t.end()
		}
	}()
	if t.dir, err = os.MkdirTemp("", "unitask-attack-"); err != nil {
		return t, err
	}
	t.close = append(t.close, func() { os.RemoveAll(t.dir); os.Remove(t.dir + "-file") })
	if err = os.Chmod(t.dir, 0o777); err != nil {
		return t, err
	}
	t.abstract = "\x00" + filepath.Base(t.dir)
	for _, l := range []struct{ network, address string }{{"unix", filepath.Join(t.dir, targetSocket)}, {"unix", "@" + t.abstract[1:]}, {"tcp", "127.0.0.1:0"}} {
		listener, listenErr := net.Listen(l.network, l.address)
		if listenErr != nil {
			return t, listenErr
		}
		t.close = append(t.close, func() { listener.Close() })
		if tcp, ok := listener.Addr().(*net.TCPAddr); ok {
			t.port = tcp.Port
		}
	}
	return t, os.Chmod(filepath.Join(t.dir, targetSocket), 0o777)
}

// file makes the file that everybody may use, again after an attempt that got through.
func (t *targets) file() error {
	name := filepath.Join(t.dir, targetFile)
	if err := os.WriteFile(name, []byte("a secret of the host\n"), 0o666); err != nil {
		return err
	}
	return os.Chmod(name, 0o666)
}

func (t *targets) end() {
	for i := len(t.close) - 1; i >= 0; i-- {
		t.close[i]()
	}
}

// Attack tries everything against the jail that a program would get, and returns what
// came of it, with what held the attempts. Where open, there is no jail: then nearly all
// of those that can be made so get through, which shows that the attempts are real.
func Attack(p Program, kvm, open bool) ([]Attempt, Report, error) {
	t, err := newTargets()
	if err != nil {
		return nil, Report{}, fmt.Errorf("attack: %w", err)
	}
	defer t.end()
	var out []Attempt
	var report Report
	for _, a := range attacks {
		if open && a.unsafe {
			continue
		}
		var seen Attempt
		if seen, report, err = a.try(p, kvm, open, t); err != nil {
			return out, report, fmt.Errorf("attack %q: %w", a.name, err)
		}
		out = append(out, seen)
	}
	return out, report, nil
}

// Descriptors of a stand-in.
const standInStatus = 3

func (a one) try(p Program, kvm, open bool, t *targets) (Attempt, Report, error) {
	return a.tryOn(nil, p, kvm, open, t)
}

// tryOn is try with certain levels; nil for all.
func (a one) tryOn(on []level, p Program, kvm, open bool, t *targets) (Attempt, Report, error) {
	out := Attempt{Name: a.name}
	if err := t.file(); err != nil {
		return out, Report{}, err
	}
	s := script{newStage()}
	a.make(&s, t)
	reports, report, state, err := s.run(t, on, p, kvm, open)
	if err != nil {
		return out, report, err
	}
	came, failed, _ := s.outcome(reports)
	out.Through = came
	switch ws, _ := state.Sys().(syscall.WaitStatus); {
	case came:
		out.Seen = "got through"
	case len(failed) > 0:
		out.Seen = failed[0].Error()
	case ws.Signaled():
		out.Seen = "killed: " + ws.Signal().String()
	default:
		out.Seen = state.String()
	}
	return out, report, nil
}

// run runs a script in a jail, and returns what it reported and how it ended.
func (s script) run(t *targets, on []level, p Program, kvm, open bool) ([]byte, Report, *os.ProcessState, error) {
	done := len(s.steps)
	s.call("report", unix.SYS_WRITE, standInStatus, s.words(0, uint64(done)), reportSize)
	image, err := s.image(standInStatus)
	if err != nil {
		return nil, Report{}, nil, err
	}
	name := filepath.Join(t.dir, "stand-in")
	defer os.Remove(name)
	if err := os.WriteFile(name, image, 0o755); err != nil {
		return nil, Report{}, nil, err
	}
	ours, theirs, err := socketpair.New("stand-in")
	if err != nil {
		return nil, Report{}, nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	p.Files = append(p.Files[:len(p.Files):len(p.Files)], name)
	p.Path = name
	process, err := startOn(on, Spec{Program: p, Files: []*os.File{theirs}, KVM: kvm, AddressSpace: 4 << 30, Open: open})
	if err != nil {
		return nil, Report{}, nil, err
	}
	theirs.Close()
	reports, err := io.ReadAll(io.LimitReader(ours, maxReports))
	process.Kill()
	return reports, process.Report, process.Wait(), err
}

func unixAddress(path string) []byte {
	return append(binary.NativeEndian.AppendUint16(nil, unix.AF_UNIX), path...)
}

// inetAddress is 127.0.0.1 with a port.
func inetAddress(port int) []byte {
	return append(binary.NativeEndian.AppendUint16(nil, unix.AF_INET), byte(port>>8), byte(port), 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)
}

// attacks are all attempts, one line each.
var attacks = []one{
	// Files.
	{"read /etc/passwd", func(a *script, t *targets) { a.read("/etc/passwd") }, false},
	{"read a file that everybody may read", func(a *script, t *targets) { a.read(filepath.Join(t.dir, targetFile)) }, false},
	{"read it through ../..", func(a *script, t *targets) { a.read("/proc/self/../../../.." + filepath.Join(t.dir, targetFile)) }, false},
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
	{"create a file where everybody may", func(a *script, t *targets) { a.open(t.dir+"-file", unix.O_CREAT|unix.O_RDWR) }, false},
	{"create a file in the root", func(a *script, t *targets) { a.open("/unitask-attack", unix.O_CREAT|unix.O_RDWR) }, true},
	{"list the root", func(a *script, t *targets) {
		a.call("getdents64", unix.SYS_GETDENTS64, a.open("/", unix.O_RDONLY|unix.O_DIRECTORY), make([]byte, 1024), 1024)
	}, false},
	{"make a folder", func(a *script, t *targets) {
		a.call("mkdirat", unix.SYS_MKDIRAT, atCWD, filepath.Join(t.dir, "d"), 0o777)
	}, false},
	{"make a link", func(a *script, t *targets) {
		a.call("symlinkat", unix.SYS_SYMLINKAT, "/etc/passwd", atCWD, filepath.Join(t.dir, "l"))
	}, false},
	{"change its own program", func(a *script, t *targets) { a.open(filepath.Join(t.dir, "stand-in"), unix.O_RDWR) }, false},
	{"reach the host's processes through /proc", func(a *script, t *targets) { a.read(fmt.Sprintf("/proc/%d/cmdline", t.pid)) }, false},
	{"read the environment of process 1", func(a *script, t *targets) { a.read("/proc/1/environ") }, false},
	{"read the kernel's settings", func(a *script, t *targets) { a.read("/proc/sys/kernel/core_pattern") }, false},
	{"change the kernel's settings", func(a *script, t *targets) { a.open("/proc/sys/kernel/core_pattern", unix.O_WRONLY) }, false},
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
		a.call("name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, atCWD, filepath.Join(t.dir, targetFile), handle, make([]byte, 8), 0)
	}, false},
	{"execute a shell", func(a *script, t *targets) {
		a.call("execve", unix.SYS_EXECVE, "/bin/sh", a.vector([]string{"sh", "-c", "head -c 16 /dev/zero >&3"}), a.vector(nil))
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
		a.call("sendto", unix.SYS_SENDTO, a.call("socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, 0), "x", 1, 0, inetAddress(t.port), 16)
	}, false},
	{"listen on TCP", func(a *script, t *targets) {
		a.call("bind", unix.SYS_BIND, a.call("socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0), inetAddress(0), 16)
	}, false},
	{"a raw socket", func(a *script, t *targets) {
		a.call("socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
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
		a.call("process_vm_readv", unix.SYS_PROCESS_VM_READV, t.pid, a.words(uint64(a.bytes(make([]byte, 8))), 8), 1, a.words(uint64(uintptr(unsafe.Pointer(&t.memory[0]))), 8), 1, 0)
	}, false},
	{"open a descriptor of that process", func(a *script, t *targets) { a.call("pidfd_open", unix.SYS_PIDFD_OPEN, t.pid, 0) }, false},
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
	{"set the host's name", func(a *script, t *targets) { a.call("sethostname", unix.SYS_SETHOSTNAME, "attack", 6) }, true},
	{"set the clock", func(a *script, t *targets) {
		var now unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_REALTIME, &now)
		a.call("clock_settime", unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, a.words(uint64(now.Sec), uint64(now.Nsec)))
	}, true},
	{"become root", func(a *script, t *targets) { a.call("setresuid", unix.SYS_SETRESUID, 0, 0, 0) }, false},
	{"become somebody else", func(a *script, t *targets) { a.call("setresuid", unix.SYS_SETRESUID, 1, 1, 1) }, false},
	{"take groups", func(a *script, t *targets) { a.call("setgroups", unix.SYS_SETGROUPS, 1, []byte{0, 0, 0, 0}) }, false},
	{"take capabilities", func(a *script, t *targets) {
		a.call("capset", unix.SYS_CAPSET, a.words(unix.LINUX_CAPABILITY_VERSION_3), a.words(1<<unix.CAP_SYS_ADMIN|1<<(32+unix.CAP_SYS_ADMIN), 0, 0))
	}, false},
	{"load a module", func(a *script, t *targets) {
		a.call("finit_module", unix.SYS_FINIT_MODULE, a.open(filepath.Join(t.dir, targetFile), unix.O_RDONLY), "", 0)
	}, false},
	{"read the kernel's log", func(a *script, t *targets) { a.call("syslog", unix.SYS_SYSLOG, 3, make([]byte, 64), 64) }, false},

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
		a.call("mmap", unix.SYS_MMAP, 0, 64<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1, 0)
	}, false},
	{"write a file in memory", func(a *script, t *targets) {
		a.call("write", unix.SYS_WRITE, a.call("memfd_create", unix.SYS_MEMFD_CREATE, "", 0), bytes.Repeat([]byte{1}, 64), 64)
	}, false},
	{"lock a gigabyte in memory", func(a *script, t *targets) {
		const size = 1 << 30
		m := a.call("mmap", unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
		a.call("mlock", unix.SYS_MLOCK, m, size)
	}, false},
	{"make a message queue", func(a *script, t *targets) {
		a.call("mq_open", unix.SYS_MQ_OPEN, "unitask-attack", unix.O_CREAT|unix.O_RDWR, 0o600, 0)
	}, false},
	{"start a core dump", func(a *script, t *targets) {
		a.call("prlimit64", unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, a.words(1<<30, 1<<30), 0)
	}, false},
}
