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

// question is a worker's request to the submitter of a run that the worker has claimed.
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

// sealed holds encrypted secrets for one worker and one attempt of a run.
type sealed struct {
	work
	Run     string            `json:"run"`
	Attempt int               `json:"attempt"`
	Secrets map[string]string `json:"secrets"`
}

// maxSealed bounds sealed secrets, in bytes: the values have 32 KiB at most.
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
	if s.Task != "" && s.work != workOf(c.entry) { // older submitters send no digest
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

// remoteStdin is the submitter's standard input: the worker requests one chunk at a time, and repeats a request that
// gets no answer.
type remoteStdin struct {
	ctx   context.Context
	ask   func(context.Context, question) (*nats.Msg, error)
	chunk int
	rest  []byte
	end   bool
}

// stdinPatience is the time before an unanswered request for standard input is repeated; perhaps nobody has typed
// anything.
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
		case errors.Is(err, nats.ErrNoResponders): // the submitter is unreachable, permanently or for a moment
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

// outlet publishes a run's output. Lost messages don't matter: the report has everything.
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

// changed publishes that the run's entry has changed.
func (o *outlet) changed() { o.send("changed", 0, nil) }

func (o *outlet) stream(name string) io.Writer { return &outStream{o: o, name: name} }

type outStream struct {
	o     *outlet
	name  string
	holds *holding // budget of output that is kept in memory; nil means nothing is kept
	mu    sync.Mutex
	at    int64
}

// Limits of output that is kept in a growing buffer until a step's end. The first bytes of each stream don't count, so
// that no tenant's output keeps others from short answers.
const (
	outputTimes = 3
	freeOutput  = 64 << 10
)

// Write fails only if kept output finds no room: the run does not depend on listeners.
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
