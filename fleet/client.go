package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/crypto/nacl/box"

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

// submission is a run that a client has under way.
type submission struct {
	c     *Client
	run   *unitask.FleetRun
	id    string
	store tenantStore
	first bool // this client has made the entry, and has its standard input

	attempt int
	have    map[string]int64 // bytes of each stream that were passed on
	lag     map[string]bool  // some is missing: the rest comes with the report
	broken  error            // of the submitter's own stream
	said    bool             // that there is no worker
	unseen  time.Time        // since when its worker has not been seen
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

// open opens the tenant; a worker makes it.
func (s *submission) open(ctx context.Context) (store tenantStore, err error) {
	store, err = openTenant(ctx, s.c.js, s.c.config.Tenant)
	if errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		err = fmt.Errorf("no worker has been here for tenant %s: `unitask worker --nats %s` is one", s.c.config.Tenant, s.c.config.URL)
	}
	return store, err
}

// submit puts the run into its tenant's bucket and into the queue, or joins the one of its id.
func (s *submission) submit(ctx context.Context) error {
	req := s.run.Request
	arch := unitask.HostArch()
	if req.Arch != "" {
		arch = req.Arch
	}
	t := task{Request: req, Caller: s.run.Caller, Colors: s.run.Colors, Stdin: s.run.Stdin != nil}
	for _, mounts := range []*[]unitask.Mount{&t.Request.Files, &t.Request.Dirs} {
		list := []unitask.Mount{}
		for _, m := range *mounts {
			list = append(list, unitask.Mount{Host: m.Guest, Guest: m.Guest})
		}
		*mounts = list
	}
	if s.run.Inputs != nil && s.run.Inputs.Count() > 0 {
		files, err := s.putInputs(ctx)
		if err != nil {
			return err
		}
		t.Files = files
	}
	e := entry{State: Queued, Class: string(arch), MemoryMB: max(req.MemoryMB, 1), Created: time.Now().UTC()}
	if err := s.possible(ctx, e); err != nil {
		return err
	}
	var err error
	if e.Task, err = t.put(ctx, s.store); err != nil {
		return err
	}
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = s.store.runs.Create(ctx, s.id, text)
	s.first = err == nil
	if errors.Is(err, jetstream.ErrKeyExists) {
		there, _, err := s.store.get(ctx, s.id)
		if err != nil {
			return err
		}
		if there.Task.SHA256 != e.Task.SHA256 {
			return fmt.Errorf("run %s is there and asks for something else: use another id", s.id)
		}
		if there.State != Queued {
			return nil
		}
	} else if err != nil {
		return fmt.Errorf("submit run %s: %w", s.id, err)
	}
	text, err = json.Marshal(ticket{s.id})
	if err != nil {
		return err
	}
	_, err = s.c.js.Publish(ctx, subjectQueue+e.Class+"."+s.c.config.Tenant, text, jetstream.WithMsgID(s.c.config.Tenant+"/"+s.id))
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == errMaxMessages) {
		if s.first {
			_ = s.store.runs.Purge(ctx, s.id)
		}
		return &unitask.BusyError{What: "the fleet's queue is full", After: retryAfter}
	}
	if err != nil {
		return fmt.Errorf("submit run %s: %w", s.id, err)
	}
	return nil
}

// errMaxMessages is JetStream's code for a stream, or a subject of it, that is full.
const errMaxMessages = 10077

func (s *submission) putInputs(ctx context.Context) (*blob, error) {
	f, err := os.CreateTemp("", "unitask-fleet-")
	if err != nil {
		return nil, err
	}
	defer func() { f.Close(); os.Remove(f.Name()) }()
	if err := packInputs(ctx, s.run.Inputs, f); err != nil {
		return nil, err
	}
	if size, err := f.Seek(0, io.SeekEnd); err != nil || size > maxFiles {
		return nil, errors.Join(err, fmt.Errorf("the files of the run have %d bytes, and a fleet takes %d: leave out what is not needed", size, maxFiles))
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	b, err := s.store.put(ctx, f, false)
	return &b, err
}

// possible says that no worker that is there can ever run it.
func (s *submission) possible(ctx context.Context, e entry) error {
	workers, err := s.c.Workers(ctx)
	if err != nil || len(workers) == 0 { // one may come
		return err
	}
	most, arches := 0, []string{}
	for _, w := range workers {
		if w.Arch == e.Class {
			most = max(most, w.MemoryMB)
		}
		if !slices.Contains(arches, w.Arch) {
			arches = append(arches, w.Arch)
		}
	}
	switch {
	case most == 0:
		return fmt.Errorf("no worker runs %s: they are for %v", e.Class, arches)
	case e.MemoryMB > most:
		return fmt.Errorf("no worker has %d MiB for a machine: the largest has %d", e.MemoryMB, most)
	}
	return nil
}

// pollState is how often the entry is looked at when nothing says that it has changed.
const pollState = time.Second

// wait passes on what the run prints until it is over.
func (s *submission) wait(ctx context.Context, msgs <-chan *nats.Msg) (*unitask.Result, error) {
	tick := time.NewTicker(min(pollState, s.c.config.Times.Beat))
	defer tick.Stop()
	look := true
	for {
		if look {
			if e, revision, err := s.store.get(ctx, s.id); err == nil && (e.State.over() || s.follow(ctx, e, revision)) {
				s.drain(msgs)
				return s.finish(ctx, e)
			} else if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, errMalformed) {
				return nil, hostError(fmt.Errorf("run %s is no longer in the fleet: %w", s.id, err))
			}
		}
		look = false
		select {
		case <-ctx.Done():
			return s.cancel()
		case <-tick.C:
			look = true
		case msg := <-msgs:
			look = s.take(msg)
		}
		if s.broken != nil { // its reader went away
			_, _ = s.cancel()
			return nil, s.broken
		}
	}
}

