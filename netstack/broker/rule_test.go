package broker

import (
	"net/http"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/httppath"
)

func TestDecide(t *testing.T) {
	allow := Rule{Name: "allow", Host: "a.example", Methods: []string{"GET", "POST"}, Path: "/v1/**"}
	deny := Rule{Name: "deny", Host: "*.example", Path: "/v1/admin/**", Deny: true}
	audited := func(r Rule) Rule { r.Audit = true; return r }
	other := func(r Rule) Rule { r.Set, r.Name, r.Remedy = 1, r.Name+" 1", "ask"; return r }
	narrow := Rule{Name: "narrow", Host: "a.example", Methods: []string{"GET"}, Path: "/v1/*"}
	for _, c := range []struct {
		name               string
		rules              []Rule
		host, method, path string
		want               decision
	}{
		{"no rule", nil, "a.example", "GET", "/", decision{allowed: true}},
		{"another host's rule", []Rule{allow}, "b.example", "DELETE", "/", decision{allowed: true}},
		{"allowed", []Rule{allow}, "a.example", "GET", "/v1/x/y", decision{allowed: true, rule: "allow"}},
		{"the folder itself", []Rule{allow}, "a.example", "GET", "/v1", decision{allowed: true, rule: "allow"}},
		{"HEAD is as good as GET", []Rule{allow}, "a.example", "HEAD", "/v1/x", decision{allowed: true, rule: "allow"}},
		{"another method", []Rule{allow}, "a.example", "DELETE", "/v1/x", decision{rule: "allow", reason: AllowedByNone}},
		{"another path", []Rule{allow}, "a.example", "GET", "/v2", decision{rule: "allow", reason: AllowedByNone}},
		{"a path that begins so", []Rule{allow}, "a.example", "GET", "/v1x", decision{rule: "allow", reason: AllowedByNone}},
		{"deny beats allow", []Rule{allow, deny}, "a.example", "GET", "/v1/admin/x",
			decision{rule: "deny", reason: DeniedByRule}},
		{"in whatever order", []Rule{deny, allow}, "a.example", "GET", "/v1/admin/x",
			decision{rule: "deny", reason: DeniedByRule}},
		{"deny alone allows the rest", []Rule{deny}, "a.example", "GET", "/v1/x", decision{allowed: true}},
		{"an audited deny", []Rule{allow, audited(deny)}, "a.example", "GET", "/v1/admin/x",
			decision{allowed: true, audit: true, rule: "deny", reason: DeniedByRule}},
		{"an audited deny does not allow", []Rule{allow, audited(deny)}, "a.example", "PUT", "/v1/admin/x",
			decision{rule: "allow", reason: AllowedByNone}},
		{"an audited allow", []Rule{audited(allow)}, "a.example", "PUT", "/x",
			decision{allowed: true, audit: true, rule: "allow", reason: AllowedByNone}},
		{"an audited allow that matches", []Rule{audited(allow)}, "a.example", "GET", "/v1",
			decision{allowed: true, rule: "allow"}},
		{"a path that is none", []Rule{allow}, "a.example", "GET", "/v1/../v2",
			decision{reason: "the path has a segment . or .. or an empty one, which servers read in different ways",
				remedy: "write it in the plain form"}},
		{"a path that is none, audited", []Rule{audited(allow), audited(deny)}, "a.example", "GET", "/v1/../v2",
			decision{allowed: true, audit: true,
				reason: "the path has a segment . or .. or an empty one, which servers read in different ways",
				remedy: "write it in the plain form"}},
		{"two rules", []Rule{allow, narrow}, "a.example", "GET", "/v2",
			decision{rule: "allow; narrow", reason: AllowedByNone}},
		{"two sets, both allow", []Rule{allow, other(narrow)}, "a.example", "GET", "/v1/x",
			decision{allowed: true, rule: "allow"}},
		{"the second set does not", []Rule{allow, other(narrow)}, "a.example", "POST", "/v1/x",
			decision{rule: "narrow 1", reason: AllowedByNone, remedy: "ask"}},
		{"the first set does not", []Rule{narrow, other(allow)}, "a.example", "POST", "/v1/x",
			decision{rule: "narrow", reason: AllowedByNone}},
		{"the second set denies", []Rule{allow, other(deny)}, "a.example", "GET", "/v1/admin/x",
			decision{rule: "deny 1", reason: DeniedByRule, remedy: "ask"}},
		{"the second set is about another host", []Rule{allow, other(Rule{Name: "b", Host: "b.example", Path: "/x"})},
			"a.example", "GET", "/v1/x", decision{allowed: true, rule: "allow"}},
		{"only the second set is about the host", []Rule{allow, other(Rule{Name: "b", Host: "b.example", Path: "/x"})},
			"b.example", "GET", "/v1/x", decision{rule: "b 1", reason: AllowedByNone, remedy: "ask"}},
		{"the second set audits", []Rule{allow, other(audited(narrow))}, "a.example", "POST", "/v1/x",
			decision{allowed: true, audit: true, rule: "narrow 1", reason: AllowedByNone}},
		{"a path that is none, to a host without rules", []Rule{allow}, "b.example", "GET", "/v1/../v2",
			decision{allowed: true}},
	} {
		if got := decide(c.rules, c.host, c.method, c.path); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// Paths that some servers take for /admin, and others do not, under a rule that allows everything below /public.
func TestAttackPaths(t *testing.T) {
	rules := []Rule{{Name: "public", Host: "a.example", Path: "/public/**"},
		{Name: "no admin", Host: "a.example", Path: "/public/admin/**", Deny: true}}
	for _, path := range []string{"/public/../admin", "/public/./admin", "/public//admin", "//public/admin",
		"/public/%2e%2e/admin", "/public/%2E./admin", "/public/..%2fadmin", "/public/%2fadmin", "/public%2fadmin",
		"/public/..%5cadmin", `/public\admin`, "/public/%252e%252e/admin", "/public/%25%32%66admin", "/public;/admin",
		"/public/admin;x=1", "/public/%3badmin", "/public/admin%00", "/public/admin%0a", "/public/ad%ffmin",
		"/public/ad%c0%aemin", "/public/admin%", "/public/admin%2", "/public/admin%zz", "/public/%61dmin", "/public/admin",
		"/public/admin/", "/public/%61%64%6d%69%6e/x", "/admin", "/Public/x", "public/x", "", "*",
		"/public/x?/../admin", "/public/x#/../admin", "/public/a b", "/" + strings.Repeat("a", httppath.Max)} {
		got := "refused"
		if decide(rules, "a.example", "GET", path).allowed {
			got = "allowed"
		}
		attack.Check(t, "a path under rules: "+path[:min(len(path), 40)], "refused", got)
	}
	for _, path := range []string{"/public/", "/public/x", "/public/x/y.html", "/public/a%20b", "/public/%C3%A9",
		"/public/adminx", "/public/x=1,2:3@4!$&'()*+"} {
		if d := decide(rules, "a.example", "GET", path); !d.allowed {
			t.Errorf("%s: %+v", path, d)
		}
	}
}

func TestRules(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		o, _ := recorder(t, originConfig{})
		r := newRig(t, o, Config{Rules: []Rule{{Name: "read", Host: host, Methods: []string{"GET"}, Path: "/repos/acme/*"},
			{Name: "no hooks", Host: host, Path: "/repos/acme/hooks", Deny: true}}})
		c, at := r.client(h2), "https://"+host
		for _, q := range []struct {
			method, path string
			header       http.Header
			status       int
			text         string
		}{
			{"GET", "/repos/acme/x", nil, 200, "ok"},
			{"HEAD", "/repos/acme/x", nil, 200, ""},
			{"GET", "/repos/acme/x?page=2", nil, 200, "ok"},
			{"POST", "/repos/acme/x", nil, 403, "POST api.example.com/repos/acme/x: no rule allows this method and path (read)"},
			{"GET", "/repos/other/x", nil, 403, "no rule allows"},
			{"GET", "/repos/acme/hooks", nil, 403, "the rule denies it (no hooks)"},
			{"GET", "/repos/acme/%68ooks", nil, 403, "the rule denies it"},
			{"GET", "/repos/acme/..%2fother", nil, 403, "which servers read in different ways"},
			{"GET", "/repos/acme/x", http.Header{"X-Http-Method-Override": {"DELETE"}}, 403, "X-Http-Method-Override"},
			{"GET", "/repos/acme/x", http.Header{"X-Original-Url": {"/admin"}}, 403, "X-Original-Url"},
		} {
			before := len(o.got())
			res, text := do(t, c, q.method, at+q.path, q.header, "")
			if res.StatusCode != q.status || !strings.Contains(text, q.text) {
				t.Errorf("%s %s: %d %q", q.method, q.path, res.StatusCode, text)
			}
			if reached := len(o.got()) > before; reached != (q.status == 200) {
				t.Errorf("%s %s: reached the server: %v", q.method, q.path, reached)
			}
		}
		// Host is the connection's, in HTTP/2 too.
		req, _ := http.NewRequest("GET", at+"/repos/acme/x", nil)
		req.Host = "front.example.com"
		res, err := c.Do(req)
		if err != nil || res.StatusCode != http.StatusMisdirectedRequest {
			t.Fatalf("%v %v", res, err)
		}
		res.Body.Close()
	})
}
