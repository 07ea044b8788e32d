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

// Callers over HTTP must not learn paths of the host: of files that they were given, of the policy's file, or of
// folders in errors. They may see the paths that they name themselves.

// remote reports whether a caller must not learn paths of the host.
func remote(c unitask.Caller) bool { return c.Via == unitask.ViaHTTP }

// hiddenPath replaces a path.
const hiddenPath = "[path]"

// absolutePath matches an absolute path in a message: in quotes, or up to the end of a word.
var absolutePath = regexp.MustCompile(`"/[^"/][^"]*"|(^|[\s'=(\[<,:])/[^\s"',:;()\[\]<>/][^\s"',:;()\[\]<>]*`)

// ofRule matches the file of a ceiling in an error about a field.
var ofRule = regexp.MustCompile(` by /.*\(key `)

// hider removes paths of the host from messages.
type hider struct{ known *strings.Replacer }

// newHider returns a hider for the folders that messages name most. The names of these may have blanks. Relative paths
// begin at the server's own folder, which is shown as a dot.
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

// resolved returns a path with its links resolved, if that is possible.
func resolved(path string) string {
	to, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path
	}
	return to
}

// named hides the known folders in a text that may contain a path of the caller.
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

// error returns an error without what a remote caller must not learn.
func (h hider) error(err error) error {
	var field *policy.FieldError
	if errors.As(err, &field) { // its text is about the request, and may name the ceiling's file
		return &hiddenError{h.named(ofRule.ReplaceAllString(err.Error(), " by the ceiling (key ")), err}
	}
	return &hiddenError{h.all(err.Error()), err}
}

type hiddenError struct {
	text string
	error
}

func (e *hiddenError) Error() string { return e.text }
func (e *hiddenError) Unwrap() error { return e.error }

// tell returns the form of an error that a caller may see.
func (s *Server) tell(caller unitask.Caller, err error) error {
	if err == nil || !remote(caller) {
		return err
	}
	return s.hider.error(err)
}

// result hides the paths in a result.
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

// withoutRule replaces the name of a ceiling's file: a path with blanks can't be told from the words around it.
func withoutRule(text, rule string) string {
	if rule == "" {
		return text
	}
	return strings.ReplaceAll(text, rule, "the ceiling")
}

// inspection hides the paths in a record.
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

// value hides the paths in a part of a record, depending on the members' names.
func (h hider) value(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if text, ok := v["text"].(string); ok {
			rule, _ := v["rule"].(string)
			v["text"] = withoutRule(text, rule)
		}
		for k, member := range v {
			switch k {
			case "host", "real", "rule", "line", "ceiling", "hint": // hints repeat the useful part
				delete(v, k)
			// the caller's own texts, or what a refusal may tell it
			case "env", "args", "allowNet", "ask", "allowTcp", "allowHttp", "secrets", "tools":
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

// report hides the paths in a doctor's report.
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
