package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// limitOf returns the name of the limit in an error.
func limitOf(err error) string {
	var limit *mcp.LimitError
	if errors.As(err, &limit) {
		return limit.Limit
	}
	return fmt.Sprint(err)
}

// One caller against the others, in the queue.
func TestAttackQueue(t *testing.T) {
	// fill makes a caller enter n times. ran gets its name each time it is admitted, and next ends the earliest admitted
	// run.
	type entered struct {
		caller string
		leave  func()
	}
	begin := func(line mcp.Line, ran chan entered, caller string, n int) (refused map[string]int) {
		failed := make(chan string, n)
		for range n {
			go func() {
				leave, err := line.Enter(context.Background(), caller)
				if err != nil {
					failed <- limitOf(err)
					return
				}
				ran <- entered{caller, leave}
			}()
			synctest.Wait()
		}
		refused = map[string]int{}
		for len(failed) > 0 {
			refused[<-failed]++
		}
		return refused
	}
	for _, c := range []struct {
		name        string
		slots, most int
		shared      bool
		greedy      int // calls of alice before bob's
		want        string
	}{
		{"a caller with 20 calls on one machine", 1, 64, true, 20, "map[], bob is number 2 of 21"},
		{"a caller with 100 calls on one machine", 1, 64, true, 100, "map[caller-queue:67], bob is number 2 of 34"},
		{"a caller with 100 calls on four machines", 4, 64, true, 100, "map[caller-queue:65], bob is number 4 of 36"},
		{"a caller with 100 calls where there is no other", 4, 64, false, 100, "map[queue:32], bob is refused: queue"},
	} {
		synctest.Test(t, func(t *testing.T) {
			line, ran := mcp.NewLine(c.slots, c.most, c.shared), make(chan entered, 200)
			refused := begin(line, ran, "alice", c.greedy)
			got := fmt.Sprintf("%v, bob is ", refused)
			if bobs := begin(line, ran, "bob", 1); len(bobs) > 0 {
				for limit := range bobs {
					got += "refused: " + limit
				}
			}
			n, at := 0, 0
			for len(ran) > 0 {
				e := <-ran
				if n++; e.caller == "bob" {
					at = n
				}
				e.leave()
				synctest.Wait()
			}
			if at > 0 {
				got += fmt.Sprintf("number %d of %d", at, n)
			}
			attack.Check(t, c.name, c.want, got)
		})
	}
}

// A call that is cancelled while it waits takes no slot and no place.
func TestQueueGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := mcp.NewLine(1, 1, true)
		leave, err := line.Enter(t.Context(), "alice")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := line.Enter(ctx, "bob"); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
		}
		leave()
		leave()
		for range 3 {
			leave, err := line.Enter(t.Context(), "bob")
			if err != nil {
				t.Fatal(err)
			}
			leave()
		}
	})
}

