package broker

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// The value replaces the placeholder, in the encoding of its place.
func TestPutIn(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		o, saw := recorder(t, originConfig{})
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: key, Hosts: []Host{host}, In: everywhere},
			{Name: "TOKEN", Value: plain, Hosts: []Host{"*.example.com"}, In: everywhere}}})
		c, p, q := r.client(h2), r.Placeholder("KEY"), r.Placeholder("TOKEN")
		if len(p) != len(key) || len(q) != len(plain) || p == q || r.Placeholder("none") != "" {
			t.Fatalf("placeholders %q %q", p, q)
		}
		at := "https://" + host
		do(t, c, "GET", at+"/v1/"+p+"/x?a=1&key="+p+"&t="+q,
			http.Header{"Authorization": {"Bearer " + p}, "X-Two": {q + " and " + p, "none"}, "Cookie": {"s=" + q}}, "")
		s := saw()
		if s.URL != "/v1/"+url.PathEscape(key)+"/x?a=1&key="+url.QueryEscape(key)+"&t="+plain ||
			s.Header.Get("Authorization") != "Bearer "+key ||
			s.Header["X-Two"][0] != plain+" and "+key || s.Header["X-Two"][1] != "none" || s.Header.Get("Cookie") != "s="+plain {
			t.Errorf("%+v", s)
		}
		if x := r.last(); !x.Allowed || strings.Join(x.Secrets, " ") != "KEY TOKEN" || x.Status != 200 ||
			strings.Contains(fmt.Sprint(x), plain) || x.Path != "/v1/"+p+"/x" {
			t.Errorf("%+v", x)
		}
		basic := func(s string) http.Header {
			return http.Header{"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte(s))}}
		}
		do(t, c, "GET", at+"/", basic("user:"+p), "")
		if got := saw().Header.Get("Authorization"); got != basic("user:"+key).Get("Authorization") {
			t.Errorf("Basic: %q", got)
		}
		for kind, want := range map[string]string{
			"application/json":                  `{"key":"` + string(jsonText(key)) + `","t":"` + plain + `"}`,
			"application/vnd.api+json; x=1":     `{"key":"` + string(jsonText(key)) + `","t":"` + plain + `"}`,
			"application/x-www-form-urlencoded": `{"key":"` + url.QueryEscape(key) + `","t":"` + plain + `"}`,
			"text/plain":                        `{"key":"` + key + `","t":"` + plain + `"}`,
		} {
			do(t, c, "POST", at+"/", http.Header{"Content-Type": {kind}}, `{"key":"`+p+`","t":"`+q+`"}`)
			if s := saw(); s.Body != want || s.Length >= 0 && s.Length != int64(len(want)) {
				t.Errorf("%s: %q (%d), want %q", kind, s.Body, s.Length, want)
			}
		}
		// A value without encoding keeps the body's length known.
		one := newRig(t, o, Config{Secrets: []Secret{{Name: "TOKEN", Value: plain, Hosts: []Host{host},
			In: []Place{InBody}}}})
		body := strings.Repeat("x", 100_000) + one.Placeholder("TOKEN")
		do(t, one.client(h2), "POST", at+"/", nil, body)
		if s := saw(); s.Length != int64(len(body)) || !strings.HasSuffix(s.Body, plain) {
			t.Errorf("length %d of %d", s.Length, len(body))
		}
	})
}

// Placeholders in trailers are replaced, and the trailers reach the other side.
func TestTrailers(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		var got http.Header
		o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Answer")
			_, _ = io.Copy(io.Discard, r.Body)
			got = r.Trailer.Clone()
			fmt.Fprint(w, "body")
			w.Header().Set("X-Answer", "the key is "+plain)
		})
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "TOKEN", Value: plain, Hosts: []Host{host}}}})
		req, _ := http.NewRequest("POST", "https://"+host+"/", io.NopCloser(strings.NewReader("body")))
		req.Trailer = http.Header{"X-Token": {r.Placeholder("TOKEN")}}
		res, err := r.client(h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(res.Body)
		res.Body.Close()
		if got.Get("X-Token") != plain {
			t.Errorf("the server has %v", got)
		}
		if v := res.Trailer.Get("X-Answer"); v != "the key is "+r.Placeholder("TOKEN") {
			t.Errorf("the guest has %q", v)
		}
	})
}

