package broker

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

// say sends raw HTTP/1 on a new connection, and returns the data until its end.
func (r *rig) say(text string) string {
	r.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CA())
	conn, err := r.dial()
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	secured := tls.Client(conn, &tls.Config{ServerName: host, RootCAs: roots, NextProtos: []string{"http/1.1"}})
	if _, err := io.WriteString(secured, text); err != nil {
		r.t.Fatal(err)
	}
	answer, _ := io.ReadAll(secured)
	return string(answer)
}

// Whatever a request's target and fields look like, the server gets its own name, and the path that was checked.
func TestAttackBrokerTargets(t *testing.T) {
	o, _ := recorder(t, originConfig{http1: true})
	field := "Host: " + host + "\r\nConnection: close\r\n"
	for _, c := range []struct{ name, request, want string }{
		{"a plain one", "GET /a HTTP/1.1\r\n" + field + "\r\n", "200 GET " + host + "/a"},
		{"an absolute one", "GET https://" + host + "/a HTTP/1.1\r\n" + field + "\r\n", "200 GET " + host + "/a"},
		{"an absolute one for another host", "GET https://evil.example/a HTTP/1.1\r\n" + field + "\r\n", "421"},
		{"an absolute one behind a scheme", "GET x:http://evil.example/a HTTP/1.1\r\n" + field + "\r\n", "400"},
		{"an authority and a path", "GET evil.example:443/a HTTP/1.1\r\n" + field + "\r\n", "400"},
		{"a scheme and no slash", "GET https:a HTTP/1.1\r\n" + field + "\r\n", "400"},
		{"CONNECT", "CONNECT " + host + ":443 HTTP/1.1\r\n" + field + "\r\n", "403"},
		{"CONNECT elsewhere", "CONNECT evil.example:443 HTTP/1.1\r\n" + field + "\r\n", "421"},
		{"Host with a dot at its end", "GET /a HTTP/1.1\r\nHost: API.example.com.\r\nConnection: close\r\n\r\n",
			"200 GET " + host + "/a"},
		{"Host with another port", "GET /a HTTP/1.1\r\nHost: " + host + ":8443\r\nConnection: close\r\n\r\n", "421"},
		{"two Host fields", "GET /a HTTP/1.1\r\nHost: evil.example\r\n" + field + "\r\n", "400"},
		{"Host folded", "GET /a HTTP/1.1\r\nX: y\r\n Host: evil.example\r\n" + field + "\r\n", "200 GET " + host + "/a"},
		{"Content-Length and chunks", "POST /a HTTP/1.1\r\n" + field +
			"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /b HTTP/1.1\r\n" + field + "\r\n",
			"200 POST " + host + "/a"},
		{"two lengths", "POST /a HTTP/1.1\r\n" + field + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400"},
		{"chunks of another coding", "POST /a HTTP/1.1\r\n" + field + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
			"501"},
	} {
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
		before := len(o.got())
		_, got, _ := strings.Cut(r.say(c.request), " ")
		got, _, _ = strings.Cut(got, " ")
		for _, reached := range o.got()[before:] {
			got += strings.TrimPrefix(reached, "HTTP/1.1")
		}
		attack.Check(t, "a request's target: "+c.name, c.want, got)
	}
}

// An upgrade to anything but WebSocket would bypass the rules, because its requests are not inspected.
func TestAttackBrokerUpgrades(t *testing.T) {
	for _, protocol := range []string{"h2c", "TLS/1.3", "websocket, h2c", "connect-udp", "WebSocket"} {
		o := newOrigin(t, originConfig{http1: true}, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "<%s%s>", r.Header.Get("Upgrade"), r.Header.Get("Http2-Settings"))
		})
		r := newRig(t, o, Config{Rules: []Rule{{Name: "read", Host: host, Methods: []string{"GET"}, Path: "/a"}}})
		answer := r.say("GET /a HTTP/1.1\r\nHost: " + host + "\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: " +
			protocol + "\r\nHTTP2-Settings: AAMAAABk\r\n\r\nGET /a HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n")
		want := "<>"
		if protocol == "WebSocket" {
			want = "<WebSocket>"
		}
		_, got, _ := strings.Cut(answer, "<")
		got, _, _ = strings.Cut(got, ">")
		attack.Check(t, "an upgrade to "+protocol, want, "<"+got+">")
	}
	o := scripted(t, func(*http.Request) string {
		return "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\nanything"
	})
	r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
	_, got, _ := strings.Cut(r.say("GET /a HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"), " ")
	got, _, _ = strings.Cut(got, " ")
	attack.Check(t, "an upgrade that the server makes of itself", "502", got)
}