// Sessions, and endless requests, of one caller.
func TestAttackSessions(t *testing.T) {
	url := serve(t, newServer(t, bare(t), mcp.Options{Ceiling: noMachine()}),
		mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")})
	const alice, bob = "Authorization: Bearer alice-token-0123456789", "Authorization: Bearer bob-token-0123456789"
	got, last, body := map[int]int{}, "", ""
	for range mcp.MaxCallerSessions + 20 {
		code, h, text := send(t, "POST", url+"/mcp", initialize, alice)
		if got[code]++; code == 200 {
			last = h.Get("Mcp-Session-Id")
		} else {
			body = text
		}
	}
	attack.Check(t, "120 sessions of one caller", "map[200:100 429:20]", fmt.Sprint(got))
	if !strings.Contains(body, "you have 100 sessions") {
		t.Errorf("%q", body)
	}
	code, _, _ := send(t, "POST", url+"/mcp", initialize, bob)
	attack.Check(t, "then another caller's session", "200", fmt.Sprint(code))
	for _, header := range []string{bob, ""} {
		headers := []string{"Mcp-Session-Id: " + last}
		if header != "" {
			headers = append(headers, header)
		}
		code, _, _ = send(t, "DELETE", url+"/mcp", "", headers...)
		if code < 400 {
			t.Errorf("%q ended alice's session: %d", header, code)
		}
	}
	if code, _, _ := send(t, "DELETE", url+"/mcp", "", alice, "Mcp-Session-Id: "+last); code != 204 && code != 200 {
		t.Errorf("%d", code)
	}
	code, _, _ = send(t, "POST", url+"/mcp", initialize, alice)
	attack.Check(t, "a session after one was ended", "200", fmt.Sprint(code))
}

func TestAttackStreams(t *testing.T) {
	url := serve(t, newServer(t, bare(t), mcp.Options{Ceiling: noMachine(), MaxConcurrent: 2, MaxQueue: 2}),
		mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")})
	const most = mcp.MaxCallerStreams + 1 + 1
	addr := strings.TrimPrefix(url, "http://")
	var open []net.Conn
	for range most {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
		fmt.Fprintf(c,
			"POST /mcp HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer alice-token-0123456789\r\n"+
				"Content-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n", addr)
		// the server waits for the body
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "100") {
			t.Fatal(line, err)
		}
	}
	const alice, bob = "Authorization: Bearer alice-token-0123456789", "Authorization: Bearer bob-token-0123456789"
	until := func(header, want string) string { // the server has noticed the close
		for deadline := time.Now().Add(10 * time.Second); ; {
			if got := status(t, url, header); got == want || time.Now().After(deadline) {
				return got
			}
		}
	}
	attack.Check(t, fmt.Sprintf("one caller's request beside %d that never end", most), "429", status(t, url, alice))
	attack.Check(t, "then another caller's request", "200", status(t, url, bob))
	for _, c := range open {
		c.Close()
	}
	attack.Check(t, "a request after they were closed", "200", until(alice, "200"))
}

// Large and slow bodies of one caller do not fill the memory.
func TestAttackSlowBodies(t *testing.T) {
	url := serve(t, newServer(t, bare(t), mcp.Options{Ceiling: noMachine()}),
		mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")})
	addr := strings.TrimPrefix(url, "http://")
	begin := func(name, length string) (net.Conn, string) {
		t.Helper()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c,
			"POST /mcp HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s-token-0123456789\r\nContent-Type: application/json\r\n"+
				"%s\r\nExpect: 100-continue\r\n\r\n", addr, name, length)
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return c, strings.Fields(line)[1]
	}
	const large, chunked, small = "Content-Length: 16777216", "Transfer-Encoding: chunked", "Content-Length: 100"
	var open []net.Conn
	for n := range mcp.MaxCallerBodies / mcp.BodyBytes {
		c, got := begin("alice", map[bool]string{true: large, false: chunked}[n%2 == 0])
		if got != "100" { // the server waits for the body
			t.Fatal(n, got)
		}
		open = append(open, c)
	}
	for _, c := range []struct{ who, length, want string }{
		{"alice", large, "429"}, {"alice", chunked, "429"}, {"alice", "Content-Length: 99999999999", "429"},
		{"alice", small, "429"}, {"bob", large, "100"}, {"bob", small, "100"},
	} {
		conn, got := begin(c.who, c.length)
		attack.Check(t, fmt.Sprintf("a body of %s's, %s, beside %d large ones of alice", c.who, c.length, len(open)), c.want,
			got)
		conn.Close()
	}
	for _, c := range open {
		c.Close()
	}
	got := ""
	// the server has noticed the close
	for deadline := time.Now().Add(10 * time.Second); got != "200" && time.Now().Before(deadline); {
		got = status(t, url, "Authorization: Bearer alice-token-0123456789")
	}
	attack.Check(t, "a request after they were closed", "200", got)
}

// Frequent calls of the doctor do not boot machines all the time.
func TestAttackDoctor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, bare(t), mcp.Options{Ceiling: noMachine()})
		var made atomic.Int64
		mcp.SetDoctor(s, func(context.Context) *doctor.Report {
			made.Add(1)
			testwait.Pass(3 * time.Second)
			return &doctor.Report{OK: true, Checks: []doctor.Check{{Name: "test", OK: true}},
				Accelerators: []doctor.AccelReport{}}
		})
		for range 50 {
			go func() {
				if _, err := mcp.Doctor(t.Context(), s); err != nil {
					t.Error(err)
				}
			}()
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := mcp.Doctor(gone, s); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		testwait.Pass(10 * time.Second)
		attack.Check(t, "50 calls of doctor at once", "1 made", fmt.Sprintf("%d made", made.Load()))
		for range 50 {
			if _, err := mcp.Doctor(t.Context(), s); err != nil {
				t.Error(err)
			}
		}
		attack.Check(t, "50 calls of doctor one after the other", "1 made", fmt.Sprintf("%d made", made.Load()))
		testwait.Pass(mcp.DoctorFresh)
		if _, err := mcp.Doctor(t.Context(), s); err != nil || made.Load() != 2 {
			t.Errorf("%d made, %v", made.Load(), err)
		}
	})
}

