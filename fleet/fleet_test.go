package fleet_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/policy"
)

// A run elsewhere gives the same result: output, exit code, files, standard input, artifacts, record.
func TestRun(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	startWorker(t, workerConfig(ns.ClientURL(), 2), script{})
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL()})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data.txt"), []byte("of the submitter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var live bytes.Buffer
	res, err := rt.Run(t.Context(), unitask.Request{
		Code: "out one\nerr two\nstdin\nfile /data/data.txt\nartifact a/b.txt\nexit 3",
		Dirs: []unitask.Mount{{Host: dir, Guest: "/data"}},
	}, unitask.IO{Stdin: strings.NewReader(strings.Repeat("typed\n", 40_000)), Stdout: &live})
	if err != nil {
		t.Fatal(err)
	}
	want := "one\n" + strings.Repeat("typed\n", 40_000) + "of the submitter\n"
	if res.ExitCode != 3 || string(res.Stderr) != "two\n" || live.String() != want {
		t.Errorf("exit code %d, stderr %q, %d bytes of stdout, want %d", res.ExitCode, res.Stderr, live.Len(), len(want))
	}
	in, err := rt.History().Inspect(res.RunID, 0)
	if err != nil {
		t.Fatal(err)
	}
	if in.Stdout != want || in.Stderr != "two\n" || in.Console != "the console\n" || in.Ended == nil ||
		in.Ended.ExitCode != 3 || in.Status != "done" {
		t.Errorf("the record has %d bytes of stdout, stderr %q, console %q, status %s", len(in.Stdout), in.Stderr, in.Console,
			in.Status)
	}
	f, err := rt.Runs().OpenArtifact(res.RunID, "a/b.txt")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if len(res.Artifacts) != 1 || res.Artifacts[0].Path != "a/b.txt" {
		t.Errorf("artifacts %s", asJSON(res.Artifacts))
	}
}

// An error of standard input does not count as its end, on a worker either.
func TestStdinThatBreaks(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	startWorker(t, workerConfig(ns.ClientURL(), 2), script{})
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL()})
	for name, stdin := range map[string]io.Reader{
		"behind a half": io.MultiReader(strings.NewReader("half"), iotest.ErrReader(io.ErrUnexpectedEOF)),
		"with a half": iotest.DataErrReader(io.MultiReader(strings.NewReader("half"),
			iotest.ErrReader(io.ErrUnexpectedEOF))),
		"at once": iotest.ErrReader(io.ErrUnexpectedEOF),
	} {
		res, err := rt.Run(t.Context(), unitask.Request{Code: "stdin"}, unitask.IO{Stdin: stdin})
		if err == nil || !strings.Contains(err.Error(), io.ErrUnexpectedEOF.Error()) ||
			unitask.ExitCode(res, err) != unitask.ExitHost {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
	for name, stdin := range map[string]io.Reader{"": strings.NewReader(""),
		"whole": iotest.DataErrReader(strings.NewReader("whole"))} {
		if res, err := rt.Run(t.Context(), unitask.Request{Code: "stdin"}, unitask.IO{Stdin: stdin}); err != nil ||
			string(res.Stdout) != name {
			t.Errorf("%q: %+v, %v", name, res, err)
		}
	}
}

// Data that is too large for a message goes through the object store.
func TestLarge(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	startWorker(t, workerConfig(ns.ClientURL(), 1), script{})
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL()})
	text := strings.Repeat("x", 3<<20)
	res, err := rt.Run(t.Context(), unitask.Request{Code: "out " + text}, unitask.IO{})
	if err != nil || string(res.Stdout) != text+"\n" {
		t.Errorf("%v, %d bytes", err, len(res.Stdout))
	}
}

// Inputs that another host can't get are refused before the submission, and the error names them.
func TestNotElsewhere(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	log := filepath.Join(t.TempDir(), "log")
	startWorker(t, workerConfig(ns.ClientURL(), 1), script{log})
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL()})
	asking, err := policy.ParseCeiling(filepath.Join(t.TempDir(), "c.toml"), []byte("ask = [\"example.com\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		do   func() error
		says string
	}{
		"a terminal": {func() error {
			_, err := rt.Run(t.Context(), unitask.Request{Code: "out x"},
				unitask.IO{Terminal: &unitask.Terminal{Size: unitask.TerminalSize{Columns: 80, Rows: 24}}})
			return err
		}, "a terminal"},
		"a capture": {func() error {
			_, err := rt.Run(t.Context(), unitask.Request{Code: "out x"}, unitask.IO{Capture: io.Discard})
			return err
		}, "a capture"},
		"a question": {func() error {
			_, err := rt.Run(t.Context(), unitask.Request{Code: "out x", Ask: []string{"example.com"}}, unitask.IO{})
			return err
		}, "ask"},
		"a question of the ceiling": {func() error {
			_, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: asking},
				unitask.Request{Code: "out x", AllowNet: []string{"example.com"}}, unitask.IO{})
			return err
		}, "ask"},
		"a session": {func() error {
			s, err := rt.NewSession(t.Context(), unitask.SessionRequest{})
			if err == nil {
				s.Close()
			}
			return err
		}, "a session"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			if err := row.do(); err == nil || !strings.Contains(err.Error(), row.says) ||
				!errors.As(err, new(*policy.FieldError)) {
				t.Errorf("%v", err)
			}
		})
	}
	if ran := lines(log); len(ran) != 0 {
		t.Errorf("ran: %q", ran)
	}
}

