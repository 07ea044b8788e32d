// Package httpapi serves unitask's own HTTP API: runs and sessions for programs in any language, below /v1. The
// documents in folder openapi (OpenAPI 3.1) come first: requests are checked against them, and /openapi.json has them.
//
// document.go reads the documents, call.go has what each request goes through, problem.go the errors (RFC 9457),
// progress.go events of what runs. The operations are in the other files, one for each kind of resource.
package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/record"
)

// Shared is what the API shares with MCP at the same address: callers and their limits, sessions, and what callers over
// HTTP must not learn. It is an *mcp.Server.
type Shared interface {
	Caller(r *http.Request) unitask.Caller
	Admit(caller unitask.Caller) error
	Enter(ctx context.Context, caller unitask.Caller) (leave func(), err error)
	Look(ctx context.Context, caller unitask.Caller) (leave func(), err error)
	Begin() (done func(), err error)
	Context() context.Context
	Request(caller unitask.Caller, arguments json.RawMessage, session bool) (unitask.Request, error)
	Secrets(ctx context.Context, caller unitask.Caller, req *unitask.Request) error
	Hide(caller unitask.Caller, err error) error
	HideResult(caller unitask.Caller, res *unitask.Result)
	Inspection(ctx context.Context, caller unitask.Caller, id string) (*history.Inspection, error)
	Record(ctx context.Context, caller unitask.Caller, id string) (*record.Record, error)
	Runs(ctx context.Context, caller unitask.Caller, status, before string, limit int) ([]history.Summary, string, error)
	Ran(caller unitask.Caller, res *unitask.Result, waited time.Duration, stdout, stderr int64)
	Event(e unitask.Event)
	Questions(ctx context.Context, caller unitask.Caller) ([]unitask.Question, error)
	Doctor(ctx context.Context, caller unitask.Caller) (*doctor.Report, error)
	Lease(ctx context.Context, caller unitask.Caller) (leased context.Context, release func())
	Body(w http.ResponseWriter, r *http.Request) ([]byte, error)
	Decoded(ctx context.Context)
	Draw(ctx context.Context, bytes int64) error
	NewSession(ctx context.Context, caller unitask.Caller, req unitask.SessionRequest) (*unitask.Session, error)
	Keep(made *unitask.Session, caller unitask.Caller)
	Session(ctx context.Context, caller unitask.Caller, id string) (*unitask.Session, error)
	Sessions(caller unitask.Caller) []mcp.SessionView
	Answer(ctx context.Context, caller unitask.Caller, bytes int) (release func(), err error)
	EndSession(caller unitask.Caller, id string) error
}

// Options configure a server.
type Options struct {
	Runtime *unitask.Runtime
	Shared  Shared
	Version string
	// Log receives the server's log.
	Log *slog.Logger
}

// Server serves the API. It is an mcp.API.
type Server struct {
	shared     Shared
	rt         *unitask.Runtime
	log        *slog.Logger
	doc        *document
	routes     *http.ServeMux
	progresses progresses
	feeds      feeds
	keys       keys
	sessions   sessions
	going      sync.WaitGroup // work that continues without a request that the HTTP server waits for
}

// New returns a server.
func New(opts Options) *Server {
	s := &Server{shared: opts.Shared, rt: opts.Runtime, log: opts.Log, doc: readDocument(opts.Version)}
	s.routes = s.doc.routes(s, s.operations())
	return s
}

// Wait returns when everything that the API has started has ended, and its records are complete. Call it after Shared
// has closed, which ends all of it.
func (s *Server) Wait() { s.going.Wait() }

// operations returns the handlers, by the document's operationId.
func (s *Server) operations() map[string]operation {
	all := map[string]operation{"getAbout": s.about}
	maps.Copy(all, s.runOperations())
	maps.Copy(all, s.sessionOperations())
	return all
}

// documentPath is the path of the OpenAPI document, and prefix begins the paths of all operations.
const documentPath, prefix = "/openapi.json", "/v1/"

// Serves reports whether a request is for this API, also if its path is not clean.
func (s *Server) Serves(r *http.Request) bool {
	at := path.Clean("/" + r.URL.Path)
	return at == documentPath || strings.HasPrefix(at+"/", prefix) || strings.HasPrefix(r.URL.Path, prefix)
}

// portPath matches the paths of what code in a session serves.
var portPath = regexp.MustCompile(`^/v1/sessions/[^/]+/ports/[0-9]+(/|$)`)

// Embeds reports whether pages of other sites may have a request sent that names no origin. Pages of a session's code
// have an origin of their own, and need their pictures and scripts.
func (s *Server) Embeds(r *http.Request) bool { return portPath.MatchString(r.URL.Path) }

// HasHost returns false: the API has no hosts of its own.
func (s *Server) HasHost(string) bool { return false }

// Caller returns "": callers have the server's tokens.
func (s *Server) Caller(*http.Request) (string, http.Handler) { return "", nil }

// about describes the server.
func (s *Server) about(*call) (*answer, error) {
	return &answer{Body: map[string]any{"version": s.doc.version, "languages": unitask.Languages(),
		"images": unitask.Images(), "sessionImages": unitask.SessionImages()}}, nil
}
