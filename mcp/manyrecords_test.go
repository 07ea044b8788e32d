package mcp_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/record"
)

var records = flag.Int("records", 2000, "of TestAttackManyRecords; the bound is for 100000")

// A caller's listings do not read others' records, and only as many of its own as are listed.
func TestAttackManyRecords(t *testing.T) {
	rt := bare(t)
	alices := recorded(t, rt, "alice", record.ViaHTTP)
	at := time.Now().Add(-24 * time.Hour).UTC()
	for n := range *records { // half a second apart
		began := at.Add(time.Duration(n-*records) * time.Second / 2).Format("20060102-150405.000")
		id := strings.Replace(began, ".", "", 1) + fmt.Sprintf("-%06d", n)
		dir := filepath.Join(rt.Runs().Dir(), id)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(`{"schemaVersion":1,"id":%q,"status":"done","created":%q,"owner":"mallory","via":"http",`+
			`"codeFile":"code.js","request":{},"result":{"outcome":"exited"}}`, id, at.Format(time.RFC3339))
		if err := os.WriteFile(filepath.Join(dir, "run.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url := serve(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}),
		mcp.HTTPOptions{Auth: tokens(t, "alice", "mallory")})
	began := time.Now()
	alice, mallory := connect(t, url, "alice-token-0123456789"), connect(t, url, "mallory-token-0123456789")
	call(t, alice, "list_runs", object{}) // indexes records without an index
	t.Logf("%d records were indexed in %v", *records, time.Since(began))
	completed := func(cs *sdk.ClientSession, prefix string) (string, error) {
		ref := &sdk.CompleteReference{Type: "ref/resource", URI: "unitask://runs/{id}"}
		arg := sdk.CompleteParamsArgument{Name: "id", Value: prefix}
		res, err := cs.Complete(t.Context(), &sdk.CompleteParams{Ref: ref, Argument: arg})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(len(res.Completion.Values), res.Completion.HasMore), nil
	}
	tool := func(cs *sdk.ClientSession, name string, args object) func() (string, error) {
		return func() (string, error) {
			res, out, text := call(t, cs, name, args)
			if res.IsError {
				return "", fmt.Errorf("%s", text)
			}
			list, _ := out["runs"].([]any)
			return fmt.Sprint(len(list), out["next"] != nil), nil
		}
	}
	listed := func(cs *sdk.ClientSession) (string, error) {
		res, err := cs.ListResources(t.Context(), nil)
		if err != nil {
			return "", err
		}
		return fmt.Sprint(len(res.Resources), res.NextCursor != ""), nil
	}
	for _, c := range []struct {
		name string
		do   func() (string, error)
		want string // how many are listed, and whether there are more
	}{
		{"list_runs of a caller with one run", tool(alice, "list_runs", object{}), "1 false"},
		{"list_runs by a status that no run has", tool(alice, "list_runs", object{"status": "oom"}), "0 false"},
		{"resources/list of that caller", func() (string, error) { return listed(alice) }, "3 false"},
		{"completion of that caller", func() (string, error) { return completed(alice, "") }, "1 false"},
		{"inspect_run by a prefix", tool(alice, "inspect_run", object{"runId": alices[:len(alices)-1]}), "0 false"},
		{"inspect_run of the last", tool(alice, "inspect_run", object{"runId": "last"}), "0 false"},
		{"list_runs of the caller with the others", tool(mallory, "list_runs", object{"limit": 50}), "50 true"},
		{"list_runs by a status that none of these has", tool(mallory, "list_runs", object{"status": "oom"}), "0 true"},
		{"resources/list of the caller with the others", func() (string, error) { return listed(mallory) }, "102 true"},
		{"completion of all of these", func() (string, error) { return completed(mallory, "2") }, "100 true"},
	} {
		var took []time.Duration
		got, err := "", error(nil)
		for range 3 {
			began := time.Now()
			got, err = c.do()
			took = append(took, time.Since(began))
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %s, not %s, %v", c.name, got, c.want, err)
		}
		attack.Check(t, fmt.Sprintf("%s, beside %d records", c.name, *records), "within 100 ms",
			map[bool]string{true: "within 100 ms"}[slices.Min(took) < 100*time.Millisecond])
	}
}

// Listings have a rate, ten for each run, and one caller may have two at once.
func TestAttackListings(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	s := newServer(t, rt, mcp.Options{Dir: t.TempDir(), CallerPerMinute: 2})
	got := map[string]int{}
	for range 25 {
		leave, err := mcp.Look(t.Context(), s, "mallory")
		if err == nil {
			leave()
			got["listed"]++
		} else {
			got[limitOf(err)]++
		}
	}
	attack.Check(t, "25 listings of a caller with two runs a minute", "map[caller-per-minute:5 listed:20]",
		fmt.Sprint(got))
	attack.Check(t, "and then its run", "it reached the session", limitOf(mcp.Command(t.Context(), s, "mallory", true)))
	var open []func()
	for range 2 {
		leave, err := mcp.Look(t.Context(), s, "alice")
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, leave)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = mcp.Look(ctx, s, "alice")
	attack.Check(t, "a third listing at once", "context canceled", fmt.Sprint(err))
	leave, err := mcp.Look(t.Context(), s, "bob")
	attack.Check(t, "and another caller's", "<nil>", fmt.Sprint(err))
	leave()
	for _, leave := range open {
		leave()
	}
}
