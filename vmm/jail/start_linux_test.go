package jail

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/socketpair"
)

// The tests start themselves again as somebody else, to attack a jail as he would get it.
const asSomebody = "UNITASK_TEST_ATTACK"

func TestMain(m *testing.M) {
	if os.Getenv(asInit) != "" {
		initMain()
	}
	if what := os.Getenv(asGuy); what != "" {
		inGroup(what)
		return
	}
	if program := os.Getenv(asSomebody); program != "" {
		os.Exit(attackFor(program))
	}
	os.Exit(m.Run())
}

type attacked struct {
	Attempts []Attempt
	Report   Report
	Left     int // descriptors, after all
}

func attackFor(program string) int {
	p, err := Examine(program, nil, nil)
	var before int
	if err == nil {
		before, err = countDescriptors()
	}
	if err == nil {
		var a attacked
		abi, _ := strconv.Atoi(os.Getenv("UNITASK_TEST_LANDLOCK"))
		if a.Attempts, a.Report, err = attackIn(Spec{Program: p, Open: os.Getenv("UNITASK_TEST_OPEN") != "", MaxLandlock: abi}); err == nil {
			a.Left, err = countDescriptors()
			a.Left -= before
		}
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(a)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// someProgram is a program with libraries, for a jail to be made around.
func someProgram(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"qemu-system-x86_64", "qemu-system-aarch64", "ls"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("no program")
	return ""
}

// prepared is what a program in a jail may reach for, until the test ends, and such a program.
func prepared(t *testing.T) (*targets, Program) {
	t.Helper()
	target, err := newTargets()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.end)
	p, err := Examine(someProgram(t), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return target, p
}

// attackAs runs all attempts in a process that a command line makes: its last arguments
// are ours.
func attackAs(t *testing.T, program string, open bool, landlock int, how ...string) attacked {
	t.Helper()
	self := filepath.Join(t.TempDir(), "attack.test") // others must be able to execute it
	for _, dir := range []string{filepath.Dir(self), filepath.Dir(filepath.Dir(self))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// By another process: what another test forks meanwhile would hold a file that we
	// wrote open for writing, and it could not be executed.
	if out, err := exec.Command("cp", "/proc/"+strconv.Itoa(os.Getpid())+"/exe", self).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	how = append(slices.Clone(how), self)
	var attr *syscall.SysProcAttr
	if how[0] == withoutUserNamespaces {
		all := []syscall.SysProcIDMap{{Size: 100000}}
		attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true}
		how = append([]string{"sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"`, "sh"}, how[1:]...)
	}
	cmd := exec.Command(how[0], how[1:]...)
	cmd.SysProcAttr = attr
	cmd.Env = append(os.Environ(), asSomebody+"="+program, "UNITASK_TEST_LANDLOCK="+strconv.Itoa(landlock))
	if open {
		cmd.Env = append(cmd.Env, "UNITASK_TEST_OPEN=1")
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", how, err, &said)
	}
	var a attacked
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	return a
}

func needRoot(t *testing.T, tools ...string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("wants root, to become others")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s here", tool)
		}
	}
}

const allLayers = "network pid ipc uts cgroup filesystem sealed groups user capabilities no-new-privileges landlock seccomp"

var noNamespaces = []string{Network, Processes, IPC, UTS, CgroupSpace, Filesystem, User}

// unspaced are the attempts that only the filter stops where there are no namespaces and
// the machine runs as its user.
var unspaced = []string{"connect to a Unix socket that everybody may use", "connect to it by MPTCP", "send to it by UDP", "take the handle of a file",
	"open a descriptor of that process", "change that process's limits", "signal everybody", "become root", "watch a file of the host", "move that process to another processor",
	"open its own program, once it has started", "open its own memory, once it has started", "open its disk again, once it has started",
	"open by a path that does not begin at the root, once it has started", "open by a folder that it has kept open, once it has started", "undo the seal"}

// unscoped are those among them that Landlock stops from its ABI 6 on.
var unscoped = []string{"connect to an abstract Unix socket", "signal the process that started it", "signal process groups of the host", "signal that process as one of its threads",
	"queue a signal to that process"}

// onlyFiltered are the attempts that nothing but the filter stops: they reach what is the
// process's own.
var onlyFiltered = []string{"start a process", "start a process by clone3", "a netlink socket", "a socket to the hypervisor", "attach a program to a socket", "add a key", "read keys",
	"allow itself to be dumped", "outlive the process that started it", "change its personality", "handle page faults", "open a queue of io_uring",
	"execute its program again, at the address that its filter knows", "have the kernel signal it when others use its disk",
	"make a user namespace", "take another processor's time", "lock its disk, so that others wait", "add a filter that asks it"}

// ownersOnly are the attempts that nothing but the filter stops where the machine runs as
// the user whose files it has open.
var ownersOnly = []string{"have others wait for its disk", "let others write to its disk"}

// withoutUserNamespaces in place of a program: what follows runs where no user
// namespaces can be made.
const withoutUserNamespaces = "without user namespaces"

// What holds for whom, and that nothing gets through where all of it holds.
func TestAttackJail(t *testing.T) {
	needRoot(t, "setpriv", "unshare")
	for name, c := range map[string]struct {
		how []string
		not []string // layers that do not hold

		landlock int // the highest ABI; 0 is the kernel's
	}{
		"root":                          {nil, nil, 0},
		"root in groups":                {[]string{"setpriv", "--groups=0,5"}, nil, 0},
		"root without CAP_SYS_RESOURCE": {[]string{"setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"}, nil, 0},
		"root without CAP_SYS_ADMIN":    {[]string{"setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"}, nil, 0},
		"root without capabilities":     {[]string{"setpriv", "--bounding-set=-all", "--inh-caps=-all"}, noNamespaces, 0},
		"a user":                        {[]string{"setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"}, nil, 0},
		"a user in groups":              {[]string{"setpriv", "--reuid=12345", "--regid=12345", "--groups=0,5"}, []string{Groups}, 0},
		"a user without user namespaces": {[]string{withoutUserNamespaces, "setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"},
			append([]string{LimitProcesses}, noNamespaces...), 0},
		"a user without user namespaces, on Linux 6.10": {[]string{withoutUserNamespaces, "setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"},
			append([]string{LimitProcesses}, noNamespaces...), 5},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && !slices.Contains([]string{"root", "a user", "a user without user namespaces"}, name) {
				t.Skip("a variant of others; not in -short")
			}
			t.Parallel()
			a := attackAs(t, someProgram(t), false, c.landlock, c.how...)
			var not []string
			for _, h := range a.Report.Missing() {
				if !slices.ContainsFunc(controls, func(c control) bool { return c.limit == h.Name }) { // TestAttackControlGroups
					not = append(not, h.Name)
				}
				if h.Why == "" {
					t.Errorf("%s does not hold, without a reason", h.Name)
				}
			}
			if a.Left != 0 {
				t.Errorf("%d descriptors are left", a.Left)
			}
			want := slices.Sorted(slices.Values(c.not))
			if slices.Sort(not); !slices.Equal(not, want) {
				t.Errorf("does not hold: %q, expected %q\n%+v", not, want, a.Report)
			}
			if lacks := a.Report.Lacks(strings.Fields(allLayers)); len(lacks) > len(c.not) {
				t.Errorf("layers are left out of the report: %+v", lacks)
			}
			if weak := a.Report.Weakness(); (weak != "") != slices.Contains(c.not, Network) {
				t.Errorf("weakness %q", weak)
			}
			unspace, owns := slices.Contains(c.not, Network), strings.HasPrefix(name, "a user") || name == "root without capabilities"
			for _, row := range a.Attempts {
				seen := "stopped"
				if row.Through {
					seen = row.Seen
				}
				attack.Check(t, "broken QEMU, started by "+name+": "+row.Name, "stopped", seen)
				switch {
				case slices.Contains(onlyFiltered, row.Name), c.landlock > 0 && slices.Contains(unscoped, row.Name), unspace && slices.Contains(unspaced, row.Name), owns && slices.Contains(ownersOnly, row.Name):
					continue
				}
				seen = "stopped"
				if row.BehindThrough {
					seen = row.Behind
				}
				attack.Check(t, "broken QEMU without its filter, started by "+name+": "+row.Name, "stopped", seen)
			}
		})
	}
}

// Without a jail nearly all attempts get through: they are real. What the host's kernel
// does not have, or leaves to nobody, says so; another error is the attempt's own mistake.
func TestAttemptsAreReal(t *testing.T) {
	needRoot(t)
	a := attackAs(t, someProgram(t), true, 0)
	through := 0
	for _, row := range a.Attempts {
		if row.Through {
			through++
		} else {
			t.Logf("%s: %s", row.Name, row.Seen)
			if !slices.ContainsFunc([]error{unix.ENOSYS, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.EPERM, unix.EACCES}, func(e error) bool { return strings.HasSuffix(row.Seen, ": "+e.Error()) }) {
				t.Errorf("%s: %s", row.Name, row.Seen)
			}
		}
	}
	if least := len(a.Attempts) * 4 / 5; through < least {
		t.Errorf("%d of %d get through, expected %d at least", through, len(a.Attempts), least)
	}
}

// A program in the user's own folder does not open that folder to the jail, and each
// of the two layers that hide files is enough by itself.
func TestAttackProgramAtHome(t *testing.T) {
	needRoot(t, "setpriv", "unshare")
	home := t.TempDir()
	for dir := home; len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(someProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(home, "bin", "qemu")
	secret := filepath.Join(home, ".ssh", "id")
	for name, content := range map[string][]byte{program: text, secret: []byte("secret")} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, content, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := Examine(program, nil, []string{filepath.Join(home, "share", "qemu")})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(p.Files, p.Dirs...) {
		if strings.HasPrefix(secret, path) {
			t.Errorf("%s is in reach", path)
		}
	}
	target, err := newTargets()
	if err != nil {
		t.Fatal(err)
	}
	defer target.end()
	read := one{"read a key beside a QEMU in ~/bin", func(a *script, t *targets) { a.read(secret) }, false}
	seen, report, err := read.try(nil, Spec{Program: p}, target)
	if err != nil {
		t.Fatal(err)
	}
	if lacks := report.Lacks([]string{Filesystem, Landlock}); len(lacks) > 0 {
		t.Errorf("%+v", lacks)
	}
	attack.Check(t, read.name, "openat: no such file or directory", seen.Seen)
	p.Files = slices.DeleteFunc(p.Files, func(path string) bool { return path == loaderCache })
	l := levels(0, 0, nobody, nil)[3]
	seen, report, err = read.try([]level{l}, Spec{Program: p}, target)
	if err != nil {
		t.Fatal(err)
	}
	if lacks := report.Lacks([]string{Filesystem, Landlock}); len(lacks) != 1 || lacks[0].Name != Filesystem {
		t.Errorf("%+v", lacks)
	}
	attack.Check(t, read.name+", held by Landlock alone", "openat: permission denied", seen.Seen)
}

// The device of KVM is in the root of a program that opens it, and of no other.
func TestAttackKVMInRoot(t *testing.T) {
	p := Program{Path: "/bin/x", Files: []string{"/bin/x"}}
	for kvm, name := range map[KVM]string{NoKVM: "uses no KVM", KVMPassed: "was given the open device", KVMOpened: ""} {
		st, r := plan(Spec{Program: p, KVM: kvm}, levels(0, 0, nobody, nil)[0], facts{mount: "/mnt", hard: hardLimit})
		there := bytes.Contains(st.data, []byte("/mnt"+KVMDevice))
		if !bytes.Contains(st.data, []byte("/mnt/bin/x")) || name == "" && !there {
			t.Errorf("%d: %+v", kvm, r)
		}
		if name != "" {
			attack.Check(t, "the device of KVM in the root of a program that "+name, "not there", notThere(there))
		}
	}
}

func notThere(there bool) string {
	if there {
		return "there"
	}
	return "not there"
}

// A machine has no group but KVM's, and that one only if it is used.
func TestAttackGroups(t *testing.T) {
	for name, c := range map[string]struct {
		ours []int
		kvm  []uint32
		want string
		call []uint32 // that setgroups is called with; nil for no call
	}{
		"TCG, root with groups":    {[]int{0, 4}, nil, "none", []uint32{}},
		"TCG, root without groups": {nil, nil, "none", nil},
		"KVM":                      {[]int{0, 4}, []uint32{107}, "107, KVM's", []uint32{107}},
	} {
		st, r := plan(Spec{}, levels(0, 0, nobody, c.kvm)[0], facts{kvmGroup: c.kvm, groups: c.ours, hard: hardLimit})
		i := slices.IndexFunc(r.Layers, func(h Hold) bool { return h.Name == Groups })
		if i < 0 || r.Layers[i].Detail != c.want || !r.Layers[i].Holds {
			t.Errorf("%s: %+v", name, r.Layers)
		}
		var call []uint32
		for _, s := range st.steps {
			if s.call != unix.SYS_SETGROUPS {
				continue
			}
			call = []uint32{}
			for n := range s.args[0] {
				call = append(call, binary.LittleEndian.Uint32(st.data[s.args[1]-dataBase+n*4:]))
			}
		}
		attack.Check(t, "groups that a machine keeps: "+name, said(c.call), said(call))
	}
}

// said is a call of setgroups.
func said(groups []uint32) string {
	if groups == nil {
		return "no setgroups"
	}
	return fmt.Sprint("setgroups ", groups)
}

// verdict is what a filter does with a call.
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

// The filter, as the kernel would run it, for every call there is.
func TestAttackFilter(t *testing.T) {
	const path, own = 0x10123458, 42
	type arguments [6]uint64
	vm := func(s Spec, once bool) *bpf.VM {
		var code []bpf.Instruction
		list, at := filter(s, path, unix.SECCOMP_RET_USER_NOTIF, once, false)
		if list[at+1] != (unix.SockFilter{}) { // its code is written over, too
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
	plain, kvm, gdb, once := vm(Spec{}, false), vm(Spec{KVM: KVMPassed}, false), vm(Spec{Listens: true}, false), vm(Spec{}, true)
	run := func(vm *bpf.VM, arch uint32, nr uintptr, args arguments) uint32 {
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
		if got := run(plain, auditArch, nr, arguments{}); got == want {
			continue
		} else if want == allow {
			t.Errorf("%s: %s", callName(int32(nr)), verdict(got))
		} else {
			through = append(through, callName(int32(nr))+": "+verdict(got))
		}
	}
	attack.Check(t, "every system call that is on no list", "[]", fmt.Sprint(through))
	for _, r := range refused {
		if got := run(plain, auditArch, r.call, arguments{}); got != unix.SECCOMP_RET_ERRNO|uint32(r.errno) || slices.Contains(slices.Concat(calls, moreCalls, executing, listening), r.call) {
			t.Errorf("%s: %#x, expected %v", callName(int32(r.call)), got, r.errno)
		}
	}
	failed := func(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }
	const thread = 0x3d0f00 // glibc's
	for name, c := range map[string]struct {
		vm   *bpf.VM
		arch uint32
		nr   uintptr
		args arguments
		want uint32
	}{
		"another architecture":           {plain, unix.AUDIT_ARCH_I386, unix.SYS_READ, arguments{}, kill},
		"the x32 ABI":                    {plain, auditArch, unix.SYS_READ | 0x40000000, arguments{}, end},
		"a negative number":              {plain, auditArch, ^uintptr(0), arguments{}, end},
		"execute QEMU":                   {plain, auditArch, unix.SYS_EXECVE, arguments{path}, allow},
		"open a descriptor once more":    {plain, auditArch, unix.SYS_FCNTL, arguments{1: unix.F_DUPFD_CLOEXEC}, allow},
		"own signals of a file":          {plain, auditArch, unix.SYS_FCNTL, arguments{1: unix.F_SETOWN}, failed(unix.EINVAL)},
		"execute QEMU, and be asked":     {once, auditArch, unix.SYS_EXECVE, arguments{path}, end},
		"execute another path":           {plain, auditArch, unix.SYS_EXECVE, arguments{path + 1}, end},
		"execute a path far above":       {plain, auditArch, unix.SYS_EXECVE, arguments{path | 1<<32}, end},
		"open for reading":               {plain, auditArch, unix.SYS_OPENAT, arguments{2: unix.O_RDONLY | unix.O_CLOEXEC}, allow},
		"open a folder":                  {plain, auditArch, unix.SYS_OPENAT, arguments{2: unix.O_DIRECTORY}, allow},
		"create a file":                  {plain, auditArch, unix.SYS_OPENAT, arguments{2: unix.O_CREAT | unix.O_RDWR}, end},
		"create a file without a name":   {plain, auditArch, unix.SYS_OPENAT, arguments{2: unix.O_TMPFILE | unix.O_RDWR}, end},
		"open for writing, too":          {plain, auditArch, unix.SYS_OPENAT, arguments{2: unix.O_RDWR}, allow},
		"open what is given":             {given, auditArch, unix.SYS_OPENAT, arguments{2: unix.O_RDWR}, end},
		"open what is given, by more":    {given, auditArch, unix.SYS_OPENAT, arguments{2: unix.O_RDWR | unix.O_NOFOLLOW}, end},
		"open a device beside it":        {given, auditArch, unix.SYS_OPENAT, arguments{2: unix.O_RDWR | unix.O_CLOEXEC}, allow},
		"open for reading beside it":     {given, auditArch, unix.SYS_OPENAT, arguments{2: unix.O_RDONLY | unix.O_DIRECTORY}, allow},
		"create a file beside it":        {given, auditArch, unix.SYS_OPENAT, arguments{2: unix.O_CREAT | unix.O_RDWR | unix.O_CLOEXEC}, end},
		"truncate":                       {plain, auditArch, unix.SYS_OPENAT, arguments{2: unix.O_TRUNC | unix.O_RDWR}, end},
		"a thread":                       {plain, auditArch, unix.SYS_CLONE, arguments{thread}, allow},
		"a process":                      {plain, auditArch, unix.SYS_CLONE, arguments{uint64(unix.SIGCHLD)}, end},
		"a process that shares memory":   {plain, auditArch, unix.SYS_CLONE, arguments{unix.CLONE_VM | unix.CLONE_VFORK}, end},
		"a thread in a new namespace":    {plain, auditArch, unix.SYS_CLONE, arguments{thread | unix.CLONE_NEWUSER}, end},
		"signal a thread of its own":     {plain, auditArch, unix.SYS_TGKILL, arguments{own, 43, uint64(unix.SIGUSR1)}, allow},
		"signal another's":               {plain, auditArch, unix.SYS_TGKILL, arguments{43, 43, uint64(unix.SIGUSR1)}, end},
		"signal nobody's":                {plain, auditArch, unix.SYS_TGKILL, arguments{}, end},
		"signal its own thread on KVM":   {kvm, auditArch, unix.SYS_TGKILL, arguments{own, 43, uint64(unix.SIGUSR1)}, allow},
		"signal another's on KVM":        {kvm, auditArch, unix.SYS_TGKILL, arguments{own + 1, 43, uint64(unix.SIGUSR1)}, end},
		"a file in memory":               {plain, auditArch, unix.SYS_MEMFD_CREATE, arguments{}, failed(unix.ENOSYS)},
		"KVM's memory of its own":        {kvm, auditArch, unix.SYS_IOCTL, arguments{1: 0xc040aed4}, failed(unix.ENOTTY)},
		"attributes of KVM's memory":     {kvm, auditArch, unix.SYS_IOCTL, arguments{1: 0x4020aed2}, failed(unix.ENOTTY)},
		"clone3":                         {plain, auditArch, unix.SYS_CLONE3, arguments{}, failed(unix.ENOSYS)},
		"io_uring":                       {plain, auditArch, unix.SYS_IO_URING_SETUP, arguments{}, failed(unix.ENOSYS)},
		"name a thread":                  {plain, auditArch, unix.SYS_PRCTL, arguments{unix.PR_SET_NAME}, allow},
		"outlive us":                     {plain, auditArch, unix.SYS_PRCTL, arguments{unix.PR_SET_PDEATHSIG}, failed(unix.EINVAL)},
		"read its limits":                {plain, auditArch, unix.SYS_PRLIMIT64, arguments{0, unix.RLIMIT_NOFILE, 0, 1}, allow},
		"set its limits":                 {plain, auditArch, unix.SYS_PRLIMIT64, arguments{0, unix.RLIMIT_NOFILE, 1}, failed(unix.EPERM)},
		"set them from low addresses":    {plain, auditArch, unix.SYS_PRLIMIT64, arguments{0, unix.RLIMIT_NOFILE, 1 << 32}, failed(unix.EPERM)},
		"read another's limits":          {plain, auditArch, unix.SYS_PRLIMIT64, arguments{1, unix.RLIMIT_NOFILE, 0, 1}, failed(unix.EPERM)},
		"ask whether it is a terminal":   {plain, auditArch, unix.SYS_IOCTL, arguments{1: unix.TCGETS}, allow},
		"type into the terminal":         {plain, auditArch, unix.SYS_IOCTL, arguments{1: unix.TIOCSTI}, failed(unix.ENOTTY)},
		"KVM without KVM":                {plain, auditArch, unix.SYS_IOCTL, arguments{1: 0xae80}, failed(unix.ENOTTY)},
		"run a processor of KVM":         {kvm, auditArch, unix.SYS_IOCTL, arguments{1: 0xae80}, allow},
		"read KVM's registers":           {kvm, auditArch, unix.SYS_IOCTL, arguments{1: 0x8090ae81}, allow},
		"write KVM's local APIC":         {kvm, auditArch, unix.SYS_IOCTL, arguments{1: 0x4400ae8f}, allow},
		"give KVM the address of VAPIC":  {kvm, auditArch, unix.SYS_IOCTL, arguments{1: 0x4008ae93}, allow},
		"give a processor of KVM memory": {kvm, auditArch, unix.SYS_IOCTL, arguments{1: 0x4020ae46}, allow},
		"encrypt a machine of KVM":       {kvm, auditArch, unix.SYS_IOCTL, arguments{1: 0xc008aeba}, failed(unix.ENOTTY)},
		"a request of another device":    {kvm, auditArch, unix.SYS_IOCTL, arguments{1: 0xaf80}, failed(unix.ENOTTY)},
		"read a terminal's state on KVM": {kvm, auditArch, unix.SYS_IOCTL, arguments{1: unix.TCGETS}, allow},
		"execute what is translated":     {plain, auditArch, unix.SYS_MMAP, arguments{2: unix.PROT_READ | unix.PROT_WRITE | unix.PROT_EXEC, 3: unix.MAP_ANONYMOUS}, allow},
		"map memory on KVM":              {kvm, auditArch, unix.SYS_MMAP, arguments{2: unix.PROT_READ | unix.PROT_WRITE, 3: unix.MAP_ANONYMOUS}, allow},
		"map a library on KVM":           {kvm, auditArch, unix.SYS_MMAP, arguments{2: unix.PROT_READ | unix.PROT_EXEC, 3: unix.MAP_PRIVATE | unix.MAP_FIXED}, allow},
		"execute memory on KVM":          {kvm, auditArch, unix.SYS_MMAP, arguments{2: unix.PROT_READ | unix.PROT_EXEC, 3: unix.MAP_ANONYMOUS}, failed(unix.EACCES)},
		"write to code on KVM":           {kvm, auditArch, unix.SYS_MMAP, arguments{2: unix.PROT_WRITE | unix.PROT_EXEC, 3: unix.MAP_PRIVATE}, failed(unix.EACCES)},
		"make memory code on KVM":        {kvm, auditArch, unix.SYS_MPROTECT, arguments{2: unix.PROT_READ | unix.PROT_EXEC}, failed(unix.EACCES)},
		"make memory read-only on KVM":   {kvm, auditArch, unix.SYS_MPROTECT, arguments{2: unix.PROT_READ}, allow},
		"a larger buffer of a socket":    {plain, auditArch, unix.SYS_SETSOCKOPT, arguments{1: unix.SOL_SOCKET, 2: unix.SO_SNDBUF}, allow},
		"a filter of a socket":           {plain, auditArch, unix.SYS_SETSOCKOPT, arguments{1: unix.SOL_SOCKET, 2: unix.SO_ATTACH_FILTER}, failed(unix.ENOPROTOOPT)},
		"an option of another protocol":  {plain, auditArch, unix.SYS_SETSOCKOPT, arguments{1: unix.SOL_IP, 2: unix.SO_SNDBUF}, failed(unix.ENOPROTOOPT)},
		"a filter for system calls":      {plain, auditArch, unix.SYS_SECCOMP, arguments{unix.SECCOMP_SET_MODE_FILTER}, failed(unix.ENOSYS)},
		"accept a connection":            {plain, auditArch, unix.SYS_ACCEPT4, arguments{}, end},
		"accept gdb's connection":        {gdb, auditArch, unix.SYS_ACCEPT4, arguments{}, allow},
		"make a socket beside gdb's":     {gdb, auditArch, unix.SYS_SOCKET, arguments{}, end},
	} {
		got := run(c.vm, c.arch, c.nr, c.args)
		if c.want != allow {
			attack.Check(t, "the filter: "+name, verdict(c.want), verdict(got))
		} else if got != allow {
			t.Errorf("%s: %s", name, verdict(got))
		}
	}
}

// A machine that makes a call that is not on the list is ended, and the call is named.
func TestAttackDenied(t *testing.T) {
	target, p := prepared(t)
	for call, nr := range map[string]uintptr{"socket": unix.SYS_SOCKET, "ptrace": unix.SYS_PTRACE, "bpf": unix.SYS_BPF, "system call 9999": 9999} {
		s := script{newStage()}
		s.call(call, nr)
		reports, process, err := s.run(target, nil, Spec{Program: p})
		if err != nil {
			t.Fatal(err)
		}
		ws := process.Wait().Sys().(syscall.WaitStatus)
		got := fmt.Sprintf("%v for %s, %d bytes of reports", ws.Signal(), process.Denied(), len(reports))
		attack.Check(t, "a machine makes the call "+call, fmt.Sprintf("%v for %s, 0 bytes of reports", syscall.SIGKILL, call), got)
	}
}

// A program signals its own threads, and makes no file in memory, also where it may write files: what it would write of
// those is limited for each, not for all.
func TestAttackOwnThreads(t *testing.T) {
	target, p := prepared(t)
	for name, c := range map[string]struct {
		make func(s script)
		want string // what it ended by; "" where it came to its end
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

// Who ends has ended, also where he has sent the other end of his messages to where nobody takes it.
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

// A program that opens a file for writing, too, gets one for reading, once.
func TestGiven(t *testing.T) {
	p, err := Examine(someProgram(t), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !CanGive() || !Confines(p) {
		t.Skip("this kernel's listeners give no descriptors (Linux 5.9), or it has no Landlock (5.13)")
	}
	target, err := newTargets()
	if err != nil {
		t.Fatal(err)
	}
	defer target.end()
	path := filepath.Join(target.dir, targetFile) // everybody may write to it
	given, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer given.Close()
	before := descriptors(t)
	for name, c := range map[string]struct {
		make   func(s script, fd result)
		errno  unix.Errno
		denied string
	}{
		"changes its flags to append": {func(s script, fd result) {
			s.call("fcntl", unix.SYS_FCNTL, fd, unix.F_SETFL, unix.O_APPEND|unix.O_RDWR)
			s.call("pwrite64", unix.SYS_PWRITE64, fd, "x", 1, 0)
		}, unix.EBADF, ""},
		"makes its pages writable": {func(s script, fd result) {
			at := s.call("mmap", unix.SYS_MMAP, 0, 4096, unix.PROT_READ, unix.MAP_SHARED, fd, 0)
			s.call("mprotect", unix.SYS_MPROTECT, at, 4096, unix.PROT_READ|unix.PROT_WRITE)
		}, unix.EACCES, ""},
		"takes a lock on it for writing": {func(s script, fd result) {
			lock := make([]byte, 32)
			binary.NativeEndian.PutUint16(lock, unix.F_WRLCK)
			s.call("fcntl", unix.SYS_FCNTL, fd, unix.F_OFD_SETLK, lock)
		}, unix.EBADF, ""},
		"reads it": {func(s script, fd result) { s.call("read", unix.SYS_READ, fd, make([]byte, 8), 1) }, 0, ""},
		"maps pages of its own": {func(s script, fd result) {
			s.call("mmap", unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE, fd, 0)
		}, 0, ""},
		"writes to it": {func(s script, fd result) { s.call("write", unix.SYS_WRITE, fd, "x", 1) }, unix.EBADF, ""},
		"maps it to write to it": {func(s script, fd result) {
			s.call("mmap", unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, fd, 0)
		}, unix.EACCES, ""},
		"shortens it":                   {func(s script, fd result) { s.call("ftruncate", unix.SYS_FTRUNCATE, fd, 0) }, unix.EINVAL, ""},
		"opens it again to write to it": {func(s script, fd result) { s.open(fmt.Sprintf("/proc/self/fd/%d", standInDisk+1), unix.O_WRONLY) }, unix.EACCES, ""},
		"opens another one":             {func(s script, fd result) { s.open("/nothing", unix.O_RDWR) }, 0, "openat"},
	} {
		s := script{newStage()}
		c.make(s, s.open("/whatever", unix.O_RDWR))
		reports, process, err := s.run(target, nil, Spec{Program: p, Given: given})
		if err != nil {
			t.Fatal(err)
		}
		came, failed, _ := s.outcome(reports)
		if !process.Gives() || process.Denied() != c.denied || came != (c.errno == 0 && c.denied == "") {
			t.Errorf("%s: gives %t, denied %q, came %t, failed %v", name, process.Gives(), process.Denied(), came, failed)
		}
		if c.errno != 0 && (len(failed) != 1 || failed[0].errno != c.errno) {
			t.Errorf("%s: %v, expected %v", name, failed, c.errno)
		}
	}
	// What opens something else is not given anything, also as the first.
	for _, flags := range []int{unix.O_RDWR | unix.O_TRUNC, unix.O_RDWR | unix.O_APPEND, unix.O_RDWR | unix.O_CREAT | unix.O_CLOEXEC, unix.O_RDWR | unix.O_TMPFILE, unix.O_WRONLY | unix.O_TRUNC} {
		s := script{newStage()}
		s.open(path, flags)
		reports, process, err := s.run(target, nil, Spec{Program: p, Given: given})
		if err != nil {
			t.Fatal(err)
		}
		if came, _, _ := s.outcome(reports); came || process.Denied() != "openat" {
			t.Errorf("openat with %#x: denied %q, came %t", flags, process.Denied(), came)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != targetText {
		t.Errorf("the file has become %q, %v", text, err)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

// descriptors counts those that are open here.
func descriptors(t *testing.T) int {
	n, err := countDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func countDescriptors() (int, error) {
	list, err := os.ReadDir("/proc/self/fd")
	return len(list), err
}

// A step that fails is reported, and followed by what it says.
func TestStage(t *testing.T) {
	fails := func(s *stage, then failure, what string) {
		s.add(step{call: 9999, then: then, part: "part", what: what})
	}
	works := func(s *stage, what string) {
		s.add(step{call: unix.SYS_GETPID, what: what})
	}
	for name, c := range map[string]struct {
		make   func(s *stage)
		failed []string
		came   bool
	}{
		"all is well": {func(s *stage) { works(s, "a") }, nil, true},
		"goes on":     {func(s *stage) { fails(s, goOn, "a"); fails(s, goOn, "b"); works(s, "c") }, []string{"a", "b"}, true},
		"abandons": {func(s *stage) {
			s.begin()
			fails(s, abandon, "a")
			fails(s, abandon, "b")
			s.end()
			fails(s, goOn, "c")
		}, []string{"a", "c"}, true},
		"abandons at end": {func(s *stage) { works(s, "a"); s.begin(); works(s, "b"); fails(s, abandon, "c"); s.end() }, []string{"c"}, true},
		"gives up":        {func(s *stage) { fails(s, goOn, "a"); fails(s, giveUp, "b"); fails(s, goOn, "c") }, []string{"a", "b"}, false},
	} {
		target, err := newTargets()
		if err != nil {
			t.Fatal(err)
		}
		defer target.end()
		s := script{newStage()}
		c.make(s.stage)
		reports, _, err := s.run(target, nil, Spec{Open: true})
		if err != nil {
			t.Fatal(err)
		}
		came, failed, _ := s.outcome(reports)
		var what []string
		for _, f := range failed {
			what = append(what, f.step.what)
			if !errors.Is(f, unix.ENOSYS) {
				t.Errorf("%s: %v", name, f)
			}
		}
		if came != c.came || !slices.Equal(what, c.failed) {
			t.Errorf("%s: came %v, failed %q; expected %v, %q", name, came, what, c.came, c.failed)
		}
	}
}

// Reports that lie, or that are cut, are no reports.
func TestOutcome(t *testing.T) {
	s := newStage()
	s.add(step{what: "a", part: Network})
	report := func(errno unix.Errno, index uint64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(-int64(errno))), index)
	}
	for name, c := range map[string]struct {
		reports []byte
		came    bool
		failed  int
		fatal   bool
	}{
		"nothing":         {nil, false, 0, false},
		"cut":             {report(0, 0)[:15], false, 0, false},
		"no such step":    {report(unix.EPERM, 1), false, 0, true},
		"the last number": {report(unix.EPERM, 1<<64-1), false, 0, true},
		"came":            {report(0, 0), true, 0, false},
		"failed":          {report(unix.EPERM, 0), false, 1, false},
	} {
		came, failed, fatal := s.outcome(c.reports)
		if came != c.came || len(failed) != c.failed || (fatal != nil) != c.fatal {
			t.Errorf("%s: %v %v %v", name, came, failed, fatal)
		}
	}
}

// The program that is copied into a stage ends within what is copied.
func TestStageCode(t *testing.T) {
	image, err := newStage().image(3)
	if err != nil {
		t.Fatal(err)
	}
	code := image[segment : segment+codeSize]
	trap := map[string][]byte{"amd64": {0x0f, 0x0b}, "arm64": {0x00, 0x00, 0xa0, 0xbe}} // UNDEF
	if !slices.ContainsFunc([]string{"amd64", "arm64"}, func(arch string) bool { return bytes.Contains(code, trap[arch]) }) {
		t.Errorf("% x", code)
	}
}

func TestASingleUser(t *testing.T) {
	for name, c := range map[string]struct {
		text         string
		begin, count int
	}{
		"empty":    {"", 0, 0},
		"root's":   {"root:100000:65536\n", 100000, 65536},
		"by uid":   {"x:1:1\n0:200000:10\n", 200000, 10},
		"another":  {"alice:100000:65536\n", 0, 0},
		"root's 0": {"root:0:65536\n", 0, 0},
		"none":     {"root:100000:0\n", 0, 0},
		"cut":      {"root:100000\nroot:\n:::\n", 0, 0},
		"not ids":  {"root:-1:5\nroot:99999999999:5\n", 0, 0},
	} {
		if begin, count := subordinate([]byte(c.text), "root", "0"); begin != c.begin || count != c.count {
			t.Errorf("%s: %d, %d", name, begin, count)
		}
	}
	for text, want := range map[string]bool{
		"": false, "0 0 4294967295": true, "0 100000 65536\n": false, "0 100000 65536\n1879048192 5 1\n": true, "x y z": false, "1879048192 0 0": false,
	} {
		if got := inMap([]byte(text), ownUsers); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// What a start costs: from the fork to the end of a program that does nothing, and of
// A process with small pages has no huge ones, and another one is left as it is.
func TestSmallPages(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(self, 0o755); err != nil { // its user is another one, and it was built under a umask
		t.Fatal(err)
	}
	program, err := Examine(self, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, small := range []bool{false, true} {
		p, err := Start(Spec{Program: program, Args: []string{}, Env: []string{asGuy + "=wait"}, Unfiltered: true, AddressSpace: 64 << 30, SmallPages: small})
		if err != nil {
			t.Fatal(err)
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
		p.Kill()
		p.Wait()
		got := strings.Contains(string(status), "THP_enabled:\t0\n")
		if known := strings.Contains(string(status), "THP_enabled:"); err != nil || known && got != small {
			t.Errorf("small pages %v: %v\n%s", small, err, status)
		}
	}
}

// QEMU's --version, without a jail, in one without its filter, and in a whole one, one
// after the other in the same loop.
func BenchmarkStart(b *testing.B) {
	qemu, err := Examine(someProgram(b), nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	image, err := newStage().image(standInStatus)
	if err != nil {
		b.Fatal(err)
	}
	nothing := Program{Path: filepath.Join(b.TempDir(), "program"), Files: slices.Clone(qemu.Files)}
	if err := os.WriteFile(nothing.Path, image, 0o755); err != nil {
		b.Fatal(err)
	}
	nothing.Files = append(nothing.Files, nothing.Path)
	for name, s := range map[string]Spec{"nothing": {Program: nothing}, "version": {Program: qemu, Args: []string{"--version"}}} {
		b.Run(name, func(b *testing.B) {
			var took [3]time.Duration
			rounds := 0
			for b.Loop() {
				for i := range took {
					s.AddressSpace, s.Open, s.Unfiltered = 4<<30, i == 0, i == 1
					at := time.Now()
					process, err := Start(s)
					if err != nil {
						b.Fatal(err)
					}
					process.Wait()
					took[i] += time.Since(at)
				}
				rounds++
			}
			for i, how := range []string{"open", "unfiltered", "jail"} {
				b.ReportMetric(took[i].Seconds()*1000/float64(rounds), how+"-ms")
			}
			b.ReportMetric(took[2].Seconds()/took[1].Seconds(), "jail/unfiltered")
		})
	}
}
