// Package fleet runs code on many hosts, over NATS JetStream: a Client submits runs, and a Worker takes those that it
// has room for.
//
// A run's state is one entry in a key-value bucket. Its revision is the fence: whoever replaces the entry from the
// revision that he knows has decided, and nobody else can. The queue only says which entries to look at. An object
// store keeps large data by its SHA-256. Output is published on plain subjects while the run lasts, and the report
// fills in lost parts.
//
// A tenant is an account of NATS, and is not trusted. Its actions in its account reach no other account. A worker
// limits and checks everything that it reads there, and no tenant gets all of a worker. Users of one account trust each
// other. The package boots nothing; a Runner does.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Names in NATS. The names of a tenant's subjects and buckets contain the tenant's name.
const (
	queueStream   = "unitask-queue"
	workersBucket = "unitask-workers"
	missedBucket  = "unitask-missed" // workers that other workers wait for
	runsBucket    = "unitask-runs-"  // and the tenant
	filesBucket   = "unitask-files-" // and the tenant

	subjectQueue  = "unitask.queue."  // CLASS.TENANT.PRIORITY: stored
	subjectOut    = "unitask.out."    // TENANT.RUN: its output, and changes of its entry
	subjectAsk    = "unitask.ask."    // TENANT.RUN: the worker's questions to the submitter
	subjectCancel = "unitask.cancel." // TENANT.RUN: look at the entry now
	subjectDrain  = "unitask.drain."  // WORKER
	subjectWake   = "unitask.wake."   // WORKER: look at the queue now
)

// DefaultTenant is the tenant if none is named.
const DefaultTenant = "default"

// Limits of everything that a tenant sends, whatever its client does.
const (
	maxQueued       = 10_000    // runs in the queue, including current ones
	maxQueuedTenant = 1_000     // of one class, tenant and priority
	maxTicket       = 1 << 10   // bytes of a message in the queue
	maxEntry        = 256 << 10 // bytes of a run's entry
	maxInline       = 64 << 10  // bytes of content inside its message
	maxTask         = 1 << 20   // bytes of a task without its code
	maxCode         = 68 << 20  // bytes of code: at most 64 MiB, and 4 MiB of inline files
	maxFiles        = 1 << 30   // bytes of a run's files
	maxReport       = 4 << 20   // bytes of a report
	maxLeft         = 2 << 30   // bytes of a run's results: streams, artifacts, logs
	maxChunk        = 64 << 10  // bytes of output in a message
	maxLosses       = 3         // workers that may be lost with one run
	maxClaims       = 1_000     // of one run: a worker that exits gives it back
	maxDeliver      = 20_000    // of a message in the queue: more than a day without room causes
	runsBytes       = 256 << 20 // of a tenant's entries
	filesBytes      = 2 << 30   // of a tenant's objects
	missedBytes     = 1 << 20   // of notes about missed workers
	keep            = 24 * time.Hour
)

// retryAfter is the wait that a submitter gets when the queue is full: about the time of one run.
const retryAfter = time.Second

// Times set how quickly a lost worker is noticed. Zero values mean the defaults; all members of a fleet should have the
// same.
type Times struct {
	Lease time.Duration // time without a heartbeat after which another worker handles the run; 15 s
	Beat  time.Duration // time between heartbeats; a quarter of the lease
	// Start is the time for a machine's start at a worker. The submitter allows it in addition to the run's own time
	// limit; 2 min.
	Start time.Duration
}

func (t Times) withDefaults() Times {
	if t.Lease <= 0 {
		t.Lease = 15 * time.Second
	}
	if t.Beat <= 0 {
		t.Beat = t.Lease / 4
	}
	if t.Start <= 0 {
		t.Start = 2 * time.Minute
	}
	return t
}

// State is the progress of a run.
type State string

const (
	Queued    State = "queued"
	Claimed   State = "claimed"
	Ended     State = "ended"     // with a report
	Lost      State = "lost"      // its worker was lost, and it must not be run twice
	Cancelled State = "cancelled" // by its submitter
)

// over reports whether the state is final.
func (s State) over() bool { return s == Ended || s == Lost || s == Cancelled }

