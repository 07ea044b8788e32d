package session

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// The files of a ceiling may change while a session lives. unitask reads them again to fork, extend or resume the
// session: they must still grant what it has.

// authority identifies the session's caller and ceiling. callerMu guards caller; beganUnder does not change once
// the session is set up.
type authority struct {
	callerMu sync.Mutex
	caller   run.Caller
	// beganUnder is the digest of the ceiling at the session's start.
	beganUnder string
}

// holder returns the session's caller, with the ceiling that was last read.
func (a *authority) holder() run.Caller {
	a.callerMu.Lock()
	defer a.callerMu.Unlock()
	return a.caller
}

func (a *authority) ceiling() *policy.Ceiling { return a.holder().Ceiling }

// renew replaces the ceiling with one that was read again.
func (a *authority) renew(ceiling *policy.Ceiling) {
	a.callerMu.Lock()
	defer a.callerMu.Unlock()
	a.caller.Origin = a.caller.CeilingOrigin() // also without a file, since one may appear later
	a.caller.Ceiling = ceiling
}

// readCeiling makes the ceiling again from the current files. It keeps a ceiling that a program made.
func (s *Session) readCeiling() (*policy.Ceiling, error) {
	return readCeiling(s.holder(), s.manager.Engine.Home)
}

func readCeiling(c run.Caller, home string) (*policy.Ceiling, error) {
	origin := c.CeilingOrigin()
	if origin == nil {
		return c.Ceiling, nil
	}
	now, err := origin.Ceiling(home, c.WithDefaults().Name)
	if err != nil {
		return nil, fmt.Errorf("read the session's ceiling again: %w", err)
	}
	return now, nil
}

// CeilingChanged reports whether the ceiling's files differ from those that the session began under, or can't be read.
func (s *Session) CeilingChanged() bool {
	now, err := s.readCeiling()
	return err != nil || now.Digest() != s.beganUnder
}

// renewCeiling reads the ceiling again. The error names a field of the session's grants that exceeds it. renewCeiling
// shortens a life that is now too long.
func (s *Session) renewCeiling() error {
	now, err := s.readCeiling()
	if err != nil || now.Digest() == s.ceiling().Digest() {
		return err
	}
	if err := s.manager.Engine.Catalog.CheckCeiling(now); err != nil {
		return err
	}
	if len(s.own) > 0 && !now.ClientTools() {
		return policy.Bad("clientTools", "true",
			"was granted when the session began, and is false under this ceiling: start another session")
	}
	req := catalog.Request{Request: s.request}
	req.Files, req.Dirs, req.InlineFiles = nil, nil, nil
	if req, err = s.manager.Engine.Catalog.ResolveCustom(req, now); err != nil {
		return err
	}
	req = req.WithoutLanguage()
	if err := stillGranted(req, now, s.Policy.Effective, covers); err != nil {
		return err
	}
	if err := s.made.Live.Renew(now); err != nil {
		return fmt.Errorf("a change of the session's policy: %w", err)
	}
	most, _, err := now.Sessions(policy.SessionLimits{}, usualSessions(machine.HostMemory()))
	if err != nil {
		return err
	}
	s.authority.renew(now)
	if began, expires := s.lease.age(); expires.After(began.Add(most.Life)) {
		s.lease.setEnd(began.Add(most.Life))
	}
	return nil
}

// covers reports whether a field's new grant includes all of the old one, in JSON.
func covers(key string, now, before any) bool {
	if reflect.DeepEqual(now, before) {
		return true
	}
	switch before := before.(type) {
	case float64:
		n, is := now.(float64)
		return is && n >= before
	case []any: // a rule about requests may forbid
		list, is := now.([]any)
		return is && key != "allowHttp" && !slices.ContainsFunc(before, func(one any) bool {
			return !slices.ContainsFunc(list, func(other any) bool { return reflect.DeepEqual(one, other) })
		})
	case nil:
		_, is := now.([]any)
		return is && key != "allowHttp"
	case bool: // other fields are demands
		return !before && (key == "allowNetAny" || key == "debug")
	}
	return false
}

// same reports whether a field is unchanged.
func same(_ string, now, before any) bool { return reflect.DeepEqual(now, before) }
