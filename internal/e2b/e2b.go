// Package e2b serves an API that E2B's SDKs and the programs on top of them can use: sandboxes are sessions. The
// names and forms are those of the public repository e2b-dev/E2B, folder spec. The package translates; engine, policy
// and records are those of sessions.
//
// control.go has sandboxes. process.go and filesystem.go have their processes and files (the Connect protocol), and
// transfer.go the contents of files. interpreter.go has the code interpreter, ports.go other ports of a sandbox.
package e2b

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// Options configure a server.
type Options struct {
	Runtime *unitask.Runtime
	// Caller returns the caller of a request, with its ceiling.
	Caller func(*http.Request) unitask.Caller
	// Admit counts what a caller starts against its rate; a *unitask.BusyError refuses it.
	Admit func(unitask.Caller) error
	// Hide returns an error without what a caller must not learn of this host.
	Hide func(unitask.Caller, error) error
	// Context ends when the server closes, and the builds of templates with it; nil never ends.
	Context context.Context
	// Tokens tells that callers have tokens. A request to a sandbox then needs the sandbox's token; otherwise the
	// server's own user needs none for a sandbox that was created without one.
	Tokens bool
	// Domain is the parent of the hosts PORT-ID.DOMAIN; "" means that requests name sandboxes in headers.
	Domain string
	// Log receives the server's log.
	Log *slog.Logger
}

// Server serves the API. It is an mcp.API.
type Server struct {
	opts    Options
	control http.Handler
	inside  http.Handler // of the port of sandboxes' daemons
	code    http.Handler // of the port of code interpreters
	sandboxes
	snapshots snapshots
	builder   builder
	going     sync.WaitGroup // builds
	uploads   uploads
}

// The ports of a sandbox that this server answers itself.
const (
	daemonPort      = 49983
	interpreterPort = 49999
)

// New returns a server.
func New(opts Options) *Server {
	s := &Server{opts: opts}
	s.control = s.controlRoutes()
	s.inside = s.insideRoutes()
	s.code = s.interpreterRoutes()
	return s
}

// Wait returns when the builds of templates have ended, which they do after Options.Context.
func (s *Server) Wait() { s.going.Wait() }

// Headers that name a sandbox, its port and its token.
const (
	idHeader      = "E2b-Sandbox-Id"
	portHeader    = "E2b-Sandbox-Port"
	tokenHeader   = "X-Access-Token"
	trafficHeader = "E2b-Traffic-Access-Token"
	keyHeader     = "X-Api-Key"
)

// controlPaths begin the paths of the control API.
var controlPaths = []string{"/sandboxes", "/v2/sandboxes", "/snapshots", "/templates", "/v2/templates", "/v3/templates",
	"/default-templates", "/volumes", "/secrets", "/teams"}

