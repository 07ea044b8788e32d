package localsocket

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// A socket works in a folder whose path is longer than an address; only its user can access its file.
func TestSockets(t *testing.T) {
	for name, dir := range map[string]string{"short": t.TempDir(),
		"long": filepath.Join(t.TempDir(), strings.Repeat("x", 100), strings.Repeat("y", 100))} {
		t.Run(name, func(t *testing.T) {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			l, err := Listen(dir, "s")
			if err != nil {
				t.Fatal(err)
			}
			if st, err := os.Stat(filepath.Join(dir, "s")); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("got %v, %v, want mode 0600", st, err)
			}
			var all sync.WaitGroup
			hold := make(chan struct{})
			all.Go(func() {
				Serve(l, 1, &all, func(c *net.UnixConn) {
					_, _ = io.WriteString(c, "hello")
					<-hold
				})
			})
			read := func() string {
				c, err := Dial(t.Context(), dir, "s")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := SameUser(c); err != nil {
					t.Error(err)
				}
				b := make([]byte, 5)
				_, _ = io.ReadFull(c, b)
				return strings.Trim(string(b), "\x00")
			}
			if first, second := read(), read(); first != "hello" || second != "" {
				t.Errorf("got %q and, beyond the limit, %q", first, second)
			}
			close(hold)
			l.Close()
			all.Wait()
		})
	}
	if _, err := Dial(t.Context(), t.TempDir(), "none"); err == nil {
		t.Error("Dial: got no error where nobody listens")
	}
}
