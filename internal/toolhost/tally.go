package toolhost

import (
	"maps"
	"sync"
)

// maxTallied bounds the counts of a tally: the names of tools that are not on a list are the code's.
const maxTallied = 256

// tally counts calls by tool and by the code of their error ("ok" without).
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (t *tally) add(c Call) {
	key := c.Server + "." + c.Tool + " " + c.Code
	if c.Code == "" {
		key += "ok"
	}
	if c.Code == "unknown" {
		key = "unknown"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[string]int{}
	}
	if _, known := t.counts[key]; !known && len(t.counts) == maxTallied {
		key = "and more"
	}
	t.counts[key]++
}

// Tally returns how many calls were made, by tool and outcome.
func (s *Service) Tally() map[string]int {
	s.tally.mu.Lock()
	defer s.tally.mu.Unlock()
	return maps.Clone(s.tally.counts)
}
