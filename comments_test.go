package unitask_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

const (
	mostWords = 25  // of a sentence
	mostRunes = 120 // of a line that is a comment
)

// Comments and docstrings in languages other than Go have short sentences and short lines. TestBudgets counts Go's.
func TestComments(t *testing.T) {
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Skip("no git, or no checkout: ", err)
	}
	sentences := 0
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) { // removed, and not committed yet
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		mark := commentMark(name, text)
		if mark == "" || filepath.Ext(name) == ".go" {
			continue
		}
		for _, c := range commentsOf(string(text), mark) {
			if c.widest > mostRunes {
				t.Errorf("%s:%d: got a line of %d characters, want at most %d", name, c.line, c.widest, mostRunes)
			}
			all, long := c.sentences()
			sentences += all
			for _, sentence := range long {
				t.Errorf("%s:%d: got more than %d words: %q", name, c.line, mostWords, sentence)
			}
		}
	}
	if sentences < 2000 {
		t.Errorf("got %d sentences, want 2000 or more", sentences)
	}
}

// commentMark returns what begins a file's comments: // or #, or "" for a file that is no source or is generated.
func commentMark(name string, text []byte) string {
	first, _, _ := bytes.Cut(text, []byte("\n"))
	if generated.Match(first) {
		return ""
	}
	switch filepath.Ext(name) {
	case ".go", ".c", ".h", ".js", ".mjs", ".cjs", ".ts", ".s":
		return "//"
	case ".py", ".sh":
		return "#"
	case "":
		if bytes.HasPrefix(first, []byte("#!")) {
			return "#"
		}
	}
	return ""
}

var (
	generated   = regexp.MustCompile(`(?i)\bdo not edit\b|^// Made from `)
	sentenceEnd = regexp.MustCompile(`[.!?]["')]*\s+`)
	docstring   = regexp.MustCompile(`^[rf]?("""|''')(.*)$`)
	slashBehind = regexp.MustCompile(`[\s;{}),]// (.*)$`)
	hashBehind  = regexp.MustCompile(`\s# (.*)$`)
	listItem    = regexp.MustCompile(`^\s*- `)
	// table matches a line of a comment that is no prose: a table, a program or a session of Python.
	table = regexp.MustCompile(`^( {3,}|\t)|^\s*(>>>|\.\.\.) `)
)

// comment is a paragraph of a comment, or a line of a table or a program in it, without text.
type comment struct {
	line   int // the number of its first line
	text   string
	widest int // characters of its widest line, without code
}

// sentences returns the number of a comment's sentences, and those with too many words.
func (c comment) sentences() (all int, long []string) {
	for _, sentence := range sentenceEnd.Split(c.text, -1) {
		n := words(sentence)
		if n > 0 {
			all++
		}
		if n > mostWords {
			long = append(long, strings.TrimSpace(sentence))
		}
	}
	return all, long
}

// commentsOf returns the paragraphs of a source's comments, and of its docstrings if the mark is #.
func commentsOf(source, mark string) (list []comment) {
	end := "" // of the block comment or the string in which the line is
	doc, open := false, false
	for i, line := range strings.Split(source, "\n") {
		text, whole := strings.TrimSpace(line), true
		switch {
		case end != "":
			before, _, over := strings.Cut(text, end)
			if over {
				text, end = before, ""
			}
			text = strings.TrimPrefix(text, "* ")
			whole = doc
		case strings.HasPrefix(text, "#!"):
			text = ""
		case strings.HasPrefix(text, mark):
			text = text[len(mark):]
		case mark == "//" && strings.HasPrefix(text, "/*"):
			before, _, over := strings.Cut(text[2:], "*/")
			text = strings.TrimLeft(before, "*")
			if doc = true; !over {
				end = "*/"
			}
		case mark == "#" && docstring.MatchString(text):
			m := docstring.FindStringSubmatch(text)
			before, _, over := strings.Cut(m[2], m[1])
			text = before
			if doc = true; !over {
				end = m[1]
			}
		default:
			if doc = false; mark == "#" && strings.Count(text, `"""`)%2 == 1 {
				end = `"""`
			}
			whole, open = false, false
			if m := behind(mark).FindStringSubmatch(line); m != nil {
				list = append(list, comment{i + 1, m[1], 0})
			}
		}
		if !whole || strings.Trim(text, " *") == "" {
			open = false
			continue
		}
		prose := !table.MatchString(text)
		if !prose || !open || listItem.MatchString(text) {
			list = append(list, comment{line: i + 1})
		}
		last := &list[len(list)-1]
		if open = prose; prose {
			last.text += " " + strings.TrimSpace(text)
		}
		last.widest = max(last.widest, utf8.RuneCountInString(line))
	}
	return list
}

func behind(mark string) *regexp.Regexp {
	if mark == "#" {
		return hashBehind
	}
	return slashBehind
}

// words returns the number of words with a letter or a digit.
func words(text string) (n int) {
	for _, word := range strings.Fields(text) {
		if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			n++
		}
	}
	return n
}

// A comment is split into paragraphs, and a docstring is a comment.
func TestCommentsOf(t *testing.T) {
	for _, row := range []struct{ mark, source, want string }{
		{"//", "// a\n// b\n//\n//\tc\n// d\n// - e\nx() // f\n\"http://g\"\n", "1: a b|4:|5: d|6: - e|7:f"},
		{"//", "/** a */\nx\n/*\n * b\n * c\n */\n", "1: a|4: b c"},
		{"#", "#!/bin/sh\n# a\n# b\nx # c\n", "2: a b|4:c"},
		{"#", "\"\"\"A.\n\n>>> b\n\"\"\"\nx = \"\"\"\n# no\n\"\"\"\n'''c'''\n", "1: A.|3:|8: c"},
	} {
		var got []string
		for _, c := range commentsOf(row.source, row.mark) {
			got = append(got, strings.Join([]string{itoa(c.line), c.text}, ":"))
		}
		if text := strings.Join(got, "|"); text != row.want {
			t.Errorf("%q: got %q, want %q", row.source, text, row.want)
		}
	}
}
