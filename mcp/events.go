package mcp

import (
	"container/list"
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Limits of the stored events of resumable streams.
const (
	eventBytes       = 64 << 20 // of all callers; the caller with the most loses its oldest
	callerEventBytes = 16 << 20 // of one caller
	callerStreamsOld = 10_000   // streams of one caller, ended or not
	eventCost        = 128      // bytes for an event and a stream beyond their data
)

// events stores what was sent on streams, for clients that resume them. Callers are separate, so that a caller's
// large answers only displace its own. It implements sdk.EventStore.
type events struct {
	most, own int64 // bytes of all callers, and of one
	whose     func(context.Context) string

	mu       sync.Mutex
	bytes    int64
	callers  map[string]*callerEvents
	sessions map[string]*sessionEvents
}

type callerEvents struct {
	name     string
	bytes    int64
	sessions int        // of the caller
	streams  *list.List // of *eventStream, the least recently used first
}

type sessionEvents struct {
	caller  *callerEvents
	streams map[string]*eventStream
}

type eventStream struct {
	id      string
	session *sessionEvents
	first   int // the index of the first event in data
	data    [][]byte
	place   *list.Element
}

// newEvents returns a store for at most that many bytes; whose returns the caller of a request's context.
func newEvents(most, own int64, whose func(context.Context) string) *events {
	return &events{most: most, own: own, whose: whose, callers: map[string]*callerEvents{},
		sessions: map[string]*sessionEvents{}}
}

// Open begins a stream of the caller of the context's request.
func (e *events) Open(ctx context.Context, session, stream string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.sessions[session]
	if of == nil {
		name := e.whose(ctx)
		caller := e.callers[name]
		if caller == nil {
			caller = &callerEvents{name: name, streams: list.New()}
			e.callers[name] = caller
		}
		of = &sessionEvents{caller: caller, streams: map[string]*eventStream{}}
		e.sessions[session] = of
		caller.sessions++
	}
	if of.streams[stream] != nil {
		return nil
	}
	s := &eventStream{id: stream, session: of}
	s.place = of.caller.streams.PushBack(s)
	of.streams[stream] = s
	e.count(of.caller, eventCost)
	e.purge(of.caller)
	return nil
}

// Append stores an event. A stream that is no longer stored can't be resumed, and neither can its later events.
func (e *events) Append(_ context.Context, session, stream string, data []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.sessions[session]
	if of == nil || of.streams[stream] == nil {
		return nil
	}
	s := of.streams[stream]
	s.data = append(s.data, data)
	of.caller.streams.MoveToBack(s.place)
	e.count(of.caller, int64(len(data))+eventCost)
	e.purge(of.caller)
	return nil
}

// After returns the events of a stream after an index. The error is sdk.ErrEventsPurged if one of them is not
// stored.
func (e *events) After(_ context.Context, session, stream string, index int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		data, err := e.after(session, stream, index)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, d := range data {
			if !yield(d, nil) {
				return
			}
		}
	}
}

func (e *events) after(session, stream string, index int) ([][]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.sessions[session]
	if of == nil || of.streams[stream] == nil {
		return nil, fmt.Errorf("stream %.80q: %w", stream, sdk.ErrEventsPurged)
	}
	s := of.streams[stream]
	start := index + 1 - s.first
	if start < 0 {
		return nil, fmt.Errorf("stream %.80q: %w", stream, sdk.ErrEventsPurged)
	}
	return slices.Clone(s.data[min(start, len(s.data)):]), nil
}

// SessionClosed drops the events of a session.
func (e *events) SessionClosed(_ context.Context, session string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.sessions[session]
	if of == nil {
		return nil
	}
	for _, s := range of.streams {
		e.drop(s)
	}
	delete(e.sessions, session)
	if of.caller.sessions--; of.caller.sessions == 0 {
		delete(e.callers, of.caller.name)
	}
	return nil
}

func (e *events) count(caller *callerEvents, bytes int64) {
	caller.bytes += bytes
	e.bytes += bytes
}

// drop deletes a stream.
func (e *events) drop(s *eventStream) {
	for len(s.data) > 0 {
		e.dropFirst(s)
	}
	caller := s.session.caller
	caller.streams.Remove(s.place)
	delete(s.session.streams, s.id)
	e.count(caller, -eventCost)
}

func (e *events) dropFirst(s *eventStream) {
	e.count(s.session.caller, -int64(len(s.data[0]))-eventCost)
	s.data[0] = nil
	s.data = s.data[1:]
	s.first++
}

// purge drops events beyond the limits: of a caller that has grown, and then of the caller with the most.
func (e *events) purge(grown *callerEvents) {
	for grown.streams.Len() > callerStreamsOld {
		e.drop(grown.streams.Front().Value.(*eventStream))
	}
	for grown.bytes > e.own && e.dropOldest(grown) {
	}
	for e.bytes > e.most {
		most := grown
		for _, c := range e.callers {
			if c.bytes > most.bytes {
				most = c
			}
		}
		if !e.dropOldest(most) {
			return
		}
	}
}

// dropOldest drops the first event of the caller's least recently used stream that has one.
func (e *events) dropOldest(caller *callerEvents) bool {
	for at := caller.streams.Front(); at != nil; at = at.Next() {
		if s := at.Value.(*eventStream); len(s.data) > 0 {
			e.dropFirst(s)
			return true
		}
	}
	return false
}
