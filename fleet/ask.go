package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/crypto/nacl/box"

	"github.com/unitask/unitask"
)

// question is what a worker asks of a run's submitter once it has claimed the run.
type question struct {
	What    string `json:"what"` // "secrets" or "stdin"
	Worker  string `json:"worker"`
	Attempt int    `json:"attempt"`
	Chunk   int    `json:"chunk"` // of stdin, from 0
}

// Headers of messages.
const (
	headAttempt = "Attempt"
	headStream  = "Stream" // stdout, stderr, event, changed
	headOffset  = "Offset" // of the data in its stream
	headEnd     = "End"    // of stdin
	headRefused = "Refused"
	headDrain   = "Drain" // who asks wants the worker drained
)

// sealed is what secrets are sent as, to one worker and for one run of what was submitted.
type sealed struct {
	work
	Run     string            `json:"run"`
	Attempt int               `json:"attempt"`
	Secrets map[string]string `json:"secrets"`
}

// maxSealed bounds sealed secrets, in bytes: they have 32 KiB at most.
const maxSealed = 256 << 10

// secrets asks the submitter for the secrets' values, sealed to this worker's key.
func (c *claim) secrets(ctx context.Context, into map[string]string) error {
	gone := time.Now().Add(c.w.config.Times.Lease)
	for {
		timed, cancel := context.WithTimeout(ctx, c.w.config.Times.Lease)
		msg, err := c.ask(timed, question{What: "secrets"})
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && msg.Header.Get(headRefused) != "":
			return fmt.Errorf("the submitter does not send the run's secrets: %.200s", msg.Header.Get(headRefused))
		case err == nil:
			return c.unseal(msg.Data, into)
		case time.Now().After(gone):
			return fmt.Errorf("the submitter, who has the run's secrets, does not answer: %w", err)
		}
		time.Sleep(c.w.config.Times.Beat / 4)
	}
}

func (c *claim) unseal(data []byte, into map[string]string) error {
	plain, ok := box.OpenAnonymous(nil, data, c.w.public, c.w.private)
	var s sealed
	if !ok || len(data) > maxSealed || json.Unmarshal(plain, &s) != nil || s.Run != c.run || s.Attempt != c.entry.Attempt {
		return fmt.Errorf("the run's secrets: %w: they are not sealed for this worker and run", errMalformed)
	}
	if s.Task != "" && s.work != workOf(c.entry) { // an older submitter does not say
		return fmt.Errorf("the run's secrets: %w: the run was changed after it was submitted", errMalformed)
	}
	for name := range into {
		value, there := s.Secrets[name]
		if !there {
			return fmt.Errorf("the submitter did not send the secret %.80q", name)
		}
		into[name] = value
	}
	return nil
}

// remoteStdin is the submitter's standard input: the worker asks for one chunk at a time, and again
// for the same when no answer comes.
type remoteStdin struct {
	ctx   context.Context
	ask   func(context.Context, question) (*nats.Msg, error)
	chunk int
	rest  []byte
	end   bool
}

// stdinPatience is how long an unanswered question for standard input waits before it is asked
// again; nobody may have typed anything.
const stdinPatience = 5 * time.Second

func (s *remoteStdin) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.end {
			return 0, io.EOF
		}
		timed, cancel := context.WithTimeout(s.ctx, stdinPatience)
		msg, err := s.ask(timed, question{What: "stdin", Chunk: s.chunk})
		cancel()
		switch {
		case s.ctx.Err() != nil:
			return 0, context.Cause(s.ctx)
		case errors.Is(err, nats.ErrNoResponders): // the submitter is away, for good or for a moment
			time.Sleep(stdinPatience / 20)
		case err == nil && msg.Header.Get(headRefused) != "":
			return 0, fmt.Errorf("the submitter says: %.200s", msg.Header.Get(headRefused))
		case err == nil:
			s.rest, s.end = msg.Data, msg.Header.Get(headEnd) != ""
			s.chunk++
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// outlet publishes what a run prints. What does not arrive is in the report.
type outlet struct {
	nc      *nats.Conn
	subject string
	attempt int
}

func (o *outlet) send(stream string, offset int64, data []byte) {
	msg := nats.NewMsg(o.subject)
	msg.Header.Set(headAttempt, strconv.Itoa(o.attempt))
	msg.Header.Set(headStream, stream)
	msg.Header.Set(headOffset, strconv.FormatInt(offset, 10))
	msg.Data = data
	_ = o.nc.PublishMsg(msg)
}

// changed says that the run's entry has changed.
func (o *outlet) changed() { o.send("changed", 0, nil) }

func (o *outlet) stream(name string) io.Writer { return &outStream{o: o, name: name} }

type outStream struct {
	o     *outlet
	name  string
	holds *holding // that what is written takes room of, since somebody keeps it; nil is that nobody does
	mu    sync.Mutex
	at    int64
}

// Output that is kept until a step's end is in a buffer that has grown. The first bytes of each stream are free, so that no
// tenant's output keeps others from short answers.
const (
	outputTimes = 3
	freeOutput  = 64 << 10
)

// Write fails only where what is kept finds no room: the run does not depend on who listens.
func (s *outStream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds != nil && s.at+int64(len(p)) > freeOutput && !s.holds.more(outputTimes*int64(len(p))) {
		return 0, &unitask.BusyError{What: "the worker has no room for more output of your sessions", After: retryAfter}
	}
	n := len(p)
	for len(p) > 0 {
		part := p[:min(len(p), maxChunk)]
		s.o.send(s.name, s.at, part)
		s.at += int64(len(part))
		p = p[len(part):]
	}
	return n, nil
}
