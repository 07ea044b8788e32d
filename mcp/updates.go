package mcp

import (
	"context"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
)

// maxUpdates bounds the pending notifications about one caller's runs. Further ones are left out: every
// subscriber can read the run.
const maxUpdates = 8

// updates counts those notifications, by caller.
type updates struct {
	mu  sync.Mutex
	own map[string]int
}

func (u *updates) begin(caller string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.own == nil {
		u.own = map[string]int{}
	}
	if u.own[caller] >= maxUpdates {
		return false
	}
	u.own[caller]++
	return true
}

func (u *updates) end(caller string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.own[caller]--; u.own[caller] == 0 {
		delete(u.own, caller)
	}
}

// updated notifies the subscribers of a caller's run that it has ended. The call waits for none of them.
func (s *Server) updated(caller unitask.Caller, id string) {
	if !s.updates.begin(caller.Name) {
		return
	}
	go func() {
		defer s.updates.end(caller.Name)
		_ = s.sdk.ResourceUpdated(context.Background(), &sdk.ResourceUpdatedNotificationParams{URI: runsURI + id})
	}()
}
