package unitask

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/machine"
)

// network is the network that a machine of the run is to have now.
func (x *execution) network() machine.Config {
	l := x.live
	l.Lock()
	defer l.Unlock()
	cfg := x.config
	cfg.Network.Rules = l.Rules(x.rt.opts.Upstream, x.granted)
	return cfg
}

// change changes the policy of a run whose machine is there. The network holds it when it returns.
func (a *approvals) change(c PolicyChange) error {
	l := a.x.live
	l.Lock()
	defer l.Unlock()
	a.mu.Lock()
	m := a.machine
	a.mu.Unlock()
	if m == nil {
		return errors.New("its machine has not started yet")
	}
	if err := l.Take(c); err != nil {
		return err
	}
	m.SetRules(l.Rules(a.x.rt.opts.Upstream, a.x.granted))
	c = l.Taken[len(l.Taken)-1]
	a.mu.Lock()
	a.x.res.PolicyChanges = append(a.x.res.PolicyChanges, c)
	a.mu.Unlock()
	a.x.audit.Note(audit.PolicyChanged, c)
	if a.x.look.session == nil {
		return nil
	}
	if err := paused.Open(a.x.rt.opts.Home).WriteChanges(a.x.rec.ID, l.Taken); err != nil {
		return fmt.Errorf("it holds now, and would be forgotten with the process that has the session: %w", err)
	}
	return nil
}

// SetPolicy changes the policy of a run or session of an owner ("" is the user of this process) that is
// under way in this home, in whatever process of the same user. It is not told apart whether an
// id is another owner's, has ended, or never was.
func (rt *Runtime) SetPolicy(ctx context.Context, owner, id string, c PolicyChange) error {
	none := fmt.Errorf("no run or session %.80q of yours is under way", id)
	owner = Caller{Name: owner}.WithDefaults().Name
	found, err := rt.runs.Find(id)
	if err != nil || strings.TrimSpace(id) == "" {
		return none
	}
	rec, err := rt.runs.Get(found)
	if err != nil || rec.Owner != owner {
		return none
	}
	told, err := rt.talk(ctx, filepath.Join(rt.runs.Dir(), found), approvalAsked{Policy: &c})
	if err != nil {
		return none
	}
	if told.Error != "" {
		return fmt.Errorf("run %s: %s", found, told.Error)
	}
	return nil
}
