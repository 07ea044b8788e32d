package jail

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// A program needs files to start, and none once it has: what it is to have then, it is given as
// descriptors. A filter for system calls can't be made narrower from outside, but the root can: it is
// a file system in memory, which the stage gives us a writable mount of, and a root that nobody may
// search has no path that leads anywhere. That costs a start two system calls, and holds whether there is a
// filter or not. A process without a root of its own has a filter that asks us about
// every file that it opens: some 70, which take 2 ms.

// asks reports whether the filter of a process on a level asks about the files that it opens.
func asks(s Spec, l level, f facts) bool {
	return l.flags&unix.CLONE_NEWNS == 0 && f.once && !s.Open && !s.Unfiltered && len(s.Program.Files) > 0
}

// openRoot opens the root that was mounted, on a mount of its own, which stays writable. It returns the step.
func openRoot(mount string, st *stage, call caller) int {
	return call(Sealed, "open the root", unix.SYS_OPEN_TREE, atCWD, st.string(mount),
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
}

// seal sends us the root that a step opens; -1 for none.
func seal(s Spec, l level, f facts, open, hello int, st *stage, layer func(name, detail, why string), call caller) {
	switch {
	case open >= 0:
		layer(Sealed, "its root has no paths once it has started", "")
		message, rights := fileMessage(st, hello)
		st.steps[open].into = rights
		call(Sealed, "send the root", unix.SYS_SENDMSG, uintptr(f.status), message, unix.MSG_NOSIGNAL)
	case f.asks:
		layer(Sealed, "its filter asks about each file that is opened", "")
	case len(s.Program.Files) == 0:
		layer(Sealed, "", s.Program.Path+" is "+ErrNoProgram.Error())
	default:
		layer(Sealed, "", "it has no root of its own, and no filter that asks")
	}
}

func isFolder(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.IsDir()
}

// canSeal enters into the report what the seal depends on and did not come to be.
func (p *Process) canSeal() {
	i := slices.IndexFunc(p.Report.Layers, func(h Hold) bool { return h.Name == Sealed && h.Holds })
	if i < 0 {
		return
	}
	h := &p.Report.Layers[i]
	switch {
	case p.asks && p.listener == nil:
		h.Holds, h.Detail, h.Why = false, "", "its filter has no listener"
	case !p.asks && len(p.Report.Lacks([]string{Filesystem})) > 0:
		h.Holds, h.Detail, h.Why = false, "", "it has no root of its own"
	case !p.asks && p.root == nil:
		h.Holds, h.Detail, h.Why = false, "", "its root did not come to us"
	}
}

// Seal has the process open nothing from now on: not even its own program's files. The caller sees to it that it needs
// nothing more. What it has open stays so, and it may be sent more. Seal may be called more than once, and by several
// goroutines; where the report says that it does not hold, it does nothing.
func (p *Process) Seal() error {
	p.sealing.Lock()
	defer p.sealing.Unlock()
	if p.sealed.Swap(true) || p.root == nil {
		return nil
	}
	// The mount is only named by that descriptor, and is changed by another.
	dir, err := unix.Openat(int(p.root.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open its root: %w", err)
	}
	defer unix.Close(dir)
	if err := unix.Fchmod(dir, 0); err != nil {
		return fmt.Errorf("close its root: %w", err)
	}
	return nil
}

// closeRoot is called when the process has ended: the kernel takes a while to dissolve the mount.
func (p *Process) closeRoot() {
	p.sealing.Lock()
	defer p.sealing.Unlock()
	p.root.Close() // nil will do
	p.root = nil
}

// answerOpen answers a call that opens a file: it is made as long as the process is not sealed. False for one
// that the filter would not let pass by itself either.
func (p *Process) answerOpen(n *notification, fd uintptr) bool {
	flags := n.argument(2)
	if n.call() != unix.SYS_OPENAT {
		flags = n.argument(1)
	}
	if flags&opensNew != 0 || p.gives && flags&(unix.O_ACCMODE|unix.O_CLOEXEC) == unix.O_RDWR {
		return false
	}
	if p.sealed.Load() {
		return n.refuse(fd, unix.EACCES)
	}
	return n.answer(fd, 0, unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
}
