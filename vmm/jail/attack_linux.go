package jail

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/socketpair"
)

// A stand-in for a broken QEMU tries, from inside the jail, what it must not be able to do. Each attempt is a separate
// process that makes some system calls; the attempt succeeds if all of them do. The stand-in is built like a stage
// (stage_linux.go), so it makes no other calls.

// one is one attempt.
type one struct {
	name string
	make func(a *script, t *targets)
	// unsafe: without a jail the attempt would change this host, so it is only made inside a jail.
	unsafe bool
}

// script builds the stand-in of one attack.
type script struct{ *stage }

// result refers to the result of an earlier call, by its number.
type result int

// call adds a system call. Arguments are numbers, strings and bytes (passed by address), and results of earlier calls,
// each used at most once.
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

// read opens a file and reads from it.
func (a script) read(path string) {
	a.call("read", unix.SYS_READ, a.open(path, unix.O_RDONLY), make([]byte, 8), 1)
}

func (a script) connect(domain, kind, protocol int, address []byte) {
	a.call("connect", unix.SYS_CONNECT, a.call("socket", unix.SYS_SOCKET, domain, kind, protocol), address, len(address))
}

const (
	targetFile   = "file"
	targetDisk   = "disk"
	targetSocket = "socket"
)

const targetText = "a secret of the host\n"

// Attack tries everything against the jail of a program, with and without the system call filter. It returns the
// outcomes, and the layers and limits in force. With open there is no jail, and nearly all attempts that can be made
// then succeed, which shows that the attempts are real.
func Attack(p Program, kvm KVM, open bool) ([]Attempt, Report, error) {
	return attackIn(Spec{Program: p, KVM: kvm, Open: open})
}

// attackIn is like Attack, in the jail of a spec.
func attackIn(jail Spec) ([]Attempt, Report, error) {
	t, err := newTargets()
	if err != nil {
		return nil, Report{}, fmt.Errorf("attack: %w", err)
	}
	defer t.end()
	var out []Attempt
	var report Report
	for _, a := range attacks {
		if jail.Open && a.unsafe {
			continue
		}
		how := jail
		var seen Attempt
		if seen, report, err = a.try(nil, how, t); err != nil {
			return out, report, fmt.Errorf("attack %q: %w", a.name, err)
		}
		if !jail.Open {
			how.Unfiltered = true
			behind, _, err := a.try(nil, how, t)
			if err != nil {
				return out, report, fmt.Errorf("attack %q, without the filter: %w", a.name, err)
			}
			seen.Behind, seen.BehindThrough = behind.Seen, behind.Through
		}
		out = append(out, seen)
	}
	return out, report, nil
}

// Try reports which layers confine a stand-in that does nothing.
func Try(p Program, kvm KVM) (Report, error) {
	t, err := newTargets()
	if err != nil {
		return Report{}, fmt.Errorf("try the jail: %w", err)
	}
	defer t.end()
	_, report, err := one{name: "nothing", make: func(*script, *targets) {}}.try(nil, Spec{Program: p, KVM: kvm}, t)
	if err != nil {
		err = fmt.Errorf("try the jail: %w", err)
	}
	return report, err
}

// The descriptors of a stand-in: its status socket, a readable file of the host, like QEMU's disk, and those of its
// spec.
const (
	standInStatus = 3
	standInDisk   = 4
	standInFiles  = 5
)

// attemptTime bounds an attempt, which takes a millisecond.
const attemptTime = 5 * time.Second

// try makes an attempt in the jail of a spec, with the stand-in as the program, on the given levels; nil means all.
func (a one) try(on []level, how Spec, t *targets) (Attempt, Report, error) {
	out := Attempt{Name: a.name}
	if err := t.files(); err != nil {
		return out, Report{}, err
	}
	s := script{newStage()}
	a.make(&s, t)
	reports, process, err := s.run(t, on, how)
	if err != nil {
		return out, Report{}, err
	}
	state, denied := process.Wait(), process.Denied()
	came, failed, _ := s.outcome(reports)
	touched := t.touched()
	out.Through = came || touched != ""
	switch ws, _ := state.Sys().(syscall.WaitStatus); {
	case touched != "":
		out.Seen = "got through: " + touched
	case came:
		out.Seen = "got through"
	case denied != "":
		out.Seen = "ended for calling " + denied
	case len(failed) > 0:
		out.Seen = failed[0].Error()
	case ws.Signaled():
		out.Seen = "killed: " + ws.Signal().String()
	default:
		out.Seen = state.String()
	}
	return out, process.Report, nil
}

// run runs a script in a jail and returns its reports, after the process has ended.
func (s script) run(t *targets, on []level, how Spec) ([]byte, *Process, error) {
	done := len(s.steps)
	s.call("report", unix.SYS_WRITE, standInStatus, s.words(0, uint64(done)), reportSize)
	image, err := s.image(standInStatus)
	if err != nil {
		return nil, nil, err
	}
	name := filepath.Join(t.dir, "stand-in")
	defer os.Remove(name)
	if err := errors.Join(os.WriteFile(name, image, 0o755),
		os.Chmod(name, 0o755)); err != nil { // whatever this process's umask is
		return nil, nil, err
	}
	ours, theirs, err := socketpair.New("stand-in")
	if err != nil {
		return nil, nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	disk, err := os.Open(filepath.Join(t.dir, targetDisk))
	if err != nil {
		return nil, nil, err
	}
	defer disk.Close()
	p := &how.Program
	p.Files = append(p.Files[:len(p.Files):len(p.Files)], name)
	p.Path = name
	how.Files, how.AddressSpace, how.Bounds = append([]*os.File{theirs, disk}, how.Files...), 4<<30,
		Bounds{Memory: 64 << 20, CPUs: 1, IO: 64 << 20}
	process, err := startOn(on, how)
	if err != nil {
		return nil, nil, err
	}
	theirs.Close()
	late := time.AfterFunc(attemptTime, process.Kill)
	defer late.Stop()
	var reports []byte
	for err == nil && len(reports) < maxReports {
		var n int
		var report [reportSize]byte
		n, err = io.ReadFull(ours, report[:])
		if n == reportSize && binary.LittleEndian.Uint64(report[8:]) == sealMark {
			if err = process.Seal(); err == nil {
				_, err = ours.Write([]byte{1})
			}
			continue
		}
		reports = append(reports, report[:n]...)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	if err != nil {
		process.Kill()
	}
	process.Wait()
	return reports, process, err
}

// sealMark replaces the step number in a report to request the seal.
const sealMark = 1 << 32

// seal lets the stand-in continue when it is sealed, like a QEMU that has started.
func (a script) seal() {
	a.call("write", unix.SYS_WRITE, standInStatus, a.words(0, sealMark), reportSize)
	a.call("read", unix.SYS_READ, standInStatus, make([]byte, 8), 1)
}
