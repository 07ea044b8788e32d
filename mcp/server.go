// Package mcp serves unitask over the Model Context Protocol, for coding agents and AI backends: code in, result out.
// server.go has the server's main path. tools.go, resources.go and prompts.go have its features, queue.go limits the
// load, http.go serves many callers, and config.go writes the server into clients' configuration.
package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/vault"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Options configure a server. The zero value of a field is its default.
type Options struct {
	// Version is the version that clients see.
	Version string
	// Dir is the folder for relative paths, and the code's working directory; "" means the process's own.
	Dir string
	// Ceiling is the upper limit of every call. For a missing key, the value of policy.BuiltIn(Dir) applies: files of the
	// folder, no secrets, no raw TCP.
	Ceiling *policy.Ceiling
	// Policy describes the ceiling's origin for the tool doctor; nil means that it is unknown.
	Policy *policy.ForModels
	// Vault contains the sources of secrets (unitask.Vault); nil means the process's environment.
	Vault *vault.Vault
	// Prompts is a folder of snippets; "" means none.
	Prompts string
	// Skills is a folder of Agent Skills; "" means none.
	Skills string
	// MaxConcurrent bounds the concurrent runs (0 means 4), MaxQueue the waiting calls (0 means 64).
	MaxConcurrent, MaxQueue int
	// CallerConcurrent and CallerPerMinute bound one caller's runs; 0 means no limit.
	CallerConcurrent, CallerPerMinute int
	// Progress is the runtime's; with nil, calls get none of its events.
	Progress *Progress
	// Log receives the server's log; nil discards it.
	Log *slog.Logger
}

// Server is an MCP server over a runtime.
type Server struct {
	rt        *unitask.Runtime
	opts      Options
	sdk       *sdk.Server
	takes     map[string]*jsonschema.Schema // schemas of the tools' arguments, by the tools' names
	tasked    map[string]bool               // tools whose calls may end with a task,
	taskAfter time.Duration                 // if they take longer than this
	queue     *queue
	metrics   *metrics
	snippets  map[string]*snippet
	skills    map[string]*offered

	ctx      context.Context // ends with Close, and every run with it
	stop     context.CancelFunc
	runs     sync.WaitGroup
	mu       sync.Mutex
	draining bool // no further calls are accepted
	sessions sessions
	held     held          // sessions of unitask
	onHost   chan struct{} // holds the running command of the host
	rounds   rounds        // runs whose questions end a call
	filing   *filing       // of calls of files and session, whose data is in memory
	visitors visitors
	budget   *budget // of memory, for calls over HTTP
	leases   leases  // parts of it
	decoding *filing // large requests
	updates  updates
	listing  *filing // listings of records
	checkups checkups
	hider    hider    // hides the host's paths from remote callers
	require  []string // layers and limits of QEMU's jail that every run needs
}

// DefaultReach warns whoever connects a model. README.md has the same text.
const DefaultReach = "Over MCP a model may reach every public host that it names, by HTTP and TLS. " +
	"A client that can show a form asks you about each host first; any other client asks nobody. " +
	"The model may read every file below the folder in which the server starts. " +
	"allowNet = [], filesUnder = [] and dirsUnder = [] in that folder's .unitask.toml take both away."

// instructions describe the server to a client's model; %s is withSessions if the runtime has sessions.
const instructions = `unitask runs JavaScript, TypeScript, Python, ` +
	`shell and Go in a fresh virtual machine that is destroyed afterwards. ` +
	`Nothing persists between calls%s. There is no network, ` +
	`no file of the host and no secret unless a call asks for it and the policy allows it; ` +
	`what was asked for and not given is listed in policy.denials. ` +
	`Print results to stdout, or leave files in /out to get them back.`

const withSessions = `, but in a session (run_code's session), whose machine stays`

