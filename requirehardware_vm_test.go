package unitask_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/vmm"
)

// If hardware is required, nothing runs in emulation, and the error names the key.
func TestAttackRequireHardware(t *testing.T) {
	needVM(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Accel: vmm.TCG})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	ceiling, err := policy.ParseCeiling(policy.CeilingFile, []byte("requireHardware = true"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		caller unitask.Caller
		req    unitask.Request
	}{"by the ceiling": {unitask.Caller{Ceiling: ceiling}, unitask.Request{Code: "1"}},
		"by the request": {unitask.Caller{}, unitask.Request{Code: "1", RequireHardware: true}}} {
		_, err := rt.RunFor(t.Context(), c.caller, c.req, unitask.IO{})
		got := fmt.Sprint(err)
		if field := (*policy.FieldError)(nil); errors.As(err, &field) {
			got = "refused for " + field.Field
		}
		attack.Check(t, "a run in emulation where hardware is required "+name, "refused for requireHardware", got)
	}
}
