package unitask

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/record"
)

// A record keeps neighbours beside it, and a replay has them; one with a secret in it can't be run
// again.
func TestNeighboursOnRecord(t *testing.T) {
	rt, err := Open(Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	req := Request{Path: "/w/main.js", Kernel: "nanos", Neighbours: []Neighbour{{Name: "helper.js", Content: "x = '<ü>\\n'\n"}, {Name: "a/empty", Content: ""}}, Secrets: map[string]string{"KEY": "swordfish"}}
	run := func() string {
		t.Helper()
		res, err := rt.Run(t.Context(), req, IO{}) // which is not vendored
		if err == nil || res == nil {
			t.Fatalf("%+v %v", res, err)
		}
		return res.RunID
	}
	id := run()
	got, err := rt.History().Request(id, "")
	if err != nil || fmt.Sprint(got.Neighbours) != fmt.Sprint(req.Neighbours) {
		t.Errorf("%q %v", got.Neighbours, err)
	}
	rec, err := rt.Runs().Get(id)
	if err != nil || strings.Contains(string(rec.Request), "content") || !strings.Contains(string(rec.Request), "helper.js") {
		t.Errorf("%s %v", rec.Request, err)
	}
	req.Neighbours[1].Content = "it is swordfish"
	id = run()
	text, _, err := rt.Runs().Read(id, record.NeighboursFile, 0)
	if err != nil || strings.Contains(string(text), "swordfish") || !strings.Contains(string(text), record.Redacted) {
		t.Errorf("%s %v", text, err)
	}
	if _, err := rt.History().Request(id, ""); !errors.Is(err, history.ErrRedacted) || !strings.Contains(err.Error(), "neighbours") {
		t.Errorf("%v", err)
	}
}
