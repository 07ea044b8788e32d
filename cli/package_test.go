package cli

import (
	"os"
	"path/filepath"
	"testing"
)

// From a package.json, only Node's own fields count.
func TestPackageType(t *testing.T) {
	for text, want := range map[string]string{
		`{"type":"module"}`: "module", `{"type":"commonjs"}`: "commonjs", "\ufeff" + `{"type":"module"}`: "module",
		`{"Type":"module"}`: "", `{"type":"commonjs","TYPE":"module"}`: "commonjs", `{"type":"Module"}`: "", `{"type":5}`: "",
		`{"type":"module"`: "", `[]`: "", "": "",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := packageType(dir); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
