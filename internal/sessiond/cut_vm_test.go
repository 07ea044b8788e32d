package sessiond

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/policy"
)

// descriptors returns how many descriptors this process, which is the daemon, has open.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}

// largeSteps runs code that is too large for a request and follows it. More code than the language allows is refused.
func largeSteps(t *testing.T, home string) {
	t.Helper()
	run := func(code string) (string, error) {
		var out bytes.Buffer
		req := Request{Op: OpRun, Session: "build", Step: &Step{Code: code}}
		_, err := Do(t.Context(), home, req, Streams{Stdout: &out, Stderr: &out}, nil)
		return out.String(), err
	}
	large := strings.Repeat("# "+strings.Repeat("\x01", 97)+"\n", maxInline/50)
	if out, err := run(large[:1<<20-100] + "\necho read"); out != "read\n" || err != nil {
		t.Errorf("%q %v", out, err)
	}
	var field *policy.FieldError
	_, err := run(large + strings.Repeat("#", 1<<20))
	if !errors.As(err, &field) || field.Field != "code" || !strings.Contains(err.Error(), "at most 1048576 bytes") {
		t.Errorf("%v", err)
	}
}

// A client that disconnects while it sends has written nothing, and holds nothing.
func TestCut(t *testing.T) {
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	home := testhome.New(t, base)
	serve(t, home, time.Hour)
	reach(t, home).Close()
	ask := func(req Request, in string) (Answer, string) {
		t.Helper()
		var out bytes.Buffer
		answer, err := Do(t.Context(), home, req, Streams{Stdin: strings.NewReader(in), Stdout: &out, Stderr: &out}, nil)
		if err != nil {
			t.Fatalf("%s: %v", req.Op, err)
		}
		return answer, out.String()
	}
	began, _ := ask(Request{Op: OpNew, New: &New{Name: "build", Request: unitask.Request{Image: "shell"}}}, "")
	if len(began.Sessions) != 1 {
		t.Fatalf("%+v", began)
	}
	defer ask(Request{Op: OpEnd, Session: "build"}, "")
	ask(Request{Op: OpWrite, Session: "build", Path: "old", Mode: 0o644}, "as it was")
	files := func() string {
		_, out := ask(Request{Op: OpExec, Session: "build",
			Command: &Command{Args: []string{"sh", "-c",
				"if [ -e whole ]; then stat -c 'whole? %s' whole; rm whole; fi; find . | sort; cat old; " +
					"ps -e -o args= | grep -c '[t]ar -x'"}}}, "")
		return out
	}
	largeSteps(t, home)
	before, held := files(), descriptors(t)

	folder := archiveCut(t)
	for range 5 {
		for _, row := range []struct {
			op, path string
			text     []byte
		}{
			{OpWrite, "old", bytes.Repeat([]byte("new"), maxPiece)},
			{OpWrite, "new", bytes.Repeat([]byte("new"), maxPiece)},
			{OpUnpack, "folder", folder.Bytes()},
			{OpRunBy, "", bytes.Repeat([]byte(">ran\n#"), maxPiece)},
			{OpWrite, "whole", bytes.Repeat([]byte("new"), maxPiece)}, // it ends this, and does not wait
		} {
			w := reach(t, home)
			if err := w.sendJSON(kindRequest, Request{Op: row.op, Session: "build", Path: row.path, Mode: 0o644,
				Step: &Step{}}); err != nil {
				t.Fatal(err)
			}
			for piece := range slices.Chunk(row.text, maxPiece) {
				if err := w.send(kindInput, piece); err != nil {
					t.Fatal(err)
				}
				if _, _, err := w.receive(string(rune(kindTaken))); err != nil {
					t.Fatalf("%s: %v", row.op, err)
				}
			}
			if row.path == "whole" {
				if err := w.send(kindInput, nil); err != nil {
					t.Fatal(err)
				}
			}
			w.Close()
		}
	}
	// Work in progress ends after the client, and not before.
	after, open := "", 0
	if !testwait.Holds(time.Minute, func() bool {
		if after, open = files(), descriptors(t); after == before && open == held {
			return true
		}
		if strings.Contains(after, "whole? ") && !strings.Contains(after, fmt.Sprintf("whole? %d\n", 3*maxPiece)) {
			t.Errorf("a part was written:\n%s", after)
		}
		return false
	}) {
		t.Errorf("before:\n%s\nafter:\n%s\n%d descriptors were open, and now %d", before, after, held, open)
	}
}

// archiveCut returns an archive that is truncated in its file.
func archiveCut(t *testing.T) bytes.Buffer {
	t.Helper()
	var folder bytes.Buffer
	tw := tar.NewWriter(&folder)
	if err := tw.WriteHeader(&tar.Header{Name: "folder/large", Mode: 0o644, Size: 10 * maxPiece}); err != nil {
		t.Fatal(err)
	}
	folder.Write(make([]byte, 3*maxPiece))
	return folder
}
