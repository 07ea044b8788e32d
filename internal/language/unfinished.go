package language

import (
	"regexp"
	"slices"
	"strings"
)

// Unfinished reports whether a text that a person types line by line continues, because a bracket, a string or a block
// is open. It does not parse the language, so it may be wrong. Two empty lines end every text. One empty line ends it
// unless a bracket, a string or a block of the shell is open, because code has empty lines in those.
func (l *Language) Unfinished(text string) bool {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	last := lines[len(lines)-1]
	if strings.TrimSpace(last) == "" {
		before := len(lines) > 1 && strings.TrimSpace(lines[len(lines)-2]) != ""
		return before && (isOpen(text, l.Name) || l.Name == "shell" && (blocksOfShell(text) > 0 || hereDocument(lines)))
	}
	if strings.HasSuffix(last, "\\") || isOpen(text, l.Name) {
		return true
	}
	last = strings.TrimSpace(last)
	switch l.Name {
	case "python": // a block ends with an empty line
		return strings.HasPrefix(last, "@") || slices.ContainsFunc(lines, func(line string) bool {
			return strings.HasSuffix(strings.TrimSpace(line), ":")
		})
	case "shell":
		return strings.HasSuffix(last, "|") || strings.HasSuffix(last, "&&") || blocksOfShell(text) > 0 ||
			hereDocument(lines)
	}
	return false
}

// isOpen reports whether a bracket or a string of a text is open.
func isOpen(text, language string) bool {
	depth, quote, comment := 0, "", "//"
	if language != "js" {
		comment = "#"
	}
	for i := 0; i < len(text); {
		rest := text[i:]
		switch {
		case quote != "" && rest[0] == '\\' && !(language == "shell" && quote == "'"):
			i += 2
			continue
		case quote != "" && strings.HasPrefix(rest, quote):
			i += len(quote)
			quote = ""
			continue
		case quote != "":
			if rest[0] == '\n' && len(quote) == 1 && quote != "`" && language != "shell" {
				quote = "" // it is a mistake, which the language reports
			}
		case language == "python" && (strings.HasPrefix(rest, `"""`) || strings.HasPrefix(rest, "'''")):
			quote = rest[:3]
			i += 3
			continue
		case rest[0] == '"' || rest[0] == '\'' || rest[0] == '`' && language != "python":
			quote = rest[:1]
		case strings.HasPrefix(rest, comment) &&
			(comment == "//" || i == 0 || strings.IndexByte(" \t\n;", text[i-1]) >= 0):
			end := strings.IndexByte(rest, '\n')
			if end < 0 {
				end = len(rest)
			}
			i += end
			continue
		case strings.IndexByte("([{", rest[0]) >= 0:
			depth++
		case strings.IndexByte(")]}", rest[0]) >= 0:
			depth--
		}
		i++
	}
	if language == "shell" && quote == "" {
		return false // case has single brackets
	}
	return depth > 0 || quote != "" && (len(quote) == 3 || quote == "`" || language == "shell")
}

// blocksOfShell returns how many more blocks a text begins than it ends.
func blocksOfShell(text string) (n int) {
	start := true // a command begins here
	ends := strings.NewReplacer(";", " ; ", "\n", " ; ", "|", " ; ", "&", " ; ")
	for _, word := range strings.Fields(ends.Replace(text)) {
		if start {
			switch word {
			case "if", "for", "while", "until", "case", "select", "{":
				n++
			case "fi", "done", "esac", "}":
				n--
			}
		}
		start = word == ";" || word == "do" || word == "then" || word == "else" || word == "{" || word == "!" ||
			strings.HasSuffix(word, "(){") || strings.HasSuffix(word, "()")
		if strings.HasSuffix(word, "(){") {
			n++
		}
	}
	return n
}

// hereWord is the beginning of a here-document, and the word that ends it.
var hereWord = regexp.MustCompile(`(?:^|[^<])<<-?\s*\\?["']?([A-Za-z_][A-Za-z0-9_]*)`)

// hereDocument reports whether the lines of a shell end inside a here-document.
func hereDocument(lines []string) bool {
	var ends []string // of documents that have begun
	for _, line := range lines {
		if len(ends) > 0 {
			if strings.TrimLeft(line, "\t") == ends[0] {
				ends = ends[1:]
			}
			continue
		}
		for _, begin := range hereWord.FindAllStringSubmatch(line, -1) {
			ends = append(ends, begin[1])
		}
	}
	return len(ends) > 0
}
