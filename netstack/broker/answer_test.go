package broker

import (
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"testing"
)

// An origin that returns its input, in every way, returns placeholders.
func TestEcho(t *testing.T) {
	value := key
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		got := r.Header.Get("X-Key")
		if got != value {
			http.Error(w, "the value did not come", 500)
			return
		}
		switch r.URL.Path {
		case "/body":
			fmt.Fprintf(w, "<%s>", got)
		case "/header":
			w.Header().Set("X-Echo", got)
		case "/split":
			for _, c := range []byte(got) {
				_, _ = w.Write([]byte{c})
				_ = http.NewResponseController(w).Flush()
			}
		case "/base64":
			for before := range 4 {
				fmt.Fprintln(w, base64.StdEncoding.EncodeToString([]byte(strings.Repeat("a", before)+got+"b")),
					base64.RawURLEncoding.EncodeToString([]byte(strings.Repeat("a", before)+got)))
			}
		case "/hex":
			fmt.Fprintf(w, "%x %X", got, got)
		case "/json":
			_ = json.NewEncoder(w).Encode(map[string]string{"key": got})
		case "/percent":
			fmt.Fprintln(w, url.QueryEscape(got), url.PathEscape(got), strings.ToLower(url.QueryEscape(got)))
		case "/gzip":
			if r.Header.Get("Accept-Encoding") != "identity" {
				http.Error(w, "asked for "+r.Header.Get("Accept-Encoding"), 500)
			}
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			fmt.Fprintf(z, "<%s>", got)
			z.Close()
		case "/early":
			w.Header().Set("Link", got)
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			fmt.Fprint(w, "<>")
		case "/redirect":
			w.Header().Set("Location", "https://elsewhere.example/?k="+url.QueryEscape(got))
			w.WriteHeader(http.StatusFound)
		}
	})
	both(t, func(t *testing.T, h2 bool) {
		for _, v := range []string{key, plain} {
			value = v
			r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: v, Hosts: []Host{host}}}})
			c := r.client(h2)
			findEchoes(t, r, c, v)
		}
	})
}

// findEchoes checks that no answer contains the secret in any encoding.
func findEchoes(t *testing.T, r *rig, c *http.Client, v string) {
	t.Helper()
	for i, path := range []string{"/body", "/header", "/split", "/base64", "/hex", "/json", "/percent", "/gzip", "/early",
		"/redirect"} {
		all := ""
		trace := &httptrace.ClientTrace{Got1xxResponse: func(_ int,
			h textproto.MIMEHeader) error {
			all += fmt.Sprint(h)
			return nil
		}}
		req, _ := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", "https://"+host+path, nil)
		req.Header.Set("X-Key", r.Placeholder("KEY"))
		req.Header.Set("Accept-Encoding", "gzip, br")
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(path, err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(path, err)
		}
		res.Body.Close()
		all += fmt.Sprint(res.Header) + string(body)
		if res.StatusCode >= 400 || len(all) < 20 {
			t.Errorf("%s: %d %q", path, res.StatusCode, all)
		}
		if r.logged(i+1).Redacted == 0 {
			t.Errorf("%s: nothing was found in %q", path, all)
		}
		middle := v[3 : len(v)-3]
		for form, text := range map[string]string{"as it is": v, "hex": hex.EncodeToString([]byte(v)),
			"HEX": fmt.Sprintf("%X", v), "query": url.QueryEscape(v), "path": url.PathEscape(v), "JSON": string(jsonText(v)),
			"base64 0": base64.RawStdEncoding.EncodeToString([]byte(middle))[:8],
			"base64 1": base64.RawStdEncoding.EncodeToString([]byte(v[4:]))[:8],
			"base64 2": base64.RawStdEncoding.EncodeToString([]byte(v[5:]))[:8]} {
			if strings.Contains(all, text) {
				t.Errorf("%s: the value is there, %s: %q", path, form, all)
			}
		}
	}
}

// Unreadable data is not passed on.
func TestEncodedAnswer(t *testing.T) {
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "br")
		fmt.Fprint(w, "no one can tell what this is")
	})
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: key, Hosts: []Host{host}}}})
	if res, text := do(t, r.client(true), "GET", "https://"+host+"/", nil, ""); res.StatusCode != http.StatusBadGateway ||
		!strings.Contains(text, `Content-Encoding "br"`) {
		t.Errorf("%d %q", res.StatusCode, text)
	}
	// Without a secret it is passed on.
	r = newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
	if res, text := do(t, r.client(true), "GET", "https://"+host+"/", nil, ""); res.StatusCode != 200 ||
		!strings.HasPrefix(text, "no one") {
		t.Errorf("%d %q", res.StatusCode, text)
	}
}

// Separate messages of a server arrive complete, because programs expect one message per piece. Held-back data splits
// no message, unless the message is longer than the limit.
func TestStreamedAnswer(t *testing.T) {
	b := &Broker{cfg: Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host},
		placeholder: strings.Repeat("x", len(plain))}}}, redactors: map[redactorKey]*swapper{}}
	one := swapping{swapper: b.redactor(host, false, nil), blind: true}
	pieces, all := 0, ""
	take := func(out []byte, err error) {
		t.Helper()
		text := string(out)
		if all += text; err != nil || text != "" && (!strings.HasPrefix(text, "data: ") || !strings.HasSuffix(text, "\n\n")) {
			t.Errorf("a piece: %.60q %v", text, err)
		}
		if text != "" {
			pieces++
		}
	}
	sent := ""
	for i := range 40 {
		message := fmt.Sprintf("data: {\"n\": %d, \"text\": %q}\n\n", i, strings.Repeat("x", i*i))
		sent += message
		take(one.write(nil, []byte(message)))
	}
	take(one.end(nil))
	if all != sent || pieces < 10 {
		t.Errorf("%d of %d bytes, in %d pieces", len(all), len(sent), pieces)
	}
}
