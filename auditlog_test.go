package unitask

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testdir"
)

// A caller's refused request is logged with limited length and without values of secrets. Repeated refusals of one
// caller are not all logged.
func TestAttackAuditRefusals(t *testing.T) {
	rt, err := Open(Options{Home: testdir.Private(t), Events: func(e Event) { t.Errorf("%+v", e) }})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	const value = "a-value-of-a-secret"
	long := strings.Repeat("x", 2*(1<<10)) + ".example/"
	for range 100 {
		for _, req := range []Request{{Code: "1", AllowNet: []string{value + "!"}, Secrets: map[string]string{"KEY": value}},
			{Code: "1", AllowNet: []string{long}}} {
			caller := Caller{Via: ViaHTTP, Name: "alice"}
			if len(req.Secrets) > 0 {
				caller.Name = "bob"
			}
			if _, err := rt.RunFor(t.Context(), caller, req, IO{}); err == nil {
				t.Fatal("it runs")
			}
		}
	}
	var got []string
	if err := rt.Audit().Read(func(_ int64, line []byte) error {
		var e audit.Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		got = append(got, fmt.Sprint(e.Kind, " of ", e.Caller, " via ", e.Via))
		if strings.Contains(string(line), value) || len(line) > 2*(1<<10) {
			t.Errorf("%s", line)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "entries about two callers' 200 refusals",
		"[run.refused of bob via http run.refused of alice via http]", fmt.Sprint(got))
}
