package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ text, url, rule string }{
		{"https://example.com", "https://example.com", "example.com"},
		{"http://EXAMPLE.com:80/a?b=c#d", "http://example.com:80/a?b=c", "example.com"},
		{"https://example.com:8443/", "https://example.com:8443/", "example.com:8443"},
		{"https://bücher.example/ü", "https://xn--bcher-kva.example/%C3%BC", "xn--bcher-kva.example"},
		{"http://[2001:db8::1]:8080/x", "http://[2001:db8::1]:8080/x", "[2001:db8::1]:8080"},
		{"http://[2001:db8::1]/x", "http://[2001:db8::1]/x", "2001:db8::1"},
		{"http://169.254.169.254/", "http://169.254.169.254/", "169.254.169.254"},
		{"", "", "must begin"}, {"example.com", "", "must begin"}, {"file:///etc/passwd", "", "must begin"},
		{"HTTPS:example.com", "", "no host"}, {"https:///x", "", "no host"}, {"https://*.example.com/", "", "no host"},
		{"https://me:pw@example.com/", "", "user name"}, {"https://me@example.com/", "", "user name"},
		{"https://example.com:99999/", "", "host that"}, {"https://example.com:x/", "", "no URL"},
		{"https://exa mple.com/", "", "space"}, {"https://example.com/\r\nHost: x", "", "space"},
		{"https://example.com/\x00", "", "space"}, {"https://example.com/\u202e", "", "space"},
		{"https://example.com/?q=a\U000e0101", "", "nobody sees"},
		{"https://a..b/", "", "host that"}, {"gopher://example.com/", "", "must begin"}, {"https://0x7f.1/", "", "host that"},
		{"https://example.com/" + strings.Repeat("a", maxURL), "", "more than"},
	} {
		at, err := parse(c.text)
		switch {
		case err != nil && (c.url != "" || !strings.Contains(err.Error(), c.rule)):
			t.Errorf("%.80q: %v, want %s", c.text, err, c.rule)
		case err == nil && (at.url != c.url || at.rule != c.rule):
			t.Errorf("%.80q: %+v, want %s", c.text, *at, c.rule)
		}
	}
}

// fake returns a fetcher whose machines print these texts, one after the other, and the hosts that each could reach.
func fake(printed ...string) (*Fetcher, *[]string) {
	var hosts []string
	f := &Fetcher{Run: func(_ context.Context, req run.Request) (*run.Result, error) {
		hosts = append(hosts, strings.Join(slices.Concat(req.AllowNet, []string{"ask"}, req.Ask), " "))
		text := printed[min(len(hosts), len(printed))-1]
		return &run.Result{RunID: "1", Outcome: run.OutcomeExited, Stdout: []byte(text)}, nil
	}}
	return f, &hosts
}

