package unitask

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/record"
)

// A record stores inline files, and a replay uses them. A record whose files contained a secret can't be replayed.
func TestInlineFilesOnRecord(t *testing.T) {
	rt, err := Open(Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	req := Request{Path: "/w/main.js", Kernel: "nanos",
		InlineFiles: []InlineFile{{Name: "helper.js", Content: "x = '<ü>\\n'\n"}, {Name: "a/empty", Content: ""}},
		Secrets:     map[string]string{"KEY": "swordfish"}}
	run := func() string {
		t.Helper()
		res, err := rt.Run(t.Context(), req, IO{}) // not vendored
		if err == nil || res == nil {
			t.Fatalf("%+v %v", res, err)
		}
		return res.RunID
	}
	id := run()
	got, err := rt.History().Request(id, "")
	if err != nil || fmt.Sprint(got.InlineFiles) != fmt.Sprint(req.InlineFiles) {
		t.Errorf("%q %v", got.InlineFiles, err)
	}
	rec, err := rt.Runs().Get(id)
	if err != nil || strings.Contains(string(rec.Request), "content") ||
		!strings.Contains(string(rec.Request), "helper.js") {
		t.Errorf("%s %v", rec.Request, err)
	}
	old := rt.Runs().Path(id, "run.json")
	text, err := os.ReadFile(old)
	text = bytes.Replace(text, []byte(`"inlineFiles"`), []byte(`"neighbours"`), 1)
	if err := errors.Join(err, os.WriteFile(old, text, 0o600),
		os.Rename(rt.Runs().Path(id, record.InlineFilesFile), rt.Runs().Path(id, "neighbours.json"))); err != nil {
		t.Fatal(err)
	}
	got, err = rt.History().Request(id, "")
	if err != nil || fmt.Sprint(got.InlineFiles) != fmt.Sprint(req.InlineFiles) {
		t.Errorf("of a record of before the new names: %q %v", got.InlineFiles, err)
	}
	req.InlineFiles[1].Content = "it is swordfish"
	id = run()
	text, _, err = rt.Runs().Read(id, record.InlineFilesFile, 0)
	if err != nil || strings.Contains(string(text), "swordfish") || !strings.Contains(string(text), record.Redacted) {
		t.Errorf("%s %v", text, err)
	}
	if _, err := rt.History().Request(id, ""); !errors.Is(err, history.ErrRedacted) ||
		!strings.Contains(err.Error(), "inlineFiles") {
		t.Errorf("%v", err)
	}
}
