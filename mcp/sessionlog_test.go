package mcp_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/record"
)

// step writes the record of a session's step, or with session "" of a session. A step without code is a command.
func step(t *testing.T, rt *unitask.Runtime, owner, session, code, stdout, stderr string) string {
	t.Helper()
	file, request := "code.js", object{}
	if code == "" {
		file, request = "command.sh", object{"args": []string{"/bin/sh", "-c", "the command"}}
	}
	r, err := rt.Runs().Create(time.Now(), owner, record.ViaHTTP, file, []byte(code), request)
	if err != nil {
		t.Fatal(err)
	}
	r.Session, r.Status = session, record.Done
	if session == "" {
		r.Session = r.ID
	}
	fmt.Fprint(r.Stdout(), stdout)
	fmt.Fprint(r.Stderr(), stderr)
	if err := r.Finish(time.Now()); err != nil {
		t.Fatal(err)
	}
	return r.ID
}

// readLog reads a log's pages from a URI on.
func readLog(t *testing.T, cs *sdk.ClientSession, uri string) (text string, pages int, err error) {
	t.Helper()
	for uri != "" {
		res, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
		if err != nil {
			return text, pages, err
		}
		text += res.Contents[0].Text
		pages++
		uri, _ = res.Contents[0].Meta["unitask/next"].(string)
	}
	return text, pages, nil
}

// A session's log has the code and the output of its steps, in pages, and only those of its caller.
func TestAttackSessionLog(t *testing.T) {
	rt := bare(t)
	alice, bob := step(t, rt, "alice", "", "", "", ""), step(t, rt, "bob", "", "", "", "")
	first := step(t, rt, "alice", alice, "the first code", "one\n", "")
	step(t, rt, "bob", bob, "bob's code", "bob's output", "")
	forged := step(t, rt, "bob", alice, "a forged step", "forged", "")
	long := strings.Repeat("é", 3<<19)
	second := step(t, rt, "alice", alice, "the second code", long, "warning")
	third := step(t, rt, "alice", alice, "", "", "")
	cs := connect(t, serve(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}),
		mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")}), "alice-token-0123456789")
	text, pages, err := readLog(t, cs, "unitask://runs/"+alice+"/log")
	if err != nil || pages != 2 {
		t.Fatalf("%d pages: %v", pages, err)
	}
	head := func(id string) string {
		rec, err := rt.Runs().Get(id)
		if err != nil {
			t.Fatal(err)
		}
		return "--- " + id + " " + rec.Created.UTC().Format("2006-01-02T15:04:05Z") + ", done       \n"
	}
	want := head(first) + "--- code\nthe first code\n--- stdout\none\n\n" + head(second) +
		"--- code\nthe second code\n--- stdout\n" + long + "\n--- stderr\nwarning\n" + head(third) +
		"--- command\nthe command\n"
	if text != want {
		t.Errorf("the log has %d bytes, want %d: %.300q", len(text), len(want), text)
	}
	for _, word := range []string{"bob", "forged", forged} {
		attack.Check(t, "a session's log has "+word+" of another caller", "false", fmt.Sprint(strings.Contains(text, word)))
	}
	for name, uri := range map[string]string{"another caller's session": bob, "a step": first, "no record": "x"} {
		_, _, err := readLog(t, cs, "unitask://runs/"+uri+"/log")
		saw := fmt.Sprint(err)
		if err != nil && strings.Contains(saw, "not found") {
			saw = "not found"
		}
		attack.Check(t, "the log of "+name, "not found", saw)
	}
	if text, _, err := readLog(t, cs, "unitask://runs/"+alice+"/log?offset=99999999"); err != nil || text != "" {
		t.Errorf("beyond the end: %q %v", text, err)
	}
}
