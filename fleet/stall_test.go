package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask/internal/attack"
)

// A transfer in which NATS falls silent ends soon, as something to be tried again: an object of which chunks are
// missing (a leader went, or a tenant has seen to it), and one that nobody acknowledges.
func TestAttackStalled(t *testing.T) {
	t.Parallel()
	s, js := served(t)
	content := bytes.Repeat([]byte("content "), 64<<10)
	b, err := s.putBytes(t.Context(), content, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("get", func(t *testing.T) {
		t.Parallel()
		if got, err := s.read(t.Context(), b, 1<<20); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("before: %v, %d bytes", err, len(got))
		}
		stream, err := js.Stream(t.Context(), "OBJ_"+filesBucket+s.tenant)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("$O."+filesBucket+s.tenant+".C.>")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = s.read(t.Context(), b, 1<<20)
		got := fmt.Sprint(errors.Is(err, errStalled) && away(err) && time.Since(began) <= 2*stallTime)
		attack.Check(t, "an object whose content never comes is given up in time", "true", got)
	})
	t.Run("put", func(t *testing.T) {
		t.Parallel()
		mute := s
		mute.files = silentStore{s.files}
		began := time.Now()
		err := mute.send(t.Context(), "x", strings.NewReader("x"))
		got := fmt.Sprint(errors.Is(err, errStalled) && time.Since(began) <= 2*stallTime)
		attack.Check(t, "an object that nobody takes is given up in time", "true", got)
	})
}

// silentStore takes what is sent, and does not say so.
type silentStore struct{ jetstream.ObjectStore }

func (silentStore) Put(ctx context.Context, _ jetstream.ObjectMeta, r io.Reader) (*jetstream.ObjectInfo, error) {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, err
	}
	<-ctx.Done()
	return nil, nats.ErrTimeout
}
