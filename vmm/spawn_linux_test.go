package vmm

import (
	"errors"
	"io/fs"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// A program is executed by such a name while the thread lives, and not after it.
func TestWhileAlive(t *testing.T) {
	name := make(chan string)
	alive := make(chan error)
	for {
		go func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			path := whileAlive("/bin/true")
			name <- path
			alive <- exec.Command(path).Run()
		}()
		path := <-name
		if err := <-alive; err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if err := exec.Command(path).Run(); errors.Is(err, fs.ErrNotExist) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		// It was the process's first thread, which does not end: the next one does.
	}
}