// After an upgrade, values are removed from a server's data, too. Frames stay complete, and the last byte of a frame
// does not wait for the next one.
func TestAttackBrokerTunnel(t *testing.T) {
	wait := make(chan struct{})
	o := newOrigin(t, originConfig{http1: true}, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		value := r.Header.Get("X-Key")
		_, _ = io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		for _, part := range []string{"\x81\x03" + value[:3], "\x81\x28" + value, "\x81\x29" + value + "!",
			"\x81\x50" + fmt.Sprintf("%x", value)} {
			_, _ = io.WriteString(rw, part)
			_ = rw.Flush()
			<-wait
		}
	})
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CA())
	conn, err := r.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	secured := tls.Client(conn, &tls.Config{ServerName: host, RootCAs: roots, NextProtos: []string{"http/1.1"}})
	fmt.Fprintf(secured, "GET /a HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Key: %s\r\n\r\n",
		host, r.Placeholder("KEY"))
	in := bufio.NewReader(secured)
	if res, err := http.ReadResponse(in, nil); err != nil || res.StatusCode != 101 {
		t.Fatal(res, err)
	}
	p := r.Placeholder("KEY")
	for _, frame := range []struct{ name, want string }{
		{"the beginning of a value", "\x81\x03" + plain[:3]},
		{"a value", "\x81\x28" + p},
		{"a value and more", "\x81\x29" + p + "!"},
		{"a value in hex", "\x81\x50" + fmt.Sprintf("%x", p)},
	} {
		got := make([]byte, len(frame.want))
		if _, err := io.ReadFull(in, got); err != nil {
			t.Fatal(frame.name, err)
		}
		attack.Check(t, "a frame with "+frame.name, frame.want, string(got))
		wait <- struct{}{}
	}
}

// scripted is an origin that writes raw bytes on the connection of a request.
func scripted(t testing.TB, answer func(r *http.Request) string) *origin {
	return newOrigin(t, originConfig{http1: true}, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(rw, answer(r))
		_ = rw.Flush()
	})
}

func gzipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	z.Close()
	return b.String()
}

