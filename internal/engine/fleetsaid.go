package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/unitask/unitask/internal/audit/runlog"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/nesting"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// This file takes a worker's reports about a run. Nobody here can check them. They have the same bounds as reports of
// runs here, and are marked as the worker's.

// Bounds of a worker's reports.
const (
	MaxSaidDecisions = 10_000   // lines of a netlog, as of runs here
	MaxSaidLine      = 16 << 10 // bytes of one
	maxSaidValues    = 256      // JSON values of one
	maxSaidNetlog    = 64 << 20 // bytes of all lines in the record
	maxSaidUses      = 64       // pairs of a secret and a host that the audit log names
)

// SaidBy names the worker that makes the following reports.
func (r *FleetRun) SaidBy(worker string) {
	r.worker = bounded.Text(r.x.Redactor.String(worker), 64)
	r.x.audit.Worker = r.worker
}

// saidEvents are the kinds of events that a worker may report. Others concern this host's records and captures, or tell
// people what to type.
var saidEvents = []run.EventKind{run.EventImage, run.EventAccel, run.EventFallback, run.EventRetry, run.EventFiles,
	run.EventStarted, run.EventJail, run.EventNetwork}

// saidEvent passes a worker's event on. The worker knows the secrets.
func (x *Execution) saidEvent(e run.Event) {
	if slices.Contains(saidEvents, e.Kind) {
		x.streams.Events(run.Event{Kind: e.Kind, Message: x.said(e.Message)})
	}
}

// said removes secrets from a worker's text, and bounds it. Bounding comes last, since it could cut a secret in two.
func (x *Execution) said(text string) string {
	return bounded.Text(x.Redactor.String(text), history.MaxSaidError)
}

// Decided writes a line of the worker's netlog into the record, if it is one. more reports whether further lines are
// accepted.
func (r *FleetRun) Decided(line []byte) (more bool) {
	if r.decidedBytes > maxSaidNetlog {
		r.decided = max(r.decided, MaxSaidDecisions)
	}
	if r.decided == MaxSaidDecisions {
		r.x.streams.Events(run.Event{Kind: run.EventStore, Message: fmt.Sprintf(
			"the worker's netlog has more than %d lines or %d MiB: the rest is left out",
			MaxSaidDecisions, maxSaidNetlog>>20)})
	}
	if r.decided++; r.decided > MaxSaidDecisions {
		return false
	}
	var d netstack.Decision
	if len(line) > MaxSaidLine || nesting.Check(line, 4, maxSaidValues) != nil || json.Unmarshal(line, &d) != nil {
		return true
	}
	history.BoundSaidLine(&d, r.x.Granted.Secrets, r.x.Redactor)
	text, _ := r.x.Redactor.Marshal(history.NetlogLine{Schema: history.NetlogSchema,
		Run: r.x.Rec.ID, Caller: r.x.Rec.Owner, Worker: r.worker, Decision: d})
	r.decidedBytes += len(text)
	r.x.Rec.Netlog(text)
	r.x.audit.Decided(r.counted(d))
	return true
}

// counted returns a line as the audit log counts it. It names the first of many uses of secrets, so that none of them
// hides the others.
func (r *FleetRun) counted(d netstack.Decision) netstack.Decision {
	if r.uses == nil {
		r.uses = map[string]bool{}
	}
	for _, name := range d.Secrets {
		use := name + " " + d.Name
		if !r.uses[use] && len(r.uses) >= maxSaidUses {
			d.Name = runlog.MoreListed
			break
		}
		r.uses[use] = true
	}
	return d
}

// saidError bounds a worker's error, and removes secrets from it.
func (x *Execution) saidError(err error) error {
	say := x.said
	var field *policy.FieldError
	var guest *run.GuestError
	var lost *run.LostError
	var host *run.HostError
	switch {
	case errors.As(err, &field):
		told := &policy.FieldError{
			Field:  say(field.Field),
			Value:  say(field.Value),
			Reason: say(field.Reason),
			Would:  maps.Clone(field.Would),
		}
		history.BoundSaidWould(told.Would)
		return told
	case errors.As(err, &guest):
		return &run.GuestError{Reason: say(guest.Reason), Console: say(guest.Console)}
	case errors.As(err, &lost):
		return &run.LostError{Reason: say(lost.Reason)}
	case errors.As(err, &host):
		return &run.HostError{Op: host.Op, Err: bounded.Reworded(host.Err, say(host.Err.Error()))}
	}
	return err
}
