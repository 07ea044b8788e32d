package jail

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/socketpair"
)

// verdict is a filter's decision about a call.
func verdict(action uint32) string {
	switch action {
	case unix.SECCOMP_RET_ALLOW:
		return "let through"
	case unix.SECCOMP_RET_USER_NOTIF:
		return "ends the machine"
	case unix.SECCOMP_RET_KILL_PROCESS:
		return "killed"
	}
	if action&^unix.SECCOMP_RET_DATA == unix.SECCOMP_RET_ERRNO {
		return unix.Errno(action & unix.SECCOMP_RET_DATA).Error()
	}
	return fmt.Sprintf("%#x", action)
}

// callArguments are the arguments of a system call.
type callArguments [6]uint64

type attackFilterRow struct {
	vm   *bpf.VM
	arch uint32
	nr   uintptr
	args callArguments
	want uint32
}

// attackFilterRows are the cases of TestAttackFilter.
func attackFilterRows(
	plain, once, given, kvm, gdb *bpf.VM, kill, end, allow uint32, path, thread, own uint64,
	failed func(errno unix.Errno) uint32,
) map[string]attackFilterRow {
	type args = callArguments
	const arch, anonymous, socket = auditArch, unix.MAP_ANONYMOUS, unix.SOL_SOCKET
	const read, write, execute = unix.PROT_READ, unix.PROT_WRITE, unix.PROT_EXEC
	perm, access, invalid := failed(unix.EPERM), failed(unix.EACCES), failed(unix.EINVAL)
	noTTY, noSys, noOption := failed(unix.ENOTTY), failed(unix.ENOSYS), failed(unix.ENOPROTOOPT)
	return map[string]attackFilterRow{
		"another architecture":         {plain, unix.AUDIT_ARCH_I386, unix.SYS_READ, args{}, kill},
		"the x32 ABI":                  {plain, arch, unix.SYS_READ | 0x40000000, args{}, end},
		"a negative number":            {plain, arch, ^uintptr(0), args{}, end},
		"execute QEMU":                 {plain, arch, unix.SYS_EXECVE, args{path}, allow},
		"open a descriptor once more":  {plain, arch, unix.SYS_FCNTL, args{1: unix.F_DUPFD_CLOEXEC}, allow},
		"own signals of a file":        {plain, arch, unix.SYS_FCNTL, args{1: unix.F_SETOWN}, invalid},
		"execute QEMU, and be asked":   {once, arch, unix.SYS_EXECVE, args{path}, end},
		"execute another path":         {plain, arch, unix.SYS_EXECVE, args{path + 1}, end},
		"execute a path far above":     {plain, arch, unix.SYS_EXECVE, args{path | 1<<32}, end},
		"open for reading":             {plain, arch, unix.SYS_OPENAT, args{2: unix.O_RDONLY | unix.O_CLOEXEC}, allow},
		"open a folder":                {plain, arch, unix.SYS_OPENAT, args{2: unix.O_DIRECTORY}, allow},
		"create a file":                {plain, arch, unix.SYS_OPENAT, args{2: unix.O_CREAT | unix.O_RDWR}, end},
		"create a file without a name": {plain, arch, unix.SYS_OPENAT, args{2: unix.O_TMPFILE | unix.O_RDWR}, end},
		"open for writing, too":        {plain, arch, unix.SYS_OPENAT, args{2: unix.O_RDWR}, allow},
		"open what is given":           {given, arch, unix.SYS_OPENAT, args{2: unix.O_RDWR}, end},
		"open what is given, by more":  {given, arch, unix.SYS_OPENAT, args{2: unix.O_RDWR | unix.O_NOFOLLOW}, end},
		"open a device beside it":      {given, arch, unix.SYS_OPENAT, args{2: unix.O_RDWR | unix.O_CLOEXEC}, allow},
		"open for reading beside it":   {given, arch, unix.SYS_OPENAT, args{2: unix.O_RDONLY | unix.O_DIRECTORY}, allow},
		"create a file beside it": {given, arch, unix.SYS_OPENAT, args{2: unix.O_CREAT | unix.O_RDWR | unix.O_CLOEXEC},
			end},
		"truncate":                       {plain, arch, unix.SYS_OPENAT, args{2: unix.O_TRUNC | unix.O_RDWR}, end},
		"a thread":                       {plain, arch, unix.SYS_CLONE, args{thread}, allow},
		"a process":                      {plain, arch, unix.SYS_CLONE, args{uint64(unix.SIGCHLD)}, end},
		"a process that shares memory":   {plain, arch, unix.SYS_CLONE, args{unix.CLONE_VM | unix.CLONE_VFORK}, end},
		"a thread in a new namespace":    {plain, arch, unix.SYS_CLONE, args{thread | unix.CLONE_NEWUSER}, end},
		"signal a thread of its own":     {plain, arch, unix.SYS_TGKILL, args{own, 43, uint64(unix.SIGUSR1)}, allow},
		"signal another's":               {plain, arch, unix.SYS_TGKILL, args{43, 43, uint64(unix.SIGUSR1)}, end},
		"signal nobody's":                {plain, arch, unix.SYS_TGKILL, args{}, end},
		"signal its own thread on KVM":   {kvm, arch, unix.SYS_TGKILL, args{own, 43, uint64(unix.SIGUSR1)}, allow},
		"signal another's on KVM":        {kvm, arch, unix.SYS_TGKILL, args{own + 1, 43, uint64(unix.SIGUSR1)}, end},
		"a file in memory":               {plain, arch, unix.SYS_MEMFD_CREATE, args{}, noSys},
		"KVM's memory of its own":        {kvm, arch, unix.SYS_IOCTL, args{1: 0xc040aed4}, noTTY},
		"attributes of KVM's memory":     {kvm, arch, unix.SYS_IOCTL, args{1: 0x4020aed2}, noTTY},
		"clone3":                         {plain, arch, unix.SYS_CLONE3, args{}, noSys},
		"io_uring":                       {plain, arch, unix.SYS_IO_URING_SETUP, args{}, noSys},
		"name a thread":                  {plain, arch, unix.SYS_PRCTL, args{unix.PR_SET_NAME}, allow},
		"outlive us":                     {plain, arch, unix.SYS_PRCTL, args{unix.PR_SET_PDEATHSIG}, invalid},
		"read its limits":                {plain, arch, unix.SYS_PRLIMIT64, args{0, unix.RLIMIT_NOFILE, 0, 1}, allow},
		"set its limits":                 {plain, arch, unix.SYS_PRLIMIT64, args{0, unix.RLIMIT_NOFILE, 1}, perm},
		"set them from low addresses":    {plain, arch, unix.SYS_PRLIMIT64, args{0, unix.RLIMIT_NOFILE, 1 << 32}, perm},
		"read another's limits":          {plain, arch, unix.SYS_PRLIMIT64, args{1, unix.RLIMIT_NOFILE, 0, 1}, perm},
		"ask whether it is a terminal":   {plain, arch, unix.SYS_IOCTL, args{1: unix.TCGETS}, allow},
		"type into the terminal":         {plain, arch, unix.SYS_IOCTL, args{1: unix.TIOCSTI}, noTTY},
		"KVM without KVM":                {plain, arch, unix.SYS_IOCTL, args{1: 0xae80}, noTTY},
		"run a processor of KVM":         {kvm, arch, unix.SYS_IOCTL, args{1: 0xae80}, allow},
		"read KVM's registers":           {kvm, arch, unix.SYS_IOCTL, args{1: 0x8090ae81}, allow},
		"write KVM's local APIC":         {kvm, arch, unix.SYS_IOCTL, args{1: 0x4400ae8f}, allow},
		"give KVM the address of VAPIC":  {kvm, arch, unix.SYS_IOCTL, args{1: 0x4008ae93}, allow},
		"give a processor of KVM memory": {kvm, arch, unix.SYS_IOCTL, args{1: 0x4020ae46}, allow},
		"encrypt a machine of KVM":       {kvm, arch, unix.SYS_IOCTL, args{1: 0xc008aeba}, noTTY},
		"a request of another device":    {kvm, arch, unix.SYS_IOCTL, args{1: 0xaf80}, noTTY},
		"read a terminal's state on KVM": {kvm, arch, unix.SYS_IOCTL, args{1: unix.TCGETS}, allow},
		"execute what is translated":     {plain, arch, unix.SYS_MMAP, args{2: read | write | execute, 3: anonymous}, allow},
		"map memory on KVM":              {kvm, arch, unix.SYS_MMAP, args{2: read | write, 3: anonymous}, allow},
		"map a library on KVM": {kvm, arch, unix.SYS_MMAP,
			args{2: read | execute, 3: unix.MAP_PRIVATE | unix.MAP_FIXED}, allow},
		"execute memory on KVM":        {kvm, arch, unix.SYS_MMAP, args{2: read | execute, 3: anonymous}, access},
		"write to code on KVM":         {kvm, arch, unix.SYS_MMAP, args{2: write | execute, 3: unix.MAP_PRIVATE}, access},
		"make memory code on KVM":      {kvm, arch, unix.SYS_MPROTECT, args{2: read | execute}, access},
		"make memory read-only on KVM": {kvm, arch, unix.SYS_MPROTECT, args{2: read}, allow},
		"a larger buffer of a socket":  {plain, arch, unix.SYS_SETSOCKOPT, args{1: socket, 2: unix.SO_SNDBUF}, allow},
		"a filter of a socket": {plain, arch, unix.SYS_SETSOCKOPT, args{1: socket, 2: unix.SO_ATTACH_FILTER},
			noOption},
		"an option of another protocol": {plain, arch, unix.SYS_SETSOCKOPT, args{1: unix.SOL_IP, 2: unix.SO_SNDBUF},
			noOption},
		"a filter for system calls":  {plain, arch, unix.SYS_SECCOMP, args{unix.SECCOMP_SET_MODE_FILTER}, noSys},
		"accept a connection":        {plain, arch, unix.SYS_ACCEPT4, args{}, end},
		"accept gdb's connection":    {gdb, arch, unix.SYS_ACCEPT4, args{}, allow},
		"make a socket beside gdb's": {gdb, arch, unix.SYS_SOCKET, args{}, end},
	}
}

