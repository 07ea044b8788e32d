// Package userdir returns the folders of this process: its user's home, and the working folder.
package userdir

import (
	"fmt"
	"os"
	"os/user"
)

// Home is $HOME, or where that is not set (a service, a cron job) what the host's table of users has. It may be
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

// Working returns the working folder, absolute. The error, that it was removed, says what to do.
func Working() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the working folder: %w: change to one that exists", err)
	}
	return dir, nil
}
