// Package userhome says which folder is the home of the user of this process.
package userhome

import (
	"os"
	"os/user"
)

// Dir is $HOME, or where that is not set (a service, a cron job) what the host's table of users has. It may be relative,
// as $HOME may.
func Dir() (string, error) {
	home, err := os.UserHomeDir()
	if err == nil {
		return home, nil
	}
	if of, e := user.Current(); e == nil && of.HomeDir != "" {
		return of.HomeDir, nil
	}
	return "", err
}
