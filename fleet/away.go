package fleet

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// away reports whether an error of NATS is temporary: a cluster that has lost a node needs seconds to elect a leader.
func away(err error) bool {
	for _, one := range []error{context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected,
		nats.ErrReconnectBufExceeded, jetstream.ErrNoStreamResponse, errUnsettled, errStalled} {
		if errors.Is(err, one) {
			return true
		}
	}
	var api *jetstream.APIError
	var old *nats.APIError // from the older half of the client library
	if errors.As(err, &api) && (api.Code == http.StatusServiceUnavailable || api.ErrorCode == errInProcess ||
		api.ErrorCode == errNoPeers) {
		return true
	}
	return errors.As(err, &old) && old.Code == http.StatusServiceUnavailable
}

// errUnsettled means that an entry is not committed yet, or not known yet to the leader. A leader that is cut off uses
// its own uncommitted proposals; a new leader knows only older data.
var errUnsettled = errors.New("the run's entry is neither there nor not")

// errInProcess is JetStream's code for a message that was sent before and that its nodes have not committed yet.
const errInProcess = 10158

// errNoPeers is JetStream's code for too few servers that can store a stream. A new server is not counted at once.
const errNoPeers = 10005

// patience bounds how long NATS may be unavailable. A cluster needs up to ten seconds to notice the loss of its leader,
// and as many to elect another.
const patience = time.Minute

// patiently repeats do while NATS is unavailable. A call that timed out may have succeeded, so do must be repeatable.
func (t Times) patiently(ctx context.Context, do func(context.Context) error) error {
	for limit := time.Now().Add(patience); ; {
		err := do(ctx)
		if err == nil || ctx.Err() != nil || !away(err) || time.Now().After(limit) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(min(t.Beat, time.Second)):
		}
	}
}
