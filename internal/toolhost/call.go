package toolhost

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/nesting"
)

// decodeArguments reads the arguments of a call, which the code has sent: an object.
func decodeArguments(text []byte) (map[string]any, error) {
	if len(text) > maxArguments {
		return nil, fail("arguments", "the arguments have more than %d bytes", maxArguments)
	}
	if err := nesting.Check(text, maxNested, maxValues); err != nil {
		return nil, fail("arguments", "the arguments: the JSON %v", err)
	}
	var arguments map[string]any
	if err := json.Unmarshal(text, &arguments); err != nil || arguments == nil {
		return nil, fail("arguments", "the arguments are no JSON object")
	}
	if n := inexact(text); n != "" {
		return nil, fail("arguments", "the number %.60s would reach the server as another one, as it has more digits than "+
			"a 64-bit float keeps: pass it as text", n)
	}
	return arguments, nil
}

// inexact returns an integer of a JSON text that changes as a 64-bit float; "" if there is none.
func inexact(text []byte) string {
	tokens := json.NewDecoder(bytes.NewReader(text))
	tokens.UseNumber()
	for {
		token, err := tokens.Token()
		if err != nil { // the end: the text is JSON
			return ""
		}
		n, ok := token.(json.Number)
		if !ok || strings.ContainsAny(n.String(), ".eE") {
			continue
		}
		if f, err := n.Float64(); err != nil || strconv.FormatFloat(f, 'f', -1, 64) != n.String() {
			return n.String()
		}
	}
}

// call makes one call, and logs it.
func (s *Service) call(ctx context.Context, name, tool string, text []byte) (json.RawMessage, *Error) {
	begin := time.Now()
	line := Call{Time: begin.UTC(), Server: cut(name, 100), Tool: cut(tool, 200)}
	value, err := s.answer(ctx, &line, name, tool, text)
	line.Ms = time.Since(begin).Milliseconds()
	var failed *Error
	if err != nil && ctx.Err() != nil {
		err = fail("cut", "the call was cut off: its caller, or the run, has ended")
	}
	if err != nil && !errors.As(err, &failed) {
		failed = fail("server", "%v", err)
	}
	if failed != nil {
		line.Code, line.Error = failed.Code, s.redactText(cut(failed.Message, maxKeptError))
	} else {
		line.ResultBytes, line.ResultDigest = int64(len(value)), digest(value)
		if len(value) <= maxKept {
			line.Result, _ = s.cfg.Redact(value)
		}
	}
	s.tally.add(line)
	if s.room(&line) {
		s.cfg.Log(line)
	}
	if failed != nil {
		return nil, failed
	}
	return value, nil
}

// room counts a line's bytes in the record, and returns whether it is logged. After maxKeptAll a line loses its texts,
// and after twice as much there is none.
func (s *Service) room(line *Call) bool {
	size := func() int64 {
		text, _ := json.Marshal(line)
		return int64(len(text))
	}
	n := size()
	if s.kept.Load()+n > maxKeptAll {
		line.Arguments, line.Result, line.Error = nil, nil, cut(line.Error, maxShortError)
		n = size()
	}
	return s.kept.Add(n) <= 2*maxKeptAll && s.all.Load() <= maxAllCalls
}