// Serves reports whether a request is for this API.
func (s *Server) Serves(r *http.Request) bool {
	if id, _ := s.target(r); id != "" {
		return true
	}
	for _, path := range controlPaths {
		if rest, ok := strings.CutPrefix(r.URL.Path, path); ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

// target returns the sandbox and port that a request names, "" for the control API. A signed URL names none: its
// signature does.
func (s *Server) target(r *http.Request) (id string, port int) {
	if id, port = s.named(r); id == "" && r.URL.Path == "/files" && r.URL.Query().Has("signature") {
		return s.signer(r), daemonPort
	}
	return id, port
}

// named returns the sandbox and port that a request's headers or its host name. A request whose header and host differ
// is for nobody: a page of one sandbox could name another one.
func (s *Server) named(r *http.Request) (id string, port int) {
	of, at := s.hosted(r.Host)
	id = r.Header.Get(idHeader)
	switch {
	case of == "" && id == "":
		return "", 0
	case of != "" && id != "" && of != id, len(r.Header.Values(idHeader)) > 1, len(r.Header.Values(portHeader)) > 1:
		return nobodysID, daemonPort
	case of != "":
		return of, at
	}
	port, err := strconv.Atoi(r.Header.Get(portHeader))
	if err != nil {
		port = daemonPort
	}
	return id, port
}

// hosted returns the sandbox and port of a host PORT-ID.DOMAIN, "" for any other host.
func (s *Server) hosted(host string) (id string, port int) {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	name, ok := strings.CutSuffix(strings.ToLower(host), "."+s.opts.Domain)
	number, id, is := strings.Cut(name, "-")
	port, err := strconv.Atoi(number)
	if s.opts.Domain == "" || !ok || !is || err != nil {
		return "", 0
	}
	return id, port
}

// HasHost reports whether a host is a sandbox's.
func (s *Server) HasHost(name string) bool {
	id, _ := s.hosted(name)
	return id != ""
}

// Caller returns the owner of the sandbox that a request names with the sandbox's token.
func (s *Server) Caller(r *http.Request) (string, http.Handler) {
	id, port := s.target(r)
	for _, name := range []string{keyHeader, tokenHeader, trafficHeader} {
		if len(r.Header.Values(name)) > 1 {
			return "", refusal(http.StatusBadRequest, "more than one "+name)
		}
	}
	if id == "" {
		if owner := s.uploader(r); owner != "" {
			return owner, nil
		}
		if key := r.Header.Get(keyHeader); key != "" && r.Header.Get("Authorization") == "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		return "", nil
	}
	box := s.find(id)
	switch {
	case box == nil && id == nobodysID:
		return "", refusal(http.StatusUnauthorized, "invalid signature")
	case box == nil:
		return "", refusal(http.StatusBadGateway, "The sandbox was not found")
	}
	if box.admits(r, port) {
		return box.caller.Name, nil
	}
	switch {
	case port == daemonPort && (box.secure || s.opts.Tokens):
		return "", refusal(http.StatusUnauthorized, badToken(r, box))
	case port != daemonPort && (!box.public || s.opts.Tokens):
		return "", refusal(http.StatusForbidden, "the sandbox needs its traffic access token, in "+trafficHeader)
	}
	return "", nil
}

// equal compares secrets.
func equal(a, b string) bool { return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		what := recover()
		if what != nil && what != http.ErrAbortHandler { //nolint:errorlint // the value itself is panicked with
			s.opts.Log.Error("e2b: panic", "what", what, "stack", string(debug.Stack()))
			what = http.ErrAbortHandler
		}
		if what != nil {
			panic(what)
		}
	}()
	id, port := s.target(r)
	if id == "" {
		s.control.ServeHTTP(w, r)
		return
	}
	box := s.find(id)
	if box == nil || box.caller.Name != s.opts.Caller(r).Name {
		refusal(http.StatusBadGateway, "The sandbox was not found").ServeHTTP(w, r)
		return
	}
	if !box.ready() && !s.wake(r, box) {
		refusal(http.StatusBadGateway, "The sandbox is paused").ServeHTTP(w, r)
		return
	}
	r = r.WithContext(withSandbox(r.Context(), box))
	switch port {
	case daemonPort:
		s.inside.ServeHTTP(w, r)
	case interpreterPort:
		s.code.ServeHTTP(w, r)
	default:
		s.forward(w, r, box, port)
	}
}

// refusal answers with an error of the API.
func refusal(status int, message string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeError(w, status, message) })
}

// apiError is the API's form of an error.
type apiError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, apiError{status, message})
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}

// fail answers with an error, by its kind.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	if status == http.StatusInternalServerError && r.Context().Err() == nil {
		s.opts.Log.Error("e2b", "path", r.URL.Path, "error", err)
	}
	if busy := new(unitask.BusyError); errors.As(err, &busy) {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(busy.After.Seconds()))))
	}
	writeError(w, status, s.shown(s.opts.Caller(r), err).Error())
}

// shown returns an error as its caller may see it: one of this host, or about a field, without its paths. Other errors
// name those of the machine, which is the caller's.
func (s *Server) shown(caller unitask.Caller, err error) error {
	if errors.As(err, new(*unitask.HostError)) || errors.As(err, new(*policy.FieldError)) ||
		statusOf(err) == http.StatusInternalServerError {
		return s.opts.Hide(caller, err)
	}
	return err
}

// statusOf returns the HTTP status of an error.
func statusOf(err error) int {
	switch {
	case errors.As(err, new(*unitask.HostError)) && !errors.Is(err, syscall.ENOSPC):
		return http.StatusInternalServerError
	case errors.As(err, new(*policy.FieldError)), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTDIR),
		errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP),
		errors.Is(err, syscall.ENOTEMPTY):
		return http.StatusBadRequest
	case errors.Is(err, fs.ErrNotExist):
		return http.StatusNotFound
	case errors.Is(err, fs.ErrPermission):
		return http.StatusForbidden
	case errors.Is(err, fs.ErrExist), errors.Is(err, errNotRunning):
		return http.StatusConflict
	case errors.As(err, new(*unitask.BusyError)):
		return http.StatusTooManyRequests
	case errors.Is(err, syscall.ENOSPC):
		return http.StatusInsufficientStorage
	case errors.As(err, new(*unitask.SessionError)), errors.Is(err, unitask.ErrClosed):
		return http.StatusBadGateway
	}
	return http.StatusInternalServerError
}

// maxBody bounds the body of a request to the control API, in bytes.
const maxBody = 1 << 20

// readBody reads the JSON of a request; an empty body leaves the defaults.
func readBody(w http.ResponseWriter, r *http.Request, into any) bool {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, "the body: "+err.Error())
		return false
	}
	return true
}

// stamp returns a time in the API's form.
func stamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000Z") }
