package policy

import (
	"strings"
	"testing"
	"unicode"
)

func TestParseNetRule(t *testing.T) {
	for in, want := range map[string]string{
		"example.com": "example.com", "EXAMPLE.Com.": "example.com", "*.Example.com": "*.example.com",
		"example.com:8443": "example.com:8443",
		"bücher.example":   "xn--bcher-kva.example", "xn--bcher-kva.example": "xn--bcher-kva.example",
		"*.a.b.c.example": "*.a.b.c.example",
		"192.0.2.1":       "192.0.2.1", "192.0.2.1:81": "192.0.2.1:81", "[2001:db8::1]:443": "[2001:db8::1]:443",
		"2001:db8::1": "2001:db8::1", "[2001:db8::1]": "2001:db8::1",
		"::ffff:192.0.2.1": "192.0.2.1", "localhost": "localhost", "my-host": "my-host", "ＥＸＡＭＰＬＥ.com": "example.com",
		"example。com":         "example.com",
		"https://example.com": "example.com:443", "HTTP://Example.com/": "example.com:80",
		"https://[::1]:8443/":     "[::1]:8443",
		"http://example.com:8080": "example.com:8080", "https://*.example.com": "*.example.com:443",
		"https://[2001:db8::1]": "[2001:db8::1]:443", "http://192.0.2.1": "192.0.2.1:80",
		"*.co.example": "*.co.example", "api.github.com:443": "api.github.com:443",
	} {
		r, err := ParseNetRule(in)
		if err != nil || r.String() != want {
			t.Errorf("%q: %q %v, want %q", in, r.String(), err, want)
			continue
		}
		if again, err := ParseNetRule(r.String()); err != nil || again != r {
			t.Errorf("%q: read again it is %+v %v", in, again, err)
		}
	}
	for in, says := range map[string]string{
		"": "empty", "*": "--allow-net-any", "*.": "--allow-net-any", "*.com": "public suffix", "*.co.uk": "public suffix",
		"*.github.io":    "public suffix",
		"a*.example.com": `'*'`, "*a.example.com": "no whole label", "a.*.example.com": `'*'`, "example.com:0": "port",
		"example.com:65536": "port", "example.com:080": "port",
		"example.com:": "port", "example.com:http": "port", "exa mple.com": `' '`, "example.com\x00.evil.com": `'\x00'`,
		"example.com\n": `'\n'`, "a%00b.com": `'%'`,
		"https://example.com/v1": "\"example.com\" grants all of the host", "https://example.com?x": "has a path",
		"https://example.com#x": "has a path", "https://example.com//": "has a path", "https://": "empty",
		"https:///etc": "has a path", "ftp://example.com": "scheme", "file:///etc/passwd": "scheme", "://a.com": "scheme",
		"https://u:p@example.com": "has a user", "https://u@example.com": "has a user", "https://a.com\\b.com": `'\\'`,
		"https://https://a.com": "has a path", "https://example.com:": "port", "example.com/path": `'/'`,
		"user@example.com": "a user or an @", "example..com": "no host name",
		".example.com": "no host name", "-a.com": "no host name",
		strings.Repeat("a", 64) + ".com": "no host name", strings.Repeat("a.", 130) + "com": "no host name",
		"127.1": "looks like", "2130706433": "looks like", "0x7f.1": "looks like",
		"0x7f000001": "looks like", "127.0.0.1.": "looks like", "1.2.3.4.5": "looks like", "[::1": "no ]",
		"[example.com]:1": "brackets", "[::1]x": "closing bracket", "fe80::1%eth0": "zone",
		"under_score.com": "no host name", "a\tb.com": `'\t'`, "ex\u00adample.com\u202e": "no host name", "example.com..": "",
		"0\xbc0": "UTF-8",
	} {
		if r, err := ParseNetRule(in); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %q %v, want %q", in, r.String(), err, says)
		}
	}
}

func TestParseTCPRule(t *testing.T) {
	for in, want := range map[string]string{"127.0.0.1:5432": "127.0.0.1:5432", "localhost:6379": "localhost:6379",
		"DB.example:1": "db.example:1", "https://db.example:1/": "db.example:1", "[::1]:5": "[::1]:5"} {
		if r, err := ParseTCPRule(in); err != nil || r.String() != want {
			t.Errorf("%q: %q %v", in, r.String(), err)
		}
	}
	for _, in := range []string{"", "x", "127.0.0.1", "::1", "x:0", "*:80", "*.x.com:80", ":80", "x:1:2", "x:99999"} {
		if r, err := ParseTCPRule(in); err == nil {
			t.Errorf("%q: %q", in, r)
		}
	}
}

