package mcp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/record"
)

// recorded makes a finished record, with an artifact.
func recorded(t *testing.T, rt *unitask.Runtime, owner string, via record.Via) string {
	t.Helper()
	r, err := rt.Runs().Create(time.Now(), owner, via, "code.js", []byte("the code"), struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	r.Status = record.Done
	fmt.Fprint(r.Stdout(), "the output")
	if err := r.Finish(time.Now()); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(r.Dir(), record.ArtifactsDir)
	if err := errors.Join(os.Mkdir(out, 0o700), os.WriteFile(filepath.Join(out, "a.txt"), []byte("the artifact"),
		0o600)); err != nil {
		t.Fatal(err)
	}
	return r.ID
}

// tokens writes a file of tokens, each the caller's name and "-token-0123456789".
func tokens(t *testing.T, names ...string) *mcp.Auth {
	t.Helper()
	file, text := filepath.Join(t.TempDir(), "tokens"), ""
	for _, name := range names {
		text += name + " " + name + "-token-0123456789\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := mcp.TokenFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return auth
}

// Attempts to reach the runs of others, by every way to a run.
func TestAttackOthersRuns(t *testing.T) {
	rt := bare(t)
	self := unitask.LocalOwner(os.Geteuid())
	runs := map[string]string{ // owner and way
		"alice over HTTP": recorded(t, rt, "alice", record.ViaHTTP), "bob over HTTP": recorded(t, rt, "bob", record.ViaHTTP),
		"this user by the command line": recorded(t, rt, self, record.ViaCLI),
		"this user from Go":             recorded(t, rt, self, record.ViaAPI),
		"this user over stdio":          recorded(t, rt, self, record.ViaMCP),
		"this user over HTTP":           recorded(t, rt, self, record.ViaHTTP),
		"another user over stdio":       recorded(t, rt, "local:nobody", record.ViaMCP),
		"nobody, of an older unitask":   recorded(t, rt, "", ""),
		"alice, of an older unitask":    recorded(t, rt, "alice", ""),
		"alice by the command line":     recorded(t, rt, "alice", record.ViaCLI),
	}
	s := newServer(t, rt, mcp.Options{Ceiling: noMachine()})
	shared := serve(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}),
		mcp.HTTPOptions{Auth: tokens(t, "alice", "bob", "root")})
	for _, c := range []struct {
		name string
		cs   *sdk.ClientSession
		own  []string
	}{
		{"stdio", inMemory(t, s, nil), []string{"this user over stdio", "this user over HTTP"}},
		{"loopback", connect(t, serve(t, s, mcp.HTTPOptions{}), ""), []string{"this user over stdio", "this user over HTTP"}},
		{"alice", connect(t, shared, "alice-token-0123456789"), []string{"alice over HTTP"}},
		{"bob", connect(t, shared, "bob-token-0123456789"), []string{"bob over HTTP"}},
		{"a token named root", connect(t, shared, "root-token-0123456789"), nil},
	} {
		for whose, id := range runs {
			want := "nothing"
			for _, own := range c.own {
				if own == whose {
					want = "all of it"
				}
			}
			attack.Check(t, c.name+" reaches for a run of "+whose, want, reach(t, c.cs, id))
		}
	}
}

