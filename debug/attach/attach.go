// Package attach connects consoles to machines of current runs. A run's process serves a socket in the folder of
// its record, which accepts QMP (vmm.Relay); other processes of the same user connect to it.
package attach

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/vmm"
)

// Allowed returns an error if the ceiling forbids debugging.
func Allowed(c *policy.Ceiling) error {
	if c.Debug() {
		return nil
	}
	return policy.Bad("debug", "true", "the ceiling %s has debug = false", c.Path)
}

// socketName is the name of the socket in a run's folder.
const socketName = "debug.sock"

// patience bounds the time to join a machine, or to get an answer from it.
const patience = 5 * time.Second

// Client joins machines whose records are in one store.
type Client struct {
	History *history.Store
	Ceiling *policy.Ceiling // nil allows all
}

// Join connects to the machine of a current run of the same user, with the given access; withSecrets allows
// machines that hold secrets. The caller must disconnect the monitor, which changes nothing for the run.
func (c *Client) Join(ctx context.Context, id string, access vmm.Access, withSecrets bool,
) (*vmm.Monitor, *record.Record, error) {
	if err := Allowed(c.Ceiling); err != nil {
		return nil, nil, err
	}
	runs := c.History.Records
	id, err := runs.Find(id)
	if err != nil {
		return nil, nil, err
	}
	rec, err := runs.Get(id)
	if err != nil {
		return nil, nil, err
	}
	if rec.Status != record.Running {
		return nil, nil, fmt.Errorf("attach to %s: it is no longer running (%s); "+
			"`unitask runs ls --status running` lists the runs that are", id, rec.Status)
	}
	conn, err := localsocket.Dial(ctx, filepath.Join(runs.Dir(), id), socketName)
	if err != nil {
		return nil, nil, fmt.Errorf("attach to %s: its machine can't be joined "+
			"(not started yet, already gone, or its ceiling has debug = false): %w", id, err)
	}
	monitor := vmm.NewMonitor(conn)
	timed, cancel := context.WithTimeout(ctx, patience)
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

// NetworkView shows a run's network rules, connections and decisions.
type NetworkView struct {
	Rules       NetworkRules        `json:"rules"`
	Connections []netstack.Decision `json:"connections"` // open now, the oldest first
	Decisions   []json.RawMessage   `json:"decisions"`   // the last lines of the netlog
}

// NetworkRules are the fields of a run's policy for its network.
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

// viewedDecisions is the number of last netlog lines in a view.
const viewedDecisions = 20

// NetworkView returns the view of a current run, with its machine's connections (machine.Machine.Connections, or
// Connections if a monitor has joined it).
func (c *Client) NetworkView(id string, connections []netstack.Decision) (*NetworkView, error) {
	all, err := c.History.Inspect(id, 0)
	if err != nil {
		return nil, err
	}
	view := &NetworkView{Connections: connections, Decisions: all.Netlog[max(0, len(all.Netlog)-viewedDecisions):]}
	return view, json.Unmarshal(all.Record.Effective, &view.Rules)
}

// Connections returns the connections of the machine that a monitor has joined (Client.Join).
func Connections(ctx context.Context, monitor *vmm.Monitor) (list []netstack.Decision, err error) {
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return list, monitor.Do(timed, "unitask-connections", nil, &list)
}

// Release ends a machine that is kept after a crash (Keep) and that the monitor has joined (Client.Join).
func Release(ctx context.Context, monitor *vmm.Monitor) error {
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return monitor.Do(timed, "unitask-release", nil, nil)
}
