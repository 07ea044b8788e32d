package mcp

import (
	"context"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/unitask/unitask"
)

// API is another API at a server's address. It shares the server's callers, its limits of connections and requests,
// and its checks of Host and Origin.
type API interface {
	// Serves reports whether a request is for this API.
	Serves(r *http.Request) bool
	// Caller returns the caller that a request's own credentials identify; "" means that it has none, and that the
	// server's rules apply. refuse, if not nil, answers a request whose credentials are wrong.
	Caller(r *http.Request) (name string, refuse http.Handler)
	// ServeHTTP answers a request; Server.Caller returns its caller.
	http.Handler
}

// apis serves other APIs. A caller that an API's own credentials identify needs no other token.
func (s *Server) apis(opts *HTTPOptions, protect func(http.Handler) http.Handler) http.Handler {
	type entry struct {
		API
		protected http.Handler
		named     func(w http.ResponseWriter, r *http.Request, caller string)
	}
	var all []entry
	for _, api := range opts.APIs {
		served := s.bounded(s.untilClosed(api))
		all = append(all, entry{api, protect(served), identified(s.introduced(served))})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, api := range all {
			if !api.Serves(r) {
				continue
			}
			caller, refuse := api.Caller(r)
			switch {
			case refuse != nil:
				opts.guard(refuse).ServeHTTP(w, r)
			case caller == "":
				api.protected.ServeHTTP(w, r)
			default:
				opts.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					api.named(w, r, caller)
				})).ServeHTTP(w, r)
			}
			return
		}
		http.NotFound(w, r)
	})
}

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

// Caller returns the caller of a request to another API, with its ceiling.
func (s *Server) Caller(r *http.Request) unitask.Caller {
	names := namesOf(auth.TokenInfoFromContext(r.Context()))
	return unitask.Caller{Name: names[0], Via: unitask.ViaHTTP, Ceiling: s.opts.Ceiling.For(names...)}
}
