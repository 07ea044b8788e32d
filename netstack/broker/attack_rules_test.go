package broker

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/unitask/unitask/internal/attack"
)

// attacked are the rules of the tables below: GET of public paths is allowed, except the administrator's, and POST of
// items.
var attacked = []Rule{
	{Name: "GET api.example.com/public/**", Host: host, Methods: []string{"GET"}, Path: "/public/**",
		Remedy: "ask for REQUEST"},
	{Name: "POST api.example.com/api/*/items", Host: host, Methods: []string{"POST"}, Path: "/api/*/items"},
	{Name: "deny * api.example.com/public/admin/**", Host: host, Path: "/public/admin/**", Deny: true},
}

// since returns the latest requests at a server, methods and targets.
func since(o *origin, before int) (got string) {
	for _, one := range o.got()[before:] {
		_, one, _ = strings.Cut(one, " ")
		got += " " + strings.Replace(one, host, "", 1)
	}
	return got
}

type attackRulesRow struct{ name, say, want string }

// attackRulesRows are the cases of TestAttackRules.
func attackRulesRows(end string, with func(line string, fields ...string) string) []attackRulesRow {
	return append([]attackRulesRow{
		{"what is allowed", "GET /public/x" + end, "200 GET /public/x"},
		{"the folder itself", "GET /public" + end, "200 GET /public"},
		{"its head", "HEAD /public/x" + end, "200 HEAD /public/x"},
		{"another path", "GET /private" + end, "403"},
		{"another method", "DELETE /public/x" + end, "403"},
		{"a method in lower case", "get /public/x" + end, "403"},
		{"a method of one's own", "GETX /public/x" + end, "403"},
		{"two blanks", "GET  /private" + end, "400"},
		{"a tab", "GET\t/private" + end, "400"},
		{"no path", "GET" + end, "400"},
		{"an asterisk", "GET *" + end, "403"},
		{"OPTIONS of all", "OPTIONS *" + end, "403"},
		{"no slash", "GET public/x" + end, "400"},
		{"a query alone", "GET ?/public/x" + end, "400"},
		{"what a * stands for", "POST /api/v1/items" + end, "200 POST /api/v1/items"},
		{"a slash behind it", "POST /api/v1/items/" + end, "403"},
		{"two for a *", "POST /api/v1/x/items" + end, "403"},
		{"an encoded slash for a *", "POST /api/v1%2Fx/items" + end, "403"},
		{"another rule's method", "POST /public/x" + end, "403"},
		{"what is denied", "GET /public/admin" + end, "403"},
		{"with a slash", "GET /public/admin/" + end, "403"},
		{"below it", "GET /public/admin/x" + end, "403"},
		{"its name encoded", "GET /public/%61dmin" + end, "403"},
		{"its name encoded twice", "GET /public/%2561dmin" + end, "403"},
		{"its name in upper case", "GET /public/ADMIN" + end, "403"},
		{"its name with a dot", "GET /public/admin./x" + end, "403"},
		{"its name with a blank", "GET /public/admin%20" + end, "403"},
		{"its name with a parameter", "GET /public/admin;x=1" + end, "403"},
		{"a parameter before it", "GET /public;x/admin" + end, "403"},
		{"an encoded semicolon", "GET /public/admin%3Bx" + end, "403"},
		{"its name with NUL", "GET /public/admin%00" + end, "403"},
		{"its name with a line's end", "GET /public/admin%0d%0a" + end, "403"},
		{"its name with a tab", "GET /public/admin%09" + end, "403"},
		{"a dot segment", "GET /public/./admin" + end, "403"},
		{"two slashes", "GET /public//admin" + end, "403"},
		{"up and down", "GET /public/x/../admin" + end, "403"},
		{"out", "GET /public/../private" + end, "403"},
		{"out, encoded", "GET /public/%2e%2e/private" + end, "403"},
		{"out, half encoded", "GET /public/.%2e/private" + end, "403"},
		{"out, with its slash encoded", "GET /public/..%2fprivate" + end, "403"},
		{"out, with a backslash", "GET /public/..\\private" + end, "403"},
		{"out, with an encoded backslash", "GET /public/..%5cprivate" + end, "403"},
		{"out, encoded twice", "GET /public/%252e%252e/private" + end, "403"},
		{"out, overlong", "GET /public/%c0%ae%c0%ae/private" + end, "403"},
		{"out, by %u", "GET /public/%u002e%u002e/private" + end, "400"},
		{"a percent sign alone", "GET /public/%" + end, "400"},
		{"not UTF-8", "GET /public/%ff" + end, "403"},
		{"a path in the query", "GET /public/x?/../../private" + end, "200 GET /public/x?/../../private"},
		{"a path in the fragment", "GET /public/x#/../../private" + end, "403"},
		{"an authority in the path", "GET //evil.example/public/x" + end, "403"},
		{"upper case of what is allowed", "GET /PUBLIC/x" + end, "403"},
		{"a long path", "GET /public/" + strings.Repeat("x", 9<<10) + end, "403"},
		{"the absolute form", "GET https://" + host + "/public/x" + end, "200 GET /public/x"},
		{"the absolute form of another path", "GET https://" + host + "/private" + end, "403"},
	}, moreAttackRulesRows(end, with)...)
}

