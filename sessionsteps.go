package unitask

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/session"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Step is code for the session's interpreter of a language: what it defines is there in the next
// one, and its last expression's value comes back.
type Step struct {
	Code     string
	Language string        // js, python or shell; "" is the session's
	Timeout  time.Duration // 0 is the session's
	// Stdout and Stderr receive what it prints while it runs, beside the Result.
	Stdout, Stderr io.Writer
}

// Command is a program of the session's machine, started beside its interpreters.
type Command struct {
	Args    []string          // the program, looked for on PATH, and its arguments
	Dir     string            // "" is the session's folder
	Env     map[string]string // added to the session's
	Timeout time.Duration     // 0 is the session's
	Stdin   io.Reader
	// Stdout and Stderr receive what it prints while it runs, beside the Result.
	Stdout, Stderr io.Writer
	// Terminal gives it a terminal in the place of its streams, which all goes to Stdout and not
	// into the Result or the record. It has no time limit but the session's end.
	Terminal *Terminal
}

// BusyError says that there is no room now.
type BusyError struct {
	What  string
	After time.Duration // when to ask again
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("busy: %s; try again in %d ms", e.What, e.After.Milliseconds())
}

// Run runs a step and returns how it ended. A step that reaches its time limit is interrupted as by
// Ctrl-C, and the session lives; if that does not end it, its interpreter is killed, and the next
// step has a new one, which Result.Hint says. Result.Value is the last expression's.
func (s *Session) Run(ctx context.Context, step Step) (*Result, error) {
	name := cmp.Or(step.Language, s.Language)
	lang, _, err := named(name)
	if err != nil {
		return nil, &policy.FieldError{Field: "language", Value: fmt.Sprintf("%.40q", name), Reason: err.Error()}
	}
	if len(step.Code) > maxStep {
		return nil, &policy.FieldError{Field: "code", Value: fmt.Sprintf("of %d bytes", len(step.Code)), Reason: fmt.Sprintf("must be at most %d bytes in a session: write a file", maxStep)}
	}
	if strings.ContainsRune(step.Code, 0) {
		return nil, &policy.FieldError{Field: "code", Value: "with a NUL byte", Reason: "must hold none in a session"}
	}
	if step.Timeout < 0 {
		return nil, &policy.FieldError{Field: "timeoutMs", Value: step.Timeout.String(), Reason: "must be positive"}
	}
	at := slices.IndexFunc(session.Languages, func(l session.Language) bool { return l.Name == lang.name })
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	kind := Request{Code: step.Code, Language: lang.name}
	return s.step(ctx, kind, "code"+lang.extensions[0], step.Timeout, step.Stdout, step.Stderr, func(x *stepping) error {
		in, fresh, err := s.interpreter(session.Languages[at])
		if err != nil {
			return err
		}
		timed, cancel := context.WithTimeoutCause(ctx, x.limit, errTimeout)
		defer cancel()
		got, err := in.Run(timed, step.Code, x.limit, x.stdout, x.stderr)
		x.ended(got.Code, got.End.Signal)
		x.res.Value = s.redactor.String(got.Value)
		if why := s.toldDropped(lang.name); fresh && why != "" {
			x.res.Hint = "this is a new interpreter: the one of before the fork was ended, since " + why
		} else if got.Gone {
			x.res.Hint = "the interpreter ended with this step, and its variables are gone: the next step has a new one"
		} else if fresh && x.res.ExitCode != 0 {
			x.res.Hint = "this is a new interpreter: what an earlier one had defined is not there"
		}
		return err
	})
}

// maxStep bounds a step's code, in bytes.
const maxStep = 1 << 20

