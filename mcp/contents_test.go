package mcp

import (
	"encoding/json"
	"strings"
	"testing"
)

// Contents have text or a blob, even if empty, and text has no NUL.
func TestContents(t *testing.T) {
	for _, c := range []struct{ data, kind, want string }{
		{"", "text/plain", `"blob":""`},
		{"", "application/octet-stream", `"blob":""`},
		{"text", "text/plain", `"text":"text"`},
		{"\x00\x01", "application/octet-stream", `"blob":"AAE="`},
		{"a\x00b", "text/plain", `"blob":"YQBi"`},
		{"\xff", "text/plain", `"blob":"/w=="`},
		{"<svg/>", "image/svg+xml", `"blob":"PHN2Zy8+"`},
	} {
		text, err := json.Marshal(contentsOf([]byte(c.data), c.kind))
		if err != nil || !strings.Contains(string(text), c.want) {
			t.Errorf("%q as %s: %s %v, want %s", c.data, c.kind, text, err, c.want)
		}
	}
}