func (s *Service) redactText(text string) string {
	quoted, _ := json.Marshal(text)
	clean, _ := s.cfg.Redact(quoted)
	var out string
	_ = json.Unmarshal(clean, &out)
	return out
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func cut(text string, most int) string {
	if len(text) <= most {
		return strings.ToValidUTF8(text, "?")
	}
	return strings.ToValidUTF8(text[:most], "?") + "…"
}

// answer checks a call and returns the server's answer.
func (s *Service) answer(ctx context.Context, line *Call, name, tool string, text []byte) (json.RawMessage, error) {
	if s.all.Add(1) > maxAllCalls {
		return nil, fail("limit", "the run has made %d calls, which is the most", maxAllCalls)
	}
	server := s.servers[name]
	if server == nil {
		return nil, fail("unknown", "no tools %.100q were granted: --tools NAME asks for them", name)
	}
	t := server.list.byName[tool]
	switch {
	case t == nil:
		return nil, fail("unknown", "%s has no tool %.200q: tools.search tells what there is", name, tool)
	case t.bad != nil:
		return nil, fail("unknown", "%s can't be called: %v", t.Name, t.bad)
	case !server.Allows(tool):
		line.Rule = "tools." + name + ".allow"
		return nil, fail("denied", "the ceiling does not allow the tool %s of %s (key tools.%s.allow)", tool, name, name)
	}
	arguments, err := decodeArguments(text)
	if err != nil {
		return nil, err
	}
	canonical, err := json.Marshal(arguments)
	if err != nil {
		return nil, err
	}
	clean, secret := s.cfg.Redact(canonical)
	line.ArgumentsDigest = digest(clean)
	if len(clean) <= maxKept {
		line.Arguments = clean
	}
	if secret && !server.Secrets {
		return nil, fail("secret", "a secret of the run stands in the arguments (tools.%s.secrets = true allows it)", name)
	}
	if err := validate(t, arguments); err != nil {
		return nil, err
	}
	if rule := server.Refuses(tool, arguments); rule != "" {
		line.Rule = "tools." + name + ".where: " + rule
		return nil, fail("denied", "the ceiling allows %s of %s only where %s", tool, name, rule)
	}
	if n := server.calls.Add(1); n > int64(server.MaxCalls) {
		line.Rule = "tools." + name + ".maxCalls"
		return nil, fail("limit", "the run has made %d calls of %s, which is the most (key tools.%s.maxCalls)", n-1, name,
			name)
	}
	if s.replay != nil {
		line.Replayed = true
		return s.replay.next(name, tool, line.ArgumentsDigest)
	}
	if server.Approve {
		line.Rule = "tools." + name + ".approve"
		if err := s.approve(ctx, line, clean); err != nil {
			return nil, err
		}
	}
	return server.call(ctx, tool, arguments)
}

// validate checks arguments against the reviewed schema.
func validate(t *Tool, arguments map[string]any) (err error) {
	defer func() {
		if recover() != nil { // the library was not written for hostile schemas
			err = fail("arguments", "the arguments can't be checked against the schema of %s", t.Name)
		}
	}()
	if !t.bounded(arguments) {
		return fail("arguments", "the arguments of %s: a check against its schema takes too long", t.Name)
	}
	if err := t.schema.Validate(arguments); err != nil {
		return fail("arguments", "the arguments of %s: %s", t.Name, cut(err.Error(), maxKeptError))
	}
	return nil
}

func (s *Service) approve(ctx context.Context, line *Call, arguments []byte) error {
	if s.cfg.Ask == nil {
		return fail("denied", "nobody is there to be asked about the call")
	}
	if len(arguments) > maxShownAsking { // what is cut off could be what matters
		return fail("denied", "arguments of %d bytes can't be shown to somebody who is asked: at most %d", len(arguments),
			maxShownAsking)
	}
	question := Question{line.Server + "." + line.Tool, string(arguments), line.Rule}
	if ok, why := s.cfg.Ask(ctx, question); !ok {
		return fail("denied", "the call was not approved: %s", why)
	}
	return nil
}

// call calls a tool of the server, which is started if it does not run.
func (s *server) call(ctx context.Context, tool string, arguments map[string]any) (json.RawMessage, error) {
	conn, err := s.connected(ctx)
	if err != nil {
		return nil, err
	}
	timed, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	defer conn.endAfter(timed)()
	conn.left.Store(maxMessages)
	res, err := conn.session.CallTool(timed, &sdk.CallToolParams{Name: tool, Arguments: arguments})
	switch {
	case timed.Err() != nil && ctx.Err() == nil:
		return nil, fail("timeout", "%s of %s did not answer within %s (key tools.%s.timeoutSeconds)", tool, s.Name,
			s.Timeout, s.Name)
	case err != nil && conn.large.Swap(false):
		return nil, s.tooLarge(tool)
	case err != nil:
		return nil, fail("server", "%s of %s: %s", tool, s.Name, cut(err.Error(), maxKeptError))
	}
	value, err := valueOf(res)
	if err == nil && int64(len(value)) > s.MaxResult {
		err = s.tooLarge(tool)
	}
	return value, err
}

func (s *server) tooLarge(tool string) error {
	return fail("large", "the result of %s has more than %d bytes (key tools.%s.maxResultBytes)", tool, s.MaxResult,
		s.Name)
}

// valueOf returns the value of a result: its structured content; else its text, parsed if it is JSON; else its content.
func valueOf(res *sdk.CallToolResult) (json.RawMessage, error) {
	texts := make([]string, 0, len(res.Content))
	for _, c := range res.Content {
		if text, ok := c.(*sdk.TextContent); ok {
			texts = append(texts, text.Text)
		}
	}
	all := strings.Join(texts, "\n")
	switch {
	case res.IsError:
		if all == "" {
			all = "the tool failed"
		}
		return nil, fail("tool", "%s", cut(all, LargeResult))
	case res.StructuredContent != nil:
		return json.Marshal(res.StructuredContent)
	case len(texts) < len(res.Content):
		return json.Marshal(res.Content)
	case nesting.Check([]byte(all), maxListNested, maxListValues) == nil && json.Valid([]byte(all)):
		return json.RawMessage(all), nil
	}
	return json.Marshal(all)
}

// replay gives the answers of a recorded run: for each server, tool and arguments, in their order.
type replay struct {
	mu    sync.Mutex
	calls map[[3]string][]Call
}

func newReplay(calls []Call) *replay {
	r := &replay{calls: map[[3]string][]Call{}}
	for _, c := range calls {
		key := [3]string{c.Server, c.Tool, c.ArgumentsDigest}
		r.calls[key] = append(r.calls[key], c)
	}
	return r
}

func (r *replay) next(server, tool, arguments string) (json.RawMessage, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := [3]string{server, tool, arguments}
	if len(r.calls[key]) == 0 {
		return nil, fail("record", "the recorded run made no such call of %s.%s", server, tool)
	}
	c := r.calls[key][0]
	r.calls[key] = r.calls[key][1:]
	switch {
	case c.Code != "":
		return nil, &Error{c.Code, c.Error}
	case c.Result == nil:
		return nil, fail("record", "the record does not have the result of %s.%s: it had %d bytes", server, tool,
			c.ResultBytes)
	}
	return c.Result, nil
}
