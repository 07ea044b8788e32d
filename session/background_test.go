package session

import (
	"errors"
	"fmt"
	"io"
	"math/rand"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// The kept part of an output is its end, in order, however the output is split.
func TestKeptOutput(t *testing.T) {
	for seed := range int64(20) {
		r := rand.New(rand.NewSource(seed))
		b := &background{change: make(chan struct{})}
		streams := [2]interface{ Write([]byte) (int, error) }{b.stream(false), b.stream(true)}
		var all []byte
		for len(all) < 5*MaxKeptOutput {
			n := 1 + r.Intn([]int{1, 10, 3 * MaxKeptOutput}[r.Intn(3)])
			piece := fmt.Appendf(nil, "%*d", n, len(all))[:n]
			all = append(all, piece...)
			_, _ = streams[r.Intn(2)].Write(piece)
			after := r.Int63n(int64(len(all)) + 1)
			is, _ := b.since(after)
			got := is.Text()
			if is.Seq != int64(len(all)) || is.Lost+int64(len(got)) != is.Seq-after || len(got) > MaxKeptOutput ||
				string(got) != string(all[len(all)-len(got):]) {
				t.Fatalf("%d: beyond %d of %d: %d bytes, %d lost", seed, after, len(all), len(got), is.Lost)
			}
			if b.size > 2*MaxKeptOutput+n || len(b.kept) > maxPieces {
				t.Fatalf("%d bytes in %d pieces are kept", b.size, len(b.kept))
			}
		}
	}
	// Output that alternates between the streams with each byte costs no more.
	b := &background{change: make(chan struct{})}
	for i := range 100_000 {
		_, _ = b.stream(i%2 == 0).Write([]byte{'x'})
	}
	if is, _ := b.since(
		0,
	); len(b.kept) > maxPieces || is.Lost+int64(len(is.Text())) != 100_000 ||
		len(is.Output) < maxPieces/2 {
		t.Errorf("%d pieces, %d bytes lost", len(b.kept), is.Lost)
	}
}

// without returns a session in its own home without a program; the messages to the program are written to the writer
// to.
func without(t *testing.T, to io.Writer) *Session {
	dir := testdir.Private(t)
	runs := record.Open(home.Dir(dir).Runs())
	m := &Manager{Engine: &engine.Engine{Home: dir, Runs: runs, History: &history.Store{Records: runs, Home: dir},
		Journal: &audit.Journal{Log: audit.In(dir)}, Events: func(run.Event) {}, Grace: engine.CollectGrace}}
	s := newSession(m, run.Caller{}, policy.SessionLimits{Life: time.Hour, BackgroundCommands: 1})
	s.ID, s.client, s.Language = "s", supervisor.New(to), "js"
	s.hints = func(*language.Language, string, bool, string, time.Time) []run.Hint { return nil }
	s.Policy.Effective = policy.Effective{Timeout: time.Minute, OutputBytes: 1 << 20}
	var err error
	if s.redactor, err = record.NewRedactor(record.Secrets{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// recorded returns the result in a session's only record.
func recorded(t *testing.T, s *Session) *run.Result {
	t.Helper()
	ids, err := s.manager.Engine.Runs.IDs()
	if err != nil || len(ids) != 1 {
		t.Fatalf("%q %v", ids, err)
	}
	in, err := s.manager.Engine.History.Inspect(ids[0], 0)
	if err != nil || in.Ended == nil {
		t.Fatalf("%+v %v", in, err)
	}
	return in.Ended
}

// A command that can't start because its session was just closed does not count as started.
func TestStartOfClosed(t *testing.T) {
	s := without(t, io.Discard)
	s.err = engine.ErrSessionClosed
	s.client.Close(s.gone())
	id, err := s.Start(t.Context(), Command{Args: []string{"true"}})
	if over := new(run.SessionError); id != "" || !errors.As(err, &over) {
		t.Errorf("%q %v", id, err)
	}
	if res := recorded(
		t,
		s,
	); res.Outcome != run.OutcomeCancelled || res.ExitCode != run.ExitCancelled ||
		res.Error == "" {
		t.Errorf("%+v", res)
	}
}
