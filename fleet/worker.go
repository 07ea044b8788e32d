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

// WorkerConfig is what a worker takes on.
type WorkerConfig struct {
	Config
	// Tenants are those it works for, each in an account of its own; none is Config's own. It makes
	// what they have in NATS.
	Tenants []Tenant
	Info    WorkerInfo    // Slots, MemoryMB and what it has; the rest is filled in
	Drain   time.Duration // how long runs get to end when it goes; 30 s
	// Replicas are those of everything in JetStream, at least; 0 is 1. ReplicasNow, nil for none, says how many there
	// can be by now, where servers of NATS come later. What has more keeps them.
	Replicas    int
	ReplicasNow func() int
	// SessionKey, 32 bytes, seals sessions that are paused, each tenant's with a key that is derived from it: workers that
	// have the same continue with each other's. nil is one of its own.
	SessionKey []byte
	// Key, 32 bytes, is the worker's private key, to whose public one secrets are sealed (Config.WorkerKeys); nil is one
	// of its own, for as long as it lives.
	Key []byte
	Log *slog.Logger // nil is none
}

// Tenant is one that a worker works for. Its account is what keeps it apart from the others.
type Tenant struct {
	Name           string
	Creds          string // as Config's, for the worker's user in the tenant's account
	User, Password string
	SessionKey     []byte // in place of the worker's: a worker that is not for this tenant need not have it
}

// Worker takes runs out of a fleet's queue and has a Runner run them.
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
	parking  bool                               // no session is held any more
	runs     map[string]context.CancelCauseFunc // by tenant/run: look at the entry
	hands    map[string]bool                    // by tenant/run: a message of it is being handled
}

var errDrained = errors.New("the worker goes")

// NewWorker connects a worker and makes what is not there in NATS. Close it.
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

// workerKey returns the pair of keys of a private one, nil being one that is made.
func workerKey(private []byte) (public, own *[workerKeySize]byte, err error) {
	if private == nil {
		return box.GenerateKey(rand.Reader)
	}
	if len(private) != workerKeySize {
		return nil, nil, fmt.Errorf("the worker's key has %d bytes: %d are needed", len(private), workerKeySize)
	}
	return box.GenerateKey(bytes.NewReader(private)) // which reads the private key
}

// apart holds that no two tenants share an account: JetStream answers to any subject that a request
// names, so permissions alone do not keep enemies apart.
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
				"tenants %s and %s have the same NATS account %.80q, in which each can reach what is the other's: give each an account", other, l.tenant, account)
		}
		whose[account] = l.tenant
	}
	return nil
}

// Info returns what the worker says of itself.
func (w *Worker) Info() WorkerInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.info
}

// told returns what the worker says of itself to a tenant: the memory is what that one can have, and what of it it
// can't have now.
func (w *Worker) told(l *tenantQueue) WorkerInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	info := w.info
	_, most := w.share()
	info.MemoryMB, info.UsedMB = most, most-min(most-l.usedMB, info.MemoryMB-info.UsedMB)
	return info
}

// Drain has the worker take nothing more on; Run returns when what is under way has ended.
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

// Run takes runs until ctx ends or Drain is called, then gives those under way time to end, and
// returns when the last has.
func (w *Worker) Run(ctx context.Context) error {
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var beating sync.WaitGroup
	for _, l := range w.queues { // each by itself: one that does not answer holds up no other
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
		_ = l.beat(work) // it is draining
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
	beating.Wait() // or it would be there again
	for _, l := range w.queues {
		timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		_ = l.workers.Delete(timed, w.info.ID)
		cancel()
	}
	return nil
}

// pollTime is how long a worker goes without looking at the queue when nothing wakes it.
const pollTime = time.Second

// lookAgain is when a worker that was woken and has found nothing looks again: it hears of a run as it is
// submitted, and that may be before JetStream has stored it, and has told its consumers.
var lookAgain = []time.Duration{5 * time.Millisecond, 50 * time.Millisecond}

// take takes runs for as long as there is room: of the tenant that has the fewest under way, and of
// those of the one that was served longest ago.
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
			break // whose turn it is has changed
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

// share returns how much of a worker's room one tenant may take: what is left is enough that each other
// has one run at once, however many this one has and however long they last.
func (w *Worker) share() (slots, memoryMB int) {
	others := len(w.queues) - 1
	return max(1, w.info.Slots-others), max(1, w.info.MemoryMB-others*leastMB)
}

// leastMB is the memory, in MiB, that is kept for a tenant that has nothing under way: a machine of
// the usual size.
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

// reserve takes memory for a machine, if there is some.
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

// reserveMore takes more memory for a machine that has some, or gives some back.
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

// begin notes that a run is in hand, unless it is already.
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

// hold notes that a run is under way, or with nil that it is not.
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

// Close lets go of the connections. Runs under way should have ended: Run sees to that.
func (w *Worker) Close() {
	for _, l := range w.queues {
		l.nc.Close()
	}
	w.scratch.close()
}
