package e2b

import (
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// A snapshot is a paused fork of a sandbox. New sandboxes are forks of it.

// maxSnapshots bounds a caller's snapshots.
const maxSnapshots = 100

type snapshot struct {
	id, name, owner, from string
	cpus, memoryMB        int
	setup                 setup
	interprets            bool          // its sandboxes begin with a kernel
	network               networkConfig // of its sandboxes, with internet
	internet              *bool

	mu      sync.Mutex // held to start a sandbox
	resting bool       // rest is under way
	session *unitask.Session
}

// errNoSnapshot means that a snapshot could not be made after all.
var errNoSnapshot = fmt.Errorf("the snapshot: %w", fs.ErrNotExist)

// snapshots are the current ones.
type snapshots struct {
	mu   sync.Mutex
	list []*snapshot
}

// find returns a caller's snapshot by its id or name, without a tag; nil if there is none.
func (s *snapshots) find(name, owner string) *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range slices.Backward(s.list) {
		if one.owner == owner && one.is(name) {
			return one
		}
	}
	return nil
}

// is reports whether a snapshot has a name or id.
func (one *snapshot) is(name string) bool {
	bare := strings.TrimSuffix(name, ":default")
	return bare == one.id || one.name != "" && bare == one.name
}

func (s *snapshots) drop(one *snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(o *snapshot) bool { return o == one })
}

// start starts a session from a snapshot, and pauses the snapshot again.
func (one *snapshot) start(ctx context.Context) (*unitask.Session, error) {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.session == nil {
		return nil, errNoSnapshot
	}
	made, err := one.session.Fork(ctx, 1)
	if again := one.session.Pause(context.WithoutCancel(ctx)); again != nil {
		if err == nil {
			_ = made[0].Close()
			err = fmt.Errorf("pause the snapshot again: %w", again)
		}
		one.rest()
	}
	if err != nil {
		return nil, err
	}
	return made[0], nil
}

// restPeriod is the time between two attempts to pause a snapshot.
const restPeriod = 5 * time.Second

// rest pauses a snapshot that could not be paused, as soon as there is room; one.mu is held.
func (one *snapshot) rest() {
	if one.resting {
		return
	}
	one.resting = true
	go func() {
		for {
			select {
			case <-one.session.Done():
				return
			case <-time.After(restPeriod):
			}
			one.mu.Lock()
			err := one.session.Pause(context.Background())
			one.resting = err != nil
			one.mu.Unlock()
			if err == nil {
				return
			}
		}
	}()
}

// startAs starts a sandbox's session from a snapshot.
func (one *snapshot) startAs(ctx context.Context, box *sandbox) error {
	if every, hosts := box.network.reach(box.internet); !every {
		if has, of := one.network.reach(one.internet); has || !slices.Equal(hosts, of) {
			return policy.Bad("network", "other than the template's", "a sandbox has the network of its snapshot or build")
		}
	}
	made, err := one.start(ctx)
	if err != nil {
		return err
	}
	box.session, box.cpus, box.memoryMB, box.template, box.setup = made, one.cpus, one.memoryMB, one.id, one.setup
	box.network.AllowOut, box.network.DenyOut, box.internet = one.network.AllowOut, one.network.DenyOut, one.internet
	if box.interprets = one.interprets; box.interprets && !box.building {
		go box.warmUp()
	}
	return nil
}

// forked starts n forks of a sandbox's session.
func (s *Server) forked(ctx context.Context, box *sandbox, n int) ([]*unitask.Session, error) {
	if err := s.opts.Admit(box.caller); err != nil {
		return nil, err
	}
	box.changing.Lock()
	defer box.changing.Unlock()
	if !box.ready() {
		return nil, errNotRunning
	}
	return box.session.Fork(ctx, n)
}

// snapshotView is a snapshot for its owner.
type snapshotView struct {
	ID    string   `json:"snapshotID"`
	Names []string `json:"names"`
}

func (one *snapshot) view() snapshotView {
	v := snapshotView{one.id, []string{}}
	if one.name != "" {
		v.Names = append(v.Names, one.name+":default")
	}
	return v
}

