package e2b

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// daemonVersion is the version of E2B's daemon whose features sandboxes have.
const daemonVersion = "0.6.4"

// controlRoutes returns the handler of the control API.
func (s *Server) controlRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sandboxes", s.create(false, defaultTimeout))
	mux.HandleFunc("POST /v2/sandboxes", s.create(true, defaultTimeoutV2))
	mux.HandleFunc("GET /sandboxes", s.list)
	mux.HandleFunc("GET /v2/sandboxes", s.list)
	mux.HandleFunc("GET /sandboxes/metrics", s.allMetrics)
	mux.HandleFunc("POST /sandboxes/{id}/snapshots", s.own(s.snapshot))
	mux.HandleFunc("GET /snapshots", s.listSnapshots)
	mux.HandleFunc("GET /templates", s.listTemplates)
	mux.HandleFunc("GET /v2/templates", s.listTemplates)
	mux.HandleFunc("GET /default-templates", s.listTemplates)
	mux.HandleFunc("DELETE /templates/{id}", s.deleteTemplate)
	mux.HandleFunc("GET /templates/{id}", s.templateDetails)
	mux.HandleFunc("PATCH /templates/{id}", s.updateTemplate)
	mux.HandleFunc("PATCH /v2/templates/{id}", s.updateTemplate)
	mux.HandleFunc("POST /v3/templates", s.requestBuild)
	mux.HandleFunc("GET /templates/{id}/files/{hash}", s.uploadLink)
	mux.HandleFunc("PUT "+uploadPath+"{token}", s.takeUpload)
	mux.HandleFunc("POST /v2/templates/{id}/builds/{build}", s.startBuild)
	mux.HandleFunc("GET /templates/{id}/builds/{build}/status", s.buildStatus)
	mux.HandleFunc("GET /templates/{id}/builds/{build}/logs", s.buildLogs)
	mux.HandleFunc("POST /templates/tags", s.addTags)
	mux.HandleFunc("DELETE /templates/tags", s.removeTags)
	mux.HandleFunc("GET /templates/{id}/{of}", s.ofTemplate)
	for route, handler := range map[string]func(http.ResponseWriter, *http.Request, *sandbox){
		"GET /sandboxes/{id}":             s.details,
		"DELETE /sandboxes/{id}":          s.delete,
		"POST /sandboxes/{id}/timeout":    s.setTimeout,
		"POST /sandboxes/{id}/refreshes":  s.refresh,
		"POST /sandboxes/{id}/pause":      s.pauseSandbox,
		"POST /sandboxes/{id}/resume":     s.resumeSandbox,
		"POST /sandboxes/{id}/connect":    s.connect,
		"POST /v2/sandboxes/{id}/connect": s.connect,
		"POST /sandboxes/{id}/fork":       s.fork,
		"PUT /sandboxes/{id}/network":     s.setNetwork,
		"GET /sandboxes/{id}/metrics":     s.metrics,
		"GET /sandboxes/{id}/logs":        s.logs,
		"GET /v2/sandboxes/{id}/logs":     s.logs,
	} {
		mux.HandleFunc(route, s.own(handler))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, http.StatusNotFound, "unitask has no "+r.Method+" "+r.URL.Path+": docs/e2b.md lists what it has")
	})
	return mux
}

// own finds the sandbox of a request's path among those of its caller.
func (s *Server) own(next func(http.ResponseWriter, *http.Request, *sandbox)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		box := s.find(r.PathValue("id"))
		if box == nil || box.caller.Name != s.opts.Caller(r).Name {
			writeError(w, http.StatusNotFound, fmt.Sprintf("sandbox %.80q: there is none of yours", r.PathValue("id")))
			return
		}
		next(w, r, box)
	}
}

