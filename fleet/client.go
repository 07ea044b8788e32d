package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
)

// Client submits runs to a fleet: it is a unitask.Fleet. Any goroutine may use it.
type Client struct {
	config Config
	nc     *nats.Conn
	js     jetstream.JetStream

	// RunID is the id of the next runs in the fleet; "" is each record's own. A second submit of
	// an id joins the first, if it asks for the same.
	RunID string
	// Priority is that of the next runs; "" is Normal.
	Priority Priority
}

// Connect connects to a fleet. Close it.
func Connect(config Config) (*Client, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	nc, err := config.connect("unitask client", inboxPrefix+config.Tenant)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &Client{config: config, nc: nc, js: js}, nil
}

// Close lets go of the connection.
func (c *Client) Close() { c.nc.Close() }

// Workers are those that have said a thing of themselves lately.
func (c *Client) Workers(ctx context.Context) (list []WorkerInfo, err error) {
	kv, err := c.js.KeyValue(ctx, workersBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return listWorkers(ctx, kv)
}

func listWorkers(ctx context.Context, kv jetstream.KeyValue) (list []WorkerInfo, err error) {
	keys, err := kv.Keys(ctx)
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		v, err := kv.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var info WorkerInfo
		if json.Unmarshal(v.Value(), &info) == nil && info.ID == key {
			list = append(list, info)
		}
	}
	slices.SortFunc(list, func(a, b WorkerInfo) int { return a.Started.Compare(b.Started) })
	return list, nil
}

// Run submits a run and waits for its end. A ctx that ends cancels it.
func (c *Client) Run(ctx context.Context, run *unitask.FleetRun) (*unitask.Result, error) {
	s := &submission{c: c, run: run, id: run.ID, have: map[string]int64{}, lag: map[string]bool{}}
	if c.RunID != "" {
		s.id = c.RunID
	}
	if !idForm.MatchString(s.id) {
		return nil, fmt.Errorf("run id %.80q: use 1 to 64 of letters, digits, - and _", s.id)
	}
	var err error
	if s.store, err = s.open(ctx); err != nil {
		return nil, hostError(err)
	}
	msgs := make(chan *nats.Msg, 4096)
	sub, err := c.nc.ChanSubscribe(subjectOut+c.config.Tenant+"."+s.id, msgs)
	if err != nil {
		return nil, hostError(err)
	}
	defer sub.Unsubscribe()
	answers, err := s.answer(ctx)
	if err != nil {
		return nil, hostError(err)
	}
	defer answers()
	if err := s.submit(ctx); err != nil {
		var busy *unitask.BusyError
		if errors.As(err, &busy) {
			return &unitask.Result{Outcome: unitask.OutcomeBusy, ExitCode: unitask.ExitHost, Error: err.Error(), RetryAfter: busy.After}, err
		}
		if ctx.Err() != nil {
			s.cancel()
		}
		return nil, hostError(err)
	}
	return s.wait(ctx, msgs)
}

func hostError(err error) error {
	var host *unitask.HostError
	if err == nil || errors.As(err, &host) {
		return err
	}
	return &unitask.HostError{Op: "fleet", Err: err}
}
