package machine

import (
	"os"
	"strings"
)

// bootID returns an id that changes with each boot of the host.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}