// However a server's answer is made, and however invalid, the value in it reaches neither the guest nor the log.
func TestAttackBrokerAnswers(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	packed := gzipped("<" + plain + ">")
	for _, c := range []struct{ name, answer string }{
		{"a reason phrase", "HTTP/1.1 200 " + plain + "\r\nContent-Length: 0\r\n\r\n"},
		{"the reason phrase of an upgrade", "HTTP/1.1 101 " + plain +
			"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"},
		{"no status line", plain + "\r\n\r\n"},
		{"a status that is no number", "HTTP/1.1 " + plain + " OK\r\n\r\n"},
		{"a version", "HTTP/" + plain + " 200 OK\r\n\r\n"},
		{"a line without a colon", ok + plain + "\r\n\r\n"},
		{"a name", ok + plain + ": x\r\nContent-Length: 0\r\n\r\n"},
		{"a length", ok + "Content-Length: " + plain + "\r\n\r\n"},
		{"a transfer coding", ok + "Transfer-Encoding: " + plain + "\r\n\r\n"},
		{"a content coding", ok + "Content-Encoding: " + plain + "\r\nContent-Length: 2\r\n\r\nab"},
		{"a charset", ok + "Content-Type: text/plain; charset=" + plain + "\r\nContent-Length: 2\r\n\r\nab"},
		{"a second content coding", ok + "Content-Encoding: identity\r\nContent-Encoding: gzip\r\nContent-Length: " +
			fmt.Sprint(len(packed)) + "\r\n\r\n" + packed},
		{"an empty content coding before another", ok + "Content-Encoding:\r\nContent-Encoding: gzip\r\nContent-Length: " +
			fmt.Sprint(len(packed)) + "\r\n\r\n" + packed},
		{"the name of a trailer", ok + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + plain + ": x\r\n\r\n"},
		{"a trailer that was announced", ok + "Transfer-Encoding: chunked\r\nTrailer: X-Key\r\n\r\n0\r\nX-Key: " + plain +
			"\r\n\r\n"},
		{"a trailer that was not", ok + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Key: " + plain + "\r\n\r\n"},
		{"an early answer's name", "HTTP/1.1 103 Early Hints\r\n" + plain + ": x\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n"},
		{"an early answer", "HTTP/1.1 103 Early Hints\r\nLink: " + plain + "\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n"},
		{"a chunk's extension", ok + "Transfer-Encoding: chunked\r\n\r\n1;x=" + plain + "\r\na\r\n0\r\n\r\n"},
		{"a chunk's size", ok + "Transfer-Encoding: chunked\r\n\r\n" + plain + "\r\na\r\n0\r\n\r\n"},
		{"pieces of one byte", ok + "Transfer-Encoding: chunked\r\n\r\n1\r\n" +
			strings.Join(strings.Split(plain, ""), "\r\n1\r\n") + "\r\n0\r\n\r\n"},
		{"behind the answer's end", ok + "Content-Length: 1\r\n\r\na" + plain},
		{"several packed streams", ok + "Content-Encoding: gzip\r\nConnection: close\r\n\r\n" + gzipped(plain[:20]) +
			gzipped(plain[20:])},
	} {
		came := false
		o := scripted(t, func(r *http.Request) string {
			came = r.Header.Get("X-Key") == plain
			return c.answer
		})
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
		answer := r.say("GET /a HTTP/1.1\r\nHost: " + host +
			"\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\nX-Key: " + r.Placeholder("KEY") + "\r\n\r\n")
		got := "nothing"
		all := answer + fmt.Sprint(r.last())
		switch {
		case !came:
			got = "the value did not come to the server"
		case strings.Contains(strings.ToLower(all), strings.ToLower(plain)) || strings.Contains(all, packed[10:]):
			got = "the value"
		}
		if attack.Check(t, "a server's answer: "+c.name, "nothing", got); got != "nothing" {
			t.Logf("%q\n%+v", answer, r.last())
		}
	}
}

// A request for an answer in pieces, or in a form that can't be searched for a value, does not reach the server.
func TestAttackBrokerAsksForOtherForms(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		o, saw := recorder(t, originConfig{})
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
		c := r.client(h2)
		with := http.Header{"X-Key": {r.Placeholder("KEY")}}
		for _, q := range []struct{ name, value, want string }{
			{"Range", "bytes=0-3", ""},
			{"Range", "bytes=0-3,8-9", ""},
			{"If-Range", `"x"`, ""},
			{"Request-Range", "bytes=0-3", ""},
			{"X-Ms-Range", "bytes=0-3", ""},
			{"Accept-Encoding", "br, gzip", "identity"},
			{"Accept-Charset", "utf-16", ""},
			{"Accept", "text/plain;charset=IBM037;q=0.5, */*", "text/plain;q=0.5, */*"},
			{"Accept", `application/json; q=1; Charset="utf-7"`, "application/json; q=1"},
			{"Grpc-Accept-Encoding", "gzip", ""},
			{"A-Im", "gzip", ""},
		} {
			header := with.Clone()
			header.Set(q.name, q.value)
			do(t, c, "GET", "https://"+host+"/", header, "")
			got := saw()
			if got.Header.Get("X-Key") != plain {
				t.Error("the value did not come to the server")
			}
			attack.Check(t, "a request with a secret asks for "+q.name+": "+q.value, q.want, got.Header.Get(q.name))
		}
		do(t, c, "GET", "https://"+host+"/", http.Header{"Range": {"bytes=0-3"}}, "")
		if got := saw().Header.Get("Range"); got != "bytes=0-3" {
			t.Errorf("without a secret: %q", got)
		}
	})
}

