package session

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/stopclock"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Step is code for the session's interpreter of a language. Its definitions stay for the next step, and the Result
// contains the value of its last expression.
type Step struct {
	Code     string
	Language string        // js, python or shell; "" means the session's
	Timeout  time.Duration // 0 means the session's
	// Files and Dirs are copied into the machine before the step runs, within the session's ceiling, and stay. They belong
	// to the code's user, and replace existing files. Relative paths are resolved as in Request. InlineFiles are copied
	// into /work.
	Files, Dirs []run.Mount
	InlineFiles []run.InlineFile
	// Stdout and Stderr receive the output while the step runs, in addition to the Result.
	Stdout, Stderr io.Writer
	// ResultBytes bounds the beginning of each stream in the Result; 0 means all. The record has all of it.
	ResultBytes int
	// Approve, if not nil, answers questions while the step runs, like IO.Approve.
	Approve run.Approver
	// Began, if not nil, is called with the id of the step's run before any output. It must not block.
	Began func(run string)
}

// Command is a program that runs in the session's machine, beside the interpreters.
type Command struct {
	Args    []string          // the program, searched in PATH, and its arguments
	Dir     string            // "" means the session's folder
	Env     map[string]string // in addition to the session's
	Timeout time.Duration     // 0 means the session's
	// Endless with Timeout 0 means no time limit except the session's end. The session may be paused and forked while the
	// command runs, as with Start. In the forks its output is lost, and it reads no more.
	Endless bool
	// Stdin is like IO.Stdin. What an Endless command gets resumes a paused session.
	Stdin io.Reader
	// Stdout and Stderr receive the output while the command runs, in addition to the Result.
	Stdout, Stderr io.Writer
	// Unbounded gives Stdout and Stderr all of the output, also beyond the session's OutputBytes. The Result and the
	// record keep that bound.
	Unbounded   bool
	ResultBytes int // like a Step's
	// Approve, if not nil, answers questions while the command runs, like IO.Approve.
	Approve run.Approver
	// Terminal gives the command a terminal instead of its streams. All output goes to Stdout, and not into the Result or
	// the record. The command is then Endless.
	Terminal *run.Terminal
	// User is whom the command runs as: "" or "user" is the code's user. "root" is the machine's root, in a session with
	// Request.Root.
	User string
	// Started, if not nil, is called once the command runs, before any of its output. It must return at once, and use
	// what it gets in another goroutine. A command that can't be started does not call it.
	Started func(Running)
}

