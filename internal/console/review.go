package console

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/changes"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/learn"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

const (
	shownLines = 40 // that would allow what a run was refused
	// reviewTime is how long a review may be answered.
	reviewTime = time.Hour
)

// wanted is a line that would allow what a run was refused.
type wanted struct {
	Key, Rule string
	Files     []string // of the ceiling, which hold it back
	Error     string   // why no button adds it
}

// Line returns the line as a ceiling has it; of a table, its rule. The review shows it in full.
func (l wanted) Line() string {
	if l.Key == "net.rule" {
		return "[[net.rule]] " + l.Rule
	}
	return fmt.Sprintf("%s = [%q]", l.Key, l.Rule)
}

// To returns the page that reviews it.
func (l wanted) To(id string) string {
	return "allow?" + url.Values{"id": {id}, "key": {l.Key}, "rule": {l.Rule}}.Encode()
}

// allowing returns the lines of a ceiling that would allow what was refused.
func (c *Console) allowing(in *history.Inspection) (lines []wanted) {
	refused := func(d netstack.Decision) bool { return d.Verdict == netstack.Denied }
	if in.Ended == nil || !slices.ContainsFunc(in.Decisions, refused) {
		return nil
	}
	before, err := learn.From(c.History.Records, []string{in.ID}, learn.Options{})
	if err != nil {
		return nil
	}
	after, err := learn.From(c.History.Records, []string{in.ID}, learn.Options{Refused: true})
	if err != nil {
		return nil
	}
	known := func(line learn.Line) bool {
		return slices.ContainsFunc(before.Lines, func(l learn.Line) bool { return l.Key == line.Key && l.Rule == line.Rule })
	}
	for _, line := range after.Lines {
		if !known(line) && len(lines) < shownLines && (line.Key == "allowNet" || line.Key == "net.rule") {
			lines = append(lines, wanted{Key: line.Key, Rule: line.Rule})
		}
	}
	return lines
}

// heldBack returns the lines with the files that hold them back now.
func (c *Console) heldBack(in *history.Inspection) []wanted {
	lines := c.allowing(in)
	for i := range lines {
		list, err := c.edits(lines[i])
		if err != nil {
			lines[i].Error = err.Error()
			continue
		}
		for _, e := range list {
			lines[i].Files = append(lines[i].Files, e.File)
		}
	}
	return lines
}

// edited is a file that a review would change.
type edited struct {
	File, Before, After string
	Trusted             bool // and so it stays
	ceiling             *policy.Ceiling
}

// Diff shows the change. Characters that nobody sees are written as their code points.
func (e edited) Diff() string { return changes.Unified(e.File, e.File, e.Before, e.After) }

