package unitask_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// anyFence matches a fenced block in any language.
var anyFence = regexp.MustCompile("(?ms)^```.*?^```")

// A page shows its purpose at once, with a command or a program for it. After the title comes a sentence, and before
// the second heading a block.
func TestDocsFirstScreen(t *testing.T) {
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		title, rest, _ := strings.Cut(string(text), "\n\n")
		first, _, _ := strings.Cut("\n"+rest, "\n## ")
		if !strings.HasPrefix(title, "# ") {
			t.Errorf("%s begins with %q, want a title", page, title)
		}
		if first = strings.TrimSpace(first); first == "" || strings.HasPrefix(first, "```") || first[0] == '|' {
			t.Errorf("%s: got no sentence after the title", page)
		}
		if !anyFence.MatchString(first) {
			t.Errorf("%s: got no command before the first section", page)
		}
	}
}

var item = regexp.MustCompile(`\n(?:[-*] |\d+\. )`)

// A paragraph or an item of a list has at most 120 words. The README has at most 150 lines.
func TestDocsParagraphs(t *testing.T) {
	const most, mostLines = 120, 150
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); page == "README.md" && n > mostLines {
			t.Errorf("%s: got %d lines, want at most %d", page, n, mostLines)
		}
		for _, paragraph := range strings.Split(anyFence.ReplaceAllString(string(text), ""), "\n\n") {
			if strings.HasPrefix(strings.TrimSpace(paragraph), "|") {
				continue
			}
			for _, one := range item.Split(paragraph, -1) {
				if n := len(strings.Fields(one)); n > most {
					t.Errorf("%s: got a paragraph of %d words, want at most %d: %.80q", page, n, most, one)
				}
			}
		}
	}
}
