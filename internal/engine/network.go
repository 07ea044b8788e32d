package engine

import (
	"context"
	"io"

	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/run"
)

// configure connects the machine's network and its output to the record.
func (x *Execution) configure() error {
	network, relayed := egress.Network(x.engine.Upstream, x.Granted)
	network.Log = func(d netstack.Decision) {
		line, _ := x.Redactor.Marshal(history.NetlogLine{Schema: history.NetlogSchema, Run: x.Rec.ID, Caller: x.Rec.Owner,
			Worker: "", Decision: d})
		x.Rec.Netlog(line)
	}
	network.LogLost = x.Rec.Err
	network.Tally = func(d netstack.Decision) {
		x.audit.Decided(d)
		x.failed.See(d)
	}
	network.Capture = netstack.NewCapture(x.streams.Capture)
	network.Broker = x.Code.Broker
	network.Traffic = netstack.NewTraffic(0, 0) // of all machines that a session has in turn
	if s := x.purpose.Session; s != nil {
		network.Traffic = netstack.NewTraffic(s.Traffic())
	}
	if b := x.purpose.build; b != nil && b.Proxy != nil {
		network.Upstream.Proxy = b.Proxy
	}
	if err := x.approvals(&network); err != nil {
		return failure.At("network", err)
	}
	x.Code.Relayed = relayed
	serial := x.Redactor.Writer(x.Rec.Console())
	x.Later(func() { serial.Close() })
	x.Config = machine.Config{Network: network, Console: serial}
	x.Config.Events = func(e machine.Event) { x.streams.Events(run.Event{Kind: e.Kind, Message: e.Message}) }
	if debug := x.purpose.Debug; debug != nil && debug.Serial != nil {
		x.Config.Console = io.MultiWriter(debug.Serial, serial)
	}
	if trace := x.purpose.Trace; trace != nil {
		tr, err := trace.begin(x.Rec, x.Redactor)
		if err != nil {
			return failure.At("trace", err)
		}
		x.Later(tr.end)
		x.Config.Trace = &tr.Trace
	}
	return nil
}

// Network returns the network for a machine of the run, by the present rules.
func (x *Execution) Network() machine.Config {
	x.Live.Lock()
	defer x.Live.Unlock()
	return x.network()
}

// network is Network for a caller that has locked Live.
func (x *Execution) network() machine.Config {
	cfg := x.Config
	cfg.Network.Rules = x.Live.Rules(x.engine.Upstream, x.Granted)
	return cfg
}

// Resume takes the machine that start resumes. A change of the policy that comes meanwhile waits for it. Otherwise the
// former machine, which is gone, would take the change, and the guest would run on without it.
func (x *Execution) Resume(start func(machine.Config) (*machine.Machine, error)) error {
	x.Live.Lock()
	defer x.Live.Unlock()
	m, err := start(x.network())
	if err != nil {
		return err
	}
	x.Machine = m
	x.Asked.TakeMachine(m)
	return nil
}

// approvals makes the network ask if the policy says so, and lets the user's other processes reach the run.
func (x *Execution) approvals(network *netstack.Config) error {
	c := approval.Config{
		Home: x.engine.Home, Record: x.Rec, Redactor: x.Redactor, Result: x.Res, Tell: x.streams.Events, Note: x.audit.Note,
		Approver: func() run.Approver { return x.streams.Approve },
		Hold:     func(context.Context) (approval.Clock, func(), error) { return x.clock, func() {}, nil },
		Live:     x.Live, Granted: x.Granted, Upstream: x.engine.Upstream, Wait: x.engine.ApprovalTime,
	}
	if s := x.purpose.Session; s != nil {
		c.Approver, c.Hold = s.Approver, s.Stand
		c.Keep = func(all []run.PolicyChange) error { return s.KeepChanges(x.Rec.ID, all) }
	}
	asked, done, err := approval.Open(c)
	if err != nil {
		return err
	}
	x.Asked = asked
	x.Later(done)
	network.Asker = netstack.NewAsker(asked.Ask)
	return nil
}
