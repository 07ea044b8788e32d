package session

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/paused"
)

// answering is a session whose program answers each command with its output, and then ends it with 0.
func answering(t *testing.T, prints func(command []byte) string) *Session {
	told, to := io.Pipe()
	s := without(t, to)
	say := func(kind byte, id uint32, payload string) {
		frame := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
		frame = binary.BigEndian.AppendUint32(append(frame, kind), id)
		_, _ = s.client.Write(append(frame, payload...))
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			head := make([]byte, contract.StepHeader)
			if _, err := io.ReadFull(told, head); err != nil {
				return
			}
			payload := make([]byte, binary.BigEndian.Uint32(head))
			if _, err := io.ReadFull(told, payload); err != nil {
				return
			}
			if id := binary.BigEndian.Uint32(head[5:]); head[4] == contract.StepExec {
				say(contract.StepStdout, id, prints(payload))
				say(contract.StepEnd, id, "\x00\x00\x00\x00")
			}
		}
	}()
	t.Cleanup(func() { to.Close(); <-over })
	return s
}

// Files are kept beside a pause only if no call came since they were packed, or during it.
func TestKeptFilesAreOfThePause(t *testing.T) {
	for name, row := range map[string]struct {
		during, behind func(*Session)
		kept           bool
	}{
		"nothing was called":     {kept: true},
		"a call while it packed": {during: called},
		"a call behind that":     {behind: called},
	} {
		var s *Session
		s = answering(t, func(command []byte) string {
			if !bytes.Contains(command, []byte("/bin/tar\x00")) {
				return "f 644 1 0 /w/a\x00"
			}
			if row.during != nil {
				row.during(s)
			}
			return "the tar"
		})
		s.dir = "/w"
		folder := paused.Open(s.manager.Engine.Home).Folder(s.ID)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		files := s.packFiles(t.Context())
		if files == nil {
			t.Fatalf("%s: nothing was packed", name)
		}
		if row.behind != nil {
			row.behind(s)
		}
		_, calls := s.usage.now()
		s.keepFiles(files, calls)
		files.Close()
		text, err := os.ReadFile(filepath.Join(folder, paused.FilesName))
		if row.kept && string(text) != "the tar" || !row.kept && !os.IsNotExist(err) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

// called is a finished call from another client.
func called(s *Session) { s.usage.begin(true)() }
