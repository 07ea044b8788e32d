package guest

import (
	"cmp"
	"regexp"
	"slices"
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
// agent could no longer report it; ok is false if the console does not say.
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

// lackWords are what the guest says when the code asks for something that its kernel has
// not (nanos/nanos.c).
var lackWords = regexp.MustCompile(`^unitask lacks: ([A-Za-z0-9 -]{1,60})$`)

// lacked is what the guest's sources say that code asks for. Code can write to the console itself, and what it asked
// for is told in our own words: other words are not.
var lacked = []string{"named pipes", "child processes", "names that are not UTF-8 text", "other programs",
	"datagrams of this length", "a process that has imported nothing yet"}

// Lacks reads from a line of the console what the code has asked for and can't have; "something" if it is none of
// lacked.
func Lacks(line string) (what string, ok bool) {
	m := lackWords.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
	switch {
	case m == nil:
		return "", false
	case !slices.Contains(lacked, m[1]):
		return "something", true
	}
	return m[1], true
}

// deathWords begin what kernels print when they give up: Nanos (runtime.h, interrupt.c)
// and Linux (kernel/panic.c).
var deathWords = regexp.MustCompile(
	`assertion .+ failed at |no fault handler|Kernel panic - not syncing: |frame [0-9a-f]+ already full`)

// Dies reports whether a line of the console is a kernel's that gives up. What comes next
// is the state of its processor, and then nothing: it may take minutes to end its
// machine, or never do.
func Dies(line string) bool { return deathWords.MatchString(line) }

// The parts of a line of a kernel's that gives up which help nobody.
var (
	deathStamp = regexp.MustCompile(`^\[[^\]]*\] ?`)
	deathPlace = regexp.MustCompile(`failed at (?:\S*/src/)?(\S+) \(IP [^)]*\)`)
	// Of a fault Nanos says what it was and where in lines of their own.
	faultKind  = regexp.MustCompile(`(?m)^lastvector: \S+ \(([^)]+)\)`)
	faultPlace = regexp.MustCompile(`(?m)^ *rip: \S+\s+\((\w+) `)
)

// DeathCause says in one line why a kernel gave up, from what it printed then.
func DeathCause(console string) string {
	var cause string
	for line := range strings.Lines(console) {
		if Dies(line) {
			cause = deathPlace.ReplaceAllString(deathStamp.ReplaceAllString(strings.TrimSpace(line), ""), "failed at $1")
			break
		}
	}
	if m := faultKind.FindStringSubmatch(console); m != nil && !strings.HasPrefix(cause, "assertion") {
		cause = strings.ToLower(m[1]) + " in the kernel"
		if at := faultPlace.FindStringSubmatch(console); at != nil {
			cause += ", in " + at[1]
		}
	}
	return cmp.Or(cause, "it does not say why")
}
