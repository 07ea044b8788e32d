package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
)

// submission is a current run of a client.
type submission struct {
	c     *Client
	run   *unitask.FleetRun
	id    string
	store tenantStore
	first bool // this client created the entry, and has the run's standard input
	work  work // that the secrets are bound to

	attempt int // the known attempt, and the losses before it
	losses  int
	have    map[string]int64 // bytes of each stream that were passed on
	lag     map[string]bool  // a part is missing: the report has the rest
	broken  error            // of the submitter's own stream
	said    bool             // that no worker is present
	events  int              // number of the worker's events
	clock   clock
	unseen  time.Time // since when its worker has not been seen
}

// open opens the tenant; a worker makes it.
func (s *submission) open(ctx context.Context) (store tenantStore, err error) {
	err = s.patiently(ctx, func(ctx context.Context) (err error) {
		store, err = s.c.open(ctx)
		return err
	})
	if errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		err = fmt.Errorf("no worker has been here for tenant %s: `unitask worker --nats %s` is one", s.c.config.Tenant,
			s.c.config.URL)
	}
	return store, err
}

func (s *submission) patiently(ctx context.Context, do func(context.Context) error) error {
	return s.c.config.Times.patiently(ctx, do)
}

// submit puts the run into its tenant's bucket and into the queue, or joins an existing run with the same id.
func (s *submission) submit(ctx context.Context) error {
	req := s.run.Request
	arch := unitask.HostArch()
	if req.Arch != "" {
		arch = req.Arch
	}
	t := task{Request: req, Caller: s.run.Caller, Colors: s.run.Colors, Stdin: s.run.Stdin != nil, Image: s.run.Image}
	for _, mounts := range []*[]unitask.Mount{&t.Request.Files, &t.Request.Dirs} {
		list := []unitask.Mount{}
		for _, m := range *mounts {
			list = append(list, unitask.Mount{Host: m.Guest, Guest: m.Guest})
		}
		*mounts = list
	}
	if s.run.Inputs != nil && s.run.Inputs.Count() > 0 {
		err := s.patiently(ctx, func(ctx context.Context) (err error) {
			t.Files, err = s.putInputs(ctx)
			return err
		})
		if err != nil {
			return err
		}
	}
	if s.run.Image != nil {
		if err := s.patiently(ctx, s.putImage); err != nil {
			return err
		}
	}
	code := t.takeOut()
	e := entry{State: Queued, Class: string(arch), MemoryMB: max(req.MemoryMB, 1), Created: time.Now().UTC()}
	err := s.patiently(ctx, func(ctx context.Context) (err error) {
		if err = s.possible(ctx, e); err == nil && code != nil {
			e.Code, err = s.putCode(ctx, code)
		}
		if err == nil {
			e.Task, err = t.put(ctx, s.store)
		}
		return err
	})
	if err != nil {
		return err
	}
	s.work = workOf(e)
	return s.patiently(ctx, func(ctx context.Context) error { return s.enter(ctx, e) })
}

// enter creates the entry and its message in the queue, unless they exist.
func (s *submission) enter(ctx context.Context, e entry) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = s.store.runs.Create(ctx, s.id, text)
	s.first = err == nil
	if errors.Is(err, jetstream.ErrKeyExists) {
		there, _, err := s.store.get(ctx, s.id)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			err = errUnsettled
		}
		if err != nil {
			return err
		}
		if there.Task.SHA256 != e.Task.SHA256 || !there.Code.same(e.Code) {
			return fmt.Errorf("run %s is there and asks for something else: use another id", s.id)
		}
		if there.State != Queued {
			return nil
		}
		s.first = there.Created.Equal(e.Created) // created by an earlier request whose answer was lost
	} else if err != nil {
		return fmt.Errorf("submit run %s: %w", s.id, err)
	}
	priority, err := ParsePriority(string(s.c.Priority))
	if err != nil {
		return err
	}
	text, err = json.Marshal(ticket{s.id})
	if err != nil {
		return err
	}
	subject := subjectQueue + e.Class + "." + s.c.config.Tenant + "." + string(priority)
	_, err = s.c.js.Publish(ctx, subject, text, jetstream.WithMsgID(s.c.config.Tenant+"/"+s.id))
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == errMaxMessages) {
		if s.first {
			_ = s.store.runs.Purge(ctx, s.id)
		}
		return &unitask.BusyError{What: "the fleet's queue is full", After: retryAfter}
	}
	if last := s.c.nc.LastError(); err != nil && errors.Is(last, nats.ErrPermissionViolation) &&
		strings.Contains(last.Error(), subject) {
		if s.first {
			_ = s.store.runs.Purge(ctx, s.id)
		}
		return fmt.Errorf(
			"submit run %s with priority %s: NATS does not let this user: "+
				"ask for a lower one, or have the user's permissions changed (unitask fleet permissions --priority)", s.id,
			priority)
	}
	if err != nil {
		return fmt.Errorf("submit run %s: %w", s.id, err)
	}
	return nil
}

// errMaxMessages is JetStream's code for a stream, or a subject of it, that is full.
const errMaxMessages = 10077

func (s *submission) putCode(ctx context.Context, code joined) (*blob, error) {
	if _, err := code.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	b, err := s.store.put(ctx, code, false)
	if err == nil && b.Size > maxCode {
		err = fmt.Errorf("the code has %d bytes, and a fleet takes %d", b.Size, maxCode)
	}
	return &b, err
}

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
		return nil,
			errors.Join(err, fmt.Errorf("the files of the run have %d bytes, and a fleet takes %d: leave out what is not needed",
				size, maxFiles))
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	b, err := s.store.put(ctx, f, false)
	return &b, err
}

// possible returns an error if no present worker can ever do the run.
func (s *submission) possible(ctx context.Context, e entry) error {
	workers, now, err := s.c.lately(ctx)
	if err == nil && !now && unable(workers, e) != nil { // another may have joined since
		workers, err = s.c.Workers(ctx)
	}
	if err != nil || len(workers) == 0 || cut(workers) { // a worker may join, or be missing from the list
		return err
	}
	return unable(workers, e)
}

// unable returns why none of these workers can do the run, or nil if one can.
func unable(workers []WorkerInfo, e entry) error {
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
