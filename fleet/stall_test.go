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

// If NATS is silent during a transfer, the transfer soon ends with a temporary error. This covers an object with
// missing chunks (a leader stopped, or a tenant removed them), and one without an acknowledgement.
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

// silentStore accepts data without an acknowledgement.
type silentStore struct{ jetstream.ObjectStore }

func (silentStore) Put(ctx context.Context, _ jetstream.ObjectMeta, r io.Reader) (*jetstream.ObjectInfo, error) {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, err
	}
	<-ctx.Done()
	return nil, nats.ErrTimeout
}
