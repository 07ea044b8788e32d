package e2b

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask"
)

// Limits of sandboxes.
const (
	defaultTimeout   = 15 * time.Second // of the first version of the API
	defaultTimeoutV2 = 5 * time.Minute  // of its second version
	maxTimeout       = 24 * time.Hour   // that a client may set
	maxMetadata      = 64 << 10         // bytes of names and values, also of variables
	maxSandboxes     = 1000             // of this server, paused ones included
)

// sandbox is a session with what the API adds to it.
type sandbox struct {
	id, template, token, traffic string
	caller                       unitask.Caller
	session                      *unitask.Session
	metadata, envs               map[string]string
	secure                       bool // its daemon wants its token
	public                       bool // its ports want none
	internet                     *bool
	network                      networkConfig
	cpus, memoryMB               int
	setup                        setup
	building                     bool // it is a build's
	interprets                   bool // it begins with a kernel
	began                        time.Time
	processes                    processes
	watchers                     watchers
	contexts                     contexts
	log                          boxLog

	changing sync.Mutex // held to pause, resume and fork
	mu       sync.Mutex
	state    state
	ends     time.Time
	timer    *time.Timer
	pauses   bool // at its end, in place of being killed
	resumes  bool // by a request to it
	late     int  // attempts to pause it at its end
}

// state is the state of a sandbox.
type state string

const (
	running state = "running"
	asleep  state = "paused"
	gone    state = "gone"
)

// sandboxes are the current ones.
type sandboxes struct {
	mu  sync.Mutex
	all map[string]*sandbox
}

// newID returns an id that nobody can guess, in E2B's form.
func newID() string { return "i" + strings.ToLower(rand.Text())[:19] }

// errFull means that there are too many sandboxes.
var errFull = &unitask.BusyError{What: "this server has its maximum number of sandboxes: kill one",
	After: time.Minute}

func (s *sandboxes) add(box *sandbox) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]*sandbox{}
	}
	if len(s.all) >= maxSandboxes {
		return errFull
	}
	s.all[box.id] = box
	return nil
}

// find returns a sandbox by its id, nil if there is none.
func (s *sandboxes) find(id string) *sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

// of returns a caller's sandboxes, the newest first.
func (s *sandboxes) of(caller string) (list []*sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, box := range s.all {
		if box.caller.Name == caller {
			list = append(list, box)
		}
	}
	slices.SortFunc(list, func(a, b *sandbox) int {
		if c := b.began.Compare(a.began); c != 0 {
			return c
		}
		return strings.Compare(a.id, b.id)
	})
	return list
}

func (s *sandboxes) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

// admits reports whether a request has a sandbox's token for a port.
func (box *sandbox) admits(r *http.Request, port int) bool {
	if port == daemonPort {
		return equal(r.Header.Get(tokenHeader), box.token) || box.signed(r)
	}
	return equal(r.Header.Get(trafficHeader), box.traffic) ||
		port == interpreterPort && equal(r.Header.Get(tokenHeader), box.token)
}

// sandboxKey is the key of a request's context for its sandbox.
type sandboxKey struct{}

func withSandbox(ctx context.Context, box *sandbox) context.Context {
	return context.WithValue(ctx, sandboxKey{}, box)
}

func sandboxOf(ctx context.Context) *sandbox { return ctx.Value(sandboxKey{}).(*sandbox) }

// ready reports whether a sandbox runs.
func (box *sandbox) ready() bool {
	now, _ := box.now()
	return now == running
}

// now returns a sandbox's state, and when it ends.
func (box *sandbox) now() (state, time.Time) {
	box.mu.Lock()
	defer box.mu.Unlock()
	return box.state, box.ends
}

// keep adds a new sandbox, and starts its timer.
func (s *Server) keep(box *sandbox, timeout time.Duration) error {
	box.mu.Lock()
	box.state, box.began = running, time.Now()
	box.timer = time.AfterFunc(timeout, func() { s.expire(box) })
	box.ends = box.began.Add(timeout)
	box.mu.Unlock()
	if err := s.add(box); err != nil {
		box.timer.Stop()
		_ = box.session.Close()
		return err
	}
	box.log.add("the sandbox started")
	go func() {
		<-box.session.Done()
		s.forget(box)
	}()
	return nil
}

// forget removes a sandbox whose session has ended.
func (s *Server) forget(box *sandbox) {
	box.mu.Lock()
	box.state = gone
	box.timer.Stop()
	box.mu.Unlock()
	s.remove(box.id)
}

