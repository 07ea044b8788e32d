// Package socketpair makes connected pairs of stream sockets that no process inherits by accident. It sets the flag
// that closes them at exec when it makes them, so no program that another goroutine starts meanwhile gets one.
package socketpair

import (
	"fmt"
	"os"
)

// New returns the two ends of a pair under one name.
func New(name string) (a, b *os.File, err error) {
	fds, err := pair()
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}
