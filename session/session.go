package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Request describes a session: a machine that stays for several steps, under one policy.
type Request struct {
	// Request configures the machine: image or language, memory, files, network, secrets, environment. Its Code
	// must be empty. Timeout is the maximum and default of a step's time limit; OutputBytes bounds each step. The
	// kernel is linux unless Kernel is Nanos. A nanos session has one interpreter, that of the image's language,
	// and files, but no commands.
	run.Request
	// Life bounds its lifetime; 0 means a day.
	Life time.Duration
	// Idle is the time without work after which the session is paused; 0 means ten minutes (Linux).
	Idle time.Duration
	// Root lets the code become the machine's root: by `sudo` without a password, and in commands and files of the user
	// root. Such a machine confines its own code no more; what confines the machine is unchanged. Linux only.
	Root bool
	// Events, if not nil, receives events of the machine and its network.
	Events func(run.Event)
	// OwnTools are MCP servers of this program, like IO.Tools, which all code of the session and of its forks calls. A
	// call in progress at a pause fails with the code cut, and at a fork it does in the fork. If another process revives
	// the session, they are gone.
	OwnTools map[string]*mcp.Server
	// Project is a folder of the host that the code may change in the machine (Linux). Changes returns what it changed.
	Project ProjectRequest
}

// ProjectRequest requests a project. The zero value is none.
type ProjectRequest struct {
	Host  string `json:"host"`            // an absolute path
	Guest string `json:"guest,omitempty"` // the folder's path in the machine; "" means /work
	// Branch, if it is not "", requests a clone of the git repository in the folder, with its history, on a new branch of
	// that name. Otherwise the folder comes as it is, without .git and what its .gitignore files name.
	Branch string `json:"branch,omitempty"`
}

// MaxWaitingSteps bounds the steps of one session that wait for the running one.
const MaxWaitingSteps = 16

// Session is one machine that keeps variables, files and processes from step to step. Steps of an interpreter run one
// after the other, and MaxWaitingSteps may wait; commands and file operations run beside them. Any goroutine may call
// its methods. Close ends the session, as does the end of its Life.
type Session struct {
	// ID identifies the session, and its own record, which has the network log.
	ID string
	// Parent is the session that this one was forked from, or "".
	Parent string
	// Policy is what the session was granted and denied.
	Policy run.Policy
	// Kernel, Image and Language describe the machine; Language applies to steps without their own.
	Kernel   run.Kernel
	Image    string
	Language string

	manager *Manager
	limits  policy.SessionLimits

	authority // its caller and ceiling
	origin    // its request, and what it continues from
	inside    // the configuration of its machine
	lifecycle // whether its machine runs, is paused, or is gone
	lease     lease
	steps     steps
	usage     usage
	jobs      jobs
	ports     ports
	askers    askers
	clocks    stepClocks    // of its running steps
	watches   chan struct{} // one element per Watch
	artifacts outBox        // files of /out
	brought   broughtOnce   // its project
}

// origin holds a session's request, and what it continues from. It does not change once Start, fork or Revive has set
// it up, except made and left. The run's goroutine sets these before it closes ready and done.
type origin struct {
	request run.Request // the original request
	own     map[string]*mcp.Server
	denials []policy.Denial // of its limits
	tell    func(run.Event)
	family  *family
	from    *forking        // the fork point, if this is a fork
	revived *reviving       // the pause it resumes from, if another process made it
	made    engine.Prepared // its grants, and its code
	left    bool            // its machine is left on the disk, for another process
}

// inside is the configuration of a session's machine. The run's goroutine sets it before it closes ready; nothing
// changes afterwards, except env, to which Start adds.
type inside struct {
	client   *supervisor.Client
	redactor *record.Redactor
	hints    func(l *language.Language, code string, failed bool, stderr string, since time.Time) []run.Hint
	dir      string
	env      []string
	ca       string
	accel    run.Accel
	cloned   bool
	exposed  int // number of secrets in its machine
}

// lifecycle is the state of a session's machine. Whoever holds changing may read and change state and forking. The
// channels are for anybody. The run's goroutine sets result and err before it closes done.
type lifecycle struct {
	changing               chan struct{} // held during a pause, a resumption or a fork
	state                  sessionState
	firm                   bool // only Resume ends the pause
	forking                *forking
	pauses, resumes, forks chan chan error

	cancel context.CancelCauseFunc
	ready  chan struct{} // closed when the machine has started its program
	done   chan struct{} // closed when the machine is gone
	result *run.Result
	err    error
}

