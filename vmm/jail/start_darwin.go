package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program in its jail.
type Process struct {
	Report Report
	Pid    int

	cmd  *exec.Cmd
	done chan struct{} // closed when the process is reaped
}

// Gives returns false: only Linux's jail supports Spec.Given.
func (p *Process) Gives() bool { return false }

// Seal does nothing: only Linux's jail can seal.
func (p *Process) Seal() error { return nil }

// Kill kills the process.
func (p *Process) Kill() { _ = p.cmd.Process.Kill() }

// Wait waits until the process has ended and its messages are read.
func (p *Process) Wait() *os.ProcessState {
	<-p.done
	return p.cmd.ProcessState
}

// sandboxExec starts a program under a profile. Apple calls it deprecated, but ships it with every macOS, and offers no
// alternative for other people's programs.
const sandboxExec = "/usr/bin/sandbox-exec"

// tryTimeout bounds a test start of the program under a profile.
const tryTimeout = 20 * time.Second

// tried stores the outcomes of test starts in this process, by their arguments.
var tried sync.Map // string to func() error

// sandbox returns the profile of a program, or why there is none. The profile was written from documentation, so it is
// not used for a program that works without the profile and not under it.
func sandbox(p Program, accel string, reads []string, listens bool) (string, error) {
	var files []string
	for _, name := range reads {
		real, err := filepath.EvalSymlinks(name)
		if err != nil {
			return "", err
		}
		files = append(files, real)
	}
	try, _ := tried.LoadOrStore(fmt.Sprint(p.Path, accel, listens), sync.OnceValue(func() error {
		var err error
		for _, accel := range []string{accel, "tcg"} { // without HVF, the profile is not to blame
			// Like libvirt's probe of a QEMU: no machine, but the accelerator is opened.
			args := []string{p.Path, "-nodefaults", "-no-user-config", "-display", "none", "-M", "none", "-accel", accel,
				"-monitor", "stdio"}
			if err = quit(append([]string{sandboxExec, "-p", seatbelt(p.Path, nil, listens)}, args...)); err == nil ||
				quit(args) == nil {
				break
			}
		}
		if err != nil {
			err = fmt.Errorf("QEMU does not start under sandbox-exec: %w", err)
		}
		return err
	}))
	return seatbelt(p.Path, files, listens), try.(func() error)()
}

// quit starts a QEMU and makes it exit through its monitor.
func quit(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), tryTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Env, cmd.Dir = strings.NewReader("quit\n"), []string{"PATH=/usr/bin:/bin"}, "/"
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) > 0 {
		err = fmt.Errorf("%w: %.200q", err, out)
	}
	return err
}

// accelOf returns the accelerator that QEMU's arguments name.
func accelOf(args []string) string {
	if i := slices.Index(args, "-accel"); i >= 0 && i+1 < len(args) {
		name, _, _ := strings.Cut(args[i+1], ",")
		return name
	}
	return "tcg"
}

// Start starts a program as the same user, under macOS's sandbox: macOS has none of the other layers of Linux's jail.
// macOS also has no signal for a parent's death. So a small shell holds the read end of a pipe from this process, and
// kills QEMU when the pipe closes, for whatever reason.
func Start(s Spec) (*Process, error) {
	p := &Process{done: make(chan struct{})}
	command, why := []string{s.Program.Path}, errors.New("it was asked to be left out")
	if !s.Open {
		var profile string
		if profile, why = sandbox(s.Program, accelOf(s.Args), s.Reads, s.Listens); why == nil {
			command = []string{sandboxExec, "-p", profile, s.Program.Path} // sandbox-exec becomes the program
		}
	}
	p.cmd = &exec.Cmd{Path: command[0], Args: append(command, s.Args...), Env: s.Env, Dir: "/", Stderr: s.Stderr,
		WaitDelay: messageDelay, ExtraFiles: s.Files}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.Pid = p.cmd.Process.Pid
	p.Report.Layers = layers(why)
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

// layers returns the layers that matter most. why is nil if the sandbox is in force. Files and network only count as
// confined once somebody has attacked the profile on a Mac: a run may require these layers.
func layers(why error) []Hold {
	box := Hold{Name: Sandbox, Holds: true,
		Detail: "sandbox-exec; the profile follows documentation, and was never attacked on a Mac"}
	behind := "the sandbox denies it, by a profile that was never attacked on a Mac"
	if why != nil {
		box = Hold{Name: Sandbox, Why: why.Error()}
		behind = "there is no sandbox, and macOS has no such layer"
	}
	own := "it runs as the user's own account: macOS has no such layer"
	return []Hold{box, {Name: User, Why: own}, {Name: Filesystem, Why: behind}, {Name: Network, Why: behind},
		{Name: Processes, Why: own}}
}

// CanShare returns an error: a process can't be limited to a part of a processor's time.
func CanShare() error { return errors.New("macOS has no control groups") }

// OutOfMemory returns false: macOS has no control groups.
func (p *Process) OutOfMemory() bool { return false }

// Denied returns "": macOS has no system call filter.
func (p *Process) Denied() string { return "" }

// CanFilter reports whether this system can refuse system calls.
func CanFilter() bool { return false }

// Remedy returns "": nothing adds these layers to macOS.
func Remedy(Hold) string { return "" }

// Try reports which layers would confine a program.
func Try(p Program, _ KVM) (r Report, err error) {
	_, why := sandbox(p, "hvf", nil, false)
	r.Layers = layers(why)
	return r, nil
}

// CanGive returns false: only Linux's jail supports Spec.Given.
func CanGive() bool { return false }

// Confines returns false: only Linux's jail confines programs this way.
func Confines(Program) bool { return false }

// Attack returns an error: there is only Linux's jail to attack.
func Attack(Program, KVM, bool) ([]Attempt, Report, error) {
	return nil, Report{}, errors.New("macOS has no jail to be attacked")
}

// ErrNoProgram means that the files of a program can't be listed.
var ErrNoProgram = errors.New("not a program whose files can be listed")

// Examine resolves the program's path; its other files do not matter here.
func Examine(program string, plugins, dirs []string) (p Program, err error) {
	p.Path, err = filepath.EvalSymlinks(program)
	return p, err
}