// The filter, as the kernel would run it, for every existing call.
func TestAttackFilter(t *testing.T) {
	const path, own = 0x10123458, 42
	vm := func(s Spec, once bool) *bpf.VM {
		var code []bpf.Instruction
		list, at := filter(s, path, unix.SECCOMP_RET_USER_NOTIF, once, false)
		if list[at+1] != (unix.SockFilter{}) { // its code is overwritten, too
			t.Errorf("%+v follows the own number", list[at+1])
		}
		list[at].K = own
		for _, i := range list {
			code = append(code, bpf.RawInstruction{Op: i.Code, Jt: i.Jt, Jf: i.Jf, K: i.K}.Disassemble())
		}
		vm, err := bpf.NewVM(code)
		if err != nil {
			t.Fatal(err)
		}
		return vm
	}
	given := vm(Spec{Given: os.Stdin}, false)
	plain, kvm, gdb, once := vm(Spec{}, false), vm(Spec{KVM: KVMPassed}, false), vm(Spec{Listens: true}, false),
		vm(Spec{}, true)
	run := func(vm *bpf.VM, arch uint32, nr uintptr, args callArguments) uint32 {
		t.Helper()
		data := make([]byte, 64) // struct seccomp_data; bpf's loads are big-endian
		binary.BigEndian.PutUint32(data[seccompCall:], uint32(nr))
		binary.BigEndian.PutUint32(data[seccompArch:], arch)
		for i, a := range args {
			binary.BigEndian.PutUint32(data[seccompArguments+8*i:], uint32(a))
			binary.BigEndian.PutUint32(data[seccompArguments+8*i+4:], uint32(a>>32))
		}
		action, err := vm.Run(data)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(action)
	}
	const allow, end, kill = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_USER_NOTIF, unix.SECCOMP_RET_KILL_PROCESS
	known, through := listed(), []string{}
	for nr := range uintptr(600) {
		want := uint32(end)
		if slices.Contains(slices.Concat(calls, moreCalls, executing), nr) {
			want = allow
		} else if slices.Contains(known, nr) || nr == unix.SYS_EXECVE {
			continue // below
		}
		if got := run(plain, auditArch, nr, callArguments{}); got == want {
			continue
		} else if want == allow {
			t.Errorf("%s: %s", callName(int32(nr)), verdict(got))
		} else {
			through = append(through, callName(int32(nr))+": "+verdict(got))
		}
	}
	attack.Check(t, "every system call that is on no list", "[]", fmt.Sprint(through))
	for _, r := range refused {
		if got := run(plain, auditArch, r.call, callArguments{}); got != unix.SECCOMP_RET_ERRNO|uint32(r.errno) ||
			slices.Contains(slices.Concat(calls, moreCalls, executing, listening), r.call) {
			t.Errorf("%s: %#x, expected %v", callName(int32(r.call)), got, r.errno)
		}
	}
	failed := func(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }
	const thread = 0x3d0f00 // glibc's
	for name, c := range attackFilterRows(plain, once, given, kvm, gdb, kill, end, allow, path, thread, own, failed) {
		got := run(c.vm, c.arch, c.nr, c.args)
		if c.want != allow {
			attack.Check(t, "the filter: "+name, verdict(c.want), verdict(got))
		} else if got != allow {
			t.Errorf("%s: %s", name, verdict(got))
		}
	}
}