// newSandbox is the request for one.
type newSandbox struct {
	TemplateID string `json:"templateID"`
	Timeout    *int   `json:"timeout"`
	AutoPause  bool   `json:"autoPause"`
	AutoResume *struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	Secure   bool              `json:"secure"`
	Internet *bool             `json:"allow_internet_access"`
	Network  networkConfig     `json:"network"`
	Metadata map[string]string `json:"metadata"`
	EnvVars  map[string]string `json:"envVars"`
	Volumes  []any             `json:"volumeMounts"`
}

// seconds returns a time in whole seconds from a request, the default if it has none.
func seconds(n *int, usual time.Duration) (time.Duration, error) {
	if n == nil {
		return usual, nil
	}
	if *n < 0 || *n > int(maxTimeout/time.Second) {
		return 0, policy.Bad("timeout", strconv.Itoa(*n), "must be from 0 to %d seconds", int(maxTimeout/time.Second))
	}
	return time.Duration(*n) * time.Second, nil
}

// sizeOf returns the bytes of a map's names and values.
func sizeOf(m map[string]string) (n int) {
	for name, value := range m {
		n += len(name) + len(value)
	}
	return n
}

// checkNames returns an error if a variable can't have its name or value.
func checkNames(env map[string]string) error {
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00\n") || strings.ContainsRune(value, 0) {
			return policy.Bad("envs", fmt.Sprintf("%.80q", name), "names have no =, no line's end and no NUL, values no NUL")
		}
	}
	return nil
}

// check returns why a request can't be served.
func (in *newSandbox) check() error {
	switch {
	case in.TemplateID == "":
		return policy.Bad("templateID", `""`, "must name a template")
	case sizeOf(in.Metadata) > maxMetadata || sizeOf(in.EnvVars) > maxMetadata:
		return policy.Bad("metadata", "too long", "metadata and envVars have at most %d bytes each", maxMetadata)
	case len(in.Volumes) > 0:
		return policy.Bad("volumeMounts", "given", "unitask has no volumes here")
	}
	if err := checkNames(in.EnvVars); err != nil {
		return err
	}
	return in.Network.check()
}

// create returns the handler that starts a sandbox. secure ones want their token from the first request on.
func (s *Server) create(secure bool, usual time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in newSandbox
		if !readBody(w, r, &in) {
			return
		}
		timeout, err := seconds(in.Timeout, usual)
		if err == nil {
			err = in.check()
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		box := &sandbox{id: newID(), template: in.TemplateID, caller: s.opts.Caller(r), metadata: in.Metadata,
			envs: in.EnvVars, token: newToken(), traffic: newToken(), secure: secure || in.Secure,
			public: in.Network.AllowPublic == nil || *in.Network.AllowPublic, internet: in.Internet, network: in.Network,
			pauses: in.AutoPause, resumes: in.AutoResume != nil && in.AutoResume.Enabled}
		if err = s.opts.Admit(box.caller); err == nil {
			err = s.begin(r.Context(), box, 0)
		}
		if err == nil {
			err = s.keep(box, timeout)
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		writeJSON(w, http.StatusCreated, s.created(box))
	}
}

// begin starts a sandbox's session: of a snapshot, or of a template's image.
func (s *Server) begin(ctx context.Context, box *sandbox, memoryMB int) error {
	from := s.snapshots.find(box.template, box.caller.Name)
	if one := s.builder.find(box.template, box.caller.Name); one != nil {
		if _, from = one.now(); from == nil { // it has just been removed
			return errNoTemplate(box.template)
		}
	}
	if from != nil {
		return from.startAs(ctx, box)
	}
	t, err := s.templateNamed(box.template)
	if err != nil {
		return err
	}
	req := t.request()
	req.MemoryMB = max(req.MemoryMB, memoryMB)
	box.network.grant(&req, box.internet)
	box.cpus, box.memoryMB = max(1, int(req.CPUs)), cmp.Or(req.MemoryMB, policy.DefaultMemoryMB)
	made, err := s.opts.Runtime.NewSessionFor(ctx, box.caller, unitask.SessionRequest{Request: req, Root: true,
		Idle: maxTimeout})
	if err != nil {
		return err
	}
	if made.OfContainer() {
		if err := settle(ctx, made); err != nil {
			_ = made.Close()
			return err
		}
	}
	box.session, box.memoryMB = made, cmp.Or(made.Policy.Effective.MemoryMB, box.memoryMB)
	if box.interprets = t.interprets; box.interprets && !box.building {
		go box.warmUp()
	}
	return nil
}

// sandboxView is a sandbox for the caller that made or found it.
type sandboxView struct {
	TemplateID    string  `json:"templateID"`
	SandboxID     string  `json:"sandboxID"`
	ClientID      string  `json:"clientID"`
	Daemon        string  `json:"envdVersion"`
	Token         string  `json:"envdAccessToken,omitempty"`
	Traffic       string  `json:"trafficAccessToken,omitempty"`
	Domain        *string `json:"domain"`
	*sandboxState `json:",omitempty"`
	*sandboxMore  `json:",omitempty"`
}

// sandboxState is what lists have in addition.
type sandboxState struct {
	StartedAt string            `json:"startedAt"`
	EndAt     string            `json:"endAt"`
	State     state             `json:"state"`
	CPUs      int               `json:"cpuCount"`
	MemoryMB  int               `json:"memoryMB"`
	DiskMB    int               `json:"diskSizeMB"`
	Metadata  map[string]string `json:"metadata,omitempty"`
}

// sandboxMore is what one sandbox has in addition to that.
type sandboxMore struct {
	Internet  *bool          `json:"allowInternetAccess,omitempty"`
	Network   *networkConfig `json:"network,omitempty"`
	Lifecycle lifecycle      `json:"lifecycle"`
}

type lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"`
}

