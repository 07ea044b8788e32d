package e2b

import (
	"bytes"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/pykernel"
)

// bounded is what a check expects of memory.
func bounded(ok bool) string {
	if ok {
		return "bounded"
	}
	return "not bounded"
}

// Output for clients that do not read takes bounded memory.
func TestAttackUnreadOutput(t *testing.T) {
	var o output
	quiet := o.subscribe()
	write := o.stream(outStdout)
	for range 1 << 20 { // a byte at a time
		_, _ = write.Write([]byte("x"))
	}
	attack.Check(t, "output of a million bytes, one at a time, that nobody reads", "bounded",
		bounded(len(quiet.list) < 1000))
	for range 40 {
		_, _ = write.Write(make([]byte, 1<<20))
	}
	_, lost, _ := quiet.take()
	attack.Check(t, "output of 40 MiB that nobody reads", "bounded", bounded(lost && quiet.size == 0))
	for range maxReaders {
		o.subscribe()
	}
	attack.Check(t, "clients that follow one process", "bounded",
		bounded(o.subscribe() == nil && len(o.readers) == maxReaders))
}

// stuck is a client that reads nothing until release.
type stuck struct {
	http.ResponseWriter
	release chan struct{}
}

func (s stuck) Write(p []byte) (int, error) {
	<-s.release
	return len(p), nil
}

// A client that reads no result of its code delays nobody, and is cut off.
func TestAttackUnreadResults(t *testing.T) {
	w := stuck{httptest.NewRecorder(), make(chan struct{})}
	l := newLines(w)
	for range 2 * pykernel.MaxQueued / (64 << 10) { // none of these waits
		l.message(map[string]any{"type": "stdout", "text": strings.Repeat("x", 64<<10)})
	}
	attack.Check(t, "results that a client leaves unread", "bounded", bounded(l.size <= pykernel.MaxQueued+(65<<10)))
	close(w.release)
	defer func() {
		attack.Check(t, "the client that left them unread", "cut off", map[bool]string{true: "cut off",
			false: "served"}[recover() == http.ErrAbortHandler])
	}()
	l.close()
}

// A snapshot that could not be made after all starts nothing.
func TestFailedSnapshot(t *testing.T) {
	one := &snapshot{}
	if made, err := one.start(t.Context()); made != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v %v", made, err)
	}
}

// Pieces of one stream are joined, and those of several keep their order.
func TestOutputOrder(t *testing.T) {
	var o output
	r := o.subscribe()
	for _, piece := range []string{"a", "b", "!c", "d"} {
		where := outStdout
		if piece[0] == '!' {
			where = outStderr
		}
		_, _ = o.stream(where).Write([]byte(piece))
	}
	var got bytes.Buffer
	list, _, _ := r.take()
	for _, e := range list {
		got.WriteString("<" + string(e.Stdout) + "|" + string(e.Stderr) + ">")
	}
	if want := "<ab|><|!c><d|>"; got.String() != want {
		t.Errorf("got %s, want %s", got.String(), want)
	}
}
