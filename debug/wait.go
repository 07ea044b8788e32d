package debug

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// waitDefault is wait's time limit if none is given.
const waitDefault = 10 * time.Second

var errWaitUsage = errors.New("wait serial|stdout|stderr TEXT [TIME], wait event NAME [TIME], " +
	"wait stopped [TIME], or wait end [TIME]")

func (c *Console) wait(ctx context.Context, args []string) (any, error) {
	if len(args) == 0 {
		return nil, errWaitUsage
	}
	need := 1
	if !slices.Contains([]string{"stopped", "end"}, args[0]) {
		need = 2
	}
	limit := waitDefault
	if len(args) == need+1 {
		var err error
		if limit, err = time.ParseDuration(args[need]); err != nil {
			return nil, fmt.Errorf("wait: %q is not a time: 10s, 2m", args[need])
		}
	} else if len(args) != need {
		return nil, errWaitUsage
	}
	var come func() bool // called with mu held
	switch args[0] {
	case "serial", "stdout", "stderr":
		come = func() bool {
			w := c.streams[args[0]]
			if w == nil {
				return false
			}
			i := strings.Index(w.text, args[1])
			if i < 0 {
				return false
			}
			w.text = w.text[i+len(args[1]):]
			return true
		}
	case "event":
		come = func() bool {
			i := slices.Index(c.events, args[1])
			if i < 0 {
				return false
			}
			c.events = c.events[i+1:]
			return true
		}
	case "end":
		come = func() bool { return c.ended != "" }
	case "stopped":
		timed, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		for {
			running, err := c.running(timed)
			if err == nil && !running {
				return c.where(timed)
			}
			if err != nil {
				return nil, err
			}
			if !c.changes(timed, "STOP") {
				return nil, fmt.Errorf("wait stopped: not within %s", limit)
			}
		}
	default:
		return nil, errWaitUsage
	}
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		c.mu.Lock()
		done, changed, never := come(), c.changed, c.never(args[0])
		c.mu.Unlock()
		if done {
			return "", nil
		}
		if never != "" {
			return nil, fmt.Errorf("wait %s: it will not come: %s", strings.Join(args[:need], " "), never)
		}
		select {
		case <-changed:
		case <-timed.Done():
			return nil, fmt.Errorf("wait %s: not within %s", strings.Join(args[:need], " "), limit)
		}
	}
}

// never returns why the awaited event can no longer arrive, "" if it can. The caller holds mu.
func (c *Console) never(what string) string {
	switch {
	case what == "end":
		return ""
	case c.ended != "":
		return "the run is over: " + c.ended
	case what == "event" && c.gone:
		return "QEMU is gone"
	}
	return ""
}

// changes waits until an event of that name arrives or QEMU is gone; it returns false if ctx ended first.
func (c *Console) changes(ctx context.Context, event string) bool {
	for {
		c.mu.Lock()
		i := slices.Index(c.events, event)
		if i >= 0 {
			c.events = c.events[i+1:]
		}
		changed, gone := c.changed, c.gone
		c.mu.Unlock()
		if i >= 0 || gone {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
