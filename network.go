package unitask

import (
	"context"
	"io"

	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/netstack"
)

// configure has the machine's network and its output lead into the record.
func (x *execution) configure() error {
	network, relayed := egress.Network(x.engine.upstream, x.granted)
	network.Log = func(d netstack.Decision) {
		line, _ := x.redactor.Marshal(history.NetlogLine{Schema: history.NetlogSchema, Run: x.rec.ID, Caller: x.rec.Owner, Worker: "", Decision: d})
		x.rec.Netlog(line)
	}
	network.LogLost = x.rec.Err
	network.Tally = x.audit.Decided
	network.Capture = netstack.NewCapture(x.streams.Capture)
	network.Broker = x.code.Broker
	network.Traffic = netstack.NewTraffic(0, 0) // of all machines that a session has in turn
	if s := x.look.session; s != nil {
		network.Traffic = netstack.NewTraffic(s.Traffic())
	}
	if b := x.look.build; b != nil && b.Proxy != nil {
		network.Upstream.Proxy = b.Proxy
	}
	if err := x.approvals(&network); err != nil {
		return failure.At("network", err)
	}
	x.code.Relayed = relayed
	serial := x.redactor.Writer(x.rec.Console())
	x.later(func() { serial.Close() })
	x.config = machine.Config{Network: network, Console: serial}
	x.config.Events = func(e machine.Event) { x.streams.Events(Event{Kind: e.Kind, Message: e.Message}) }
	if debug := x.look.debug; debug != nil && debug.Serial != nil {
		x.config.Console = io.MultiWriter(debug.Serial, serial)
	}
	if trace := x.look.trace; trace != nil {
		tr, err := trace.begin(x.rec, x.redactor)
		if err != nil {
			return failure.At("trace", err)
		}
		x.later(tr.end)
		x.config.Trace = &tr.Trace
	}
	return nil
}

// network is the network that a machine of the run is to have now.
func (x *execution) network() machine.Config {
	l := x.live
	l.Lock()
	defer l.Unlock()
	cfg := x.config
	cfg.Network.Rules = l.Rules(x.engine.upstream, x.granted)
	return cfg
}

// approvals has the network ask where the policy says so, and others of the user reach the run.
func (x *execution) approvals(network *netstack.Config) error {
	c := approval.Config{
		Home: x.engine.home, Record: x.rec, Redactor: x.redactor, Result: x.res, Tell: x.streams.Events, Note: x.audit.Note,
		Approver: func() Approver { return x.streams.Approve },
		Hold:     func(context.Context) (approval.Clock, func(), error) { return x.clock, func() {}, nil },
		Live:     x.live, Granted: x.granted, Upstream: x.engine.upstream, Wait: x.engine.approvalTime,
	}
	if s := x.look.session; s != nil {
		c.Approver, c.Hold = s.Approver, s.Stand
		c.Keep = func(all []PolicyChange) error { return s.KeepChanges(x.rec.ID, all) }
	}
	asked, done, err := approval.Open(c)
	if err != nil {
		return err
	}
	x.asked = asked
	x.later(done)
	network.Asker = netstack.NewAsker(asked.Ask)
	return nil
}