// reach tries every way to a run; the result must be "nothing" or "all of it".
func reach(t *testing.T, cs *sdk.ClientSession, id string) string {
	t.Helper()
	got := map[string]bool{}
	for _, ref := range []string{id, id[:len(id)-1]} {
		res, _, _ := call(t, cs, "inspect_run", object{"runId": ref})
		got["inspect_run "+ref[len(id)-6:]] = !res.IsError
	}
	_, out, _ := call(t, cs, "list_runs", object{"limit": 200})
	text, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	got["list_runs"] = strings.Contains(string(text), id)
	_, out, _ = call(t, cs, "inspect_run", object{"runId": "last"})
	if out["id"] == id {
		got["last"] = true
	}
	listed := false
	for r, err := range cs.Resources(t.Context(), nil) {
		listed = listed || err == nil && strings.Contains(r.URI, id)
	}
	got["resources/list"] = listed
	for _, part := range []string{"", "/code", "/stdout", "/artifacts/a.txt"} {
		_, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "unitask://runs/" + id + part})
		got["resources/read"+part] = err == nil
	}
	_, pageErr := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "ui://unitask/runs/" + id})
	got["page"] = pageErr == nil
	completed, err := cs.Complete(t.Context(), &sdk.CompleteParams{Ref: &sdk.CompleteReference{Type: "ref/resource",
		URI: "unitask://runs/{id}"}, Argument: sdk.CompleteParamsArgument{Name: "id", Value: id}})
	got["completion"] = err == nil && len(completed.Completion.Values) > 0
	yes, no := 0, 0
	for way, ok := range got {
		if ok {
			yes++
		} else if no++; way == "last" {
			no--
		}
	}
	switch {
	case yes == 0:
		return "nothing"
	case no == 0:
		return "all of it"
	}
	return fmt.Sprint(got)
}

