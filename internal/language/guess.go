package language

import (
	"regexp"
	"strings"
)

// maxGuessed bounds how much of a program Guess reads, in bytes.
const maxGuessed = 16 << 10

// sign matches a line that only one language's programs have.
type sign struct {
	language string
	weight   int
	line     *regexp.Regexp
}

// signs are matched against each line, without the space around it.
var signs = []sign{
	{"go", 2, either(`^func (?:\(\w+ \*?\w+\) )?\w+\(.*\{$`, `^import \($`, `^import "[\w./]+"$`, `^\w+(?:, \w+)* := `,
		`^type \w+ struct \{$`)},
	{"python", 3, either(`^(?:async )?def \w+\(.*\)(?: *->.*)?:`, `^from \.*[\w.]+ import [\w*(]`)},
	{"python", 3, either(`^import [\w.]+(?: as \w+)?(?:, *[\w.]+(?: as \w+)?)*(?: *#.*)?$`)},
	{"python", 2, either(`^(?:if|elif|for|while|except|with|class) [^{}]*:(?: *#.*)?$`,
		`^(?:try|else|finally|except):$`)},
	{"python", 2, either(`^print\(.*\)$`, `^if __name__ == `, `^raise \w+\(`,
		`\blambda \w+(?:, *\w+)*:`)},
	{"js", 3, either(`^(?:import|export) .*\bfrom ['"]`, `^import ['"]`, `\bconsole\.\w+\(`, `\brequire\(['"]`,
		`\bmodule\.exports\b`)},
	{"js", 2, either(`^(?:export )?(?:const|let|var) [\w$]+ = .*;$`, `^(?:const|let|var) [\[{].* = `, `=== `,
		`!== `, `\) => `, `\w => `)},
	{"js", 2, either(`\bprocess\.(?:argv|env|exit|std\w+)\b`, `\bawait [\w$]+[.(]`, `^\}\)[;,]?$`, `^\}\);$`,
		`\bfunction ?\*?\w*\([\w$, ]+\) ?\{`)},
	{"js", 1, either(`^(?:const|let|var) [\w$]+ = `)},
	{"ts", 3, either(`^(?:export )?(?:declare |abstract )?(?:interface|enum|namespace) \w+[^(]*\{`,
		`^(?:export )?type \w+(?:<.*>)? = `)},
	{"ts", 2, either(
		`\w\??: (?:string|number|boolean|void|unknown|never|bigint|Promise<.*>|Array<.*>)(?:\[\])?(?: =|[,;)]| \{|$)`)},
	{"ts", 2, either(`^(?:private|public|protected|readonly|static) [\w ]+[:(=]`, `^import type `,
		`^declare \w+ `, ` as (?:const|unknown|string|number)\b`)},
	{"shell", 3, either(`^(?:fi|done|esac)(?:[ ;|&>].*)?$`, `; (?:then|do)$`,
		`^(?:if|while|until|elif) (?:\[\[? |! ?\[)`, `^set -[a-zA-Z]+`, `^(?:then|do)$`,
		`<<-?['"]?[A-Z_]+['"]?$`)},
	{"shell", 2, either(
		`^(?:echo|printf|cd|mkdir|rm|cp|mv|cat|grep|ls|chmod|touch|sudo|` +
			`curl|git|tar|find|sed|awk|source|local|head|tail|wc|sort|apt-get|unset|trap|exec|shift) [-\w"'$/~.*]`)},
	{"shell", 2, either(`^\w+\(\) *\{`, `^export [A-Z_]+=`, `\$\(\w+ `, `^[A-Za-z_]\w*="?\$[\w({]`,
		`\| *(?:grep|sed|awk|sort|head|tail|wc|tr|cut|xargs|uniq)\b`, `"\$[@\w{]`)},
}

// goPackage matches the first line of Go programs, and of no others.
var goPackage = regexp.MustCompile(`^package [a-z]\w*$`)

// either returns a pattern that matches one of these.
func either(patterns ...string) *regexp.Regexp {
	return regexp.MustCompile(strings.Join(patterns, "|"))
}

// Guess returns the name of the language that a program is in: "go", "js", "python", "shell" or "ts"; "" if it is not
// sure. A #! line decides, and a package clause; else the signs of one language must outweigh those of all others by
// far. It may be wrong: hints use it, and nothing runs by it.
func Guess(code string) string {
	if is := OfScript(code); is != "" {
		return is
	}
	weights, kinds, comment, first, end := map[string]int{}, map[int]bool{}, false, true, ""
	for line := range strings.SplitSeq(code[:min(len(code), maxGuessed)], "\n") {
		line = strings.TrimSpace(line)
		if end != "" { // of a text
			if ends(line, end) {
				end = ""
			}
			continue
		}
		comment = comment || strings.HasPrefix(line, "/*")
		if comment || line == "" || len(line) > 1000 || strings.HasPrefix(line, "//") || line[0] == '#' {
			comment = comment && !strings.Contains(line, "*/")
			continue
		}
		if first && goPackage.MatchString(line) {
			return "go"
		}
		first = false
		if end = textIn(line); strings.ContainsAny(line[:1], "'\"") {
			continue
		}
		for i, s := range signs {
			if s.line.MatchString(line) {
				weights[s.language] += s.weight
				kinds[i] = true
			}
		}
	}
	return heaviest(weights, kinds)
}

// here matches the beginning of a shell's here-document.
var here = regexp.MustCompile(`<<-?\s*['"]?([A-Za-z_]\w*)['"]?`)

// textIn returns the end mark of a text of several lines that begins in a line, or "".
func textIn(line string) string {
	for _, quotes := range []string{`"""`, `'''`, "`"} {
		if strings.Count(line, quotes)%2 == 1 {
			return quotes
		}
	}
	if m := here.FindStringSubmatch(line); m != nil {
		return m[1]
	}
	return ""
}

// ends reports whether a text of several lines ends in a line.
func ends(line, end string) bool {
	if strings.ContainsAny(end, "`\"'") {
		return strings.Count(line, end)%2 == 1
	}
	return line == end
}

// heaviest returns the language with the most weight, or "" if another has more than an eighth of that. TypeScript is
// JavaScript with more signs. A single kind of line decides for short code only: many such lines are a table, or a text
// in another language.
func heaviest(weights map[string]int, kinds map[int]bool) string {
	if weights["ts"] >= 4 {
		weights["ts"] += weights["js"]
		delete(weights, "js")
	}
	best, most, rest := "", 0, 0
	for language, w := range weights {
		if w > most {
			best, most, rest = language, w, max(rest, most)
		} else {
			rest = max(rest, w)
		}
	}
	if most < 2 || rest*8 > most || most > 12 && len(kinds) < 2 {
		return ""
	}
	return best
}
