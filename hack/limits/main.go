// Command limits writes docs/limits.md. The page has the limits of policies (from package policy) and the limits that
// users meet (described in table.txt). It also lists all other limits in the code, with their comments. The values are
// the code's.
//
//	go run ./hack/limits
package main

import (
	_ "embed"
	"fmt"
	"go/constant"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unitask/unitask/policy"
)

const page = "docs/limits.md"

//go:embed table.txt
var table string

//go:embed head.md
var head string

func main() {
	text, err := render(".")
	if err == nil {
		err = os.WriteFile(page, []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "limits:", err)
		os.Exit(1)
	}
}

// render returns the page for the code in a folder.
func render(root string) (string, error) {
	l := newLoader(root)
	if err := l.loadAll(); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(head)
	if err := writePolicy(&b); err != nil {
		return "", err
	}
	described, err := writeTable(&b, l.numbers)
	if err != nil {
		return "", err
	}
	writeRest(&b, l.numbers, described)
	return b.String(), nil
}

// reached says what happens when a limit of the policy is reached, by its key.
var reached = map[string]string{
	"timeoutMs":          "the code is killed: outcome `timeout`, exit code 124",
	"memoryMb":           "the kernel kills the code: outcome `oom`, exit code 137",
	"cpus":               "the code waits for its share",
	"maxProcesses":       "a further one is not made: `EAGAIN`; the result has `processesRefused`, the code runs on",
	"maxConnections":     "a further connection is reset; the netlog says so",
	"maxUploadBytes":     "connections are closed; the netlog says so",
	"maxDownloadBytes":   "connections are closed; the netlog says so",
	"outputBytes":        "the rest is dropped; the result has `truncated`, the code runs on",
	"maxArtifactBytes":   "the file is refused; exit code 123 if the code ended with 0",
	"sessions":           "busy: the caller tries again",
	"callerSessions":     "busy: the caller tries again",
	"sessionLifeMs":      "the session ends",
	"sessionIdleMs":      "the session is paused; its next use resumes it",
	"forwardedPorts":     "a further port is refused; the session lives on",
	"backgroundCommands": "a further command is refused; the session lives on",
	"pausedBytes":        "the pause is refused; the session lives on",
}

var usual = regexp.MustCompile(`\(default ([^)]*)\)$`)

// writePolicy writes the limits of runs and sessions that a policy sets.
func writePolicy(b *strings.Builder) error {
	for _, part := range []struct {
		title  string
		fields []policy.Field
	}{{"A run: you choose", policy.Fields}, {"Sessions: the ceiling chooses", policy.Limits}} {
		const columns = "| key | flag | default | from | to | when it is reached |\n| --- | --- | --- | --- | --- | --- |"
		fmt.Fprintf(b, "\n## %s\n\n%s\n", part.title, columns)
		for _, f := range part.fields {
			least, most := f.Bounds()
			if most == 0 {
				continue
			}
			what := reached[f.Key]
			if what == "" {
				return fmt.Errorf("nothing says what happens when %s is reached", f.Key)
			}
			bare := "by the host's memory"
			if m := usual.FindStringSubmatch(f.Usage()); m != nil && m[1] != "0" && m[1] != "0 MiB" {
				bare = m[1]
				if d, err := time.ParseDuration(bare); err == nil {
					bare = plainly(d)
				}
			}
			flag := "–"
			if f.Flag != "" {
				flag = "`--" + f.Flag + "`"
			}
			key := f.Key
			if f.Name != "" {
				key = f.Name
			}
			fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s | %s |\n", key, flag, bare, bound(f, least), bound(f, most), what)
		}
	}
	return nil
}

// bound returns the text of a policy field's limit with its unit.
func bound(f policy.Field, n float64) string {
	if f.Form() == policy.Duration {
		return plainly(time.Duration(n * float64(time.Second)))
	}
	if f.Unit() > 0 {
		return size(int64(n) * f.Unit())
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}

// writeTable writes the described limits, and returns their names.
func writeTable(b *strings.Builder, numbers map[string]number) (map[string]bool, error) {
	described := map[string]bool{}
	for line := range strings.Lines(table) {
		line = strings.TrimSuffix(line, "\n")
		if title, ok := strings.CutPrefix(line, "## "); ok {
			fmt.Fprintf(b, "\n## %s\n\n| limit | value | changed by | when it is reached |\n| --- | --- | --- | --- |\n", title)
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, " | ")
		if len(cells) != 5 {
			return nil, fmt.Errorf("table.txt: %q has %d cells, want 5", line, len(cells))
		}
		n, ok := numbers[cells[0]]
		if !ok {
			return nil, fmt.Errorf("table.txt: the code has no constant %s", cells[0])
		}
		described[cells[0]] = true
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", cells[2], value(n, cells[1]), cells[3], cells[4])
	}
	return described, nil
}

// value returns the text of a number in a unit of table.txt.
func value(n number, unit string) string {
	i, exact := constant.Int64Val(constant.ToInt(n.value))
	switch {
	case n.duration:
		return plainly(time.Duration(i))
	case !exact:
		return n.value.String()
	case unit == "bytes":
		return size(i)
	case unit == "s":
		return strconv.FormatInt(i, 10) + "s"
	}
	return grouped(i)
}

// zeros matches the parts of a duration that are zero.
var zeros = regexp.MustCompile(`([hm])(0m)?(0s)?$`)

// plainly returns the text of a duration: 10s, 15m, 24h.
func plainly(d time.Duration) string { return zeros.ReplaceAllString(d.String(), "$1") }

// size returns the text of an amount of bytes.
func size(n int64) string {
	for i, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		one := int64(1) << (40 - 10*i)
		if n >= one && n%one == 0 {
			return fmt.Sprintf("%d %s", n/one, unit)
		}
	}
	if n == 1 {
		return "1 byte"
	}
	return grouped(n) + " bytes"
}

// grouped writes a number with blanks between its thousands.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for at := len(text) - 3; at > 0 && n > 9999; at -= 3 {
		text = text[:at] + " " + text[at:]
	}
	return text
}

// writeRest lists the limits that table.txt does not describe, by package.
func writeRest(b *strings.Builder, numbers map[string]number, described map[string]bool) {
	b.WriteString(restHead)
	for _, key := range slices.Sorted(maps.Keys(numbers)) {
		at := strings.LastIndexByte(key, '.')
		dir, name := key[:at], key[at+1:]
		if described[key] || dir == "" || !limitName.MatchString(name) { // the root has aliases only
			continue
		}
		fmt.Fprintf(b, "| `%s.%s` | %s | %s |\n", dir, name, value(numbers[key], "-"), firstSentence(numbers[key].comment))
	}
}

const restHead = `
## All other bounds

These keep a hostile guest, file, registry or client from using memory, time or room without end.
You can't change them, and few people meet one. The words are the code's own comments.

| constant | value | comment |
| --- | --- | --- |
`

var sentenceEnd = regexp.MustCompile(`[.:;] .*$`)

func firstSentence(text string) string {
	return strings.ReplaceAll(strings.TrimSuffix(sentenceEnd.ReplaceAllString(text, ""), "."), "|", `\|`)
}
