package cli

import (
	"context"
	"sync"
	"time"

	"github.com/unitask/unitask"
)

// A step's terminal answers its session's questions. The session's daemon has no terminal, so the process that
// waits for the step looks for a question and answers it, as unitask approve does.

const (
	askedAfter  = 300 * time.Millisecond // of a step; most have ended by then
	askedPeriod = 300 * time.Millisecond
)

// answering answers a session's questions until stop is called.
func (a *app) answering(ctx context.Context, session string, f runFlags) (stop func()) {
	if f.json || f.tty || f.input { // these streams are not for questions
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		select {
		case <-time.After(askedAfter):
		case <-ctx.Done():
			return
		}
		rt, err := a.open()
		if err != nil {
			return // unitask approve answers, too
		}
		defer rt.Close()
		a.answerFor(ctx, rt, a.sessionID(ctx, session), f)
	})
	return func() {
		cancel()
		group.Wait()
	}
}

// answerFor shows each question of a session on the terminal, once.
func (a *app) answerFor(ctx context.Context, rt *unitask.Runtime, session string, f runFlags) {
	approve := a.approver(f)
	var before time.Time
	for ; ctx.Err() == nil; sleep(ctx, askedPeriod) {
		q, err := rt.Approvals().Question(ctx, session)
		if err != nil || q == nil || q.Until.Equal(before) {
			continue
		}
		before = q.Until
		asked, cancel := context.WithDeadline(ctx, q.Until)
		var group sync.WaitGroup
		group.Go(func() { // it may be answered elsewhere
			defer cancel()
			for asked.Err() == nil {
				if now, err := rt.Approvals().Question(asked, session); err != nil || now == nil || !now.Until.Equal(q.Until) {
					return
				}
				sleep(asked, askedPeriod)
			}
		})
		said := approve(asked, *q)
		cancel()
		group.Wait()
		switch {
		case said == "":
			continue
		case said == unitask.AllowAlways:
			a.ui.note("always is for runs: it is allowed for this session")
			said = unitask.AllowRun
		}
		if err := rt.Approvals().Approve(ctx, session, q.Host, q.Request, said); err != nil && ctx.Err() == nil {
			a.ui.note("%v", err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
