package jail

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The tests start themselves again as another user, to attack a jail in that role.
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

type givenRow struct {
	make   func(s script, fd result)
	errno  unix.Errno
	denied string
}

// givenRows are the cases of TestGiven.
func givenRows() map[string]givenRow {
	return map[string]givenRow{
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
		"shortens it": {func(s script, fd result) { s.call("ftruncate", unix.SYS_FTRUNCATE, fd, 0) },
			unix.EINVAL, ""},
		"opens it again to write to it": {func(s script,
			fd result) {
			s.open(fmt.Sprintf("/proc/self/fd/%d", standInDisk+1), unix.O_WRONLY)
		}, unix.EACCES, ""},
		"opens another one": {func(s script, fd result) { s.open("/nothing", unix.O_RDWR) }, 0, "openat"},
	}
}

// A program that opens a file also for writing gets one for reading, once.
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
	for name, c := range givenRows() {
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
	// A program that opens something else gets nothing, even if that comes first.
	for _, flags := range []int{unix.O_RDWR | unix.O_TRUNC, unix.O_RDWR | unix.O_APPEND,
		unix.O_RDWR | unix.O_CREAT | unix.O_CLOEXEC, unix.O_RDWR | unix.O_TMPFILE, unix.O_WRONLY | unix.O_TRUNC} {
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

// descriptors counts the open descriptors of this process.
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

// A failing step is reported, followed by its output.
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
		"abandons at end": {func(s *stage) { works(s, "a"); s.begin(); works(s, "b"); fails(s, abandon, "c"); s.end() },
			[]string{"c"}, true},
		"gives up": {func(s *stage) { fails(s, goOn, "a"); fails(s, giveUp, "b"); fails(s, goOn, "c") },
			[]string{"a", "b"}, false},
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

// False or truncated reports are not accepted.
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

// The program that is copied into a stage ends within the copied bytes.
func TestStageCode(t *testing.T) {
	image, err := newStage().image(3)
	if err != nil {
		t.Fatal(err)
	}
	code := image[segment : segment+codeSize]
	trap := map[string][]byte{"amd64": {0x0f, 0x0b}, "arm64": {0x00, 0x00, 0xa0, 0xbe}} // UNDEF
	if !slices.ContainsFunc([]string{"amd64", "arm64"},
		func(arch string) bool { return bytes.Contains(code, trap[arch]) }) {
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
		"": false, "0 0 4294967295": true, "0 100000 65536\n": false, "0 100000 65536\n1879048192 5 1\n": true,
		"x y z": false, "1879048192 0 0": false,
	} {
		if got := inMap([]byte(text), ownUsers); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// A process with small pages has no huge ones, and another process may have them.
func TestSmallPages(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(self, 0o755); err != nil { // it runs as another user, and was built under a umask
		t.Fatal(err)
	}
	program, err := Examine(self, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, small := range []bool{false, true} {
		p, err := Start(Spec{Program: program, Args: []string{}, Env: []string{asGuy + "=wait"}, Unfiltered: true,
			AddressSpace: 64 << 30, SmallPages: small})
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

// QEMU's --version, without a jail, in a jail without its filter, and in a complete one, in turn in the same loop.
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
	for name, s := range map[string]Spec{"nothing": {Program: nothing},
		"version": {Program: qemu, Args: []string{"--version"}}} {
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