// What a hostile machine prints becomes a bounded page, or an error.
func TestAttackWebFetchAnswer(t *testing.T) {
	long := strings.Repeat("a", 5000)
	links, err := json.Marshal(slices.Repeat([]Link{{URL: "https://e.example/", Text: long}}, 1000))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ printed, want string }{
		{``, "cut off"}, {`[]`, "cut off"}, {`{"status":200`, "cut off"}, {`{"status":"200"}`, "cut off"},
		{`{}`, "no status"}, {`{"status":99}`, "no status"}, {`{"status":-1}`, "no status"},
		{`{"status":200,"base64":"%"}`, "cut off"},
		{`{"status":200,"text":"` + strings.Repeat("a", 101) + `"}`, "longer than"},
		{`{"error":"a\u001b[31mb\n` + long + `"}`, `says: "a[31mb aaa`},
		{`{"redirect":"https://other.example\u0000/"}`, "nobody sees"},
		{`{"redirect":"javascript:alert(1)"}`, "must begin"},
		{`{"status":200,"text":"a\u001b\u202e\u200b\udb40\udc41b\ud800\n\u0009c"}`,
			"200 https://e.example/x [] 'ab\ufffd\n\tc' '' '' ''"},
		{`{"status":200,"text":"do\u2028not\u2800join\ufe0f"}`, "200 https://e.example/x [] 'do\nnot join' '' '' ''"},
		{`{"status":200,"url":"https://evil.example/","type":"text/html\n","date":"tomorrow","unknown":{"a":[1]}}`,
			"200 https://e.example/x [] '' '' '' ''"},
		{`{"status":404,"url":"https://e.example/y","type":"text/html","date":"2026-01-01","title":" a\n\u0007 b "}`,
			"404 https://e.example/y [] '' 'a b' '2026-01-01' 'text/html'"},
		{`{"status":200,"links":[{"url":"javascript:x"},{"url":"https://u:p@e.example/"},` +
			`{"url":"http://a.example/b","text":"c\n"}]}`,
			"200 https://e.example/x [{http://a.example/b c}] '' '' '' ''"},
	} {
		f, _ := fake(c.printed)
		page, err := f.Fetch(t.Context(), Request{URL: "https://e.example/x", MaxBytes: 100})
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprintf("%d %s %v '%s' '%s' '%s' '%s'", page.Status, page.URL, page.Links, page.Text, page.Title,
				page.Date, page.Type)
		}
		if strings.Contains(got, c.want) && len(got) <= 2*maxError && utf8.ValidString(got) {
			got = c.want
		}
		attack.Check(t, fmt.Sprintf("a machine prints %.100s", c.printed), c.want, got)
	}
	f, _ := fake(`{"status":200,"links":[` + strings.Repeat("{},", 1<<20) + `{}]}`)
	if allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			_, _ = f.Fetch(t.Context(), Request{URL: "https://e.example/x"})
		}
	}).AllocedBytesPerOp(); allocated > 32<<20 {
		t.Errorf("3 MiB of empty links took %d bytes of memory", allocated)
	}
	f, _ = fake(`{"status":200,"title":"` + long + `","links":` + string(links) + `}`)
	page, err := f.Fetch(t.Context(), Request{URL: "https://e.example/x"})
	if err != nil || len(page.Links) != maxLinks || len(page.Links[0].Text) > maxTitle || len(page.Title) > maxTitle {
		t.Errorf("%v %d links", err, len(page.Links))
	}
}