// Paths that some servers read differently do not bypass the rules by method and path.
func TestAttackBrokerOverrides(t *testing.T) {
	o, _ := recorder(t, originConfig{http1: true})
	for _, c := range []struct{ name, request, want string }{
		{"none", "POST /a?a=1 HTTP/1.1\r\n", "200"},
		{"a method in lower case", "delete /a HTTP/1.1\r\n", "403"},
		{"a field", "POST /a HTTP/1.1\r\nX-HTTP-Method-Override: DELETE\r\n", "403"},
		{"a field as CGI has it", "POST /a HTTP/1.1\r\nX_HTTP_Method_Override: DELETE\r\n", "403"},
		{"a query", "POST /a?a=1&_method=DELETE HTTP/1.1\r\n", "403"},
		{"an encoded query", "POST /a?%5FMethod=DELETE HTTP/1.1\r\n", "403"},
		{"a query behind a semicolon", "POST /a?a=1;x-http-method-override=DELETE HTTP/1.1\r\n", "403"},
	} {
		r := newRig(t, o, Config{Rules: []Rule{{Name: "no deleting", Host: host, Methods: []string{"DELETE"}, Deny: true}}})
		before := len(o.got())
		_, got, _ := strings.Cut(r.say(c.request+"Host: "+host+"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), " ")
		got, _, _ = strings.Cut(got, " ")
		if reached := len(o.got()) > before; reached != (got == "200") {
			got += fmt.Sprint(", reached: ", reached)
		}
		attack.Check(t, "another method by "+c.name, c.want, got)
	}
}

// Fields that route and frame a request are removed from its trailers.
func TestAttackBrokerTrailers(t *testing.T) {
	got := ""
	o := scripted(t, func(r *http.Request) string {
		_, _ = io.Copy(io.Discard, r.Body)
		got = fmt.Sprint(r.Trailer)
		return "HTTP/1.1 204 No Content\r\n\r\n"
	})
	r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
	for _, name := range []string{"X-Sum", "Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade",
		"X-Original-URL", "X_HTTP_Method"} {
		got = "no request"
		r.say("POST /a HTTP/1.1\r\nHost: " + host +
			"\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Known\r\n\r\n1\r\na\r\n0\r\nX-Known: a\r\n" +
			name + ": b\r\n\r\n")
		want := "map[X-Known:[a]]"
		if name == "X-Sum" {
			want = "map[X-Known:[a] X-Sum:[b]]"
		}
		attack.Check(t, "a trailer: "+name, want, got)
	}
}

// A guest that requests much and reads nothing does not exhaust our memory.
func TestAttackBrokerUnread(t *testing.T) {
	const streams, each = 20, 8 << 20
	var sent atomic.Int64
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		chunk := make([]byte, 64<<10)
		for range each / len(chunk) {
			n, err := w.Write(chunk)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
	c := r.client(true)
	c.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10,
		MaxReceiveBufferPerConnection: 64 << 10}
	for range streams {
		res, err := c.Get("https://" + host + "/")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
	}
	if !testwait.Steady(time.Minute, time.Second, sent.Load) {
		t.Error("it never stands still")
	}
	got := "little"
	if n := sent.Load(); n > 32<<20 { // includes the sockets' buffers
		got = fmt.Sprintf("%d MiB", n>>20)
	}
	attack.Check(t, fmt.Sprintf("%d answers of %d MiB that nobody reads", streams, each>>20), "little", got)
}

// echoers write a text like servers that repeat their input.
var echoers = map[string]func(string) string{
	"PHP's json_encode": func(s string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "/", `\/`, "é", `\u00e9`).Replace(s) + `"`
	},
	"PHP's json_encode, with its flags": func(s string) string {
		return strings.NewReplacer(`\`, `\\`, `"`, `\u0022`, "/", `\/`, "é", `\u00e9`, "<", `\u003C`, ">", `\u003E`, "&",
			`\u0026`, "'", `\u0027`).Replace(s)
	},
	"Python's json.dumps": func(s string) string {
		return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "é",
			`\u00e9`).Replace(s)
	},
	"System.Text.Json": func(s string) string {
		return strings.NewReplacer(`\`, `\\`, `"`, `\u0022`, "+", `\u002B`, "é", `\u00E9`, "<", `\u003C`, ">", `\u003E`, "&",
			`\u0026`, "'", `\u0027`, "`", `\u0060`).Replace(s)
	},
	"Gson": func(s string) string {
		return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "=", `\u003d`, "<", `\u003c`, ">", `\u003e`, "&", `\u0026`, "'",
			`\u0027`).Replace(s)
	},
	"Go's html": html.EscapeString,
	"PHP's htmlspecialchars": strings.NewReplacer("&", "&amp;", `"`, "&quot;", "'", "&#039;", "<", "&lt;", ">",
		"&gt;").Replace,
	"Python's html.escape": strings.NewReplacer("&", "&amp;", `"`, "&quot;", "'", "&#x27;", "<", "&lt;", ">",
		"&gt;").Replace,
	"mustache": strings.NewReplacer("&", "&amp;", `"`, "&quot;", "'", "&#39;", "<", "&lt;", ">", "&gt;", "/",
		"&#x2F;", "`", "&#x60;", "=", "&#x3D;").Replace,
	"XML": strings.NewReplacer("&", "&amp;", `"`, "&quot;", "'", "&apos;", "<", "&lt;", ">",
		"&gt;").Replace,
	"Razor": strings.NewReplacer("&", "&amp;", `"`, "&quot;", "'", "&#x27;", "<", "&lt;", ">", "&gt;",
		"+", "&#x2B;", "é", "&#xE9;").Replace,
	"encodeURIComponent": func(s string) string {
		return strings.NewReplacer("%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*", "+",
			"%20").Replace(url.QueryEscape(s))
	},
	"Python's quote": func(s string) string {
		return strings.NewReplacer("%2F", "/", "+",
			"%20").Replace(url.QueryEscape(s))
	},
	"Java's URLEncoder": func(s string) string {
		return strings.NewReplacer("~", "%7E", "%2A",
			"*").Replace(url.QueryEscape(s))
	},
	"JSON in JSON": func(s string) string {
		slash := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "/", `\/`, "é", `\u00e9`)
		return slash.Replace(slash.Replace(s))
	},
	"a URL in a URL": func(s string) string { return url.QueryEscape(url.QueryEscape(s)) },
	"a Buffer in JSON": func(s string) string {
		return strings.Trim(strings.ReplaceAll(fmt.Sprint([]byte(s)), " ", ","),
			"[]")
	},
	"a dump":         func(s string) string { return fmt.Sprintf("% x", s) },
	"a fingerprint":  func(s string) string { return strings.ReplaceAll(fmt.Sprintf("% X", s), " ", ":") },
	"C":              func(s string) string { return `\x` + strings.ReplaceAll(fmt.Sprintf("% x", s), " ", `\x`) },
	"percents alone": func(s string) string { return "%" + strings.ReplaceAll(fmt.Sprintf("% X", s), " ", "%") },
	"an upper case":  strings.ToUpper,
	"a lower case":   strings.ToLower,
	"UTF-16, little": func(s string) string { return string(wide(s, binary.LittleEndian)) },
	"UTF-16, big":    func(s string) string { return string(wide(s, binary.BigEndian)) },
	"base64 in PHP's JSON": func(s string) string {
		return strings.ReplaceAll(base64.StdEncoding.EncodeToString([]byte(s)), "/", `\/`)
	},
	"base64 in a query": func(s string) string {
		return url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("x" +
			s)))
	},
}

