package unitask_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strconv"
	"syscall"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

func signalOf(state *os.ProcessState) int {
	return int(state.Sys().(syscall.WaitStatus).Signal())
}

func sha256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// writerFunc is a writer that consists of one function.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// takeTime waits for a time, as a slow person or server does, or until nobody waits any more.
func takeTime(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