// moreAttackRulesRows are the other half.
func moreAttackRulesRows(end string, with func(line string, fields ...string) string) []attackRulesRow {
	return []attackRulesRow{
		{"the absolute form with a user", "GET https://x@" + host + "/private" + end, "403"},
		{"the absolute form, no path", "GET https://" + host + end, "403"},
		{"the absolute form of another host", "GET https://evil.example/public/x" + end, "421"},
		{"another host", "GET /public/x HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", "421"},
		{"CONNECT", "CONNECT " + host + ":443" + end, "403"},
		{"CONNECT with a path", "CONNECT /public/x" + end, "403"},
		{"HTTP/1.0", "GET /private HTTP/1.0\r\nHost: " + host + "\r\n\r\n", "403"},
		{"HTTP/0.9", "GET /private\r\n\r\n", "400"},
		{"ends of lines without CR", "GET /private HTTP/1.1\nHost: " + host + "\nConnection: close\n\n", "403"},
		{"a CR in the line", "GET /public/x\r/private" + end, "400"},
		{"a method in a field", with("GET /public/x", "X-HTTP-Method-Override: DELETE"), "403"},
		{"in a field as CGI has it", with("GET /public/x", "X_HTTP_Method_Override: DELETE"), "403"},
		{"in another field", with("POST /api/v1/items", "X-Method-Override: PUT"), "403"},
		{"a path in a field", with("GET /public/x", "X-Original-URL: /private"), "403"},
		{"a path in another field", with("GET /public/x", "X-Rewrite-URL: /private"), "403"},
		{"a method in the query", "POST /api/v1/items?_method=DELETE" + end, "403"},
		{"in the query, encoded", "POST /api/v1/items?%5Fmethod=DELETE" + end, "403"},
		{"in the query, behind a semicolon", "POST /api/v1/items?a=b;_method=DELETE" + end, "403"},
		{"in the query, in upper case", "POST /api/v1/items?_METHOD=DELETE" + end, "403"},
		{"in the query, as PHP spells it", "POST /api/v1/items?.method=DELETE" + end, "403"},
		{"in the query, with a bracket", "POST /api/v1/items?[method=DELETE" + end, "403"},
		{"in the query, cut by NUL", "POST /api/v1/items?_method%00x=DELETE" + end, "403"},
		{"in the query, behind a blank", "POST /api/v1/items?%20_method=DELETE" + end, "403"},
		{"in the query, as Google's servers have it", "POST /api/v1/items?$httpMethod=DELETE" + end, "403"},
		{"a field in the query, as Google's servers have it",
			"POST /api/v1/items?%24httpHeaders=x-http-method-override:DELETE" + end, "403"},
		{"in the query, malformed behind NUL", "POST /api/v1/items?_method%00%zz=DELETE" + end, "403"},
		{"in the query, by another name", "POST /api/v1/items?_HttpMethod=PATCH" + end, "403"},
		{"in a field with dots", with("GET /public/x", "X.Http.Method.Override: DELETE"), "403"},
		{"in a field with other signs", with("GET /public/x", "X!HTTP~Method'Override: DELETE"), "403"},
		{"a malformed value in the query", "POST /api/v1/items?a=%zz" + end, "200 POST /api/v1/items?a=%zz"},
		{"what only ends so in the query", "POST /api/v1/items?my_method=DELETE&httpMethod=x" + end,
			"200 POST /api/v1/items?my_method=DELETE&httpMethod=x"},
		{"a path in a field of CGI's", with("GET /public/x", "PATH_INFO: /private"), "403"},
		{"where a path begins in a field of CGI's", with("GET /public/x", "Script-Name: /public"), "403"},
		{"a path in a field of a proxy's", with("GET /public/x", "X-Forwarded-Uri: /private"), "403"},
		{"a path's begin in a field of a proxy's", with("GET /public/x", "X-Forwarded-Prefix: /private"), "403"},
		{"a path in a field of Azure's", with("GET /public/x", "X-WAWS-Unencoded-URL: /private"), "403"},
		{"a method in a field of a proxy's", with("GET /public/x", "X-Original-Method: DELETE"), "403"},
		{"its name in another case of Unicode's", "GET /public/adm\u0131n" + end, "403"},
		{"two lengths", "POST /api/v1/items HTTP/1.1\r\nHost: " + host +
			"\r\nContent-Length: 0\r\nContent-Length: 30\r\n\r\nGET /private" + end, "400"},
		{"two equal lengths", "POST /api/v1/items HTTP/1.1\r\nHost: " + host +
			"\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nabGET /private" + end, "200 POST /api/v1/items, then 403"},
		{"a signed length", "POST /api/v1/items HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: +2\r\n\r\nab" + end, "400"},
		{"a blank before the colon", "POST /api/v1/items HTTP/1.1\r\nHost: " + host +
			"\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\nGET /private" + end, "400"},
		{"an odd transfer encoding", "POST /api/v1/items HTTP/1.1\r\nHost: " + host +
			"\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\nGET /private" + end, "501"},
		{"chunked twice", "POST /api/v1/items HTTP/1.1\r\nHost: " + host +
			"\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\nGET /private" + end, "501"},
		{"a folded field", "GET /public/x HTTP/1.1\r\nHost: " + host +
			"\r\nX-A: b\r\n X-Original-Url: /private\r\nConnection: close\r\n\r\n", "200 GET /public/x"},
		{"two hosts", "GET /public/x HTTP/1.1\r\nHost: " + host + "\r\nHost: evil.example\r\n\r\n", "400"},
		{"no host", "GET /public/x HTTP/1.1\r\nConnection: close\r\n\r\n", "400"},
		{"a field that Connection takes away", with("GET /public/x", "Connection: X-Original-Url",
			"X-Original-Url: /private"), "403"},
		{"a second request", "GET /public/x HTTP/1.1\r\nHost: " + host + "\r\n\r\nGET /private" + end,
			"200 GET /public/x, then 403"},
		{"a second request behind a length", "POST /api/v1/items HTTP/1.1\r\nHost: " + host +
			"\r\nContent-Length: 2\r\n\r\nabGET /private" + end, "200 POST /api/v1/items, then 403"},
		{"a request in the chunks of two framings", "POST /api/v1/items HTTP/1.1\r\nHost: " + host +
			"\r\nContent-Length: 200\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /private" + end,
			"200 POST /api/v1/items, then 403"},
		{"a request behind a body that GET has", "GET /public/x HTTP/1.1\r\nHost: " + host +
			"\r\nContent-Length: 5\r\n\r\nabcdeDELETE /public/x" + end, "200 GET /public/x, then 403"},
		{"WebSocket elsewhere", with("GET /private", "Connection: Upgrade", "Upgrade: websocket"), "403"},
		{"HTTP/2 in the clear", with("GET /private", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c",
			"HTTP2-Settings: AAMAAABk"), "403"},
		{"a preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "421"},
	}
}

// Requests in HTTP/1 that try to bypass rules by method and path.
func TestAttackRules(t *testing.T) {
	o, saw := recorder(t, originConfig{http1: true})
	r := newRig(t, o, Config{Rules: attacked})
	const end = " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
	with := func(line string, fields ...string) string {
		return line + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n" + strings.Join(fields, "\r\n") + "\r\n\r\n"
	}
	for _, c := range attackRulesRows(end, with) {
		before := len(o.got())
		answer := r.say(c.say)
		_, got, spoke := strings.Cut(answer, " ")
		got, _, _ = strings.Cut(got, " ")
		if !spoke {
			got = "closed"
		}
		got += since(o, before)
		if _, second, ok := strings.Cut(answer[min(1, len(answer)):], "HTTP/1.1 "); ok {
			second, _, _ = strings.Cut(second, " ")
			got += ", then " + second
		}
		attack.Check(t, "rules: "+c.name, c.want, got)
	}
	// In a trailer such a field is removed.
	r.say("POST /api/v1/items HTTP/1.1\r\nHost: " + host +
		"\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Http-Method-Override, X-Ok\r\n\r\n1\r\nx\r\n" +
		"0\r\n" +
		"X-Http-Method-Override: DELETE\r\nX-Ok: 1\r\n\r\n")
	attack.Check(t, "rules: a method in a trailer", "map[X-Ok:[1]]", fmt.Sprint(saw().Trailer))
	// A malformed body is detected before or after the server has its beginning.
	for _, c := range []struct{ name, body string }{
		{"a chunk of no number", "0x2\r\nab\r\n0\r\n\r\n"},
		{"a chunk's extension with a line", "2;a=\n"},
		{"a chunk longer than it says", "1\r\nab\r\n0\r\n\r\n"},
		{"a chunk of a negative number", "-1\r\nab\r\n0\r\n\r\n"},
		{"a chunk of more than 64 bits", "10000000000000002\r\nab\r\n0\r\n\r\n"},
	} {
		before := len(o.got())
		answer := r.say("POST /api/v1/items HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\n\r\n" + c.body +
			"GET /private" + end)
		got := "refused"
		if strings.Contains(answer, " 200 ") || strings.Contains(since(o, before), "GET") {
			got = answer + since(o, before)
		}
		attack.Check(t, "rules: "+c.name, "refused", got)
	}
}

// The same in HTTP/2, whose path is a field.
func TestAttackRulesHTTP2(t *testing.T) {
	o, _ := recorder(t, originConfig{})
	r := newRig(t, o, Config{Rules: attacked})
	with := func(method, path string, more ...string) []string {
		return append([]string{":method", method, ":scheme", "https", ":authority", host, ":path", path}, more...)
	}
	for _, c := range []struct {
		name   string
		fields []string
		want   string
	}{
		{"what is allowed", with("GET", "/public/x"), "200 GET /public/x"},
		{"another path", with("GET", "/private"), "403"},
		{"another method", with("DELETE", "/public/x"), "403"},
		{"a method in lower case", with("get", "/public/x"), "403"},
		{"a request line as method", with("GET /private HTTP/1.1", "/public/x"), "403"},
		{"what is denied", with("GET", "/public/admin"), "403"},
		{"what is denied, encoded", with("GET", "/public/%61dmin"), "403"},
		{"out", with("GET", "/public/../private"), "403"},
		{"out, encoded", with("GET", "/public/%2e%2e/private"), "403"},
		{"out, with a backslash", with("GET", `/public/..\private`), "403"},
		{"two slashes", with("GET", "//private"), "403"},
		{"no path", with("GET", ""), "reset"},
		{"no slash", with("GET", "public/x"), "reset"},
		{"an asterisk", with("OPTIONS", "*"), "403"},
		{"a whole address as path", with("GET", "https://"+host+"/private"), "403"},
		{"a whole address of another host", with("GET", "https://evil.example/public/x"), "200 GET /public/x"},
		{"a line's end in the path", with("GET", "/public/x\r\n"), "reset"},
		{"a blank in the path", with("GET", "/public/x /../../private"), "403"},
		{"a fragment in the path", with("GET", "/public/x#/../../private"), "403"},
		{"another authority", []string{":method", "GET", ":scheme", "https", ":authority", "evil.example", ":path",
			"/public/x"}, "421"},
		{"the other scheme", []string{":method", "GET", ":scheme", "http", ":authority", host, ":path", "/private"}, "403"},
		{"two paths", with("GET", "/public/x", ":path", "/private"), "reset"},
		{"two methods", with("GET", "/public/x", ":method", "DELETE"), "reset"},
		{"CONNECT", []string{":method", "CONNECT", ":authority", host}, "403"},
		{"CONNECT for WebSocket", []string{":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority",
			host, ":path", "/public/x"}, "reset"},
		{"a method in a field", with("GET", "/public/x", "x-http-method-override", "DELETE"), "403"},
		{"a path in a field", with("GET", "/public/x", "x-original-url", "/private"), "403"},
		{"a method in the query", with("POST", "/api/v1/items?_method=DELETE"), "403"},
	} {
		f := newFrames(t, r)
		before := len(o.got())
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(c.fields...), EndStream: true,
			EndHeaders: true}); err != nil {
			t.Fatal(c.name, err)
		}
		got := f.answer(1)
		attack.Check(t, "rules, HTTP/2: "+c.name, c.want, got+since(o, before))
	}
}

