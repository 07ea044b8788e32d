package image

import (
	"strings"
	"testing"
)

// A package is fetched by npm's own client, also for a user whose home is not writable. Its digest must be the known
// one.
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
	if _, err := npmDownload(t.Context(), part, t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "isarray 2.0.5 has integrity sha512-xHjhDr3") {
		t.Errorf("a digest that lies: %v", err)
	}
}

// npm's reason for a failure is in the error, but not the path of npm's log.
func TestNpmReason(t *testing.T) {
	if testing.Short() {
		t.Skip("starts npm; not in -short")
	}
	t.Setenv("npm_config_registry", "http://127.0.0.1:1/")
	t.Setenv("npm_config_fetch_retries", "0")
	_, err := npmDownload(t.Context(), LockedPart{Package: "isarray", Version: "2.0.5"}, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "ECONNREFUSED") || strings.Contains(err.Error(), "complete log") {
		t.Errorf("%v", err)
	}
	for said, want := range map[string]string{
		"npm ERR! code E404\nnpm ERR! 404 Not Found\n" +
			"npm ERR! A complete log of this run is in /x\n": "code E404; 404 Not Found",
		"npm error \x1b[2Jx\n": "?[2Jx",
		"sh: npm broke\n":      "sh: npm broke",
	} {
		if got := npmReason(said); got != want {
			t.Errorf("%q: got %q, want %q", said, got, want)
		}
	}
}
