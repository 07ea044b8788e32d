package fleet

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/nacl/box"
)

// WorkerConfig configures a worker.
type WorkerConfig struct {
	Config
	// Tenants lists the worker's tenants, each with a separate account; an empty list means Config's own tenant. The
	// worker creates their streams and buckets in NATS.
	Tenants []Tenant
	Info    WorkerInfo    // Slots, MemoryMB and features; NewWorker fills in the rest
	Drain   time.Duration // time for current runs to end when the worker exits; 30 s
	// Replicas is the minimum number of replicas of all data in JetStream; 0 means 1. ReplicasNow, which may be nil,
	// returns the number possible now, if NATS servers join later. Data with more replicas keeps them.
	Replicas    int
	ReplicasNow func() int
	// SessionKey, 32 bytes, seals paused sessions, each tenant's with a derived key. Workers with the same SessionKey can
	// resume each other's sessions. nil means a key of this worker alone.
	SessionKey []byte
	// Key, 32 bytes, is the worker's private key. Secrets are sealed to its public key (Config.WorkerKeys). nil means a
	// new key for this worker's lifetime.
	Key []byte
	Log *slog.Logger // nil is none
}

// Tenant is a tenant of a worker. Its account separates it from other tenants.
type Tenant struct {
	Name           string
	Creds          string // like Config's, for the worker's user in the tenant's account
	User, Password string
	SessionKey     []byte // instead of the worker's, so that other tenants' workers need not know it
}

// Worker claims runs from a fleet's queue and runs them with a Runner.
type Worker struct {
	config  WorkerConfig
	runner  Runner
	log     *slog.Logger
	queues  []*tenantQueue
	public  *[32]byte
	private *[32]byte
	wake    chan struct{}
	drain   chan struct{}
	drained sync.Once
	running sync.WaitGroup
	hosting sync.WaitGroup // sessions
	metrics *metrics
	scratch *scratch
	memory  *budget

	mu       sync.Mutex
	info     WorkerInfo
	sessions map[string]*hosted                 // by tenant/session
	parking  bool                               // no session may be added any more
	runs     map[string]context.CancelCauseFunc // by tenant/run: read the entry
	hands    map[string]bool                    // by tenant/run: a message of it is being handled
}

var errDrained = errors.New("the worker goes")

// NewWorker connects a worker and creates missing streams and buckets in NATS. Close the worker.
func NewWorker(ctx context.Context, config WorkerConfig, runner Runner) (_ *Worker, err error) {
	if config.Config, err = config.withDefaults(); err != nil {
		return nil, err
	}
	if len(config.Tenants) == 0 {
		config.Tenants = []Tenant{{Name: config.Tenant, Creds: config.Creds, User: config.User, Password: config.Password}}
	}
	for i, t := range config.Tenants {
		if err := CheckTenant(t.Name); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(config.Tenants[:i], func(o Tenant) bool { return o.Name == t.Name }) {
			return nil, fmt.Errorf("tenant %s is named twice", t.Name)
		}
	}
	if config.Info.Slots < 1 || config.Info.MemoryMB < 1 || !classForm.MatchString(config.Info.Arch) {
		return nil, fmt.Errorf("worker with %d slots, %d MiB and architecture %q: each must be there", config.Info.Slots,
			config.Info.MemoryMB, config.Info.Arch)
	}
	if config.Drain == 0 {
		config.Drain = 30 * time.Second
	}
	config.Replicas = max(config.Replicas, 1)
	if config.SessionKey == nil {
		config.SessionKey = make([]byte, sessionKeySize)
		_, _ = rand.Read(config.SessionKey)
	}
	for _, t := range config.Tenants {
		for _, key := range [][]byte{config.SessionKey, t.SessionKey} {
			if key != nil && len(key) != sessionKeySize {
				return nil, fmt.Errorf("the key of sessions has %d bytes: %d are needed", len(key), sessionKeySize)
			}
		}
	}
	w := &Worker{config: config, runner: runner, log: config.Log, info: config.Info, wake: make(chan struct{}, 1),
		drain: make(chan struct{}), memory: newBudget(len(config.Tenants)), runs: map[string]context.CancelCauseFunc{},
		hands: map[string]bool{}}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if w.public, w.private, err = workerKey(config.Key); err != nil {
		return nil, err
	}
	w.info.ID, w.info.Key, w.info.Started = strings.ToLower(rand.Text()[:12]), w.public[:], time.Now().UTC()
	w.metrics = newMetrics(w)
	defer func() {
		if err != nil {
			w.Close()
		}
	}()
	if w.scratch, err = newScratch(); err != nil {
		return nil, err
	}
	for _, t := range config.Tenants {
		l, err := w.open(t)
		if err != nil {
			return nil, fmt.Errorf("tenant %s: %w", t.Name, err)
		}
		w.queues = append(w.queues, l)
	}
	if err := w.apart(ctx); err != nil {
		return nil, err
	}
	for _, l := range w.queues {
		if err := l.join(ctx); err != nil {
			return nil, fmt.Errorf("tenant %s: %w", l.tenant, err)
		}
	}
	return w, nil
}

