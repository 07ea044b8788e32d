package vmm

import (
	"bytes"
	"strings"
	"testing"
)

// A state of Xen's form becomes one of a migration's, and nothing else does.
func TestSplice(t *testing.T) {
	const head = "QEVM\x00\x00\x00\x03"
	const timer = "\x05timer\x00\x00\x00\x00\x00\x00\x00\x02"
	const migrated = head + "\x07machine" + "\x01ram\x03ram" + "\x04\x00\x00\x00\x00" + timer + "old devices" + "\x00\x06\x00\x00\x00\x02{}"
	const xen = head + "\x04\x00\x00\x00\x07" + timer + "new devices\x00"
	got, err := splice([]byte(migrated), []byte(xen))
	if want := head + "\x07machine" + "\x01ram\x03ram" + "\x04\x00\x00\x00\x07" + timer + "new devices\x00" + noDescription; err != nil || string(got) != want {
		t.Errorf("%q, not %q: %v", got, want, err)
	}
	if again, err := splice(got, []byte(xen)); err != nil || !bytes.Equal(again, got) {
		t.Errorf("again: %q %v", again, err)
	}
	for name, c := range map[string]struct{ from, devices string }{
		"nothing":              {migrated, ""},
		"no beginning":         {"", xen},
		"another version":      {strings.Replace(migrated, "\x03", "\x04", 1), xen},
		"no device":            {migrated, head + "\x00\x00\x00\x00\x00\x00\x00\x00"},
		"a name that is cut":   {migrated, head + "\x04\x00\x00\x00\x07\xfftimer"},
		"began without it":     {strings.Replace(migrated, "timer", "times", 1), xen},
		"began with two of it": {migrated + timer, xen},
		"no section's":         {strings.Replace(migrated, "\x04\x00\x00\x00\x00\x05timer", "\x09\x00\x00\x00\x00\x05timer", 1), xen},
	} {
		if got, err := splice([]byte(c.from), []byte(c.devices)); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}
