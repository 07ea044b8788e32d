package guest

import (
	"regexp"
	"strconv"
	"strings"
)

// What kernels print when memory is used up: Nanos (page_cache.c, pagetable.c) and
// Linux (mm/oom_kill.c, when nothing is left to kill).
var outOfMemory = []string{
	"page fill failed with (result:out of memory)",
	"failed to allocate memory",
	"map failed",
	"System is deadlocked on memory",
}

// nanosSignal is how Nanos reports the signal that ended its one process.
var nanosSignal = regexp.MustCompile(`(?m)^\*\*\* signal (\d{1,2}) received by tid`)

// LastWords reads how the code ended from the serial console of a machine whose
// agent could not say it any more; ok is false when the console does not tell.
// The text is the guest's: it can be believed as far as an exit code can.
func LastWords(console string) (end End, ok bool) {
	for _, words := range outOfMemory {
		if strings.Contains(console, words) {
			return End{Signal: 9, OOM: true}, true
		}
	}
	if m := nanosSignal.FindStringSubmatch(console); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil && n > 0 && n <= 64 {
			return End{Signal: n}, true
		}
	}
	return End{}, false
}