func (s *Server) created(box *sandbox) sandboxView {
	v := sandboxView{TemplateID: box.template, SandboxID: box.id, ClientID: "unitask", Daemon: daemonVersion}
	if box.secure || s.opts.Tokens {
		v.Token = box.token
	}
	if !box.public || s.opts.Tokens {
		v.Traffic = box.traffic
	}
	if s.opts.Domain != "" {
		v.Domain = &s.opts.Domain
	}
	return v
}

func (s *Server) listed(box *sandbox) sandboxView {
	now, ends := box.now()
	return sandboxView{TemplateID: box.template, SandboxID: box.id, ClientID: "unitask", Daemon: daemonVersion,
		sandboxState: &sandboxState{StartedAt: stamp(box.began), EndAt: stamp(ends), State: now, CPUs: box.cpus,
			MemoryMB: box.memoryMB, DiskMB: box.memoryMB / 2, Metadata: box.metadata}}
}

func (s *Server) details(w http.ResponseWriter, r *http.Request, box *sandbox) {
	v := s.listed(box)
	v.Token = s.created(box).Token
	on := lifecycle{OnTimeout: "kill"}
	box.mu.Lock()
	if on.AutoResume = box.resumes; box.pauses {
		on.OnTimeout = "pause"
	}
	network := box.network
	box.mu.Unlock()
	v.sandboxMore = &sandboxMore{Internet: box.internet, Network: &network, Lifecycle: on}
	writeJSON(w, http.StatusOK, v)
}

// The sizes of a page of a list.
const (
	usualPage = 100
	maxPage   = 100
)

// list lists a caller's sandboxes.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	states := strings.Split(cmp.Or(strings.Join(q["state"], ","), string(running)+","+string(asleep)), ",")
	if r.URL.Path == "/sandboxes" {
		states = []string{string(running)}
	}
	wanted, err := url.ParseQuery(q.Get("metadata"))
	if err != nil {
		writeError(w, http.StatusBadRequest, "metadata: "+err.Error())
		return
	}
	all := s.of(s.opts.Caller(r).Name)
	if q.Get("order") == "asc" {
		slices.Reverse(all)
	}
	after, _ := time.Parse(time.RFC3339, q.Get("startedAfter"))
	all = slices.DeleteFunc(all, func(box *sandbox) bool {
		now, _ := box.now()
		for name := range wanted {
			if box.metadata[name] != wanted.Get(name) {
				return true
			}
		}
		return !slices.Contains(states, string(now)) || box.began.Before(after) ||
			q.Get("template") != "" && q.Get("template") != box.template
	})
	page, err := pageOf(w, q, all)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	views := make([]sandboxView, 0, len(page))
	for _, box := range page {
		views = append(views, s.listed(box))
	}
	writeJSON(w, http.StatusOK, views)
}

