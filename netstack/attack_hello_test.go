package netstack

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

type attackHTTPHeadsRow struct{ name, say, want string }

// attackHTTPHeadsRows are the cases of TestAttackHTTPHeads.
func attackHTTPHeadsRows(
	host func(h string) string, good string, line func(l string) string, post string,
) []attackHTTPHeadsRow {
	return append([]attackHTTPHeadsRow{
		{"Host: its own", host("good.example"), passed},
		{"Host: upper case, dot, port", host("GOOD.Example.:8080"), passed},
		{"Host: another", host("evil.example"), refusedAtOnce},
		{"Host: a name below", host("a.good.example"), refusedAtOnce},
		{"Host: a name that ends so", host("evilgood.example"), refusedAtOnce},
		{"Host: a name that begins so", host("good.example.evil.example"), refusedAtOnce},
		{"Host: two dots at the end", host("good.example.."), refusedAtOnce},
		{"Host: another port", host("good.example:80"), refusedAtOnce},
		{"Host: two ports", host("good.example:8080:8080"), refusedAtOnce},
		{"Host: an empty port", host("good.example:"), refusedAtOnce},
		{"Host: a port with a zero before it", host("good.example:08080"), refusedAtOnce},
		{"Host: the server's address", host("93.184.216.34"), refusedAtOnce},
		{"Host: metadata", host("169.254.169.254"), refusedAtOnce},
		{"Host: metadata as a number", host("2852039166"), refusedAtOnce},
		{"Host: loopback, short", host("127.1"), refusedAtOnce},
		{"Host: IPv6", host("[::1]"), refusedAtOnce},
		{"Host: IPv6 with a zone", host("[fe80::1%25eth0]"), refusedAtOnce},
		{"Host: a bracket that closes nothing", host("good.example]"), refusedAtOnce},
		{"Host: empty", host(""), refusedAtOnce},
		{"Host: none", "GET / HTTP/1.1\r\nX: good.example\r\n\r\n", refusedAtOnce},
		{"Host: none, HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", refusedAtOnce},
		{"Host: twice", "GET / HTTP/1.1\r\n" + good + "Host: evil.example\r\n\r\n", refusedAtOnce},
		{"Host: twice the same", "GET / HTTP/1.1\r\n" + good + good + "\r\n", refusedAtOnce},
		{"Host: a list", host("good.example, evil.example"), refusedAtOnce},
		{"Host: a user", host("good.example@evil.example"), refusedAtOnce},
		{"Host: a path", host("good.example/evil.example"), refusedAtOnce},
		{"Host: a NUL", host("good.example\x00evil.example"), refusedAtOnce},
		{"Host: a tab inside", host("good.example\tevil.example"), refusedAtOnce},
		{"Host: a space before the colon", "GET / HTTP/1.1\r\nHost : good.example\r\n\r\n", refusedAtOnce},
		{"Host: folded", "GET / HTTP/1.1\r\nHost: good.example\r\n evil.example\r\n\r\n", refusedAtOnce},
		{"Host: behind a space", "GET / HTTP/1.1\r\n Host: evil.example\r\n" + good + "\r\n", refusedAtOnce},
		{"Host: behind a lone LF", "GET / HTTP/1.1\r\nX: 1\nHost: evil.example\r\n" + good + "\r\n", refusedAtOnce},
		{"Host: behind a lone CR", "GET / HTTP/1.1\r\nX: 1\rHost: evil.example\r\n" + good + "\r\n", refusedAtOnce},
		{"Host: not ASCII", host("gооd.example"), refusedAtOnce},
		{"Host: percent-encoded", host("good%2eexample"), refusedAtOnce},

		{"request line: a tab for a space", line("GET\t/ HTTP/1.1"), refusedAtOnce},
		{"request line: a tab in the target", line("GET /\thttp://evil.example/ HTTP/1.1"), refusedAtOnce},
		{"request line: a tab before the version", line("GET /\t HTTP/1.1"), refusedAtOnce},
		{"request line: a no-break space in the target", line("GET /\u00a0x HTTP/1.1"), refusedAtOnce},
		{"request line: the byte A0 in the target", line("GET /\xa0x HTTP/1.1"), refusedAtOnce},
		{"request line: two spaces", line("GET  / HTTP/1.1"), refusedAtOnce},
		{"request line: a space in the target", line("GET /a b HTTP/1.1"), refusedAtOnce},
		{"request line: a space before it", line(" GET / HTTP/1.1"), refusedAtOnce},
		{"request line: an empty line before it", "\r\n" + line("GET / HTTP/1.1"), refusedAtOnce},
		{"request line: no target", line("GET HTTP/1.1"), refusedAtOnce},
		{"request line: no version", line("GET /"), refusedAtOnce},
		{"request line: HTTP/1.2", line("GET / HTTP/1.2"), refusedAtOnce},
		{"request line: HTTP/2.0", line("GET / HTTP/2.0"), refusedAtOnce},
		{"request line: http/1.1", line("GET / http/1.1"), refusedAtOnce},
		{"request line: HTTP/2 by prior knowledge", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", refusedAtOnce},
	}, moreAttackHTTPHeadsRows(host, good, line, post)...)
}

// moreAttackHTTPHeadsRows are the other half.
func moreAttackHTTPHeadsRows(
	host func(h string) string, good string, line func(l string) string, post string,
) []attackHTTPHeadsRow {
	return []attackHTTPHeadsRow{
		{"request line: a method with a colon", line("GET: / HTTP/1.1"), refusedAtOnce},
		{"request line: CONNECT", line("CONNECT good.example:8080 HTTP/1.1"), refusedAtOnce},
		{"request line: connect", line("connect good.example:8080 HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, its own", line("GET http://good.example/ HTTP/1.1"), passed},
		{"request line: absolute form, another", line("GET http://evil.example/ HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, a user", line("GET http://good.example@evil.example/ HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, a backslash", line(`GET http://evil.example\@good.example/ HTTP/1.1`), refusedAtOnce},
		{"request line: absolute form, another scheme", line("GET gopher://good.example/ HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, no slashes", line("GET http:good.example HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, another port", line("GET http://good.example:80/ HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, https", line("GET https://good.example/ HTTP/1.1"), refusedAtOnce},
		{"request line: absolute form, a fragment before a user", line("GET http://good.example#@evil.example/ HTTP/1.1"),
			passed},
		{"request line: absolute form, a dot at the end", line("GET http://good.example./ HTTP/1.1"), refusedAtOnce},
		{"request line: RTSP", line("OPTIONS rtsp://good.example/ RTSP/1.0"), refusedAtOnce},
		{"request line: ICY", line("GET / ICY/1.0"), refusedAtOnce},
		{"request line: authority form", line("GET evil.example:80 HTTP/1.1"), refusedAtOnce},
		{"request line: a path of two slashes is a path", line("GET //evil.example/ HTTP/1.1"), passed},

		{"a second request for another", host("good.example") + host("evil.example"), refused},
		{"another request behind a body", post + "Content-Length: 2\r\n\r\nok" + host("evil.example"), refused},
		{"another request in a body is a body", post + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(host("evil.example"))) +
			host("evil.example"), passed},
		{"length and chunks", post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", refusedAtOnce},
		{"two lengths", post + "Content-Length: 4\r\nContent-Length: 5\r\n\r\n", refusedAtOnce},
		{"a length with a sign", post + "Content-Length: +4\r\n\r\n", refusedAtOnce},
		{"an encoding that only some read as chunked", post + "Transfer-Encoding: \x0bchunked\r\n\r\n", refusedAtOnce},
		{"chunked, and more", post + "Transfer-Encoding: chunked, identity\r\n\r\n", refusedAtOnce},
		{"chunks in HTTP/1.0", "POST / HTTP/1.0\r\n" + good + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", refusedAtOnce},
		{"chunked twice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", refusedAtOnce},
		{"an empty length", post + "Content-Length:\r\n\r\n", refusedAtOnce},
		{"a length in hexadecimal", post + "Content-Length: 0x4\r\n\r\n", refusedAtOnce},
		{"two lengths in one field", post + "Content-Length: 4, 4\r\n\r\n", refusedAtOnce},
		{"a length beyond 64 bits", post + "Content-Length: 18446744073709551620\r\n\r\n", refusedAtOnce},
		{"a chunk's size with 0x", post + "Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", refused},
		{"a chunk's size with a sign", post + "Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n", refused},
		{"a chunk's size with a blank before it", post + "Transfer-Encoding: chunked\r\n\r\n 1\r\na\r\n0\r\n\r\n", refused},
		{"a chunk's size beyond 64 bits", post + "Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\na\r\n0\r\n\r\n",
			refused},
		{"a lone CR in a chunk's extension", post + "Transfer-Encoding: chunked\r\n\r\n1;a\rb\r\na\r\n0\r\n\r\n", refused},
		{"a length in a trailer", post + "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 99\r\n\r\n", refused},
		{"a chunk longer than its size", post + "Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n", refused},
		{"a chunk's line that ends in LF", post + "Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n", refused},
		{"Host in a trailer", post + "Transfer-Encoding: chunked\r\n\r\n0\r\nHost: evil.example\r\n\r\n", refused},
		{"a trailer that is no field",
			post + "Transfer-Encoding: chunked\r\n\r\n0\r\nGET http://evil.example/ HTTP/1.1\r\n\r\n", refused},
		{"an upgrade to HTTP/2 in the clear", "GET / HTTP/1.1\r\n" + good + "Connection: upgrade\r\nUpgrade: h2c\r\n\r\n",
			refusedAtOnce},
		{"an upgrade behind another request", host("good.example") + "GET / HTTP/1.1\r\n" + good +
			"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", refused},
		{"a head of 40 KiB", "GET / HTTP/1.1\r\n" + good + strings.Repeat("X: evil.example\r\n", 2500) + "\r\n",
			refusedAtOnce},
		{"a binary protocol", "\x00\x00\x00\x08\x04\xd2\x16\x2f", refusedAtOnce},
		{"SMTP", "EHLO good.example\r\nMAIL FROM:<a@good.example>\r\n", refusedAtOnce},
		{"FTP", "USER anonymous\r\nPASS x\r\n", refusedAtOnce},
		{"memcached", "set x 0 0 1\r\na\r\n", refusedAtOnce},
		{"a field's name in full width", "GET / HTTP/1.1\r\n\uff28ost: evil.example\r\n" + good + "\r\n", refusedAtOnce},
		{"SSH", "SSH-2.0-OpenSSH_9.2\r\n", refusedAtOnce},
		{"Redis", "*1\r\n$4\r\nPING\r\n", refusedAtOnce},
	}
}

// The Host field and the request line, on a port that only the rule has.
func TestAttackHTTPHeads(t *testing.T) {
	server := newScripted(t, "", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	net1 := &internet{names: map[string][]string{"good.example": {"93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:8080": server.addr, "8.8.4.4:8080": server.addr}}
	g := newGuest(t, Config{Upstream: net1.upstream(), Limits: Limits{NewPerSecond: 1000, DNSPerSecond: 1000},
		Rules: []Rule{{Text: "g", Host: "good.example", Port: 8080},
			{Text: "a", Addr: netip.MustParseAddr("8.8.4.4"), Port: 8080}}})
	const good, post = "Host: good.example\r\n", "POST / HTTP/1.1\r\nHost: good.example\r\n"
	get := func(line, host string) string { return line + "\r\nHost: " + host + "\r\n\r\n" }
	host := func(h string) string { return get("GET / HTTP/1.1", h) }
	line := func(l string) string { return l + "\r\n" + good + "\r\n" }
	for _, c := range attackHTTPHeadsRows(host, good, line, post) {
		d := g.decision(func() { _ = g.sayAndEnd("good.example", 8080, c.say) })
		attack.Check(t, "HTTP: "+c.name, c.want, saw(d))
		if got := server.received(); c.want == refused && strings.Contains(got, "Host: evil.example") {
			t.Errorf("%s: reached the server: %q", c.name, got)
		}
		if (c.want == passed) != (d.Reason == "") {
			t.Errorf("%s: %+v", c.name, d)
		}
		server.mu.Lock()
		server.got.Reset()
		server.mu.Unlock()
	}
	for _, c := range []struct{ name, host, want string }{
		{"its own address", "8.8.4.4:8080", passed}, {"another address", "10.0.0.1", refusedAtOnce},
		{"a name", "good.example", refusedAtOnce},
		{"its own address, mapped", "[::ffff:8.8.4.4]", passed},
		{"its own address, mapped, with a zone", "[::ffff:8.8.4.4%eth0]", refusedAtOnce},
	} {
		d := g.decision(func() { _ = g.sayAndEnd("8.8.4.4", 8080, host(c.host)) })
		attack.Check(t, "HTTP: Host on a connection to an address: "+c.name, c.want, saw(d))
	}
}
