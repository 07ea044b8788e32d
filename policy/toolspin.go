package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var (
	tableHeader = regexp.MustCompile(`^\s*\[`)
	pinLine     = regexp.MustCompile(`^\s*pin\s*=`)
)

// WithPin returns a ceiling file's text with another pin in a server's table.
func WithPin(name string, text []byte, server, digest string) ([]byte, error) {
	header := regexp.MustCompile(`^\s*\[\s*tools\s*\.\s*"?` + regexp.QuoteMeta(server) + `"?\s*\]`)
	var out []string
	at, inside := -1, false
	for line := range strings.Lines(string(text)) {
		if tableHeader.MatchString(line) {
			inside = header.MatchString(line)
		}
		if inside && pinLine.MatchString(line) {
			continue
		}
		out = append(out, line)
		if inside && at < 0 {
			if !strings.HasSuffix(line, "\n") {
				out[len(out)-1] += "\n"
			}
			at = len(out)
		}
	}
	if at < 0 {
		return nil, fmt.Errorf("%s: write the table as [tools.%s], with a key in each line", name, server)
	}
	now := []byte(strings.Join(slices.Insert(out, at, fmt.Sprintf("pin = %q\n", digest)), ""))
	c, err := ParseCeiling(name, now)
	if err == nil && c.ToolServer(server).Pin != digest {
		err = fmt.Errorf("%s: write the table as [tools.%s], with a key in each line", name, server)
	}
	return now, err
}