// pageOf returns the page of a list that a request asks for, and tells in a header where the next one begins.
func pageOf[T any](w http.ResponseWriter, q url.Values, all []T) ([]T, error) {
	limit, from := usualPage, 0
	var err error
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxPage {
			return nil, policy.Bad("limit", fmt.Sprintf("%.40q", text), "must be from 1 to %d", maxPage)
		}
	}
	if text := q.Get("nextToken"); text != "" {
		if from, err = strconv.Atoi(text); err != nil || from < 0 {
			return nil, policy.Bad("nextToken", fmt.Sprintf("%.40q", text), "is none of ours")
		}
	}
	all = all[min(from, len(all)):]
	if len(all) > limit {
		w.Header().Set("X-Next-Token", strconv.Itoa(from+limit))
		all = all[:limit]
	}
	return all, nil
}

func (s *Server) delete(w http.ResponseWriter, r *http.Request, box *sandbox) {
	if err := s.kill(box); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) setTimeout(w http.ResponseWriter, r *http.Request, box *sandbox) {
	var in struct {
		Timeout *int `json:"timeout"`
	}
	if !readBody(w, r, &in) {
		return
	}
	timeout, err := seconds(in.Timeout, defaultTimeout)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	box.setEnd(time.Now().Add(timeout))
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) refresh(w http.ResponseWriter, r *http.Request, box *sandbox) {
	var in struct {
		Duration *int `json:"duration"`
	}
	if !readBody(w, r, &in) {
		return
	}
	more, err := seconds(in.Duration, defaultTimeout)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if _, ends := box.now(); time.Now().Add(more).After(ends) {
		box.setEnd(time.Now().Add(more))
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) pauseSandbox(w http.ResponseWriter, r *http.Request, box *sandbox) {
	var in struct {
		Memory *bool `json:"memory"`
	}
	if !readBody(w, r, &in) {
		return
	}
	if in.Memory != nil && !*in.Memory {
		s.fail(w, r, policy.Bad("memory", "false", "a sandbox keeps its memory: unitask has no pause of the disk alone"))
		return
	}
	err := s.pause(r.Context(), box)
	switch {
	case errors.Is(err, errNotRunning):
		writeError(w, http.StatusConflict, "the sandbox is paused already")
	case err != nil:
		s.fail(w, r, err)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// timed reads the timeout of a request to resume a sandbox.
func (s *Server) timed(w http.ResponseWriter, r *http.Request) (timeout time.Duration, ok bool) {
	var in struct {
		Timeout *int `json:"timeout"`
	}
	if !readBody(w, r, &in) {
		return 0, false
	}
	timeout, err := seconds(in.Timeout, defaultTimeout)
	if err != nil {
		s.fail(w, r, err)
	}
	return timeout, err == nil
}

func (s *Server) resumeSandbox(w http.ResponseWriter, r *http.Request, box *sandbox) {
	timeout, ok := s.timed(w, r)
	if !ok {
		return
	}
	resumed, err := s.resume(r.Context(), box, timeout)
	switch {
	case err != nil:
		s.fail(w, r, err)
	case !resumed:
		writeError(w, http.StatusConflict, "the sandbox is running already")
	default:
		writeJSON(w, http.StatusCreated, s.created(box))
	}
}

func (s *Server) connect(w http.ResponseWriter, r *http.Request, box *sandbox) {
	timeout, ok := s.timed(w, r)
	if !ok {
		return
	}
	resumed, err := s.resume(r.Context(), box, timeout)
	status := http.StatusOK
	if resumed {
		status = http.StatusCreated
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, status, s.created(box))
}
