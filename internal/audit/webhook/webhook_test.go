package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testwait"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func TestCheck(t *testing.T) {
	good := Hook{URL: "https://hooks.example.com/x?y=1", Secret: secret}
	for name, c := range map[string]struct {
		hooks []Hook
		wrong string
	}{
		"none": {nil, ""},
		"one":  {[]Hook{good}, ""},
		"this machine's": {[]Hook{{URL: "http://127.0.0.1:9000/", Secret: secret},
			{URL: "http://[::1]:9000/", Secret: secret}, {URL: "http://localhost/", Secret: secret}}, ""},
		"of kinds":         {[]Hook{{URL: good.URL, Secret: secret, Kinds: []string{"run.ended", "policy.denied"}}}, ""},
		"twice":            {[]Hook{good, good}, "webhook 2: its url is that of another"},
		"too many":         {slices.Repeat([]Hook{good}, 17), "17 webhooks: 16 at most"},
		"no url":           {[]Hook{{Secret: secret}}, "webhook 1: its url is none"},
		"a file":           {[]Hook{{URL: "file:///etc/passwd", Secret: secret}}, "its url is none"},
		"no host":          {[]Hook{{URL: "https://:443/", Secret: secret}}, "its url is none"},
		"in clear":         {[]Hook{{URL: "http://hooks.example.com/token-0123456789", Secret: secret}}, "use https"},
		"in clear, nearly": {[]Hook{{URL: "http://127.0.0.1.example.com/", Secret: secret}}, "use https"},
		"no secret":        {[]Hook{{URL: good.URL}}, "its secret is not whsec_"},
		"a short secret":   {[]Hook{{URL: good.URL, Secret: "whsec_c2hvcnQ="}}, "24 to 64 bytes"},
		"a secret as words": {[]Hook{{URL: good.URL, Secret: "token-0123456789 correct horse battery staple"}},
			"its secret is not"},
		"an unknown kind": {[]Hook{{URL: good.URL, Secret: secret, Kinds: []string{"run.endet"}}},
			`kind "run.endet": there is none; there are [run.started`},
	} {
		err := Check(c.hooks)
		if (err != nil) != (c.wrong != "") || err != nil &&
			(!strings.Contains(err.Error(), c.wrong) || strings.Contains(err.Error(), "token-0123456789")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// receiver receives events with Standard Webhooks' own library.
type receiver struct {
	t      *testing.T
	verify *standard.Webhook

	mu  sync.Mutex
	got []audit.Event
	ids []string
}

func newReceiver(t *testing.T) *receiver {
	verify, err := standard.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	return &receiver{t: t, verify: verify}
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err == nil {
		err = r.verify.Verify(body, req.Header)
	}
	var event audit.Event
	if err == nil {
		err = json.Unmarshal(body, &event)
	}
	if err != nil || req.Method != http.MethodPost ||
		req.Header.Get("Content-Type") != "application/cloudevents+json; charset=utf-8" {
		r.t.Errorf("%s %s: %v", req.Method, req.Header, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got, r.ids = append(r.got, event), append(r.ids, req.Header.Get("Webhook-Id"))
}

func (r *receiver) lines() (list []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.got {
		list = append(list, e.Line())
	}
	return list
}

// add appends entries to a home's log.
func add(t *testing.T, home string, kinds ...audit.Kind) {
	t.Helper()
	var entries []audit.Entry
	for _, kind := range kinds {
		entries = append(entries, audit.Entry{Time: time.Now(), Kind: kind, Run: "r"})
	}
	if err := audit.In(home).Append(entries...); err != nil {
		t.Fatal(err)
	}
}

// delivering returns one hook's delivery, started and without delays.
func delivering(t *testing.T, home string, hook Hook) (d *delivery, said *[]string) {
	t.Helper()
	said = &[]string{}
	d = &delivery{hook: hook, log: audit.In(home), client: client(), state: filepath.Join(home, hook.file()+".json"),
		behind: maxBehind,
		tell:   func(what string) { *said = append(*said, what) }, wait: func(context.Context, time.Duration) {}}
	if err := d.begin(); err != nil {
		t.Fatal(err)
	}
	return d, said
}

// until runs a delivery until it has nothing more to do.
func (d *delivery) until(t *testing.T, line int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := d.wait
	d.wait = func(ctx context.Context, pause time.Duration) {
		if wait(ctx, pause); d.at.Line >= line {
			cancel()
		}
	}
	defer func() { d.wait = wait }()
	if err := d.run(ctx); err != nil {
		t.Fatal(err)
	}
}

// Each wanted entry comes once, in order, also over several deliveries.
func TestDeliver(t *testing.T) {
	home, r := t.TempDir(), newReceiver(t)
	hs := httptest.NewServer(r)
	defer hs.Close()
	add(t, home, audit.RunStarted) // before the hook existed
	ctx, cancel := context.WithCancel(t.Context())
	for _, last := range []int{5, 10} {
		hooks := []Hook{{URL: hs.URL, Secret: secret, Kinds: []string{"run.ended", "net.refused"}}}
		done := make(chan error)
		go func() { done <- Deliver(ctx, home, hooks, func(what string) { t.Error(what) }) }()
		state := filepath.Join(home, "webhooks", hooks[0].file()+".json")
		testwait.Until(t, "it delivers", func() bool {
			_, err := os.Stat(state)
			return err == nil
		})
		add(t, home, audit.RunStarted, audit.RunEnded, audit.RunStarted, audit.NetRefused)
		testwait.Until(t, fmt.Sprintf("line %d is delivered", last), func() bool {
			text, _ := os.ReadFile(state)
			return strings.Contains(string(text), fmt.Sprintf(`"line":%d}`, last))
		})
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		add(t, home, audit.RunEnded) // while nobody delivers
	}
	cancel()
	if got := fmt.Sprint(r.lines()); got != "[3 5 6 8 10]" {
		t.Errorf("lines %s", got)
	}
	if r.got[0].Type != "unitask.run.ended" || r.got[1].Type != "unitask.net.refused" ||
		!strings.HasSuffix(r.ids[0], "-3") || r.got[0].SpecVersion != "1.0" {
		t.Errorf("%+v %v", r.got, r.ids)
	}
}

// A receiver's faults stop neither the log nor later entries. Little is reported of them, without the URL's token.
func TestAttackReceiver(t *testing.T) {
	inside := atomic.Int64{}
	private := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside.Add(1) }))
	defer private.Close()
	none, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	none.Close()
	status := func(code int, headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(code)
		}
	}
	for name, row := range map[string]struct {
		handler http.HandlerFunc
		tries   int
		said    string
	}{
		"is dead": {nil, maxTries, "connection refused"},
		"hangs": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, maxTries, "Client.Timeout"},
		"fails":                                 {status(500), maxTries, "answered 500"},
		"says to try again in a thousand years": {status(503, "Retry-After", "31536000000"), maxTries, "answered 503"},
		"says to try again before now":          {status(429, "Retry-After", "-5"), maxTries, "answered 429"},
		"is gone":                               {status(410), 1, "answered 410"},
		"refuses":                               {status(400), 1, "answered 400"},
		"redirects to a private address": {status(307, "Location", private.URL), 1,
			"answered 307, a redirect, which is not followed"},
		"redirects to itself": {status(302, "Location", "/"), 1, "answered 302"},
		"answers 1 GiB": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.CopyN(w, endless{}, 1<<30)
		}, 1, ""},
		"fails with 1 GiB": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			_, _ = io.CopyN(w, endless{}, 1<<30)
		}, maxTries, "answered 500"},
		"answers a header without end": {status(200, "X", strings.Repeat("x", 1<<20)), maxTries, "exceeded"},
		"breaks off": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			maxTries, "EOF"},
		"says it switches protocols": {status(101), 1, "answered 101"},
	} {
		home, tries, url := t.TempDir(), atomic.Int64{}, "http://"+none.Addr().String()
		if row.handler != nil {
			hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				tries.Add(1)
				row.handler(w, r)
			}))
			defer hs.Close()
			url = hs.URL
		}
		add(t, home, audit.RunStarted)
		d, said := delivering(t, home, Hook{URL: url + "/token-0123456789", Secret: secret})
		longestWait := time.Duration(0)
		d.wait = func(_ context.Context, pause time.Duration) { longestWait = max(longestWait, pause) }
		if name == "hangs" {
			d.client.Timeout = 100 * time.Millisecond // instead of postTime
		}
		add(t, home, audit.RunEnded)
		d.until(t, 2)
		text := strings.Join(*said, "\n")
		got := "given up"
		switch {
		case strings.Contains(text, "token") || inside.Load() > 0:
			got = text
		case row.handler != nil && int(tries.Load()) != row.tries:
			got = fmt.Sprintf("%d tries", tries.Load())
		case !strings.Contains(text, row.said) || len(*said) > 1 || len(text) > 1000:
			got = text
		case longestWait > longest:
			got = "waited " + longestWait.String()
		}
		attack.Check(t, "a receiver that "+name, "given up", got)
		d.client.CloseIdleConnections()
	}
}

