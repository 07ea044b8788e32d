package e2b

import (
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unitask/unitask/policy"
)

// What callers see and change of the templates that they have built.

// buildView is a build's state for its caller.
type buildView struct {
	Template string       `json:"templateID"`
	Build    string       `json:"buildID"`
	Status   string       `json:"status"`
	Logs     []string     `json:"logs"`
	Entries  []buildLine  `json:"logEntries"`
	Reason   *buildReason `json:"reason,omitempty"`
}

// entries returns a part of a build's log, of a level and above it.
func (one *build) entries(from, limit int, level string) []buildLine {
	levels := []string{"debug", "info", "warn", "error"}
	least := slices.Index(levels, level)
	one.mu.Lock()
	defer one.mu.Unlock()
	list := slices.Clone(one.log)
	if least > 0 {
		list = slices.DeleteFunc(list, func(e buildLine) bool { return slices.Index(levels, e.Level) < least })
	}
	list = list[min(from, len(list)):]
	return append([]buildLine{}, list[:min(limit, len(list))]...)
}

// logPage reads which part of a log a request asks for.
func logPage(r *http.Request, offset string) (from, limit int, err error) {
	q, limit := r.URL.Query(), maxLogPage
	for name, into := range map[string]*int{offset: &from, "limit": &limit} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		if *into, err = strconv.Atoi(text); err != nil || *into < 0 {
			return 0, 0, policy.Bad(name, fmt.Sprintf("%.40q", text), "is not a number from 0 on")
		}
	}
	return from, min(limit, maxLogPage), nil
}

func (s *Server) buildStatus(w http.ResponseWriter, r *http.Request) {
	one, err := s.builder.of(r.PathValue("id"), r.PathValue("build"), s.opts.Caller(r).Name)
	from, limit, bad := logPage(r, "logsOffset")
	if err == nil {
		err = bad
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	one.mu.Lock()
	v := buildView{Template: one.of.id, Build: one.id, Status: one.state, Logs: []string{}, Reason: one.reason}
	one.mu.Unlock()
	v.Entries = one.entries(from, limit, r.URL.Query().Get("level"))
	for _, e := range v.Entries {
		v.Logs = append(v.Logs, e.Message)
	}
	writeJSON(w, http.StatusOK, v)
}

func (s *Server) buildLogs(w http.ResponseWriter, r *http.Request) {
	one, err := s.builder.of(r.PathValue("id"), r.PathValue("build"), s.opts.Caller(r).Name)
	from, limit, bad := logPage(r, "offset")
	if err == nil {
		err = bad
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"logs": one.entries(from, limit, r.URL.Query().Get("level"))})
}

// view returns a template for its caller; the builder's mutex is held.
func (t *builtTemplate) view() templateView {
	v := templateView{ID: t.id, CPUs: 1, Names: []string{t.name}, Alias: []string{t.name}, Status: waiting,
		templateTimes: &templateTimes{Created: stamp(t.began), Updated: stamp(t.began), Daemon: daemonVersion}}
	for _, one := range t.builds {
		now, made := one.now()
		v.Build, v.Status, v.Updated, v.Builds = one.id, now, stamp(one.began), v.Builds+1
		if v.Memory = one.memoryMB; made != nil {
			v.Memory = made.memoryMB
		}
	}
	v.Disk = v.Memory / 2
	return v
}

// views returns a caller's templates.
func (b *builder) views(owner string) (list []templateView) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.list {
		if t.owner == owner {
			list = append(list, t.view())
		}
	}
	return list
}

// errNoTemplate is the answer for a template that a caller does not have.
func errNoTemplate(name string) error {
	return fmt.Errorf("template %.80q: there is none of yours: %w", name, fs.ErrNotExist)
}

