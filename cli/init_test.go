package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// Ctrl-C ends init at a question, and no file is written.
func TestInitInterrupted(t *testing.T) {
	t.Chdir(t.TempDir())
	in, never := io.Pipe()
	defer never.Close()
	std := Streams{Stdin: in, Stdout: io.Discard, Stderr: io.Discard}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	a := &app{std: std, ui: newUI(std)}
	go func() { ended <- a.init(ctx) }()
	if _, err := never.Write([]byte("a.example\n")); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-ended; !errors.Is(err, errStopped) || a.code != unitask.ExitCancelled {
		t.Errorf("%v, exit code %d", err, a.code)
	}
	if _, err := os.Lstat(policy.CeilingFile); err == nil {
		t.Error("a file was written")
	}
}