// workerKey returns the key pair for a private key, or a new pair for nil.
func workerKey(private []byte) (public, own *[workerKeySize]byte, err error) {
	if private == nil {
		return box.GenerateKey(rand.Reader)
	}
	if len(private) != workerKeySize {
		return nil, nil, fmt.Errorf("the worker's key has %d bytes: %d are needed", len(private), workerKeySize)
	}
	return box.GenerateKey(bytes.NewReader(private)) // which reads the private key
}

// apart checks that no two tenants share an account. JetStream answers to any subject that a request names, so
// permissions alone do not separate tenants.
func (w *Worker) apart(ctx context.Context) error {
	if len(w.queues) < 2 {
		return nil
	}
	whose := map[string]string{}
	for _, l := range w.queues {
		account, err := l.account(ctx)
		if err != nil {
			return fmt.Errorf(
				"tenant %s: ask NATS for its account: %w: a worker for several tenants wants a server that says it", l.tenant, err)
		}
		if other, is := whose[account]; is {
			return fmt.Errorf(
				"tenants %s and %s have the same NATS account %.80q, in which each can reach what is the other's: "+
					"give each an account", other, l.tenant, account)
		}
		whose[account] = l.tenant
	}
	return nil
}

// Info returns the worker's description of itself.
func (w *Worker) Info() WorkerInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.info
}

// told returns the worker's info for a tenant. MemoryMB is the tenant's share, and UsedMB the part of the share that is
// not available now.
func (w *Worker) told(l *tenantQueue) WorkerInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	info := w.info
	_, most := w.share()
	info.MemoryMB, info.UsedMB = most, most-min(most-l.usedMB, info.MemoryMB-info.UsedMB)
	return info
}

// Drain makes the worker accept no more work; Run returns when all current work has ended.
func (w *Worker) Drain() { w.drained.Do(func() { close(w.drain) }) }

func (w *Worker) replicas() int {
	if w.config.ReplicasNow == nil {
		return w.config.Replicas
	}
	return max(w.config.Replicas, w.config.ReplicasNow())
}

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

// look makes a run's heartbeat read its entry now, since the run may have been cancelled. Only the entry decides, not
// the sender.
func (w *Worker) look(tenant, run string) {
	w.mu.Lock()
	stop := w.runs[tenant+"/"+run]
	w.mu.Unlock()
	if stop != nil {
		stop(nil)
	}
}

// Run claims runs until ctx ends or Drain is called. Then it gives current runs time to end, and returns after the last
// one.
func (w *Worker) Run(ctx context.Context) error {
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var beating sync.WaitGroup
	for _, l := range w.queues { // each separately: a silent one delays no other
		beating.Go(func() { l.beats(work) })
	}
	if r, says := w.runner.(acceleratedRunner); says {
		beating.Go(func() { w.accelerate(work, r) })
	}
	defer beating.Wait()
	defer stop(nil)
	w.take(ctx, work)
	w.Drain()
	for _, l := range w.queues {
		_ = l.beat(work) // publishes that it is draining
	}
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
	w.parkSessions()
	stop(nil)
	beating.Wait() // or it would register again
	for _, l := range w.queues {
		timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		_ = l.workers.Delete(timed, w.info.ID)
		cancel()
	}
	return nil
}