func percents(s string) string { return "%" + strings.ReplaceAll(fmt.Sprintf("% x", s), " ", "%") }

func escapes(s string) (out string) {
	for _, c := range []byte(s) {
		out += fmt.Sprintf("\\u%04x", c)
	}
	return out
}

// A placeholder in a place without replacement is refused with an explanation, and the connection continues.
func TestAttackMisdirected(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		o, saw := recorder(t, originConfig{})
		secrets := []Secret{{Name: "MINE", Value: plain, Hosts: []Host{host}, Headers: []string{"authorization"}},
			{Name: "OTHERS", Value: key, Hosts: []Host{"other.example.com"}, In: everywhere}}
		r := newRig(t, o, Config{Secrets: secrets})
		c, at := r.client(h2), "https://"+host+"/"
		mine, others := r.Placeholder("MINE"), r.Placeholder("OTHERS")
		long := strings.Repeat("x", 300_000)
		for name, q := range map[string]struct {
			method, at string
			header     http.Header
			body, want string
		}{
			"in another field":          {"GET", at, http.Header{"X-Key": {mine}}, "", "MINE is in the header"},
			"in the query":              {"GET", at + "?k=" + mine, nil, "", "MINE is in the query"},
			"in the path":               {"GET", at + mine, nil, "", "MINE is in the path"},
			"in the body":               {"POST", at, nil, "k=" + mine, "MINE is in the body"},
			"at the end of a long body": {"POST", at, nil, long + mine, "MINE is in the body"},
			"another host's": {"GET", at, http.Header{"Authorization": {"Bearer " + others}}, "",
				"OTHERS is in the header of a request to " + host + "; the secret is for other.example.com"},
			"another host's, Basic": {"GET", at, http.Header{"Authorization": {"Basic " +
				base64.StdEncoding.EncodeToString([]byte("u:"+others))}}, "", "OTHERS is in the header"},
			"in base64": {"POST", at, nil,
				`{"x":"` + base64.StdEncoding.EncodeToString([]byte("a"+others+"b")) + `"}`, "OTHERS is in the body"},
			"in base64 for URLs": {"GET", at + "?x=" + base64.RawURLEncoding.EncodeToString([]byte("ab"+others)), nil,
				"", "OTHERS is in the query"},
			"in hexadecimal":             {"POST", at, nil, hex.EncodeToString([]byte(others)), "OTHERS is in the body"},
			"in hexadecimal, upper case": {"POST", at, nil, fmt.Sprintf("%X", others), "OTHERS is in the body"},
		} {
			before := saw().Count
			res, text := do(t, c, q.method, q.at, q.header, q.body)
			if !strings.Contains(text, q.want) || res.Header.Get(refusedField) == "" {
				t.Errorf("%s: %d %q", name, res.StatusCode, text)
			}
			got := fmt.Sprint(res.StatusCode, ", reached the server ", saw().Count != before)
			attack.Check(t, fmt.Sprintf("a placeholder %s, HTTP/2 %t", name, h2), "403, reached the server false", got)
		}
		// In another encoding it is sent, and is worthless.
		for name, text := range map[string]string{
			"with percents": percents(others), "with JSON's escapes": escapes(others), "in upper case": strings.ToUpper(others),
		} {
			do(t, c, "POST", at+url.PathEscape(text)+"?x="+url.QueryEscape(text), http.Header{"Authorization": {text}}, text)
			got := fmt.Sprint(strings.Contains(strings.ToLower(fmt.Sprint(saw())), strings.ToLower(key)))
			attack.Check(t, fmt.Sprintf("a placeholder %s, HTTP/2 %t: the server gets the value", name, h2), "false", got)
		}
		if s := saw(); strings.Contains(fmt.Sprint(s), plain) || strings.Contains(fmt.Sprint(s), mine) {
			t.Errorf("the server has %+v", s)
		}
		if res, _ := do(t, c, "GET", at, http.Header{"Authorization": {"Bearer " + mine}}, ""); res.StatusCode != 200 ||
			saw().Header.Get("Authorization") != "Bearer "+plain {
			t.Errorf("afterwards: %d", res.StatusCode)
		}
		// With Pass it is sent unchanged, and is worthless.
		secrets[1].Misdirected = Pass
		r = newRig(t, o, Config{Secrets: secrets})
		p := r.Placeholder("OTHERS")
		if res, _ := do(t, r.client(h2), "POST", at, nil, "quoting "+p); res.StatusCode != 200 || saw().Body != "quoting "+p {
			t.Errorf("passed: %d %q", res.StatusCode, saw().Body)
		}
	})
}

