// Package toolhost lets the code of a run call tools: those of MCP servers that the ceiling names, which work on the
// host. It serves small HTTP requests on connections from the machine, which package netstack gives it. It checks each
// call against the reviewed list and the ceiling, calls the server, and logs the call. It never acts on what a server
// answers: that is data for the code.
package toolhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"github.com/unitask/unitask/guest/tools"
	"github.com/unitask/unitask/policy"
)

// Limits of a run's calls.
const (
	maxInFlight    = 8         // calls at once; more wait
	maxPerSecond   = 500       // calls; more wait
	maxAllCalls    = 200_000   // of a run, refused ones too
	maxArguments   = 1 << 20   // bytes of a call's arguments
	maxNested      = 64        // brackets in one another
	maxValues      = 100_000   // in arguments
	maxKept        = 256 << 10 // bytes of a result in the record
	maxKeptAll     = 64 << 20  // of the record's lines; later ones are short
	maxKeptError   = 2 << 10   // bytes of an error in the record
	maxShortError  = 100       // bytes of an error in a short line
	maxShownAsking = 1000      // bytes of arguments in a question
	// LargeResult is the size above which the code gets a result as a file.
	LargeResult = 256 << 10
)

// Error is an answer without a value.
type Error struct {
	// Code is tool (the tool itself failed), arguments, denied, limit, timeout, large, unknown, changed, secret, cut,
	// server or record.
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

func fail(code, format string, args ...any) *Error { return &Error{code, fmt.Sprintf(format, args...)} }

// Call is a line of a record's tools.jsonl.
type Call struct {
	Time      time.Time       `json:"time"`
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments,omitempty"` // redacted; omitted if they are large
	// ArgumentsDigest is the SHA-256 of the redacted arguments, in Go's canonical JSON.
	ArgumentsDigest string          `json:"argumentsDigest,omitempty"`
	Rule            string          `json:"rule,omitempty"` // that refused the call, or asked about it
	Ms              int64           `json:"ms"`
	Code            string          `json:"code,omitempty"` // of an error; "" is a result
	Error           string          `json:"error,omitempty"`
	ResultBytes     int64           `json:"resultBytes,omitempty"`
	ResultDigest    string          `json:"resultDigest,omitempty"`
	Result          json.RawMessage `json:"result,omitempty"` // redacted; omitted if it is large
	Replayed        bool            `json:"replayed,omitempty"`
}

// Question asks whether a call may be made.
type Question struct {
	Tool      string // SERVER.TOOL
	Arguments string // redacted and cut
	Rule      string
}

// Config is what a run's service needs.
type Config struct {
	Servers []*policy.ToolServer
	// Own are servers of the embedding program. Their lists are not reviewed.
	Own map[string]*sdk.Server
	// Lists are the reviewed lists, which stay. OwnLists is the folder of the run's record: an HTTP client may send
	// another list with each run.
	Lists, OwnLists Store
	// Redact returns JSON without the run's secrets, and whether there were any.
	Redact func([]byte) (clean []byte, found bool)
	// Log receives each call when it has ended. Several goroutines call it.
	Log func(Call)
	// Wrap starts the servers with wrap = true.
	Wrap Wrap
	// Ask asks somebody; nil denies.
	Ask func(context.Context, Question) (allowed bool, why string)
	// Recorded are the calls of the run that is replayed, or nil: their answers are given, and no server starts.
	Recorded []Call
	// RecordedOwn are the digests of that run's own lists, by server. RecordedLists is the folder of its record.
	RecordedOwn   map[string]string
	RecordedLists Store
}

// Service serves the calls of one run. Any goroutine may call its methods.
type Service struct {
	cfg     Config
	servers map[string]*server
	names   []string
	own     map[string]string // digests of the embedding program's lists, by server

	ctx     context.Context
	cancel  context.CancelFunc
	slots   chan struct{}
	rate    *rate.Limiter
	all     atomic.Int64
	kept    atomic.Int64
	tally   tally
	conns   atomic.Int64
	replay  *replay
	handler *httpServer
	once    sync.Once
}

// Open prepares the service: it reads the reviewed lists. A server whose list is not stored yet is started and asked.
func Open(ctx context.Context, cfg Config) (*Service, error) {
	s := &Service{cfg: cfg, servers: map[string]*server{}, own: map[string]string{},
		slots: make(chan struct{}, maxInFlight),
		rate:  rate.NewLimiter(maxPerSecond, maxPerSecond)}
	if cfg.Recorded != nil {
		s.replay = newReplay(cfg.Recorded)
	}
	for _, p := range cfg.Servers {
		list, err := cfg.Lists.Load(p.Pin)
		if err != nil && cfg.Recorded == nil {
			if list, err = fetchPinned(ctx, p, cfg.Wrap); err == nil {
				err = cfg.Lists.Save(list) // a replay has no server to ask
			}
		}
		if err != nil {
			return nil, policy.Bad("tools", p.Name, "%v", err)
		}
		s.servers[p.Name] = &server{ToolServer: p, list: list, wrap: cfg.Wrap}
	}
	if err := s.addOwn(ctx); err != nil {
		for _, server := range s.servers {
			server.close()
		}
		return nil, err
	}
	s.names = slices.Sorted(maps.Keys(s.servers))
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.handler = newHTTPServer(s)
	return s, nil
}

// addOwn adds the embedding program's servers, or in a replay their recorded lists. The run's record gets the lists,
// for a later replay.
func (s *Service) addOwn(ctx context.Context) error {
	for name, own := range s.cfg.Own {
		if err := s.addOneOwn(name, func() (*server, error) { return openOwn(ctx, name, own) }); err != nil {
			return policy.Bad("tools", name, "%v", err)
		}
	}
	for name, pin := range s.cfg.RecordedOwn {
		err := s.addOneOwn(name, func() (*server, error) {
			list, err := s.cfg.RecordedLists.Load(pin)
			return &server{ToolServer: policy.OwnToolServer(name), list: list}, err
		})
		if err != nil {
			return policy.Bad("tools", name, "%v", err)
		}
	}
	return nil
}

func (s *Service) addOneOwn(name string, open func() (*server, error)) error {
	if s.servers[name] != nil {
		return errors.New("is a server of the ceiling, too: give your own one another name")
	}
	server, err := open()
	if err != nil {
		return err
	}
	s.servers[name] = server
	s.own[name] = server.list.Digest()
	return s.cfg.OwnLists.Save(server.list)
}

// openOwn asks an embedding program's server for its list of tools.
func openOwn(ctx context.Context, name string, own *sdk.Server) (*server, error) {
	s := &server{ToolServer: policy.OwnToolServer(name), own: own}
	switch {
	case !policy.IsToolServerName(name):
		return nil, errors.New("is no name that code can import: lower-case letters, digits and _")
	case own == nil:
		return nil, errors.New("is nil, and no server")
	}
	c, list, err := connectOwn(ctx, own)
	if err != nil {
		return nil, err
	}
	for _, t := range list.Tools {
		if t.bad != nil {
			c.end()
			return nil, fmt.Errorf("has a tool %.100q that can't be called: %w", t.Name, t.bad)
		}
	}
	s.conn, s.list, s.Pin = c, list, list.Digest()
	return s, nil
}

// CheckOwn reports what is wrong with a server of the embedding program, as Open does.
func CheckOwn(ctx context.Context, name string, own *sdk.Server) error {
	s, err := openOwn(ctx, name, own)
	if err != nil {
		return policy.Bad("tools", name, "%v", err)
	}
	s.close()
	return nil
}

// OwnLists returns the digests of the lists of the embedding program's servers, by name.
func (s *Service) OwnLists() map[string]string { return s.own }

func fetchPinned(ctx context.Context, p *policy.ToolServer, wrap Wrap) (*List, error) {
	c, list, err := connect(ctx, p, nil, wrap)
	if err != nil {
		return nil, fmt.Errorf("the server did not start: %w", err)
	}
	c.end()
	if list.Digest() != p.Pin {
		return nil, errors.New(changed(p.Name).Error())
	}
	return list, nil
}

// Fetch starts a server, or connects to it, and returns its list of tools. Only servers with wrap = true need wrap.
func Fetch(ctx context.Context, p *policy.ToolServer, stderr io.Writer, wrap Wrap) (*List, error) {
	c, list, err := connect(ctx, p, stderr, wrap)
	if err != nil {
		return nil, err
	}
	c.end()
	return list, nil
}

// Files returns the clients and the types for the machine.
func (s *Service) Files() ([]tools.File, error) {
	list := map[string][]tools.Tool{}
	for name, server := range s.servers {
		for _, t := range server.callable() {
			list[name] = append(list[name], tools.Tool{Name: t.Name, Description: t.Description, Input: t.Input,
				Output: t.Output})
		}
	}
	return tools.Files(list, s.names)
}

// callable returns the tools that code may call.
func (s *server) callable() (list []*Tool) {
	for _, t := range s.list.Tools {
		if t.bad == nil && s.Allows(t.Name) {
			list = append(list, t)
		}
	}
	return list
}

// Close ends all calls, connections and servers. It may be called more than once.
func (s *Service) Close() {
	s.once.Do(s.close)
}

func (s *Service) close() {
	s.cancel()
	s.handler.close()
	for range maxInFlight { // no call is in progress then, and none begins
		s.slots <- struct{}{}
	}
	done := make(chan struct{})
	for _, server := range s.servers {
		go func() {
			server.close()
			done <- struct{}{}
		}()
	}
	for range s.servers {
		<-done
	}
}
