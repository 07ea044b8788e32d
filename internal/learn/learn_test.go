package learn

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// recorded writes the record of a run with these grants, and lines of its netlog and calls of tools.
func recorded(t testing.TB, store *record.Store, id string, granted policy.Request, netlog, tools string) {
	t.Helper()
	effective, _, err := policy.Resolve(granted, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := store.CreateAs(id, time.Now(), "", record.ViaCLI, "code.js", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	effective.Tools = granted.Tools // without a ceiling there are none
	if r.Effective, err = json.Marshal(effective); err != nil {
		t.Fatal(err)
	}
	r.Status = record.Done
	if err := r.Finish(time.Now()); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{record.NetlogFile: netlog, record.ToolsFile: tools} {
		if text == "" {
			continue
		}
		if err := os.WriteFile(store.Path(id, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// logged returns lines of a netlog: PROTO TARGET VERDICT RULE, where a target is NAME:PORT, and METHOD PATH for http.
func logged(list ...netstack.Decision) string {
	var out strings.Builder
	for _, d := range list {
		text, _ := json.Marshal(d)
		out.Write(append(text, '\n'))
	}
	return out.String()
}

func tcp(name string, port uint16, rule string) netstack.Decision {
	return netstack.Decision{Proto: "tcp", Name: name, Addr: "198.18.0.1", Port: port, Verdict: netstack.Allowed,
		Rule: rule}
}

func web(name, method, path, rule string) netstack.Decision {
	return netstack.Decision{Proto: "http", Name: name, Port: 443, Method: method, Path: path, Verdict: netstack.Allowed,
		Rule: rule}
}

func refused(proto, name, addr string, port uint16) netstack.Decision {
	return netstack.Decision{Proto: proto, Name: name, Addr: addr, Port: port, Reason: "no rule allows it"}
}

// linesOf returns a proposal's lines as KEY RULE.
func linesOf(t testing.TB, p *Proposal) (list []string) {
	t.Helper()
	if _, err := policy.ParseCeiling("test", []byte(p.File)); err != nil {
		t.Fatalf("%v:\n%s", err, p.File)
	}
	for _, line := range p.Lines {
		list = append(list, line.Key+" "+line.Rule)
	}
	return list
}

func TestFrom(t *testing.T) {
	any := policy.Request{AllowNetAny: true}
	wild := policy.Request{AllowNet: []string{"*.example.com"}}
	ruled := policy.Request{AllowNet: []string{"a.example.com"}, AllowHTTP: []string{"GET,POST a.example.com/v1/*"}}
	for _, c := range []struct {
		name    string
		granted policy.Request
		log     string
		opts    Options
		want    []string
		left    int
	}{
		{name: "nothing", granted: any},
		{name: "a host", granted: any, log: logged(tcp("a.example.com", 443, "net any"), tcp("a.example.com", 80, "net any")),
			want: []string{"allowNet a.example.com"}},
		{name: "the rule's port", granted: policy.Request{AllowNet: []string{"a.example.com:8443"}},
			log: logged(tcp("a.example.com", 8443, "net a.example.com:8443")), want: []string{"allowNet a.example.com:8443"}},
		{name: "an address", granted: policy.Request{AllowNet: []string{"93.184.216.34"}},
			log: logged(netstack.Decision{Proto: "tcp", Addr: "93.184.216.34", Port: 443, Verdict: netstack.Allowed,
				Rule: "net 93.184.216.34"}), want: []string{"allowNet 93.184.216.34"}},
		{name: "one host below a wildcard", granted: wild, log: logged(tcp("a.example.com", 443, "net *.example.com")),
			want: []string{"allowNet a.example.com"}},
		{name: "two hosts below a wildcard", granted: wild, log: logged(tcp("a.example.com", 443, "net *.example.com"),
			tcp("b.example.com", 443, "net *.example.com")), want: []string{"allowNet *.example.com"}},
		{name: "two hosts without one", granted: any, log: logged(tcp("a.example.com", 443, "net any"),
			tcp("b.example.com", 443, "net any")), want: []string{"allowNet a.example.com", "allowNet b.example.com"}},
		{name: "asked about", granted: policy.Request{Ask: []string{"a.example.com"}},
			log: logged(tcp("a.example.com", 443, "ask a.example.com")), want: []string{"ask a.example.com"}},
		{name: "raw", granted: policy.Request{AllowTCP: []string{"127.0.0.1:5432"}},
			log: logged(netstack.Decision{Proto: "tcp", Addr: "127.0.0.1", Port: 5432, Verdict: netstack.Allowed,
				Rule: "tcp 127.0.0.1:5432"}), want: []string{"allowTcp 127.0.0.1:5432"}},
		{name: "a request", granted: ruled, log: logged(tcp("a.example.com", 443, "net a.example.com"),
			web("a.example.com", "GET", "/v1/x", "GET,POST a.example.com/v1/*"),
			web("a.example.com", "POST", "/v1/x", "GET,POST a.example.com/v1/*")),
			want: []string{"allowNet a.example.com", "net.rule GET,POST a.example.com/v1/x"}},
		{name: "requests below a rule", granted: ruled, log: logged(tcp("a.example.com", 443, "net a.example.com"),
			web("a.example.com", "GET", "/v1/x", "GET,POST a.example.com/v1/*"),
			web("a.example.com", "HEAD", "/v1/y", "GET,POST a.example.com/v1/*")),
			want: []string{"allowNet a.example.com", "net.rule GET a.example.com/v1/*"}},
		{name: "no request was allowed", granted: ruled, log: logged(tcp("a.example.com", 443, "net a.example.com")),
			left: 1},
		{name: "a refused host", granted: any, log: logged(refused("dns", "b.example.", "", 0)), left: 1},
		{name: "a refused host, wanted", granted: any, log: logged(refused("dns", "b.example.", "", 0)),
			opts: Options{Refused: true}, want: []string{"allowNet b.example"}},
		{name: "a refused private address", granted: any, log: logged(refused("tcp", "", "169.254.169.254", 80)),
			opts: Options{Refused: true}, left: 1},
		{name: "a refused private address, wanted", granted: any, log: logged(refused("tcp", "", "10.0.0.7", 5432)),
			opts: Options{Private: true}, want: []string{"allowTcp 10.0.0.7:5432"}},
	} {
		store := record.Open(testdir.Private(t))
		recorded(t, store, "r1", c.granted, c.log, "")
		p, err := From(store, []string{"r1"}, c.opts)
		if err != nil {
			t.Fatal(c.name, err)
		}
		if got := linesOf(t, p); !slices.Equal(got, c.want) || len(p.Left) != c.left {
			t.Errorf("%s: got %q, want %q; left %v:\n%s", c.name, got, c.want, p.Left, p.File)
		}
	}
}

// Several runs give one file. A host whose requests one run did not read has no rules about requests.
func TestFromSeveral(t *testing.T) {
	store := record.Open(testdir.Private(t))
	ruled := policy.Request{AllowHTTP: []string{"GET a.example.com/v1/*"}, AllowNet: []string{"a.example.com"}}
	log := logged(tcp("a.example.com", 443, "net a.example.com"),
		web("a.example.com", "GET", "/v1/x", "GET a.example.com/v1/*"))
	recorded(t, store, "r1", ruled, log, "")
	recorded(t, store, "r2", policy.Request{AllowNet: []string{"a.example.com"}},
		logged(tcp("a.example.com", 443, "net a.example.com")), "")
	recorded(t, store, "r3", policy.Request{}, "", "")
	p, err := From(store, []string{"r1", "r2", "r3"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := linesOf(t, p); !slices.Equal(got, []string{"allowNet a.example.com"}) ||
		!strings.Contains(p.File, `"a.example.com", # 2 connections; runs r1, r2; requests not read`) {
		t.Errorf("got %q:\n%s", got, p.File)
	}
	if !slices.Equal(p.Offline, []string{"r3"}) {
		t.Errorf("offline: %q", p.Offline)
	}
}

// The table of a server is copied with the tools that were called, and no others.
func TestAttackTools(t *testing.T) {
	store := record.Open(testdir.Private(t))
	calls := ""
	for _, call := range [][2]string{{"search", ""}, {"search", "tool"}, {"a*b", ""}, {"drop", "denied"}, {"other", ""}} {
		calls += fmt.Sprintf(`{"server":"github","tool":%q,"code":%q}`+"\n", call[0], call[1])
	}
	recorded(t, store, "r1", policy.Request{Tools: []string{"github"}}, "", calls)
	ceiling, err := policy.ParseCeiling("test", []byte(`[tools.github]
command = ["github-mcp-server", "std\"io"]
env = { A = "b\nc" }
passEnv = ["TOKEN"]
allow = ["search", "a*", "drop"]
approve = true
maxCalls = 7
pin = "sha256:`+strings.Repeat("a", 64)+`"
[[tools.github.where]]
argument = "owner"
matches = "acme|b\\d"
[[tools.github.where]]
tool = "s*"
argument = "n"
in = [1, 2]
`))
	if err != nil {
		t.Fatal(err)
	}
	p, err := From(store, []string{"r1"}, Options{Servers: ceiling.ToolServers()})
	if err != nil {
		t.Fatal(err)
	}
	again, err := policy.ParseCeiling("test", []byte(p.File))
	if err != nil {
		t.Fatalf("%v:\n%s", err, p.File)
	}
	was, now := *ceiling.ToolServer("github"), *again.ToolServer("github")
	if !now.Allows("a*b") || now.Allows("axb") || !now.Allows("search") || now.Allows("drop") || now.Allows("other") {
		t.Errorf("it allows %q", now.Allow)
	}
	attack.Check(t, "learn: values of a server's environment in the file", "A, without its value",
		map[bool]string{true: "A, without its value"}[now.Env == nil && strings.Contains(p.File, "not copied") &&
			strings.Contains(p.File, ": A\n") && !strings.Contains(p.File, `b\nc`)])
	was.Allow, now.Allow, was.Env = nil, nil, nil
	if fmt.Sprintf("%+v", was) != fmt.Sprintf("%+v", now) {
		t.Errorf("was %+v, is %+v", was, now)
	}
	if len(p.Left) != 2 || p.Checked != 2 {
		t.Errorf("left out: %v; %d checked", p.Left, p.Checked)
	}
	if p, err = From(store, []string{"r1"}, Options{}); err != nil || len(p.Lines) != 0 ||
		!strings.Contains(p.File, "no policy file here has the table [tools.github]") {
		t.Errorf("%v:\n%s", err, p.File)
	}
}

// The code chose names, methods, paths and tools. None becomes more than it was, or another line of the file.
func TestAttackLearn(t *testing.T) {
	ruled := policy.Request{AllowNet: []string{"a.example.com"}, AllowHTTP: []string{"GET a.example.com/v1/*"}}
	rule := "GET a.example.com/v1/*"
	two := policy.Request{AllowNet: []string{"*.example.com"},
		AllowHTTP: []string{"GET *.example.com/v1/*", "deny GET *.example.com/v1/admin"}}
	for _, c := range []struct {
		name    string
		granted policy.Request
		log     string
		opts    Options
		want    string
	}{
		{"a new line in a name", policy.Request{AllowNetAny: true},
			logged(tcp("a.example\"]\nallowNetAny = true\n#", 443, "net any")), Options{Refused: true}, ""},
		{"a wildcard as a name", policy.Request{AllowNetAny: true}, logged(tcp("*.example.com", 443, "net any"),
			refused("dns", "*.example.com", "", 0)), Options{Refused: true}, ""},
		{"every host as a rule", policy.Request{}, logged(refused("dns", "*", "", 0), refused("tcp", "", "0.0.0.0/0", 443)),
			Options{Refused: true, Private: true}, ""},
		{"a name beyond its rule", policy.Request{AllowNet: []string{"a.example.com"}},
			logged(tcp("evil.example", 443, "net a.example.com")), Options{}, ""},
		{"a port beyond its rule", policy.Request{AllowNet: []string{"a.example.com"}},
			logged(tcp("a.example.com", 22, "net a.example.com")), Options{}, ""},
		{"refused, without being asked for", policy.Request{}, logged(refused("dns", "evil.example.", "", 0),
			refused("tcp", "evil.example", "198.18.0.9", 443)), Options{}, ""},
		{"metadata by its address", policy.Request{}, logged(refused("tcp", "", "169.254.169.254", 80)),
			Options{Refused: true}, ""},
		{"metadata by its name", policy.Request{}, logged(refused("dns", "metadata.google.internal.", "", 0)),
			Options{Refused: true, Private: true}, ""},
		{"this host by its name", policy.Request{}, logged(refused("tcp", "localhost", "127.0.0.1", 80)),
			Options{Refused: true, Private: true}, ""},
		{"a star in a path", ruled, logged(tcp("a.example.com", 443, "net a.example.com"),
			web("a.example.com", "GET", "/v1/*", "")), Options{}, ""},
		{"all paths below, by a path", ruled, logged(tcp("a.example.com", 443, "net a.example.com"),
			web("a.example.com", "GET", "/**", "")), Options{}, ""},
		{"a star in a path, within a rule", ruled, logged(tcp("a.example.com", 443, "net a.example.com"),
			web("a.example.com", "GET", "/v1/*", rule)), Options{}, "allowNet a.example.com|net.rule " + rule},
		{"a method that is a list", ruled, logged(tcp("a.example.com", 443, "net a.example.com"),
			web("a.example.com", "GET,DELETE", "/v1/x", "")), Options{}, ""},
		{"every method as a method", ruled, logged(tcp("a.example.com", 443, "net a.example.com"),
			web("a.example.com", "*", "/v1/x", ""), web("a.example.com", "deny GET", "/v1/x", "")), Options{}, ""},
		{"a path that may be cut", ruled, logged(tcp("a.example.com", 443, "net a.example.com"),
			web("a.example.com", "GET", "/"+strings.Repeat("a", 299), "")), Options{}, ""},
		{"a wildcard over hosts with rules", two, logged(tcp("a.example.com", 443, "net *.example.com"),
			tcp("b.example.com", 443, "net *.example.com"), web("a.example.com", "GET", "/v1/x", "GET *.example.com/v1/*"),
			web("a.example.com", "GET", "/v1/y", "GET *.example.com/v1/*"),
			web("b.example.com", "GET", "/v1/x", "GET *.example.com/v1/*")), Options{},
			"allowNet a.example.com|allowNet b.example.com|net.rule GET a.example.com/v1/x|" +
				"net.rule GET a.example.com/v1/y|net.rule GET b.example.com/v1/x"},
	} {
		store := record.Open(testdir.Private(t))
		recorded(t, store, "r1", c.granted, c.log, "")
		got := ""
		p, err := From(store, []string{"r1"}, c.opts)
		if err != nil {
			got = err.Error()
		} else {
			got = strings.Join(linesOf(t, p), "|")
		}
		attack.Check(t, "learn: "+c.name, c.want, got)
	}
}

// More than a file can list is an error.
func TestAttackLearnMuch(t *testing.T) {
	store := record.Open(testdir.Private(t))
	var log strings.Builder
	for i := range maxTargets + 10 {
		log.WriteString(logged(tcp(fmt.Sprintf("n%d.example", i), 443, "net any"), refused("dns",
			fmt.Sprintf("r%d.example.", i), "", 0)))
	}
	recorded(t, store, "r1", policy.Request{AllowNetAny: true}, log.String(), "")
	_, err := From(store, []string{"r1"}, Options{})
	attack.Check(t, "learn: many hosts", "the runs used more than a policy file can list: 10000 lines of allowNet, "+
		"and 256 is the most; name fewer runs", fmt.Sprint(err))
	recorded(t, store, "r2", policy.Request{}, `{"proto":"tcp","name":"`+strings.Repeat("a", maxLogLine)+`"}`, "")
	p, err := From(store, []string{"r2"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "learn: a long line", "run r2: the end of its netlog.jsonl was not read, because it is too large",
		strings.Join(p.Unknown, ""))
}

// FuzzFrom checks that whatever stands in a netlog, the file can be read, and no line allows more than the run had.
func FuzzFrom(f *testing.F) {
	f.Add([]byte(logged(tcp("a.example.com", 443, "net *.example.com"), tcp("b.example.com", 443, "net *.example.com"),
		web("c.example.org", "GET", "/v1/x", "GET c.example.org/v1/*"), tcp("c.example.org", 443, "net c.example.org"),
		tcp("", 5432, "tcp 127.0.0.1:5432"), refused("dns", "x.example.", "", 0))), false)
	granted := policy.Request{AllowNet: []string{"*.example.com", "c.example.org", "93.184.216.34:444"},
		AllowHTTP: []string{"GET c.example.org/v1/*"}, AllowTCP: []string{"127.0.0.1:5432"}, Ask: []string{"d.example.net"}}
	top, err := policy.ParseCeiling("test", []byte(`allowNet = ["*.example.com", "c.example.org", "93.184.216.34:444"]
ask = ["d.example.net"]
allowTcp = ["127.0.0.1:5432"]
[[net.rule]]
host = "c.example.org"
method = "GET"
path = "/v1/*"
`))
	if err != nil {
		f.Fatal(err)
	}
	effective, _, err := policy.Resolve(granted, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, log []byte, private bool) {
		l := newLearner(Options{Private: private})
		src := &source{id: "r1", granted: effective, rules: egress.BrokerRules(effective), used: map[request]bool{}}
		l.sources = append(l.sources, src)
		if err := l.netlog(src, bytes.NewReader(log)); err != nil {
			t.Fatal(err)
		}
		p, err := l.propose()
		if err != nil && !errors.Is(err, ErrTooMuch) {
			t.Fatal(err)
		}
		if err != nil {
			return
		}
		c, err := policy.ParseCeiling("test", []byte(p.File))
		if err != nil {
			t.Fatalf("%v:\n%s", err, p.File)
		}
		for _, w := range c.Beyond(top) {
			text := w.String()
			if !strings.HasPrefix(text, "allowNet") && !strings.HasPrefix(text, "ask") && !strings.HasPrefix(text, "net") {
				continue // --private adds addresses; other keys have no limit
			}
			if text != "net without GET c.example.org/v1/*" {
				t.Errorf("%s is beyond what the run had:\n%s", text, p.File)
			}
		}
	})
}