// An echo by any usual encoder reveals nothing of a value.
func TestAttackBrokerEchoes(t *testing.T) {
	for name, echo := range echoers {
		for what, value := range map[string]string{"of letters and digits": plain, "of base64's": "q+T/uO8v+/zBNc//5Ku+Wm==",
			"of all that is written otherwise": key + `'*~\` + "`é("} {
			o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
				if got := r.Header.Get("X-Key"); got == value {
					fmt.Fprint(w, "<", echo(got), ">")
				}
			})
			r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: value, Hosts: []Host{host}}}})
			_, text := do(t, r.client(false), "GET", "https://"+host+"/", http.Header{"X-Key": {r.Placeholder("KEY")}}, "")
			got := "a placeholder"
			if x := r.logged(1); x.Redacted == 0 || len(text) < len(value) {
				got = text
			}
			attack.Check(t, "an echo by "+name+", a value "+what, "a placeholder", got)
		}
	}
}

// An answer in a charset in which a value would look different is not passed on.
func TestAttackBrokerCharsets(t *testing.T) {
	for kind, want := range map[string]string{
		"text/plain": "200", "text/plain; charset=UTF-8": "200", `text/html; Charset="iso-8859-1"`: "200",
		"application/x; charset=binary": "200", "text/plain; charset=utf-16le": "200",
		"text/plain; charset=IBM037": "502", "text/plain; charset=UTF-7": "502", "text/plain;charset='utf-32'": "502",
		"text/plain; x=y; charset=ISO-2022-JP": "502", "text/plain; charset=IBM1047; charset=utf-8": "502",
		"text/plain; charset=utf-8; charset=IBM1047": "502",
	} {
		o := scripted(t, func(*http.Request) string {
			return "HTTP/1.1 200 OK\r\nContent-Type: " + kind + "\r\nContent-Length: 2\r\n\r\nab"
		})
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
		_, got, _ := strings.Cut(r.say("GET /a HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"), " ")
		got, _, _ = strings.Cut(got, " ")
		attack.Check(t, "an answer of the type "+kind, want, got)
	}
}
