package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// tenantQueue is a worker's access to a tenant's part of the queue: a separate connection to the tenant's account. The
// tenant may change anything there: the worker creates missing parts again.
type tenantQueue struct {
	tenantStore
	w        *Worker
	nc       *nats.Conn
	js       jetstream.JetStream
	queues   []jetstream.Consumer // by priority, the highest first
	turn     int                  // the next one; used by take only
	workers  jetstream.KeyValue
	missed   jetstream.KeyValue
	sessions sessions
	listing  sync.Mutex
	beaten   atomic.Int64  // when JetStream stored the last heartbeat, in ns since 1970
	sealing  []byte        // the key of its paused sessions
	copies   int           // requested replicas; used by the heartbeat only, once it runs
	broken   atomic.Bool   // something was changed or deleted
	away     time.Time     // until when the silent queue is not polled; used by take only
	orphans  chan delivery // of runs whose worker is lost
	watched  atomic.Int32  // runs whose silent worker may still answer

	// Under the worker's lock.
	running, usedMB int
	served          time.Time
	depth           depth

	unsealed once // calls with secrets
}

// open connects a worker to a tenant's account.
func (w *Worker) open(t Tenant) (l *tenantQueue, err error) {
	config := w.config.Config
	config.Tenant, config.Creds, config.User, config.Password = t.Name, t.Creds, t.User, t.Password
	nc, err := config.connect("unitask worker "+w.info.ID, nats.InboxPrefix[:len(nats.InboxPrefix)-1])
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			nc.Close()
		}
	}()
	l = &tenantQueue{w: w, nc: nc, orphans: make(chan delivery)}
	if l.js, err = jetstream.New(nc); err != nil {
		return nil, err
	}
	l.tenant = t.Name
	if l.sealing = t.SessionKey; l.sealing == nil {
		l.sealing, err = tenantKey(w.config.SessionKey, t.Name)
	}
	return l, err
}

// join creates the tenant's part of the fleet, and subscribes to it.
func (l *tenantQueue) join(ctx context.Context) error {
	w := l.w
	if err := w.config.Times.patiently(ctx, l.prepare); err != nil {
		return err
	}
	for subject, take := range map[string]nats.MsgHandler{
		subjectQueue + w.info.Arch + "." + l.tenant + ".*": func(*nats.Msg) { w.woken() },
		subjectCancel + l.tenant + ".*": func(m *nats.Msg) {
			w.look(l.tenant,
				m.Subject[len(subjectCancel+l.tenant)+1:])
		},
		subjectWake + w.info.ID: func(m *nats.Msg) { w.woken(); _ = m.Respond(nil) },
		subjectDrain + w.info.ID: func(m *nats.Msg) {
			if !asked(m, headDrain) {
				return
			}
			if len(w.config.Tenants) > 1 { // one tenant must not stop the worker for all
				refuse(m, "it works for other tenants too: end it on its host")
				return
			}
			w.Drain()
			_ = m.Respond(nil)
		},
	} {
		if _, err := l.nc.Subscribe(subject, func(m *nats.Msg) {
			if published(m) {
				take(m)
			}
		}); err != nil {
			return err
		}
	}
	if err := l.listenSessions(); err != nil {
		return err
	}
	return w.config.Times.patiently(ctx, l.beat) // servers that admit another one don't answer for a while
}

// prepare creates or repairs the queue, the buckets and the consumer.
func (l *tenantQueue) prepare(ctx context.Context) error {
	replicas := l.w.replicas()
	have := map[string]int{queueStream: 0, "KV_" + workersBucket: 0, "KV_" + missedBucket: 0}
	for name := range have {
		var err error
		if have[name], err = atLeast(ctx, l.js, name, replicas); err != nil {
			return fmt.Errorf("look what the fleet has: %w", err)
		}
	}
	_, err := l.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: queueStream, Subjects: []string{subjectQueue + "*.*.*"}, Retention: jetstream.WorkQueuePolicy,
		Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
		MaxMsgs: maxQueued, MaxMsgsPerSubject: maxQueuedTenant, MaxMsgSize: maxTicket, MaxAge: keep,
		Duplicates: 2 * time.Minute, Replicas: have[queueStream],
	})
	if err != nil {
		return fmt.Errorf("make the fleet's queue: %w", err)
	}
	workers, err := l.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: workersBucket,
		TTL: l.w.config.Times.Lease, MaxBytes: 16 << 20, Replicas: have["KV_"+workersBucket]})
	if err != nil {
		return fmt.Errorf("make the list of workers: %w", err)
	}
	missed, err := l.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: missedBucket, TTL: keep,
		MaxBytes: missedBytes, Replicas: have["KV_"+missedBucket]})
	if err != nil {
		return fmt.Errorf("make the list of workers that are missed: %w", err)
	}
	s, err := makeTenant(ctx, l.js, l.tenant, replicas)
	if err != nil {
		return err
	}
	held, err := makeSessions(ctx, l.js, l.tenant, replicas)
	if err != nil {
		return err
	}
	var queues []jetstream.Consumer
	for _, p := range Priorities {
		queue, err := l.js.CreateOrUpdateConsumer(ctx, queueStream, jetstream.ConsumerConfig{
			Durable:       l.w.info.Arch + "-" + l.tenant + "-" + string(p),
			FilterSubject: subjectQueue + l.w.info.Arch + "." + l.tenant + "." + string(p),
			AckPolicy:     jetstream.AckExplicitPolicy,
			AckWait:       l.w.config.Times.Lease, MaxDeliver: maxDeliver, MaxAckPending: maxQueuedTenant,
		})
		if err != nil {
			return fmt.Errorf("take part in the queue: %w", err)
		}
		queues = append(queues, queue)
	}
	if l.queues == nil { // later they are recreated unchanged
		l.tenantStore, l.queues, l.workers, l.missed, l.sessions = s, queues, workers, missed, held
	}
	l.copies = replicas
	return nil
}

