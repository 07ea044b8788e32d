package packages

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	"github.com/unitask/unitask/internal/nesting"
)

// Bounds of npm's own lock.
const (
	maxNpmNesting = 32      // brackets in one another
	maxNpmValues  = 1 << 18 // JSON values
)

// CheckNpm returns an error if npm's own lock, which others may have written, is wrong. There may be no lock.
func CheckNpm(lock json.RawMessage) error {
	if len(lock) > 0 && lock[0] != '{' {
		return errors.New("has a lock of npm that is no object")
	}
	if err := nesting.Check(lock, maxNpmNesting, maxNpmValues); err != nil {
		return fmt.Errorf("has a lock of npm that %w", err)
	}
	return nil
}

var npmDefaults = regexp.MustCompile(`(?s)registry: new Definition\('registry', \{\s*default: .(https://[^'"` + "`" +
	`]+).,`)

// NpmDefault returns the registry of an npm without configuration, from its own source; tool is its archive.
func NpmDefault(tool string) (string, error) {
	f, err := os.Open(tool)
	if err != nil {
		return "", err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", tool, err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return "", errors.Join(err, fmt.Errorf("%s does not say which registry it uses: name one with registry in ~/.npmrc",
				tool))
		}
		if h.Name != "package/node_modules/@npmcli/config/lib/definitions/definitions.js" {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(r, maxConfig))
		if err != nil {
			return "", err
		}
		if m := npmDefaults.FindSubmatch(text); m != nil {
			return string(m[1]), nil
		}
	}
}
