package unitask

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// failing is a fleet whose worker returns an error.
type failing struct{ err error }

func (f failing) Run(context.Context, *FleetRun) (*Result, error) { return nil, f.err }

// An error from a worker has a length limit, and contains no secret of the run. Its kind is kept.
func TestAttackWorkerFails(t *testing.T) {
	text := "\x1b[2J" + saidValue + " " + strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		err error
		as  any
	}{
		"of a field": {
			&policy.FieldError{Field: text, Value: text, Reason: text, Would: map[string]int64{text: 1}},
			new(*policy.FieldError)},
		"of a field, as what would do": {
			&policy.FieldError{Field: "memoryMb", Would: map[string]int64{saidValue: 1, "a\x1bb": 1}}, new(*policy.FieldError)},
		"of the guest": {&GuestError{Reason: text, Console: text}, new(*GuestError)},
		"of the host":  {&HostError{Op: "fleet", Err: errors.New(text)}, new(*HostError)},
		"of a loss":    {&LostError{Reason: text}, new(*LostError)},
	} {
		rt, err := Open(Options{Home: testdir.Private(t), Fleet: failing{c.err}})
		if err != nil {
			t.Fatal(err)
		}
		req := Request{Code: "1", AllowNet: []string{"good.example"}, Secrets: map[string]string{"KEY": saidValue},
			SecretHosts: map[string][]string{"KEY": {"good.example"}}}
		_, err = rt.Run(t.Context(), req, IO{Events: func(Event) {}})
		rt.Close()
		got := "bounded, without the secret, of its kind"
		whole := fmt.Sprintf("%v %#v", err, err)
		var field *policy.FieldError
		if errors.As(err, &field) {
			whole += fmt.Sprint(*field)
		}
		if !errors.As(err, c.as) || len(err.Error()) > 4*history.MaxSaidError || strings.Contains(whole, saidValue) ||
			strings.Contains(whole, "\x1b") {
			got = fmt.Sprintf("%T of %d bytes: %.300q", err, len(err.Error()), whole)
		}
		attack.Check(t, "a worker fails with an error "+name, "bounded, without the secret, of its kind", got)
	}
}
