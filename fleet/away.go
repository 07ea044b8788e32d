package fleet

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// away reports whether NATS did not do a thing now, and may a moment later: a cluster that has lost a node
// takes seconds to choose who leads.
func away(err error) bool {
	for _, one := range []error{context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected,
		nats.ErrReconnectBufExceeded, jetstream.ErrNoStreamResponse, errUnsettled, errStalled} {
		if errors.Is(err, one) {
			return true
		}
	}
	var api *jetstream.APIError
	var old *nats.APIError // of what the client library does in its older half
	if errors.As(err, &api) && (api.Code == http.StatusServiceUnavailable || api.ErrorCode == errInProcess ||
		api.ErrorCode == errNoPeers) {
		return true
	}
	return errors.As(err, &old) && old.Code == http.StatusServiceUnavailable
}

// errUnsettled means that an entry is about to be there, or is not known yet to who leads: a leader that is cut
// off goes by what it has proposed and can't agree on, one that is new has what it was told before.
var errUnsettled = errors.New("the run's entry is neither there nor not")

// errInProcess is JetStream's code for a message that was sent before, and that its nodes do not yet agree on.
const errInProcess = 10158

// errNoPeers is JetStream's code for too few servers that can take a stream: one that has just come is not known to be
// able to yet.
const errNoPeers = 10005

// patience bounds how long NATS may be away: a cluster of NATS takes up to ten seconds to see that a leader is
// gone, and as many to choose another one.
const patience = time.Minute

// patiently does something again while NATS is away. What timed out may have been done: do must hold with
// that.
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
