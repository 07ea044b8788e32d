// Package userdir returns the folders of this process: its user's home, the working folder, and what came with its
// program.
package userdir

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
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
// the program's folder (/usr/share/unitask for /usr/bin/unitask). It is "" if there is none.
func Share() string {
	dir := os.Getenv(ShareVariable)
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return ""
		}
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		dir = filepath.Join(filepath.Dir(filepath.Dir(self)), "share", "unitask")
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return ""
	}
	return dir
}
