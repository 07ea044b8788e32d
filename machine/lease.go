package machine

import (
	"errors"
	"time"
)

// The pool daemon is a pool that lends clones to its user's other processes; see lease_linux.go.

// ErrNoPool means that no pool daemon runs. On macOS, which has no memfd, none can run.
var ErrNoPool = errors.New("no pool daemon runs")

// ErrPoolRuns means that a pool daemon runs already.
var ErrPoolRuns = errors.New("a pool daemon runs already")

// PoolStatus is a pool daemon's report.
type PoolStatus struct {
	Pid     int       `json:"pid"`
	Started time.Time `json:"started"`
	Min     int       `json:"min"`
	Max     int       `json:"max"`
	Class   Class     `json:"shape"`
	Running int       `json:"running"` // current runs on its clones
	PoolStats
}
