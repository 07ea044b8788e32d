package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// A paused session outlives its process: another process finds what it needs beside the machine's memory. Secret
// values are not there; the next process asks for them again.

// errLeft is the cause when a process leaves a session paused.
var errLeft = errors.New("it is left paused, and resumes when it is used again")

// note returns what another process needs to resume the session. The caller ensures that the program holds its
// output, and that the policy does not change.
func (s *Session) note(x *engine.Execution) (json.RawMessage, error) {
	caller, running := s.holder().WithDefaults(), s.steps.interpreters()
	began, expires := s.lease.age()
	eff, err := json.Marshal(s.Policy.Effective)
	if err != nil {
		return nil, err
	}
	k := paused.Note{ID: s.ID, Parent: s.Parent, Owner: caller.Name, Via: caller.Via, Image: s.Image, Language: s.Language,
		Began: began, Expires: expires, Limits: s.limits, Request: s.request,
		Policy: paused.NotePolicy{Effective: eff, Denials: s.Policy.Denials, Ceiling: s.Policy.Ceiling,
			Origin: caller.CeilingOrigin(), Digest: s.beganUnder}, Kernel: s.Kernel, Cloned: s.cloned, Dir: s.dir, Env: s.env,
		CA: s.ca, Client: s.client.State(running), Out: s.artifacts.kept(), Changes: x.Live.Taken}
	k.BytesUp, k.BytesDown = x.Config.Network.Traffic.Bytes()
	if x.Code.Broker != nil {
		if k.Broker, err = x.Code.Broker.Keep(); err == nil {
			k.Broker.Authority, err = sealAuthority(s.manager.Engine.Home, s.ID, k.Broker.Authority)
		}
		if err != nil {
			return nil, err
		}
	}
	return json.Marshal(k)
}

// reviving is the resumption of a session that another process paused.
type reviving struct {
	kept   paused.Note
	at     time.Time
	digest string    // of its image
	since  time.Time // see PausedSession
	folder string
	values map[string]string
	rec    *record.Run // its own, reopened
	taken  bool        // its run has taken it, and finishes it
}