// entry is a run's state in its tenant's bucket.
type entry struct {
	State    State     `json:"state"`
	Class    string    `json:"class"`
	Task     blob      `json:"task"`
	Code     *blob     `json:"code,omitempty"` // of the task, where it is large
	MemoryMB int       `json:"memoryMb"`       // of its machine
	Created  time.Time `json:"created"`
	Attempt  int       `json:"attempt,omitempty"` // number of claims
	Reading  bool      `json:"reading,omitempty"` // its worker was lost, and another checks whether to repeat it
	Losses   int       `json:"losses,omitempty"`  // number of its lost workers
	Worker   string    `json:"worker,omitempty"`
	Report   *blob     `json:"report,omitempty"`
	Why      string    `json:"why,omitempty"` // of a run that was lost
}

// ticket is a message in the queue.
type ticket struct {
	Run string `json:"run"`
}

// WorkerInfo is a worker's description of itself, published every Beat.
type WorkerInfo struct {
	ID       string    `json:"id"`
	Host     string    `json:"host"`
	Version  string    `json:"version,omitempty"`
	Arch     string    `json:"arch"`
	Kernels  []string  `json:"kernels,omitempty"`
	Images   []string  `json:"images,omitempty"`
	Accel    string    `json:"accelerator,omitempty"` // of its machines, "" until known
	WhySlow  string    `json:"whySlow,omitempty"`     // why it is TCG, if hardware was tried
	Jail     []string  `json:"jail,omitempty"`        // layers of the jail that hold there
	Slots    int       `json:"slots"`
	Running  int       `json:"running"`
	MemoryMB int       `json:"memoryMb"` // for machines, in all
	UsedMB   int       `json:"usedMb"`
	Draining bool      `json:"draining,omitempty"`
	Embedded bool      `json:"embedded,omitempty"` // its NATS server exits with it
	Server   string    `json:"server,omitempty"`   // the connected NATS server
	Started  time.Time `json:"started"`
	Done     int64     `json:"done"`
	Retried  int64     `json:"retried"`
	Lost     int64     `json:"lost"`
	Key      []byte    `json:"key"` // X25519: secrets are sealed to it
}

// idForm is the form of a run's id: a record's.
var idForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// tenantForm is the form of a tenant's name: one token of a subject, and part of a bucket's name.
var tenantForm = regexp.MustCompile(`^[a-z0-9_-]{1,32}$`)

// classForm is the form of a class: an architecture.
var classForm = regexp.MustCompile(`^[a-z0-9]{1,16}$`)

// CheckTenant returns an error if a tenant's name is invalid.
func CheckTenant(name string) error {
	if !tenantForm.MatchString(name) {
		return fmt.Errorf("tenant %.40q: use 1 to 32 of a-z, 0-9, - and _", name)
	}
	return nil
}

// inboxPrefix and the tenant's name begin the subjects of answers to a tenant. Workers use NATS's own prefix, which no
// tenant may subscribe to.
const inboxPrefix = "_INBOX_"

// Permissions returns the permissions of a user that only submits, in its tenant's account. The user may publish and
// subscribe to entries, files and subjects of runs, and read the list of workers. Workers have no such limits.
//
// The accounts keep tenants apart, not these permissions: JetStream sends its answers to any subject that a request
// names.
//
// most is the highest priority that the user may ask for. With a value outside Priorities the user may submit no run.
func Permissions(tenant string, most Priority) (publish, subscribe []string) {
	at := slices.Index(Priorities, most)
	if at < 0 {
		at = len(Priorities)
	}
	for _, p := range Priorities[at:] {
		publish = append(publish, subjectQueue+"*."+tenant+"."+string(p))
	}
	runs, files, workers := "KV_"+runsBucket+tenant, "OBJ_"+filesBucket+tenant, "KV_"+workersBucket
	publish = append(publish,
		subjectCancel+tenant+".*", subjectSession+tenant+".*", subjectBegin+tenant+".*",
		"$KV."+runsBucket+tenant+".>", "$O."+filesBucket+tenant+".>",
		"$JS.API.STREAM.PURGE."+files, "$JS.API.STREAM.INFO."+queueStream,
	)
	for _, stream := range []string{runs, files, workers, "KV_" + sessionsBucket + tenant} {
		publish = append(publish, "$JS.API.STREAM.INFO."+stream, "$JS.API.STREAM.MSG.GET."+stream,
			"$JS.API.DIRECT.GET."+stream+".>",
			"$JS.API.CONSUMER.CREATE."+stream+".>", "$JS.API.CONSUMER.DELETE."+stream+".>", "$JS.API.CONSUMER.INFO."+stream+".>",
			"$JS.API.CONSUMER.MSG.NEXT."+stream+".>",
			"$JS.FC."+stream+".>")
	}
	return publish, []string{inboxPrefix + tenant + ".>", subjectOut + tenant + ".*", subjectAsk + tenant + ".*"}
}

