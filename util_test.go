package unitask_test

import (
	"os"
	"strconv"
	"syscall"
)

func itoa(n int) string { return strconv.Itoa(n) }

func signalOf(state *os.ProcessState) int {
	return int(state.Sys().(syscall.WaitStatus).Signal())
}
