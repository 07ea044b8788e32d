package machine

import "golang.org/x/sys/unix"

// bootID changes when the host is booted.
func bootID() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "unknown"
	}
	return id
}
