package sessiond

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/policy"
)

// named matches the names of sessions: none of them is an id.
var named = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// begin starts a session.
func (h *Daemon) begin(ctx context.Context, req *New) (Answer, error) {
	if req == nil {
		return Answer{}, &Error{Code: CodeUsage, Message: "a new session of what?"}
	}
	if req.Name != "" && !named.MatchString(req.Name) {
		return Answer{}, policy.Bad("name", fmt.Sprintf("%.80q", req.Name),
			"must be lower-case letters, digits and dashes, 32 at most, and begin with a letter")
	}
	if err := h.take(req.Name); err != nil {
		return Answer{}, err
	}
	var ceiling *policy.Ceiling
	if req.Ceiling != nil {
		var err error
		if ceiling, err = req.Ceiling.Ceiling(h.home, ""); err != nil {
			h.give(req.Name)
			return Answer{}, err
		}
	}
	run := req.Request
	run.Secrets = req.Secrets
	s, err := h.rt.NewSessionFor(ctx, unitask.Caller{Via: unitask.ViaCLI, Ceiling: ceiling, Origin: req.Ceiling},
		unitask.SessionRequest{Request: run, Life: time.Duration(req.LifeMS), Idle: time.Duration(req.IdleMS),
			Project: req.Project})
	if err != nil {
		h.give(req.Name)
		return Answer{}, err
	}
	view := h.hold(s, req.Name)
	view.Denials = s.Policy.Denials
	return Answer{Sessions: []View{view}}, nil
}

// fork forks a session.
func (h *Daemon) fork(ctx context.Context, of *held, n int) (Answer, error) {
	forks, err := of.Fork(ctx, n)
	if err == nil && ctx.Err() != nil { // nobody would learn their ids
		err = context.Cause(ctx)
		for _, s := range forks {
			_ = s.Close()
		}
	}
	if err != nil {
		return Answer{}, err
	}
	var answer Answer
	for _, s := range forks {
		answer.Sessions = append(answer.Sessions, h.hold(s, ""))
	}
	return answer, nil
}

// hold keeps a session until it ends.
func (h *Daemon) hold(s *unitask.Session, name string) View {
	view := View{ID: s.ID, Name: name, Parent: s.Parent, State: Running, Language: s.Language, Image: s.Image,
		Began: s.Began().UTC().Truncate(time.Second), ExpiresAt: s.Expires().UTC().Truncate(time.Second)}
	one := &held{s, view}
	h.mu.Lock()
	h.sessions[s.ID] = one
	h.drop(s.ID)
	h.keep()
	h.mu.Unlock()
	h.ends.Go(func() {
		<-s.Done()
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.sessions, s.ID)
		if s.Left() {
			left := one.view
			left.State = Paused
			h.away = append(h.away, left)
		} else {
			delete(h.names, view.Name)
		}
		h.since = time.Now()
		h.keep()
	})
	return view
}

// extended writes a session's new end into the list.
func (h *Daemon) extended(s *held) View {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.view.ExpiresAt = s.Expires().UTC().Truncate(time.Second)
	h.keep()
	return s.view
}

// revive resumes a session that an earlier daemon, or another process of the user, has left paused.
func (h *Daemon) revive(ctx context.Context, v View, secrets map[string]string) (*held, error) {
	var s *unitask.Session
	var ceiling *policy.Ceiling
	paused, err := paused.Find(h.home, v.ID)
	if err == nil {
		ceiling, err = paused.ReadCeiling(h.home)
	}
	switch {
	case err == nil:
		s, err = h.rt.Revive(ctx, unitask.Caller{Via: paused.Via, Ceiling: ceiling, Origin: paused.Origin}, v.ID, secrets)
	case h.rt.Runs().Held(v.ID):
		err = &unitask.BusyError{What: "another process holds session " + v.ID, After: time.Second}
	}
	var needs *policy.FieldError
	if errors.As(err, &needs) && needs.Field == "secrets" {
		return nil, fmt.Errorf("%w: unitask session resume %s --secret %s", err, v.ID, needs.Value)
	}
	if errors.As(err, new(*unitask.SessionError)) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.drop(v.ID)
		delete(h.names, v.Name)
		h.keep()
	}
	if err != nil {
		return nil, err
	}
	h.hold(s, v.Name)
	now, _ := h.find(v.ID)
	if now == nil {
		return nil, errGone(v.ID)
	}
	return now, nil
}

func (h *Daemon) take(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if name == "" {
		return nil
	}
	if h.names[name] {
		return policy.Bad("name", name, "is another session's")
	}
	h.names[name] = true
	return nil
}

func (h *Daemon) give(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.names, name)
}
