//go:build unix

package main

import (
	"encoding/xml"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestScreen(t *testing.T) {
	long := strings.Repeat("x", columns)
	for output, want := range map[string][][]span{
		"a\r\nb\r\n":                       {{{"", "a"}}, {{"", "b"}}},
		"\x1b[33m7\x1b[39m <&>\r\n":        {{{"y", "7"}, {"", " <&>"}}},
		"building\r\x1b[Kdone\r\n":         {{{"", "done"}}},
		"\x1b[1m$ ls\x1b[0m\r\n\r\n":       {{{"b", "$ ls"}}, nil},
		long + "yz\r\n":                    {{{"", long}}, {{"", "yz"}}},
		"\x1b[31m" + long + "y\x1b[0m\r\n": {{{"r", long}}, {{"r", "y"}}},
	} {
		if got := screen(output); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %q, want %q", output, got, want)
		}
	}
}

// docs/picture.svg is XML, and shows each current command.
func TestPicture(t *testing.T) {
	text, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := token.(xml.CharData); ok {
			shown.Write(data)
		}
	}
	flat := strings.ReplaceAll(shown.String(), "\n", "")
	for _, c := range commands {
		if !strings.Contains(flat, "$ "+c.line) {
			t.Errorf("%s does not show %q: make picture", page, c.line)
		}
	}
	if !strings.Contains(flat, "--allow-net example.com asks for it") {
		t.Errorf("%s does not show the hint", page)
	}
}
