package e2b

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// A caller builds templates through the API: a sandbox of another template carries out the steps, and its paused state
// is the build. A template has builds, and tags that name some of them.

// Limits of a caller's templates.
const (
	maxBuilds     = 50      // builds, in whatever state, and templates
	maxBuilding   = 2       // builds at once
	maxSteps      = 500     // of one template
	maxTags       = 20      // of one build
	maxName       = 128     // bytes of NAME:TAG
	maxBuildLog   = 4 << 20 // bytes of a build's log
	maxKeptLogs   = 8 << 20 // bytes of the logs of a caller's ended builds
	maxLogEntries = 20_000  // of one build
	maxLogPage    = 1000    // entries of one answer
	buildTime     = 30 * time.Minute
)

// usualTag names the build that a template without a tag means.
const usualTag = "default"

// The states of a build.
const (
	waiting  = "waiting"
	building = "building"
	ready    = "ready"
	failed   = "error"
)

// builtTemplate is a template that a caller has built, or is building.
type builtTemplate struct {
	id, name, owner string
	began           time.Time
	builds          []*build // the newest last
	tags            map[string]tagged
}

// tagged is a build with a tag, since a time.
type tagged struct {
	build *build
	since time.Time
}

// build is one build of a template.
type build struct {
	id       string
	of       *builtTemplate
	memoryMB int
	tags     []string // that it gets when it is ready
	began    time.Time

	mu       sync.Mutex
	state    string
	ended    time.Time
	cancel   context.CancelFunc // while the build is in progress
	log      []buildLine
	logBytes int
	reason   *buildReason
	made     *snapshot
}

// buildLine is a line of a build's log.
type buildLine struct {
	Time    string `json:"timestamp"`
	Level   string `json:"level"`
	Message string `json:"message"`
	Step    string `json:"step,omitempty"`
}

// buildReason tells why a build failed.
type buildReason struct {
	Message string      `json:"message"`
	Step    string      `json:"step,omitempty"`
	Entries []buildLine `json:"logEntries"`
}

// builder has the templates of all callers.
type builder struct {
	mu      sync.Mutex
	list    []*builtTemplate
	current map[string]int // builds that go on, also of deleted templates, by caller
}

// validName matches the names and tags of templates.
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// splitName returns a template's name and its tag, if it has one.
func splitName(text string) (name, tag string, err error) {
	name, tag, has := strings.Cut(text, ":")
	if len(text) > maxName || !validName.MatchString(name) || has && !validName.MatchString(tag) {
		return "", "", policy.Bad("name", fmt.Sprintf("%.80q", text),
			"is NAME or NAME:TAG, with at most %d letters, digits, dots, dashes and underscores", maxName)
	}
	return name, tag, nil
}

// template returns a caller's template by its id or name, nil if there is none; b.mu is held.
func (b *builder) template(name, owner string) *builtTemplate {
	for _, t := range b.list {
		if t.owner == owner && (t.id == name || t.name == name) {
			return t
		}
	}
	return nil
}

// find returns the build that a caller's NAME or NAME:TAG names, nil if there is none.
func (b *builder) find(text, owner string) *build {
	name, tag, _ := strings.Cut(text, ":")
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.template(name, owner)
	if t == nil {
		return nil
	}
	return t.tags[cmp.Or(tag, usualTag)].build
}

// begin adds a build of a template, which it makes if there is none of that name.
func (b *builder) begin(name, owner string, next *build) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.template(name, owner)
	own, builds := 0, 0
	for _, other := range b.list {
		if other.owner == owner {
			b.sweep(other)
			own, builds = own+1, builds+len(other.builds)
		}
	}
	if builds >= maxBuilds || t == nil && own >= maxBuilds {
		return &unitask.BusyError{What: fmt.Sprintf("you have %d templates with %d builds: delete a template", own, builds),
			After: time.Minute}
	}
	if t == nil {
		t = &builtTemplate{id: "t" + strings.ToLower(rand.Text())[:19], name: name, owner: owner, began: next.began,
			tags: map[string]tagged{}}
		b.list = append(b.list, t)
	}
	next.of = t
	t.builds = append(t.builds, next)
	return nil
}

// of returns a caller's build.
func (b *builder) of(template, id, owner string) (*build, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := b.template(template, owner); t != nil {
		for _, one := range t.builds {
			if one.id == id {
				return one, nil
			}
		}
	}
	return nil, fmt.Errorf("build %.80q of template %.80q: %w", id, template, fs.ErrNotExist)
}

