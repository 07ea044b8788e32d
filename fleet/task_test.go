package fleet

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
)

// counting counts the objects that are read at once.
type counting struct {
	jetstream.ObjectStore
	now, most *atomic.Int32
}

func (c counting) Get(ctx context.Context, name string, opts ...jetstream.GetObjectOpt) (jetstream.ObjectResult, error) {
	r, err := c.ObjectStore.Get(ctx, name, opts...)
	if err != nil {
		return nil, err
	}
	for now := c.now.Add(1); ; {
		was := c.most.Load()
		if now <= was || c.most.CompareAndSwap(was, now) {
			return counted{r, c.now}, nil
		}
	}
}

type counted struct {
	jetstream.ObjectResult
	now *atomic.Int32
}

func (c counted) Close() error {
	c.now.Add(-1)
	return c.ObjectResult.Close()
}

// However many large tasks a tenant has in the queue, a worker has one of them after the other in its memory, until there is
// room for their runs. Small ones wait for none of them.
func TestAttackLargeTasks(t *testing.T) {
	t.Parallel()
	s, _ := served(t)
	files := counting{s.files, new(atomic.Int32), new(atomic.Int32)}
	s.files = files
	l := &lane{tenantStore: s, large: make(chan struct{}, 1)}
	put := func(size int) blob {
		b, err := task{Request: unitask.Request{Code: strings.Repeat("x", size)}}.put(t.Context(), s)
		if err != nil || b.Inline != nil {
			t.Fatal(err)
		}
		return b
	}
	large, small := put(4<<20), put(largeTask/2)
	var reading sync.WaitGroup
	for range 8 {
		reading.Go(func() {
			if got, err := l.readTask(t.Context(), large); err != nil || len(got.Request.Code) != 4<<20 {
				t.Errorf("%v, %d bytes", err, len(got.Request.Code))
			}
		})
	}
	reading.Wait()
	if most := files.most.Load(); most != 1 {
		t.Errorf("%d large tasks were read at once", most)
	}
	l.large <- struct{}{} // while one is read
	if _, err := l.readTask(t.Context(), small); err != nil {
		t.Error(err)
	}
	over, stop := context.WithCancel(t.Context())
	stop()
	if _, err := l.readTask(over, large); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