// Run runs a step and returns how it ended. A step that reaches its time limit is interrupted as by Ctrl-C, and the
// session continues. If the step does not end then, its interpreter is killed, and the next step has a new one, as
// Result.Hints report. Result.Value is the value of the last expression.
func (s *Session) Run(ctx context.Context, step Step) (*run.Result, error) {
	name := cmp.Or(step.Language, s.Language)
	lang, _, err := language.Named(name)
	if err != nil {
		return nil, policy.Bad("language", fmt.Sprintf("%.40q", name), "%v", err)
	}
	if !utf8.ValidString(step.Code) {
		return nil, policy.Bad("code", fmt.Sprintf("of %d bytes", len(step.Code)),
			"is not UTF-8 text, which steps of a session are: write a file, and run that")
	}
	if strings.ContainsRune(step.Code, 0) {
		return nil, policy.Bad("code", "with a NUL byte", "must hold none in a session")
	}
	if step.Timeout < 0 {
		return nil, policy.Bad("timeoutMs", step.Timeout.String(), "must be positive")
	}
	if lang.Name != s.Language {
		if err := s.hasCommands("interpreter of " + lang.Name + " beside that of " + s.Language); err != nil {
			return nil, err
		}
	}
	at := slices.IndexFunc(supervisor.Languages, func(l supervisor.Language) bool { return l.Name == lang.Name })
	if at < 0 {
		return nil, policy.Bad("language", name, "has no steps in a session: a run has it")
	}
	if most := cmp.Or(supervisor.Languages[at].MaxCode, run.MaxCode); len(step.Code) > most {
		return nil, policy.Bad("code", fmt.Sprintf("of %d bytes", len(step.Code)),
			"must be at most %d bytes in a session's %s: write a file, and run that", most, lang.Name)
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	brought, err := s.brings(ctx, step)
	if err != nil {
		return nil, err
	}
	defer brought.close()
	defer s.askers.add(step.Approve)()
	kind := run.Request{Code: step.Code, Language: lang.Name, Files: brought.granted.Files, Dirs: brought.granted.Dirs,
		InlineFiles: step.InlineFiles}
	to := outputs{step.Stdout, step.Stderr, step.ResultBytes, false, step.Began}
	return s.step(ctx, kind, "code"+lang.Extensions[0], step.Timeout, to,
		func(x *stepping) error {
			if err := s.bring(ctx, x, brought); err != nil {
				return err
			}
			timed, cancel := s.clocks.start(ctx, x.limit)
			defer cancel()
			in, fresh, again, err := s.interpreter(timed, supervisor.Languages[at])
			if err != nil {
				return err
			}
			got, err := in.Run(timed, step.Code, x.limit, x.stdout, x.stderr)
			if errors.As(err, new(*supervisor.StartError)) { // the interpreter does not exist in this machine
				s.steps.forget(lang.Name)
				return s.lacks(supervisor.Languages[at], err)
			}
			x.ended(got.Code, got.End.Signal)
			x.res.Value = s.redactor.String(got.Value)
			if why := s.steps.droppedReason(lang.Name); fresh && why != "" {
				x.hintInterpreter("this is a new interpreter: the one of before the fork was ended, since " + why)
			} else if got.Gone {
				x.hintInterpreter("the interpreter ended with this step, and its variables are gone: " +
					"the next step has a new one")
			} else if again {
				x.hintInterpreter("this is a new interpreter: what an earlier one had defined is not there")
			}
			return err
		})
}

// Exec runs a command and returns how it ended.
func (s *Session) Exec(ctx context.Context, c Command) (*run.Result, error) {
	e, err := s.start(c)
	if err != nil {
		return nil, err
	}
	defer s.askers.add(c.Approve)()
	var resized <-chan run.TerminalSize
	limit, to := c.Timeout, outputs{c.Stdout, c.Stderr, c.ResultBytes, c.Unbounded, nil}
	if t := c.Terminal; t != nil {
		size := t.Size
		e.Terminal, resized = &size, t.Resized
		e.Env = withEnv(e.Env, map[string]string{"TERM": cmp.Or(t.Name, "xterm-256color")})
		to.stdout = nil
	}
	if limit == 0 && (c.Endless || c.Terminal != nil) {
		limit = endless
	}
	return s.step(ctx, s.asked(c), "command.sh", limit, to, func(x *stepping) error {
		x.rec.User = c.User
		timed, cancel := s.clocks.start(ctx, x.limit)
		defer cancel()
		e.Stdout, e.Stderr = x.stdout, x.stderr
		if c.Terminal != nil {
			e.Stdout = c.Stdout
		}
		if limit == endless {
			e.Use = s.inputs(timed)
		}
		cmd, err := s.startCommand(timed, c, e, x.rec.ID)
		if err != nil {
			return err
		}
		if limit == endless {
			x.release()
		}
		running, stop := context.WithCancel(timed)
		defer stop()
		var sizes sync.WaitGroup
		if resized != nil {
			sizes.Go(func() {
				for {
					select {
					case size, more := <-resized:
						if !more || cmd.Resize(running, size) != nil {
							return
						}
					case <-cmd.Done():
						return
					}
				}
			})
		}
		err = x.wait(timed, cmd)
		stop()
		sizes.Wait()
		return err
	})
}

// enter waits for a step's turn.
func (s *Session) enter(ctx context.Context) (leave func(), err error) {
	t := &s.steps
	select {
	case t.waiting <- struct{}{}:
	default:
		return nil, &run.BusyError{What: fmt.Sprintf("%d steps of this session wait", MaxWaitingSteps), After: time.Second}
	}
	select {
	case t.turn <- struct{}{}:
		return func() { <-t.turn; <-t.waiting }, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-s.done:
		err = s.gone()
	}
	<-t.waiting
	return nil, err
}

// interpreter returns the interpreter of a language. fresh means that it was started for this step, again that there
// was one before. Only one step at a time calls it.
func (s *Session) interpreter(ctx context.Context, l supervisor.Language,
) (in *supervisor.Interpreter, fresh, again bool, err error) {
	in = s.steps.find(l.Name)
	if again = in != nil; again && !in.Ended() {
		return in, false, false, nil
	}
	if again && s.Kernel == oneProcess {
		s.cancel(errOneInterpreter)
		return nil, false, true, &run.SessionError{ID: s.ID, Why: errOneInterpreter.Error()}
	}
	if in, err = s.client.Interpret(ctx, l, s.env, s.dir); err == nil {
		s.steps.add(in)
	}
	return in, true, again, err
}

// errOneInterpreter is the reason why a session ends if its interpreter can't be started again.
var errOneInterpreter = errors.New(
	"its interpreter had to be ended, and its machine has no other: the nanos kernel has one process")

// stepping is a running step.
type stepping struct {
	s                    *Session
	asked                run.Request
	rec                  *record.Run
	res                  *run.Result
	began                time.Time
	limit                time.Duration
	stdout, stderr       io.WriteCloser
	cappedOut, cappedErr *bounded.Stream
	background           bool
	done                 func() // ends its use of the session
	released             bool   // it has ended its use, although its command runs
}

// release lets the session be paused and forked while the step's command runs.
func (x *stepping) release() {
	x.released = true
	x.done()
}

// inputs returns the hook around data to a command that does not keep the session from a pause. The data resumes the
// session. If that fails, it waits until somebody else does.
func (s *Session) inputs(ctx context.Context) func() (done func(), err error) {
	return func() (func(), error) {
		if done, err := s.use(ctx); err == nil {
			return done, nil
		}
		return func() {}, nil
	}
}

func (x *stepping) ended(code, signal int) {
	x.res.Outcome, x.res.ExitCode = run.OutcomeExited, code
	if signal != 0 {
		x.res.Outcome, x.res.ExitCode, x.res.Error = run.OutcomeSignaled, run.ExitSignal+signal,
			fmt.Sprintf("the code was ended by signal %d", signal)
	}
}

// wait waits until a command ends, by itself or because ctx has ended.
func (x *stepping) wait(ctx context.Context, cmd *supervisor.Command) error {
	end, err := cmd.Wait(ctx)
	var failed *supervisor.StartError
	if errors.As(err, &failed) { // like a shell
		fmt.Fprintf(x.stderr, "%s\n", failed)
		end, err = guest.End{Code: 127}, nil
		if errors.Is(failed, syscall.EACCES) || errors.Is(failed, syscall.ENOEXEC) {
			end.Code = 126
		}
	}
	x.ended(end.Code, end.Signal)
	return err
}

// hint adds hints about what the step lacked: network, modules, or features of its language.
func (x *stepping) hint() {
	l, _, err := language.Named(x.asked.Language)
	if err != nil { // a command
		l, _, _ = language.Named("shell")
	}
	x.res.Hints = append(x.res.Hints,
		x.s.hints(l, x.asked.Code, x.res.ExitCode != 0, x.cappedErr.Tail.String(), x.began)...)
}

// hintInterpreter puts a hint about the session's interpreter before the others.
func (x *stepping) hintInterpreter(text string) {
	x.res.Hints = append([]run.Hint{{Kind: run.HintInterpreter, Text: text}}, x.res.Hints...)
}

// endless is the time limit of a command that ends only with its session.
const endless time.Duration = -1

// stepLimit returns a step's time limit; 0 asks for the session's.
func stepLimit(asked, granted, life time.Duration) (time.Duration, error) {
	longest := min(granted, life)
	switch {
	case asked == endless:
		return life, nil
	case asked == 0:
		return longest, nil
	case asked < 0 || asked > longest:
		return 0, policy.Bad("timeoutMs", asked.String(),
			"must be at most the session's, %s: one that is started with a longer limit has that, "+
				"as far as its ceiling and its life go, and a command in the background needs none", longest)
	}
	return asked, nil
}

// LongestStep returns both the maximum and the default time limit of a step.
func (s *Session) LongestStep() time.Duration { return min(s.Policy.Effective.Timeout, s.limits.Life) }

// outputs say who receives a step's output.
type outputs struct {
	stdout, stderr io.Writer // the caller's; nil means none
	shown          int       // bytes of each stream in the Result; 0 means all
	unbounded      bool      // see Command.Unbounded
	began          func(run string)
}

// step makes a record, runs a step and finishes the record.
func (s *Session) step(ctx context.Context, req run.Request, name string, limit time.Duration, to outputs,
	work func(*stepping) error,
) (*run.Result, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	done = sync.OnceFunc(done)
	defer done()
	if limit, err = stepLimit(limit, s.Policy.Effective.Timeout, s.limits.Life); err != nil {
		return nil, err
	}
	var outs, errs bytes.Buffer
	shown := int64(cmp.Or(to.shown, math.MaxInt))
	x, err := s.newStep(req, name, limit, &bounded.Head{To: &outs, Left: shown}, &bounded.Head{To: &errs, Left: shown}, to)
	if err != nil {
		return nil, err
	}
	x.done = done
	if to.began != nil {
		to.began(x.rec.ID)
	}
	if err = work(x); !errors.As(err, new(*run.SessionError)) {
		if e := x.collect(ctx); err == nil {
			err = e
		} else if e != nil { // it ended in another way
			x.miss(e)
		}
	}
	err = x.finish(ctx, err)
	if lost := s.steps.toldLost(); lost != "" {
		x.hintInterpreter(lost)
	}
	x.res.Stdout, x.res.Stderr = outs.Bytes(), errs.Bytes()
	return x.res, err
}

// newStep makes a step and its record. more are the writers beside stdout and stderr.
func (s *Session) newStep(req run.Request, name string, limit time.Duration, stdout, stderr io.Writer, more outputs,
) (*stepping, error) {
	eff := s.Policy.Effective
	eff.Timeout = limit
	granted := run.Policy{Effective: eff, Denials: []policy.Denial{}, Ceiling: s.Policy.Ceiling}
	began := time.Now()
	rec, err := s.manager.Engine.History.Begin(began, s.holder().WithDefaults(), s.ID, name, req, req, granted, s.redactor)
	if err != nil {
		return nil, err
	}
	res := &run.Result{RunID: rec.ID, Session: s.ID, Kernel: s.Kernel, Accelerator: s.accel, Cloned: s.cloned,
		MemoryMB: eff.MemoryMB, Redacted: rec.Redacted, Policy: granted, Outcome: run.OutcomeFailed, ExitCode: run.ExitHost}
	x := &stepping{s: s, asked: req, rec: rec, res: res, began: began, limit: limit,
		cappedOut: more.stream(eff.OutputBytes, rec.Stdout(), stdout, more.stdout),
		cappedErr: more.stream(eff.OutputBytes, rec.Stderr(), stderr, more.stderr)}
	x.stdout, x.stderr = s.redactor.Writer(x.cappedOut), s.redactor.Writer(x.cappedErr)
	return x, nil
}

// finish finishes the record of a step that ran under ctx and ended with err.
func (x *stepping) finish(ctx context.Context, err error) error {
	s, res := x.s, x.res
	err = errors.Join(err, x.stdout.Close(), x.stderr.Close())
	res.Truncated = x.cappedOut.Truncated || x.cappedErr.Truncated
	res.Duration.Run = time.Since(x.began)
	res.Duration.Total = res.Duration.Run
	var over *run.SessionError
	var full *supervisor.BusyError
	switch {
	case errors.Is(err, stopclock.ErrTimeout):
		res.Outcome, res.ExitCode, res.TimedOut, err = run.OutcomeTimeout, run.ExitTimeout, true, nil
		res.Error = fmt.Sprintf("time limit of %g s reached; the session lives", x.limit.Seconds())
	case errors.As(err, &over) && x.background && s.planned():
		res.Outcome, res.ExitCode, err = run.OutcomeCancelled, run.ExitCancelled, nil
		res.Error = over.Error()
	case errors.As(err, &over):
		res.Outcome, res.ExitCode = run.OutcomeCrashed, run.ExitHost
	case errors.As(err, &full):
		err = &run.BusyError{What: full.Error(), After: time.Second}
	case errors.Is(err, errStopped):
		res.Outcome, res.ExitCode, res.Error, err = run.OutcomeCancelled, run.ExitCancelled, errStopped.Error(), nil
	case errors.As(err, new(*policy.FieldError)):
		res.Outcome, res.ExitCode = run.OutcomeFailed, run.ExitUsage
	case ctx.Err() != nil:
		res.Outcome, res.ExitCode, err = run.OutcomeCancelled, run.ExitCancelled, failure.Cancelled(ctx)
	case failure.Unread(err) != nil:
		res.Outcome, res.ExitCode, err = run.OutcomeCancelled, run.ExitCancelled, failure.Unread(err)
	case err != nil:
		res.Outcome, res.ExitCode, err = run.OutcomeFailed, run.ExitHost, failure.Host("session", err)
	}
	if err != nil {
		res.Error = s.redactor.String(err.Error())
	} else {
		x.hint()
		res.NoteUndelivered()
	}
	if e := history.Finish(x.rec, s.redactor, res); e != nil && err == nil {
		res.Outcome, res.ExitCode, res.Error = run.OutcomeFailed, run.ExitHost, e.Error()
		err = failure.Host("record", e)
	}
	s.manager.Engine.History.Bound(x.rec.ID, s.manager.Engine.Events)
	return err
}

// stream returns a stream of output to a record and two writers; the second may be nil.
func (o outputs) stream(limit int64, rec, first, second io.Writer) *bounded.Stream {
	switch {
	case second == nil:
		return bounded.NewStream(limit, rec, first)
	case o.unbounded:
		stream := bounded.NewStream(limit, rec, first)
		stream.All = second
		return stream
	}
	return bounded.NewStream(limit, rec, io.MultiWriter(first, second))
}

// begun stores the data of the session's run and closes ready.
func (s *Session) begun(rec *record.Run, redactor *record.Redactor, res *run.Result) {
	s.ID, s.redactor, s.Policy, s.Kernel, s.accel, s.cloned = rec.ID, redactor, res.Policy, res.Kernel, res.Accelerator,
		res.Cloned
	if rec.Root = s.client.MayRoot; rec.Root {
		_ = rec.Update()
	}
	close(s.ready)
}
