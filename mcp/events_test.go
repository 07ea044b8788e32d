package mcp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/record"
)

// One caller's large answers do not remove streams that another caller may still resume.
func TestAttackResumableStreams(t *testing.T) {
	rt := bare(t)
	id := recorded(t, rt, "mallory", record.ViaHTTP)
	if err := os.WriteFile(rt.Runs().Path(id, record.StdoutFile), bytes.Repeat([]byte{1}, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	url := serve(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}),
		mcp.HTTPOptions{Auth: tokens(t, "alice", "mallory")})
	begin := func(caller string) (session, token string) {
		token = "Authorization: Bearer " + caller + "-token-0123456789"
		_, header, _ := send(t, "POST", url+"/mcp", initialize, token)
		session = "Mcp-Session-Id: " + header.Get("Mcp-Session-Id")
		send(t, "POST", url+"/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, session, token)
		return session, token
	}
	session, token := begin("alice")
	_, _, answer := send(t, "POST", url+"/mcp", `{"jsonrpc":"2.0","id":2,"method":"ping"}`, session, token,
		"Mcp-Protocol-Version: 2025-11-25")
	_, rest, _ := strings.Cut(answer, "id: ")
	first, _, _ := strings.Cut(rest, "\n")
	if first == "" || strings.Contains(answer, "event: prime") {
		t.Errorf("the first event has no id, or a name that clients do not know: %q", answer)
	}
	hers, hersToken := begin("mallory")
	for n := range 14 { // 168 MiB
		read := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"resources/read",`+
			`"params":{"uri":"unitask://runs/%s/stdout"}}`, n+2, id)
		if code, _, _ := send(t, "POST", url+"/mcp", read, hers, hersToken); code != 200 {
			t.Fatal(code)
		}
	}
	code, _, again := send(t, "GET", url+"/mcp", "", session, token, "Last-Event-ID: "+first)
	attack.Check(t, "a stream that is resumed after another caller's answers of 168 MiB", "200 true",
		fmt.Sprint(code, " ", strings.Contains(again, `"result"`)))
}

// The events of each caller and of all callers are limited. Streams of others stay, and a dropped stream can't be
// resumed.
func TestEvents(t *testing.T) {
	type whose struct{}
	e := mcp.NewEvents(60_000, 8_000, func(ctx context.Context) string { return ctx.Value(whose{}).(string) })
	as := func(name string) context.Context { return context.WithValue(t.Context(), whose{}, name) }
	open := func(caller, session, stream string) {
		if err := e.Open(as(caller), session, stream); err != nil {
			t.Fatal(err)
		}
	}
	add := func(session, stream string, bytes int) {
		if err := e.Append(t.Context(), session, stream, make([]byte, bytes)); err != nil {
			t.Fatal(err)
		}
	}
	after := func(session, stream string, index int) string {
		n := 0
		for d, err := range e.After(t.Context(), session, stream, index) {
			if errors.Is(err, sdk.ErrEventsPurged) {
				return "purged"
			}
			if err != nil {
				return err.Error()
			}
			n += len(d) + 1_000_000
		}
		return fmt.Sprint(n)
	}
	check := func(what, want, got string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, not %s", what, got, want)
		}
	}
	open("alice", "a", "")
	open("alice", "a", "1")
	add("a", "1", 0)
	add("a", "1", 300)
	check("a stream", "2000300", after("a", "1", -1))
	check("behind the first event", "1000300", after("a", "1", 0))
	check("behind the last", "0", after("a", "1", 1))
	check("no such stream", "purged", after("a", "2", -1))
	for n := range 20 {
		name := fmt.Sprint("m", n)
		open(name, name, "")
		for range 10 {
			add(name, "", 1000)
		}
		add(name, "", 9000) // more than a caller may have
		check("too large an event", "purged", after(name, "", 9))
		add(name, "", 2000)
		check("the next one", "1002000", after(name, "", 10))
	}
	check("a stream beside those of others", "2000300", after("a", "1", -1))
	if n := mcp.EventBytes(e); n > 60_000 {
		t.Errorf("%d bytes", n)
	}
	for range 30 {
		add("a", "", 1000)
	}
	check("a stream beside a caller's own", "purged", after("a", "1", -1))
	check("what is newer", "1001000", after("a", "", 28))
	open("bob", "b", "0")
	for n := range 20_000 {
		open("bob", "b", fmt.Sprint(n))
	}
	check("a stream of 20 000", "purged", after("b", "0", -1))
	add("b", "0", 1)
	check("it stays away", "purged", after("b", "0", 0))
	checkLostStreams(t, open, e, add, check, after)
	if n := mcp.EventBytes(e); n != 0 {
		t.Errorf("%d bytes of no sessions", n)
	}
}

// checkLostStreams checks the limits after sessions have lost their streams.
func checkLostStreams(
	t *testing.T, open func(caller string, session string, stream string), e sdk.EventStore,
	add func(session string, stream string, bytes int), check func(what string, want string, got string),
	after func(session string, stream string, index int) string,
) {
	t.Helper()
	open("alice", "c", "")
	for n := range 20_000 {
		open("alice", "d", fmt.Sprint(n))
	}
	if err := e.SessionClosed(t.Context(), "d"); err != nil { // no session of hers has a stream now
		t.Error(err)
	}
	for _, session := range []string{"c", "e"} {
		open("alice", session, "1")
		for range 5 {
			add(session, "1", 700)
		}
	}
	check("a caller's bound over sessions that had lost their streams", "purged", after("c", "1", -1))
	for _, session := range []string{"a", "b", "c", "e", "none"} {
		if err := e.SessionClosed(t.Context(), session); err != nil {
			t.Error(err)
		}
	}
	for n := range 20 {
		_ = e.SessionClosed(t.Context(), fmt.Sprint("m", n))
	}
}
