package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The list of workers' keys is read completely or not at all: an empty list would accept any worker.
func TestWorkerKeys(t *testing.T) {
	key := strings.Repeat("ab", 32)
	for text, want := range map[string]string{
		key + "\n# a comment\n\n" + key: "", "": "has none", "# only\n": "has none", key[1:]: "is not 64 hex digits",
		key + "00": "is not 64 hex digits", key + "\nx": "is not 64 hex digits",
	} {
		file := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := readWorkerKeys(file)
		if want == "" && (err != nil || len(keys) != 2) ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %d keys, %v", text, len(keys), err)
		}
	}
	if _, err := readWorkerKeys(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there is read")
	}
}
