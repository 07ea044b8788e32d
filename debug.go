package unitask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/vmm"
)

// Debug is Run for a developer who inspects the machine. It is booted, stopped before its first
// instruction, and has no deadlines, not even the time limit, because it may stand still for
// long. The record says that it was debugged.
func (rt *Runtime) Debug(ctx context.Context, caller Caller, req Request, streams IO, opts DebugOptions) (*Result, error) {
	req.Debug = true
	return rt.runFor(ctx, caller, catalog.Request{Request: req}, streams, engine.How{Debug: &opts})
}

// debugSocket is, in a run's folder, where others of its user join its machine.
const debugSocket = "debug.sock"

// maxAttached bounds the consoles on one machine.
const maxAttached = 8

// attachable lets processes of the same user join a run's machine over a socket in its
// record's folder, which speaks QMP (vmm.Relay), until detach is called. A machine that
// no socket can be had for runs all the same. release ends one that is kept.
func (rt *Runtime) attachable(rec *record.Run, m *machine.Machine, secrets bool, redactor *record.Redactor, release func() error) (detach func()) {
	none := func() {}
	l, err := localsocket.Listen(rec.Dir(), debugSocket)
	if err != nil {
		return none
	}
	ctx, cancel := context.WithCancel(context.Background())
	connections := func() json.RawMessage {
		list, _ := redactor.Marshal(m.Connections())
		return list
	}
	relay := vmm.Relay{Monitor: m.Monitor, Release: release, Connections: connections, Grant: func(want vmm.Access, args json.RawMessage) error {
		var how struct {
			WithSecrets bool `json:"withSecrets"`
		}
		_ = json.Unmarshal(args, &how)
		if secrets && !how.WithSecrets {
			return errors.New("the machine holds secrets, which this access can read: attach with --with-secrets")
		}
		return nil
	}}
	var group sync.WaitGroup
	group.Go(func() {
		localsocket.Serve(l, maxAttached, &group, func(conn *net.UnixConn) {
			_ = relay.Serve(ctx, conn) // what goes wrong is the client's to know
		})
	})
	return func() {
		cancel()
		l.Close()
		group.Wait()
		_ = os.Remove(filepath.Join(rec.Dir(), debugSocket))
	}
}

// attachPatience bounds how long joining a machine takes.
const attachPatience = 5 * time.Second

// Attach joins the machine of a run of the same user that is running now, with the given
// access; withSecrets allows machines that hold secrets. The caller must disconnect the
// monitor, which changes nothing for the run.
func (rt *Runtime) Attach(ctx context.Context, id string, access vmm.Access, withSecrets bool) (*vmm.Monitor, *record.Record, error) {
	if err := engine.MayDebug(rt.opts.Ceiling); err != nil {
		return nil, nil, err
	}
	id, err := rt.runs.Find(id)
	if err != nil {
		return nil, nil, err
	}
	rec, err := rt.runs.Get(id)
	if err != nil {
		return nil, nil, err
	}
	if rec.Status != record.Running {
		return nil, nil, fmt.Errorf("attach to %s: it is no longer running (%s); `unitask runs ls --status running` lists the runs that are", id, rec.Status)
	}
	conn, err := localsocket.Dial(ctx, filepath.Join(rt.runs.Dir(), id), debugSocket)
	if err != nil {
		return nil, nil, fmt.Errorf("attach to %s: its machine can't be joined (not started yet, already gone, or its ceiling has debug = false): %w", id, err)
	}
	monitor := vmm.NewMonitor(conn)
	timed, cancel := context.WithTimeout(ctx, attachPatience)
	defer cancel()
	err = localsocket.SameUser(conn)
	if err == nil {
		err = monitor.ConnectContext(timed)
	}
	if err == nil && access != vmm.AccessRead {
		err = monitor.Do(timed, "unitask-access", map[string]any{"access": access, "withSecrets": withSecrets}, nil)
	}
	if err != nil {
		_ = monitor.Disconnect()
		return nil, nil, fmt.Errorf("attach to %s: %w", id, err)
	}
	return monitor, rec, nil
}

// NetworkView is what a run's network may do and does.
type NetworkView struct {
	Rules       NetworkRules        `json:"rules"`
	Connections []netstack.Decision `json:"connections"` // open now, the oldest first
	Decisions   []json.RawMessage   `json:"decisions"`   // the last lines of the netlog
}

// NetworkRules are what of a run's policy its network follows.
type NetworkRules struct {
	AllowNet       []policy.NetRule  `json:"allowNet"`
	AllowNetAny    bool              `json:"allowNetAny"`
	Ask            []policy.NetRule  `json:"ask"`
	AllowTCP       []policy.TCPRule  `json:"allowTcp"`
	AllowHTTP      []policy.HTTPRule `json:"allowHttp"`
	MaxConnections int               `json:"maxConnections"`
	MaxUpload      int64             `json:"maxUploadBytes"`
	MaxDownload    int64             `json:"maxDownloadBytes"`
}

// viewedDecisions is how many of a netlog's last lines a view has.
const viewedDecisions = 20

// NetworkView is the view of a run that runs now, with the connections that its machine
// has (machine.Machine.Connections, or Connections where it was joined).
func (rt *Runtime) NetworkView(id string, connections []netstack.Decision) (*NetworkView, error) {
	all, err := rt.History().Inspect(id, 0)
	if err != nil {
		return nil, err
	}
	view := &NetworkView{Connections: connections, Decisions: all.Netlog[max(0, len(all.Netlog)-viewedDecisions):]}
	return view, json.Unmarshal(all.Record.Effective, &view.Rules)
}

// Connections are those of the machine that a monitor has joined (Runtime.Attach).
func Connections(ctx context.Context, monitor *vmm.Monitor) (list []netstack.Decision, err error) {
	timed, cancel := context.WithTimeout(ctx, attachPatience)
	defer cancel()
	return list, monitor.Do(timed, "unitask-connections", nil, &list)
}

// Release ends a machine that is kept after a crash (Keep), which the monitor has joined
// (Runtime.Attach).
func Release(ctx context.Context, monitor *vmm.Monitor) error {
	timed, cancel := context.WithTimeout(ctx, attachPatience)
	defer cancel()
	return monitor.Do(timed, "unitask-release", nil, nil)
}

// maxDump bounds a dump beyond the guest's memory: headers and notes.
const maxDump = 64 << 20

// Dump writes a machine's memory to a file as an ELF core, which gdb and crash read. The
// machine stands still meanwhile. QEMU writes into a pipe: it can open no file.
func Dump(ctx context.Context, monitor *vmm.Monitor, memoryMB int, to *os.File) (int64, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	defer w.Close()
	stop := context.AfterFunc(ctx, func() { r.Close() })
	defer stop()
	if err := monitor.SendFile(ctx, "dump", w); err != nil {
		return 0, err
	}
	w.Close()
	type copied struct {
		n   int64
		err error
	}
	done := make(chan copied, 1)
	limit := int64(memoryMB)<<20 + maxDump
	go func() {
		n, err := to.ReadFrom(&bounded.Reader{From: r, Left: limit, Err: errors.New("more than the machine's memory")})
		done <- copied{n, err}
	}()
	if err := monitor.Do(ctx, "dump-guest-memory", map[string]any{"paging": false, "protocol": "fd:dump"}, nil); err != nil {
		r.Close()
		<-done
		return 0, err
	}
	c := <-done
	return c.n, c.err
}