func (s *Server) snapshot(w http.ResponseWriter, r *http.Request, box *sandbox) {
	var in struct {
		Name string `json:"name"`
	}
	if !readBody(w, r, &in) {
		return
	}
	if len(in.Name) > 128 {
		s.fail(w, r, policy.Bad("name", fmt.Sprintf("of %d bytes", len(in.Name)), "has at most 128"))
		return
	}
	one := &snapshot{id: "snap" + strings.ToLower(rand.Text())[:16], name: strings.TrimSuffix(in.Name, ":default"),
		owner: box.caller.Name, from: box.id, cpus: box.cpus, memoryMB: box.memoryMB, setup: box.setup,
		network: box.network, internet: box.internet}
	if err := s.snapshots.reserve(one); err != nil {
		s.fail(w, r, err)
		return
	}
	made, err := s.forked(r.Context(), box, 1)
	if err == nil {
		one.session = made[0]
		if err = one.session.Pause(context.WithoutCancel(r.Context())); err != nil {
			_ = one.session.Close()
		}
	}
	one.mu.Unlock()
	if err != nil {
		s.snapshots.drop(one)
		s.fail(w, r, err)
		return
	}
	go func() {
		<-one.session.Done()
		s.snapshots.drop(one)
	}()
	writeJSON(w, http.StatusCreated, one.view())
}

// reserve adds a snapshot that is being made, locked.
func (s *snapshots) reserve(one *snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, other := range s.list {
		if other.owner == one.owner {
			n++
		}
	}
	if n >= maxSnapshots {
		return &unitask.BusyError{What: fmt.Sprintf("you have %d snapshots, which is the most: delete one", n),
			After: time.Minute}
	}
	one.mu.Lock()
	s.list = append(s.list, one)
	return nil
}

func (s *Server) listSnapshots(w http.ResponseWriter, r *http.Request) {
	q, owner := r.URL.Query(), s.opts.Caller(r).Name
	s.snapshots.mu.Lock()
	list := slices.Clone(s.snapshots.list)
	s.snapshots.mu.Unlock()
	views := []snapshotView{}
	for _, one := range list {
		if one.owner == owner && (q.Get("sandboxID") == "" || q.Get("sandboxID") == one.from) &&
			(q.Get("name") == "" || one.is(q.Get("name"))) {
			views = append(views, one.view())
		}
	}
	page, err := pageOf(w, q, views)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, page)
}

// deleteSnapshot deletes a snapshot, which the API names as a template.
func (s *Server) deleteSnapshot(w http.ResponseWriter, r *http.Request) {
	one := s.snapshots.find(r.PathValue("id"), s.opts.Caller(r).Name)
	if one == nil {
		writeError(w, http.StatusNotFound, fmt.Sprintf("snapshot %.80q: there is none of yours", r.PathValue("id")))
		return
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	s.snapshots.drop(one)
	if one.session == nil {
		s.fail(w, r, errNoSnapshot)
		return
	}
	if err := one.session.Close(); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// close ends a snapshot.
func (one *snapshot) close() {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.session != nil {
		_ = one.session.Close()
	}
}

// forkResult is the outcome of one fork.
type forkResult struct {
	Sandbox *sandboxView `json:"sandbox,omitempty"`
	Error   *apiError    `json:"error,omitempty"`
}

// fork makes copies of a sandbox.
func (s *Server) fork(w http.ResponseWriter, r *http.Request, box *sandbox) {
	var in struct {
		Timeout *int `json:"timeout"`
		Count   *int `json:"count"`
	}
	if !readBody(w, r, &in) {
		return
	}
	timeout, err := seconds(in.Timeout, defaultTimeout)
	n := 1
	if in.Count != nil {
		n = *in.Count
	}
	var made []*unitask.Session
	if err == nil {
		made, err = s.forked(r.Context(), box, n)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	results := make([]forkResult, 0, n)
	for _, session := range made {
		copied := &sandbox{id: newID(), template: box.template, token: newToken(), traffic: newToken(), caller: box.caller,
			session: session, metadata: box.metadata, envs: box.envs, secure: box.secure, public: box.public,
			internet: box.internet, network: box.network, cpus: box.cpus, memoryMB: box.memoryMB, pauses: box.pauses,
			resumes: box.resumes, setup: box.setup}
		if err := s.keep(copied, timeout); err != nil {
			results = append(results, forkResult{Error: &apiError{statusOf(err), err.Error()}})
			continue
		}
		view := s.created(copied)
		results = append(results, forkResult{Sandbox: &view})
	}
	writeJSON(w, http.StatusCreated, results)
}
