package vmm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// nobody is the user and group QEMU runs as when we are root.
const nobody = 65534

// openBoot opens what the machine boots from and returns it under the paths
// that QEMU, which has no access to our folders, can open: its own descriptors.
func openBoot(b Boot, files []*os.File) (Boot, []*os.File, error) {
	open := func(path *string) error {
		if *path == "" {
			return nil
		}
		f, err := os.Open(*path)
		if err != nil {
			return err
		}
		files = append(files, f)
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			return fmt.Errorf("open %s: %w", *path, errNotRegular)
		}
		*path = fmt.Sprintf("/proc/self/fd/%d", len(files)+2)
		return nil
	}
	b.Disks = append([]string(nil), b.Disks...)
	err := errors.Join(open(&b.Kernel), open(&b.Initrd))
	for i := range b.Disks {
		err = errors.Join(err, open(&b.Disks[i]))
	}
	return b, files, err
}

// spawn starts the process with as little as the host allows, trying the
// strongest hold first, and describes what holds it.
//
// The process is killed when the thread that forked it ends (Pdeathsig), so
// that goroutine stays locked to its thread, and waits there. The thread is
// given no_new_privs and confined, which the child inherits; it is never
// unlocked, so the Go runtime ends it and nothing else runs on it.
//
// Between its fork and the setting of that signal the child would outlive us. So it is
// executed by a name that is good only as long as the thread lives.
func (m *Machine) spawn(noJail bool) (string, error) {
	levels := jails()
	if noJail {
		levels = levels[len(levels)-1:]
	}
	type started struct {
		jail string
		err  error
	}
	result := make(chan started, 1)
	go func() {
		runtime.LockOSThread() // for good: see above
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			result <- started{err: err}
			return
		}
		confined := ""
		if !noJail && confineThread(m.cmd.Path, m.cmd.ExtraFiles) {
			confined = ", landlock"
		}
		var err error
		refused := func() bool { return errors.Is(err, fs.ErrPermission) }
		names := []string{whileAlive(m.cmd.Path), m.cmd.Path} // the second where /proc hides us from the user that it would run as
		for _, level := range levels {
			for _, name := range names {
				m.cmd.SysProcAttr, m.cmd.Path = level.attr, name
				if err = m.cmd.Start(); err == nil {
					result <- started{jail: level.name + confined}
					_ = m.cmd.Wait()
					m.reaped(m.cmd.ProcessState)
					return
				}
				m.cmd = again(m.cmd)
				if !refused() && !errors.Is(err, fs.ErrNotExist) {
					break
				}
			}
			if !refused() && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EUSERS) {
				break
			}
		}
		result <- started{err: err}
	}()
	r := <-result
	return r.jail, r.err
}

// whileAlive is a name for an absolute path that is good only as long as the calling
// thread lives: it leads through the thread's folder in /proc.
func whileAlive(path string) string {
	return fmt.Sprintf("/proc/%d/task/%d/../../../..%s", os.Getpid(), unix.Gettid(), path)
}

// again returns a command like one whose Start failed, which can't be reused.
func again(c *exec.Cmd) *exec.Cmd {
	n := exec.Command(c.Path)
	n.Args, n.ExtraFiles, n.Env, n.Dir, n.Stderr = c.Args, c.ExtraFiles, c.Env, c.Dir, c.Stderr
	return n
}

type jail struct {
	name string
	attr *syscall.SysProcAttr
}

// jails returns what can hold the process, strongest first.
func jails() []jail {
	const spaces = syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | syscall.CLONE_NEWPID
	always := "no new privileges, seccomp"
	if os.Getuid() == 0 {
		cred := &syscall.Credential{Uid: nobody, Gid: nobody, Groups: kvmGroup()}
		return []jail{
			{"namespaces (net, ipc, uts, pid), user nobody, " + always,
				&syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: spaces, Credential: cred, Setpgid: true}},
			{"user nobody, " + always,
				&syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: cred, Setpgid: true}},
			{always, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}},
		}
	}
	id := func(host int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: host, HostID: host, Size: 1}}
	}
	return []jail{
		{"namespaces (user, net, ipc, uts, pid), " + always,
			&syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: spaces | syscall.CLONE_NEWUSER,
				UidMappings: id(os.Getuid()), GidMappings: id(os.Getgid()), Setpgid: true}},
		{always, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}},
	}
}

// kvmGroup is the group that may open /dev/kvm, for a QEMU that is not root.
func kvmGroup() []uint32 {
	st, err := os.Stat("/dev/kvm")
	if err != nil {
		return nil
	}
	return []uint32{st.Sys().(*syscall.Stat_t).Gid}
}

// limit bounds what the process may use. It is best effort: the jail is the
// wall, this keeps accidents small.
func limit(pid, memoryMB int) {
	set := func(resource int, n uint64) {
		_ = unix.Prlimit(pid, resource, &unix.Rlimit{Cur: n, Max: n}, nil)
	}
	set(unix.RLIMIT_CORE, 0)
	set(unix.RLIMIT_NOFILE, 256)
	set(unix.RLIMIT_FSIZE, 0)
	set(unix.RLIMIT_AS, uint64(memoryMB)<<20+addressSpaceExtra)
}

// addressSpaceExtra is what QEMU maps beside the guest's memory: itself, its
// libraries, thread stacks and a translation buffer.
const addressSpaceExtra = 4 << 30

// kvmUsable is nil when /dev/kvm can be opened.
func kvmUsable() error {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("/dev/kvm does not exist: enable virtualization in the firmware, or nested virtualization on the host, and load kvm_intel or kvm_amd")
	case errors.Is(err, fs.ErrPermission):
		return errors.New("/dev/kvm can't be opened: add yourself to its group (usually `sudo usermod -aG kvm $USER`, then log in again)")
	case err != nil:
		return errors.New(strings.TrimPrefix(err.Error(), "open "))
	}
	f.Close()
	return nil
}