// start makes a waiting build a current one, if its caller does not build too many. cancel ends it.
func (b *builder) start(one *build, cancel context.CancelFunc) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.has(one) {
		return errNoTemplate(one.of.name)
	}
	owner := one.of.owner
	if n := b.current[owner]; n >= maxBuilding {
		return &unitask.BusyError{What: fmt.Sprintf("you have %d builds under way: wait for one", n), After: 10 * time.Second}
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.state != waiting {
		return policy.Bad("buildID", one.id, "has been started before")
	}
	one.state, one.cancel = building, cancel
	if b.current == nil {
		b.current = map[string]int{}
	}
	b.current[owner]++
	return nil
}

// has reports whether a build was not removed meanwhile; b.mu is held.
func (b *builder) has(one *build) bool {
	return slices.Contains(b.list, one.of) && slices.Contains(one.of.builds, one)
}

// remove removes a caller's template with its builds, which end. It reports whether there was one.
func (b *builder) remove(name, owner string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.template(name, owner)
	if t == nil {
		return false
	}
	b.list = slices.DeleteFunc(b.list, func(o *builtTemplate) bool { return o == t })
	for _, one := range t.builds {
		one.mu.Lock()
		if one.cancel != nil {
			one.cancel()
		}
		if one.made != nil {
			go one.made.close()
		}
		one.mu.Unlock()
	}
	return true
}

// finish gives a build its state, and its tags if it is ready. A build that no tag names any more is removed, as is one
// that failed a while ago.
func (b *builder) finish(one *build, made *snapshot, reason *buildReason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	one.mu.Lock()
	one.made, one.reason, one.ended, one.state, one.cancel = made, reason, time.Now(), ready, nil
	if reason != nil {
		one.state = failed
	}
	one.mu.Unlock()
	if b.current[one.of.owner]--; b.current[one.of.owner] == 0 {
		delete(b.current, one.of.owner)
	}
	if !slices.Contains(b.list, one.of) { // it was deleted meanwhile
		if made != nil {
			go made.close()
		}
		return
	}
	if reason == nil {
		for _, tag := range one.tags {
			one.of.tags[tag] = tagged{one, one.ended}
		}
	}
	b.sweep(one.of)
	b.trim(one.of.owner)
}

// lose removes a build whose session has ended, with its tags, and a template that has no other.
func (b *builder) lose(one *build) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for tag, is := range one.of.tags {
		if is.build == one {
			delete(one.of.tags, tag)
		}
	}
	one.of.builds = slices.DeleteFunc(one.of.builds, func(o *build) bool { return o == one })
	if len(one.of.builds) == 0 {
		b.list = slices.DeleteFunc(b.list, func(t *builtTemplate) bool { return t == one.of })
	}
}

// trim drops the oldest logs of a caller's ended builds beyond maxKeptLogs; b.mu is held.
func (b *builder) trim(owner string) {
	var ended []*build
	for _, t := range b.list {
		for _, one := range t.builds {
			if now, _ := one.now(); t.owner == owner && (now == ready || now == failed) {
				ended = append(ended, one)
			}
		}
	}
	slices.SortFunc(ended, func(a, b *build) int { return b.ended.Compare(a.ended) }) // the last one first
	left := maxKeptLogs
	for _, one := range ended {
		one.mu.Lock()
		for _, e := range one.log {
			left -= len(e.Message) + lineCost
		}
		if left < 0 {
			one.log = []buildLine{{stamp(one.ended), "warn", "the log was dropped: later builds have long ones", "finalize"}}
		}
		one.mu.Unlock()
	}
}

// lineCost is the memory of a line of a log beyond its message, in bytes.
const lineCost = 100

// maxUntagged is the number of a template's builds without a tag whose states are kept.
const maxUntagged = 3

// sweep removes the oldest builds of a template that no tag names; b.mu is held.
func (b *builder) sweep(t *builtTemplate) {
	named := map[*build]bool{}
	for _, tag := range t.tags {
		named[tag.build] = true
	}
	untagged := 0
	for _, one := range slices.Backward(slices.Clone(t.builds)) {
		now, made := one.now()
		if named[one] || now == building || now == waiting && time.Since(one.began) < uploadedTime {
			continue
		}
		if now == ready {
			go made.close()
			one.mu.Lock()
			one.made = nil
			one.mu.Unlock()
		}
		if untagged++; untagged > maxUntagged || now == ready {
			t.builds = slices.DeleteFunc(t.builds, func(o *build) bool { return o == one })
		}
	}
}