// Revive resumes a session that its process has left paused (PausedSession), or that was ended without closing. It
// continues from its last pause; if it did something since, the first step's Hint reports that. The caller must be the
// session's owner, and the caller's Ceiling must grant what the session was granted. secrets has the values of secrets
// that are bound to hosts. The error is a SessionError if there is no such session. It is a *machine.OtherHostError in
// a HostError if the machine can't continue here; the pause is then intact. Once the machine runs, the end of ctx has
// no effect, because the pause on the disk is then outdated.
func (m *Manager) Revive(ctx context.Context, caller run.Caller, id string, secrets map[string]string,
) (*Session, error) {
	if err := m.Refuse(); err != nil {
		return nil, err
	}
	pauses := paused.Open(m.Engine.Home)
	p, k, err := findPaused(m.Engine.Home, pauses, caller, id)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	caller.Origin = caller.CeilingOrigin() // the caller may hold an old ceiling
	if caller.Ceiling, err = readCeiling(caller, m.Engine.Home); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	if caller.Via == "" {
		caller.Via = k.Via
	}
	for _, secret := range k.Granted.Secrets {
		if _, there := secrets[secret.Name]; !there {
			return nil,
				policy.Bad("secrets", secret.Name,
					"is needed again, since its value is not kept on the disk: give it as when the session began")
		}
	}
	for name := range k.Request.Secrets {
		k.Request.Secrets[name] = secrets[name]
	}
	limits, denials, err := caller.Ceiling.Sessions(policy.SessionLimits{Life: k.Limits.Life, Idle: k.Limits.Idle},
		usualSessions(machine.HostMemory()))
	if err != nil {
		return nil, err
	}
	most, _, err := caller.Ceiling.Sessions(policy.SessionLimits{}, usualSessions(machine.HostMemory())) // as in Extend
	if err != nil {
		return nil, err
	}
	rec, err := takeRecord(m.Engine.Runs, pauses, p, k)
	if err != nil {
		return nil, err
	}
	s := newSession(m, caller, limits)
	s.denials = denials
	if k.Policy.Digest != "" || k.Policy.Ceiling == "" {
		s.beganUnder = k.Policy.Digest
	}
	s.Parent, s.Image, s.Language, s.family, s.request = k.Parent, k.Image, k.Language, &family{}, k.Request
	expires := k.Expires
	if last := k.Began.Add(most.Life); expires.After(last) { // the ceiling is narrower now
		expires = last
	}
	s.lease.set(k.Began, expires)
	s.dir, s.env, s.ca = k.Dir, k.Env, k.CA
	s.artifacts.restore(k.Out)
	s.revived = &reviving{kept: k, at: p.At, digest: p.ImageDigest, since: pauses.View(p, k).Since,
		folder: pauses.Folder(id), values: secrets, rec: rec}
	var running []*supervisor.Interpreter
	s.client, running = supervisor.Restore(k.Client)
	s.steps.add(running...)
	if since := s.revived.since; !since.IsZero() {
		s.steps.lose(
			fmt.Sprintf(
				"the process that held this session was killed: it goes on from its pause at %s, and what it did after %s is lost",
				p.At.Local().Format(time.DateTime), since.Local().Format(time.DateTime)))
	}
	if err := s.begin(ctx, catalog.Request{Request: k.Request}, func(run.Event) {}, func() {}); err != nil {
		return nil, err
	}
	if err := s.renew(ctx, running); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// findPaused reads a caller's paused session. The error is a SessionError if there is none, or its life is over.
func findPaused(home string, pauses paused.Store, caller run.Caller, id string,
) (p machine.Pause, k paused.Note, err error) {
	p, k, err = pauses.Read(id)
	switch {
	case err != nil:
		return p, k, err
	case k.Owner != caller.WithDefaults().Name:
		return p, k, &run.SessionError{ID: id, Why: "or never was"} // as one that never was
	case !time.Now().Before(k.Expires):
		_ = paused.Forget(home, id)
		return p, k, &run.SessionError{ID: id, Why: fmt.Sprintf("it had lived for %s",
			k.Expires.Sub(k.Began).Round(time.Second))}
	}
	return p, k, nil
}

// takeRecord opens the record of a paused session for this process alone. The error is a BusyError if another
// process has it.
func takeRecord(runs *record.Store, pauses paused.Store, p machine.Pause, k paused.Note) (*record.Run, error) {
	rec, err := runs.Reopen(k.ID)
	if errors.Is(err, record.ErrNotFound) { // it came from another host
		rec, err = runs.CreateAs(k.ID, time.Now(), k.Owner, k.Via, "code", nil, k.Request)
	}
	if errors.Is(err, record.ErrRunning) {
		return nil, &run.BusyError{What: "another process holds session " + k.ID, After: time.Second}
	}
	if err != nil {
		return nil, failure.Host("session", err)
	}
	if now, _, err := pauses.Read(k.ID); err != nil || !now.At.Equal(p.At) { // used since then
		return nil, errors.Join(&run.BusyError{What: "another process held session " + k.ID, After: time.Second}, rec.Leave())
	}
	return rec, nil
}

// renew reseeds the interpreters' random numbers, because other sessions may draw the same ones.
func (s *Session) renew(ctx context.Context, running []*supervisor.Interpreter) error {
	var all sync.WaitGroup
	for _, in := range running {
		all.Go(func() {
			if err := in.Renew(ctx); err != nil {
				s.steps.drop(in.Language, err.Error())
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.Kernel == oneProcess && s.steps.anyDropped() {
		return &run.SessionError{ID: s.ID, Why: errOneInterpreter.Error()}
	}
	return nil
}

// prepare returns the run of a resumed session: its grants, without the host's files, and the broker that its
// guest knows.
func (r *reviving) prepare(m *Manager, s *Session) (p engine.Prepared, err error) {
	if err = m.Engine.Catalog.CheckCeiling(s.ceiling()); err != nil {
		return p, err
	}
	req := catalog.Request{Request: r.kept.Request}
	req.Files, req.Dirs, req.InlineFiles = nil, nil, nil
	if req, err = m.Engine.Catalog.ResolveCustom(req, s.ceiling()); err != nil {
		return p, err
	}
	req = req.WithoutLanguage()
	if p.Code, err = program.Check(req); err != nil {
		return p, err
	}
	code := &p.Code
	code.On(run.IO{})
	code.Supervisor, code.Fresh, code.Installed = sessionRun{s}, r.kept.Kernel != oneProcess, true
	p.Live = &egress.LiveRules{Ceiling: s.ceiling()}
	p.Live.Begin(r.kept.Granted)
	for _, c := range r.kept.Changes {
		if err := p.Live.Apply(c); err != nil {
			return p, fmt.Errorf("a change of the session's policy: %w", err)
		}
	}
	code.Attachable = s.ceiling().Debug()
	eff := r.kept.Granted
	if err := stillGranted(req, s.ceiling(), eff, same); err != nil {
		return p, err
	}
	if eff.RequireJail, err = policy.Jail(eff.RequireJail, m.Engine.RequireJail); err != nil {
		return p, err
	}
	if kept := r.kept.Broker; kept != nil {
		own := *kept
		if own.Authority, err = openAuthority(m.Engine.Home, r.kept.ID, kept.Authority); err != nil {
			return p, err
		}
		code.Kept = &own
	}
	if err := code.Give(eff, r.values); err != nil {
		return p, err
	}
	denials := append(slices.Clone(r.kept.Policy.Denials), s.denials...)
	p.Granted = run.Policy{Effective: eff, Denials: denials, Ceiling: s.holder().CeilingPath()}
	p.Wanted = req.Request
	return p, nil
}

// stillGranted returns an error unless a ceiling still grants a request what it granted before: holds compares
// each field.
func stillGranted(req catalog.Request, ceiling *policy.Ceiling, once policy.Effective,
	holds func(key string, now, before any) bool) error {
	var none hostfiles.Set
	_, now, _, err := program.Resolve(req, ceiling, &none)
	if err != nil {
		return err
	}
	for _, eff := range []*policy.Effective{&now, &once} { // set elsewhere, or in the machine
		eff.Files, eff.Dirs, eff.Kernel, eff.RequireJail = nil, nil, "", nil
	}
	a, errA := json.Marshal(now)
	b, errB := json.Marshal(once)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	var here, there map[string]any
	_, _ = json.Unmarshal(a, &here), json.Unmarshal(b, &there)
	for _, key := range slices.Sorted(maps.Keys(there)) {
		if !holds(key, here[key], there[key]) {
			return policy.Bad(key, fmt.Sprintf("%.200v", there[key]),
				"was granted when the session began, and is %.200v under this ceiling: start another session", here[key])
		}
	}
	return nil
}

// elsewhere returns the disk space of the paused sessions that this process does not hold. The caller holds m.mu.
func (m *Manager) elsewhere() (bytes int64) {
	ours := map[string]bool{}
	for s := range m.sessions {
		select {
		case <-s.ready:
			ours[s.ID] = true
		default: // it has not paused yet
		}
	}
	pauses := paused.Open(m.Engine.Home)
	ids, _ := pauses.IDs()
	for _, id := range ids {
		if ours[id] {
			continue
		}
		if n, err := machine.PauseBytes(pauses.Folder(id)); err == nil {
			bytes += n
		}
	}
	return bytes
}

// continueFrom starts the machine.
func (r *reviving) continueFrom(source *machine.Source) func(context.Context, machine.Spec, machine.Config,
) (*machine.Machine, error) {
	return func(ctx context.Context, spec machine.Spec, cfg machine.Config) (*machine.Machine, error) {
		return resume(ctx, source, r.folder, spec, cfg)
	}
}

// resume starts the machine in a pause's folder, after it has noted that there: so no unnoted machine runs. After
// an error the folder is unchanged.
func resume(ctx context.Context, source *machine.Source, folder string, spec machine.Spec, cfg machine.Config,
) (*machine.Machine, error) {
	name := filepath.Join(folder, paused.ResumedName)
	before, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = atomicfile.Write(name, []byte(time.Now().UTC().Format(time.RFC3339Nano)), 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("note that the session goes on: %w", err)
	}
	m, err := source.Resume(ctx, folder, spec, cfg)
	if err != nil && before == nil {
		err = errors.Join(err, os.Remove(name))
	} else if err != nil {
		err = errors.Join(err, atomicfile.Write(name, before, 0o600))
	}
	return m, err
}
