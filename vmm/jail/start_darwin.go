package jail

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// Process is a program in its jail.
type Process struct {
	Report Report
	Pid    int

	cmd  *exec.Cmd
	done chan struct{} // closed when it is reaped
}

// Gives is for Linux's jail.
func (p *Process) Gives() bool { return false }

// Kill ends it.
func (p *Process) Kill() { _ = p.cmd.Process.Kill() }

// Wait waits for its end, and for that of its messages.
func (p *Process) Wait() *os.ProcessState {
	<-p.done
	return p.cmd.ProcessState
}

// Start starts a program as the same user: macOS has nothing of what a jail is made of
// on Linux. Nor has it a signal for the death of a parent: a small shell holds the read
// end of a pipe whose write end is ours, and kills QEMU when it closes, however we went.
func Start(s Spec) (*Process, error) {
	p := &Process{done: make(chan struct{})}
	p.cmd = &exec.Cmd{Path: s.Program.Path, Args: append([]string{s.Program.Path}, s.Args...), Env: s.Env, Dir: "/", Stderr: s.Stderr, ExtraFiles: s.Files}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.Pid = p.cmd.Process.Pid
	p.Report.Layers = missing()
	r, w, err := os.Pipe()
	if err == nil {
		watch := exec.Command("/bin/sh", "-c", `read -r _; kill -9 "$1" 2>/dev/null`, "unitask-watch", strconv.Itoa(p.Pid))
		watch.Stdin = r
		watch.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		err = watch.Start()
		r.Close()
		if err == nil {
			go func() {
				_ = p.cmd.Wait()
				_ = watch.Process.Kill()
				_ = watch.Wait()
				w.Close()
				close(p.done)
			}()
			return p, nil
		}
		w.Close()
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	return nil, err
}

// missing are the layers that matter most, none of which holds.
func missing() (all []Hold) {
	for _, name := range []string{User, Filesystem, Network, Processes} {
		all = append(all, Hold{Name: name, Why: "it runs as the user's own account: macOS has no such layer"})
	}
	return all
}

// CanShare says that a process can't be held to a part of a processor's time.
func CanShare() error { return errors.New("macOS has no control groups") }

// OutOfMemory is false: there are no control groups here.
func (p *Process) OutOfMemory() bool { return false }

// Denied is "": there is no filter here.
func (p *Process) Denied() string { return "" }

// CanFilter says that this system can refuse system calls.
func CanFilter() bool { return false }

// Remedy is "": nothing gives macOS these layers.
func Remedy(Hold) string { return "" }

// Try says what holds a program: nothing.
func Try(Program, KVM) (r Report, err error) {
	r.Layers = missing()
	return r, nil
}

// CanGive is Linux's, too.
func CanGive() bool { return false }

// Confines is for Linux's jail.
func Confines(Program) bool { return false }

// Attack is for Linux's jail.
func Attack(Program, KVM, bool) ([]Attempt, Report, error) {
	return nil, Report{}, errors.New("macOS has no jail to be attacked")
}

// ErrNoProgram says that the files of a program can't be listed.
var ErrNoProgram = errors.New("not a program whose files can be listed")

// Examine finds the program; of what it consists does not matter here.
func Examine(program string, plugins, dirs []string) (p Program, err error) {
	p.Path, err = filepath.EvalSymlinks(program)
	return p, err
}
