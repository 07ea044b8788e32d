package guest

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Messages of kernels that run out of memory: Nanos (page_cache.c, pagetable.c) and Linux (mm/oom_kill.c, when
// nothing is left to kill).
var outOfMemory = []string{
	"page fill failed with (result:out of memory)",
	"failed to allocate memory",
	"map failed",
	"System is deadlocked on memory",
}

// nanosSignal matches Nanos's report of the signal that ended its one process.
var nanosSignal = regexp.MustCompile(`(?m)^\*\*\* signal (\d{1,2}) received by tid`)

// LastWords finds out how the code ended from the serial console, if the machine's agent could no longer report it. ok
// is false if the console does not show it. The guest writes the text: trust it as much as an exit code.
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

// lackWords matches the guest's message when the code asks for something that its kernel lacks (nanos/nanos.c).
var lackWords = regexp.MustCompile(`^unitask lacks: ([A-Za-z0-9 -]{1,60})$`)

// lacked lists the names that the guest's sources use in that message. Code can write to the console itself, and
// the name is quoted in unitask's own messages: any other text is ignored.
var lacked = []string{"named pipes", "child processes", "names that are not UTF-8 text", "other programs",
	"datagrams of this length", "a process that has imported nothing yet"}

// Lacks returns what the code asked for and its kernel lacks, from a line of the console; "something" if it is
// not in lacked.
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

// deathWords match the first message of a kernel that panics: Nanos (runtime.h, interrupt.c) and Linux
// (kernel/panic.c).
var deathWords = regexp.MustCompile(
	`assertion .+ failed at |no fault handler|Kernel panic - not syncing: |frame [0-9a-f]+ already full`)

// Dies reports whether a line of the console is the beginning of a kernel's panic. Then the kernel prints the state of
// its processor, and nothing more: it may take minutes to end its machine, or never do it.
func Dies(line string) bool { return deathWords.MatchString(line) }

// The useless parts of the lines of a panic.
var (
	deathStamp = regexp.MustCompile(`^\[[^\]]*\] ?`)
	deathPlace = regexp.MustCompile(`failed at (?:\S*/src/)?(\S+) \(IP [^)]*\)`)
	// Nanos describes a fault and its place in separate lines.
	faultKind  = regexp.MustCompile(`(?m)^lastvector: \S+ \(([^)]+)\)`)
	faultPlace = regexp.MustCompile(`(?m)^ *rip: \S+\s+\((\w+) `)
)

// DeathCause returns in one line why a kernel panicked, from its output.
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