// now returns a build's state and what it made.
func (one *build) now() (string, *snapshot) {
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.state, one.made
}

// tell adds a line to a build's log, as far as it has room.
func (one *build) tell(level, step, message string) {
	one.mu.Lock()
	defer one.mu.Unlock()
	if !one.ended.IsZero() { // of the start command, which still runs
		return
	}
	if one.logBytes += len(message); one.logBytes > maxBuildLog || len(one.log) >= maxLogEntries {
		return
	}
	one.log = append(one.log, buildLine{stamp(time.Now()), level, message, step})
}

// requestBuild begins a build, which startBuild starts.
func (s *Server) requestBuild(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Name     string   `json:"name"`
		Alias    string   `json:"alias"`
		Tags     []string `json:"tags"`
		MemoryMB int      `json:"memoryMB"`
	}
	if !readBody(w, r, &in) {
		return
	}
	name, tag, err := splitName(cmp.Or(in.Name, in.Alias))
	tags := in.Tags
	if tag != "" {
		tags = append(tags, tag)
	}
	if err == nil {
		err = checkTags(tags)
	}
	if err == nil && in.MemoryMB != 0 && in.MemoryMB < policy.MinMemoryMB {
		err = policy.Bad("memoryMB", fmt.Sprint(in.MemoryMB), "must be at least %d", policy.MinMemoryMB)
	}
	if err == nil && slices.ContainsFunc(known, func(t template) bool { return t.name == name }) {
		err = policy.Bad("name", name, "is a template of unitask's own")
	}
	if len(tags) == 0 {
		tags = []string{usualTag}
	}
	next := &build{id: uuid.NewString(), memoryMB: in.MemoryMB, tags: tags, began: time.Now(), state: waiting}
	if err == nil {
		err = s.opts.Admit(s.opts.Caller(r))
	}
	if err == nil {
		err = s.builder.begin(name, s.opts.Caller(r).Name, next)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusAccepted, map[string]any{"templateID": next.of.id, "buildID": next.id, "public": false,
		"aliases": []string{name}, "names": []string{name}, "tags": tags})
}

func checkTags(tags []string) error {
	if len(tags) > maxTags {
		return policy.Bad("tags", fmt.Sprintf("%d of them", len(tags)), "may be %d at most", maxTags)
	}
	for _, tag := range tags {
		if len(tag) > maxName || !validName.MatchString(tag) {
			return policy.Bad("tags", fmt.Sprintf("%.80q", tag), "have letters, digits, dots, dashes and underscores")
		}
	}
	return nil
}

// startBuild starts a build.
func (s *Server) startBuild(w http.ResponseWriter, r *http.Request) {
	var in recipe
	if !readBody(w, r, &in) {
		return
	}
	caller := s.opts.Caller(r)
	one, err := s.builder.of(r.PathValue("id"), r.PathValue("build"), caller.Name)
	if err == nil {
		err = in.check()
	}
	until := s.opts.Context
	if until == nil {
		until = context.Background()
	}
	ctx, cancel := context.WithTimeout(until, buildTime)
	if err == nil {
		err = s.builder.start(one, cancel)
	}
	if err != nil {
		cancel()
		s.fail(w, r, err)
		return
	}
	s.going.Go(func() {
		defer cancel()
		s.build(ctx, caller, one, in)
	})
	w.WriteHeader(http.StatusAccepted)
}

// build carries out a build.
func (s *Server) build(ctx context.Context, caller unitask.Caller, one *build, in recipe) {
	work := &buildRun{server: s, caller: caller, build: one, recipe: in, env: map[string]string{}}
	made, err := work.recovering(ctx)
	if err == nil {
		one.tell("info", "finalize", "the template is ready")
		s.builder.finish(one, made, nil)
		go func() { // as at the end of its life
			<-made.session.Done()
			s.builder.lose(one)
		}()
		return
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("a build has %s at most", buildTime)
	}
	reason := s.shown(caller, err).Error()
	if len(reason) > maxLogLine {
		reason = strings.ToValidUTF8(reason[:maxLogLine], "") + "…"
	}
	one.tell("error", work.step, reason)
	s.builder.finish(one, nil, &buildReason{reason, work.step, []buildLine{}})
}