// A second submit of an id joins the first: the code runs once, and both get its result.
func TestJoin(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	dir := t.TempDir()
	log, gate := filepath.Join(dir, "log"), filepath.Join(dir, "gate")
	startWorker(t, workerConfig(ns.ClientURL(), 4), script{log})
	type end struct {
		res *unitask.Result
		err error
	}
	ends := make(chan end, 2)
	for range 2 {
		rt, client := submitter(t, fleet.Config{URL: ns.ClientURL()})
		client.RunID = "the-same"
		go func() {
			res, err := rt.Run(context.Background(), unitask.Request{Code: "out once\nwait " + gate}, unitask.IO{})
			ends <- end{res, err}
		}()
	}
	waitFor(t, func() bool { return len(lines(log)) > 0 })
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if e := <-ends; e.err != nil || string(e.res.Stdout) != "once\n" {
			t.Errorf("%v %s", e.err, asJSON(e.res))
		}
	}
	if ran := lines(log); len(ran) != 1 {
		t.Errorf("it ran %d times", len(ran))
	}
	rt, client := submitter(t, fleet.Config{URL: ns.ClientURL()})
	client.RunID = "the-same"
	if _, err := rt.Run(t.Context(), unitask.Request{Code: "out other"}, unitask.IO{}); err == nil ||
		!strings.Contains(err.Error(), "asks for something else") {
		t.Errorf("another request under the id: %v", err)
	}
}

// If a submitter disconnects, its run ends, wherever it is.
func TestCancel(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	log := filepath.Join(t.TempDir(), "log")
	w := startWorker(t, workerConfig(ns.ClientURL(), 1), script{log})
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL()})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		waitFor(t, func() bool { return len(lines(log)) == 1 })
		cancel()
	}()
	res, err := rt.Run(ctx, unitask.Request{Code: "out before\nsleep 1h"}, unitask.IO{})
	if !errors.Is(err, context.Canceled) || res.Outcome != unitask.OutcomeCancelled ||
		unitask.ExitCode(res, err) != unitask.ExitCancelled {
		t.Errorf("%v %s", err, asJSON(res))
	}
	waitFor(t, func() bool { return w.Info().Running == 0 })
}

// A full queue answers at once, with the time of the next try.
func TestBusy(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	w, err := fleet.NewWorker(t.Context(), workerConfig(ns.ClientURL(), 1), script{}) // it accepts nothing
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	fill(t, ns.ClientURL(), 1000)
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL()})
	res, err := rt.Run(t.Context(), unitask.Request{Code: "out one"}, unitask.IO{})
	var busy *unitask.BusyError
	if !errors.As(err, &busy) || busy.After <= 0 || res.Outcome != unitask.OutcomeBusy ||
		!strings.Contains(asJSON(res), `"retryAfterMs":1000`) {
		t.Errorf("%v %s", err, asJSON(res))
	}
}

// Secrets reach the worker sealed: no stored data and no message on a subject contains them.
func TestSecrets(t *testing.T) {
	const secret = "correct-horse-battery"
	t.Setenv("FLEET_TEST_SECRET", secret)
	ns := startNATS(t, nil)
	startWorker(t, workerConfig(ns.ClientURL(), 1), script{})
	all := eavesdrop(t, ns.ClientURL())
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL()})
	res, err := rt.Run(t.Context(), unitask.Request{Code: "secret TOKEN", Secrets: map[string]string{"TOKEN": secret}},
		unitask.IO{})
	if err != nil || res.ExitCode != 0 || string(res.Stdout) != "21 bytes\n" {
		t.Fatalf("%v %s", err, asJSON(res))
	}
	heard := all()
	if !holds(heard, "secret TOKEN") {
		t.Error("nothing was heard of the run: the test says nothing")
	}
	if holds(heard, secret) {
		t.Error("the secret was sent in clear")
	}
}

// holds reports whether data contains a text, plain or inside something in base64.
func holds(all []byte, text string) bool {
	for shift := range 3 {
		coded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + text))
		if bytes.Contains(all, []byte(coded[4:len(coded)-4])) {
			return true
		}
	}
	return bytes.Contains(all, []byte(text))
}

// waitFor waits for a condition without an action.
func waitFor(t testing.TB, is func() bool) {
	t.Helper()
	if !testwait.Holds(2*time.Minute, is) {
		t.Error("it does not come")
	}
}

func lines(name string) []string {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}
