package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/fetch"
	"github.com/unitask/unitask/internal/home/config"
	"github.com/unitask/unitask/internal/unseen"
	"github.com/unitask/unitask/policy"
)

// Limits of a search.
const (
	MaxResults   = 20 // that a caller may ask for
	UsualResults = 8
	MaxQuery     = 400     // characters
	maxHitText   = 1000    // characters of a result's text
	maxAnswer    = 2 << 20 // bytes of a backend's answer
	searchTime   = 20 * time.Second
)

// Ages lists how old a result may be.
var Ages = []string{"day", "week", "month", "year"}

// SearchRequest asks a search backend.
type SearchRequest struct {
	Query   string
	Backend string // "" is the first one that may be asked
	Since   string // one of Ages, or "" for any age
	Limit   int    // of results; 0 is UsualResults
}

// Found are the results of a search. Everything in it but Backend is the backend's word.
type Found struct {
	Backend string `json:"backend"`
	Results []Hit  `json:"results"`
}

// Hit is a result.
type Hit struct {
	Title string `json:"title,omitempty"`
	URL   string `json:"url"`
	Text  string `json:"text,omitempty"`
	Date  string `json:"date,omitempty"` // as 2026-10-31
}

// Searcher asks the search backends that a home's configuration has ([search.NAME] in config.toml) and that a ceiling
// allows. The host itself asks them, and reads only JSON of bounded size. It follows no redirect. A backend's address
// may be in a private network only if the configuration has it.
type Searcher struct {
	Home string
	// Ceiling may forbid backends; nil allows all.
	Ceiling *policy.Ceiling
	// Named means that the ceiling must also name the backend.
	Named bool
	// Note writes an entry of the audit log. A search whose start is not noted is not sent.
	Note func(kind audit.Kind, detail map[string]any) error
}

// Search asks a backend.
func (s *Searcher) Search(ctx context.Context, in SearchRequest) (*Found, error) {
	in.Limit = cmp.Or(in.Limit, UsualResults)
	in.Query = strings.TrimSpace(in.Query)
	odd := func(r rune) bool { return unseen.Is(r) && r != '\u200c' && r != '\u200d' }
	switch {
	case in.Query == "":
		return nil, policy.Bad("query", `""`, "is empty")
	case utf8.RuneCountInString(in.Query) > MaxQuery:
		return nil, policy.Bad("query", fmt.Sprintf("%.40q…", in.Query), "has more than %d characters", MaxQuery)
	case !utf8.ValidString(in.Query) || strings.ContainsFunc(in.Query, odd):
		return nil, policy.Bad("query", fmt.Sprintf("%.40q", in.Query), "has a character that nobody sees")
	case in.Limit < 1 || in.Limit > MaxResults:
		return nil, policy.Bad("limit", fmt.Sprint(in.Limit), "must be from 1 to %d", MaxResults)
	case in.Since != "" && !slices.Contains(Ages, in.Since):
		return nil, policy.Bad("since", fmt.Sprintf("%.40q", in.Since), "use %s", strings.Join(Ages, ", "))
	}
	list, v, err := config.Search(s.Home)
	if err != nil {
		return nil, err
	}
	name, err := s.choose(list, in.Backend)
	if err != nil {
		return nil, errors.Join(err, s.Note(audit.SearchRefused, map[string]any{"backend": name, "query": in.Query,
			"why": err.Error()}))
	}
	e, err := engineOf(name, list[name])
	if err != nil {
		return nil, err
	}
	key := ""
	if e.source != "" {
		if key, err = v.Read(ctx, e.source); err != nil {
			return nil, fmt.Errorf("the key of the search backend %s: %w", name, err)
		}
	}
	detail := map[string]any{"backend": name, "host": e.base.Host, "query": in.Query}
	if err := s.Note(audit.SearchStarted, detail); err != nil {
		return nil, fmt.Errorf("%s is not asked, since the audit log can't have its entry: %w", name, err)
	}
	began := time.Now()
	hits, status, size, err := e.ask(ctx, in, key)
	detail = map[string]any{"backend": name, "status": status, "bytes": size, "results": len(hits),
		"ms": time.Since(began).Milliseconds()}
	if err != nil {
		err = fmt.Errorf("the search backend %s: %w", name, err)
		detail["error"] = err.Error()
	}
	if err := errors.Join(err, s.Note(audit.SearchEnded, detail)); err != nil {
		return nil, err
	}
	return &Found{Backend: name, Results: hits}, nil
}

// choose returns the name of the backend to ask: asked, or the first one that is configured and allowed.
func (s *Searcher) choose(list map[string]config.SearchBackend, asked string) (string, error) {
	names := slices.Sorted(maps.Keys(list))
	if said := s.Ceiling.SearchBackends(); s.Named || len(said) > 0 {
		names = slices.DeleteFunc(said, func(name string) bool { _, there := list[name]; return !there })
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !s.Ceiling.Searches(name) })
	switch {
	case asked != "" && slices.Contains(names, asked):
		return asked, nil
	case asked != "":
		asked = fmt.Sprintf("%.40q", asked)
		return asked, policy.Bad("backend", asked, "is not a backend that config.toml has and the ceiling allows")
	case len(names) == 0:
		return "", errors.New("there is no search backend: config.toml of the home has a table [search.NAME] for each, and " +
			"webSearch of a ceiling may limit them")
	}
	return names[0], nil
}