// A machine that makes an unlisted call is ended, and the call is named.
func TestAttackDenied(t *testing.T) {
	target, p := prepared(t)
	for call, nr := range map[string]uintptr{"socket": unix.SYS_SOCKET, "ptrace": unix.SYS_PTRACE, "bpf": unix.SYS_BPF,
		"system call 9999": 9999} {
		s := script{newStage()}
		s.call(call, nr)
		reports, process, err := s.run(target, nil, Spec{Program: p})
		if err != nil {
			t.Fatal(err)
		}
		ws := process.Wait().Sys().(syscall.WaitStatus)
		got := fmt.Sprintf("%v for %s, %d bytes of reports", ws.Signal(), process.Denied(), len(reports))
		attack.Check(t, "a machine makes the call "+call, fmt.Sprintf("%v for %s, 0 bytes of reports", syscall.SIGKILL, call),
			got)
	}
}

// A program can signal only its own threads. It can't create a file in memory, even if it may write files: the limit of
// writes applies to each file, not to all.
func TestAttackOwnThreads(t *testing.T) {
	target, p := prepared(t)
	for name, c := range map[string]struct {
		make func(s script)
		want string // the signal that ended it; "" if it exited
	}{
		"its own thread": {func(s script) {
			own, thread := s.call("getpid", unix.SYS_GETPID), s.call("gettid", unix.SYS_GETTID)
			s.steps[own].into, s.steps[thread].into = argument(2, 0), argument(2, 1)
			s.call("tgkill", unix.SYS_TGKILL, 0, 0, 0)
		}, ""},
		"another's": {func(s script) { s.call("tgkill", unix.SYS_TGKILL, target.pid, target.pid, 0) }, "tgkill"},
		"files in memory": {func(s script) {
			s.call("fallocate", unix.SYS_FALLOCATE, s.call("memfd_create", unix.SYS_MEMFD_CREATE, "", 0), 0, 0, 1<<20)
		}, "memfd_create: function not implemented"},
	} {
		for _, l := range levels(os.Getuid(), os.Getgid(), aUser(), nil) {
			s := script{newStage()}
			c.make(s)
			reports, process, err := s.run(target, []level{l}, Spec{Program: p, FileSize: 64 << 20})
			if err != nil {
				t.Logf("%s, %s: %v", name, l.name, err)
				continue
			}
			came, failed, _ := s.outcome(reports)
			got := process.Denied()
			if len(failed) > 0 {
				got = failed[0].Error()
			}
			if c.want != "" {
				attack.Check(t, "signals and files in memory: "+name+", as "+l.name, c.want, got)
			}
			if got != c.want || came != (c.want == "") {
				t.Errorf("%s, %s: came %t, ended by %q", name, l.name, came, got)
			}
		}
	}
}

// The end of a process is noticed even if it has sent the other end of its messages to a place where nobody reads it.
func TestSentMessages(t *testing.T) {
	target, p := prepared(t)
	ours, theirs, err := socketpair.New("nobody reads it")
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	s := script{newStage()}
	s.call("write", unix.SYS_WRITE, 2, "last words", 10)
	message, rights := fileMessage(s.stage, 0)
	s.steps[s.call("dup", unix.SYS_DUP, 2)].into = rights
	s.call("sendmsg", unix.SYS_SENDMSG, standInFiles, message, unix.MSG_NOSIGNAL)
	s.call("exit_group", unix.SYS_EXIT_GROUP, 7)
	var said bytes.Buffer
	var process *Process
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, process, err = s.run(target, nil, Spec{Program: p, Files: []*os.File{theirs}, Stderr: &said})
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("its end is waited for without a bound")
	}
	ours.Close()
	<-ended
	if err != nil {
		t.Fatal(err)
	}
	if state := process.Wait(); state.ExitCode() != 7 || said.String() != "last words" {
		t.Errorf("%v, and it said %q", state, &said)
	}
}