// A refusal says which rule applied, and how to ask for more. The connection continues, and the log has the refusal.
// Rules in audit mode refuse nothing, and are in the log, too.
func TestRefusal(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		o, _ := recorder(t, originConfig{})
		r := newRig(t, o, Config{Rules: attacked})
		c, at := r.client(h2), "https://"+host
		for i, a := range []struct {
			method, path, want, rule, reason string
		}{
			{"PUT", "/public/x", "no rule allows this method and path (" + attacked[0].Name + "; " + attacked[1].Name +
				"): ask for PUT " + host + "/public/x", attacked[0].Name + "; " + attacked[1].Name, "no rule allows"},
			{"GET", "/public/admin", "the rule denies it (" + attacked[2].Name + ")", attacked[2].Name, "the rule denies it"},
			{"GET", "/public/%2e", "the path encodes a slash, a dot, a percent sign", "", "the path encodes"},
		} {
			res, text := do(t, c, a.method, at+a.path, nil, "")
			if res.StatusCode != http.StatusForbidden || !strings.Contains(text, a.want) ||
				!strings.Contains(res.Header.Get(refusedField), a.reason) {
				t.Errorf("%s %s: %d %q %v", a.method, a.path, res.StatusCode, text, res.Header)
			}
			if x := r.logged(i + 1); x.Allowed || x.Status != 403 || x.Rule != a.rule || !strings.Contains(x.Reason, a.reason) ||
				x.Method != a.method || x.Path != a.path {
				t.Errorf("%+v", x)
			}
		}
		if res, _ := do(t, c, "GET", at+"/public/x", nil, ""); res.StatusCode != 200 || r.logged(4).Rule != attacked[0].Name {
			t.Errorf("afterwards: %d %+v", res.StatusCode, r.last())
		}
		if r.dialed != 1 {
			t.Errorf("%d connections", r.dialed)
		}

		var audited []Rule
		for _, rule := range attacked {
			rule.Audit, rule.Name = true, "audit "+rule.Name
			audited = append(audited, rule)
		}
		r = newRig(t, o, Config{Rules: audited})
		c = r.client(h2)
		for i, a := range []struct{ method, path, field, rule, reason string }{
			{"PUT", "/public/x", "X-Ok", audited[0].Name + "; " + audited[1].Name, "no rule allows this method and path"},
			{"GET", "/public/admin", "X-Ok", audited[2].Name, "the rule denies it"},
			{"GET", "/public/%2e", "X-Ok", "", "the path encodes"},
			{"GET", "/public/x", "X-Ok", audited[0].Name, ""},
			{"GET", "/public/x", "X-Http-Method-Override", audited[0].Name, "X-Http-Method-Override on the request"},
		} {
			res, text := do(t, c, a.method, at+a.path, http.Header{a.field: {"1"}}, "")
			if res.StatusCode != 200 {
				t.Errorf("%s %s: %d %q", a.method, a.path, res.StatusCode, text)
			}
			if x := r.logged(i + 1); !x.Allowed || x.Rule != a.rule || !strings.HasPrefix(x.Reason, a.reason) ||
				(x.Reason == "") != (a.reason == "") {
				t.Errorf("%+v", x)
			}
		}
	})
}
