package httpapi

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/clienttools"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

// sessionOperations returns the handlers of what is below /v1/sessions.
func (s *Server) sessionOperations() map[string]operation {
	return map[string]operation{
		"listSessions": s.listSessions, "createSession": s.createSession, "getSession": s.getSession,
		"endSession": s.endSession, "pauseSession": s.pauseSession, "resumeSession": s.resumeSession,
		"forkSession": s.forkSession, "extendSession": s.extendSession,
		"runStep": s.runStep, "followSessionRun": s.followSessionRun, "cancelSessionRun": s.cancelSessionRun,
		"listCommands": s.listCommands, "runCommand": s.runCommand, "writeStdin": s.writeStdin,
		"signalCommand": s.signalCommand, "resizeCommand": s.resizeCommand, "openTerminal": s.openTerminal,
		"readFile": s.readFile, "writeFile": s.writeFile, "removeFile": s.removeFile, "listFiles": s.listFiles,
		"statFile": s.statFile, "moveFile": s.moveFile, "makeFolder": s.makeFolder, "watchFiles": s.watchFiles,
		"readFolder": s.readFolder, "writeFolder": s.writeFolder,
		"listValues": s.listValues, "getValue": s.getValue, "putValue": s.putValue,
		"getPort": s.port, "putPort": s.port, "postPort": s.port, "deletePort": s.port, "patchPort": s.port,
	}
}

// sessions are what the API keeps of sessions, beside the sessions themselves.
type sessions struct {
	runs, folders places

	mu       sync.Mutex
	commands map[string]*command // those that run, by their run's id
}

// places bounds how many of something there are at once: of all callers, and of one.
type places struct {
	mu  sync.Mutex
	all int
	of  map[string]int // by caller
}

// take takes a place for a caller until leave is called. The error is a *unitask.BusyError.
func (p *places) take(caller string, most, mostOfOne int, what string) (leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.of[caller] >= mostOfOne:
		return nil, &unitask.BusyError{What: "you have as many " + what + " as you may: wait for one", After: time.Second}
	case p.all >= most:
		return nil, &unitask.BusyError{What: "there are too many " + what + ": try again later", After: time.Second}
	}
	if p.of == nil {
		p.of = map[string]int{}
	}
	p.all++
	p.of[caller]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		if p.of[caller]--; p.of[caller] == 0 {
			delete(p.of, caller)
		}
	}), nil
}

// session returns the session that the path names.
func (s *Server) session(c *call) (*unitask.Session, error) {
	return s.shared.Session(c.r.Context(), c.caller, c.text("id"))
}

// sessionView is a session in an answer.
type sessionView struct {
	ID        string    `json:"id"`
	Parent    string    `json:"parent,omitempty"`
	Language  string    `json:"language"`
	Image     string    `json:"image"`
	Began     time.Time `json:"began"`
	ExpiresAt time.Time `json:"expiresAt"`
	Paused    bool      `json:"paused"`
}

func viewOf(s mcp.SessionView) sessionView {
	return sessionView{s.Session, s.Parent, s.Language, s.Image, s.Began, s.ExpiresAt, s.Paused}
}

// view returns a caller's session, without resuming it.
func (s *Server) view(c *call, id string) (sessionView, error) {
	for _, one := range s.shared.Sessions(c.caller) {
		if one.Session == id {
			return viewOf(one), nil
		}
	}
	return sessionView{}, &Problem{Status: http.StatusNotFound, Code: "session.gone",
		Detail: "there is no session " + quoted(id) + " of yours: it has ended, or never was",
		Remedy: statuses["session.gone"].remedy}
}

func (s *Server) listSessions(c *call) (*answer, error) {
	list := []sessionView{}
	for _, one := range s.shared.Sessions(c.caller) {
		list = append(list, viewOf(one))
	}
	return &answer{Body: map[string]any{"sessions": list}}, nil
}

func (s *Server) getSession(c *call) (*answer, error) {
	view, err := s.view(c, c.text("id"))
	return &answer{Body: view}, err
}

func (s *Server) endSession(c *call) (*answer, error) {
	return &answer{Status: http.StatusNoContent}, s.shared.EndSession(c.caller, c.text("id"))
}