// New returns a server. The caller must close it.
func New(rt *unitask.Runtime, opts Options) (*Server, error) {
	var err error
	if opts.Dir == "" {
		opts.Dir = "."
	}
	if opts.Dir, err = filepath.Abs(opts.Dir); err != nil {
		return nil, err
	}
	if opts.Vault == nil {
		opts.Vault = &vault.Vault{Most: record.MaxSecrets}
	}
	if st, err := os.Stat(opts.Dir); err != nil || !st.IsDir() {
		return nil, fmt.Errorf("folder %s: is none that can be read", opts.Dir)
	}
	opts.Ceiling = policy.BuiltIn(opts.Dir, filepath.Dir(rt.Runs().Dir())).With(opts.Ceiling)
	if opts.MaxConcurrent < 0 || opts.MaxQueue < 0 || opts.CallerConcurrent < 0 || opts.CallerPerMinute < 0 {
		return nil, errors.New("bounds on runs must not be negative")
	}
	if opts.MaxConcurrent == 0 {
		opts.MaxConcurrent = 4
	}
	if opts.MaxQueue == 0 {
		opts.MaxQueue = 64
	}
	if opts.Version == "" {
		opts.Version = "(devel)"
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Progress == nil {
		opts.Progress = NewProgress(func(unitask.Event) {})
	}
	s := &Server{filing: newFiling(maxFileCalls), budget: newBudget(budgetBytes, firstBytes), decoding: newDecoding(),
		listing: newFiling(maxListing), rt: rt, opts: opts, metrics: newMetrics(), checkups: checkups{check: rt.Doctor},
		hider: newHider(opts.Dir, rt.Images().Home()), onHost: make(chan struct{}, 1)}
	s.queue = newQueue(opts.MaxConcurrent, opts.MaxQueue, opts.CallerConcurrent, opts.CallerPerMinute, s.metrics.waiting)
	if s.snippets, err = readSnippets(opts.Prompts); err != nil {
		return nil, err
	}
	if s.skills, err = readSkills(opts.Skills); err != nil {
		return nil, err
	}
	for name := range s.skills {
		if s.snippets[name] != nil {
			return nil, fmt.Errorf("skill %s: a file of %s has the same name", name, opts.Prompts)
		}
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	stays := ""
	if rt.HasSessions() {
		stays = withSessions
	}
	s.sdk = sdk.NewServer(&sdk.Implementation{Name: "unitask", Title: "unitask", Version: opts.Version},
		&sdk.ServerOptions{
			Instructions: fmt.Sprintf(instructions, stays), Logger: opts.Log, CompletionHandler: s.complete,
			SetCacheable:     uncached,
			SubscribeHandler: s.subscribe, UnsubscribeHandler: func(context.Context,
				*sdk.UnsubscribeRequest) error {
				return nil
			},
			Capabilities: &sdk.ServerCapabilities{
				Logging:    &sdk.LoggingCapabilities{}, //lint:ignore SA1019 for clients of older revisions
				Prompts:    &sdk.PromptCapabilities{ListChanged: true},
				Extensions: map[string]any{tasksExtension: map[string]any{}},
			},
		})
	s.sdk.AddReceivingMiddleware(s.recovered, s.countAnswers)
	s.addTools()
	s.addTasks()
	s.addResources()
	s.addPrompts()
	s.addSkills()
	return s, nil
}

// recovered keeps a panic in one call from ending all others.
func (s *Server) recovered(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (res sdk.Result, err error) {
		defer func() {
			if what := recover(); what != nil {
				s.opts.Log.Error("panic", "method", method, "what", what, "stack", string(debug.Stack()))
				res, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
			}
		}()
		return next(ctx, method, req)
	}
}

// uncached keeps results that depend on the caller or change with each run out of shared caches.
func uncached(_ context.Context, _ sdk.Request, c *sdk.Cacheable) {
	c.TTLMs, c.CacheScope = 0, "private"
}

// ServeStdio serves one client over a pair of streams until the client closes its end or ctx ends. All its runs have
// ended by then.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	stop := context.AfterFunc(ctx, s.stop)
	defer stop()
	s.addHostCommands()
	s.addHostFiles()
	err := s.sdk.Run(ctx, &sdk.IOTransport{Reader: io.NopCloser(ending{in, s.stop}), Writer: nopCloser{out},
		MaxLineLength: maxMessage})
	s.Close()
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("serve stdio: %w", err)
	}
	return nil
}

// ending calls ended when a reader has ended: otherwise the SDK would wait for running calls, whose client has gone.
type ending struct {
	io.Reader
	ended func()
}

func (e ending) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if err != nil {
		e.ended()
	}
	return n, err
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// maxMessage bounds a message from a client: code as JSON, with room for escapes.
const maxMessage = 2*unitask.MaxCode + 1<<20

// Close ends every run.
func (s *Server) Close() {
	s.refuse()
	s.stop()
	s.runs.Wait()
	s.rounds.end()
}

// refuse stops accepting calls.
func (s *Server) refuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
}

// accepts reports whether calls are accepted.
func (s *Server) accepts() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.draining
}

// errClosing is the answer to a call while the server ends.
var errClosing = fmt.Errorf("the server is going down: %w", unitask.ErrClosed)

// begin counts an accepted call until done is called.
func (s *Server) begin() (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return nil, errClosing
	}
	s.runs.Add(1)
	return sync.OnceFunc(s.runs.Done), nil
}
