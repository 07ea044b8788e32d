package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	environmentKey = "environment-key-of-the-test"
	sessionToken   = "session-token-of-the-test"
	now            = "2026-11-30T12:00:00Z"
)

// step is a call of a tool by the model, and what its result must have.
type step struct {
	tool, input, want string
	fails             bool
	permission        string // "" means that the platform does not say
}

// plane is a control plane on loopback with one session, whose model makes calls one after the other. Its answers have
// the fields that the SDK needs.
type plane struct {
	*testing.T
	steps []step

	mu      sync.Mutex
	claimed bool
	results map[string]result
	posted  chan string // ids of calls with a result
	stopped chan struct{}
	wrong   []string // requests with another key
}

type result struct {
	ToolUseID string `json:"tool_use_id"`
	IsError   bool   `json:"is_error"`
	Content   []struct{ Text string }
}

func newPlane(t *testing.T, steps []step) *plane {
	p := &plane{T: t, steps: steps, results: map[string]result{}, posted: make(chan string, len(steps)),
		stopped: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/environments/env_1/work/poll", p.key(environmentKey, p.poll))
	mux.HandleFunc("POST /v1/environments/env_1/work/work_1/ack", p.key(environmentKey, p.work))
	mux.HandleFunc("POST /v1/environments/env_1/work/work_1/heartbeat", p.key(sessionToken, p.heartbeat))
	mux.HandleFunc("POST /v1/environments/env_1/work/work_1/stop", p.key(sessionToken, p.stop))
	mux.HandleFunc("GET /v1/sessions/sesn_1", p.key(sessionToken, p.session))
	mux.HandleFunc("GET /v1/sessions/sesn_1/events", p.key(sessionToken, p.list))
	mux.HandleFunc("POST /v1/sessions/sesn_1/events", p.key(sessionToken, p.send))
	mux.HandleFunc("GET /v1/sessions/sesn_1/events/stream", p.key(sessionToken, p.stream))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Setenv("ANTHROPIC_BASE_URL", server.URL)
	t.Setenv("ANTHROPIC_ENVIRONMENT_KEY", environmentKey)
	return p
}

// key checks a request's credential.
func (p *plane) key(want string, do http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+want || r.Header.Get("X-Api-Key") != "" {
			p.mu.Lock()
			p.wrong = append(p.wrong, r.Method+" "+r.URL.Path)
			p.mu.Unlock()
			http.Error(w, "another key", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		do(w, r)
	}
}

func (p *plane) poll(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	claimed := p.claimed
	p.claimed = true
	p.mu.Unlock()
	if claimed {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	p.work(w, r)
}

func (p *plane) work(w http.ResponseWriter, _ *http.Request) {
	secret := "eyJzZXNzaW9uc190b2tlbiI6InNlc3Npb24tdG9rZW4tb2YtdGhlLXRlc3QifQ" // {"sessions_token":"…"}
	fmt.Fprintf(w, `{"id":"work_1","acknowledged_at":null,"created_at":%q,"data":{"id":"sesn_1","type":"session"},
		"environment_id":"env_1","latest_heartbeat_at":null,"metadata":{},"secret":%q,"started_at":null,
		"state":"queued","stop_requested_at":null,"stopped_at":null,"type":"work"}`, now, secret)
}

func (p *plane) heartbeat(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintf(w, `{"last_heartbeat":%q,"lease_extended":true,"state":"active","ttl_seconds":30,
		"type":"work_heartbeat"}`, now)
}

func (p *plane) stop(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusNoContent)
	close(p.stopped)
}

func (p *plane) session(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprint(w, `{"agent":{"skills":[]}}`)
}

func (p *plane) list(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprint(w, `{"data":[],"first_id":null,"has_more":false,"last_id":null}`)
}

func (p *plane) send(w http.ResponseWriter, r *http.Request) {
	var in struct{ Events []result }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		p.Error(err)
	}
	p.mu.Lock()
	for _, e := range in.Events {
		p.results[e.ToolUseID] = e
		p.posted <- e.ToolUseID
	}
	p.mu.Unlock()
	fmt.Fprint(w, `{"data":[]}`)
}

// stream sends one call after the other, each when the one before has a result.
func (p *plane) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(kind, fields string) {
		fmt.Fprintf(w, "event: %s\ndata: {\"type\":%q,\"processed_at\":%q%s}\n\n", kind, kind, now, fields)
		w.(http.Flusher).Flush()
	}
	for i, s := range p.steps {
		fields := fmt.Sprintf(`,"id":"call_%d","name":%q,"input":%s`, i, s.tool, s.input)
		if s.permission != "" {
			fields += fmt.Sprintf(`,"evaluated_permission":%q`, s.permission)
		}
		event("agent.tool_use", fields)
		if s.permission == "deny" {
			continue
		}
		select {
		case <-p.posted:
		case <-r.Context().Done():
			return
		}
	}
	event("session.status_terminated", `,"id":"end"`)
}

// check compares the results with what the steps want.
func (p *plane) check() {
	p.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.wrong) > 0 {
		p.Errorf("requests with another key: %q", p.wrong)
	}
	for i, s := range p.steps {
		got, is := p.results[fmt.Sprint("call_", i)]
		if s.permission == "deny" {
			if is {
				p.Errorf("%s %s: the platform has denied it, and it has a result", s.tool, s.input)
			}
			continue
		}
		text := ""
		for _, c := range got.Content {
			text += c.Text
		}
		if !is || got.IsError != s.fails || !strings.Contains(text, s.want) {
			p.Errorf("%s %s: got (error %v) %.600q, want (error %v) %q", s.tool, s.input, got.IsError, text, s.fails, s.want)
		}
		if strings.Contains(text, environmentKey) || strings.Contains(text, sessionToken) {
			p.Errorf("%s %s: a key is in the machine", s.tool, s.input)
		}
	}
}

// wait waits until the session's work is given back.
func (p *plane) wait() {
	p.Helper()
	select {
	case <-p.stopped:
	case <-time.After(8 * time.Minute):
		p.Fatal("the session goes on")
	}
}