func FuzzNetRule(f *testing.F) {
	for _, s := range []string{"example.com", "*.x.example:1", "[::1]:2", "1.2.3.4", "bücher.example", "*.com", "a\x00b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseNetRule(s)
		if err != nil {
			return
		}
		again, err := ParseNetRule(r.String())
		if err != nil || again != r {
			t.Errorf("%q is %q, and that is %q %v", s, r, again, err)
		}
		if strings.ContainsAny(r.Host, "\x00\r\n% *") || r.Host != strings.ToLower(r.Host) {
			t.Errorf("%q: host %q", s, r.Host)
		}
	})
}

// An error about a URL is safe to show: it contains no login and no query, and its value is safe to show, too.
func TestURLErrors(t *testing.T) {
	for _, in := range []string{"https://a/\x1b[31mX\nunitask: fine", "https://u:hunter2@a.example",
		"https://a.example/v1?key=hunter2", "https://a.example?x=hunter2", "https://a.example/" + strings.Repeat("é", 99),
		"https://a.example/a b", "https://\u202eb/x",
		"u:hunter2@a.example", "u:hunter2@a.example:443", "u:x/hunter2@a.example",
		":hunter2@a.example", "hunter2@a.example", "u:1/hunter2@a.example", "u:a,hunter2@a.example", "u:a hunter2@a.example",
		"https:/u:hunter2@a.example", "//u:hunter2@a.example", "https://u:1/hunter2@a.example"} {
		_, bad := nets.list([]string{in})
		if bad == nil {
			t.Errorf("%q parses", in)
			continue
		}
		bad.Field = "allowNet"
		if text := bad.Error(); strings.Contains(text, "hunter2") ||
			strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == 0xfffd }) {
			t.Errorf("%q: %q", in, text)
		}
	}
	for _, in := range []string{"K@https://u:hunter2@a.example", "K@https://u:hunter2@a.example:query",
		"K@u:hunter2@a.example", "K@u:hunter2@a.example:query", "K@u:+hunter2@a.example",
		"K@u:a,hunter2@a.example", "K@hunter2@a.example", "K@u:1/hunter2@a.example"} {
		if r, err := ParseSecret(in); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v %v", in, r, err)
		}
	}
	for _, in := range []string{"GET https://u:hunter2@a.example/x", "GET https://a.example/x?k=hunter2",
		"GET u:hunter2@a.example/x", "GET u:hunter2@a.example", "GET u:a/hunter2@a.example",
		"GET :hunter2@a.example", "GET hunter2@a.example/x", "GET u:1/hunter2@a.example", "GET u:a,hunter2@a.example"} {
		if r, err := ParseHTTPRule(in); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v %v", in, r, err)
		}
		_, _, err := Resolve(Request{AllowHTTP: []string{in}}, nil)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", in, err)
		}
	}
	for _, in := range []string{"GET https://a.example/@acme/x", "GET a.example/@acme/x", "GET https://a.example/x@2"} {
		if _, err := ParseHTTPRule(in); err != nil {
			t.Errorf("%q: %v", in, err)
		}
	}
	for _, in := range []string{"[secrets.KEY]\nhosts = [\"https://u:hunter2@a.example\"]",
		"[[net.rule]]\nhost = \"https://u:hunter2@a.example\"", "[[net.rule]]\nhost = \"https://u:hunter2@a.example,b\"",
		"[net]\nallow = [\"https://u:hunter2@a.example\"]", "[secrets.KEY]\nhosts = [\"u:hunter2@a.example\"]",
		"[[net.rule]]\nhost = \"u:hunter2@a.example\"", "allowNet = [\"u:hunter2@a.example\"]",
		"allowTcp = [\"u:hunter2@a.example:1\"]", "secrets = [\"K@u:a,hunter2@a.example\"]",
		"[secrets.KEY]\nhosts = [\":hunter2@a.example\"]", "[[net.rule]]\nhost = \"u:a,hunter2@a.example\""} {
		if _, err := ParseCeiling("x.toml", []byte(in)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// A parsed rule has the same meaning after it is written and read again.
func FuzzHosts(f *testing.F) {
	for _, s := range []string{"https://a.example/", "http://*.b.example:81", "https://[::1]/", "HTTPS://a.b",
		"https://a.b:443", "http://１.2.3.4/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := ParseNetRule(s); err == nil {
			if again, err := ParseNetRule(r.String()); err != nil || again != r {
				t.Fatalf("%q: %q: %v", s, r, err)
			}
		}
		if b, err := parseBinding(s); err == nil {
			if again, err := parseBinding(b.String()); err != nil || again.String() != b.String() {
				t.Fatalf("%q: %q: %v", s, b, err)
			}
		}
		if r, err := ParseHTTPRule("GET " + s); err == nil {
			if again, err := ParseHTTPRule(r.String()); err != nil || again != r {
				t.Fatalf("%q: %q: %v", s, r, err)
			}
		}
		if r, err := ParseTCPRule(s); err == nil {
			if again, err := ParseTCPRule(r.String()); err != nil || again != r {
				t.Fatalf("%q: %q: %v", s, r, err)
			}
		}
	})
}
