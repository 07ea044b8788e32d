package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/clienttools"
)

// Limits of the events that are kept for those who follow a run.
const (
	keptBytes   = 1 << 20          // of one run's events; older ones are dropped
	eventCost   = 64               // bytes of an event beyond its data
	allBytes    = 64 << 20         // of all ended runs' events; those of the run that ended first are dropped
	callerBytes = allBytes / 8     // of one caller's ended runs' events
	keptTime    = 10 * time.Minute // after its end
	maxFinished = 64               // finished runs of one caller whose events are kept
	heartbeat   = 15 * time.Second // between comments on a stream without events
)

// event is something that happened in a run. Its number is its place among the run's events, from 1 on.
type event struct {
	kind string
	data []byte // JSON
}

// progress is what happened in a run so far.
type progress struct {
	caller  string
	session string             // of a session's step or command, or ""
	cancel  context.CancelFunc // ends the run
	calls   clienttools.Calls  // of the client's tools

	mu      sync.Mutex
	events  []event
	dropped int64 // events before the first of them
	bytes   int
	ended   time.Time     // the zero time while it runs
	changed chan struct{} // closed at the next event
}

func newProgress(caller string, cancel context.CancelFunc) *progress {
	p := &progress{caller: caller, cancel: cancel, changed: make(chan struct{})}
	p.calls.Began = func(one *clienttools.Call) { p.add("toolCall", one) }
	return p
}

// add adds an event. data is encoded in JSON.
func (p *progress) add(kind string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		text = []byte("{}")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event{kind, text})
	for p.bytes += len(text) + eventCost; p.bytes > keptBytes && len(p.events) > 1; p.dropped++ {
		p.bytes -= len(p.events[0].data) + eventCost
		p.events = p.events[1:]
	}
	p.wake()
}

// end adds the last event.
func (p *progress) end(data any) {
	p.add("end", data)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = time.Now()
	p.wake()
}

// wake tells those who wait; p.mu is held.
func (p *progress) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// after returns the events after a number, how many of them were dropped, and whether the run has ended. changed is
// closed when there is more.
func (p *progress) after(seq int64) (list []event, lost int64, ended bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lost = max(0, p.dropped-seq)
	from := min(max(0, seq-p.dropped), int64(len(p.events)))
	return p.events[from:len(p.events):len(p.events)], lost, !p.ended.IsZero(), p.changed
}

// last returns the number of the last event.
func (p *progress) last() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped + int64(len(p.events))
}

// wait waits for the end, and reports whether it has come before that of ctx.
func (p *progress) wait(ctx context.Context) bool {
	for {
		_, _, ended, changed := p.after(math.MaxInt64)
		if ended {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// printed is a piece of output in an event. Text that is not UTF-8 is in base64.
type printed struct {
	Text   string `json:"text,omitempty"`
	Base64 string `json:"base64,omitempty"`
}

// stream writes a stream's output to the events.
type stream struct {
	to   *progress
	kind string // stdout or stderr
	rest []byte // an incomplete character

	total int64 // bytes
}

func (s *stream) Write(text []byte) (int, error) {
	all := append(s.rest, text...)
	n := bounded.Whole(all)
	s.rest = append([]byte(nil), all[n:]...)
	s.total += int64(len(text))
	s.tell(all[:n])
	return len(text), nil
}

// flush writes what is left.
func (s *stream) flush() {
	s.tell(s.rest)
	s.rest = nil
}

func (s *stream) tell(text []byte) {
	switch {
	case len(text) == 0:
	case utf8.Valid(text):
		s.to.add(s.kind, printed{Text: string(text)})
	default:
		s.to.add(s.kind, printed{Base64: base64.StdEncoding.EncodeToString(text)})
	}
}

// progresses are the runs that go on, and those that ended a short time ago.
type progresses struct {
	mu  sync.Mutex
	all map[string]*progress // by the run's id
}

// add keeps a run's progress, and forgets old ones.
func (ps *progresses) add(id string, p *progress) {
	ps.mu.Lock()
	if ps.all == nil {
		ps.all = map[string]*progress{}
	}
	ps.all[id] = p
	ps.mu.Unlock()
	ps.trim()
}

// trim forgets the runs that ended long ago, and those beyond the limits.
func (ps *progresses) trim() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	type old struct {
		id     string
		caller string
		ended  time.Time
		bytes  int
	}
	var finished []old
	for id, p := range ps.all {
		p.mu.Lock()
		if !p.ended.IsZero() {
			finished = append(finished, old{id, p.caller, p.ended, p.bytes})
		}
		p.mu.Unlock()
	}
	slices.SortFunc(finished, func(a, b old) int { return b.ended.Compare(a.ended) }) // the last one first
	bytes, own, ownBytes := 0, map[string]int{}, map[string]int{}
	for _, one := range finished {
		own[one.caller]++
		ownBytes[one.caller] += one.bytes
		if own[one.caller] > maxFinished || ownBytes[one.caller] > callerBytes || bytes+one.bytes > allBytes ||
			time.Since(one.ended) > keptTime {
			delete(ps.all, one.id)
			continue
		}
		bytes += one.bytes
	}
}

// find returns the progress of a caller's run, nil if it is not kept.
func (ps *progresses) find(id, caller string) *progress {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.all[id]; p != nil && p.caller == caller {
		return p
	}
	return nil
}

// follow streams a run's events as server-sent events, from the one after the number in Last-Event-ID on, until its
// end. An event "lost" tells how many were dropped. After the end of the events it answers 204, so that a browser does
// not ask again.
func follow(c *call, p *progress) error {
	seq, err := lastEvent(c)
	if err != nil {
		return err
	}
	if last := p.last(); seq > last {
		return wrong(http.StatusBadRequest, fmt.Sprintf("there is no event %d: the last one is %d", seq, last))
	}
	if list, _, ended, _ := p.after(seq); ended && len(list) == 0 {
		c.w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return followFrom(c, p, seq)
}

// followFrom streams the events after a number.
func followFrom(c *call, p *progress, seq int64) error {
	control := http.NewResponseController(c.w)
	c.w.Header().Set("Content-Type", "text/event-stream")
	c.w.Header().Set("Cache-Control", "no-store")
	c.w.WriteHeader(http.StatusOK)
	if c.r.Method == http.MethodHead {
		return nil
	}
	for {
		list, lost, ended, changed := p.after(seq)
		if lost > 0 {
			seq += lost
			if _, err := fmt.Fprintf(c.w, "id: %d\nevent: lost\ndata: {\"events\":%d}\n\n", seq, lost); err != nil {
				return nil
			}
		}
		for _, e := range list {
			seq++
			if _, err := fmt.Fprintf(c.w, "id: %d\nevent: %s\ndata: %s\n\n", seq, e.kind, e.data); err != nil {
				return nil // the client has gone
			}
		}
		if err := control.Flush(); err != nil || ended {
			return nil
		}
		select {
		case <-changed:
		case <-c.r.Context().Done():
			return nil
		case <-time.After(heartbeat):
			if _, err := c.w.Write([]byte(":\n\n")); err != nil {
				return nil
			}
		}
	}
}

// lastEvent returns the number of the last event that a client has, from Last-Event-ID or the parameter after.
func lastEvent(c *call) (int64, error) {
	text := c.r.Header.Get("Last-Event-ID")
	if text == "" {
		return int64(c.number("after", 0)), nil
	}
	seq, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seq < 0 {
		return 0, wrong(http.StatusBadRequest, "Last-Event-ID: "+quoted(text)+" is no number of an event")
	}
	return seq, nil
}
