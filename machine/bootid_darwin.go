package machine

import "golang.org/x/sys/unix"

// bootID returns an id that changes with each boot of the host.
func bootID() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "unknown"
	}
	return id
}
