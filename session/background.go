package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/stopclock"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Background commands run beside the steps. The session may be paused and forked meanwhile; they end with the
// session.

// Limits on their data in memory: the records have the rest.
const (
	// MaxKeptOutput bounds the output that Wait returns of a command: its end, in bytes.
	MaxKeptOutput = 64 << 10
	// maxEnded is how many ended commands a session remembers.
	maxEnded = 32
)

// Output is a piece of a command's output.
type Output struct {
	Stderr bool
	Text   []byte
}

// Background is the state of a background command.
type Background struct {
	RunID  string
	Output []Output    // after the position in the request, as far as it is kept
	Seq    int64       // position at the end of Output: bytes printed so far
	Lost   int64       // bytes after the requested position that are not kept any more
	Result *run.Result // how it ended, without its streams; nil while it runs
	Err    error       // in addition to Result
}

// Text returns the output in the order in which it came.
func (b *Background) Text() (text []byte) {
	for _, piece := range b.Output {
		text = append(text, piece.Text...)
	}
	return text
}

// errStopped is the cause when the caller stops a command.
var errStopped = errors.New("it was stopped")

// background is a background command.
type background struct {
	id   string
	stop context.CancelCauseFunc

	mu     sync.Mutex
	change chan struct{} // closed, and replaced, when it has printed or ended
	kept   []Output
	size   int // of kept
	seq    int64
	result *run.Result
	err    error
}

// stream is one stream of a background command.
func (b *background) stream(stderr bool) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.seq += int64(len(p))
		b.add(stderr, p)
		b.told()
		return len(p), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// add keeps the end of a command's output.
func (b *background) add(stderr bool, p []byte) {
	p = p[max(0, len(p)-MaxKeptOutput):]
	if n := len(b.kept); n > 0 && b.kept[n-1].Stderr == stderr {
		b.kept[n-1].Text = append(b.kept[n-1].Text, p...)
	} else {
		b.kept = append(b.kept, Output{stderr, append([]byte(nil), p...)})
	}
	if b.size += len(p); b.size <= 2*MaxKeptOutput && len(b.kept) <= maxPieces { // cut only now and then
		return
	}
	for cut := b.size - MaxKeptOutput; cut > 0 || len(b.kept) > maxPieces/2; {
		first := &b.kept[0]
		if n := len(first.Text); cut < n && len(b.kept) <= maxPieces/2 {
			first.Text = append([]byte(nil), first.Text[cut:]...)
			b.size -= cut
			break
		} else {
			b.size -= n
			cut -= n
		}
		b.kept = b.kept[1:]
	}
	b.kept = append([]Output(nil), b.kept...)
}

// maxPieces bounds how often the kept output changes between the streams.
const maxPieces = 4096

func (b *background) told() {
	close(b.change)
	b.change = make(chan struct{})
}

// finish notes how the command ended.
func (b *background) finish(res *run.Result, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.result, b.err = res, err
	b.told()
}

func (b *background) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.result != nil
}

// since returns the output after a position; change is closed when there is more.
func (b *background) since(after int64) (is Background, change <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	is = Background{RunID: b.id, Seq: b.seq, Result: b.result, Err: b.err}
	from := b.seq - int64(b.size) // where the kept output begins
	seen := max(after, from, b.seq-MaxKeptOutput)
	is.Lost = seen - after
	for _, piece := range b.kept {
		if skip := seen - from; skip < int64(len(piece.Text)) {
			is.Output = append(is.Output, Output{piece.Stderr, append([]byte(nil), piece.Text[max(0, skip):]...)})
		}
		from += int64(len(piece.Text))
	}
	return is, b.change
}

