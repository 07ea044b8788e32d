package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
)

// Client submits runs to a fleet: it is a unitask.Fleet. Any goroutine may use it.
type Client struct {
	config Config
	nc     *nats.Conn
	js     jetstream.JetStream

	// RunID is the id of the next runs in the fleet; "" means the id of each run's record. A second submission with the
	// same id joins the first if the requests are the same.
	RunID string
	// Priority is the priority of the next runs; "" is Normal.
	Priority Priority

	images  chan struct{} // limits uploads of images to one at a time
	mu      sync.Mutex
	store   *tenantStore       // nil until opened
	workers jetstream.KeyValue // nil before
	seen    []WorkerInfo       // as of seenAt
	seenAt  time.Time
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
	return &Client{config: config, nc: nc, js: js, images: make(chan struct{}, 1)}, nil
}

// Close closes the connection.
func (c *Client) Close() { c.nc.Close() }

// Server returns the name of the connected NATS server, or "" while there is none.
func (c *Client) Server() string { return c.nc.ConnectedServerName() }

// open opens the tenant's store once, so that later runs need no exchanges for it.
func (c *Client) open(ctx context.Context) (tenantStore, error) {
	c.mu.Lock()
	there := c.store
	c.mu.Unlock()
	if there != nil {
		return *there, nil
	}
	s, err := openTenant(ctx, c.js, c.config.Tenant)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.store = &s
	}
	return s, err
}

// workersStore returns the bucket of the workers' info; jetstream.ErrBucketNotFound means that no worker ever
// registered.
func (c *Client) workersStore(ctx context.Context) (jetstream.KeyValue, error) {
	c.mu.Lock()
	there := c.workers
	c.mu.Unlock()
	if there != nil {
		return there, nil
	}
	kv, err := c.js.KeyValue(ctx, workersBucket)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.workers = kv
	}
	return kv, err
}

// forget drops all cached state, because somebody may have deleted the buckets.
func (c *Client) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store, c.workers, c.seen = nil, nil, nil
}

// lately returns a list of the workers that is at most one beat old: workers update their info once a beat. now reports
// whether the list was just read.
func (c *Client) lately(ctx context.Context) (list []WorkerInfo, now bool, err error) {
	c.mu.Lock()
	list, now = c.seen, time.Since(c.seenAt) >= c.config.Times.Beat || len(c.seen) == 0
	c.mu.Unlock()
	if now {
		list, err = c.Workers(ctx)
	}
	return list, now, err
}

// Workers returns the workers whose info is recent.
func (c *Client) Workers(ctx context.Context) (list []WorkerInfo, err error) {
	list, err = listWorkers(ctx, c.js)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen, c.seenAt = list, time.Now()
	return slices.Clone(list), nil
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
	heard, err := hear(c.nc, subjectOut+c.config.Tenant+"."+s.id, heardMessages, heardBytes)
	if err != nil {
		return nil, hostError(err)
	}
	defer heard.close()
	answers, err := s.answer(ctx)
	if err != nil {
		return nil, hostError(err)
	}
	defer answers()
	if err := s.submit(ctx); err != nil {
		c.forget()
		var busy *unitask.BusyError
		if errors.As(err, &busy) {
			return &unitask.Result{Outcome: unitask.OutcomeBusy, ExitCode: unitask.ExitHost, Error: err.Error(),
				RetryAfter: busy.After}, err
		}
		if ctx.Err() != nil {
			s.cancel()
		}
		return nil, hostError(err)
	}
	return s.wait(ctx, heard)
}

func hostError(err error) error {
	var host *unitask.HostError
	if err == nil || errors.As(err, &host) {
		return err
	}
	return &unitask.HostError{Op: "fleet", Err: err}
}
