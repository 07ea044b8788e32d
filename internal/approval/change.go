package approval

import (
	"errors"
	"fmt"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/run"
)

// change changes the policy of a run with a machine. The change is in force when change returns.
func (a *Asker) change(c run.PolicyChange) error {
	l := a.Live
	l.Lock()
	defer l.Unlock()
	a.mu.Lock()
	m := a.machine
	a.mu.Unlock()
	if m == nil {
		return errors.New("its machine has not started yet")
	}
	if err := l.Apply(c); err != nil {
		return err
	}
	m.SetRules(l.Rules(a.Upstream, a.Granted))
	c = l.Taken[len(l.Taken)-1]
	a.mu.Lock()
	a.Result.PolicyChanges = append(a.Result.PolicyChanges, c)
	a.mu.Unlock()
	a.Note(audit.PolicyChanged, c)
	if a.Keep == nil {
		return nil
	}
	if err := a.Keep(l.Taken); err != nil {
		return fmt.Errorf("it holds now, and would be forgotten with the process that has the session: %w", err)
	}
	return nil
}
