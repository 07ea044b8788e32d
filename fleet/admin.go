package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrNoWorker means that no worker has this id. A killed worker is listed until its lease is over.
var ErrNoWorker = errors.New("is not there")

// Drain makes a worker accept no more work and exit when its runs have ended.
func (c *Client) Drain(ctx context.Context, worker string) error {
	ask := nats.NewMsg(subjectDrain + worker)
	ask.Header.Set(headDrain, "1")
	msg, err := c.nc.RequestMsgWithContext(ctx, ask)
	if errors.Is(err, nats.ErrNoResponders) {
		err = ErrNoWorker
	}
	if err != nil {
		return fmt.Errorf("drain worker %.40q: %w: `unitask fleet status` lists them", worker, err)
	}
	if why := msg.Header.Get(headRefused); why != "" {
		return fmt.Errorf("drain worker %.40q: %.200s", worker, why)
	}
	return nil
}

// thereTime bounds the wait for a worker's answer, which may be lost when the worker exits.
const thereTime = 2 * time.Second

// There reports whether a worker is connected, draining or not. It asks the worker itself and not JetStream, which the
// last servers of a cluster do not have.
func (c *Client) There(ctx context.Context, worker string) bool {
	timed, cancel := context.WithTimeout(ctx, thereTime)
	defer cancel()
	_, err := c.nc.RequestWithContext(timed, subjectWake+worker, nil)
	return !errors.Is(err, nats.ErrNoResponders)
}

// Depth is the number of runs of a class and tenant in the queue, including current runs.
type Depth struct {
	Class    string   `json:"class"`
	Tenant   string   `json:"tenant"`
	Priority Priority `json:"priority"`
	Runs     uint64   `json:"runs"`
}

// Queue returns the depths of the queue. Tenants may not call it.
func (c *Client) Queue(ctx context.Context) (list []Depth, err error) {
	list = []Depth{}
	subjects, err := c.queued(ctx)
	if err != nil {
		return nil, err
	}
	for subject, n := range subjects {
		class, rest, _ := strings.Cut(strings.TrimPrefix(subject, subjectQueue), ".")
		tenant, priority, _ := strings.Cut(rest, ".")
		list = append(list, Depth{class, tenant, Priority(priority), n})
	}
	slices.SortFunc(list, func(a, b Depth) int {
		return strings.Compare(a.Class+"."+a.Tenant+"."+string(a.Priority), b.Class+"."+b.Tenant+"."+string(b.Priority))
	})
	return list, nil
}

// queued returns the number of messages in the queue for each subject, from JetStream's first page only. The client
// library would read all pages.
func (c *Client) queued(ctx context.Context) (map[string]uint64, error) {
	timed, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	msg, err := c.nc.RequestWithContext(timed, "$JS.API.STREAM.INFO."+queueStream,
		[]byte(`{"subjects_filter":"`+subjectQueue+`>"}`))
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		State struct {
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}
	if len(msg.Data) > maxReply {
		return nil, fmt.Errorf("what the queue holds: %d bytes: %w", len(msg.Data), errMalformed)
	}
	switch err := decode(msg.Data, maxReportValues, &answer); {
	case err != nil:
		return nil, err
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeStreamNotFound:
		return nil, nil
	case answer.Error != nil:
		return nil, answer.Error
	}
	return answer.State.Subjects, nil
}

// RunInfo is a run of the client's tenant.
type RunInfo struct {
	ID      string    `json:"id"`
	State   State     `json:"state"`
	Class   string    `json:"class"`
	Created time.Time `json:"created"`
	Attempt int       `json:"attempt"`
	Losses  int       `json:"losses"` // workers that were lost with it
	Worker  string    `json:"worker,omitempty"`
	Why     string    `json:"why,omitempty"`
}

// Runs returns the runs of the client's tenant that the fleet still knows, newest first; most is their maximum number.
func (c *Client) Runs(ctx context.Context, most int) (found []RunInfo, err error) {
	found = []RunInfo{}
	s, err := openTenant(ctx, c.js, c.config.Tenant)
	if errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	var keys []string
	err = list(ctx, c.js, runsBucket+c.config.Tenant, ofRuns, keysLate, func(id string, _ []byte) {
		if idForm.MatchString(id) {
			keys = append(keys, id)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(keys) // records' ids sort by time
	keys = slices.Compact(keys)
	slices.Reverse(keys)
	for _, id := range keys {
		if len(found) == most {
			break
		}
		if e, _, err := s.get(ctx, id); err == nil {
			found = append(found, RunInfo{id, e.State, e.Class, e.Created, e.Attempt, e.Losses, e.Worker, e.Why})
		}
	}
	return found, nil
}