// expire pauses or kills a sandbox whose time is over.
func (s *Server) expire(box *sandbox) {
	box.mu.Lock()
	if box.state != running || time.Until(box.ends) > 0 { // it was extended meanwhile
		box.mu.Unlock()
		return
	}
	pauses := box.pauses
	if !pauses {
		box.state = gone
	}
	box.mu.Unlock()
	if !pauses {
		_ = s.kill(box)
		return
	}
	switch err := s.pause(context.Background(), box); {
	case err == nil, errors.Is(err, errNotRunning):
	case errors.As(err, new(*unitask.BusyError)) && box.late < maxLate:
		box.late++ // only this timer's function uses it
		box.setEnd(time.Now().Add(pauseAgain))
	default:
		s.opts.Log.Error("e2b: a sandbox could not be paused at its end, and was killed", "id", box.id, "error", err)
		_ = s.kill(box)
	}
}

// A sandbox that is busy at its end is paused a little later, or killed if it stays busy.
const (
	pauseAgain = 10 * time.Second
	maxLate    = 6
)

// errNotRunning means that a sandbox is paused, or gone.
var errNotRunning = errors.New("the sandbox is not running")

// pause pauses a sandbox.
func (s *Server) pause(ctx context.Context, box *sandbox) error {
	box.changing.Lock()
	defer box.changing.Unlock()
	box.mu.Lock()
	was := box.state
	if was == running {
		box.state = asleep
		box.timer.Stop()
	}
	box.mu.Unlock()
	if was != running {
		return errNotRunning
	}
	if err := box.session.PauseFirmly(ctx); err != nil {
		box.mu.Lock()
		defer box.mu.Unlock()
		if box.state == asleep {
			box.state = running
			box.timer.Reset(max(0, time.Until(box.ends)))
		}
		return err
	}
	box.log.add("the sandbox was paused")
	return nil
}

// resume resumes a paused sandbox for a time; a running one is extended to it.
func (s *Server) resume(ctx context.Context, box *sandbox, timeout time.Duration) (resumed bool, err error) {
	box.changing.Lock()
	defer box.changing.Unlock()
	now, ends := box.now()
	switch now {
	case gone:
		return false, errNotRunning
	case running:
		if until := time.Now().Add(timeout); until.After(ends) {
			box.setEnd(until)
		}
		return false, nil
	}
	if err := box.session.Resume(ctx); err != nil {
		return false, err
	}
	box.mu.Lock()
	if box.state == asleep {
		box.state = running
	}
	box.mu.Unlock()
	box.setEnd(time.Now().Add(timeout))
	box.log.add("the sandbox was resumed")
	return true, nil
}

// wake resumes a paused sandbox because of a request to it, if its owner wished that.
func (s *Server) wake(r *http.Request, box *sandbox) bool {
	box.mu.Lock()
	may := box.state == asleep && box.resumes
	box.mu.Unlock()
	if !may {
		return false
	}
	_, err := s.resume(r.Context(), box, 5*time.Minute)
	return err == nil
}

// setEnd sets when a running sandbox ends.
func (box *sandbox) setEnd(until time.Time) {
	box.mu.Lock()
	defer box.mu.Unlock()
	if box.state == running {
		box.ends = until
		box.timer.Reset(max(0, time.Until(until)))
	}
}

// kill ends a sandbox.
func (s *Server) kill(box *sandbox) error {
	box.mu.Lock()
	box.state = gone
	box.mu.Unlock()
	s.remove(box.id)
	return box.session.Close()
}

// environment returns the variables of a sandbox's commands.
func (box *sandbox) environment(user string, more map[string]string) map[string]string {
	env := map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": box.id, "E2B_TEMPLATE_ID": box.template,
		"HOME": homeOf(user), "USER": user, "LOGNAME": user}
	maps.Copy(env, box.setup.env)
	maps.Copy(env, box.envs)
	maps.Copy(env, more)
	return env
}

// defaultUser is the user of requests that name none.
const defaultUser = "user"

// setup is what a template's build has set for its sandboxes.
type setup struct {
	user string // of commands and files for which a request names none; "" is defaultUser
	dir  string // of commands; "" is the user's home
	env  map[string]string
}

func (s *setup) usual() string { return cmp.Or(s.user, defaultUser) }

// folder returns the folder of a user's commands.
func (s *setup) folder(user string) string { return cmp.Or(s.dir, homeOf(user)) }

// homeOf returns a user's home in a sandbox.
func homeOf(user string) string {
	if user == "root" {
		return "/root"
	}
	return "/home/" + user
}

// entry is a line of a sandbox's log.
type entry struct {
	at      time.Time
	message string
}

// boxLog is a sandbox's log.
type boxLog struct {
	mu   sync.Mutex
	list []entry
}

// maxLog bounds a log's lines.
const maxLog = 1000

func (l *boxLog) add(message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) >= maxLog {
		l.list = slices.Clone(l.list[maxLog/2:])
	}
	l.list = append(l.list, entry{time.Now(), message})
}

func (l *boxLog) all() []entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}
