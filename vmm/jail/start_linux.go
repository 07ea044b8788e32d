package jail

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/socketpair"
)

// Process is a program in its jail.
type Process struct {
	Report Report
	Pid    int

	cmd      *exec.Cmd
	group    *group
	outgrown bool          // valid when done is closed
	done     chan struct{} // closed when the process is reaped
	listener *os.File      // of its filter; nil for none
	root     *os.File      // to be sealed; nil for none
	asks     bool          // its filter asks about the files that it opens
	sealing  sync.Mutex    // guards root
	sealed   atomic.Bool
	gives    bool
	watched  chan struct{} // closed when nobody listens any more
	denied   string        // valid when watched is closed
}

// Denied returns the system call for which the filter killed the process, such as "ptrace", or "". It is valid after
// Wait.
func (p *Process) Denied() string { return p.denied }

// OutOfMemory reports whether the kernel killed the process because it exceeded its control group's memory. It is valid
// after Wait.
func (p *Process) OutOfMemory() bool { return p.outgrown }

// Gives reports whether the process receives the Given of its spec: another filter's listener may prevent that.
func (p *Process) Gives() bool { return p.gives }

// Kill kills the process.
func (p *Process) Kill() { _ = p.cmd.Process.Kill() }

// Wait waits until the process has ended and its messages are read.
func (p *Process) Wait() *os.ProcessState {
	<-p.done
	<-p.watched
	return p.cmd.ProcessState
}

// Start starts a program and returns when it is executed. It tries the strongest level first. Layers that this host
// refuses are left out and reported.
//
// The process is killed when the thread that forked it ends (PR_SET_PDEATHSIG), so that goroutine stays locked to its
// thread, and waits there.
func Start(s Spec) (*Process, error) { return startOn(nil, s) }

// startOn is like Start, on the given levels; nil means all.
func startOn(on []level, s Spec) (*Process, error) {
	type started struct {
		p   *Process
		err error
	}
	result := make(chan started, 1)
	go func() {
		runtime.LockOSThread() // forever: the thread ends with the process
		p, err := start(on, s)
		result <- started{p, err}
		if err == nil {
			_ = p.cmd.Wait()
			p.outgrown = p.group.outOfMemory()
			p.group.remove()
			if p.listener != nil {
				p.listener.Close() // kernels before 5.9 do not report that the process is gone
			}
			p.closeRoot()
			close(p.done)
		}
	}()
	r := <-result
	return r.p, r.err
}

func start(on []level, s Spec) (*Process, error) {
	f := findFacts()
	if s.MaxLandlock > 0 {
		f.abi = min(f.abi, s.MaxLandlock)
	}
	f.mount = mountFolder(s.Program)
	if s.KVM == KVMOpened {
		f.kvmGroup = KVMGroup(KVMDevice)
	}
	files := append([]*os.File(nil), s.Files...)
	descriptor := func(file *os.File) int { // its number in the stage
		files = append(files, file)
		return len(files) + 2
	}
	ours, theirs, err := socketpair.New("stage")
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	f.status = descriptor(theirs)
	if !s.Open {
		rules, err := f.findRules(s)
		if err != nil {
			f.noRules = err.Error()
		} else {
			defer rules.Close()
			f.rules = descriptor(rules)
		}
	}
	var refused []string
	if on == nil {
		on = levels(os.Getuid(), os.Getgid(), aUser(), f.kvmGroup)
	}
	for _, l := range on {
		if s.Open {
			l = level{become: -1}
		}
		f.refused = "this host refuses namespaces (" + strings.Join(refused, "; ") + ")"
		f.self = len(files) + 3
		f.asks = asks(s, l, f)
		st, report := plan(s, l, f)
		cmd, in, err := l.runInGroup(s, st, f, files)
		if err == nil {
			theirs.Close()
			report.Limits = append(report.Limits, in.holds...)
			p, err := await(cmd, ours, st, report, f, s)
			if err != nil {
				in.remove()
				return nil, err
			}
			p.group = in
			return p, nil
		}
		if !mayBeLevel(err) || s.Open {
			return nil, err
		}
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		refused = append(refused, fmt.Sprintf("%s: %v", l.name, err))
	}
	return nil, errors.New(strings.Join(refused, "; "))
}

func (f *facts) findRules(s Spec) (*os.File, error) {
	if f.abi == 0 {
		return nil, errors.New("this kernel has none (Linux 5.13 on, with landlock among its security modules)")
	}
	if len(s.Program.Files) == 0 {
		return nil, fmt.Errorf("the files of %s can't be listed: it is %w", s.Program.Path, ErrNoProgram)
	}
	var devices []string
	if s.KVM == KVMOpened {
		devices = append(devices, KVMDevice)
	}
	return ruleset(f.abi, s.Program, devices, s.Files)
}

// runInGroup starts a stage on a level, in a control group if possible.
func (l level) runInGroup(s Spec, st *stage, f facts, files []*os.File) (*exec.Cmd, *group, error) {
	in := &group{}
	if !s.Open {
		d := delegated()
		var disks []string
		if slices.Contains(d.with, "io") {
			disks = disksOf(s)
		}
		in = newGroup(d, s.Bounds, disks)
	}
	cmd, err := l.run(s, st, f, files, in)
	if in.file == nil {
		return cmd, in, err
	}
	in.file.Close()
	if err == nil {
		return cmd, in, nil
	}
	in.remove()
	in = noGroup("no process could be started in " + in.dir + ": " + err.Error())
	cmd, err = l.run(s, st, f, files, in)
	return cmd, in, err
}

