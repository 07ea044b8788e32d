package mcp

import (
	"context"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/unitask/unitask"
)

// API is another API at a server's address. It shares the server's callers, its limits of connections and requests,
// and its checks of Host and Origin.
type API interface {
	// Serves reports whether a request is for this API.
	Serves(r *http.Request) bool
	// HasHost reports whether a request for this API may name a host, in addition to the server's own.
	HasHost(name string) bool
	// Caller returns the caller that a request's own credentials identify; "" means that it has none, and that the
	// server's rules apply. refuse, if not nil, answers a request whose credentials are wrong.
	Caller(r *http.Request) (name string, refuse http.Handler)
	// ServeHTTP answers a request; Server.Caller returns its caller.
	http.Handler
}

// apis serves the requests of other APIs, and rest all others. A caller that an API's own credentials identify needs
// no other token.
func (s *Server) apis(opts *HTTPOptions, protect func(guard, http.Handler) http.Handler,
	rest http.Handler) http.Handler {
	type entry struct {
		API
		protected, named http.Handler
	}
	var all []entry
	for _, api := range opts.APIs {
		embeds := func(*http.Request) bool { return false }
		if e, ok := api.(Embedder); ok {
			embeds = e.Embeds
		}
		guarded := func(next http.Handler) http.Handler { return opts.guardFor(api.HasHost, embeds, next) }
		served := s.bounded(s.untilClosed(reached(api)))
		named := identified(s.introduced(served))
		all = append(all, entry{api, protect(guarded, served), guarded(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				if caller, refuse := api.Caller(r); refuse != nil {
					refuse.ServeHTTP(w, r)
				} else {
					named(w, r, caller)
				}
			}))})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, api := range all {
			if !api.Serves(r) {
				continue
			}
			if refuser, ok := api.API.(Refuser); ok {
				f := &refusal{ResponseWriter: w, refuser: refuser}
				defer f.end()
				w = f
			}
			if caller, refuse := api.Caller(r); caller == "" && refuse == nil {
				api.protected.ServeHTTP(w, r)
			} else {
				api.named.ServeHTTP(w, r)
			}
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// Embedder is an API with paths that pages of other sites may show pictures and frames of, without a token.
type Embedder interface {
	Embeds(r *http.Request) bool
}

// Refuser is an API whose errors have a form of their own. It writes the answer to a request that the server refuses.
type Refuser interface {
	Refuse(w http.ResponseWriter, status int, text string)
}

// refusal passes the server's refusals on to a Refuser.
type refusal struct {
	http.ResponseWriter
	refuser Refuser
	status  int // of the refusal, whose text has not come yet
}

func (f *refusal) WriteHeader(status int) {
	if f.status = status; status < http.StatusBadRequest {
		f.ResponseWriter.WriteHeader(status)
	}
}

func (f *refusal) Write(text []byte) (int, error) {
	if f.status < http.StatusBadRequest {
		return f.ResponseWriter.Write(text)
	}
	f.refuser.Refuse(f.ResponseWriter, f.status, strings.TrimSpace(string(text)))
	f.status = 0
	return len(text), nil
}

// end answers a refusal without a text.
func (f *refusal) end() {
	if f.status >= http.StatusBadRequest {
		f.refuser.Refuse(f.ResponseWriter, f.status, http.StatusText(f.status))
	}
}

// Unwrap gives a ResponseController access to the wrapped writer.
func (f *refusal) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// reached serves a request that nothing has refused.
func reached(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f, ok := w.(*refusal); ok {
			w = f.ResponseWriter
		}
		api.ServeHTTP(w, r)
	})
}

// guard checks the Host and Origin of a request.
type guard = func(next http.Handler) http.Handler

// untilClosed ends requests when the server closes, and refuses further ones.
func (s *Server) untilClosed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.accepts() {
			http.Error(w, errClosing.Error(), http.StatusServiceUnavailable)
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		stop := context.AfterFunc(s.ctx, cancel)
		defer stop()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Caller returns the caller of a request to another API, with its ceiling. A request that passed no check of its
// caller belongs to nobody.
func (s *Server) Caller(r *http.Request) unitask.Caller {
	names := []string{nobody}
	if token := auth.TokenInfoFromContext(r.Context()); token != nil {
		names = namesOf(token)
	}
	return unitask.Caller{Name: names[0], Via: unitask.ViaHTTP, Ceiling: s.opts.Ceiling.For(names...)}
}
