package web

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/home/config"
	"github.com/unitask/unitask/policy"
)

// searchKind is an API of search.
type searchKind struct {
	url  string // of the service; "" if everybody runs their own
	path string // below a configured URL
	key  func(h http.Header, key string)
	// params are the query of a GET, body is the JSON of a POST; the other one is nil.
	params func(in SearchRequest) url.Values
	body   func(in SearchRequest, now time.Time) map[string]any
}

// searchKinds lists the known APIs, a row each. Their answers have one form, which found reads.
var searchKinds = map[string]searchKind{
	"searxng": {path: "search", params: func(in SearchRequest) url.Values {
		v := url.Values{"q": {in.Query}, "format": {"json"}}
		if in.Since != "" {
			v.Set("time_range", in.Since)
		}
		return v
	}},
	"brave": {url: "https://api.search.brave.com", path: "res/v1/web/search",
		key: func(h http.Header, key string) { h.Set("X-Subscription-Token", key) },
		params: func(in SearchRequest) url.Values {
			v := url.Values{"q": {in.Query}, "count": {strconv.Itoa(in.Limit)}, "text_decorations": {"false"},
				"result_filter": {"web"}}
			if in.Since != "" {
				v.Set("freshness", "p"+in.Since[:1])
			}
			return v
		}},
	"tavily": {url: "https://api.tavily.com", path: "search",
		key: func(h http.Header, key string) { h.Set("Authorization", "Bearer "+key) },
		body: func(in SearchRequest, _ time.Time) map[string]any {
			v := map[string]any{"query": in.Query, "max_results": in.Limit}
			if in.Since != "" {
				v["time_range"] = in.Since
			}
			return v
		}},
	"exa": {url: "https://api.exa.ai", path: "search",
		key: func(h http.Header, key string) { h.Set("x-api-key", key) },
		body: func(in SearchRequest, now time.Time) map[string]any {
			v := map[string]any{"query": in.Query, "numResults": in.Limit,
				"contents": map[string]any{"text": map[string]any{"maxCharacters": maxHitText}}}
			if in.Since != "" {
				days := map[string]int{"day": 1, "week": 7, "month": 31, "year": 366}[in.Since]
				v["startPublishedDate"] = now.AddDate(0, 0, -days).UTC().Format(time.RFC3339)
			}
			return v
		}},
}

// engine is a configured backend.
type engine struct {
	searchKind
	name, kind string
	base       *url.URL
	named      bool   // the configuration has its address, which may be in a private network
	source     string // of its key
}

// engineOf returns a backend of a home's configuration, after a check.
func engineOf(name string, c config.SearchBackend) (*engine, error) {
	e := &engine{name: name, kind: cmp.Or(c.Backend, name), named: c.URL != "", source: c.Key}
	wrong := func(format string, args ...any) (*engine, error) {
		return nil, fmt.Errorf("[search.%s] of config.toml: %w", name, fmt.Errorf(format, args...))
	}
	var known bool
	if e.searchKind, known = searchKinds[e.kind]; !known {
		return wrong("backend %.40q is not known: use %s", e.kind,
			strings.Join(slices.Sorted(maps.Keys(searchKinds)), ", "))
	}
	if !policy.IsSearchName(name) {
		return wrong("the name must have small letters, digits, - and _ only")
	}
	switch {
	case e.named:
	case e.url == "":
		return wrong("url is missing: the address of your own %s", e.kind)
	case c.Key == "":
		return wrong("key is missing: the source of its key, as keyring:%s", name)
	}
	at, err := parse(cmp.Or(c.URL, e.url))
	if err != nil {
		return wrong("url %w", err)
	}
	if e.base, err = url.Parse(at.url); err != nil {
		return wrong("url %w", err)
	}
	switch {
	case e.base.RawQuery != "":
		return wrong("url has a query, and must be the address that the API begins at")
	case c.Key != "" && e.key == nil:
		return wrong("key is for other backends: %s has none", e.kind)
	case c.Key != "" && e.base.Scheme != "https" && !loopback(e.base.Hostname()):
		return wrong("url must begin with https://, since a key goes there")
	}
	return e, nil
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// request returns the HTTP request of a search.
func (e *engine) request(in SearchRequest, key string, now time.Time) (*http.Request, error) {
	to, method, text := e.base.JoinPath(e.path), http.MethodGet, ""
	if e.body != nil {
		body, err := json.Marshal(e.body(in, now))
		if err != nil {
			return nil, err
		}
		method, text = http.MethodPost, string(body)
	} else {
		to.RawQuery = e.params(in).Encode()
	}
	req, err := http.NewRequest(method, to.String(), strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		e.key(req.Header, key)
	}
	return req, nil
}

var errNoJSON = errors.New("JSON is not enabled there: its owner must add the line \"formats: [html, json]\" below " +
	"\"search:\" of its settings.yml")

// refusal returns the error of an HTTP answer that has no results, or nil.
func (e *engine) refusal(res *http.Response, key string) error {
	switch code := res.StatusCode; {
	case code == http.StatusOK:
		return nil
	case code == http.StatusForbidden && e.kind == "searxng":
		return errNoJSON
	case code >= 300 && code < 400:
		return fmt.Errorf("it redirects to %s, which is not followed: if that is right, write it as url",
			quoted(withoutKey(res.Header.Get("Location"), key, maxError), 200))
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return fmt.Errorf("it refuses the key (status %d)", code)
	case code == http.StatusTooManyRequests:
		return errors.New("it takes no more requests now (status 429): try later")
	default:
		return fmt.Errorf("it answers with status %d", code)
	}
}
