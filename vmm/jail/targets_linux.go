package jail

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// targets are the resources on the host that attacks aim at, all of them this process's.
type targets struct {
	dir      string         // a folder with all permissions for everybody
	pid      int            // of this process
	memory   []byte         // of this process
	port     int            // of a TCP socket that listens, and of a UDP socket
	abstract string         // of a Unix socket that listens; a path socket is in dir
	sockets  []syscall.Conn // all of these
	core     unix.Rlimit    // of this process
	host     string         // host name
	close    []func()
}

func newTargets() (t *targets, err error) {
	t = &targets{pid: os.Getpid(), memory: make([]byte, 8)}
	defer func() {
		if err != nil {
			t.end()
		}
	}()
	if t.dir, err = os.MkdirTemp("", "unitask-attack-"); err != nil {
		return t, err
	}
	t.close = append(t.close, func() { os.RemoveAll(t.dir); os.Remove(t.dir + "-file") })
	if err = os.Chmod(t.dir, 0o777); err != nil {
		return t, err
	}
	t.abstract = "\x00" + filepath.Base(t.dir)
	for _, l := range []struct{ network, address string }{{"unix", filepath.Join(t.dir, targetSocket)},
		{"unix", "@" + t.abstract[1:]}, {"tcp", "127.0.0.1:0"}} {
		listener, listenErr := net.Listen(l.network, l.address)
		if listenErr != nil {
			return t, listenErr
		}
		t.close = append(t.close, func() { listener.Close() })
		t.sockets = append(t.sockets, listener.(syscall.Conn))
		if tcp, ok := listener.Addr().(*net.TCPAddr); ok {
			t.port = tcp.Port
		}
	}
	packets, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: t.port})
	if err != nil {
		return t, err
	}
	t.close = append(t.close, func() { packets.Close() })
	t.sockets = append(t.sockets, packets)
	if err = unix.Getrlimit(unix.RLIMIT_CORE, &t.core); err != nil {
		return t, err
	}
	if t.host, err = os.Hostname(); err != nil {
		return t, err
	}
	return t, errors.Join(t.files(), os.Chmod(filepath.Join(t.dir, targetSocket), 0o777))
}

// files restores the file that everybody may use, and the disk, after a successful attempt.
func (t *targets) files() error {
	for name, mode := range map[string]os.FileMode{targetFile: 0o666, targetDisk: 0o644} {
		path := filepath.Join(t.dir, name)
		if err := errors.Join(os.WriteFile(path, []byte(targetText), mode), os.Chmod(path, mode)); err != nil {
			return err
		}
	}
	return nil
}

// touched names a target that was changed, whatever the attempt reported. It returns "" if there is none.
func (t *targets) touched() string {
	for _, name := range []string{targetFile, targetDisk} {
		if text, err := os.ReadFile(filepath.Join(t.dir, name)); err != nil || string(text) != targetText {
			return "a file of the host was changed"
		}
	}
	if disk, err := os.Stat(filepath.Join(t.dir, targetDisk)); err != nil || disk.Mode() != 0o644 {
		return "the disk's permissions were changed"
	}
	entries, err := os.ReadDir(t.dir)
	if _, statErr := os.Lstat(t.dir + "-file"); err != nil || len(entries) != 3 || statErr == nil {
		return "a folder of the host was changed"
	}
	for _, s := range t.sockets {
		if reached(s) {
			return "a socket of the host was reached"
		}
	}
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil || core != t.core {
		return "a limit of the host's process was changed"
	}
	if host, err := os.Hostname(); err != nil || host != t.host {
		return "the host's name was changed"
	}
	return ""
}

// reached accepts a connection or a datagram from a socket, if there is one.
func reached(s syscall.Conn) (yes bool) {
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		if conn, _, err := unix.Accept4(int(fd), unix.SOCK_CLOEXEC); err == nil {
			unix.Close(conn)
			yes = true
		} else if _, _, err := unix.Recvfrom(int(fd), make([]byte, 16), unix.MSG_DONTWAIT); err == nil {
			yes = true
		}
	})
	return yes || err != nil
}

func (t *targets) end() {
	for i := len(t.close) - 1; i >= 0; i-- {
		t.close[i]()
	}
}

func unixAddress(path string) []byte {
	return append(binary.NativeEndian.AppendUint16(nil, unix.AF_UNIX), path...)
}

// inetAddress returns the address 127.0.0.1 with a port.
func inetAddress(port int) []byte {
	return append(binary.NativeEndian.AppendUint16(nil, unix.AF_INET), byte(port>>8), byte(port), 127, 0, 0, 1, 0, 0, 0, 0,
		0, 0, 0, 0)
}
