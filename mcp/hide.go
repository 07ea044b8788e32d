package mcp

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/userdir"
	"github.com/unitask/unitask/policy"
)

// Callers over HTTP are not told where things are on the host: not the paths of files that
// they were given, not the policy's file, not the folders that an error is about. What
// they name themselves is theirs to see.

// remote reports whether a caller must not learn paths of the host.
func remote(c unitask.Caller) bool { return c.Via == unitask.ViaHTTP }

// hiddenPath stands in the place of a path.
const hiddenPath = "[path]"

// absolutePath is one as it stands in a message: in quotes, or up to what ends a word.
var absolutePath = regexp.MustCompile(`"/[^"/][^"]*"|(^|[\s'=(\[<,:])/[^\s"',:;()\[\]<>/][^\s"',:;()\[\]<>]*`)

// hider takes paths of the host out of messages.
type hider struct{ known *strings.Replacer }

// newHider knows the folders that messages are most likely about, which may have blanks
// in them. The server's own folder is where relative paths begin.
func newHider(dir, home string) hider {
	user, _ := userdir.Home()
	var pairs []string
	for _, at := range []struct{ path, shown string }{{dir, "."}, {home, hiddenPath}, {user, hiddenPath}} {
		for _, path := range []string{at.path, resolved(at.path)} {
			if path != "" && path != "/" && !slices.Contains(pairs, path) {
				pairs = append(pairs, path, at.shown)
			}
		}
	}
	return hider{strings.NewReplacer(pairs...)}
}

// resolved returns a path with its links followed, if that is possible.
func resolved(path string) string {
	to, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path
	}
	return to
}

// named hides what is known from a text that has a path of the caller's own.
func (h hider) named(text string) string { return h.known.Replace(text) }

// all hides every absolute path.
func (h hider) all(text string) string {
	return absolutePath.ReplaceAllStringFunc(h.named(text), func(found string) string {
		if strings.HasPrefix(found, `"`) {
			return `"` + hiddenPath + `"`
		}
		return found[:strings.IndexByte(found, '/')] + hiddenPath
	})
}

// error returns what a remote caller learns of an error.
func (h hider) error(err error) error {
	var field *policy.FieldError
	if errors.As(err, &field) { // it is about the request
		return &hiddenError{h.named(err.Error()), err}
	}
	return &hiddenError{h.all(err.Error()), err}
}

type hiddenError struct {
	text string
	error
}

func (e *hiddenError) Error() string { return e.text }
func (e *hiddenError) Unwrap() error { return e.error }

// tell returns what a caller learns of an error.
func (s *Server) tell(caller unitask.Caller, err error) error {
	if err == nil || !remote(caller) {
		return err
	}
	return s.hider.error(err)
}

// result hides in place.
func (h hider) result(res *unitask.Result) {
	res.Policy.Ceiling = ""
	for _, mounts := range []*[]policy.Mount{&res.Policy.Effective.Files, &res.Policy.Effective.Dirs} {
		shown := slices.Clone(*mounts)
		for i, m := range shown {
			shown[i] = policy.Mount{Host: m.Guest, Guest: m.Guest}
		}
		*mounts = shown
	}
	res.Policy.Denials = slices.Clone(res.Policy.Denials)
	for i := range res.Policy.Denials {
		d := &res.Policy.Denials[i]
		d.Requested, d.Reason, d.Rule, d.Line = h.named(d.Requested), h.all(d.Reason), "", 0
	}
	res.Hints = slices.Clone(res.Hints)
	for i := range res.Hints {
		hint := &res.Hints[i]
		hint.Text, hint.Subject, hint.Rule = h.all(withoutRule(hint.Text, hint.Rule)), h.all(hint.Subject), ""
	}
	res.Error, res.WhySlow = h.all(res.Error), h.all(res.WhySlow)
	res.ArtifactsRefused = slices.Clone(res.ArtifactsRefused)
	for i := range res.ArtifactsRefused {
		r := &res.ArtifactsRefused[i]
		r.Reason = h.all(r.Reason)
	}
}

// withoutRule names no file of a ceiling: a path with blanks can't be told from the words around it.
func withoutRule(text, rule string) string {
	if rule == "" {
		return text
	}
	return strings.ReplaceAll(text, rule, "the ceiling")
}

// inspection hides in place.
func (h hider) inspection(in *history.Inspection) {
	rec := *in.Record
	in.Record = &rec
	rec.Error = h.all(rec.Error)
	parts := []*json.RawMessage{&rec.Request, &rec.Effective, &rec.Denials, &rec.Result}
	if rec.Machine != nil {
		m := *rec.Machine
		rec.Machine, parts = &m, append(parts, &m.Jail)
	}
	for _, raw := range parts {
		var v any
		if *raw == nil || json.Unmarshal(*raw, &v) != nil {
			continue
		}
		*raw, _ = json.Marshal(h.value("", v))
	}
}

// value hides in a part of a record, by the names of its members.
func (h hider) value(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if text, ok := v["text"].(string); ok {
			rule, _ := v["rule"].(string)
			v["text"] = withoutRule(text, rule)
		}
		for k, member := range v {
			switch k {
			case "host", "real", "rule", "line", "ceiling", "hint": // hints have what that says
				delete(v, k)
			case "env", "args", "allowNet", "ask", "allowTcp", "allowHttp", "secrets": // the caller's own, or what a refusal tells it
			default:
				v[k] = h.value(k, member)
			}
		}
	case []any:
		for i := range v {
			v[i] = h.value(key, v[i])
		}
	case string:
		switch key {
		case "error", "reason", "why", "whySlow", "detail", "text", "subject":
			return h.all(v)
		}
		return h.named(v)
	}
	return v
}

// report hides in place.
func (h hider) report(r *doctor.Report) {
	for i := range r.Checks {
		c := &r.Checks[i]
		c.Detail, c.Remedy = h.all(c.Detail), h.all(c.Remedy)
	}
	for i := range r.Accelerators {
		a := &r.Accelerators[i]
		a.Reason = h.all(a.Reason)
	}
}
