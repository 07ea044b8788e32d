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

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
)

type attacked struct {
	Attempts []Attempt
	Report   Report
	Left     int // descriptors, afterwards
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
		if a.Attempts, a.Report, err = attackIn(Spec{Program: p, Open: os.Getenv("UNITASK_TEST_OPEN") != "",
			MaxLandlock: abi}); err == nil {
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

// someProgram is a program with libraries, for a jail.
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

// prepared returns targets for a program in a jail, until the test ends, and such a program.
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

// attackAs runs all attempts in a process with a given command line; its last arguments are ours.
func attackAs(t *testing.T, program string, open bool, landlock int, how ...string) attacked {
	t.Helper()
	self := filepath.Join(t.TempDir(), "attack.test") // others must be able to execute it
	for _, dir := range []string{filepath.Dir(self), filepath.Dir(filepath.Dir(self))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Another process writes it. Otherwise a concurrent fork of another test would hold the file open for writing, and it
	// could not be executed.
	if out, err := exec.Command("cp", "/proc/"+strconv.Itoa(os.Getpid())+"/exe", self).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	how = append(slices.Clone(how), self)
	var attr *syscall.SysProcAttr
	if how[0] == withoutUserNamespaces {
		all := []syscall.SysProcIDMap{{Size: 100000}}
		attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all,
			GidMappingsEnableSetgroups: true}
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

const allLayers = "network pid ipc uts cgroup filesystem sealed groups user capabilities no-new-privileges landlock " +
	"seccomp"

var noNamespaces = []string{Network, Processes, IPC, UTS, CgroupSpace, Filesystem, User}

// unspaced are the attempts that only the filter stops if there are no namespaces and the machine runs as its user.
var unspaced = []string{"connect to a Unix socket that everybody may use", "connect to it by MPTCP",
	"send to it by UDP", "take the handle of a file",
	"open a descriptor of that process", "change that process's limits", "signal everybody", "become root",
	"watch a file of the host", "move that process to another processor",
	"open its own program, once it has started", "open its own memory, once it has started",
	"open its disk again, once it has started",
	"open by a path that does not begin at the root, once it has started",
	"open by a folder that it has kept open, once it has started", "undo the seal"}

// unscoped are those among them that Landlock stops from its ABI 6 on.
var unscoped = []string{"connect to an abstract Unix socket", "signal the process that started it",
	"signal process groups of the host", "signal that process as one of its threads",
	"queue a signal to that process"}

// onlyFiltered are the attempts that only the filter stops: their targets belong to the process itself.
var onlyFiltered = []string{"start a process", "start a process by clone3", "a netlink socket",
	"a socket to the hypervisor", "attach a program to a socket", "add a key", "read keys",
	"allow itself to be dumped", "outlive the process that started it", "change its personality", "handle page faults",
	"open a queue of io_uring",
	"execute its program again, at the address that its filter knows",
	"have the kernel signal it when others use its disk",
	"make a user namespace", "take another processor's time", "lock its disk, so that others wait",
	"add a filter that asks it"}

// ownersOnly are the attempts that only the filter stops if the machine runs as the user whose files it has open.
var ownersOnly = []string{"have others wait for its disk", "let others write to its disk"}

// withoutUserNamespaces replaces a program: the rest of the command line runs without a way to make user namespaces.
const withoutUserNamespaces = "without user namespaces"

// Which layers are active for whom, and that nothing gets through with all of them.
func TestAttackJail(t *testing.T) {
	needRoot(t, "setpriv", "unshare")
	for name, c := range map[string]struct {
		how []string
		not []string // inactive layers

		landlock int // the highest ABI; 0 is the kernel's
	}{
		"root":           {nil, nil, 0},
		"root in groups": {[]string{"setpriv", "--groups=0,5"}, nil, 0},
		"root without CAP_SYS_RESOURCE": {[]string{"setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"},
			nil, 0},
		"root without CAP_SYS_ADMIN": {[]string{"setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"}, nil, 0},
		"root without capabilities":  {[]string{"setpriv", "--bounding-set=-all", "--inh-caps=-all"}, noNamespaces, 0},
		"a user":                     {[]string{"setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"}, nil, 0},
		"a user in groups": {[]string{"setpriv", "--reuid=12345", "--regid=12345", "--groups=0,5"},
			[]string{Groups}, 0},
		"a user without user namespaces": {[]string{withoutUserNamespaces, "setpriv", "--reuid=12345", "--regid=12345",
			"--clear-groups"},
			append([]string{LimitProcesses}, noNamespaces...), 0},
		"a user without user namespaces, on Linux 6.10": {[]string{withoutUserNamespaces, "setpriv", "--reuid=12345",
			"--regid=12345", "--clear-groups"},
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
			unspace, owns := slices.Contains(c.not, Network), strings.HasPrefix(name, "a user") ||
				name == "root without capabilities"
			for _, row := range a.Attempts {
				seen := "stopped"
				if row.Through {
					seen = row.Seen
				}
				attack.Check(t, "broken QEMU, started by "+name+": "+row.Name, "stopped", seen)
				switch {
				case slices.Contains(onlyFiltered, row.Name), c.landlock > 0 && slices.Contains(unscoped, row.Name),
					unspace && slices.Contains(unspaced, row.Name), owns && slices.Contains(ownersOnly, row.Name):
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

// Without a jail nearly all attempts get through: they are real. A missing kernel feature, or one that nobody may use,
// is reported; another error is the attempt's own fault.
func TestAttemptsAreReal(t *testing.T) {
	needRoot(t)
	a := attackAs(t, someProgram(t), true, 0)
	through := 0
	for _, row := range a.Attempts {
		if row.Through {
			through++
		} else {
			t.Logf("%s: %s", row.Name, row.Seen)
			if !slices.ContainsFunc([]error{unix.ENOSYS, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.EPERM, unix.EACCES},
				func(e error) bool { return strings.HasSuffix(row.Seen, ": "+e.Error()) }) {
				t.Errorf("%s: %s", row.Name, row.Seen)
			}
		}
	}
	if least := len(a.Attempts) * 4 / 5; through < least {
		t.Errorf("%d of %d get through, expected %d at least", through, len(a.Attempts), least)
	}
}

// A program in the user's own folder does not open that folder to the jail. Each of the two layers that hide files is
// enough by itself.
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

// KVM's device is in the root of a program that opens it, and of no other.
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
		call []uint32 // the argument of setgroups; nil for no call
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

// said returns a call of setgroups as text, or that there is none.
func said(groups []uint32) string {
	if groups == nil {
		return "no setgroups"
	}
	return fmt.Sprint("setgroups ", groups)
}
