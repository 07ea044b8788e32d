package policy

import "testing"

// Any text that somebody chose is one value in a list, in a table's column and on a line.
func TestPlainTextOneValue(t *testing.T) {
	for value, want := range map[string]string{
		`["a", "b c"]`: "a, b c", `["a, b"]`: `"a, b"`, `["a   none"]`: `"a   none"`,
		"[\"a\u00a0\u00a0none\"]": `"a\u00a0\u00a0none"`, `["a\nb"]`: `"a\nb"`, "[\"a\u202eb\"]": `"a\u202eb"`,
		`{"k": "v; w: x"}`: `k: "v; w: x"`, `{"k: v": 1}`: `"k: v": 1`,
		`{"a": false, "b": true, "c": "", "d": {"e": 1, "f": {}}}`: `a: no; b: yes; c: ""; d: {e: 1; f: {}}`,
		`{"host": "/a", "guest": "/b"}`:                            "/a:/b", `{"host": "/a", "guest": ""}`: "/a",
		`{"host": "a.example", "guest": "/b", "x": 1}`: "guest: /b; host: a.example; x: 1",
		`{"host": "a.example"}`:                        "host: a.example"} {
		if got := PlainText([]byte(value)); got != want {
			t.Errorf("%s: %s, want %s", value, got, want)
		}
	}
}