// A redirect leads only to what the flags and the ceiling allow, and each machine reaches one host.
func TestAttackWebFetchRedirects(t *testing.T) {
	to := func(host string) string { return fmt.Sprintf(`{"redirect":"https://%s/","hops":1}`, host) }
	const end = `{"status":200}`
	ceiling, err := policy.ParseCeiling("/x",
		[]byte("allowNet = [\"a.example\", \"b.example\"]\nask = [\"*.asked.example\"]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		how     string
		ceiling *policy.Ceiling
		hosts   *Hosts
		printed []string
		want    string
	}{
		{"no limit", nil, nil, []string{to("b.example"), end}, "a.example ask; b.example ask; ok"},
		{"the ceiling allows it", ceiling, nil, []string{to("b.example"), end}, "a.example ask; b.example ask; ok"},
		{"the ceiling asks", ceiling, nil, []string{to("x.asked.example"), end}, "a.example ask; x.asked.example ask; ok"},
		{"the ceiling denies", ceiling, nil, []string{to("c.example"), end}, "a.example ask; c.example is not allowed"},
		{"the ceiling denies an address", ceiling, nil, []string{to("127.0.0.1"), end},
			"a.example ask; 127.0.0.1 is not allowed"},
		{"another port", ceiling, nil, []string{to("b.example:8443"), end}, "a.example ask; b.example:8443 is not allowed"},
		{"no flags", nil, &Hosts{}, []string{to("b.example"), end}, "a.example ask; b.example is not allowed"},
		{"a flag", nil, &Hosts{AllowNet: []string{"*.b.example"}}, []string{to("x.b.example"), end},
			"a.example ask; x.b.example ask; ok"},
		{"a flag that asks", nil, &Hosts{Ask: []string{"b.example"}}, []string{to("b.example"), end},
			"a.example ask; ask b.example; ok"},
		{"a flag that asks about the first", nil, &Hosts{Ask: []string{"a.example"}}, []string{end}, "ask a.example; ok"},
		{"every host", nil, &Hosts{Any: true}, []string{to("b.example"), to("c.example"), end},
			"a.example ask; b.example ask; c.example ask; ok"},
		{"every host, another port", nil, &Hosts{Any: true}, []string{to("b.example:22"), end},
			"a.example ask; b.example:22 is not allowed"},
		{"flags under a ceiling", ceiling, &Hosts{Any: true}, []string{to("c.example"), end},
			"a.example ask; c.example is not allowed"},
		{"to the same host", nil, nil, []string{to("a.example")}, "a.example ask; redirects to its own host"},
		{"to the same host with a dot", nil, nil, []string{to("a.example.")}, "a.example ask; redirects to its own host"},
		{"many hosts", nil, nil, []string{to("b.example"), to("c.example"), to("d.example"), to("e.example"), end},
			"d.example ask; lead to more than 4 hosts"},
		{"a lie about the count", nil, nil, []string{`{"redirect":"https://b.example/","hops":-9}`,
			`{"redirect":"https://c.example/","hops":99}`, end}, "more than 10 redirects"},
	} {
		f, hosts := fake(c.printed...)
		f.Ceiling, f.Hosts = c.ceiling, c.hosts
		_, err := f.Fetch(t.Context(), Request{URL: "https://a.example/"})
		end := "ok"
		if err != nil {
			end = err.Error()
		}
		got := strings.Join(append(*hosts, end), "; ")
		saw := c.want
		for _, part := range strings.Split(c.want, "; ") {
			if !strings.Contains(got, part) {
				saw = got
			}
		}
		if len(*hosts) > maxHops+1 {
			saw = got
		}
		attack.Check(t, "a redirect: "+c.how, c.want, saw)
	}
}

// Wrong requests get no machine.
func TestWrong(t *testing.T) {
	off, err := policy.ParseCeiling("/x", []byte("webFetch = false"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in      Request
		ceiling *policy.Ceiling
		field   string
	}{
		{Request{URL: "https://a.example/", As: "pdf"}, nil, "as"},
		{Request{URL: "https://a.example/", MaxBytes: MaxBytes + 1}, nil, "maxBytes"},
		{Request{URL: "https://a.example/", MaxBytes: -1}, nil, "maxBytes"},
		{Request{URL: "ftp://a.example/"}, nil, "url"},
		{Request{URL: "https://a.example/"}, off, "webFetch"},
	} {
		f, hosts := fake(`{"status":200}`)
		f.Ceiling = c.ceiling
		_, err := f.Fetch(t.Context(), c.in)
		var field *policy.FieldError
		if !errors.As(err, &field) || field.Field != c.field || len(*hosts) > 0 {
			t.Errorf("%+v: %v", c.in, err)
		}
	}
}

// FuzzRead checks that whatever a machine prints, a page is valid text within its limits.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"status":200,"text":"a","links":[{"url":"https://a.example/"}]}`))
	f.Add([]byte(`{"redirect":"https://b.example/","hops":3}`))
	at, err := parse("https://a.example/")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, printed []byte) {
		page, reason := read(printed, at, Request{As: "markdown", MaxBytes: 100})
		if page == nil {
			if reason == "" {
				t.Error("neither a page nor a reason")
			}
			return
		}
		if page.redirect != nil {
			if again, err := parse(page.redirect.url); err != nil || again.rule != page.redirect.rule {
				t.Errorf("redirect %+v: %v", page.redirect, err)
			}
			return
		}
		if len(page.Text) > 100 || !utf8.ValidString(page.Text+page.Title) || len(page.Links) > maxLinks ||
			strings.Contains(page.Text, "\x1b") {
			t.Errorf("%+v", page)
		}
	})
}