// pollTime is the time between reads of the queue without a wake-up.
const pollTime = time.Second

// lookAgain lists the waits before a woken worker that found nothing reads the queue again. A wake-up may arrive before
// JetStream has stored the run and notified its consumers.
var lookAgain = []time.Duration{5 * time.Millisecond, 50 * time.Millisecond}

// take claims runs while there is room: from the tenant with the fewest current runs, and among several from the one
// served longest ago.
func (w *Worker) take(ctx, work context.Context) {
	for looks := len(lookAgain); ; {
		taken := false
		for _, l := range w.inTurn() {
			if !w.room(l) || ctx.Err() != nil || w.draining() {
				continue
			}
			d := l.next()
			if d.msg == nil {
				continue
			}
			taken = true
			w.began(l)
			w.running.Go(func() {
				defer w.woken()
				defer w.ended(l)
				w.handle(work, l, d)
			})
			break // the next tenant has changed
		}
		if taken {
			continue
		}
		pause := pollTime
		if looks < len(lookAgain) {
			pause = lookAgain[looks]
			looks++
		}
		select {
		case <-ctx.Done():
			return
		case <-w.drain:
			return
		case <-w.wake:
			looks = 0
		case <-time.After(pause):
		}
	}
}

func (w *Worker) inTurn() []*tenantQueue {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedStableFunc(slices.Values(w.queues), func(a, b *tenantQueue) int {
		if a.running != b.running {
			return a.running - b.running
		}
		return a.served.Compare(b.served)
	})
}

// share returns the part of a worker's room that one tenant may use. The rest always suffices for one run of each other
// tenant.
func (w *Worker) share() (slots, memoryMB int) {
	others := len(w.queues) - 1
	return max(1, w.info.Slots-others), max(1, w.info.MemoryMB-others*leastMB)
}

// leastMB is the memory, in MiB, reserved for a tenant without current runs: a machine of the default size.
const leastMB = 512

func (w *Worker) room(l *tenantQueue) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	slots, _ := w.share()
	return w.info.Running < w.info.Slots && l.running < slots
}

func (w *Worker) began(l *tenantQueue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.info.Running++
	l.running++
	l.served = time.Now()
}

func (w *Worker) ended(l *tenantQueue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.info.Running--
	l.running--
}

// reserve reserves memory for a machine, if enough is free.
func (w *Worker) reserve(l *tenantQueue, memoryMB int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, most := w.share()
	if w.info.UsedMB+memoryMB > w.info.MemoryMB || l.usedMB+memoryMB > most {
		return false
	}
	w.info.UsedMB += memoryMB
	l.usedMB += memoryMB
	return true
}

// reserveMore enlarges or reduces a machine's reservation.
func (w *Worker) reserveMore(l *tenantQueue, memoryMB int) bool {
	if memoryMB <= 0 {
		w.release(l, -memoryMB)
		return true
	}
	return w.reserve(l, memoryMB)
}

func (w *Worker) release(l *tenantQueue, memoryMB int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.info.UsedMB -= memoryMB
	l.usedMB -= memoryMB
}

func (w *Worker) count(of func(*WorkerInfo)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of(&w.info)
}

// begin notes that a run is being handled. It returns false if it is already.
func (w *Worker) begin(tenant, run string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hands[tenant+"/"+run] {
		return false
	}
	w.hands[tenant+"/"+run] = true
	return true
}

func (w *Worker) leave(tenant, run string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.hands, tenant+"/"+run)
}

// hold registers a current run, or with nil removes it.
func (w *Worker) hold(tenant, run string, stop context.CancelCauseFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if stop == nil {
		delete(w.runs, tenant+"/"+run)
		w.info.Done++
		return
	}
	w.runs[tenant+"/"+run] = stop
}

// Close closes the connections. Call it after Run has returned, when no runs are left.
func (w *Worker) Close() {
	for _, l := range w.queues {
		l.nc.Close()
	}
	w.scratch.close()
}
