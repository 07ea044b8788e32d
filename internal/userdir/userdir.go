// Package userdir returns the folders of this process: its user's home, and the working folder.
package userdir

import (
	"fmt"
	"os"
	"os/user"
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
