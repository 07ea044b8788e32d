package session

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/record"
)

// A guest sends its list of /out, and one of the files differently than requested. The finished step has no error. The
// missing file is reported, and requested again.
func TestAttackOut(t *testing.T) {
	list := fmt.Sprintf("f 644 3 1 %[1]s/a\x00f 644 3 1 %[1]s/b\x00f 644 3 1 %[1]s/c\x00", program.OutDir)
	for name, c := range map[string]struct {
		b          func(id uint32) string // the result for the second file
		kept, left string
		again      bool // it is requested a second time
	}{
		"whole": {func(id uint32) string { return guestFrame(contract.StepStdout, id, "bbb") + endFrame(id, 0) },
			"a b c", "", false},
		"killed": {func(id uint32) string { return guestFrame(contract.StepStdout, id, "bb") + endFrame(id, 9<<8) },
			"a", "ended by signal 9", true},
		"no process": {func(id uint32) string { return guestFrame(contract.StepFailed, id, "\x00\x00\x00\x0b") }, "a",
			"resource temporarily unavailable", true},
		"not readable": {func(id uint32) string { return endFrame(id, 13) }, "a c", "", false},
		"endless": {func(id uint32) string { return guestFrame(contract.StepStdout, id, strings.Repeat("b", 2000)) },
			"a", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			r, w := io.Pipe()
			defer r.Close()
			client := supervisor.New(w)
			asked := 0
			go func() {
				for {
					head := make([]byte, contract.StepHeader)
					if _, err := io.ReadFull(r, head); err != nil {
						return
					}
					body := make([]byte, binary.BigEndian.Uint32(head))
					if _, err := io.ReadFull(r, body); err != nil {
						return
					}
					if head[4] != contract.StepExec {
						continue
					}
					id := binary.BigEndian.Uint32(head[5:])
					answer := guestFrame(contract.StepStdout, id, "xxx") + endFrame(id, 0)
					switch {
					case bytes.Contains(body, []byte("list\x00")):
						answer = guestFrame(contract.StepStdout, id, list) + endFrame(id, 0)
					case bytes.Contains(body, []byte(program.OutDir+"/b\x00")):
						asked++
						answer = c.b(id)
					}
					if _, err := client.Write([]byte(answer)); err != nil {
						t.Errorf("%q: %v", answer, err)
					}
				}
			}()
			rec, err := record.Open(t.TempDir()).Create(time.Now(), "", "", "code.sh", nil, map[string]any{})
			if err != nil {
				t.Fatal(err)
			}
			o := newOutBox()
			take := func() (string, error, error) {
				to := rec.Artifacts(1000, nil)
				left, err := o.take(t.Context(), client, to, 1000)
				_ = to.Close(left == nil && err == nil)
				var names []string
				for _, a := range to.Kept {
					names = append(names, a.Path)
				}
				return strings.Join(names, " "), left, err
			}
			kept, left, err := take()
			attack.Check(t, "a session's machine sends a file of /out that is "+name, c.kept, kept)
			if (left == nil) != (c.left == "") || left != nil && !strings.Contains(left.Error(), c.left) ||
				err != nil && name != "endless" {
				t.Errorf("%q, left %v, %v", kept, left, err)
			}
			again := newOutBox()
			if again.restore(o.kept()); !maps.Equal(again.seen, o.seen) {
				t.Errorf("%v was kept as %v", o.seen, again.seen)
			}
			if take(); asked > 1 != c.again {
				t.Errorf("asked %d times", asked)
			}
		})
	}
}

func guestFrame(kind byte, id uint32, payload string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	return string(binary.BigEndian.AppendUint32(append(b, kind), id)) + payload
}

func endFrame(id, how uint32) string {
	return guestFrame(contract.StepEnd, id, string(binary.BigEndian.AppendUint32(nil, how)))
}
