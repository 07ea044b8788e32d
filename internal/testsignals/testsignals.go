// Package testsignals is for tests of programs that depend on the signals that the test's own parent ignores.
package testsignals

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// Default has programs that a test starts take every signal in its default way, also where
// whoever started the test ignores some, as a shell does behind an & and nohup does.
func Default(t testing.TB) {
	for s := syscall.Signal(1); s < 32; s++ {
		if signal.Ignored(s) && s != syscall.SIGPIPE {
			c := make(chan os.Signal, 1)
			signal.Notify(c, s) // what is handled here is the default in a child
			t.Cleanup(func() { signal.Ignore(s) })
		}
	}
}