// Exec runs a command and returns how it ended.
func (s *Session) Exec(ctx context.Context, c Command) (*Result, error) {
	if len(c.Args) == 0 {
		return nil, &policy.FieldError{Field: "command", Reason: "is empty"}
	}
	for i, arg := range slices.Concat(c.Args, []string{c.Dir}, slices.Collect(maps.Keys(c.Env)), slices.Collect(maps.Values(c.Env))) {
		if strings.ContainsRune(arg, 0) || (i == 0 && arg == "") {
			return nil, &policy.FieldError{Field: "command", Value: fmt.Sprintf("%.80q", arg), Reason: "holds a NUL byte, or nothing"}
		}
	}
	e := session.Exec{Args: c.Args, Env: withEnv(s.env, c.Env), Dir: s.at(c.Dir), Stdin: c.Stdin}
	var resized <-chan TerminalSize
	limit, stdout, stderr := c.Timeout, c.Stdout, c.Stderr
	if limit < 0 {
		return nil, &policy.FieldError{Field: "timeoutMs", Value: limit.String(), Reason: "must be positive"}
	}
	if t := c.Terminal; t != nil {
		size := t.Size
		e.Terminal, resized, limit = &size, t.Resized, endless
		e.Env = withEnv(e.Env, map[string]string{"TERM": cmp.Or(t.Name, "xterm-256color")})
		stdout = nil
	}
	return s.step(ctx, Request{Args: c.Args, Dir: e.Dir, Env: c.Env}, "command.sh", limit, stdout, stderr, func(x *stepping) error {
		timed, cancel := context.WithTimeoutCause(ctx, x.limit, errTimeout)
		defer cancel()
		e.Stdout, e.Stderr = x.stdout, x.stderr
		if c.Terminal != nil {
			e.Stdout = c.Stdout
		}
		cmd, err := s.client.Start(e)
		if err != nil {
			return err
		}
		var sizes sync.WaitGroup
		if resized != nil {
			sizes.Go(func() {
				for {
					select {
					case size, more := <-resized:
						if !more || cmd.Resize(size) != nil {
							return
						}
					case <-cmd.Done():
						return
					}
				}
			})
		}
		end, err := cmd.Wait(timed)
		sizes.Wait()
		var failed *session.StartError
		if errors.As(err, &failed) { // as a shell has it
			fmt.Fprintf(x.stderr, "%s\n", failed)
			end, err = guest.End{Code: 127}, nil
		}
		x.ended(end.Code, end.Signal)
		return err
	})
}

// withEnv is an environment with other variables, which take the place of those of their names.
func withEnv(env []string, more map[string]string) []string {
	list := slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, other := more[name]
		return other
	})
	for _, name := range slices.Sorted(maps.Keys(more)) {
		list = append(list, name+"="+more[name])
	}
	return list
}

// enter waits for the turn of a step.
func (s *Session) enter(ctx context.Context) (leave func(), err error) {
	select {
	case s.waiting <- struct{}{}:
	default:
		return nil, &BusyError{fmt.Sprintf("%d steps of this session wait", MaxWaitingSteps), time.Second}
	}
	select {
	case s.turn <- struct{}{}:
		return func() { <-s.turn; <-s.waiting }, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-s.done:
		err = s.gone()
	}
	<-s.waiting
	return nil, err
}

// interpreter is the one of a language; fresh says that it was started for this step.
func (s *Session) interpreter(l session.Language) (in *session.Interpreter, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in := s.running[l.Name]; in != nil && !in.Ended() {
		return in, false, nil
	}
	if in, err = s.client.Interpret(l, s.env, s.dir); err == nil {
		s.running[l.Name] = in
	}
	return in, true, err
}

// toldDropped says, once, why the interpreter that was there is not.
func (s *Session) toldDropped(language string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	why := s.dropped[language]
	delete(s.dropped, language)
	return why
}

// stepping is a step that runs.
type stepping struct {
	res            *Result
	limit          time.Duration
	stdout, stderr io.Writer
}

func (x *stepping) ended(code, signal int) {
	x.res.Outcome, x.res.ExitCode = OutcomeExited, code
	if signal != 0 {
		x.res.Outcome, x.res.ExitCode, x.res.Error = OutcomeSignaled, exitSignal+signal, fmt.Sprintf("the code was ended by signal %d", signal)
	}
}

