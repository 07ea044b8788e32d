package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/filelock"
	layout "github.com/unitask/unitask/internal/home"
)

// Limits of a delivery. An event is retried for about a quarter of an hour. If a receiver is away for longer, only the
// newest entries wait for it.
const (
	maxTries  = 8
	firstWait = time.Second
	longest   = 5 * time.Minute // between two attempts
	maxBehind = 10_000          // entries that wait for a receiver; older ones are dropped
	atOnce    = 100             // entries between two checks of how many wait
	period    = 500 * time.Millisecond
	saidEvery = 10 * time.Second
)

// delivery sends entries to one hook.
type delivery struct {
	hook   Hook
	log    audit.Log
	client *http.Client
	state  string // the file with the receiver's position
	tell   func(string)
	wait   func(context.Context, time.Duration) // shorter in tests
	at     position
	behind int64 // maxBehind; smaller in tests

	said    time.Time
	leftOut int
}

// say reports what could not be sent, at a limited rate: a receiver can refuse as fast as it likes.
func (d *delivery) say(format string, args ...any) {
	if time.Since(d.said) < saidEvery {
		d.leftOut++
		return
	}
	text := d.hook.name() + ": " + fmt.Sprintf(format, args...)
	if d.leftOut > 0 {
		text += fmt.Sprintf(" (and %d times something since the last time)", d.leftOut)
	}
	d.said, d.leftOut = time.Now(), 0
	d.tell(text)
}

// position is a receiver's position: the log, and the last line that was sent.
type position struct {
	Source string `json:"source"`
	Line   int64  `json:"line"`
}

// Deliver sends new entries of the home's log to the hooks until ctx ends; then the error is nil. A new hook begins
// with the next entry. tell receives reports of entries that could not be sent. Only one process of a home delivers:
// another waits for its end.
func Deliver(ctx context.Context, home string, hooks []Hook, tell func(string)) error {
	if err := Check(hooks); err != nil {
		return err
	}
	dir := layout.Dir(home).Webhooks()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := filelock.Wait(ctx, filepath.Join(dir, "lock"),
		func() { tell("another process delivers; waiting for its end") })
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer lock.Unlock()
	var all sync.WaitGroup
	errs := make([]error, len(hooks))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, hook := range hooks {
		d := &delivery{hook: hook, log: audit.In(home), client: client(), state: filepath.Join(dir, hook.file()+".json"),
			tell: tell, wait: sleep, behind: maxBehind}
		all.Go(func() {
			if errs[i] = d.run(ctx); errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", hook.name(), errs[i])
				tell(errs[i].Error()) // the others continue
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// errPause ends a reading of the log early.
var errPause = errors.New("pause")

// run delivers until ctx ends.
func (d *delivery) run(ctx context.Context) error {
	if err := d.begin(); err != nil {
		return err
	}
	events := d.log.Events()
	for ctx.Err() == nil {
		source, lines, err := d.log.Source()
		if err != nil {
			return err
		}
		// the old log was moved away, for example because it was full
		if source != d.at.Source && d.at.Source != "" && source != "" {
			d.at, events = position{source, 0}, d.log.Events()
		}
		if left := lines - d.at.Line - d.behind; left > 0 {
			d.say("%d entries are left out, from line %d on: more than %d waited", left, d.at.Line+1, d.behind)
			if err := d.done(d.at.Line + left); err != nil {
				return err
			}
		}
		n := 0
		err = events.Next(d.at.Line, func(text []byte) error {
			if n++; n > atOnce {
				return errPause
			}
			return d.deliver(ctx, text)
		})
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errPause):
		case err != nil && d.moved(): // while it was being read
		case err != nil:
			return err
		default:
			d.wait(ctx, period)
		}
	}
	return nil
}

// moved reports whether the log was replaced by another one.
func (d *delivery) moved() bool {
	source, _, err := d.log.Source()
	return err == nil && source != d.at.Source
}

// begin reads the receiver's position.
func (d *delivery) begin() error {
	source, lines, err := d.log.Source()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(d.state)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.at = position{source, lines}
		return d.done(lines)
	case err != nil:
		return err
	}
	if err := json.Unmarshal(text, &d.at); err != nil || d.at.Line < 0 {
		return fmt.Errorf("%s does not say how far it is: remove it, and it begins with what comes then", d.state)
	}
	if d.at.Source != source || d.at.Line > lines { // another log, a new one
		d.at = position{source, 0}
	}
	return nil
}

// done stores the receiver's position.
func (d *delivery) done(line int64) error {
	if d.at.Source == "" { // the log was empty at the start
		var err error
		if d.at.Source, _, err = d.log.Source(); err != nil {
			return err
		}
	}
	d.at.Line = line
	text, err := json.Marshal(d.at)
	if err != nil {
		return err
	}
	return atomicfile.Write(d.state, append(text, '\n'), 0o600)
}

// deliver sends one event, or gives up. Errors of the receiver are only reported.
func (d *delivery) deliver(ctx context.Context, text []byte) error {
	var event audit.Event
	if err := json.Unmarshal(text, &event); err != nil {
		return err
	}
	if !d.hook.wants(event.Kind()) {
		d.at.Line = event.Line()
		return nil
	}
	id := strings.TrimPrefix(event.Source, audit.EventSource) + "-" + event.ID
	for try, pause := 1, firstWait; ; try++ {
		err := d.hook.post(ctx, d.client, id, text)
		if err == nil {
			return d.done(event.Line())
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		refusal := new(answerError)
		refused := errors.As(err, &refusal)
		if try == maxTries || refused && refusal.lasting() {
			d.say("the event of line %s is given up, tried %d times: %v", event.ID, try, err)
			return d.done(event.Line())
		}
		if try == 1 {
			d.say("the event of line %s is tried again: %v", event.ID, err)
		}
		wait := pause + rand.N(pause/2)
		if refused {
			wait = max(wait, refusal.after)
		}
		d.wait(ctx, min(wait, longest))
		pause = min(3*pause, longest)
	}
}