// newSession is what a request for a session has beside the arguments of run_code.
type newSession struct {
	CPUs           float64  `json:"cpus"`
	AllowNetAny    bool     `json:"allowNetAny"`
	Ask            []string `json:"ask"`
	LifeSeconds    float64  `json:"lifeSeconds"`
	IdleSeconds    float64  `json:"idleSeconds"`
	TimeoutSeconds float64  `json:"timeoutSeconds"`
	Root           bool     `json:"root"`

	ClientTools map[string][]clienttools.Tool `json:"clientTools"`
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// sessionRequest returns the request for the session that a call describes.
func (s *Server) sessionRequest(c *call, in newSession) (req unitask.SessionRequest, err error) {
	req = unitask.SessionRequest{Life: seconds(in.LifeSeconds), Idle: seconds(in.IdleSeconds), Root: in.Root}
	if req.Request, err = s.shared.Request(c.caller, c.body, true); err != nil {
		return req, err
	}
	req.Path, req.Args, req.Dir = "", nil, ""
	req.CPUs, req.AllowNetAny, req.Ask = in.CPUs, in.AllowNetAny, in.Ask
	if in.TimeoutSeconds == 0 { // what the ceiling allows
		most, _, err := policy.Resolve(policy.Request{Timeout: policy.MaxTimeout}, c.caller.Ceiling)
		if err != nil {
			return req, err
		}
		req.Timeout = most.Timeout
	}
	return req, nil
}

func (s *Server) createSession(c *call) (*answer, error) {
	var in newSession
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	req, err := s.sessionRequest(c, in)
	if err != nil {
		return nil, err
	}
	leave, err := s.turn(c.r.Context(), c.caller)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := s.shared.Secrets(c.r.Context(), c.caller, &req.Request); err != nil {
		return nil, err
	}
	calls := newProgress(c.caller.Name, nil)
	if len(in.ClientTools) > 0 { // in the caller's turn: hostile schemas take processor time
		if req.OwnTools, err = calls.calls.Servers(c.r.Context(), in.ClientTools); err != nil {
			return nil, err
		}
	}
	made, err := s.shared.NewSession(c.r.Context(), c.caller, req)
	leave()
	if err != nil {
		return nil, err
	}
	if req.OwnTools != nil {
		s.tellCalls(c.caller, made, calls)
	}
	c.began(made.ID)
	view, err := s.view(c, made.ID)
	if err != nil {
		return nil, err
	}
	res := &unitask.Result{Policy: made.Policy}
	s.shared.HideResult(c.caller, res)
	return &answer{Status: http.StatusCreated, Header: at("/v1/sessions/" + made.ID), Body: struct {
		sessionView
		Denials []policy.Denial `json:"denials"`
	}{view, append([]policy.Denial{}, res.Policy.Denials...)}}, nil
}

// tellCalls makes the calls of the client's tools in a session, and in its forks, events of the session's run.
func (s *Server) tellCalls(caller unitask.Caller, made *unitask.Session, calls *progress) {
	calls.cancel = func() { _ = s.shared.EndSession(caller, made.ID) }
	s.progresses.add(made.ID, calls)
	go func() {
		<-made.Done()
		calls.end(map[string]string{"session": made.ID})
		s.progresses.trim()
	}()
}

// at returns the header of an answer about something with a path.
func at(path string) http.Header { return http.Header{"Location": {path}} }

func (s *Server) pauseSession(c *call) (*answer, error) {
	return s.change(c, func(of *unitask.Session) error { return of.Pause(c.r.Context()) })
}

func (s *Server) resumeSession(c *call) (*answer, error) {
	return s.change(c, func(of *unitask.Session) error { return of.Resume(c.r.Context()) })
}

func (s *Server) extendSession(c *call) (*answer, error) {
	var in struct{ LifeSeconds float64 }
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	return s.change(c, func(of *unitask.Session) error { return of.Extend(c.r.Context(), seconds(in.LifeSeconds)) })
}

// change changes a session, and answers with its new state.
func (s *Server) change(c *call, do func(*unitask.Session) error) (*answer, error) {
	of, err := s.session(c)
	if err == nil {
		err = s.shared.Admit(c.caller)
	}
	if err == nil {
		err = do(of)
	}
	if err != nil {
		return nil, err
	}
	view, err := s.view(c, of.ID)
	return &answer{Body: view}, err
}

func (s *Server) forkSession(c *call) (*answer, error) {
	var in struct{ Count int }
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	of, err := s.session(c)
	if err == nil {
		err = s.shared.Admit(c.caller)
	}
	if err != nil {
		return nil, err
	}
	forks, err := of.Fork(c.r.Context(), cmp.Or(in.Count, 1))
	if err != nil {
		return nil, err
	}
	c.began(forks[0].ID)
	list := []sessionView{}
	for _, fork := range forks {
		s.shared.Keep(fork, c.caller)
		if view, err := s.view(c, fork.ID); err == nil { // else it has ended
			list = append(list, view)
		}
	}
	slices.SortFunc(list, func(a, b sessionView) int { return strings.Compare(a.ID, b.ID) })
	return &answer{Status: http.StatusCreated, Body: map[string]any{"sessions": list}}, nil
}

func (s *Server) listValues(c *call) (*answer, error) {
	of, err := s.session(c)
	if err != nil {
		return nil, err
	}
	names, more, err := of.Values(c.r.Context())
	return &answer{Body: map[string]any{"names": append([]string{}, names...), "more": more}}, err
}

func (s *Server) getValue(c *call) (*answer, error) {
	of, err := s.session(c)
	if err != nil {
		return nil, err
	}
	text, err := of.Get(c.r.Context(), c.text("name"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Problem{Status: http.StatusNotFound, Code: "file", Detail: "the session has no such value",
			Remedy: "PUT makes one, as does code that writes /work/.values/NAME.json"}
	}
	if err != nil {
		return nil, err
	}
	value := json.RawMessage(of.Redact(string(text)))
	if !json.Valid(value) {
		return nil, &Problem{Status: http.StatusConflict, Code: "value",
			Detail: "the value without the session's secrets is not JSON", Remedy: "read its file"}
	}
	return &answer{Body: value}, nil
}

func (s *Server) putValue(c *call) (*answer, error) {
	of, err := s.session(c)
	if err != nil {
		return nil, err
	}
	return &answer{Status: http.StatusNoContent}, of.Put(c.r.Context(), c.text("name"), c.body)
}