// account returns the NATS account of this connection.
func (l *tenantQueue) account(ctx context.Context) (string, error) {
	timed, cancel := context.WithTimeout(ctx, l.w.config.Times.Lease)
	defer cancel()
	msg, err := l.nc.RequestWithContext(timed, "$SYS.REQ.USER.INFO", nil)
	if err != nil {
		return "", err
	}
	var info struct {
		Data struct {
			Account string `json:"account"`
		} `json:"data"`
	}
	if err := json.Unmarshal(msg.Data, &info); err != nil || info.Data.Account == "" {
		return "", errors.Join(err, errors.New("the answer names none"))
	}
	return info.Data.Account, nil
}

// next returns the next message of the queue; its msg is nil if there is none now.
func (l *tenantQueue) next() (d delivery) {
	if !l.nc.IsConnected() || time.Now().Before(l.away) {
		return d
	}
	select {
	case d = <-l.orphans:
		return d
	default:
	}
	begin := time.Now()
	var err error
	for _, i := range order(l.turn) {
		var batch jetstream.MessageBatch
		if batch, err = l.queues[i].FetchNoWait(1); err == nil {
			for msg := range batch.Messages() {
				l.turn++
				return delivery{msg: msg}
			}
			err = batch.Error()
		}
		if err != nil || time.Since(begin) >= slowFetch {
			break
		}
	}
	if err != nil || time.Since(begin) >= slowFetch {
		l.broken.Store(true)
		l.away = time.Now().Add(awayTime) // so that other tenants don't wait for it every time
	}
	return d
}

// A tenant's queue that needs slowFetch to return nothing, or fails, is skipped for awayTime.
const (
	slowFetch = time.Second
	awayTime  = 5 * time.Second
)

// beats sends heartbeats until ctx ends.
func (l *tenantQueue) beats(ctx context.Context) {
	tick := time.NewTicker(l.w.config.Times.Beat)
	defer tick.Stop()
	for said := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := l.beat(ctx)
		if err == nil {
			if time.Since(said) > l.w.config.Times.Lease/2 { // others may have counted it as missed
				err = l.missed.Purge(ctx, l.w.info.ID)
			}
			said = time.Now()
		}
		err = errors.Join(err, l.measure(ctx))
		if err != nil || l.broken.Swap(false) || l.w.replicas() > l.copies {
			timed, cancel := context.WithTimeout(ctx, l.w.config.Times.Lease)
			err = errors.Join(err, l.prepare(timed))
			cancel()
		}
		if err != nil && ctx.Err() == nil {
			l.w.log.Warn("the fleet does not answer; trying again", "tenant", l.tenant, "error", err)
		}
	}
}

// beat sends a heartbeat.
func (l *tenantQueue) beat(ctx context.Context) error {
	info := l.w.told(l)
	info.Draining, info.Server = l.w.draining(), l.nc.ConnectedServerName()
	text, err := json.Marshal(info)
	if err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, l.w.config.Times.Lease)
	defer cancel()
	if _, err = l.workers.Put(timed, info.ID, text); err != nil {
		return fmt.Errorf("register the worker: %w", err)
	}
	l.beaten.Store(time.Now().UnixNano())
	return nil
}

// lives reports whether a worker's info is recent.
func (l *tenantQueue) lives(ctx context.Context, worker string) (bool, error) {
	timed, cancel := context.WithTimeout(ctx, l.w.config.Times.Beat)
	defer cancel()
	_, err := l.workers.Get(timed, worker)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, jetstream.ErrInvalidKey):
		return false, nil
	}
	return false, err
}

// others returns the workers listed in the tenant's account. One run at a time reads the list.
func (l *tenantQueue) others(ctx context.Context) ([]WorkerInfo, error) {
	l.listing.Lock()
	defer l.listing.Unlock()
	return listWorkers(ctx, l.js)
}

// largest returns the memory, in MiB, of the largest worker of this architecture.
func (l *tenantQueue) largest(ctx context.Context) (memoryMB int) {
	workers, _ := l.others(ctx)
	if cut(workers) {
		return math.MaxInt
	}
	for _, w := range workers {
		if w.Arch == l.w.info.Arch {
			memoryMB = max(memoryMB, w.MemoryMB)
		}
	}
	return memoryMB
}