var runID = regexp.MustCompile(`\d{8}-\d{9}-\w{6}`)

// The inline files can be read by both names, also from records with the old name.
func TestOldInlineFiles(t *testing.T) {
	rt := bare(t)
	server := newServer(t, rt, mcp.Options{Ceiling: noMachine()})
	cs := connect(t, serve(t, server, mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")}), "alice-token-0123456789")
	for _, file := range []string{record.InlineFilesFile, "neighbours.json"} {
		r, err := rt.Runs().Create(time.Now(), "alice", record.ViaHTTP, "code.js", nil, struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		r.Status = record.Done
		if err := errors.Join(os.WriteFile(filepath.Join(r.Dir(), file), []byte("[]"), 0o600),
			r.Finish(time.Now())); err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"inlineFiles", "neighbours"} {
			uri := "unitask://runs/" + r.ID + "/" + part
			res, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
			if err != nil || res.Contents[0].Text != "[]" {
				t.Errorf("%s of a record with %s: %+v %v", part, file, res, err)
			}
		}
	}
}

// Failures of QEMU's jail are reported without the paths.
func TestAttackJailPaths(t *testing.T) {
	rt := bare(t)
	r, err := rt.Runs().Create(time.Now(), "alice", record.ViaHTTP, "code.js", nil, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	r.Status = record.Done
	r.Machine = &record.Machine{Jail: json.RawMessage(
		`{"layers":[{"name":"filesystem","holds":false,"why":"open /srv/private/qemu: ` +
			`permission denied"},{"name":"cgroup","holds":true,"detail":"/sys/fs/cgroup/srv/private"}]}`)}
	if err := r.Finish(time.Now()); err != nil {
		t.Fatal(err)
	}
	cs := connect(t, serve(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}),
		mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")}), "alice-token-0123456789")
	_, out, _ := call(t, cs, "inspect_run", object{"runId": r.ID})
	res, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "unitask://runs/" + r.ID})
	if err != nil {
		t.Fatal(err)
	}
	for way, told := range map[string]string{"inspect_run": fmt.Sprint(out), "the resource": res.Contents[0].Text} {
		got := "hidden"
		if strings.Contains(told, "private") {
			got = told
		}
		if !strings.Contains(told, "permission denied") {
			t.Errorf("%s does not say why: %s", way, told)
		}
		attack.Check(t, "paths in what is told of the jail, by "+way, "hidden", got)
	}
}

// Callers over HTTP learn no path of the host.
func TestAttackHostPaths(t *testing.T) {
	rt := bare(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "elsewhere")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "data.csv"), []byte("x"), 0o600),
		os.WriteFile(outside, nil, 0o600), os.Symlink(outside, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	ceiling, err := policy.ParseCeiling(filepath.Join(dir, policy.CeilingFile),
		[]byte("kernel = \"nanos\"\nfilesUnder = [\".\"]\ndirsUnder = []\nsecrets = []\nallowTcp = []"))
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, rt, mcp.Options{Ceiling: ceiling, Dir: dir})
	home, user := rt.Images().Home(), ""
	if user, err = os.UserHomeDir(); err != nil || user == "/" {
		user = "no home folder"
	}
	everything := func(cs *sdk.ClientSession) map[string]string {
		t.Helper()
		said := map[string]string{}
		tool := func(name string, args any) (out object) {
			res, out, text := call(t, cs, name, args)
			said[fmt.Sprintf("%s %v", name, args)] = fmt.Sprint(text, res.StructuredContent)
			return out
		}
		out := tool("run_code", object{"language": "js", "code": "1", "files": []string{"data.csv", "link", "/etc/shadow:/x"},
			"allowTcp": []string{"127.0.0.1:22"}, "memoryMb": 300})
		id, _ := out["runId"].(string)
		tool("run_code", object{"language": "js", "code": "1", "files": []string{"none.csv"}})
		tool("run_code", object{"language": "js", "code": "1", "files": []string{dir + "/none.csv:/x"}})
		tool("run_code", object{"language": "js", "code": "1", "dirs": []string{"data.csv"}})
		tool("run_code", object{"snippet": "none"})
		tool("inspect_run", object{"runId": id})
		tool("list_runs", object{})
		tool("unitask_doctor", object{})
		for _, part := range []string{"", "/code", "/stdout", "/netlog", "/console", "/artifacts/none"} {
			res, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "unitask://runs/" + id + part})
			said["resource"+part] = fmt.Sprint(err)
			if err == nil {
				said["resource"+part] = res.Contents[0].Text
			}
		}
		// An unreadable record, and one with missing parts.
		if err := os.Remove(filepath.Join(rt.Runs().Dir(), id, record.StdoutFile)); err != nil {
			t.Fatal(err)
		}
		tool("inspect_run", object{"runId": id})
		_, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "unitask://runs/" + id + "/stdout"})
		said["a part that is gone"] = fmt.Sprint(err)
		return said
	}
	leaks := func(said string) (found []string) {
		for name, path := range map[string]string{"home": home, "folder": dir, "user's home": user, "link's end": outside,
			"policy file": ".unitask.toml", "QEMU": "/qemu-system"} {
			if strings.Contains(said, path) {
				found = append(found, name)
			}
		}
		return found
	}
	told := 0
	for _, said := range everything(inMemory(t, s, nil)) {
		told += len(leaks(said))
	}
	if told < 5 { // the local user sees paths, so there is something to hide
		t.Errorf("over stdio only %d paths are told", told)
	}
	for at, said := range everything(connect(t, serve(t, s, mcp.HTTPOptions{}), "")) {
		got := "none"
		if found := leaks(strings.ReplaceAll(said, dir+"/none.csv", "")); len(found) > 0 { // the caller has named this one
			got = fmt.Sprint(found)
			t.Logf("%s", said)
		}
		attack.Check(t, "paths of the host in "+runID.ReplaceAllString(strings.ReplaceAll(at, dir, "DIR"), "ID"), "none", got)
	}
	checkHiddenPaths(t)
}

