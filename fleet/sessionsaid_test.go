package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
)

const (
	liarID      = "liar"
	liarSession = "20261126T000000-aaaaaaaa"
	liarValue   = "the-value-of-the-key-4711"
)

// liar is a worker with arbitrary answers to calls of sessions.
type liar struct {
	store  tenantStore
	nc     *nats.Conn
	client *Client
	calls  atomic.Int32
}

// startLiar puts such a worker into a fleet, and a session in a given state on it.
func startLiar(t *testing.T, state string, hear func(l *liar, m *nats.Msg)) *liar {
	t.Helper()
	store, js := served(t)
	workers, err := js.CreateOrUpdateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: workersBucket})
	if err != nil {
		t.Fatal(err)
	}
	info, err := json.Marshal(
		WorkerInfo{
			ID:       liarID,
			Arch:     string(unitask.HostArch()),
			MemoryMB: 1 << 20,
			Key:      make([]byte, workerKeySize),
			Started:  time.Now(),
		},
	)
	if err == nil {
		_, err = workers.Put(t.Context(), liarID, info)
	}
	if err != nil {
		t.Fatal(err)
	}
	sessions, err := makeSessions(t.Context(), js, DefaultTenant, 1)
	if err == nil {
		view := sessiond.View{ID: liarSession, State: state, ExpiresAt: time.Now().Add(time.Hour)}
		_, err = sessions.replace(t.Context(), sessionEntry{View: view, Worker: liarID, MemoryMB: 1}, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{store: store, nc: js.Conn()}
	for _, subject := range []string{subjectBegin + DefaultTenant + "." + liarID, subjectSession + DefaultTenant + ".*"} {
		if _, err := l.nc.Subscribe(subject, func(m *nats.Msg) {
			if m.Header.Get(headCancel) == "" {
				l.calls.Add(1)
				hear(l, m)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if l.client, err = Connect(Config{URL: l.nc.ConnectedUrl()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.client.Close)
	return l
}

// answer answers a call.
func (l *liar) answer(m *nats.Msg, r reply, parts ...[]byte) {
	text, err := l.store.enclose(
		context.Background(),
		r,
		bounds{1 << 20, 256 << 10, 1 << 30, 1 << 30, 1 << 20},
		parts...)
	if err != nil {
		panic(err)
	}
	msg := nats.NewMsg(m.Reply)
	msg.Header.Set(headAnswer, "1")
	msg.Data = text
	_ = l.nc.PublishMsg(msg)
}

// views returns sessions in the form of a worker's answer.
func views(ids ...string) (r reply) {
	for _, id := range ids {
		r.Sessions = append(r.Sessions, sessiond.View{ID: id, Parent: liarSession, State: sessiond.Running})
	}
	return r
}

// A worker falsely reports that it resumed a session, which stays paused. The caller does not ask forever.
func TestAttackSessionWorkerPaused(t *testing.T) {
	t.Parallel()
	l := startLiar(t, sessiond.Paused, func(l *liar, m *nats.Msg) { l.answer(m, views(liarSession)) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := l.client.Session(liarSession).Run(ctx, unitask.Step{Code: "1"})
	attack.Check(
		t,
		"a worker leaves a session paused that it says it continues with",
		fmt.Sprint(true, maxResumes),
		fmt.Sprint(errors.Is(err, errPaused), l.calls.Load()),
	)
}

// A worker that floods a call with output does not extend its time.
func TestAttackSessionWorkerFloods(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	l := startLiar(t, sessiond.Running, func(l *liar, m *nats.Msg) {
		taken := nats.NewMsg(m.Reply)
		taken.Header.Set(headTaken, liarID)
		_ = l.nc.PublishMsg(taken)
		for at := 0; ; at += 1000 {
			select {
			case <-stop:
				return
			default:
			}
			out := nats.NewMsg(m.Reply)
			out.Header.Set(headStream, nameStdout)
			out.Header.Set(headOffset, fmt.Sprint(at))
			out.Data = make([]byte, 1000)
			_ = l.nc.PublishMsg(out)
		}
	})
	defer close(stop)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begin := time.Now()
	_, err := l.client.Session(liarSession).Run(ctx, unitask.Step{Code: "1", Stdout: new(bytes.Buffer)})
	took := time.Since(begin)
	if took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	attack.Check(
		t,
		"a worker that floods a call whose time is over",
		"true",
		fmt.Sprint(errors.Is(err, context.DeadlineExceeded)),
	)
}

// Secret values that this process gave to a session are in nothing that its worker reports.
func TestAttackSessionWorkerValues(t *testing.T) {
	t.Parallel()
	secrets := map[string]string{"KEY": liarValue}
	for name, r := range map[string]reply{
		"an error": {Answer: sessiond.Answer{Error: &sessiond.Error{Code: sessiond.CodeFailed, Message: "x " + liarValue}}},
		"a field": {Answer: sessiond.Answer{Error: &sessiond.Error{Code: sessiond.CodeUsage, Message: liarValue,
			Field: policy.Bad(liarValue, liarValue, "%s", liarValue)}}},
		"the end":    {Answer: sessiond.Answer{Error: &sessiond.Error{Code: sessiond.CodeGone, Message: liarValue}}},
		"being busy": {Answer: sessiond.Answer{Error: &sessiond.Error{Code: sessiond.CodeBusy, Message: liarValue}}},
		"a view": {Answer: sessiond.Answer{Sessions: []sessiond.View{{ID: liarSession, Language: liarValue,
			Image: liarValue, State: liarValue, Denials: []policy.Denial{{Reason: liarValue}}}}}},
	} {
		l := startLiar(t, sessiond.Paused, func(l *liar, m *nats.Msg) { l.answer(m, r) })
		err := l.client.Session(liarSession).Resume(t.Context(), secrets)
		s, e := l.client.NewSession(
			t.Context(),
			unitask.Caller{},
			unitask.SessionRequest{Request: unitask.Request{Secrets: secrets}},
		)
		text, _ := json.Marshal(s)
		var field *policy.FieldError
		said := fmt.Sprint(err, e, string(text))
		if errors.As(err, &field) {
			said += fmt.Sprint(*field)
		}
		attack.Check(
			t,
			"a worker says a value that a resume or a beginning gave it, in "+name,
			"false",
			fmt.Sprint(strings.Contains(said, liarValue)),
		)
	}
	l := startLiar(t, sessiond.Running, func(l *liar, m *nats.Msg) {
		out := nats.NewMsg(m.Reply)
		out.Header.Set(headStream, nameStdout)
		out.Header.Set(headOffset, "0")
		out.Data = []byte(liarValue)
		_ = l.nc.PublishMsg(out)
		r := reply{
			Answer: sessiond.Answer{
				Result: &unitask.Result{Outcome: unitask.OutcomeExited, Value: liarValue,
					Hints: []unitask.Hint{{Kind: "module", Text: liarValue, Subject: liarValue}}},
			},
			Files: []listed{{Path: "/work/" + liarValue}},
		}
		l.answer(m, r, []byte(liarValue), []byte(liarValue))
	})
	s := l.client.Session(liarSession)
	if err := s.values.add(secrets); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	res, err := s.Run(t.Context(), unitask.Step{Code: "1", Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	files, _, err := s.List(t.Context(), "/work", 1)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(out.String(), string(res.Stdout), string(res.Stderr), res.Value, res.Hint(), files)
	attack.Check(
		t,
		"a worker says a value in a step's output, result or list",
		"false",
		fmt.Sprint(strings.Contains(text, liarValue)),
	)
}

// Truncating a worker's text leaves no part of a secret value.
func TestAttackSessionWorkerCutValues(t *testing.T) {
	const value = "first-line-of-the-key\nsecond-line-of-the-key"
	var given values
	if err := given.add(map[string]string{"KEY": value}); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{saidLimits.Text, maxSaidPath} {
		for name, text := range map[string]string{
			"with a control character": value,
			"at the end of the bound":  strings.Repeat("x", limit-len(value)/2) + value,
		} {
			r := reply{
				Answer: sessiond.Answer{Names: []string{text}, Result: &unitask.Result{
					Hints: []unitask.Hint{{Kind: "module", Text: text, Subject: text}}}},
				Files: []listed{{Path: text}},
			}
			if err := boundReply(&r, call{Request: sessiond.Request{Op: opFiles}}, given.known()); err != nil {
				t.Fatal(err)
			}
			e := &sessiond.Error{Code: sessiond.CodeUsage, Message: text, Field: policy.Bad(text, text, "%s", text)}
			boundError(e, given.known())
			view := sessiond.View{ID: liarSession, Denials: []policy.Denial{{Reason: text}}}
			boundView(&view, given.known())
			for field, said := range map[string]any{
				"a file": r.Files, "a name": r.Names, "a result": r.Result,
				"an error": e.Message, "a field": *e.Field, "a view": view,
			} {
				got := fmt.Sprint(strings.Contains(fmt.Sprintf("%+v", said), "first-line"))
				row := fmt.Sprintf("a worker says a value %s of %d bytes, in %s", name, limit, field)
				attack.Check(t, row, "false", got)
			}
		}
	}
}

// The number of forks is as requested. Each has a distinct id, and is a child of the session.
func TestAttackSessionWorkerForks(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]reply{
		"none":               views(),
		"fewer":              views("a"),
		"more":               views("a", "b", "c"),
		"the same twice":     views("a", "a"),
		"the session itself": views("a", liarSession),
		"a path":             views("a", "../b"),
		"a wildcard":         views("a", "*"),
		"an empty id":        views("a", ""),
		"another's children": {Answer: sessiond.Answer{Sessions: []sessiond.View{{ID: "a", Parent: "x"},
			{ID: "b", Parent: liarSession}}}},
		"a parent with a dot": {Answer: sessiond.Answer{Sessions: []sessiond.View{{ID: "a", Parent: ".."},
			{ID: "b", Parent: liarSession}}}},
	} {
		l := startLiar(t, sessiond.Running, func(l *liar, m *nats.Msg) { l.answer(m, r) })
		forks, err := l.client.Session(liarSession).Fork(t.Context(), 2)
		attack.Check(
			t,
			"two forks are asked for, and the worker answers: "+name,
			"refused, 0",
			fmt.Sprintf(
				"%s, %d",
				map[bool]string{true: "refused", false: fmt.Sprint(err)}[errors.Is(err, errMalformed)],
				len(forks),
			),
		)
	}
	l := startLiar(t, sessiond.Running, func(l *liar, m *nats.Msg) { l.answer(m, views("a", "b")) })
	if forks, err := l.client.Session(liarSession).
		Fork(t.Context(), 2); err != nil || len(forks) != 2 ||
		forks[1].ID != "b" {
		t.Errorf("got %v %v, want two forks", forks, err)
	}
}

// A worker's report of a session has the same limits as its report of a run.
func TestAttackSessionWorkerSays(t *testing.T) {
	t.Parallel()
	long := "\x1b[2J" + strings.Repeat("x", 100_000)
	ask := func(op string) call { return call{Request: sessiond.Request{Op: op, Session: liarSession}} }
	for _, row := range []struct {
		name string
		ask  call
		r    reply
		want string
	}{
		{"an endless error", ask(sessiond.OpRun), reply{Answer: sessiond.Answer{Error: &sessiond.Error{Code: long,
			Message: long, RetryAfterMS: 1 << 60}}}, "bounded"},
		{"an error about an endless field", ask(sessiond.OpRun),
			reply{Answer: sessiond.Answer{Error: &sessiond.Error{Code: sessiond.CodeUsage, Message: long,
				Field: policy.Bad(long, long, "%s", long)}}}, "bounded"},
		{"an endless result", ask(sessiond.OpRun), reply{Answer: sessiond.Answer{Result: &unitask.Result{Outcome: "perfect",
			Hints: []unitask.Hint{{Kind: "module", Text: long, Subject: long}},
			Error: long, Session: "other", Kernel: unitask.Kernel(long)}}}, "bounded"},
		{"a value that is no JSON", ask(sessiond.OpGet), reply{Answer: sessiond.Answer{Value: json.RawMessage(`{"a"`)}},
			"refused"},
		{"a value that is too long", ask(sessiond.OpGet),
			reply{Answer: sessiond.Answer{Value: json.RawMessage(`"` + strings.Repeat("x", unitask.MaxSessionValue) + `"`)}},
			"refused"},
		{"a file that is too long", ask(sessiond.OpRead), reply{Content: make([]byte, unitask.MaxSessionFile+1)}, "refused"},
		{"endless files", ask(opFiles), reply{Files: make([]listed, 2*unitask.MaxSessionList)}, "bounded"},
		{"files with endless names", ask(opFiles), reply{Files: []listed{{Path: long, Size: -1}}}, "bounded"},
		{"endless names of values", ask(sessiond.OpGet), reply{Answer: sessiond.Answer{Names: []string{long}, Run: long}},
			"bounded"},
		{"a session where none is wanted", ask(sessiond.OpRun), views(liarSession), "refused"},
		{"another session", ask(sessiond.OpResume), views("other"), "refused"},
		{"no session", ask(sessiond.OpExtend), reply{}, "refused"},
		{"a session with endless texts", ask(sessiond.OpResume),
			reply{Answer: sessiond.Answer{Sessions: []sessiond.View{{ID: liarSession, State: long, Name: long, Language: long,
				Denials: make([]policy.Denial, 50_000)}}}}, "bounded"},
	} {
		r := row.r
		err := boundReply(&r, row.ask, nil)
		got := "bounded"
		text, _ := json.Marshal(r)
		files, _ := json.Marshal(r.Files)
		switch {
		case errors.Is(err, errMalformed):
			got = "refused"
		case err != nil && (r.Error == nil || r.Error.RetryAfterMS > maxSaidRetry.Milliseconds() || len(r.Error.Code) > 20):
			got = err.Error()
		case len(text) > 8*history.MaxSaidError+len(files) && len(r.Sessions) == 0,
			len(r.Sessions) > 0 && len(r.Sessions[0].Denials) > history.MaxSaidList,
			len(r.Files) > unitask.MaxSessionList,
			bytes.Contains(text, []byte(`\u001b`)):
			got = fmt.Sprintf("%d bytes: %.200s", len(text), text)
		case r.Result != nil && (r.Result.Session != liarSession || r.Result.Outcome != unitask.OutcomeFailed):
			got = fmt.Sprint(r.Result.Session, r.Result.Outcome)
		}
		attack.Check(t, "a worker's answer has "+row.name, row.want, got)
	}
}

// A step that brings files of this host does not run without them.
func TestAttackSessionStepFiles(t *testing.T) {
	t.Parallel()
	l := startLiar(t, sessiond.Running, func(l *liar, m *nats.Msg) { l.answer(m, reply{}) })
	for name, step := range map[string]unitask.Step{
		"a file":       {Files: []unitask.Mount{{Host: "/etc/hostname"}}},
		"a folder":     {Dirs: []unitask.Mount{{Host: "/etc"}}},
		"inline files": {InlineFiles: []unitask.InlineFile{{Name: "a.py"}}},
	} {
		_, err := l.client.Session(liarSession).Run(t.Context(), step)
		var field *policy.FieldError
		attack.Check(
			t,
			"a step on a fleet that brings "+name,
			"refused, 0 calls",
			fmt.Sprintf(
				"%s, %d calls",
				map[bool]string{true: "refused", false: fmt.Sprint(err)}[errors.As(err, &field)],
				l.calls.Load(),
			),
		)
	}
}

// An error does not bypass the limits: they apply to the data beside it and to its hint, too.
func TestAttackSessionWorkerErrs(t *testing.T) {
	t.Parallel()
	l := startLiar(t, sessiond.Running, func(l *liar, m *nats.Msg) {
		r := views("../" + liarValue)
		r.Error = &sessiond.Error{Code: sessiond.CodeUsage, Message: "no", Field: policy.Bad("memoryMb", "1", "no")}
		r.Error.Field.Would = map[string]int64{liarValue: 1, "memoryMb": 256}
		r.Result = &unitask.Result{RunID: liarValue, Outcome: "perfect", Value: liarValue,
			Hints: []unitask.Hint{{Kind: "module", Text: liarValue + "\x1b[2J", Subject: liarValue + "\x1b[2J"}}}
		r.Names, r.Files = []string{liarValue}, []listed{{Path: liarValue}}
		l.answer(m, r, []byte(liarValue), []byte(liarValue), []byte(liarValue), []byte(`"`+liarValue+`"`))
	})
	s := l.client.Session(liarSession)
	if err := s.values.add(map[string]string{"KEY": liarValue}); err != nil {
		t.Fatal(err)
	}
	res, err := s.Run(t.Context(), unitask.Step{Code: "1"})
	text, _ := json.Marshal(res)
	content, _ := s.ReadFile(t.Context(), "/work/a")
	files, _, _ := s.List(t.Context(), "/work", 1)
	a, _ := s.ask(t.Context(), call{Request: sessiond.Request{Op: sessiond.OpGet}}, nil, nil)
	rest, _ := json.Marshal(a)
	var field *policy.FieldError
	if !errors.As(err, &field) || field.Would["memoryMb"] != 256 {
		t.Errorf("got %v, want an error of a field, and what would do", err)
	}
	for name, said := range map[string]string{
		"in the error": fmt.Sprint(err), "in a result": string(text), "in a file": string(content),
		"in a list": fmt.Sprint(files), "in a value, names and sessions": string(rest),
	} {
		held := !strings.Contains(said, liarValue) && !strings.Contains(said, `\u001b`)
		attack.Check(t, "a worker answers with an error, and says a value "+name, "true", fmt.Sprint(held))
	}
}

// A worker reports the names of a session's values, so they contain no secret.
func TestAttackSessionWorkerNames(t *testing.T) {
	t.Parallel()
	var v values
	if err := v.add(map[string]string{"KEY": liarValue}); err != nil {
		t.Fatal(err)
	}
	r := reply{Answer: sessiond.Answer{Names: []string{"a" + liarValue}}}
	err := boundReply(&r, call{Request: sessiond.Request{Op: sessiond.OpGet}}, v.known())
	attack.Check(t, "a worker says a value as the name of another", "false <nil>",
		fmt.Sprint(strings.Contains(r.Names[0], liarValue), err))
}

// A forged entry from a worker names a worker, and contains no terminal control characters.
func TestAttackSessionWorkerEntry(t *testing.T) {
	t.Parallel()
	l := startLiar(t, sessiond.Running, func(*liar, *nats.Msg) {})
	sessions, err := openSessions(t.Context(), l.client.js, DefaultTenant)
	if err != nil {
		t.Fatal(err)
	}
	for name, worker := range map[string]string{
		"controls a terminal": "\x1b[2Jx", "is a wildcard": ">", "is endless": strings.Repeat("x", 10_000),
	} {
		_, revision, _ := sessions.get(t.Context(), liarSession)
		view := sessiond.View{ID: liarSession, State: sessiond.Running, ExpiresAt: time.Now().Add(time.Hour)}
		e := sessionEntry{View: view, Worker: worker, MemoryMB: 1}
		if revision == 0 {
			v, err := sessions.kv.Get(t.Context(), liarSession)
			if err != nil {
				t.Fatal(err)
			}
			revision = v.Revision()
		}
		if _, err := sessions.replace(t.Context(), e, revision); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := l.client.Session(liarSession).Run(ctx, unitask.Step{Code: "1"})
		cancel()
		got := "refused"
		if said := fmt.Sprint(err); err == nil || strings.Contains(said, "\x1b") || len(said) > 1000 ||
			errors.Is(err, context.DeadlineExceeded) {
			got = fmt.Sprintf("%.300q", said)
		}
		attack.Check(t, "a session's entry with a worker that "+name, "refused", got)
	}
}
