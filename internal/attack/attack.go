// Package attack is the common part of all attack suites. Each attack is a row: its name, the expected outcome, and the
// actual one. The rows are part of ordinary tests. Suites have names that begin with TestAttack: `make attack` runs
// these and prints their rows as one table. CI prints a table with the rows of all tests.
package attack

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"testing"
)

// Mark begins the line that a row leaves in the output of go test.
const Mark = "attack: "

// Check reports one attack. It fails the test if got, the outcome, differs from want, the required outcome. It prints
// all three quoted, so hostile text can't forge rows.
func Check(t testing.TB, name, want, got string) {
	t.Helper()
	t.Log(Mark + quote(name) + " " + quote(want) + " " + quote(got))
	if got != want {
		t.Errorf("attack %q: expected %q, saw %q", name, want, got)
	}
}

// most limits a string in a row, in bytes. Quoting turns one byte into four at most, and test2json cuts lines at 4 KiB.
const most = 250

// quote returns a string for a row. It shortens a long string to its beginning, its length and the beginning of its
// digest.
func quote(s string) string {
	if len(s) > most {
		s = fmt.Sprintf("%s… of %d bytes, %.4x", s[:most], len(s), sha256.Sum256([]byte(s)))
	}
	return strconv.Quote(s)
}