// checkHiddenPaths checks texts with paths in them.
func checkHiddenPaths(t *testing.T) {
	t.Helper()
	for _, c := range []struct{ text, want string }{
		{"open /srv/x: no such file", "open [path]: no such file"},
		{`link to "/srv/a b/c", outside`, `link to "[path]", outside`}, {"UNITASK_HOME=/srv/x", "UNITASK_HOME=[path]"},
		{"HOME/runs/1 and DIR/x", "[path]/runs/1 and ./x"}, {"unitask://runs/1", "unitask://runs/1"},
		{"https://a.example/b", "https://a.example/b"}, {"3 of 4 and/or 1/2", "3 of 4 and/or 1/2"}, {"(/a/b)", "([path])"},
		{"/a", "[path]"}, {"a: /b: c", "a: [path]: c"}, {"~/bin/qemu", "~/bin/qemu"},
	} {
		got := mcp.HidePaths("/w ork", "/h ome", strings.NewReplacer("HOME", "/h ome", "DIR",
			"/w ork").Replace(strings.ReplaceAll(c.text, "UNITASK_HOME", "UNITASK_H")))
		attack.Check(t, "the message "+c.text, strings.ReplaceAll(c.want, "UNITASK_HOME", "UNITASK_H"), got)
	}
}

// Commands count toward the limits of runs, background commands toward the rate.
func TestAttackCommandsAreRuns(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	server := func(opts mcp.Options) *mcp.Server {
		opts.Dir = t.TempDir()
		s, err := mcp.New(rt, opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	is := func(err error) string {
		var limit *mcp.LimitError
		if errors.As(err, &limit) {
			return limit.Limit
		}
		return fmt.Sprint(err)
	}
	const reached = "it reached the session"
	for _, background := range []bool{false, true} {
		s := server(mcp.Options{CallerPerMinute: 1})
		attack.Check(t, fmt.Sprintf("a first command (background %t)", background), reached,
			is(mcp.Command(t.Context(), s, "a", background)))
		attack.Check(t, fmt.Sprintf("a second within the minute (background %t)", background), "caller-per-minute",
			is(mcp.Command(t.Context(), s, "a", background)))
		attack.Check(t, fmt.Sprintf("another caller's (background %t)", background), reached,
			is(mcp.Command(t.Context(), s, "b", background)))
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	// the latter waits
	for want, opts := range map[string]mcp.Options{"caller-concurrent": {CallerConcurrent: 1},
		"context canceled": {MaxConcurrent: 1}} {
		s := server(opts)
		leave, err := mcp.Take(t.Context(), s, "a")
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a command beside a run: "+want, want, is(mcp.Command(over, s, "a", false)))
		leave()
		attack.Check(t, "and after it: "+want, reached, is(mcp.Command(t.Context(), s, "a", false)))
	}
}
