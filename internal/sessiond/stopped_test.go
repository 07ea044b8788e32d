package sessiond

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
)

// A stopped holder delays nobody beyond their own limit, and still counts as a holder.
func TestAttackStoppedHolder(t *testing.T) {
	home := testdir.Private(t)
	dir, err := folder(home)
	if err != nil {
		t.Fatal(err)
	}
	l, err := listen(dir) // the kernel accepts for it
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	slow := errors.New("it does not answer")
	for _, op := range []string{OpList, OpFiles, OpNew} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, slow)
		begin := time.Now()
		_, err := Do(ctx, home, Request{Op: op, Session: "x"}, Streams{}, nil)
		cancel()
		attack.Check(t, "a stopped holder: "+op, "it does not answer, in time: true",
			fmt.Sprintf("%v, in time: %v", err, time.Since(begin) < patience/2))
	}
}

// A list of files fits in an answer.
func TestListed(t *testing.T) {
	for _, row := range []struct{ files, bytes, least, most int }{
		{0, 0, 0, 0}, {1, 4096, 1, 1}, {maxListed, 100, maxListed, maxListed}, {maxListed + 1, 1, maxListed, maxListed},
		{maxListed, 4096, 50, 100},
	} {
		files := make([]unitask.SessionFile, row.files)
		for i := range files {
			files[i].Path = strings.Repeat("\x01", row.bytes)
		}
		if n := len(listed(files)); n < row.least || n > row.most {
			t.Errorf("%+v: %d", row, n)
		}
	}
}