// Start starts a command in the background and returns the id of its run. The command has neither standard input nor a
// terminal. Without a Timeout it runs until it or its session ends; the time limit counts while the machine runs. The
// ceiling's backgroundCommands bounds how many run at once.
func (s *Session) Start(ctx context.Context, c Command) (run string, err error) {
	if c.Stdin != nil || c.Terminal != nil || c.Stdout != nil || c.Stderr != nil {
		return "", policy.Bad(
			"background",
			"true",
			"has no standard input and no terminal, and Wait has what it prints",
		)
	}
	e, err := s.start(c)
	if err != nil {
		return "", err
	}
	if c.Timeout > s.limits.Life {
		return "", policy.Bad("timeoutMs", c.Timeout.String(), "must be at most the session's life, %s", s.limits.Life)
	}
	done, err := s.use(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	leave, err := s.background()
	if err != nil {
		return "", err
	}
	live, stop := context.WithCancelCause(context.Background())
	b := &background{stop: stop, change: make(chan struct{})}
	limit := c.Timeout
	if limit == 0 {
		limit = s.limits.Life
	}
	x, err := s.newStep(s.asked(c), "command.sh", limit, b.stream(false), b.stream(true), outputs{})
	if err != nil {
		stop(err)
		leave()
		return "", err
	}
	b.id, x.background, x.rec.Background = x.rec.ID, true, true
	e.Stdout, e.Stderr = x.stdout, x.stderr
	x.rec.User = c.User
	cmd, err := s.startCommand(ctx, c, e, x.rec.ID)
	if err == nil {
		err = x.rec.Update() // records that it is one
	}
	if err != nil {
		stop(err)
		if cmd != nil {
			_ = x.wait(live, cmd)
		}
		if e := x.finish(live, err); e != nil { // nil if the session was closed
			err = e
		}
		leave()
		return "", err
	}
	s.jobs.add(b)
	forget := s.askers.add(c.Approve)
	if c.Timeout > 0 {
		go s.limit(live, c.Timeout, stop)
	}
	go func() {
		defer leave()
		defer stop(nil)
		defer forget()
		err := x.finish(live, x.wait(live, cmd))
		b.finish(x.res, err)
	}()
	return b.id, nil
}

// jobs are a session's background commands. mu guards over, running and list.
type jobs struct {
	mu      sync.Mutex
	over    bool           // the session ends: no further command starts
	running int            // number of running commands
	list    []*background  // the running ones, and some that have ended
	watched sync.WaitGroup // waits for the records of running ones
}

// background reserves a slot for a background command.
func (s *Session) background() (leave func(), err error) {
	leave, err = s.jobs.reserve(s.limits.BackgroundCommands)
	if leave == nil && err == nil {
		err = s.gone()
	}
	return leave, err
}

// reserve reserves a slot; most is the number of slots. Both results are nil if the session ends.
func (j *jobs) reserve(most int) (leave func(), err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.over:
		return nil, nil
	case most < 0:
		return nil, policy.Bad("backgroundCommands", "1", "the ceiling allows none")
	case j.running >= most:
		return nil, &run.BusyError{
			What: fmt.Sprintf(
				"%d commands of this session run in the background, which is the most: end one",
				j.running,
			),
			After: afterSession,
		}
	}
	j.running++
	j.watched.Add(1)
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.running--
		j.watched.Done()
	}, nil
}

// end prevents further commands, and returns when the running ones have ended.
func (j *jobs) end() {
	j.mu.Lock()
	j.over = true
	j.mu.Unlock()
	j.watched.Wait()
}

// add keeps a command, and forgets the oldest if too many have ended.
func (j *jobs) add(b *background) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ended := 0
	for i := len(j.list) - 1; i >= 0; i-- {
		if !j.list[i].over() {
			continue
		}
		if ended++; ended >= maxEnded {
			j.list = append(j.list[:i:i], j.list[i+1:]...)
		}
	}
	j.list = append(j.list, b)
}

// find returns a command by its run's id.
func (j *jobs) find(run string) (*background, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, b := range j.list {
		if b.id == run {
			return b, nil
		}
	}
	return nil, policy.Bad(
		"run",
		fmt.Sprintf("%.80q", run),
		"is no command in the background of this session, or ended long ago: its record has its output",
	)
}

// limit stops a command after the session has run for the time left.
func (s *Session) limit(ctx context.Context, left time.Duration, stop context.CancelCauseFunc) {
	for left > 0 {
		step := min(left, time.Second)
		select {
		case <-time.After(step):
		case <-ctx.Done():
			return
		}
		if !s.Paused() && !s.clocks.still() {
			left -= step
		}
	}
	stop(stopclock.ErrTimeout)
}

// Wait returns the output of a background command after the first after bytes. It returns as soon as there is output or
// the command has ended, and waits for at most the time at most. Meanwhile the session is in use: it is not paused for
// idleness, and a paused one resumes.
func (s *Session) Wait(ctx context.Context, run string, after int64, most time.Duration) (Background, error) {
	b, err := s.jobs.find(run)
	if err != nil {
		return Background{}, err
	}
	is, change := b.since(after)
	if after < 0 || after > is.Seq {
		return Background{}, policy.Bad(
			"afterSeq",
			fmt.Sprint(after),
			"must be from 0 to %d, what it has printed in bytes",
			is.Seq,
		)
	}
	if most <= 0 || is.Seq > after || is.Result != nil {
		return is, nil
	}
	if done, err := s.use(ctx); err == nil {
		defer done()
	} else if ctx.Err() != nil {
		return Background{}, err
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-change:
	case <-timer.C:
	case <-ctx.Done():
		return Background{}, context.Cause(ctx)
	}
	is, _ = b.since(after)
	return is, nil
}

// Stop interrupts a background command as Ctrl-C does, kills it if that does not end it, and returns when the command
// has ended.
func (s *Session) Stop(ctx context.Context, run string) error {
	b, err := s.jobs.find(run)
	if err != nil {
		return err
	}
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	b.stop(errStopped)
	for {
		is, change := b.since(0)
		if is.Result != nil {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