func (s *Server) templateDetails(w http.ResponseWriter, r *http.Request) {
	s.builder.mu.Lock()
	t := s.builder.template(r.PathValue("id"), s.opts.Caller(r).Name)
	if t == nil {
		s.builder.mu.Unlock()
		s.fail(w, r, errNoTemplate(r.PathValue("id")))
		return
	}
	v := t.view()
	builds := []map[string]any{}
	for _, one := range t.builds {
		now, _ := one.now()
		row := map[string]any{"buildID": one.id, "status": now, "createdAt": stamp(one.began), "updatedAt": stamp(one.began),
			"cpuCount": 1, "memoryMB": one.memoryMB}
		one.mu.Lock()
		if !one.ended.IsZero() {
			row["updatedAt"], row["finishedAt"] = stamp(one.ended), stamp(one.ended)
		}
		one.mu.Unlock()
		builds = append(builds, row)
	}
	s.builder.mu.Unlock()
	writeJSON(w, http.StatusOK, map[string]any{"templateID": v.ID, "public": false, "names": v.Names, "aliases": v.Alias,
		"createdAt": v.Created, "updatedAt": v.Updated, "lastSpawnedAt": nil, "spawnCount": 0, "builds": builds})
}

// updateTemplate refuses to make a template public: callers see only their own.
func (s *Server) updateTemplate(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Public bool `json:"public"`
	}
	if !readBody(w, r, &in) {
		return
	}
	s.builder.mu.Lock()
	t := s.builder.template(r.PathValue("id"), s.opts.Caller(r).Name)
	s.builder.mu.Unlock()
	switch {
	case t == nil:
		s.fail(w, r, errNoTemplate(r.PathValue("id")))
	case in.Public:
		s.fail(w, r, policy.Bad("public", "true", "callers see only their own templates here"))
	default:
		writeJSON(w, http.StatusOK, map[string]any{"names": []string{t.name}})
	}
}

// deleteTemplate deletes a template with its builds, or a snapshot, which the API names as a template.
func (s *Server) deleteTemplate(w http.ResponseWriter, r *http.Request) {
	if !s.builder.remove(r.PathValue("id"), s.opts.Caller(r).Name) {
		s.deleteSnapshot(w, r)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// addTags gives more tags to a build.
func (s *Server) addTags(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if !readBody(w, r, &in) {
		return
	}
	err := checkTags(in.Tags)
	one := s.builder.find(in.Target, s.opts.Caller(r).Name)
	if err == nil && one == nil {
		err = errNoTemplate(in.Target)
	}
	if err == nil {
		err = s.builder.tag(one, in.Tags)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusCreated, map[string]any{"buildID": one.id, "tags": in.Tags})
}

// tag gives tags to a build.
func (b *builder) tag(one *build, tags []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.has(one) {
		return errNoTemplate(one.of.name)
	}
	if len(one.of.tags)+len(tags) > maxTags*maxUntagged {
		return policy.Bad("tags", "more", "a template has %d at most", maxTags*maxUntagged)
	}
	for _, tag := range tags {
		one.of.tags[tag] = tagged{one, time.Now()}
	}
	b.sweep(one.of)
	return nil
}

// removeTags removes tags of a template.
func (s *Server) removeTags(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if !readBody(w, r, &in) {
		return
	}
	if err := s.builder.untag(in.Name, s.opts.Caller(r).Name, in.Tags); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// untag removes all of some tags of a caller's template, or none.
func (b *builder) untag(name, owner string, tags []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.template(name, owner)
	if t == nil {
		return errNoTemplate(name)
	}
	for _, tag := range tags {
		if _, ok := t.tags[tag]; !ok {
			return fmt.Errorf("tag %.80q: %w", tag, fs.ErrNotExist)
		}
	}
	for _, tag := range tags {
		delete(t.tags, tag)
	}
	b.sweep(t)
	return nil
}

// listTags lists a template's tags, the newest first.
func (s *Server) listTags(w http.ResponseWriter, r *http.Request) {
	type row struct {
		Tag   string `json:"tag"`
		Build string `json:"buildID"`
		Since string `json:"createdAt"`
	}
	s.builder.mu.Lock()
	t := s.builder.template(r.PathValue("id"), s.opts.Caller(r).Name)
	rows := []row{}
	if t != nil {
		for tag, is := range t.tags {
			rows = append(rows, row{tag, is.build.id, stamp(is.since)})
		}
	}
	s.builder.mu.Unlock()
	if t == nil {
		s.fail(w, r, errNoTemplate(r.PathValue("id")))
		return
	}
	slices.SortFunc(rows, func(a, b row) int {
		if c := strings.Compare(b.Since, a.Since); c != 0 {
			return c
		}
		return strings.Compare(a.Tag, b.Tag)
	})
	writeJSON(w, http.StatusOK, rows)
}