// A secret for several hosts in different places has one placeholder, and each host gets it only in its own places.
func TestPlacesByHost(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		o, saw := recorder(t, originConfig{})
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}, In: []Place{InQuery}},
			{Name: "KEY", Value: plain, Hosts: []Host{"*.example.com"}, In: []Place{InHeader}, Headers: []string{"x-key"}},
			{Name: "KEY", Value: plain, Hosts: []Host{"other.example"}, In: []Place{InBody}},
			{Name: "TOKEN", Value: key, Hosts: []Host{"other.example"}, Misdirected: Pass}}})
		c, p, q := r.client(h2), r.Placeholder("KEY"), r.Placeholder("TOKEN")
		at := "https://" + host + "/"
		do(t, c, "POST", at+"?k="+p, http.Header{"X-Key": {p}}, "quoting "+q)
		if s := saw(); s.URL != "/?k="+plain || s.Header.Get("X-Key") != plain || s.Body != "quoting "+q {
			t.Errorf("%+v", s)
		}
		for name, a := range map[string]struct {
			at, body string
			header   http.Header
		}{
			"in another host's place": {at, "k=" + p, nil}, "in the path": {at + p, "", nil},
			"in another field": {at, "", http.Header{"Authorization": {"Bearer " + p}}},
		} {
			res, text := do(t, c, "POST", a.at, a.header, a.body)
			if res.StatusCode != 403 || !strings.Contains(text,
				host+" in query; *.example.com in header x-key; other.example in body") {
				t.Errorf("%s: %d %s", name, res.StatusCode, text)
			}
		}
		if x := r.logged(4); x.Allowed || x.Status != 403 || !strings.Contains(x.Reason, "the placeholder of KEY") ||
			strings.Contains(x.Reason, p) {
			t.Errorf("%+v", x)
		}
	})
	for _, second := range []Secret{{Name: "KEY", Value: key, Hosts: []Host{host}},
		{Name: "KEY", Value: plain, Hosts: []Host{host}, Misdirected: Pass}} {
		if _, err := New(Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}, second}}); err == nil ||
			!strings.Contains(err.Error(), `"KEY" is there twice`) {
			t.Errorf("%+v: %v", second, err)
		}
	}
}

// Without TLS the rules apply, and no value is sent.
func TestAttackInTheClear(t *testing.T) {
	plainServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		fmt.Fprint(w, r.Host, r.Header["Authorization"])
	}))
	defer plainServer.Close()
	o := &origin{server: plainServer}
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: key, Hosts: []Host{host}}},
		Rules: []Rule{{Name: "get", Host: host, Methods: []string{"GET"}}}})
	r.to = Target{Host: host, Port: 80}
	c := r.client(false)
	for _, q := range []struct {
		name, method, field, want string
		text                      string // of the answer
	}{
		{"what a rule allows", "GET", "", "200", host + "[]"},
		{"what no rule allows", "PUT", "", "403", ""},
		{"what a rule allows, with a placeholder", "GET", r.Placeholder("KEY"), "403", "KEY is in the header"},
	} {
		header := http.Header{}
		if q.field != "" {
			header.Set("Authorization", q.field)
		}
		res, text := do(t, c, q.method, "http://"+host+"/", header, "")
		if !strings.Contains(text, q.text) || strings.Contains(text, key) {
			t.Errorf("%s: %q", q.name, text)
		}
		attack.Check(t, "without TLS, "+q.name, q.want, fmt.Sprint(res.StatusCode))
	}
}
