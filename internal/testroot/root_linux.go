// Package testroot runs the programs of an image's parts on the host, in a root folder made of those parts. So the
// reference that tests compare a machine with has the same version on every host. A test binary that uses it calls
// Enter before anything else.
package testroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Variables of the test binary that becomes the program.
const (
	rootVar    = "UNITASK_TEST_ROOT"
	programVar = "UNITASK_TEST_PROGRAM"
)

// shared are the host's folders that programs in the root see.
var shared = []string{"/proc", "/dev", "/sys", "/tmp"}

// settings are the host's files that Make copies where the parts have none.
var settings = []string{"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf",
	"/etc/services",
	"/etc/localtime", "/etc/os-release", "/etc/ssl/openssl.cnf", "/etc/ssl/certs/ca-certificates.crt"}

// Enter makes this process the program that Command named, if it is one that Command started.
func Enter() {
	root, program := os.Getenv(rootVar), os.Getenv(programVar)
	if root == "" {
		return
	}
	err := enter(root, program)
	fmt.Fprintln(os.Stderr, "testroot:", err)
	os.Exit(125)
}

func enter(root, program string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, at := range shared {
		if err := syscall.Mount(at, filepath.Join(root, at), "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
	}
	if err := errors.Join(syscall.Chroot(root), os.Chdir(dir), os.Unsetenv(rootVar), os.Unsetenv(programVar)); err != nil {
		return err
	}
	return fmt.Errorf("start %s: %w", program, syscall.Exec(program, os.Args, os.Environ()))
}

// Into makes a command run in the root. The command's path names a program of the root, and its Env is set.
func Into(t testing.TB, cmd *exec.Cmd, root string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, rootVar+"="+root, programVar+"="+cmd.Path)
	cmd.Path, cmd.Err = self, nil
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if id := os.Getuid(); id != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	}
}

// Make returns a root folder with copies of the files of vendored parts.
func Make(t testing.TB, vendor string, parts []string) (root string) {
	t.Helper()
	root = t.TempDir()
	own := []string{"/usr/bin", "/usr/lib", "/usr/lib64", "/usr/sbin", "/var/tmp", "/run"}
	for _, dir := range append(own, shared...) {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := os.Symlink("usr/"+dir, filepath.Join(root, dir)); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range parts {
		if err := copyPart(filepath.Join(vendor, part, "root"), root); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	for _, name := range settings {
		if err := copySetting(name, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// copySetting copies a file of the host, if there is one.
func copySetting(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return nil
	}
	text, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}

func copyPart(from, root string) error {
	return filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below := strings.TrimPrefix(name, from)
		to := filepath.Join(root, below)
		switch {
		case e.IsDir():
			if st, err := os.Stat(to); err == nil && st.IsDir() { // one of the links, too
				return nil
			}
			return os.Mkdir(to, 0o755)
		case e.Type() == fs.ModeSymlink:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			if err := os.Symlink(target, to); !errors.Is(err, fs.ErrExist) {
				return err
			}
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, st.Mode().Perm())
	})
}
