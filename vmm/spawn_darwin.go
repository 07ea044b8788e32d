package vmm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// openBoot checks what the machine boots from; QEMU runs as the same user and
// opens the paths itself.
func openBoot(b Boot, files []*os.File) (Boot, []*os.File, error) {
	for _, path := range append([]string{b.Kernel, b.Initrd}, b.Disks...) {
		if path == "" {
			continue
		}
		if st, err := os.Stat(path); err != nil {
			return b, files, err
		} else if !st.Mode().IsRegular() {
			return b, files, fmt.Errorf("open %s: %w", path, errNotRegular)
		}
	}
	return b, files, nil
}

// spawn starts the process. macOS has no signal for the death of a parent: a
// small shell holds the read end of a pipe whose write end is ours, and kills
// QEMU when it closes, however we went.
func (m *Machine) spawn(bool) (string, error) {
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := m.cmd.Start(); err != nil {
		return "", err
	}
	r, w, err := os.Pipe()
	if err == nil {
		watch := exec.Command("/bin/sh", "-c", `read -r _; kill -9 "$1" 2>/dev/null`, "unitask-watch", strconv.Itoa(m.cmd.Process.Pid))
		watch.Stdin = r
		watch.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		err = watch.Start()
		r.Close()
		if err == nil {
			go func() {
				_ = m.cmd.Wait()
				_ = watch.Process.Kill()
				_ = watch.Wait()
				w.Close()
				m.reaped(m.cmd.ProcessState)
			}()
			return "the user's own account (macOS)", nil
		}
		w.Close()
	}
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
	return "", err
}

func limit(int, int) {}

func kvmUsable() error { return errors.New("KVM is Linux's") }