// After a receiver's long absence, the newest entries wait for it.
func TestAttackBacklog(t *testing.T) {
	home, r := t.TempDir(), newReceiver(t)
	hs := httptest.NewServer(r)
	defer hs.Close()
	add(t, home, audit.RunStarted)
	d, said := delivering(t, home, Hook{URL: hs.URL, Secret: secret})
	d.behind = 10
	add(t, home, slices.Repeat([]audit.Kind{audit.RunStarted, audit.RunEnded}, 16)...)
	d.until(t, 33)
	got := fmt.Sprint(r.lines(), *said)
	attack.Check(t, "a backlog of 32 where 10 may wait",
		"[24 25 26 27 28 29 30 31 32 33] [webhook "+hs.URL+": 22 entries are left out, from line 2 on: more than 10 waited]",
		got)
}

// A receiver that refuses fast is not reported each time.
func TestAttackRefusals(t *testing.T) {
	home := t.TempDir()
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }))
	defer hs.Close()
	add(t, home, audit.RunStarted)
	d, said := delivering(t, home, Hook{URL: hs.URL, Secret: secret})
	d.said = time.Now().Add(time.Hour) // no time passes
	add(t, home, slices.Repeat([]audit.Kind{audit.RunEnded}, 150)...)
	d.until(t, 151)
	attack.Check(t, "150 refusals at once", "0 lines, 150 counted",
		fmt.Sprintf("%d lines, %d counted", len(*said), d.leftOut))
}

