package unitask_test

import (
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/learn"
	"github.com/unitask/unitask/policy"
)

// A ceiling learned from a run allows what the run did, and nothing more.
func TestLearn(t *testing.T) {
	needVM(t)
	web := newSite(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Upstream: web.upstream})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	run := func(ceiling *policy.Ceiling, code string) (string, string) {
		t.Helper()
		res, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: ceiling}, unitask.Request{Code: code, AllowNetAny: true,
			AllowHTTP: []string{"GET,PUT good.example/v1/**"}}, unitask.IO{})
		if err != nil {
			t.Fatal(err)
		}
		return res.RunID, string(res.Stdout) + string(res.Stderr)
	}
	const code = `const at = (url, method = "GET") => fetch("http://" + url, { method }).then((r) => r.status, () => "no")
console.log(await at("good.example/v1/a"), await at("good.example/v1/b/c"), await at("good.example/v1/a", "DELETE"),
  await at("good.example/v2"), await at("a.b.wild.example/x"), await at("inside.example/"),
  await at("169.254.169.254/"))`
	const want = "200 200 403 403 200 no no\n"
	id, said := run(nil, code)
	if said != want {
		t.Fatalf("said %q", said)
	}
	p, err := learn.From(rt.Runs(), []string{id}, learn.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, line := range p.Lines {
		lines = append(lines, line.Key+" "+line.Rule)
	}
	if got := strings.Join(lines, "\n"); got != `allowNet a.b.wild.example
allowNet good.example
net.rule GET good.example/v1/**` {
		t.Errorf("got %s\n%s", got, p.File)
	}
	ceiling, err := policy.ParseCeiling("test", []byte(p.File))
	if err != nil {
		t.Fatal(err)
	}
	if _, said := run(ceiling, code+`; console.log(await at("good.example/v1/a", "PUT"))`); said != want+"403\n" {
		t.Errorf("under the file: %q\n%s", said, p.File)
	}
}
