package bounded

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// Messages of tools and servers contain addresses without their logins and queries.
func TestAttackSaid(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"a password", "no route to http://user:secret@proxy.example:3128/", "no route to http://proxy.example:3128/"},
		{"a token as the user", `Get "https://secret@pypi.example/simple/": EOF`, `Get "https://pypi.example/simple/": EOF`},
		{"a password with an at sign", "https://user:sec@ret@h.example/x", "https://h.example/x"},
		{"a password with a slash", "proxy http://user:sec/ret@h.example:3128 refused",
			"proxy http://h.example:3128 refused"},
		{"a password with a question mark", "http://user:sec?ret@h.example", "http://h.example"},
		{"a password with a hash", "http://user:sec#ret@h.example", "http://h.example"},
		{"an escaped password", "http://user:se%63ret@h.example", "http://h.example"},
		{"another scheme", "git+ssh://git:secret@h.example/r.git, socks5h://u:secret@h:1080",
			"git+ssh://h.example/r.git, socks5h://h:1080"},
		{"a signed address", `Get "https://s3.example/blob?X-Amz-Signature=secret&X-Amz-Expires=9": EOF`,
			`Get "https://s3.example/blob": EOF`},
		{"a fragment", "see https://h.example/#access_token=secret.", "see https://h.example/."},
		{"an IPv6 address", "http://u:secret@[::1]:8080/x and http://[::1]:8080/x",
			"http://[::1]:8080/x and http://[::1]:8080/x"},
		{"in brackets", "(http://u:secret@h.example/x?k=secret)", "(http://h.example/x)"},
		{"in typographic quotes", "‘http://u:secret@h.example/x’", "‘http://h.example/x’"},
		{"twice", "http://u:secret@a.example http://u:secret@b.example", "http://a.example http://b.example"},
		{"a password with a quote", "at http://user:se'cret@proxy.example:3128", "at http://proxy.example:3128"},
		{"a password with other quotes", "http://u:s\"c`r<e>t@a.test http://u:sec\u2019ret@b.test",
			"http://a.test http://b.test"},
		{"in a list with commas", "https://a/x,https://u:secret@b|https://u:secret@c/", "https://a/x,https://b|https://c/"},
		{"behind another one", "https://a.example/https://u:secret@b.example", "https://a.example/https://b.example"},
		{"escaped as in JSON", `{"url":"https:\/\/user:secret@h.example\/x"}`, `{"url":"https:\/\/h.example\/x"}`},
		{"escaped as in a URL", "to=https%3A%2F%2Fuser%3Asecret%40h.example%2Fx", "to=https%3A%2F%2Fh.example%2Fx"},
		{"without a scheme", "proxy user:secret@proxy.test:3128; //u:secret@h/x", "proxy proxy.test:3128; //h/x"},
		{"without a scheme, with an at sign", "user:sec@ret@proxy.test:3128 and a:b@h:1", "proxy.test:3128 and h:1"},
		{"without a scheme, with a slash", "u:sec/ret@proxy.test:3128", "proxy.test:3128"},
		{"without a scheme, of a host with _", "proxy=u:secret@my_proxy:3128/", "proxy=my_proxy:3128/"},
		{"without a scheme, of a link", "proxy=u:secret@[fe80::1%eth0]:3128/", "proxy=[fe80::1%eth0]:3128/"},
		{"without a scheme, of an IPv6 address", "proxy=u:secret@[::1]:3128/", "proxy=[::1]:3128/"},
		{"a path that ends as another address", "http://a.test:80/x@b.test:80", "http://a.test:80/x@b.test:80"},
		{"a file's line", "C:/x/me@h:10, http://h:80/@scope/x.js:10:5", "C:/x/me@h:10, http://h:80/@scope/x.js:10:5"},
		{"an at sign in a query", "https://h.example?for=user@b.example", "https://h.example"},
		{"a package of a version", "npm:react@18.2.0-beta, a:b@1.2.3", "npm:react@18.2.0-beta, a:b@1.2.3"},
		{"a scoped package", "404 http://127.0.0.1:4873/@types%2fnode - not found",
			"404 http://127.0.0.1:4873/@types%2fnode - not found"},
		{"a scoped package at a name", "https://npm.example/@scope/name is private",
			"https://npm.example/@scope/name is private"},
		{"no address", "npm:react@18, user@example.com", "npm:react@18, user@example.com"},
		{"a control character", "\x1b[2Jhttp://u:secret@h", "?[2Jhttp://h"},
	} {
		attack.Check(t, "an address that a tool names: "+row.name, row.want, Said(row.text, 1000))
	}
	if got := Said("https://user:"+strings.Repeat("a", 1000)+"@h.example", 50); got != "https://h.example" {
		t.Errorf("a login longer than the limit: %q", got)
	}
	cause := errors.New("EOF")
	err := SaidError(&url.Error{Op: "Get", URL: "https://secret@h.example", Err: cause}, 100)
	if got, want := err.Error(), `Get "https://h.example": EOF`; got != want || !errors.Is(err, cause) {
		t.Errorf("got %q, want %q that wraps its cause", got, want)
	}
	if SaidError(nil, 1) != nil {
		t.Error("no error became one")
	}
}