// The home's stored position may have been changed, and the log with it.
func TestAttackState(t *testing.T) {
	r := newReceiver(t)
	hs := httptest.NewServer(r)
	defer hs.Close()
	hook := Hook{URL: hs.URL, Secret: secret}
	for name, row := range map[string]struct{ state, want string }{
		"of another log":       {`{"source":"urn:unitask:audit:0000000000000000","line":2}`, "from 0"},
		"beyond the log's end": {`{"source":"SOURCE","line":99}`, "from 0"},
		"before its beginning": {`{"source":"SOURCE","line":-1}`, "an error"},
		"no JSON":              {"\x00", "an error"},
		"as it was":            {`{"source":"SOURCE","line":1}`, "from 1"},
	} {
		home := t.TempDir()
		add(t, home, audit.RunStarted, audit.RunEnded)
		d, _ := delivering(t, home, hook)
		write(t, d.state, strings.ReplaceAll(row.state, "SOURCE", d.at.Source))
		got := "an error"
		if err := d.begin(); err == nil {
			got = fmt.Sprint("from ", d.at.Line)
		}
		attack.Check(t, "how far a receiver is: "+name, row.want, got)
	}
}

// If a log was moved away, delivery continues with the new log in its place, from its first line.
func TestAttackMovedLog(t *testing.T) {
	home, r := t.TempDir(), newReceiver(t)
	hs := httptest.NewServer(r)
	defer hs.Close()
	add(t, home, audit.RunStarted, audit.RunEnded)
	d, said := delivering(t, home, Hook{URL: hs.URL, Secret: secret})
	add(t, home, audit.RunEnded)
	step := 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d.wait = func(context.Context, time.Duration) {
		switch step++; step {
		case 1:
			if err := os.Rename(filepath.Join(home, "audit"), filepath.Join(home, "full")); err != nil {
				t.Error(err)
			}
		case 2: // first none, then a longer one
			add(t, home, slices.Repeat([]audit.Kind{audit.RunStarted}, 5)...)
		case 3:
			cancel()
		}
	}
	err := d.run(ctx)
	attack.Check(t, "a log that is moved away", "lines [3 1 2 3 4 5], said [], <nil>",
		fmt.Sprintf("lines %v, said %v, %v", r.lines(), *said, err))
	ids := slices.Clone(r.ids)
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 6 {
		t.Errorf("ids %v", r.ids)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// A receiver's invalid answer is in an error, truncated.
func TestAttackAnswerText(t *testing.T) {
	for name, answer := range map[string]string{
		"no answer of HTTP":   strings.Repeat("\x1b]0;x\a", 4000) + "\r\n\r\n",
		"a header without :":  "HTTP/1.1 200 OK\r\n" + strings.Repeat("\x1b[2J", 4000) + "\r\n\r\n",
		"a status of letters": "HTTP/1.1 " + strings.Repeat("é", 20000) + "\r\n\r\n",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Read(make([]byte, 4096))
				_, _ = io.WriteString(c, answer)
				c.Close()
			}
		}()
		hook := Hook{URL: "http://" + l.Addr().String(), Secret: secret}
		err = hook.post(t.Context(), client(), "id", []byte("{}"))
		got := fmt.Sprint(err)
		if err != nil && len(got) <= maxError+len("…") {
			got = "an error, cut"
		}
		attack.Check(t, "a receiver that answers "+name, "an error, cut", got)
	}
}
