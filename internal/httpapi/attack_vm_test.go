package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/policy"
)

// ceiling returns the ceiling in a file's text.
func ceiling(t *testing.T, text string) *policy.Ceiling {
	t.Helper()
	c, err := policy.ParseCeiling("c.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// One caller tries to reach another's runs. An answer must not tell whether there is such a run.
func TestAttackRunTenants(t *testing.T) {
	a := newAPI(t, setup{vm: true, callers: []string{"alice", "mallory"},
		ceiling: ceiling(t, "allowNet = [\"free.invalid\"]\nask = [\"asked.invalid\"]\n")})
	alice, mallory := as("alice"), as("mallory")
	in := python("open('/out/a', 'w').write('secret')\nprint('secret')")
	with := append(headers{keyHeader, "same"}, alice...)
	ended := a.want(200, "POST", "/v1/runs", in, with...)["runId"].(string)
	asking := python(`import urllib.request
for host in "free", "asked":
    try:
        urllib.request.urlopen("http://%s.invalid/" % host)
    except Exception as e:
        print(host, e, flush=True)
`)
	asking["ask"] = []string{"free.invalid", "asked.invalid"}
	running := a.want(202, "POST", "/v1/runs?wait=false", asking, alice...)["runId"].(string)
	var open []any
	testwait.Until(t, "it asks", func() bool {
		open = a.want(200, "GET", "/v1/approvals", nil, alice...)["questions"].([]any)
		return len(open) == 1
	})
	answer := object{"host": "free.invalid:80", "verdict": "deny"}
	for _, c := range []struct {
		name, method, path string
		body               any
	}{
		{"her record", "GET", "", nil}, {"her result", "GET", "/result", nil}, {"her output", "GET", "/stdout", nil},
		{"her errors", "GET", "/stderr", nil}, {"her netlog", "GET", "/netlog", nil},
		{"her artifacts", "GET", "/artifacts", nil}, {"her artifact", "GET", "/artifacts/a", nil},
		{"her events", "GET", "/events", nil}, {"her end", "POST", "/cancel", nil},
		{"her answer", "POST", "/approvals", answer},
	} {
		none, want := a.send(c.method, "/v1/runs/20260101-000000000-aaaaaa"+c.path, c.body, mallory...)
		for _, id := range []string{ended, running} {
			res, text := a.send(c.method, "/v1/runs/"+id+c.path, c.body, mallory...)
			attack.Check(t, "another caller's run: "+c.name, "404, as for no run",
				map[bool]string{true: "404, as for no run", false: string(text)}[res.StatusCode == 404 &&
					none.StatusCode == 404 && string(text) == string(want)])
		}
	}
	for _, path := range []string{"/v1/runs", "/v1/approvals"} {
		_, text := a.send("GET", path, nil, mallory...)
		attack.Check(t, "another caller's runs in "+path, "false",
			fmt.Sprint(strings.Contains(string(text), ended[:8])))
	}
	own := a.want(200, "POST", "/v1/runs", python("print('own')"), append(headers{keyHeader, "same"}, mallory...)...)
	attack.Check(t, "another caller's key", "own\n", fmt.Sprint(own["stdout"]))
	res, _ := a.send("GET", "/v1/runs", nil)
	attack.Check(t, "runs without a token", "401 application/problem+json",
		fmt.Sprint(res.StatusCode, " ", res.Header.Get("Content-Type")))
	a.widening(t, running, open[0].(object), alice)
}

// widening has a caller answer its run's questions. It may allow what its ceiling allows without one.
func (a *api) widening(t *testing.T, id string, first object, alice headers) {
	at := "/v1/runs/" + id + "/approvals"
	if first["host"] != "free.invalid:80" || first["run"] != id {
		t.Fatalf("%v", first)
	}
	a.refused(409, "approval.none", "POST", at, object{"host": "other.free.invalid:80", "verdict": "deny"}, alice...)
	a.want(204, "POST", at, object{"host": "free.invalid:80", "verdict": "allow"}, alice...)
	var second object
	testwait.Until(t, "it asks again", func() bool {
		open := a.want(200, "GET", "/v1/approvals", nil, alice...)["questions"].([]any)
		if len(open) == 1 {
			second = open[0].(object)
		}
		return second["host"] == "asked.invalid:80"
	})
	for _, verdict := range []string{"once", "allow"} {
		yes := object{"host": "asked.invalid:80", "verdict": verdict}
		p := a.refused(403, "approval.forbidden", "POST", at, yes, alice...)
		attack.Check(t, "a caller allows what the ceiling asks its owner: "+verdict, "approval.forbidden",
			fmt.Sprint(p["code"]))
	}
	a.refused(422, "usage", "POST", at, object{"host": "asked.invalid:80", "verdict": "always"}, alice...)
	a.want(204, "POST", at, object{"host": "asked.invalid:80", "verdict": "deny"}, alice...)
	out := a.want(200, "GET", "/v1/runs/"+id+"/result?waitSeconds=50", nil, alice...)
	said := ""
	for _, one := range out["approvals"].([]any) {
		said += fmt.Sprint(one.(object)["host"], " ", one.(object)["verdict"], "\n")
	}
	attack.Check(t, "what the run was told", "free.invalid:80 allow\nasked.invalid:80 deny\n", said)
}

// A caller beyond its limit gets 429, which frees its key.
func TestAttackQueue(t *testing.T) {
	a := newAPI(t, setup{vm: true, most: 1})
	endless := python("import time\ntime.sleep(600)")
	first := a.want(202, "POST", "/v1/runs?wait=false", endless)["runId"].(string)
	for _, path := range []string{"/v1/runs", "/v1/runs?wait=false"} {
		res, text := a.send("POST", path, python("print(1)"), keyHeader, "key")
		var p Problem
		_ = json.Unmarshal(text, &p)
		attack.Check(t, "a run beyond a caller's limit: "+path, "429 busy true 1",
			fmt.Sprint(res.StatusCode, " ", p.Code, " ", p.Retryable, " ", res.Header.Get("Retry-After")))
	}
	a.want(200, "POST", "/v1/runs/"+first+"/cancel", nil)
	out := a.want(200, "POST", "/v1/runs", python("print(1)"), keyHeader, "key")
	attack.Check(t, "the same key afterwards", "1\n", fmt.Sprint(out["stdout"]))
	list := a.want(200, "GET", "/v1/runs", nil)["runs"].([]any)
	attack.Check(t, "runs after all that", "2", fmt.Sprint(len(list)))
	res := a.do("HEAD", "/v1/events", nil, nil)
	res.Body.Close()
	attack.Check(t, "a HEAD of an endless stream", "200", fmt.Sprint(res.StatusCode))
	if report := a.want(200, "GET", "/v1/doctor", nil); strings.Contains(fmt.Sprint(report), a.home) {
		t.Errorf("%v", report)
	}
}

// A client that reads nothing of a stream does not delay the run, and more events than are kept are dropped.
func TestAttackSlowReader(t *testing.T) {
	a := newAPI(t, setup{vm: true})
	state := a.want(202, "POST", "/v1/runs?wait=false", python(`import sys, time
for i in range(100):
    sys.stdout.write("x" * 40_000)
    sys.stdout.flush()
print("last")`))
	at := "/v1/runs/" + state["runId"].(string)
	conn, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET %s/events HTTP/1.1\r\nHost: %s\r\n\r\n", at,
		strings.TrimPrefix(a.url, "http://")); err != nil {
		t.Fatal(err)
	}
	out := a.want(200, "GET", at+"/result?waitSeconds=50", nil)
	attack.Check(t, "the end of a run whose events nobody reads", "exited", fmt.Sprint(out["outcome"]))
	attack.Check(t, "the result of a run with 4 MB of output", "524288 [stdout]",
		fmt.Sprint(len(out["stdout"].(string)), out["cut"]))
	res, text := a.send("GET", at+"/stdout", nil)
	attack.Check(t, "all of its output", "200 4000005", fmt.Sprint(res.StatusCode, len(text)))
	stream := a.do("GET", at+"/events", nil, nil)
	defer stream.Body.Close()
	from := bufio.NewScanner(stream.Body)
	from.Buffer(nil, 1<<20)
	lost := next(t, from)
	end, printed := until(t, from, "end")
	attack.Check(t, "the first event that is there", "lost", lost.kind)
	attack.Check(t, "the last event", "end", end.kind)
	if len(printed) > keptBytes || !strings.HasSuffix(printed, "last\n") {
		t.Errorf("%d bytes", len(printed))
	}
}

// Bodies that are too large, never end, or are no JSON get an error.
func TestAttackBodies(t *testing.T) {
	a := newAPI(t, setup{})
	code := func(n int) io.Reader {
		text, err := json.Marshal(object{"language": "python", "code": strings.Repeat("x", n)})
		if err != nil {
			t.Fatal(err)
		}
		return strings.NewReader(string(text))
	}
	for _, c := range []struct {
		name string
		body io.Reader
		want string
	}{
		{"code over its limit", code(9 << 20), "422 usage"}, {"17 MiB", code(17 << 20), "413 usage"},
		{"endless", io.MultiReader(strings.NewReader(`{"code": "`), endless{}), "413 usage"},
		{"deep", strings.NewReader(strings.Repeat("[", 1<<20)), "400 usage"},
		{"no JSON", strings.NewReader("{"), "400 usage"},
		{"two values", strings.NewReader("{}{}"), "400 usage"}, {"a list", strings.NewReader("[]"), "422 usage"},
		{"nothing", strings.NewReader(""), "400 usage"}, {"null", strings.NewReader("null"), "422 usage"},
		{"a member twice, in another case", strings.NewReader(`{"language":"python","code":"1","Code":"2"}`), "422 usage"},
		{"another tool's member", strings.NewReader(`{"language":"python","code":"1","session":"new"}`), "422 usage"},
		{"a language that is none", strings.NewReader(`{"language":"\u0000","code":"1"}`), "422 usage"},
	} {
		res, text := a.send("POST", "/v1/runs", c.body)
		var p Problem
		_ = json.Unmarshal(text, &p)
		attack.Check(t, "a body: "+c.name, c.want, fmt.Sprint(res.StatusCode, " ", p.Code))
		if len(text) > 2000 {
			t.Errorf("%s: %d bytes", c.name, len(text))
		}
	}
	for _, path := range []string{"/v1/../mcp", "/v1//runs", "/v1/runs/%2e%2e/x", "/v1/runs/..%2f..%2fetc/stdout",
		"/v1/runs/last", "/v1/runs/20/artifacts/%2e%2e%2fa", "/v1/runs/x/artifacts/..%2f..%2frun.json", "/v1/nothing"} {
		res, _ := a.send("GET", path, nil)
		attack.Check(t, "a path: "+path, "404 application/problem+json",
			fmt.Sprint(res.StatusCode, " ", res.Header.Get("Content-Type")))
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