// Start starts a session for a caller, under the caller's Ceiling, and returns when its machine waits for steps.
// If ctx ends before that, no session starts; afterwards ctx has no effect on it.
func (m *Manager) Start(ctx context.Context, caller run.Caller, req Request) (*Session, error) {
	bad := func(field, value, reason string) (*Session, error) {
		return nil, policy.Bad(field, value, "%s", reason)
	}
	if err := m.Refuse(); err != nil {
		return nil, err
	}
	limits, denials, err := caller.Ceiling.Sessions(
		policy.SessionLimits{Life: req.Life, Idle: req.Idle},
		usualSessions(machine.HostMemory()),
	)
	if err != nil {
		return nil, err
	}
	if req.Code != "" || req.Check || req.Exec || len(req.Args) > 0 {
		return bad("code", "of a session", "is given step by step: leave out code, args, check and exec")
	}
	if req.Files, err = inWork(req.Files); err == nil {
		req.Dirs, err = inWork(req.Dirs)
	}
	if err != nil {
		return nil, err
	}
	asked, err := m.Engine.Catalog.ResolveCustom(catalog.Request{Request: req.Request}, caller.Ceiling)
	if err != nil {
		return nil, err
	}
	asked = asked.WithoutLanguage()
	l, im, _, err := asked.FindLanguage()
	if err != nil {
		return nil, err
	}
	if im.Payload.Container {
		l, err = containerSteps(req.Language)
	}
	if err != nil {
		return nil, err
	}
	if !l.HasSteps() {
		return bad(
			"image",
			im.Payload.Name,
			"has no sessions, whose steps go to an interpreter that stays: use "+strings.Join(
				language.SessionImages(),
				", ",
			),
		)
	}
	s := newSession(m, caller, limits)
	if req.Root && req.Kernel == oneProcess {
		return bad("root", "true", "needs the linux kernel: nanos has no users")
	}
	s.denials, s.request, s.own = denials, req.Request, req.OwnTools
	s.Image, s.Language, s.client, s.family = im.Payload.Name, l.Name, supervisor.New(nil), &family{}
	s.client.MayRoot = req.Root
	if err := s.begin(ctx, asked, req.Events, func() {}); err != nil {
		return nil, err
	}
	err = s.trust(ctx)
	if err == nil && req.Root {
		err = s.installSudo(ctx)
	}
	if err == nil && s.Kernel == oneProcess {
		err = s.interprets(ctx)
	}
	if err == nil {
		err = s.bringProject(ctx, req.Project)
	}
	if errors.As(err, new(*policy.FieldError)) {
		s.Close()
		return nil, err
	}
	if err != nil {
		s.Close()
		return nil, failure.Host("session", err)
	}
	return s, nil
}

func newSession(m *Manager, caller run.Caller, limits policy.SessionLimits) *Session {
	return &Session{
		manager: m, limits: limits, authority: authority{caller: caller, beganUnder: caller.Ceiling.Digest()},
		lifecycle: lifecycle{
			changing: make(
				chan struct{},
				1,
			),
			pauses:  make(chan chan error),
			resumes: make(chan chan error),
			forks:   make(chan chan error),
			ready:   make(chan struct{}),
			done:    make(chan struct{}),
		},
		steps: newSteps(), ports: ports{carried: make(chan struct{}, MaxForwarded)}, artifacts: newOutBox(),
		watches: make(chan struct{}, MaxWatches),
	}
}

// begin starts the session's machine and returns when the machine waits for steps. over is called when the
// session has ended, or did not begin.
func (s *Session) begin(ctx context.Context, req catalog.Request, tell func(run.Event), over func()) error {
	live, cancel := context.WithCancelCause(
		trace.ContextWithSpanContext(context.Background(), trace.SpanContextFromContext(ctx)),
	)
	s.cancel, s.tell = cancel, tell
	leave, err := s.manager.hold(s)
	if err != nil {
		cancel(err)
		over()
		if s.revived != nil {
			_ = s.revived.rec.Leave()
		}
		return err
	}
	go func() {
		defer leave()
		defer close(s.done)
		defer over()
		defer cancel(nil)
		purpose := engine.Purpose{Session: sessionRun{s}}
		s.result, s.err = s.manager.Engine.Run(live, s.holder(), req, run.IO{Events: tell, Tools: s.own}, purpose)
		if r := s.revived; r != nil && !r.taken {
			_ = r.rec.Leave()
		}
		s.client.Close(s.gone())
		s.jobs.end()
	}()
	select {
	case <-s.ready:
		return nil
	case <-s.done:
		if s.err == nil {
			s.err = s.gone()
		}
		return s.err
	case <-ctx.Done():
		cancel(context.Cause(ctx))
		<-s.done
		return failure.Cancelled(ctx)
	}
}

// Done returns a channel that is closed when the session has ended and its machine is gone.
func (s *Session) Done() <-chan struct{} { return s.done }

// Close ends the session and returns when its machine is gone. If a failure had ended the session before, Close returns
// that failure. It may be called again.
func (s *Session) Close() error {
	s.cancel(engine.ErrSessionClosed)
	return s.ended()
}

// Leave releases the session in this process. It leaves a paused session on the disk, where Revive finds it, and ends
// any other. It returns as Close does.
func (s *Session) Leave() error {
	s.cancel(engine.ErrLeft)
	return s.ended()
}

