package jail

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// callName returns a system call's name.
func callName(nr int32) string {
	for line := range strings.Lines(callNames) {
		number, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if number == strconv.Itoa(int(nr)) {
			return name
		}
	}
	return fmt.Sprintf("system call %d", nr)
}

// Listed reports whether the filter knows a system call: not every use of it kills the machine.
func Listed(name string) bool {
	for _, nr := range listed() {
		if callName(int32(nr)) == name {
			return true
		}
	}
	return false
}

func listed() (all []uintptr) {
	all = slices.Concat(calls, moreCalls, listening, executing)
	for _, r := range refused {
		all = append(all, r.call)
	}
	for _, c := range conditionals(Spec{KVM: KVMOpened}) {
		all = append(all, c.call)
	}
	return append(all, unix.SYS_EXECVE)
}