// follow looks after a run that is not over, and says whether it is now.
func (s *submission) follow(ctx context.Context, e entry, revision uint64) (over bool) {
	s.begin(e)
	if e.State == Claimed {
		kv, err := s.c.js.KeyValue(ctx, workersBucket)
		if err == nil {
			_, err = kv.Get(ctx, e.Worker)
		}
		switch {
		case err == nil:
			s.unseen = time.Time{}
		case !errors.Is(err, jetstream.ErrKeyNotFound):
		case s.unseen.IsZero():
			s.unseen = time.Now()
		case time.Since(s.unseen) > s.c.config.Times.Lease && !Repeatable(s.run.Request):
			// No other worker may be there to say so.
			next := e
			next.State, next.Why = Lost, again(s.run.Request, e)
			if _, err := s.store.replace(ctx, s.id, next, revision); err == nil {
				s.nudge()
				return false // seen at the next look
			}
		}
		return false
	}
	if workers, err := s.c.Workers(ctx); err == nil && len(workers) == 0 && !s.said {
		s.said = true
		s.run.Events(unitask.Event{Kind: unitask.EventRetry, Message: "the fleet has no worker now: waiting for one"})
	}
	return false
}

// begin notes which attempt the entry is at.
func (s *submission) begin(e entry) {
	if e.Attempt <= s.attempt {
		return
	}
	if s.attempt > 0 {
		s.run.Again(fmt.Sprintf("the worker was lost; the run was made again on worker %s", e.Worker))
		clear(s.have)
		clear(s.lag)
	}
	s.attempt = e.Attempt
}

// nudge has the worker look at the entry.
func (s *submission) nudge() {
	_ = s.c.nc.Publish(subjectCancel+s.c.config.Tenant+"."+s.id, nil)
	_ = s.c.nc.FlushTimeout(time.Second)
}

// cancelTime bounds what a cancelled run still takes to say so.
const cancelTime = 10 * time.Second

// cancel ends the run in the fleet, unless it is over.
func (s *submission) cancel() (*unitask.Result, error) {
	ctx, stop := context.WithTimeout(context.Background(), cancelTime)
	defer stop()
	for ctx.Err() == nil {
		e, revision, err := s.store.get(ctx, s.id)
		if err != nil {
			break
		}
		if e.State.over() {
			break
		}
		e.State = Cancelled
		if _, err = s.store.replace(ctx, s.id, e, revision); err == nil {
			s.nudge()
			break
		}
	}
	return nil, context.Canceled
}

// drain takes what has come.
func (s *submission) drain(msgs <-chan *nats.Msg) {
	for {
		select {
		case msg := <-msgs:
			s.take(msg)
		default:
			return
		}
	}
}

// finish takes the report.
func (s *submission) finish(ctx context.Context, e entry) (*unitask.Result, error) {
	s.begin(e)
	switch e.State {
	case Lost:
		err := &unitask.LostError{Reason: fmt.Sprintf("%.500s", e.Why)}
		return &unitask.Result{Outcome: unitask.OutcomeLost, ExitCode: unitask.ExitHost, Error: err.Error(), MemoryMB: s.run.Request.MemoryMB}, err
	case Cancelled:
		return &unitask.Result{Outcome: unitask.OutcomeCancelled, ExitCode: unitask.ExitCancelled}, fmt.Errorf("cancelled by another submitter: %w", context.Canceled)
	}
	if e.Report == nil {
		return nil, hostError(errors.New("the worker left no report"))
	}
	r, err := readReport(ctx, s.store, *e.Report)
	if err != nil {
		return nil, hostError(err)
	}
	if r.Machine != nil {
		s.run.Machine(r.Machine)
	}
	if r.Left.Size > 0 {
		left, err := s.store.open(ctx, r.Left, maxLeft)
		if err != nil {
			return nil, hostError(err)
		}
		defer left.Close()
		if err := unpackLeft(left, s.run, map[string]io.Writer{nameStdout: s.run.Stdout, nameStderr: s.run.Stderr}, s.have); err != nil {
			return nil, hostError(err)
		}
	}
	return r.outcome()
}

