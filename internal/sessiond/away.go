package sessiond

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/paused"
)

// This file finds sessions: live ones, and those that an earlier daemon has left.

// errGone is the answer for a session that never existed or has ended.
func errGone(name string) error {
	return &Error{Code: CodeGone, Unknown: true,
		Message: fmt.Sprintf("there is no session %.80q: it has ended, or never was", name)}
}

// find returns a held session, or one that is away, by its id or name.
func (h *Daemon) find(name string) (*held, *View) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sessions {
		if s.view.is(name) {
			return s, nil
		}
	}
	for _, v := range h.away {
		if v.is(name) {
			return nil, &v
		}
	}
	return nil, nil
}

// reach returns a session by its id or name. It resumes one that an earlier daemon has left paused, with the secrets
// that the session needs.
func (h *Daemon) reach(ctx context.Context, name string, secrets map[string]string) (*held, error) {
	s, v := h.find(name)
	switch {
	case s != nil:
		return s, nil
	case v == nil:
		return nil, errGone(name)
	case v.State == Lost:
		return nil, v.lostError()
	}
	h.mu.Lock()
	if before := h.reviving[v.ID]; before != nil { // another request resumes it
		h.mu.Unlock()
		select {
		case <-before:
			return h.reach(ctx, name, secrets)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	done := make(chan struct{})
	h.reviving[v.ID] = done
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.reviving, v.ID)
		close(done)
	}()
	if s, _ := h.find(name); s != nil { // meanwhile
		return s, nil
	}
	return h.revive(ctx, *v, secrets)
}

func (v View) is(name string) bool { return name != "" && (v.ID == name || v.Name == name) }

func (v View) lostError() error {
	return &Error{Code: CodeGone,
		Message: fmt.Sprintf(
			"session %s is lost: the process that held it was killed before it was paused, and its machine with it; "+
				"its steps' records remain", v.ID)}
}

// list returns the live sessions, and those that are away.
func (h *Daemon) list() []View {
	h.mu.Lock()
	list, live := slices.Clone(h.away), slices.Collect(maps.Values(h.sessions))
	views := make([]View, len(live))
	for i, s := range live {
		views[i] = s.view
	}
	h.mu.Unlock()
	for i, v := range list {
		if p, err := paused.Find(h.home, v.ID); err == nil {
			list[i].CeilingChanged = p.CeilingChanged(h.home)
		}
	}
	for i, s := range live {
		v := views[i]
		v.CeilingChanged = s.CeilingChanged()
		if s.Paused() {
			v.State = Paused
		}
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b View) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// end ends a session, or forgets one that is away.
func (h *Daemon) end(name string) error {
	s, v := h.find(name)
	switch {
	case s != nil:
		return s.Close()
	case v == nil:
		return forgetUnlisted(h.home, name)
	}
	if err := forget(h.home, *v); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(v.ID)
	delete(h.names, v.Name)
	h.keep()
	return nil
}

// forget removes the remains of a session that nobody holds.
func forget(home string, v View) error {
	err := paused.Forget(home, v.ID)
	if errors.As(err, new(*unitask.SessionError)) { // the session is lost, or another process has ended it
		return nil
	}
	return err
}

// forgetUnlisted removes the files of this user's session that is on no list, since it can't be read.
func forgetUnlisted(home, id string) error {
	p, err := paused.Find(home, id)
	if errors.As(err, new(*unitask.SessionError)) || err == nil && p.Owner != unitask.LocalOwner(os.Geteuid()) {
		return errGone(id)
	}
	return paused.Forget(home, id)
}

// drop removes a session from those that are away; the caller holds h.mu.
func (h *Daemon) drop(id string) {
	h.away = slices.DeleteFunc(h.away, func(v View) bool { return v.ID == id })
}

// keep writes the list of sessions, for the next daemon; the caller holds h.mu.
func (h *Daemon) keep() {
	list := slices.Clone(h.away)
	for _, id := range slices.Sorted(maps.Keys(h.sessions)) {
		list = append(list, h.sessions[id].view)
	}
	writeList(h.dir, list)
}

// rescue returns the files of a session whose machine can't continue because of why.
func (h *Daemon) rescue(c *client, req Request, why error) error {
	_, v := h.find(req.Session)
	if v == nil {
		return why
	}
	files, err := paused.Files(h.home, v.ID)
	if err != nil {
		return why
	}
	defer files.Close()
	if req.Op != OpPack || path.Clean("/work/"+req.Path) != "/work" && path.Clean(req.Path) != "/work" {
		return fmt.Errorf("%w. The files of its folder, as they were, are there to be had: unitask session cp -r %s:. DIR",
			why, v.ID)
	}
	_, err = io.Copy(c.out(kindStdout), files)
	return err
}
