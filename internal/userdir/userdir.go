// Package userdir returns the folders of this process: its user's home, the working folder, and what came with its
// program.
package userdir

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"syscall"
)

// Home returns $HOME, or without it (a service, a cron job) the user's home in the host's user table. It may be
// relative, as $HOME may.
func Home() (string, error) {
	home, err := os.UserHomeDir()
	if err == nil {
		return home, nil
	}
	if of, e := user.Current(); e == nil && of.HomeDir != "" {
		return of.HomeDir, nil
	}
	return "", err
}

// Working returns the absolute working folder. If the folder was removed, the error says what to do.
func Working() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the working folder: %w: change to one that exists", err)
	}
	return dir, nil
}

// ShareVariable names the environment variable with the folder of files that were installed with the program.
const ShareVariable = "UNITASK_SHARE"

// Share returns the folder of files that were installed with the program: $UNITASK_SHARE, else share/unitask beside
// the program's folder (/usr/share/unitask for /usr/bin/unitask). It is "" if there is none. The result is absolute.
func Share() string {
	if dir := os.Getenv(ShareVariable); dir != "" {
		dir, err := filepath.Abs(dir)
		if st, e := os.Stat(dir); err != nil || e != nil || !st.IsDir() {
			return ""
		}
		return dir
	}
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	return shareOf(self)
}

// shareOf returns the folder of files that were installed with a program, or "". It must belong to the program's owner
// or to root. Anybody may put share/unitask beside a program in /tmp, with a QEMU that would be started.
func shareOf(program string) string {
	share := filepath.Join(filepath.Dir(filepath.Dir(program)), "share")
	dir := filepath.Join(share, "unitask")
	owner, err := ownerOf(program)
	if err != nil {
		return ""
	}
	for _, name := range []string{share, dir} {
		if of, err := ownerOf(name); err != nil || of != owner && of != 0 {
			return ""
		}
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return ""
	}
	return dir
}

// ownerOf returns the owner of a file, or of a link itself.
func ownerOf(name string) (uid uint32, err error) {
	st, err := os.Lstat(name)
	if err != nil {
		return 0, err
	}
	return st.Sys().(*syscall.Stat_t).Uid, nil
}
