//go:build unix

package main

import (
	"encoding/xml"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// span is text in one colour.
type span struct{ class, text string }

// sequence is a control sequence of a terminal: its parameters and its command.
var sequence = regexp.MustCompile(`\x1b\[([0-9;?]*)([a-zA-Z])`)

// classes are the styles of the picture, by the parameter of a colour.
var classes = map[string]string{"1": "b", "31": "r", "32": "g", "33": "y", "34": "c", "36": "c", "90": "d"}

// screen returns what a terminal shows for an output. A carriage return restarts the line, as progress output does.
func screen(output string) (lines [][]span) {
	output = strings.ReplaceAll(output, "\r\n", "\n")
	class := ""
	for line := range strings.Lines(output) {
		line = strings.TrimSuffix(line, "\n")
		if at := strings.LastIndexByte(line, '\r'); at >= 0 {
			line = line[at+1:]
		}
		var row []span
		for line != "" {
			at := sequence.FindStringSubmatchIndex(line)
			text := line
			if at != nil {
				text = line[:at[0]]
			}
			if text != "" {
				row = append(row, span{class, text})
			}
			if at == nil {
				break
			}
			if line[at[4]:at[5]] == "m" {
				class = classes[line[at[2]:at[3]]]
			}
			line = line[at[1]:]
		}
		lines = append(lines, wrap(row)...)
	}
	return lines
}

// wrap breaks a line that is wider than the terminal.
func wrap(row []span) (lines [][]span) {
	left := columns
	var line []span
	for _, s := range row {
		for utf8.RuneCountInString(s.text) > left {
			runes := []rune(s.text)
			lines = append(lines, append(line, span{s.class, string(runes[:left])}))
			s.text, line, left = string(runes[left:]), nil, columns
		}
		line = append(line, s)
		left -= utf8.RuneCountInString(s.text)
	}
	return append(lines, line)
}

const (
	lineHeight = 19
	width      = columns*8 + 40 // a letter is about 8 pixels wide
)

const style = `text{font:13px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d6dbe0;white-space:pre}
.b{font-weight:bold;fill:#fff}.r{fill:#ff7b72}.g{fill:#7ee787}.y{fill:#e3b341}.c{fill:#79c0ff}.d{fill:#8b949e}`

// draw returns lines as an SVG.
func draw(lines [][]span) string {
	var b strings.Builder
	height := len(lines)*lineHeight + 60
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d">
<title>unitask in a terminal, recorded by make picture</title>
<style>%s</style>
<rect width="%[1]d" height="%[2]d" rx="8" fill="#0d1117"/>
<circle cx="20" cy="18" r="6" fill="#ff5f56"/><circle cx="40" cy="18" r="6" fill="#ffbd2e"/>
<circle cx="60" cy="18" r="6" fill="#27c93f"/>
`, width, height, style)
	for i, line := range lines {
		fmt.Fprintf(&b, `<text x="20" y="%d" xml:space="preserve">`, 52+i*lineHeight)
		for _, s := range line {
			text := escape(s.text)
			if s.class != "" {
				text = fmt.Sprintf(`<tspan class="%s">%s</tspan>`, s.class, text)
			}
			b.WriteString(text)
		}
		b.WriteString("</text>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder accepts everything
	return b.String()
}
