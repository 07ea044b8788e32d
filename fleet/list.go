package fleet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A tenant's account may hold any number of keys and bytes, whatever limits its streams were created with. So lists are
// read page by page, up to their limits.

// bound limits how much of a bucket is read.
type bound struct {
	keys  int
	bytes int // of keys and values
	each  int // of a value; longer ones are left out
}

// Limits of lists.
var (
	ofWorkers  = bound{keys: 1000, bytes: 2 << 20, each: 16 << 10}
	ofRuns     = bound{keys: 30_000, bytes: 4 << 20} // some 10 000 runs, each of which has changed twice
	ofSessions = bound{keys: maxSessions, bytes: 32 << 20, each: maxSessionEntry}
)

const (
	maxInfoValues = 1000             // JSON values of a worker's info
	listPage      = 16               // messages in memory at once
	listTime      = 10 * time.Second // for a whole list
)

// keysLate begins a list at the keys that were written last, and reads no values.
const keysLate = true

// list passes a bucket's entries to a function, without deleted ones, up to the limit.
func list(ctx context.Context, js jetstream.JetStream, bucket string, most bound, late bool,
	each func(key string, value []byte)) error {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	stream, subject := "KV_"+bucket, "$KV."+bucket+"."
	config := jetstream.ConsumerConfig{FilterSubject: subject + ">", AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage:     true,
		InactiveThreshold: listTime, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy}
	if late {
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return err
		}
		config.HeadersOnly = true
		if state, back := s.CachedInfo().State, uint64(most.keys-1); state.LastSeq > state.FirstSeq+back {
			config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, state.LastSeq-back
		}
	}
	consumer, err := js.CreateConsumer(ctx, stream, config)
	if err != nil {
		return err
	}
	info := consumer.CachedInfo()
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = js.DeleteConsumer(ending, stream, info.Name) // else it expires
	}()
	for left := min(int(min(info.NumPending, 1<<30)), most.keys); left > 0; {
		page, err := consumer.FetchNoWait(min(left, listPage))
		if err != nil {
			return err
		}
		n := 0
		for msg := range page.Messages() {
			n++
			key, value := strings.TrimPrefix(msg.Subject(), subject), msg.Data()
			if most.bytes -= len(key) + len(value); most.bytes < 0 {
				left = 0
			} else if msg.Headers().Get("KV-Operation") == "" && len(value) <= most.each {
				each(key, value)
			}
		}
		if err := page.Error(); err != nil && !errors.Is(err, nats.ErrTimeout) {
			return err
		}
		if left -= n; n == 0 || ctx.Err() != nil {
			break
		}
	}
	return context.Cause(ctx)
}

// cut reports whether the list may lack workers because of its limit.
func cut(workers []WorkerInfo) bool { return len(workers) >= ofWorkers.keys }

// listWorkers returns the workers whose info is recent.
func listWorkers(ctx context.Context, js jetstream.JetStream) (workers []WorkerInfo, err error) {
	err = list(ctx, js, workersBucket, ofWorkers, false, func(key string, value []byte) {
		var info WorkerInfo
		if decode(value, maxInfoValues, &info) == nil && info.ID == key {
			workers = append(workers, info)
		}
	})
	slices.SortFunc(workers, func(a, b WorkerInfo) int { return a.Started.Compare(b.Started) })
	return workers, err
}
