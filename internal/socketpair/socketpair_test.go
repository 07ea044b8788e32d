package socketpair_test

import (
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/socketpair"
)

func TestNew(t *testing.T) {
	a, b, err := socketpair.New("pair")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if text, err := io.ReadAll(b); err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}
	b.Close()
}

// Programs are started while pairs are made: none of them inherits a socket.
func TestAttackInheritedSocket(t *testing.T) {
	const makers, children = 2, 150
	done := make(chan struct{})
	var made sync.WaitGroup
	for range makers {
		made.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				a, b, err := socketpair.New("pair")
				if err != nil {
					t.Error(err)
					return
				}
				a.Close()
				b.Close()
			}
		})
	}
	inherited := "nothing"
	for range children {
		out, err := exec.Command("/bin/ls", "-l", "/dev/fd/").CombinedOutput()
		if err != nil && len(out) == 0 {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "socket:") || strings.HasPrefix(line, "s") {
				inherited = strings.TrimSpace(line)
			}
		}
	}
	close(done)
	made.Wait()
	attack.Check(t, "a program started while a machine's sockets are made inherits", "nothing", inherited)
}