// Left reports whether a session that has ended here was left on the disk.
func (s *Session) Left() bool {
	select {
	case <-s.done:
		return s.left
	default:
		return false
	}
}

func (s *Session) ended() error {
	<-s.done
	if s.err != nil && !errors.Is(s.err, engine.ErrSessionClosed) && !errors.Is(s.err, engine.ErrLeft) {
		return s.err
	}
	return nil
}

// gone returns an error that explains why the session has ended.
func (s *Session) gone() error {
	why := "it was closed"
	switch {
	case s.left:
		why = errLeft.Error()
	case errors.Is(s.err, engine.ErrLeft):
		why = "its process has ended"
	case s.result != nil && s.result.TimedOut:
		why = "it had lived for " + s.lease.length().String()
	case s.err != nil && !errors.Is(s.err, engine.ErrSessionClosed):
		why = s.err.Error()
	case s.Kernel == oneProcess && s.err == nil && s.result != nil && s.result.Error != "":
		why = "its machine's one process, the interpreter, has ended: " + s.result.Error
	case s.result != nil && s.result.Outcome == run.OutcomeExited:
		why = "its machine stopped"
	}
	return &run.SessionError{ID: s.ID, Why: why}
}

// planned reports whether the session ended by Close, or at the end of its life.
func (s *Session) planned() bool {
	return errors.Is(s.err, engine.ErrSessionClosed) || errors.Is(s.err, engine.ErrLeft) ||
		s.result != nil && s.result.TimedOut
}

// driver returns the driver of the session's own language.
func (s *Session) driver() supervisor.Language {
	return supervisor.Languages[slices.IndexFunc(supervisor.Languages,
		func(l supervisor.Language) bool { return l.Name == s.Language })]
}

// driverPatience bounds the wait for the driver's answer.
const driverPatience = 30 * time.Second

// interprets waits for the interpreter, which exists already and may still load.
func (s *Session) interprets(ctx context.Context) error {
	timed, cancel := context.WithTimeoutCause(ctx, driverPatience, errors.New("its interpreter does not answer"))
	defer cancel()
	in, _, _, err := s.interpreter(timed, s.driver())
	if err != nil {
		return err
	}
	step, err := in.Run(timed, "", driverPatience, io.Discard, io.Discard)
	if err == nil && (step.Gone || step.Code != 0) {
		err = fmt.Errorf("its interpreter does not work: code %d", step.Code)
	}
	return err
}

// oneProcess is the kernel whose machines have one process, the session's interpreter.
const oneProcess = run.Nanos

// hasCommands returns an error if the session's kernel can't run what, which needs another process in its
// machine.
func (s *Session) hasCommands(what string) error {
	if s.Kernel != oneProcess {
		return nil
	}
	return policy.Bad(
		"kernel",
		string(s.Kernel),
		"has no %s in a session: its machines have one process, the interpreter; start the session with kernel linux",
		what,
	)
}

// trustFile contains the certificates that TLS clients in the machine trust in addition to their own.
const trustFile = contract.HomeDir + "/.unitask-ca.pem"

// trust makes TLS clients trust the request's certificates, through their environment variables. In a machine
// with one process, that process already started with them.
func (s *Session) trust(ctx context.Context) error {
	if s.ca == "" || s.Kernel == oneProcess {
		return nil
	}
	file := trustFile
	bundle, err := s.ReadFile(ctx, "/etc/ssl/certs/ca-certificates.crt", 0, maxBundle)
	if s.OfContainer() {
		file = containerTrustFile
		if errors.Is(err, fs.ErrNotExist) { // it need not have any
			err = nil
		}
	}
	if err != nil {
		return err
	}
	if err := s.WriteFile(ctx, file, append(bundle, "\n"+s.ca+"\n"...), 0o644); err != nil {
		return err
	}
	for _, name := range []string{"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
		"REQUESTS_CA_BUNDLE"} {
		if !slices.ContainsFunc(
			s.env,
			func(v string) bool { return len(v) > len(name) && v[:len(name)+1] == name+"=" },
		) {
			s.env = append(s.env, name+"="+file)
		}
	}
	return nil
}

const maxBundle = 4 << 20 // bytes of a machine's file of certificates

// Redact returns a text from the machine without the session's secrets, as in its outputs. ReadFile and List redact
// nothing.
func (s *Session) Redact(text string) string { return s.redactor.String(text) }

// RedactTo returns a writer that passes on bytes from the machine without the session's secrets. Close passes on the
// rest.
func (s *Session) RedactTo(to io.Writer) io.WriteCloser { return s.redactor.Writer(to) }

// at resolves a path in the machine: relative ones begin at the session's folder.
func (s *Session) at(name string) string {
	if !path.IsAbs(name) {
		name = path.Join(s.dir, name)
	}
	return path.Clean(name)
}
