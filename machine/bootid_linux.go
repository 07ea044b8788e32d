package machine

import (
	"os"
	"strings"
)

// bootID changes when the host is booted.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}