// endless is the limit of what ends with its session only: a terminal.
const endless time.Duration = -1

// stepLimit is the time limit of a step that asks for one, 0 being the session's.
func stepLimit(asked, granted, life time.Duration) (time.Duration, error) {
	longest := min(granted, life)
	switch {
	case asked == endless:
		return life, nil
	case asked == 0:
		return longest, nil
	case asked < 0 || asked > longest:
		return 0, &policy.FieldError{Field: "timeoutMs", Value: asked.String(), Reason: fmt.Sprintf("must be at most the session's, %s", longest)}
	}
	return asked, nil
}

// step makes a record, runs a step and finishes the record.
func (s *Session) step(ctx context.Context, req Request, name string, limit time.Duration, stdout, stderr io.Writer, run func(*stepping) error) (*Result, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	eff := s.Policy.Effective
	if limit, err = stepLimit(limit, eff.Timeout, s.limits.Life); err != nil {
		return nil, err
	}
	eff.Timeout = limit
	granted := Policy{Effective: eff, Denials: []policy.Denial{}, Ceiling: s.Policy.Ceiling}
	begin := time.Now()
	rec, err := s.rt.newRecord(begin, s.caller.withDefaults(), name, req, req, granted, s.redactor)
	if err != nil {
		return nil, err
	}
	rec.Session = s.ID
	res := &Result{RunID: rec.ID, Session: s.ID, Kernel: s.Kernel, Accelerator: s.accel, Cloned: s.cloned, MemoryMB: eff.MemoryMB, Redacted: rec.Redacted, Policy: granted, Outcome: OutcomeFailed, ExitCode: ExitHost}
	var outs, errs bytes.Buffer
	cappedOut, cappedErr := newCapped(eff.OutputBytes, rec.Stdout(), also(&outs, stdout)), newCapped(eff.OutputBytes, rec.Stderr(), also(&errs, stderr))
	plainOut, plainErr := s.redactor.Writer(cappedOut), s.redactor.Writer(cappedErr)
	err = run(&stepping{res, limit, plainOut, plainErr})
	err = errors.Join(err, plainOut.Close(), plainErr.Close())
	res.Stdout, res.Stderr, res.Truncated = outs.Bytes(), errs.Bytes(), cappedOut.truncated || cappedErr.truncated
	res.Duration.Run = time.Since(begin)
	res.Duration.Total = res.Duration.Run
	var over *SessionError
	var full *session.BusyError
	switch {
	case errors.Is(err, errTimeout):
		res.Outcome, res.ExitCode, res.TimedOut, err = OutcomeTimeout, ExitTimeout, true, nil
		res.Error = fmt.Sprintf("time limit of %g s reached; the session lives", limit.Seconds())
	case errors.As(err, &over):
		res.Outcome = OutcomeCrashed
	case errors.As(err, &full):
		err = &BusyError{full.Error(), time.Second}
	case ctx.Err() != nil:
		res.Outcome, res.ExitCode, err = OutcomeCancelled, ExitCancelled, fmt.Errorf("cancelled: %w", context.Cause(ctx))
	case err != nil:
		res.Outcome, err = OutcomeFailed, hostError("session", err)
	}
	if err != nil {
		res.Error = s.redactor.String(err.Error())
	}
	if e := finish(rec, s.redactor, res); e != nil && err == nil {
		err = hostError("record", e)
	}
	s.rt.boundStore(rec.ID, s.rt.opts.Events)
	return res, err
}

// also writes to a second writer, if there is one.
func also(w, second io.Writer) io.Writer {
	if second == nil {
		return w
	}
	return io.MultiWriter(w, second)
}

// begun takes what its machine's run has come to.
func (s *Session) begun(rec *record.Run, redactor *record.Redactor, res *Result) {
	s.ID, s.redactor, s.Policy, s.Kernel, s.accel, s.cloned = rec.ID, redactor, res.Policy, res.Kernel, res.Accelerator, res.Cloned
	close(s.ready)
}
