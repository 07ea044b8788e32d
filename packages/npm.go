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
)

// Bounds of npm's own lock.
const (
	maxNpmNesting = 32
	maxNpmValues  = 1 << 18
)

// CheckNpm says what is wrong with npm's own lock, which others have written; there may be none.
func CheckNpm(lock json.RawMessage) error {
	if len(lock) > 0 && lock[0] != '{' {
		return errors.New("has a lock of npm that is no object")
	}
	if err := CheckNesting(lock, maxNpmNesting, maxNpmValues); err != nil {
		return fmt.Errorf("has a lock of npm that %w", err)
	}
	return nil
}

// CheckNesting says what is wrong with the nesting of JSON that others have written. What indents it writes spaces for
// each value, as many as there are brackets around it: of a few MiB it makes any number of GiB.
func CheckNesting(text []byte, brackets, values int) error {
	depth, count, inString := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == ',':
			count++
		case c == '{' || c == '[':
			depth++
			count++
		case c == '}' || c == ']':
			depth--
		}
		if depth > brackets || count > values {
			return fmt.Errorf("has more than %d values, or more than %d brackets in one another", values, brackets)
		}
	}
	return nil
}

var npmDefaults = regexp.MustCompile(`(?s)registry: new Definition\('registry', \{\s*default: .(https://[^'"` + "`" + `]+).,`)

// NpmDefault is the registry of an npm that nobody has configured, as its own source says; tool is its
// archive.
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
			return "", errors.Join(err, fmt.Errorf("%s does not say which registry it uses: name one with registry in ~/.npmrc", tool))
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