// run starts a stage on a level.
func (l level) run(s Spec, st *stage, f facts, files []*os.File, in *group) (cmd *exec.Cmd, err error) {
	program, err := st.file(f.status)
	if err != nil {
		return nil, err
	}
	defer program.Close()
	asked, err := l.permitted(in)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{whileAlive(f.self),
		fmt.Sprintf("/proc/self/fd/%d", f.self)} { // the second if /proc hides this process from the user of the stage
		cmd = &exec.Cmd{Path: name, Args: []string{"unitask-stage"}, Env: []string{}, Dir: "/", Stderr: s.Stderr,
			WaitDelay: messageDelay, ExtraFiles: append(files[:len(files):len(files)], program)}
		attr := l.attr
		if in.file != nil {
			attr.UseCgroupFD, attr.CgroupFD = true, int(in.file.Fd())
		}
		attr.Setsid = true // no terminal, and no signals sent to this process's group
		cmd.SysProcAttr = &attr
		if err = cmd.Start(); err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			break
		}
	}
	if err != nil {
		asked.Store(false)
	}
	return cmd, err
}

// mapped and mappedIn report whether the last attempt to create user namespaces succeeded, outside of a control group
// and in one.
var mapped, mappedIn atomic.Bool

// permitted asks the kernel whether a level that maps users may create its namespaces in a group, with a process that
// executes nothing. If the kernel refuses, Go's own start of a process with a mapping leaks two descriptors each time.
// Up to Go 1.26, they are the pipe that reports the mapping. The result is valid until the returned flag is cleared.
func (l level) permitted(in *group) (*atomic.Bool, error) {
	attr, asked := syscall.SysProcAttr{Cloneflags: l.attr.Cloneflags}, &mapped
	if in.file != nil {
		attr.UseCgroupFD, attr.CgroupFD, asked = true, int(in.file.Fd()), &mappedIn
	}
	if l.attr.UidMappings == nil {
		return new(atomic.Bool), nil
	}
	if asked.Load() {
		return asked, nil
	}
	_, err := syscall.ForkExec("/nothing/to/execute", nil, &syscall.ProcAttr{Sys: &attr})
	if errors.Is(err, fs.ErrNotExist) {
		asked.Store(true)
		return asked, nil
	}
	return nil, &fs.PathError{Op: "clone", Path: l.name, Err: err}
}

// whileAlive returns a path for a descriptor of the executing process that is only valid while the calling thread
// lives. The path leads through the thread's folder in /proc. Until the stage has requested its parent's death signal,
// nothing else would end it.
func whileAlive(fd int) string {
	return fmt.Sprintf("/proc/%d/task/%d/../../../self/fd/%d", os.Getpid(), unix.Gettid(), fd)
}

// mayBeLevel reports whether a start's error may mean that the kernel refuses the level.
func mayBeLevel(err error) bool {
	for _, e := range []error{fs.ErrPermission, syscall.EINVAL, syscall.ENOSPC, syscall.EUSERS, syscall.ENOSYS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// maxReports bounds what a stage can report.
const maxReports = 1 << 20

// await reads a stage's reports until the stage has executed its program, and adds the failures to the report.
func await(cmd *exec.Cmd, ours *os.File, st *stage, report Report, f facts, s Spec) (*Process, error) {
	p := &Process{Report: report, asks: f.asks, Pid: cmd.Process.Pid, cmd: cmd, done: make(chan struct{}),
		watched: make(chan struct{})}
	reports, err := receive(ours, func(listener *os.File) {
		if isFolder(listener) && p.root == nil {
			p.root = listener
			return
		}
		if p.listener != nil {
			listener.Close()
			return
		}
		p.listener = listener
		var own *os.File
		if s.Given != nil {
			if fd, err := unix.FcntlInt(s.Given.Fd(), unix.F_DUPFD_CLOEXEC, 0); err == nil {
				own = os.NewFile(uintptr(fd), s.Given.Name())
			}
		}
		p.gives = own != nil
		go p.watch(f.once, own)
	})
	if p.listener == nil {
		close(p.watched)
	}
	came, failed, fatal := st.outcome(reports)
	if err == nil {
		err = fatal
	}
	if err == nil && !came {
		err = errors.New("it ended before it was executed")
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if p.listener != nil {
			p.listener.Close()
		}
		<-p.watched
		p.closeRoot()
		return nil, err
	}
	for _, e := range failed {
		for _, list := range [][]Hold{report.Layers, report.Limits} {
			for i := range list {
				if h := &list[i]; h.Name == e.step.part && h.Holds {
					h.Holds, h.Detail, h.Why = false, "", e.Error()
				}
			}
		}
	}
	p.canSeal()
	return p, nil
}

// outcome parses the reports of a stage: whether it reached its own report, which steps failed, and whether a failure
// ended the stage.
func (s *stage) outcome(reports []byte) (came bool, failed []stepError, fatal error) {
	for ; len(reports) >= reportSize; reports = reports[reportSize:] {
		errno := unix.Errno(-int64(binary.LittleEndian.Uint64(reports)))
		index := binary.LittleEndian.Uint64(reports[8:])
		switch {
		case index >= uint64(len(s.steps)):
			return came, failed, fmt.Errorf("the stage reports step %d of %d", index, len(s.steps))
		case errno == 0:
			came = true
			continue
		}
		f := stepError{s.steps[index], errno}
		if failed = append(failed, f); f.step.then == giveUp {
			return came, failed, f
		}
	}
	return came, failed, nil
}