// digest hashes what a review has shown.
func digest(list []edited) string {
	h := sha256.New()
	for _, e := range list {
		fmt.Fprintf(h, "%q %q %q %v\n", e.File, e.Before, e.After, e.Trusted)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// holds reports whether a ceiling's file alone holds a line back.
func (l wanted) holds(file *policy.Ceiling) (bool, error) {
	if l.Key == "allowNet" {
		_, denials, err := policy.Resolve(policy.Request{AllowNet: []string{l.Rule}}, file)
		return len(denials) > 0, err
	}
	rule, err := policy.ParseHTTPRule(l.Rule)
	if err != nil {
		return false, err
	}
	host := rule.Host.String()
	granted, _, err := policy.Resolve(policy.Request{AllowNet: []string{host}}, file)
	if err != nil {
		return false, err
	}
	method := http.MethodGet
	if list := rule.Listed(); len(list) > 0 {
		method = list[0]
	}
	ok, _ := learn.Allows(granted, method, rule.Host.Host, 443, "/"+strings.TrimPrefix(rule.Path, "/"))
	return !ok, nil
}

// edits returns the files that must change for a line.
func (c *Console) edits(l wanted) (list []edited, err error) {
	held, err := c.Policy()
	if err != nil {
		return nil, err
	}
	for _, name := range held.Files {
		file, err := policy.ReadCeiling(name)
		if err != nil {
			return nil, err
		}
		holds, err := l.holds(file)
		if err != nil {
			return nil, err
		}
		if !holds {
			continue
		}
		e, err := c.edit(file, l)
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

// edit returns the change of a ceiling's file for a line that it holds back. It fails unless the line then passes.
func (c *Console) edit(file *policy.Ceiling, l wanted) (e edited, err error) {
	if e.After, err = file.Allowing(l.Key, l.Rule); err != nil {
		return e, err
	}
	after, err := policy.ParseCeiling(file.Path, []byte(e.After))
	if err != nil {
		return e, err
	}
	if holds, err := l.holds(after); err != nil || holds {
		return e, errors.Join(err, fmt.Errorf("%s: %s would not be enough: edit it by hand", file.Path, l.Line()))
	}
	trust := policy.OpenTrust(c.Home).Of(file)
	if trust != nil && !errors.Is(trust, policy.ErrNotTrusted) {
		return e, trust
	}
	e.Before, e.Trusted, e.ceiling = file.Text(), trust == nil, file
	e.File, err = filepath.EvalSymlinks(file.Path) // what is written
	return e, err
}

// reviewed returns what a form or an address of a review is about: a line that its run's page shows.
func (c *Console) reviewed(w http.ResponseWriter, r *http.Request) (in *history.Inspection, l wanted, ok bool) {
	id, err := c.History.Records.Find(r.FormValue("id"))
	if err == nil {
		in, err = c.History.Inspect(id, shownBytes)
	}
	if err != nil {
		c.wrong(w, r, http.StatusNotFound, err)
		return nil, l, false
	}
	for _, l = range c.allowing(in) {
		if l.Key == r.FormValue("key") && l.Rule == r.FormValue("rule") {
			return in, l, true
		}
	}
	c.wrong(w, r, http.StatusNotFound, fmt.Errorf("no line of %s would allow that: use one of its page's", id))
	return nil, l, false
}

// allow shows what a line would change; it writes nothing.
func (c *Console) allow(w http.ResponseWriter, r *http.Request) {
	in, l, ok := c.reviewed(w, r)
	if !ok {
		return
	}
	list, err := c.edits(l)
	if err != nil {
		c.wrong(w, r, http.StatusConflict, err)
		return
	}
	c.show(w, r, "allow.html", map[string]any{"Run": in.ID, "Line": l, "Edits": list, "Digest": digest(list),
		"Step": in.Session != ""})
}

// write changes the files as the review has shown.
func (c *Console) write(w http.ResponseWriter, r *http.Request) {
	in, l, ok := c.reviewed(w, r)
	if !ok {
		return
	}
	if err := c.replace(in.ID, l, r.PostForm.Get("digest")); err != nil {
		c.wrong(w, r, http.StatusConflict, err)
		return
	}
	c.to(w, r, l.To(in.ID))
}

// replace writes the files of a line, if they still are as the review with this digest has shown.
func (c *Console) replace(id string, l wanted, shown string) error {
	c.writes.Lock()
	defer c.writes.Unlock()
	list, err := c.edits(l)
	if err != nil {
		return err
	}
	if !same(digest(list), shown) {
		return errors.New("a file has changed since the review: nothing was written; look at it again")
	}
	for _, e := range list {
		trusted, err := policy.OpenTrust(c.Home).Replace(e.ceiling, e.After, time.Now())
		if trusted {
			c.log(audit.CeilingTrusted, id, map[string]any{"file": e.File, "widens": []string{l.Line()}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// log writes into the audit log. What it tells has happened, so an error does not undo it.
func (c *Console) log(kind audit.Kind, id string, detail map[string]any) {
	_ = audit.In(c.Home).Append(audit.Entry{Time: time.Now(), Kind: kind, Run: id, Via: "ui",
		Caller: unitask.LocalOwner(os.Geteuid()), Detail: detail})
}

// again starts a recorded run again, under the ceiling as it is now. With a line it asks for that, too.
func (c *Console) again(w http.ResponseWriter, r *http.Request) {
	within(w, actionTime)
	id, err := c.History.Records.Find(r.PostForm.Get("id"))
	if err != nil {
		c.wrong(w, r, http.StatusNotFound, err)
		return
	}
	var l wanted
	if r.PostForm.Has("key") {
		var ok bool
		if _, l, ok = c.reviewed(w, r); !ok {
			return
		}
	}
	req, err := c.History.Request(id, "")
	if err == nil && len(req.SecretNames()) > 0 {
		if c.Secrets == nil {
			err = errors.New("it had secrets, which no record has")
		} else {
			req.Secrets, req.SecretHosts, err = c.Secrets(r.Context(), req.SecretNames())
		}
	}
	if err != nil {
		c.wrong(w, r, http.StatusConflict, fmt.Errorf("%w: unitask run --replay %s", err, id))
		return
	}
	switch l.Key {
	case "allowNet":
		req.AllowNet = append(req.AllowNet, l.Rule)
	case "net.rule":
		req.AllowHTTP = append(req.AllowHTTP, l.Rule)
	}
	c.launch(w, r, req, id)
}

// kept is a permanent answer that is about to be given.
type kept struct {
	run.Question
	Entry policy.Approved
}

// asksNow returns the question that a form or an address names, if it may get a permanent answer.
func (c *Console) asksNow(r *http.Request) (k kept, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), listTime)
	defer cancel()
	open, ceiling, err := c.Approvals.Asks(ctx, r.FormValue("run"))
	if err != nil {
		return k, err
	}
	until, err := time.Parse(time.RFC3339Nano, r.FormValue("until"))
	if err != nil || open == nil || open.Host != r.FormValue("host") || !open.Until.Equal(until) {
		return k, errors.New("the run asks another question now, or none")
	}
	rec, err := c.History.Records.Get(open.RunID)
	if err != nil {
		return k, err
	}
	mine := rec.Owner == unitask.LocalOwner(os.Geteuid()) && rec.Via != record.ViaHTTP
	if !mine || strings.HasPrefix(open.Host, "tool:") {
		return k, errors.New("this question gets no permanent answer: allow it once, or for the run")
	}
	at := time.Now().UTC().Truncate(time.Second)
	if r.Form.Has("at") {
		if at, err = time.Parse(time.RFC3339, r.FormValue("at")); err != nil || time.Since(at) > reviewTime ||
			time.Until(at) > 0 {
			return k, errors.New("at: use the page's button")
		}
	}
	return kept{*open, policy.Approved{Host: open.Host, Ceiling: ceiling, By: rec.Owner, Run: rec.ID, At: at}}, nil
}

// always shows what a permanent answer would write; it writes nothing.
func (c *Console) always(w http.ResponseWriter, r *http.Request) {
	k, err := c.asksNow(r)
	var list []edited
	if err == nil {
		list, err = c.keeps(k)
	}
	if err != nil {
		c.wrong(w, r, http.StatusConflict, err)
		return
	}
	c.show(w, r, "always.html", map[string]any{"Question": k, "Edits": list, "Digest": digest(list)})
}

// keeps returns the change to the home's permanent answers.
func (c *Console) keeps(k kept) ([]edited, error) {
	before, after, file, err := policy.OpenApprovals(c.Home).With(k.Entry)
	return []edited{{File: file, Before: before, After: after}}, err
}

// keep writes a permanent answer as the review has shown, and gives it to the run.
func (c *Console) keep(w http.ResponseWriter, r *http.Request) {
	if err := c.answerAlways(r); err != nil {
		c.wrong(w, r, http.StatusConflict, err)
		return
	}
	c.to(w, r, "")
}

// answerAlways does what keep answers for.
func (c *Console) answerAlways(r *http.Request) error {
	c.writes.Lock()
	defer c.writes.Unlock()
	k, err := c.asksNow(r)
	if err != nil {
		return err
	}
	list, err := c.keeps(k)
	if err != nil {
		return err
	}
	if !same(digest(list), r.PostForm.Get("digest")) {
		return errors.New("the file has changed since the review: nothing was written; look at it again")
	}
	if err := policy.OpenApprovals(c.Home).AddTo(k.Entry, list[0].Before); err != nil {
		return err
	}
	c.log(audit.NetAsked, k.RunID, map[string]any{"host": k.Host, "verdict": run.AllowAlways, "ceiling": k.Entry.Ceiling})
	if err := c.Approvals.ApproveShown(r.Context(), k.Question, run.AllowRun); err != nil {
		return fmt.Errorf("%s has the answer, but the run did not get it: %w", list[0].File, err)
	}
	return nil
}