// answer answers the worker's questions until stop.
func (s *submission) answer(ctx context.Context) (stop func(), err error) {
	questions := make(chan *nats.Msg, 64)
	sub, err := s.c.nc.ChanSubscribe(subjectAsk+s.c.config.Tenant+"."+s.id, questions)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	var reading stdin
	var answering sync.WaitGroup
	answering.Go(func() {
		for {
			select {
			case <-done:
				return
			case msg := <-questions:
				var q question
				if len(msg.Data) > maxTicket || json.Unmarshal(msg.Data, &q) != nil {
					continue
				}
				switch q.What {
				case "secrets":
					s.sendSecrets(ctx, msg, q)
				case "stdin":
					reading.answer(s.run.Stdin, msg, q.Chunk)
				}
			}
		}
	})
	return func() {
		_ = sub.Unsubscribe()
		close(done)
		answering.Wait()
	}, nil
}

// sendSecrets seals the secrets to the worker that has claimed the run, and to no other.
func (s *submission) sendSecrets(ctx context.Context, msg *nats.Msg, q question) {
	refuse := func(why string) {
		no := nats.NewMsg(msg.Reply)
		no.Header.Set(headRefused, why)
		_ = msg.RespondMsg(no)
	}
	e, _, err := s.store.get(ctx, s.id)
	if err != nil || e.State != Claimed || e.Worker != q.Worker || e.Attempt != q.Attempt {
		refuse("the run is not this worker's")
		return
	}
	kv, err := s.c.js.KeyValue(ctx, workersBucket)
	if err != nil {
		return
	}
	v, err := kv.Get(ctx, q.Worker)
	var info WorkerInfo
	if err != nil || json.Unmarshal(v.Value(), &info) != nil || len(info.Key) != 32 {
		refuse("the worker is not registered")
		return
	}
	text, err := json.Marshal(sealed{s.id, e.Attempt, s.run.Request.Secrets})
	if err == nil {
		text, err = box.SealAnonymous(nil, text, (*[32]byte)(info.Key), nil)
	}
	if err != nil {
		refuse(err.Error())
		return
	}
	_ = msg.Respond(text)
}

// stdin answers for chunks of a standard input. Those that were sent are kept for a run that is
// made again, as long as they are few.
type stdin struct {
	mu      sync.Mutex
	chunks  [][]byte
	kept    int
	end     bool
	reading bool
	waiting *nats.Msg // the last question for the chunk that is being read
}

// maxKeptStdin bounds what is kept, in bytes.
const maxKeptStdin = 1 << 20

func (in *stdin) answer(from io.Reader, msg *nats.Msg, chunk int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	no := func(why string) {
		m := nats.NewMsg(msg.Reply)
		m.Header.Set(headRefused, why)
		_ = msg.RespondMsg(m)
	}
	switch {
	case from == nil:
		no("the run has none here")
	case chunk < 0 || chunk > len(in.chunks):
		no("there is no such chunk")
	case chunk < len(in.chunks) && in.chunks[chunk] == nil:
		no("too much was read before the worker was lost")
	case chunk < len(in.chunks):
		in.send(msg, chunk)
	default:
		in.waiting = msg
		if !in.reading && !in.end {
			in.reading = true
			go in.read(from)
		}
	}
}

func (in *stdin) send(msg *nats.Msg, chunk int) {
	m := nats.NewMsg(msg.Reply)
	m.Data = bytes.Clone(in.chunks[chunk])
	if in.end && chunk == len(in.chunks)-1 {
		m.Header.Set(headEnd, "1")
	}
	_ = msg.RespondMsg(m)
}

// read reads one chunk. It is not waited for: a terminal may never say a thing, and the process
// that submits ends with its run.
func (in *stdin) read(from io.Reader) {
	buf := make([]byte, maxChunk)
	n, err := from.Read(buf)
	in.mu.Lock()
	defer in.mu.Unlock()
	in.reading, in.end = false, err != nil
	in.chunks = append(in.chunks, buf[:n:n])
	if in.kept += n; in.kept > maxKeptStdin {
		for i := range len(in.chunks) - 1 {
			in.chunks[i] = nil
		}
	}
	if in.waiting != nil {
		in.send(in.waiting, len(in.chunks)-1)
		in.waiting = nil
	}
}