// ask sends a search and reads the answer.
func (e *engine) ask(ctx context.Context, in SearchRequest, key string) (hits []Hit, status, size int, err error) {
	req, err := e.request(in, key, time.Now())
	if err != nil {
		return nil, 0, 0, errors.New("its address and the query make no request")
	}
	ctx, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	var named string
	if e.named {
		named = e.base.Host
	}
	transport := fetch.Transport(nil, named)
	transport.DisableCompression = true // a small answer could become a large one
	transport.DisableKeepAlives = true
	transport.MaxResponseHeaderBytes = 64 << 10
	client := http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req.WithContext(ctx))
	if err != nil {
		return nil, 0, 0, without(ctx, key, err)
	}
	defer res.Body.Close()
	if err := e.refusal(res, key); err != nil {
		return nil, res.StatusCode, 0, err
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, res.StatusCode, len(text), without(ctx, key, err)
	case len(text) > maxAnswer:
		return nil, res.StatusCode, len(text), fmt.Errorf("its answer has more than %d bytes", maxAnswer)
	}
	hits, err = found(text, in.Limit, key)
	return hits, res.StatusCode, len(text), err
}

// without removes the key, and the URL with the query, from an error of net/http. If the error quotes lines of the
// server, without shortens them to one line.
func without(ctx context.Context, key string, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("there was no answer within %s", searchTime)
	}
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	return errors.New(bounded.Text(withoutKey(err.Error(), key, maxError), maxError))
}

// withoutKey returns a backend's text in one line of at most so many bytes, without the key.
func withoutKey(text, key string, most int) string {
	if key != "" { // first remove what nobody sees: it may divide the key
		text = strings.ReplaceAll(shortLine(text, 2*most), key, "[key]")
	}
	return shortLine(text, most)
}

// saidText is a text, or nothing if the JSON has another type.
type saidText string

func (s *saidText) UnmarshalJSON(text []byte) error {
	if text[0] != '"' {
		return nil
	}
	return json.Unmarshal(text, (*string)(s))
}

// item is a result as the backends have it. Each of them uses some of the names.
type item struct {
	Title       saidText `json:"title"`
	URL         saidText `json:"url"`
	Content     saidText `json:"content"`       // SearXNG, Tavily
	Description saidText `json:"description"`   // Brave
	Text        saidText `json:"text"`          // Exa
	Published   saidText `json:"publishedDate"` // SearXNG, Exa
	PublishedOn saidText `json:"published_date"`
	PageAge     saidText `json:"page_age"` // Brave
}

// items are the first results of an answer. The rest is not decoded.
type items []item

// maxItems bounds the results that are read; some of them have no usable URL.
const maxItems = 3 * MaxResults

func (list *items) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errors.New("no list of results")
	}
	for len(*list) < maxItems && d.More() {
		var one item
		var wrong *json.UnmarshalTypeError
		if err := d.Decode(&one); err != nil && !errors.As(err, &wrong) {
			return err
		}
		*list = append(*list, one)
	}
	return nil
}

// found reads a backend's answer. It leaves out the key, should the answer have it.
func found(text []byte, limit int, key string) ([]Hit, error) {
	var answer struct {
		Results *items `json:"results"`
		Web     struct {
			Results *items `json:"results"` // Brave
		} `json:"web"`
		Type saidText `json:"type"` // Brave: an answer without results has nothing else
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, errors.New("it answers with something that is not JSON of a search")
	}
	list := cmp.Or(answer.Results, answer.Web.Results)
	if list == nil && answer.Type != "search" {
		return nil, errors.New("its answer has no results member, so it is no answer of such a backend")
	}
	hits := []Hit{}
	if list == nil {
		return hits, nil
	}
	for _, one := range *list {
		at, err := parse(string(one.URL))
		if err != nil || key != "" && strings.Contains(at.url, key) {
			continue
		}
		hit := Hit{Title: withoutKey(string(one.Title), key, maxTitle), URL: at.url,
			Text: withoutKey(string(cmp.Or(one.Content, one.Description, one.Text)), key, maxHitText)}
		if date := cmp.Or(one.Published, one.PublishedOn, one.PageAge); len(date) >= 10 && isoDate.MatchString(
			string(date[:10])) {
			hit.Date = string(date[:10])
		}
		if hits = append(hits, hit); len(hits) == limit {
			break
		}
	}
	return hits, nil
}

// Backend is the state of a configured search backend.
type Backend struct {
	Name string
	Err  error // why it can't be used
}

// Backends tries the configured backends of a home: a search of each that needs no key, and the keys of the others.
func Backends(ctx context.Context, dir string) ([]Backend, error) {
	list, v, err := config.Search(dir)
	if err != nil {
		return nil, err
	}
	var states []Backend
	for _, name := range slices.Sorted(maps.Keys(list)) {
		e, err := engineOf(name, list[name])
		switch {
		case err != nil:
		case e.source != "": // a search may cost money
			_, err = v.Read(ctx, e.source)
		default:
			_, _, _, err = e.ask(ctx, SearchRequest{Query: "unitask", Limit: 1}, "")
		}
		states = append(states, Backend{name, err})
	}
	return states, nil
}