// Paths that lead out of the records.
func TestAttackPaths(t *testing.T) {
	rt := bare(t)
	id := recorded(t, rt, unitask.LocalOwner(os.Geteuid()), record.ViaMCP)
	out := filepath.Join(rt.Runs().Dir(), id, record.ArtifactsDir)
	if err := errors.Join(os.Symlink("/etc/passwd", filepath.Join(out, "link")),
		os.Symlink("..", filepath.Join(out, "up")), syscall.Mkfifo(filepath.Join(out, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	cs := inMemory(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}), nil)
	at := "unitask://runs/" + id
	for _, uri := range []string{at, at + "/stdout", at + "/artifacts/a.txt"} {
		if _, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err != nil {
			t.Fatal(uri, err)
		}
	}
	for _, uri := range []string{
		"unitask://runs/", "unitask://runs/.", "unitask://runs/..", "unitask://runs/../memo.json", "unitask://runs/%2e%2e",
		"unitask://runs//" + id, "unitask://runs/" + id + "/..", "unitask://runs/none",
		"unitask://runs/.removed-" + id, "unitask://runs/" + id + "\x00", "unitask://runs/" + id[:10], "unitask://runs/last",
		"UNITASK://runs/" + id, "unitask://runs?" + id, "unitask:runs/" + id,
		at + "/", at + "/run.json", at + "/lock", at + "/out", at + "/out/a.txt", at + "/code.js", at + "/stdout/",
		at + "/stdout/..", at + "/STDOUT", at + "/./stdout", at + "/%73tdout", at + "/stdout%00",
		at + "/../" + id + "/stdout",
		at + "/artifacts", at + "/artifacts/", at + "/artifacts/.", at + "/artifacts/..", at + "/artifacts/../stdout",
		at + "/artifacts/%2e%2e/stdout", at + "/artifacts/%2e%2e%2fstdout", at + "/artifacts/..%5cstdout",
		at + "/artifacts//a.txt",
		at + "/artifacts//etc/passwd", at + "/artifacts/%2fetc%2fpasswd", at + "/artifacts/a.txt/",
		at + "/artifacts/a.txt%00", at + "/artifacts/./a.txt", at + "/artifacts/%252e%252e/stdout", at + "/artifacts/%zz",
		at + "/artifacts/link", at + "/artifacts/up/stdout", at + "/artifacts/pipe",
		at + "/artifacts/" + strings.Repeat("a/", 40) + "x", at + "/artifacts/" + strings.Repeat("a", 5000),
		"file:///etc/passwd", "file://" + rt.Runs().Dir(), "/etc/passwd", "http://127.0.0.1/", "",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		res, err := cs.ReadResource(ctx, &sdk.ReadResourceParams{URI: uri})
		cancel()
		var wire *jsonrpc.Error
		got := "refused"
		switch {
		case err == nil:
			got = fmt.Sprintf("read %.40q", res.Contents[0].Text)
		case !errors.As(err, &wire):
			got = err.Error()
		}
		attack.Check(t, "resource "+strings.ReplaceAll(uri, id, "ID"), "refused", got)
	}
	for _, ref := range []string{"", "..", "../", "../../etc", "/", ".", id + "/", id + "/stdout", "*", "%2e%2e", "\x00",
		"-"} {
		res, _, _ := call(t, cs, "inspect_run", object{"runId": ref})
		attack.Check(t, fmt.Sprintf("inspect_run %q", ref), "true", fmt.Sprint(res.IsError))
	}
}

// status returns a token's HTTP status.
func status(t *testing.T, url string, headers ...string) string {
	t.Helper()
	code, _, _ := send(t, "POST", url+"/mcp", listTools, append(headers, revision, named)...)
	return fmt.Sprint(code)
}

// A subject equal to another caller's full name does not give that caller's table or secrets.
func TestAttackShortNames(t *testing.T) {
	good := newKey(t)
	i := newIssuer(t, jose.JSONWebKey{Key: good.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"})
	auth, err := mcp.JWTs(mcp.JWTOptions{JWKS: i.url, Audience: audience, Issuer: "https://issuer.example"})
	if err != nil {
		t.Fatal(err)
	}
	for sub, want := range map[string]string{
		"carol":                        `["https://issuer.example#carol" "carol"]`,
		"https://issuer.example#carol": `["https://issuer.example#https://issuer.example#carol"]`,
		"a#b":                          `["https://issuer.example#a#b"]`,
		"local:root":                   `["https://issuer.example#local:root"]`,
	} {
		names, err := mcp.Names(t.Context(), auth, sign(t, jose.ES256, jose.JSONWebKey{Key: good, KeyID: "k"}, nil,
			claims(func(m map[string]any) { m["sub"] = sub })))
		attack.Check(t, "names of the subject "+sub, want, fmt.Sprintf("%q", names))
		if err != nil {
			t.Error(err)
		}
	}
}

// Tokens of a file, in slightly different forms.
func TestAttackTokens(t *testing.T) {
	url := serve(t, newServer(t, bare(t), mcp.Options{Ceiling: noMachine()}),
		mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")})
	const alice = "alice-token-0123456789"
	for _, c := range []struct {
		name    string
		headers []string
		want    string
	}{
		{"as it is", []string{"Authorization: Bearer " + alice}, "200"},
		{"the scheme in capitals, which is the same scheme", []string{"Authorization: BEARER " + alice}, "200"},
		{"none", nil, "401"},
		{"empty", []string{"Authorization: "}, "401"},
		{"no scheme", []string{"Authorization: " + alice}, "401"},
		{"another scheme", []string{"Authorization: Basic " + alice}, "401"},
		{"in capitals", []string{"Authorization: Bearer " + strings.ToUpper(alice)}, "401"},
		{"its beginning", []string{"Authorization: Bearer " + alice[:len(alice)-1]}, "401"},
		{"with more", []string{"Authorization: Bearer " + alice + "x"}, "401"},
		{"two in one header", []string{"Authorization: Bearer " + alice + " bob-token-0123456789"}, "401"},
		{"two with a comma", []string{"Authorization: Bearer " + alice + ",bob-token-0123456789"}, "401"},
		{"quoted", []string{`Authorization: Bearer "` + alice + `"`}, "401"},
		{"percent-encoded", []string{"Authorization: Bearer " + strings.ReplaceAll(alice, "-", "%2d")}, "401"},
		{"with a no-break space", []string{"Authorization: Bearer\u00a0" + alice}, "400"},
		{"with a tab", []string{"Authorization: Bearer\t" + alice}, "400"},
		{"the name", []string{"Authorization: Bearer alice"}, "401"},
		{"two headers, the good one first", []string{"Authorization: Bearer " + alice, "Authorization: Bearer x"}, "400"},
		{"two headers, the good one last", []string{"Authorization: Bearer x", "Authorization: Bearer " + alice}, "400"},
		{"the same header twice", []string{"Authorization: Bearer " + alice, "Authorization: Bearer " + alice}, "400"},
		{"in another header", []string{"X-Authorization: Bearer " + alice}, "401"},
		{"in a cookie", []string{"Cookie: token=" + alice}, "401"},
		{"a token of 60 KiB", []string{"Authorization: Bearer " + strings.Repeat("x", 60<<10)}, "401"},
	} {
		attack.Check(t, "token: "+c.name, c.want, status(t, url, c.headers...))
	}
	code, _, _ := send(t, "POST", url+"/mcp?access_token="+alice, listTools, revision, named)
	attack.Check(t, "token: in the URL", "401", fmt.Sprint(code))
	for _, name := range []string{"local:root", "local:", "https://issuer.example#carol", "al\u200bice", "al\x1bice",
		strings.Repeat("a", 600)} {
		file := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(file, []byte(name+" a-token-of-0123456789\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := mcp.TokenFile(file)
		attack.Check(t, fmt.Sprintf("a token file's name %.40q", name), "true", fmt.Sprint(err != nil))
	}
}

// Hosts and origins, on a loopback address without tokens.
func TestAttackHosts(t *testing.T) {
	url := serve(t, newServer(t, bare(t), mcp.Options{Ceiling: noMachine()}),
		mcp.HTTPOptions{Origins: []string{"https://app.example"}, Hosts: []string{"box.local"}})
	host := strings.TrimPrefix(url, "http://")
	_, port, _ := strings.Cut(host, ":")
	for _, c := range []struct{ header, want string }{
		{"Host: " + host, "200"}, {"Host: localhost:PORT", "200"}, {"Host: box.local", "200"},
		{"Origin: https://app.example", "200"}, {"Origin: http://" + host, "200"},
		{"Host: evil.example", "403"}, {"Host: evil.example:PORT", "403"}, {"Host: 127.0.0.1.evil.example", "403"},
		{"Host: 127.0.0.1.nip.io:PORT", "403"}, {"Host: localhost.evil.example:PORT", "403"},
		{"Host: evil-localhost", "403"}, {"Host: localhost.", "403"}, {"Host: box.local.evil.example", "403"},
		{"Host: xbox.local", "403"}, {"Host: 10.0.0.1:PORT", "403"}, {"Host: 0.0.0.0:PORT", "403"},
		{"Host: [::ffff:10.0.0.1]:PORT", "403"}, {"Host: 169.254.169.254", "403"}, {"Host: 2130706433", "403"},
		{"Host: 0x7f000001", "403"}, {"Host: 127.1", "403"}, {"Host: 0177.0.0.1", "403"}, {"Host: [fe80::1%25lo]", "403"},
		{"Host: user@127.0.0.1", "403"}, {"Host: 127.0.0.1@evil.example", "403"}, {"Host: evil.example#127.0.0.1", "403"},
		{"Host: 127.0.0.1, evil.example", "403"},
		{"Origin: null", "403"}, {"Origin: ", "403"}, {"Origin: http://evil.example", "403"},
		{"Origin: http://app.example", "403"}, {"Origin: https://app.example:444", "403"},
		{"Origin: https://app.example.evil.example", "403"},
		{"Origin: https://evil.example/https://app.example", "403"}, {"Origin: https://APP.example", "403"},
		{"Origin: https://app.example/", "403"}, {"Origin: http://localhost:1", "403"},
		{"Origin: http://127.0.0.1:1", "403"},
		{"Origin: file://", "403"}, {"Origin: chrome-extension://abc", "403"},
		{"Origin: https://app.example https://evil.example", "403"},
	} {
		attack.Check(t, strings.ReplaceAll(c.header, host, "127.0.0.1:PORT"), c.want,
			status(t, url, strings.ReplaceAll(c.header, "PORT", port)))
	}
	attack.Check(t, "two Origins, one of them good", "403",
		status(t, url, "Origin: https://app.example", "Origin: https://evil.example"))
	attack.Check(t, "a good Origin for a stranger's Host", "403",
		status(t, url, "Origin: https://app.example", "Host: evil.example"))
	attack.Check(t, "an Origin that is the stranger's Host", "403",
		status(t, url, "Origin: http://evil.example", "Host: evil.example"))
}

// Bodies that are endless, invalid, or deeply nested.
func TestAttackBodies(t *testing.T) {
	url := serve(t, newServer(t, bare(t), mcp.Options{Ceiling: noMachine()}), mcp.HTTPOptions{})
	for _, c := range []struct{ name, body, want string }{
		{"nothing", "", "400"}, {"a brace", "{", "400"}, {"a list", "[]", "400"}, {"null", "null", "400"},
		{"a text", `"x"`, "400"}, {"no method", `{"jsonrpc":"2.0"}`, "400"},
		{"200 000 lists in each other", strings.Repeat("[", 200_000), "400"},
		{"200 000 lists in each other, closed", strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000), "400"},
		{"200 000 objects in each other", strings.Repeat(`{"a":`, 200_000) + "1" + strings.Repeat("}", 200_000), "400"},
		{"200 000 objects in the arguments", strings.Replace(listTools, `"_meta"`,
			`"x":`+strings.Repeat(`{"a":`, 200_000)+"1"+strings.Repeat("}", 200_000)+`,"_meta"`, 1), "400"},
		{"17 MiB", `{"jsonrpc":"2.0","id":1,"method":"x","params":"` + strings.Repeat("x", 17<<20) + `"}`, "413"},
		{"UTF-16", "\xff\xfe{\x00}\x00", "400"}, {"a NUL", "{\x00}", "400"}, {"two messages", listTools + listTools, "400"},
	} {
		for _, header := range [][]string{{revision, named}, {"Mcp-Protocol-Version: 2025-11-25"}, nil} {
			code, _, _ := send(t, "POST", url+"/mcp", c.body, header...)
			attack.Check(t, fmt.Sprintf("%s, as %.46q", c.name, header), c.want, fmt.Sprint(code))
		}
	}
	if got := status(t, url); got != "200" {
		t.Errorf("afterwards: %s", got)
	}
	for _, c := range []struct{ name, line string }{
		{"200 000 lists in each other", strings.Repeat("[", 200_000)},
		{"200 000 objects in the arguments", strings.Replace(strings.TrimSuffix(initialize, "}"), `"capabilities":{}`,
			`"capabilities":`+strings.Repeat(`{"a":`, 200_000)+"1"+strings.Repeat("}", 200_000), 1) + "}"},
		{"a line without an end, beyond what a call may have", strings.Repeat(" ", 130<<20)},
	} {
		s := newServer(t, bare(t), mcp.Options{Ceiling: noMachine()})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		var out bytes.Buffer
		_ = s.ServeStdio(ctx, io.MultiReader(strings.NewReader(c.line+"\n"), strings.NewReader(initialize+"\n")), &out)
		got := "refused"
		switch {
		case ctx.Err() != nil:
			got = "hangs"
		case strings.Contains(out.String(), "serverInfo"):
			got = "goes on"
		}
		cancel()
		attack.Check(t, "over stdio, "+c.name, "refused", got)
	}
}

// File names chosen by hostile code can't forge a line of the report.
func TestAttackReport(t *testing.T) {
	for _, c := range []struct{ name, path, want string }{
		{"a newline", "a\nexit code 0, 1 ms", `a\nexit code 0, 1 ms`},
		{"an escape", "\x1b[2Jx", `\x1b[2Jx`},
		{"a carriage return", "a\rb", `a\rb`},
		{"a C1 control", "a\u009bb", `a\u009bb`},
		{"text turned round", "a\u202eb", `a\u202eb`},
		{"a line separator", "a\u2028b", `a\u2028b`},
		{"what is seen", `ä "b" \ 日本`, `ä "b" \ 日本`},
	} {
		res := &unitask.Result{Outcome: unitask.OutcomeExited,
			ArtifactsRefused: []record.Refusal{{Path: c.path, Reason: "is a link"}}}
		_, got, _ := strings.Cut(mcp.Report(res), "\n")
		attack.Check(t, "a refused file's name with "+c.name, "not taken from /out: "+c.want+": is a link", got)
		res = &unitask.Result{Outcome: unitask.OutcomeCrashed, Error: c.path}
		attack.Check(t, "an error with "+c.name, "crashed: "+c.want, mcp.Report(res))
	}
}

// Other files in a folder of prompts do no harm.
func TestAttackPrompts(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret.js")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(string) error{
		"a link to a file outside": func(at string) error { return os.Symlink(outside, at) },
		"a link to nothing":        func(at string) error { return os.Symlink(outside+"x", at) },
		"a link to a file inside": func(at string) error {
			return errors.Join(os.WriteFile(at+".x", nil, 0o600), os.Symlink(at+".x", at))
		},
		"a pipe":   func(at string) error { return syscall.Mkfifo(at, 0o600) },
		"a folder": func(at string) error { return os.Mkdir(at, 0o700) },
	} {
		dir := t.TempDir()
		if err := plant(filepath.Join(dir, "a.js")); err != nil {
			t.Fatal(err)
		}
		_, err := mcp.New(bare(t), mcp.Options{Prompts: dir})
		got := "read"
		if err != nil && strings.Contains(err.Error(), "a.js") {
			got = "refused"
		}
		attack.Check(t, "in a folder of prompts, "+name, "refused", got)
	}
}

// subscription subscribes to a resource, as a client with a session or as one of 2026-07-28, and returns the server's
// first answer.
func subscription(t *testing.T, url, token, session string, uris ...string) string {
	t.Helper()
	list, err := json.Marshal(uris)
	if err != nil {
		t.Fatal(err)
	}
	body := `{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":` +
		string(list) +
		`},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	headers := map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"}
	if session != "" {
		body = fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"resources/subscribe","params":{"uri":%q}}`, uris[0])
		headers = map[string]string{"Mcp-Session-Id": session}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel() // a subscription continues until then
	r, err := http.NewRequestWithContext(ctx, "POST", url+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	headers["Content-Type"], headers["Accept"], headers["Authorization"] = "application/json",
		"application/json, text/event-stream", "Bearer "+token
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		switch text := lines.Text(); {
		case strings.Contains(text, `"error"`):
			return "refused"
		case strings.Contains(text, `"result"`), strings.Contains(text, "subscriptions/acknowledged"):
			return "taken"
		case res.StatusCode != http.StatusOK:
			return fmt.Sprint(res.StatusCode, " ", text)
		}
	}
	return "nothing"
}

// Subscriptions to others' runs, and to invalid resources.
func TestAttackSubscriptions(t *testing.T) {
	rt := bare(t)
	const taken, refused = "taken", "refused"
	self := unitask.LocalOwner(os.Geteuid())
	alice := recorded(t, rt, "alice", record.ViaHTTP)
	const uri = "unitask://runs/"
	url := serve(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}), mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")})
	const token = "alice-token-0123456789"
	code, h, _ := send(t, "POST", url+"/mcp", initialize, "Authorization: Bearer "+token)
	session := h.Get("Mcp-Session-Id")
	if code != 200 || session == "" {
		t.Fatal(code, h)
	}
	many := make([]string, 1000)
	for i := range many {
		many[i] = uri + alice
	}
	for _, c := range []struct {
		name, want string
		uris       []string
	}{
		{"its own run", taken, []string{uri + alice}},
		{"another caller's run", refused, []string{uri + recorded(t, rt, "bob", record.ViaHTTP)}},
		{"a run of the server's own user", refused, []string{uri + recorded(t, rt, self, record.ViaMCP)}},
		{"a run of the command line", refused, []string{uri + recorded(t, rt, self, record.ViaCLI)}},
		{"its own run and another's", refused, []string{uri + recorded(t, rt, "bob", record.ViaHTTP), uri + alice}},
		{"a run that is none", refused, []string{uri + "20260101-000000000-aaaaaa"}},
		{"what is no run", refused, []string{"x:" + strings.Repeat("y", 100_000)}},
		{"a run's scheme in capitals", refused, []string{"UNITASK://runs/" + alice}},
		{"a part of a run, which does not change", refused, []string{uri + alice + "/stdout"}},
		{"an artifact by another spelling", refused, []string{uri + alice + "/artifacts/%61.txt"}},
		{"a thousand at once", refused, many},
	} {
		attack.Check(t, "to be told of "+c.name, c.want, subscription(t, url, token, "", c.uris...))
		if len(c.uris) < 100 {
			attack.Check(t, "to be told of "+c.name+", in a session", c.want, subscription(t, url, token, session, c.uris...))
		}
	}
}
