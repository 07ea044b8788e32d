package packages

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
)

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
