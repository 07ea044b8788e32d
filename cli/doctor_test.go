package cli

import (
	"bytes"
	"testing"

	"github.com/unitask/unitask/vmm"
)

// An attempt that gets through is counted and marked; an attempt that only the filter stopped is not.
func TestDoctorAttackRows(t *testing.T) {
	a := &app{ui: newUI(Streams{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}})}
	rows, through := a.attackRows([]vmm.Attempt{
		{Name: "a", Seen: "openat: permission denied", Behind: "the same"},
		{Name: "b", Seen: "ended for calling socket", Behind: "got through", BehindThrough: true},
		{Name: "c", Seen: "got through", Through: true, Behind: "got through", BehindThrough: true},
	})
	if through != 1 || len(rows) != 3 || rows[1][0] != "ok" || rows[2][0] != "FAIL" {
		t.Errorf("%d through: %q", through, rows)
	}
}