// tenantStore holds a tenant's bucket of entries and its object store.
type tenantStore struct {
	tenant string
	runs   jetstream.KeyValue
	files  jetstream.ObjectStore
}

// openTenant opens the stores that a worker has created.
func openTenant(ctx context.Context, js jetstream.JetStream, tenant string) (s tenantStore, err error) {
	s.tenant = tenant
	if s.runs, err = js.KeyValue(ctx, runsBucket+tenant); err == nil {
		s.files, err = js.ObjectStore(ctx, filesBucket+tenant)
	}
	if err != nil {
		return s, fmt.Errorf("open tenant %s: %w", tenant, err)
	}
	return s, nil
}

// makeTenant creates a tenant's missing stores.
func makeTenant(ctx context.Context, js jetstream.JetStream, tenant string, replicas int) (s tenantStore, err error) {
	// This creates buckets as the client library does, but without AllowDirect. With it any replica could answer with data
	// older than the queue's message, and a run without an entry yet would be dropped.
	runs, files := runsBucket+tenant, filesBucket+tenant
	for _, config := range []jetstream.StreamConfig{
		{Name: "KV_" + runs, Subjects: []string{"$KV." + runs + ".>"}, MaxMsgsPerSubject: 1, MaxAge: keep,
			MaxBytes: runsBytes, MaxMsgSize: maxEntry, DenyDelete: true, Duplicates: 2 * time.Minute},
		{Name: "OBJ_" + files, Subjects: []string{"$O." + files + ".C.>", "$O." + files + ".M.>"}, MaxAge: keep,
			MaxBytes: filesBytes},
	} {
		config.Discard, config.AllowRollup = jetstream.DiscardNew, true
		if config.Replicas, err = atLeast(ctx, js, config.Name, replicas); err == nil {
			_, err = js.CreateOrUpdateStream(ctx, config)
		}
		if err != nil {
			return s, fmt.Errorf("make tenant %s: %w", tenant, err)
		}
	}
	return openTenant(ctx, js, tenant)
}

// atLeast returns the number of replicas for a stream: the requested number, or the current one if it is larger.
// Another worker may have seen more servers.
func atLeast(ctx context.Context, js jetstream.JetStream, stream string, replicas int) (int, error) {
	s, err := js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return replicas, nil
	}
	if err != nil {
		return 0, err
	}
	return max(replicas, s.CachedInfo().Config.Replicas), nil
}

// get reads a run's entry, which the tenant may have written.
func (s tenantStore) get(ctx context.Context, run string) (e entry, revision uint64, err error) {
	v, err := s.runs.Get(ctx, run)
	if err != nil {
		return e, 0, err
	}
	if len(v.Value()) > maxEntry {
		return e, 0, fmt.Errorf("entry of %s: %w: has %d bytes", run, errMalformed, len(v.Value()))
	}
	if err := json.Unmarshal(v.Value(), &e); err != nil {
		return e, 0, fmt.Errorf("entry of %s: %w: %w", run, errMalformed, err)
	}
	if e.Attempt < 0 || e.Attempt > maxClaims || e.Losses < 0 || e.Losses > e.Attempt || e.MemoryMB < 0 ||
		!classForm.MatchString(e.Class) || e.State != Queued && e.State != Claimed && !e.State.over() {
		return e, 0, fmt.Errorf("entry of %s: %w: its state or its numbers can't be", run, errMalformed)
	}
	return e, v.Revision(), nil
}

// errMalformed means that no client writes such data.
var errMalformed = errors.New("malformed")

// replace replaces an entry at a revision. It returns errFenced if the entry has another revision by now.
func (s tenantStore) replace(ctx context.Context, run string, e entry, revision uint64) (uint64, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return 0, err
	}
	revision, err = s.runs.Update(ctx, run, text, revision)
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return 0, errFenced
	}
	return revision, err
}

// errFenced means that somebody else has decided on a run.
var errFenced = errors.New("the run is no longer this worker's")
