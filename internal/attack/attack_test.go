package attack

import (
	"strings"
	"testing"
)

// recorder records a test's log, and whether it failed.
type recorder struct {
	testing.TB
	log    []string
	failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Log(args ...any)       { r.log = append(r.log, args[0].(string)) }
func (r *recorder) Errorf(string, ...any) { r.failed = true }

// However long a row's strings are, it is one line that test2json leaves complete. Different strings give different
// lines.
func TestLongRows(t *testing.T) {
	long := strings.Repeat("\x00", 1<<20)
	for _, row := range []struct{ want, got string }{{long, long}, {long, long + "x"}, {"shut", long}} {
		r := &recorder{}
		Check(r, long, row.want, row.got)
		if len(r.log) != 1 || len(r.log[0]) > 3900 {
			t.Fatalf("%d lines, of %d bytes", len(r.log), len(r.log[0]))
		}
		var table Table
		table.Add("room", r.log[0])
		if held := row.want == row.got; table.Rows() != 1 || (table.Through == 0) != held || r.failed == held {
			t.Errorf("%d rows, %d through, failed %v", table.Rows(), table.Through, r.failed)
		}
	}
}
