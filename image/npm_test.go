package image

import (
	"strings"
	"testing"
)

// A package comes by npm's own client, also for a user whose home can't be written, and
// only with the digest that is known.
func TestNpmDownload(t *testing.T) {
	if testing.Short() {
		t.Skip("asks the registry; not in -short")
	}
	t.Setenv("HOME", "/proc/none")
	part := LockedPart{Package: "isarray", Version: "2.0.5",
		Digest: "sha512-xHjhDr3cNBK0BzdUJSPXZntQUx/mwMS5Rw4A7lPJ90XGAO6ISP/ePDNuo0vhqOZU+UD5JoodwCAAoZQd3FeAKw=="}
	if _, err := npmDownload(t.Context(), part, t.TempDir()); err != nil {
		t.Error(err)
	}
	part.Digest = "sha512-" + strings.Repeat("A", 86) + "=="
	if _, err := npmDownload(t.Context(), part, t.TempDir()); err == nil || !strings.Contains(err.Error(), "isarray 2.0.5 has integrity sha512-xHjhDr3") {
		t.Errorf("a digest that lies: %v", err)
	}
}
