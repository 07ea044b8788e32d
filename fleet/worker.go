package fleet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/crypto/nacl/box"
)

// WorkerConfig is what a worker takes on.
type WorkerConfig struct {
	Config
	// Tenants are those it works for; none is DefaultTenant. It makes what they have in NATS.
	Tenants  []string
	Info     WorkerInfo    // Slots, MemoryMB and what it has; the rest is filled in
	Drain    time.Duration // how long runs get to end when it goes; 30 s
	Replicas int           // of everything in JetStream; 0 is 1
	Log      *slog.Logger  // nil is none
}

// Worker takes runs out of a fleet's queue and has a Runner run them.
type Worker struct {
	config  WorkerConfig
	runner  Runner
	log     *slog.Logger
	nc      *nats.Conn
	js      jetstream.JetStream
	workers jetstream.KeyValue
	tenants []lane
	public  *[32]byte
	private *[32]byte
	wake    chan struct{}
	drain   chan struct{}
	drained sync.Once
	running sync.WaitGroup

	mu   sync.Mutex
	info WorkerInfo
	runs map[string]context.CancelCauseFunc // by tenant/run: look at the entry
}

// lane is a tenant's part of the queue.
type lane struct {
	tenantStore
	queue jetstream.Consumer
}

var errDrained = errors.New("the worker goes")

// NewWorker connects a worker and makes what is not there in NATS. Close it.
func NewWorker(ctx context.Context, config WorkerConfig, runner Runner) (_ *Worker, err error) {
	if len(config.Tenants) == 0 {
		config.Tenants = []string{DefaultTenant}
	}
	for _, tenant := range config.Tenants {
		if err := CheckTenant(tenant); err != nil {
			return nil, err
		}
	}
	if config.Config, err = config.withDefaults(); err != nil {
		return nil, err
	}
	if config.Info.Slots < 1 || config.Info.MemoryMB < 1 || !classForm.MatchString(config.Info.Arch) {
		return nil, fmt.Errorf("worker with %d slots, %d MiB and architecture %q: each must be there", config.Info.Slots, config.Info.MemoryMB, config.Info.Arch)
	}
	if config.Drain == 0 {
		config.Drain = 30 * time.Second
	}
	config.Replicas = max(config.Replicas, 1)
	w := &Worker{config: config, runner: runner, log: config.Log, info: config.Info, wake: make(chan struct{}, 1), drain: make(chan struct{}), runs: map[string]context.CancelCauseFunc{}}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if w.public, w.private, err = box.GenerateKey(rand.Reader); err != nil {
		return nil, err
	}
	w.info.ID, w.info.Key, w.info.Started = strings.ToLower(rand.Text()[:12]), w.public[:], time.Now().UTC()
	if w.nc, err = config.connect("unitask worker "+w.info.ID, nats.InboxPrefix[:len(nats.InboxPrefix)-1]); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.nc.Close()
		}
	}()
	return w, w.prepare(ctx)
}

// prepare makes the queue, the buckets and the consumers.
func (w *Worker) prepare(ctx context.Context) (err error) {
	if w.js, err = jetstream.New(w.nc); err != nil {
		return err
	}
	_, err = w.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: queueStream, Subjects: []string{subjectQueue + "*.*"}, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
		MaxMsgs: maxQueued, MaxMsgsPerSubject: maxQueuedTenant, MaxMsgSize: maxTicket, MaxAge: keep, Duplicates: 2 * time.Minute, Replicas: w.config.Replicas,
	})
	if err != nil {
		return fmt.Errorf("make the fleet's queue: %w", err)
	}
	w.workers, err = w.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: workersBucket, TTL: w.config.Times.Lease, MaxBytes: 16 << 20, Replicas: w.config.Replicas})
	if err != nil {
		return fmt.Errorf("make the list of workers: %w", err)
	}
	for _, tenant := range w.config.Tenants {
		s, err := makeTenant(ctx, w.js, tenant, w.config.Replicas)
		if err != nil {
			return err
		}
		queue, err := w.js.CreateOrUpdateConsumer(ctx, queueStream, jetstream.ConsumerConfig{
			Durable: w.info.Arch + "-" + tenant, FilterSubject: subjectQueue + w.info.Arch + "." + tenant, AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: w.config.Times.Lease, MaxDeliver: -1, MaxAckPending: maxQueuedTenant,
		})
		if err != nil {
			return fmt.Errorf("take part in the queue of tenant %s: %w", tenant, err)
		}
		w.tenants = append(w.tenants, lane{s, queue})
		for subject, take := range map[string]nats.MsgHandler{
			subjectQueue + w.info.Arch + "." + tenant: func(*nats.Msg) { w.woken() },
			subjectCancel + tenant + ".*":             func(m *nats.Msg) { w.look(tenant, m.Subject[len(subjectCancel+tenant)+1:]) },
		} {
			if _, err := w.nc.Subscribe(subject, take); err != nil {
				return err
			}
		}
	}
	_, err = w.nc.Subscribe(subjectDrain+w.info.ID, func(m *nats.Msg) {
		w.Drain()
		_ = m.Respond(nil)
	})
	if err != nil {
		return err
	}
	return w.beat(ctx)
}

