package jail

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// A program needs files to start, but none later: from then on it gets descriptors. A system call filter can't be
// narrowed from outside, but the root can. The root is a file system in memory, and the stage sends this process a
// writable mount of it. If nobody may search the root, no path leads anywhere. This costs a start two system calls, and
// works with or without a filter. For a process without its own root, the filter asks this process about every opened
// file: some 70, which take 2 ms.

// asks reports whether the filter of a process on a level asks about the files that it opens.
func asks(s Spec, l level, f facts) bool {
	return l.flags&unix.CLONE_NEWNS == 0 && f.once && !s.Open && !s.Unfiltered && len(s.Program.Files) > 0
}

// openRoot opens the new root as a separate mount, which stays writable. It returns the step.
func openRoot(mount string, st *stage, call caller) int {
	return call(Sealed, "open the root", unix.SYS_OPEN_TREE, atCWD, st.string(mount),
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
}

// seal sends the root that a step opens to this process; -1 means none.
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

// canSeal updates the report if something that the seal depends on is missing.
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

// Seal prevents the process from opening anything from now on, even its own program's files. The caller must make sure
// that the process needs no more files. Open files stay open, and more can be sent. Seal may be called more than once,
// and by several goroutines. If the report says that the layer does not hold, Seal does nothing.
func (p *Process) Seal() error {
	p.sealing.Lock()
	defer p.sealing.Unlock()
	if p.sealed.Swap(true) || p.root == nil {
		return nil
	}
	// This descriptor only names the mount; a chmod needs another one.
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

// closeRoot is called when the process has ended: the kernel needs a while to dissolve the mount.
func (p *Process) closeRoot() {
	p.sealing.Lock()
	defer p.sealing.Unlock()
	p.root.Close() // nil will do
	p.root = nil
}

// answerOpen answers a call that opens a file: the call is allowed until the process is sealed. answerOpen returns
// false for a call that the filter would not allow by itself.
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
