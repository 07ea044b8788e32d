package cli

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/unitask/unitask/debug"
	"github.com/unitask/unitask/image"
)

// gdbSocket is a socket for gdb to join a machine, in a folder that only its user can access.
type gdbSocket struct {
	dir, path, init string
	listener        *os.File
}

func newGDBSocket() (_ *gdbSocket, err error) {
	dir, err := os.MkdirTemp(os.Getenv("XDG_RUNTIME_DIR"), "unitask-gdb-")
	if err != nil {
		return nil, err
	}
	s := &gdbSocket{dir: dir, path: filepath.Join(dir, "gdb.sock"), init: filepath.Join(dir, "gdbinit")}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path, Net: "unix"})
	if err == nil {
		l.SetUnlinkOnClose(false)
		err = os.Chmod(s.path, 0o600)
		if err == nil {
			s.listener, err = l.File()
		}
		l.Close()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// dial serves the console's own stepping, if no gdb will join.
func (s *gdbSocket) dial() (net.Conn, error) { return net.Dial("unix", s.path) }

// write writes the gdbinit for an image's kernel, and its symbols if no ELF file contains them.
func (s *gdbSocket) write(im *image.Image, symbols *debug.Symbols) error {
	var text strings.Builder
	name := map[image.Arch]string{image.AMD64: "i386:x86-64", image.ARM64: "aarch64"}[im.Arch]
	fmt.Fprintf(&text, "set architecture %s\nset confirm off\n", name)
	switch {
	case symbols.Empty():
		fmt.Fprintf(&text, "# %s has no symbols.\n", im.Path(image.KernelFile))
	case symbols.File != "":
		fmt.Fprintf(&text, "file %s\n", symbols.File)
	default:
		file := filepath.Join(s.dir, "symbols")
		if err := symbols.WriteFile(file); err != nil {
			return err
		}
		fmt.Fprintf(&text, "# The names and addresses that the kernel has of itself. Debian's package of its version that\n"+
			"# ends in -dbg has lines and types too; it is used once it is installed.\nfile %s\n", file)
	}
	moves := map[image.Kernel]string{
		image.Linux: "The kernel has nokaslr on its command line: it is where its symbols are.",
		image.Nanos: "The kernel is where its symbols are until it has moved itself, soon after init_mmu.",
	}
	fmt.Fprintf(&text, "# %s\n", moves[im.Kernel])
	fmt.Fprintf(&text, "# The processor's breakpoints (hbreak) need no page to be mapped yet.\ntarget remote %s\n", s.path)
	return os.WriteFile(s.init, []byte(text.String()), 0o600)
}

func (s *gdbSocket) close() {
	if s.listener != nil {
		s.listener.Close()
	}
	_ = os.RemoveAll(s.dir)
}