// Info is what the worker says of itself.
func (w *Worker) Info() WorkerInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.info
}

// Drain has the worker take nothing more on; Run returns when what is under way has ended.
func (w *Worker) Drain() { w.drained.Do(func() { close(w.drain) }) }

func (w *Worker) draining() bool {
	select {
	case <-w.drain:
		return true
	default:
		return false
	}
}

func (w *Worker) woken() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// look has a run's heartbeat look at its entry now: it may have been cancelled. Who asks decides
// nothing; the entry does.
func (w *Worker) look(tenant, run string) {
	w.mu.Lock()
	stop := w.runs[tenant+"/"+run]
	w.mu.Unlock()
	if stop != nil {
		stop(nil)
	}
}

// beat says that the worker is there.
func (w *Worker) beat(ctx context.Context) error {
	info := w.Info()
	info.Draining = w.draining()
	text, err := json.Marshal(info)
	if err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, w.config.Times.Lease)
	defer cancel()
	if _, err = w.workers.Put(timed, info.ID, text); err != nil {
		return fmt.Errorf("register the worker: %w", err)
	}
	return nil
}

// Run takes runs until ctx ends or Drain is called, then gives those under way time to end, and
// returns when the last has.
func (w *Worker) Run(ctx context.Context) error {
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var beating sync.WaitGroup
	beating.Go(func() {
		for tick := time.NewTicker(w.config.Times.Beat); ; {
			select {
			case <-work.Done():
				tick.Stop()
				return
			case <-tick.C:
				if err := w.beat(work); err != nil && work.Err() == nil {
					w.log.Warn("the fleet does not answer; connecting again", "error", err)
				}
			}
		}
	})
	defer beating.Wait()
	defer stop(nil)
	w.take(ctx, work)
	w.Drain()
	_ = w.beat(work) // it is draining
	over := make(chan struct{})
	go func() { w.running.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(w.config.Drain):
		w.log.Warn("runs are still under way; they are ended", "after", w.config.Drain)
		w.mu.Lock()
		for _, end := range w.runs {
			end(errDrained)
		}
		w.mu.Unlock()
		<-over
	}
	timed, cancel := context.WithTimeout(work, 2*time.Second)
	defer cancel()
	_ = w.workers.Delete(timed, w.info.ID)
	return nil
}

// pollTime is how long a worker goes without looking at the queue when nothing wakes it.
const pollTime = time.Second

// take takes runs for as long as there is room, of the tenants in turn.
func (w *Worker) take(ctx, work context.Context) {
	for turn := 0; ; {
		taken := false
		for range w.tenants {
			if !w.room() || ctx.Err() != nil || w.draining() {
				break
			}
			l := w.tenants[turn%len(w.tenants)]
			turn++
			batch, err := l.queue.FetchNoWait(1)
			if err != nil {
				continue // the connection is away: poll
			}
			for msg := range batch.Messages() {
				taken = true
				w.change(+1, 0)
				w.running.Go(func() {
					defer w.woken()
					defer w.change(-1, 0)
					w.handle(work, l.tenantStore, msg)
				})
			}
		}
		if taken {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-w.drain:
			return
		case <-w.wake:
		case <-time.After(pollTime):
		}
	}
}

func (w *Worker) room() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.info.Running < w.info.Slots
}

func (w *Worker) change(runs, memoryMB int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.info.Running += runs
	w.info.UsedMB += memoryMB
}

// reserve takes memory for a machine, if there is some.
func (w *Worker) reserve(memoryMB int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.info.UsedMB+memoryMB > w.info.MemoryMB {
		return false
	}
	w.info.UsedMB += memoryMB
	return true
}

func (w *Worker) count(of func(*WorkerInfo)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of(&w.info)
}

// Close lets go of the connection. Runs under way should have ended: Run sees to that.
func (w *Worker) Close() { w.nc.Close() }
