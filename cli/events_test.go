package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testdir"
)

// Later events are printed as they come, and the end is not an error.
func TestEventsFollow(t *testing.T) {
	home := testdir.Private(t)
	log := audit.In(home)
	add := func(n int) {
		t.Helper()
		if err := log.Append(audit.Entry{Time: time.Now(), Kind: audit.RunStarted, Run: fmt.Sprint("run", n)}); err != nil {
			t.Fatal(err)
		}
	}
	add(1)
	in, out := io.Pipe()
	a := &app{std: Streams{Stdout: out, Stderr: io.Discard}}
	a.ui = newUI(a.std)
	root := a.root()
	a.home = home
	root.SetArgs([]string{"events", "--follow"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	lines := bufio.NewScanner(in)
	for n := 1; n <= 4; n++ {
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
		var event audit.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil || event.ID != fmt.Sprint(n) ||
			event.Subject != fmt.Sprint("run", n) {
			t.Fatalf("%s %v, expected event %d", lines.Bytes(), err, n)
		}
		add(n + 1)
	}
	cancel()
	go func() { _, _ = io.Copy(io.Discard, in) }()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
