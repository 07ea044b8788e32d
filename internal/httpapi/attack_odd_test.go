package httpapi

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// odd are texts that decoders may not expect.
var odd = []string{"", "%00", "%2f", "..", "..%2f..%2fetc%2fpasswd", "%ff%fe", "-1", "0", "1e308", "NaN", "0x10", "1.5",
	"99999999999999999999999", "true", "null", "{}", "%0d%0aX-Evil:%201", "%E2%80%A8", strings.Repeat("a", 5000),
	strings.Repeat("%2f", 2000), "20200101-000000000-000000", "20200101-000000000-00000%2f"}

// oddBodies are bodies that are no requests, or odd ones.
func oddBodies() []string {
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	return []string{"", "null", "[]", "0", `"x"`, "{", "{}{}", "\xff", `{"a":` + deep + "}", strings.Repeat("[", 100_000),
		`{"language":"python","code":"\ud800"}`, `{"code":"x","code":"y","language":"js","language":"python\u0000"}`,
		`{"language":"python","code":"1","timeoutSeconds":1e400}`, `{"language":"python","code":"1","cpus":-0.0}`,
		`{"language":"python","code":"1","maxUploadBytes":9223372036854775808}`, `{"CODE":"1","language":"python"}`,
		`{"language":"python","code":"1","files":[{"path":"../x","content":"x"}]}`,
		`{"language":"python","code":"1","files":["/etc/passwd"]}`, `{"language":"python","code":"1","image":"../../x"}`,
		`{"language":"python","code":"1","kernel":"bsd"}`, `{"lifeSeconds":1e300}`, `{"count":1e30}`,
		`{"language":"python","code":"1","nodeArgs":["--inspect=0.0.0.0"],"env":{"A":"\u0000"}}`}
}

// Odd requests to each operation get an answer that tells what is wrong. None crashes the server or shows its paths.
func TestAttackOddRequests(t *testing.T) {
	a := newAPI(t, setup{callers: []string{"mallory"}})
	counts := map[string]int{}
	try := func(name, method, path, body string, with headers) {
		t.Helper()
		var from io.Reader
		if method != "GET" && method != "DELETE" {
			from = strings.NewReader(body)
		}
		req, err := http.NewRequestWithContext(t.Context(), method, a.url+path, from)
		if err != nil {
			return // no client can send it
		}
		for i := 0; i < len(with); i += 2 {
			req.Header.Set(with[i], with[i+1])
		}
		req.Header.Set("Content-Type", jsonType)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Errorf("%s: %s %.100s %.100q: %v", name, method, path, body, err)
			return
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil || strings.Contains(string(text), a.home) || res.Header.Get("X-Evil") != "" {
			t.Errorf("%s: %s %.100s %.100q: %v %.300s", name, method, path, body, err, text)
		}
		if counts[res.Status[:1]]++; res.StatusCode >= 500 {
			t.Errorf("%s: %s %.100s %.100q: %d %.300s", name, method, path, body, res.StatusCode, text)
		}
	}
	key := as("mallory")
	for name, op := range a.own.doc.operations {
		if name == "followCaller" || name == "getDoctor" { // does not end; takes long
			continue
		}
		for _, text := range odd {
			path := op.path
			for _, p := range op.Parameters {
				if p.In == "path" {
					path = strings.ReplaceAll(path, "{"+p.Name+"}", text)
				}
			}
			try(name, op.method, path, "0", key)
			at := strings.NewReplacer("{", "x", "}", "").Replace(op.path)
			for _, p := range op.Parameters {
				switch p.In {
				case "query":
					try(name, op.method, at+"?"+p.Name+"="+text, "0", key)
				case "header":
					if len(text) < 5000 {
						try(name, op.method, at, "0", append(key[:2:2], p.Name, text))
					}
				}
			}
		}
		for _, body := range oddBodies() {
			if op.path != "/v1/runs" && op.path != "/v1/sessions" || !strings.Contains(body, `"language"`) { // else it may run
				try(name, op.method, strings.NewReplacer("{", "20200101-000000000-000000x", "}", "").Replace(op.path), body, key)
			}
		}
	}
	attack.Check(t, "answers of status 5xx to odd requests", "0", fmt.Sprint(counts["5"]))
	t.Log(counts)
}
