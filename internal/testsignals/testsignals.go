// Package testsignals is for tests of programs that depend on the signals that the test's own parent ignores.
package testsignals

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// Default gives programs that a test starts the default action for every signal. The test's own parent may ignore some,
// as a shell with & and nohup do.
func Default(t testing.TB) {
	for s := syscall.Signal(1); s < 32; s++ {
		if signal.Ignored(s) && s != syscall.SIGPIPE {
			c := make(chan os.Signal, 1)
			signal.Notify(c, s) // a signal handled here gets the default in a child
			t.Cleanup(func() { signal.Ignore(s) })
		}
	}
}
