package toolhost

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Limits of the service. The code's connections are hostile input.
const (
	maxConnections = 128              // of a run's code at once
	maxHeader      = 8 << 10          // bytes of a request's header
	readTime       = 30 * time.Second // for a request
	idleTime       = 60 * time.Second
	writeTime      = 60 * time.Second // for an answer: the code may be slow, or never read
	beatTime       = 2 * time.Second  // between signs of life while a call of the shell waits
	maxFound       = 50               // tools in an answer to a search
	maxAbout       = 300              // bytes of a description that was found
)

// httpServer serves connections that are handed to it.
type httpServer struct {
	http  *http.Server
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newHTTPServer(s *Service) *httpServer {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /call/{server}/{tool}", s.serveCall)
	mux.HandleFunc("GET /search", s.serveSearch)
	mux.HandleFunc("GET /describe", s.serveDescribe)
	h := &httpServer{conns: make(chan net.Conn), done: make(chan struct{}), http: &http.Server{Handler: mux,
		ReadTimeout: readTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader, ErrorLog: log.New(io.Discard, "", 0)}}
	go func() { _ = h.http.Serve(h) }()
	return h
}

func (h *httpServer) close() {
	h.once.Do(func() { close(h.done) })
	_ = h.http.Close()
}

// Accept returns the next connection.
func (h *httpServer) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close is for http.Server.
func (h *httpServer) Close() error { return nil }

// Addr is for http.Server.
func (h *httpServer) Addr() net.Addr { return &net.TCPAddr{} }

// guestConn tells when it is closed.
type guestConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *guestConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// Serve serves one connection of the code, until it ends.
func (s *Service) Serve(conn net.Conn) {
	defer conn.Close()
	defer s.conns.Add(-1)
	if s.conns.Add(1) > maxConnections {
		return
	}
	c := &guestConn{Conn: conn, closed: make(chan struct{})}
	select {
	case s.handler.conns <- c:
	case <-s.handler.done:
		return
	}
	select {
	case <-c.closed:
	case <-s.handler.done:
	}
}

func (s *Service) serveCall(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxArguments+1))
	if err != nil {
		reply(w, r, nil, fail("arguments", "the arguments have more than %d bytes, or did not arrive", maxArguments))
		return
	}
	ctx, cancel := withEnd(r.Context(), s.ctx)
	defer cancel()
	var value json.RawMessage
	var failed *Error
	done := make(chan struct{})
	go func() {
		defer close(done)
		value, failed = s.inTurn(ctx, r.PathValue("server"), r.PathValue("tool"), text)
	}()
	for beats := time.Tick(beatTime); ; {
		select {
		case <-done:
			reply(w, r, value, failed)
			return
		case <-beats:
			if isShell(r) { // which has no other means to see that a connection is gone
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
				w.WriteHeader(http.StatusProcessing)
			}
		}
	}
}

// inTurn makes a call once the limits of calls in progress, and in a second, have room for it.
func (s *Service) inTurn(ctx context.Context, server, tool string, text []byte) (json.RawMessage, *Error) {
	if s.rate.Wait(ctx) == nil {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
			return s.call(ctx, server, tool, text)
		case <-ctx.Done():
		}
	}
	return nil, fail("cut", "the call was cut off: its caller, or the run, has ended")
}

// found is a tool in a search's answer.
type found struct {
	Name        string `json:"name"` // SERVER.TOOL
	Description string `json:"description,omitempty"`
	Input       any    `json:"inputSchema,omitempty"`
	Output      any    `json:"outputSchema,omitempty"`
}

// serveSearch finds the tools whose names and descriptions have all words.
func (s *Service) serveSearch(w http.ResponseWriter, r *http.Request) {
	words := strings.Fields(strings.ToLower(r.URL.Query().Get("q")))
	list := []found{}
	for _, name := range s.names {
		for _, t := range s.servers[name].callable() {
			text := strings.ToLower(name + "." + t.Name + " " + t.Title + " " + t.Description)
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) }) {
				list = append(list, found{Name: name + "." + t.Name, Description: cut(cmp.Or(t.Description, t.Title), maxAbout)})
			}
		}
	}
	value, _ := json.Marshal(list[:min(len(list), maxFound)])
	reply(w, r, value, nil)
}

func (s *Service) serveDescribe(w http.ResponseWriter, r *http.Request) {
	full := r.URL.Query().Get("name")
	name, tool, _ := strings.Cut(full, ".")
	if server := s.servers[name]; server != nil {
		for _, t := range server.callable() {
			if t.Name == tool {
				value, _ := json.Marshal(found{Name: full, Description: t.Description, Input: t.Input, Output: t.Output})
				reply(w, r, value, nil)
				return
			}
		}
	}
	reply(w, r, nil, fail("unknown", "there is no tool %.200q: tools.search tells what there is", full))
}

// reply writes an answer. Programs get an object with value or error, or a large value alone. The shell (Accept:
// text/plain) gets the value or the message.
func reply(w http.ResponseWriter, r *http.Request, value json.RawMessage, failed *Error) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
	plain := isShell(r)
	status, body := http.StatusOK, []byte(value)
	switch {
	case plain && failed != nil:
		status, body = http.StatusBadRequest, []byte(failed.Code+": "+failed.Message)
	case plain:
		var text string
		if json.Unmarshal(value, &text) == nil {
			body = []byte(text)
		}
	case failed != nil:
		body, _ = json.Marshal(struct {
			Error *Error `json:"error"`
		}{failed})
	case len(value) > LargeResult:
		w.Header().Set("Unitask-Large", "1")
	default:
		body = slices.Concat([]byte(`{"value":`), value, []byte("}"))
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the code may be gone
}

// isShell reports whether the client of the shell sent a request.
func isShell(r *http.Request) bool { return r.Header.Get("Accept") == "text/plain" }

// withEnd returns a context that ends with either of two.
func withEnd(ctx, other context.Context) (context.Context, context.CancelFunc) {
	both, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(other, cancel)
	return both, func() { stop(); cancel() }
}
