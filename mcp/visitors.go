package mcp

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/auth"
)

// Limits for one caller over HTTP, except calls, which the queue bounds.
const (
	maxCallerSessions = 100           // of older revisions; a client has one, and may leave old ones open
	maxSessions       = 10_000        // of all callers
	maxCallerBodies   = 8 * bodyBytes // bytes of requests that are being read
	maxBodies         = 160 << 20     // of all callers
	maxCallerStreams  = 128           // requests and event streams, beyond the calls that may run and wait
)

// visitors are the resources that callers hold over HTTP.
type visitors struct {
	mu       sync.Mutex
	requests map[string]int    // current, by caller
	bodies   map[string]int64  // bytes of requests being read, by caller
	reading  int64             // of all callers
	sessions map[string]string // the caller of each session
	begins   map[string]int    // sessions being made, by caller
	all      int               // the total of begins
}

// bounded refuses a caller's request beyond its limit of streams.
func (s *Server) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := callerOf(r)
		if err := s.visitors.enter(caller, maxCallerStreams+s.queue.slotsOfOne()+s.queue.placesOfOne()); err != nil {
			s.tooMany(w, err)
			return
		}
		defer s.visitors.leave(caller)
		next.ServeHTTP(w, r)
	})
}

// callerOf returns the name of a request's caller.
func callerOf(r *http.Request) string { return callerIn(r.Context()) }

// callerIn returns the name of the caller of a request with that context.
func callerIn(ctx context.Context) string {
	if token := auth.TokenInfoFromContext(ctx); token != nil {
		return token.UserID
	}
	return ""
}

// tooMany answers a request that exceeds a limit.
func (s *Server) tooMany(w http.ResponseWriter, err error) {
	s.metrics.refused(err)
	w.Header().Set("Retry-After", "1")
	http.Error(w, err.Error(), http.StatusTooManyRequests)
}

func (v *visitors) enter(caller string, most int) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.requests == nil {
		v.requests = map[string]int{}
	}
	if v.requests[caller] >= most {
		return &LimitError{Limit: "caller-streams", Most: most,
			Text: fmt.Sprintf("you have %d requests and event streams open, which is the bound: close one", most)}
	}
	v.requests[caller]++
	return nil
}

func (v *visitors) leave(caller string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.requests[caller]--; v.requests[caller] == 0 {
		delete(v.requests, caller)
	}
}

// hold reserves room for the bytes of a caller's request. resize is called with their final number, and with 0
// when the request has been read.
func (v *visitors) hold(caller string, bytes int64) (resize func(bytes int64), err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.bodies == nil {
		v.bodies = map[string]int64{}
	}
	if v.bodies[caller]+bytes > maxCallerBodies {
		return nil, &LimitError{Limit: "caller-bodies", Most: maxCallerBodies,
			Text: fmt.Sprintf("your requests under way have %d bytes, and %d is the bound: wait for one", v.bodies[caller],
				maxCallerBodies)}
	}
	if v.reading+bytes > maxBodies {
		return nil, &LimitError{Limit: "bodies", Most: maxBodies,
			Text: fmt.Sprintf("requests that are being read have %d bytes, and %d is the bound: try again in a moment",
				v.reading, maxBodies)}
	}
	v.bodies[caller] += bytes
	v.reading += bytes
	return func(now int64) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.reading += now - bytes
		if v.bodies[caller] += now - bytes; v.bodies[caller] == 0 {
			delete(v.bodies, caller)
		}
		bytes = now
	}, nil
}

// newSession reserves room for a session of a caller; began is called with its id, "" if none was made. list returns
// the ids of existing sessions; newSession calls it when no other session can start.
func (v *visitors) newSession(caller string, list func() map[string]bool) (began func(id string), err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	live := list()
	if v.sessions == nil {
		v.sessions, v.begins = map[string]string{}, map[string]int{}
	}
	own := v.begins[caller]
	for id, whose := range v.sessions {
		switch {
		case !live[id]:
			delete(v.sessions, id)
		case whose == caller:
			own++
		}
	}
	if own >= maxCallerSessions {
		return nil, &LimitError{Limit: "caller-sessions", Most: maxCallerSessions,
			Text: fmt.Sprintf(
				"you have %d sessions, which is the bound: end one with DELETE; one that is not used ends after %s", own,
				sessionIdle)}
	}
	if len(v.sessions)+v.all >= maxSessions {
		return nil, &LimitError{Limit: "sessions", Most: maxSessions,
			Text: fmt.Sprintf("there are %d sessions: try again later", maxSessions)}
	}
	v.begins[caller]++
	v.all++
	return func(id string) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.all--
		if v.begins[caller]--; v.begins[caller] == 0 {
			delete(v.begins, caller)
		}
		if id != "" {
			v.sessions[id] = caller
		}
	}, nil
}
