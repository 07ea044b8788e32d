package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// refusedRun makes the record of a run whose code was refused hosts.
func refusedRun(t *testing.T, records *record.Store, owner string, hosts ...string) string {
	t.Helper()
	id := ended(t, records, nil)
	effective, _, err := policy.Resolve(policy.Request{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(records.Path(id, "run.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rec map[string]any
	if err := json.Unmarshal(text, &rec); err != nil {
		t.Fatal(err)
	}
	rec["effective"], rec["owner"], rec["request"] = effective, owner, map[string]any{"language": "js"}
	if text, err = json.Marshal(rec); err != nil {
		t.Fatal(err)
	}
	var log []byte
	for _, host := range hosts {
		line, err := json.Marshal(netstack.Decision{Proto: "tcp", Name: host, Addr: "198.18.0.1", Port: 443,
			Verdict: netstack.Denied, Reason: "no rule allows it"})
		if err != nil {
			t.Fatal(err)
		}
		log = append(append(log, line...), '\n')
	}
	for name, text := range map[string][]byte{"run.json": text, record.NetlogFile: log, "code.js": []byte("1")} {
		if err := os.WriteFile(records.Path(id, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return id
}

// field returns the value of a form's hidden field.
func field(page, name string) string {
	page = html.UnescapeString(page)
	found := regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(page)
	if found == nil {
		return ""
	}
	return found[1]
}

// reviewing is a console in a folder with a ceiling that is trusted.
func reviewing(t *testing.T, ceiling string) (c *Console, file string) {
	t.Helper()
	home, dir := testdir.Private(t), testdir.Private(t)
	c, file = testConsole(t, record.Open(testdir.Private(t))), filepath.Join(dir, policy.CeilingFile)
	if err := os.WriteFile(file, []byte(ceiling), 0o600); err != nil {
		t.Fatal(err)
	}
	read, err := policy.ReadCeiling(file)
	if err == nil {
		err = policy.OpenTrust(home).Add(read, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Home = home
	c.Policy = func() (*policy.ForPeople, error) { return policy.LoadForPeople(home, dir, "") }
	return c, file
}

// A ceiling is written only as its review has shown it, and only with a line of the run's page.
func TestAttackConsoleReview(t *testing.T) {
	const ceiling = "# mine\nallowNet = [ # none\n]\n"
	c, file := reviewing(t, ceiling)
	id := refusedRun(t, c.History.Records, unitask.LocalOwner(os.Geteuid()), "refused.example",
		"<script>alert(1)</script>.example", "other.example")
	page := asUser(c, "/run?id="+id, nil).Body.String()
	attack.Check(t, "console: a host's name with markup, in lines to allow", "0 2",
		fmt.Sprint(strings.Count(page, "alert(1)</code>"), strings.Count(page, "Run again with this allowed")))
	attack.Check(t, "console: the run's page names the file", "true", strconv.FormatBool(strings.Contains(page, file)))
	form := func(of string) url.Values {
		f, err := url.ParseQuery(of)
		if err != nil {
			t.Fatal(err)
		}
		f.Set("id", id)
		return f
	}
	const about = "key=allowNet&rule=refused.example"
	w := asUser(c, "/allow?"+form(about).Encode(), nil)
	shown := field(w.Body.String(), "digest")
	if w.Code != 200 || shown == "" || !strings.Contains(w.Body.String(), "&#43;  &#34;refused.example&#34;,") {
		t.Fatal(w.Code, w.Body)
	}
	say := func() string {
		text, err := os.ReadFile(file)
		read, e := policy.ReadCeiling(file)
		if err != nil || e != nil {
			return fmt.Sprint(err, e)
		}
		return fmt.Sprint(string(text), policy.OpenTrust(c.Home).Of(read))
	}
	for name, of := range map[string]string{"without a digest": about, "with another digest": about + "&digest=x",
		"with a host that was not refused": "key=allowNet&rule=evil.example&digest=" + shown,
		"with the digest of another host":  "key=allowNet&rule=other.example&digest=" + shown,
		"with all hosts":                   "key=allowNet&rule=*&digest=" + shown,
		"with another key":                 "key=allowNetAny&rule=refused.example&digest=" + shown,
		"with a text that ends the list":   "key=allowNet&digest=" + shown + "&rule=" + url.QueryEscape("\"]\ncpus = 9 #"),
	} {
		code := asUser(c, "/allow", form(of)).Code
		attack.Check(t, "console: write a ceiling "+name, "4 "+ceiling+"<nil>", fmt.Sprint(code/100, " ", say()))
	}
	attack.Check(t, "console: a GET with a digest writes nothing", ceiling+"<nil>", func() string {
		asUser(c, "/allow?"+form(about+"&digest="+shown).Encode(), nil)
		return say()
	}())
	changed := ceiling + "cpus = 1\n"
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	code := asUser(c, "/allow", form(about+"&digest="+shown)).Code
	attack.Check(t, "console: write a ceiling that has changed since", "409 "+changed, fmt.Sprint(code, " ",
		strings.TrimSuffix(say(), "is not trusted: it, or where its folders lead, has changed since")[:len(changed)]))
	shown = field(asUser(c, "/allow?"+form(about).Encode(), nil).Body.String(), "digest")
	code = asUser(c, "/allow", form(about+"&digest="+shown)).Code
	attack.Check(t, "console: a ceiling that was not trusted, once written", "303 false", fmt.Sprint(code, " ",
		strings.HasSuffix(say(), "<nil>")))
	w = asUser(c, "/allow?"+form(about).Encode(), nil)
	attack.Check(t, "console: the same review again", "200 false true", fmt.Sprint(w.Code, " ",
		strings.Contains(w.Body.String(), "Write this"), " ", strings.Contains(w.Body.String(), `action="again"`)))
}

// A line that no button can add says so. A review names the file that is written, and its line has an effect.
func TestAttackConsoleReviewEffect(t *testing.T) {
	host := url.Values{"key": {"allowNet"}, "rule": {"refused.example"}}
	var full strings.Builder
	for i := range policy.MaxRules {
		fmt.Fprintf(&full, "%q, ", fmt.Sprintf("h%d.example", i))
	}
	look := func(c *Console, of url.Values) (page, review string, code int) {
		id := refusedRun(t, c.History.Records, unitask.LocalOwner(os.Geteuid()), "refused.example")
		of.Set("id", id)
		w := asUser(c, "/allow?"+of.Encode(), nil)
		return asUser(c, "/run?id="+id, nil).Body.String(), w.Body.String(), w.Code
	}
	c, file := reviewing(t, "allowNet = ["+full.String()+"]\n")
	page, _, code := look(c, host)
	attack.Check(t, "console: a ceiling that no button can extend", "409 false true", fmt.Sprint(code, " ",
		strings.Contains(page, "held back by no file"), " ", strings.Contains(page, "by hand")))
	target := filepath.Join(filepath.Dir(file), "other.toml")
	if err := os.WriteFile(target, []byte("allowNet = []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(file), os.Symlink("other.toml", file)); err != nil {
		t.Fatal(err)
	}
	_, review, code := look(c, host)
	attack.Check(t, "console: a review of a link names its target", "200 true", fmt.Sprint(code, " ",
		strings.Contains(review, "<h2>"+target)))
}

// A rule by path is not added again and again to a ceiling that does not allow its host.
func TestAttackConsoleReviewWithoutHost(t *testing.T) {
	c, file := reviewing(t, "allowNet = [\"a.example:8443\"]\n")
	ceiling, err := policy.ReadCeiling(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.edit(ceiling, wanted{Key: "net.rule", Rule: "GET a.example/v1"})
	attack.Check(t, "console: a rule by path for a host that the ceiling does not allow", "true",
		strconv.FormatBool(err != nil && strings.Contains(err.Error(), "would not be enough")))
}

// What was reviewed is written, stays trusted, and the run starts again with it.
func TestReviewAndAgain(t *testing.T) {
	c, file := reviewing(t, "allowNet = [\"a.example\"] # why\n")
	id := refusedRun(t, c.History.Records, unitask.LocalOwner(os.Geteuid()), "refused.example")
	about := url.Values{"id": {id}, "key": {"allowNet"}, "rule": {"refused.example"}}
	about.Set("digest", field(asUser(c, "/allow?"+about.Encode(), nil).Body.String(), "digest"))
	if w := asUser(c, "/allow", about); w.Code != 303 {
		t.Fatal(w.Code, w.Body)
	}
	read, err := policy.ReadCeiling(file)
	if err != nil || read.Text() != "allowNet = [\"a.example\", \"refused.example\"] # why\n" ||
		policy.OpenTrust(c.Home).Of(read) != nil {
		t.Fatal(err, read.Text(), policy.OpenTrust(c.Home).Of(read))
	}
	asked := make(chan unitask.Request, 1)
	c.Run = func(_ context.Context, by unitask.Caller, req unitask.Request, std unitask.IO) (*unitask.Result, error) {
		if _, denials, err := policy.Resolve(policy.Request{AllowNet: req.AllowNet}, by.Ceiling); err != nil ||
			len(denials) > 0 || std.ToolsOf != id {
			t.Error(denials, err, std.ToolsOf)
		}
		std.Events(unitask.Event{Kind: unitask.EventRecord, Message: "new"})
		asked <- req
		return &unitask.Result{}, nil
	}
	w := asUser(c, "/again", about)
	if w.Code != 303 || !strings.HasSuffix(w.Header().Get("Location"), "run?id=new") {
		t.Fatal(w.Code, w.Body)
	}
	if req := <-asked; req.Code != "1" || fmt.Sprint(req.AllowNet) != "[refused.example]" {
		t.Error(req)
	}
	other := refusedRun(t, c.History.Records, "alice", "refused.example")
	about.Set("id", other)
	attack.Check(t, "console: the run of another caller, again", "409", strconv.Itoa(asUser(c, "/again", about).Code))
}

// A permanent answer is written only as its review has shown it, and only to the question that is open.
func TestAttackConsoleAlways(t *testing.T) {
	c, file := reviewing(t, "")
	id := refusedRun(t, c.History.Records, unitask.LocalOwner(os.Geteuid()))
	l, err := localsocket.Listen(filepath.Dir(c.History.Records.Path(id, "run.json")), "control.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var mu sync.Mutex
	open := run.Question{RunID: id, Host: "a.example:443", Until: time.Now().Add(time.Minute).UTC()}
	var verdicts []string
	go localsocket.Serve(l, 8, &sync.WaitGroup{}, func(conn *net.UnixConn) {
		var said map[string]any
		if json.NewDecoder(conn).Decode(&said) != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if v, is := said["verdict"]; is {
			verdicts = append(verdicts, fmt.Sprint(v, said["host"]))
			_ = json.NewEncoder(conn).Encode(map[string]any{})
			return
		}
		_ = json.NewEncoder(conn).Encode(map[string]any{"open": open, "ceiling": file})
	})
	ask := func(host string) url.Values {
		mu.Lock()
		defer mu.Unlock()
		open.Host = host
		return url.Values{"run": {id}, "host": {host}, "until": {rfc(open.Until)}}
	}
	kept := func() string {
		list, err := policy.OpenApprovals(c.Home).List()
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprint(len(list), err, verdicts)
	}
	for _, host := range []string{"tool:a.b", "*.example:443", "a.example", "<b>:1"} {
		about := ask(host)
		w := asUser(c, "/always?"+about.Encode(), nil)
		attack.Check(t, "console: always allow "+host, "409 0 <nil> []", fmt.Sprint(w.Code, " ", kept()))
	}
	about := ask("a.example:443")
	page := asUser(c, "/always?"+about.Encode(), nil).Body.String()
	about.Set("at", field(page, "at"))
	about.Set("digest", field(page, "digest"))
	if !strings.Contains(page, "&#43;host = &#34;a.example:443&#34;") {
		t.Fatal(page)
	}
	for name, values := range map[string][2]string{"no digest": {"digest", ""}, "another host": {"host", "b.example:443"},
		"another time": {"at", rfc(time.Now().Add(-time.Minute))}, "an old time": {"at", rfc(time.Unix(0, 0))},
		"another question": {"until", rfc(time.Now())}, "another run": {"run", "20261129T000000-aaaaaaaaaaaa"}} {
		bad := url.Values{}
		for k, v := range about {
			bad[k] = v
		}
		bad.Set(values[0], values[1])
		code := asUser(c, "/always", bad).Code
		attack.Check(t, "console: always, with "+name, "409 0 <nil> []", fmt.Sprint(code, " ", kept()))
	}
	attack.Check(t, "console: always, as reviewed", "303 1 <nil> [allowa.example:443]",
		fmt.Sprint(asUser(c, "/always", about).Code, " ", kept()))
	lines, err := audit.In(c.Home).Last(audit.Filter{Kind: audit.NetAsked, Run: id}, 0, 10, 10)
	if err != nil || len(lines) != 1 || !strings.Contains(string(lines[0].Detail), `"always"`) {
		t.Errorf("the audit log has %v, %v", lines, err)
	}
	found, ok, err := policy.OpenApprovals(c.Home).Find("a.example:443", file, unitask.LocalOwner(os.Geteuid()))
	if !ok || err != nil || found.Run != id {
		t.Error(found, ok, err)
	}
}
