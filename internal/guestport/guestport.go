// Package guestport sends HTTP requests and WebSockets to a TCP port of a session's machine. Code that nobody trusts
// answers there.
package guestport

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
)

// Proxy sends requests to one port.
type Proxy struct {
	Port int
	// Dial connects to the port.
	Dial func(ctx context.Context) (net.Conn, error)
	// Drop lists headers of requests that the machine does not get.
	Drop []string
	// Failed answers a request that no server in the machine has answered.
	Failed func(http.ResponseWriter, *http.Request, error)
	// Prefix, if not "", is the path of the port at this server, with a slash at its end, and the request's path begins
	// with it. Answers then are those of a stranger at our own origin: see Isolate.
	Prefix string
}

// Limits of a machine's answers.
const (
	maxHeader  = 64 << 10         // bytes
	headerTime = 10 * time.Minute // until its header is there
)

// strangers lists headers of requests to a Prefix that a stranger must not get, beside Drop: cookies are those of all
// ports of a host.
var strangers = []string{"Authorization", "Cookie", "Proxy-Authorization", "Origin", "Referer"}

// ServeHTTP sends a request to the port.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	guest := "127.0.0.1:" + strconv.Itoa(p.Port)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(out *httputil.ProxyRequest) {
			out.Out.URL.Scheme, out.Out.URL.Host = "http", guest
			out.Out.URL.RawQuery = out.In.URL.RawQuery // also what Go would not read
			for _, name := range p.Drop {
				out.Out.Header.Del(name)
			}
			if p.Prefix == "" {
				out.SetXForwarded()
				return
			}
			out.Out.Host = guest
			for _, name := range strangers {
				out.Out.Header.Del(name)
			}
			out.Out.Header.Set("X-Forwarded-Prefix", strings.TrimSuffix(p.Prefix, "/"))
			p.strip(out.Out.URL)
		},
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
			ResponseHeaderTimeout: headerTime,
			DialContext:           func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Dial(ctx) }},
		ErrorHandler: p.Failed,
	}
	if p.Prefix != "" {
		proxy.ModifyResponse = func(res *http.Response) error { Isolate(res, guest, p.Prefix); return nil }
		w = final{w}
	}
	proxy.ServeHTTP(w, r)
}

// strip removes the prefix from a URL's path, also from its escaped form.
func (p *Proxy) strip(u *url.URL) {
	cut := func(text string) string {
		parts := strings.SplitN(text, "/", strings.Count(p.Prefix, "/")+1)
		return "/" + parts[len(parts)-1]
	}
	escaped := cut(u.EscapedPath())
	u.Path, u.RawPath = cut(u.Path), ""
	if plain, err := url.PathUnescape(escaped); err == nil {
		u.Path, u.RawPath = plain, escaped
	}
}

// harmful lists headers of answers that have an effect on the origin, or on the client, beyond the answer.
var harmful = []string{"Set-Cookie", "Set-Cookie2", "Clear-Site-Data", "Strict-Transport-Security", "Public-Key-Pins",
	"Public-Key-Pins-Report-Only", "Expect-Ct", "Alt-Svc", "Service-Worker-Allowed", "Www-Authenticate",
	"Proxy-Authenticate", "Authentication-Info", "Nel", "Report-To", "Reporting-Endpoints", "Refresh", "Link",
	"Content-Location", "Content-Security-Policy", "Content-Security-Policy-Report-Only", "Origin-Agent-Cluster",
	"Accept-Ch", "Critical-Ch", "Sec-Session-Registration", "Secure-Session-Registration", "Supports-Loading-Mode",
	"Timing-Allow-Origin", "X-Forwarded-Prefix", "Permissions-Policy", "Document-Policy", "Speculation-Rules",
	"Activate-Storage-Access", "Set-Login", "No-Vary-Search", "Use-As-Dictionary", "X-Accel-Redirect", "X-Sendfile"}

// Sandbox is the policy of a page from a machine: it has an origin of its own, and may run its scripts there.
const Sandbox = "sandbox allow-scripts allow-forms allow-downloads"

// Isolate takes from a machine's answer what could reach beyond it at our origin. A redirect stays below prefix, and
// one that leads away from guest, its host, has no Location any more.
func Isolate(res *http.Response, guest, prefix string) {
	h := res.Header
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") || strings.HasPrefix(name, "Cross-Origin-") ||
			strings.HasPrefix(name, "Sec-") && name != "Sec-Websocket-Accept" && name != "Sec-Websocket-Protocol" &&
				name != "Sec-Websocket-Extensions" {
			h.Del(name)
		}
	}
	for _, name := range harmful {
		h.Del(name)
	}
	h.Set("Content-Security-Policy", Sandbox)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	if locations := h.Values("Location"); len(locations) > 0 {
		h.Del("Location")
		if to := within(res.Request.URL, locations, guest, prefix); to != "" {
			h.Set("Location", to)
		}
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &untrailed{res.Body, res}
		res.Trailer = nil
		h.Del("Trailer")
	}
}

// within returns where a redirect leads below prefix, "" if it leads elsewhere.
func within(from *url.URL, locations []string, guest, prefix string) string {
	if len(locations) != 1 {
		return ""
	}
	to, err := from.Parse(locations[0])
	if err != nil || to.User != nil || to.Scheme != "http" || to.Host != guest {
		return ""
	}
	// Clients read %2e as a dot: cleaned after it is decoded, the path has none that lead up.
	clean := path.Clean("/" + to.Path)
	if strings.HasSuffix(to.Path, "/") && clean != "/" {
		clean += "/"
	}
	return (&url.URL{Path: prefix + clean[1:], RawQuery: to.RawQuery, Fragment: to.Fragment}).String()
}

// untrailed is a body whose trailers are dropped: they are headers, too.
type untrailed struct {
	io.ReadCloser
	res *http.Response
}

func (u *untrailed) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if err != nil {
		u.res.Trailer = nil
	}
	return n, err
}

// final drops a machine's informational answers, whose headers nobody checks.
type final struct{ http.ResponseWriter }

func (f final) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		f.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap gives a ResponseController access to the wrapped writer.
func (f final) Unwrap() http.ResponseWriter { return f.ResponseWriter }
