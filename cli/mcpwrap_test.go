package cli

import (
	"encoding/json"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/internal/wrapped"
)

// The configuration that docs/agents.md shows has commands that start.
func TestWrapDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```json\n")
	text, _, _ = strings.Cut(text, "```\n")
	var shown struct {
		MCPServers map[string]struct {
			Command string
			Args    []string
		}
	}
	if err := json.Unmarshal([]byte(text), &shown); err != nil || len(shown.MCPServers) == 0 {
		t.Fatalf("%v %s", err, text)
	}
	for name, server := range shown.MCPServers {
		cmd, args, err := Command().Find(server.Args)
		if err != nil || cmd.Name() != "wrap" || server.Command != "unitask" {
			t.Fatalf("%s: %v %v", name, cmd, err)
		}
		if err := cmd.ParseFlags(args); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := wrapped.Translate(cmd.Flags().Args()); err != nil || cmd.ArgsLenAtDash() != 0 {
			t.Errorf("%s: %q %v", name, cmd.Flags().Args(), err)
		}
	}
}

// A server ends if it prints nothing for some time after the end of its input. Until then it may be silent.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Bool
		l := &linger{end: func() { ended.Store(true) }}
		in, out := &wrapInput{strings.NewReader("x"), l}, &wrapOutput{io.Discard, l}
		step := func(d time.Duration) {
			testwait.Pass(d)
			synctest.Wait()
		}
		buffer := make([]byte, 1)
		if _, err := in.Read(buffer); err != nil {
			t.Fatal(err)
		}
		step(time.Hour)
		if _, err := in.Read(buffer); err != io.EOF {
			t.Fatal(err)
		}
		step(lingerTime / 2)
		_, _ = out.Write(buffer)
		step(lingerTime / 2)
		if ended.Load() {
			t.Error("it has ended although it printed")
		}
		step(lingerTime)
		if !ended.Load() {
			t.Error("it has not ended")
		}
		l.stop()
	})
}
