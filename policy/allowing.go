package policy

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/exact"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/unseen"
)

// ErrCeilingChanged means that a ceiling's file has another text than the one that was read.
var ErrCeilingChanged = errors.New("has changed since it was read: look at it again")

// Text returns what the ceiling's file said when it was read.
func (c *Ceiling) Text() string { return string(c.text) }

// Allowing returns the file's text with one more rule, and nothing else changed: comments and order stay. key is
// allowNet or net.rule, and rule is in the form of a request's (ParseNetRule, ParseHTTPRule). It fails if the text is
// written in a way that it can't extend.
func (c *Ceiling) Allowing(key, rule string) (string, error) {
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("%s: %s %.300q can't be added here, add it by hand: %w", c.Path, key, rule, err)
	}
	if strings.ContainsFunc(rule, unseen.Is) { // of a path that the code chose
		return fail(errors.New("it has characters that nobody sees"))
	}
	var text, in string
	var value any // the list's new element
	switch key {
	case "allowNet":
		r, err := ParseNetRule(rule)
		if err != nil {
			return fail(err)
		}
		in, value = key, r.String()
		if text, err = addToList(string(c.text), key, r.String()); err != nil {
			return fail(err)
		}
	case "net.rule":
		r, err := ParseHTTPRule(rule)
		if err != nil {
			return fail(err)
		}
		if r.Deny || r.Audit {
			return fail(errors.New("it allows nothing"))
		}
		in, value = "net", tableOf(r)
		text = addTable(string(c.text), r)
	default:
		return fail(errors.New("only allowNet and net.rule can be"))
	}
	if _, err := ParseCeiling(c.Path, []byte(text)); err != nil {
		return fail(err)
	}
	if err := onlyAdds(string(c.text), text, in, value); err != nil {
		return fail(err)
	}
	return text, nil
}

// onlyAdds checks that a new text differs from the old one by one more element with this value, at the end of a list.
func onlyAdds(before, after, in string, value any) error {
	var old, now map[string]any
	if _, err := exact.Decode(before, &old); err != nil {
		return err
	}
	if _, err := exact.Decode(after, &now); err != nil {
		return err
	}
	was, is := old[in], now[in]
	if in == "net" {
		a, _ := was.(map[string]any)
		b, _ := is.(map[string]any)
		was, is = tables(a["rule"]), tables(b["rule"])
		a, b = maps.Clone(a), maps.Clone(b)
		delete(a, "rule")
		delete(b, "rule")
		if !maps.EqualFunc(a, b, reflect.DeepEqual) {
			return errors.New("the table net would change")
		}
	}
	a, b := reflect.ValueOf(was), reflect.ValueOf(is)
	if b.Kind() != reflect.Slice || a.Kind() == reflect.Slice && b.Len() != a.Len()+1 || b.Len() == 0 ||
		!reflect.DeepEqual(b.Index(b.Len()-1).Interface(), value) {
		return errors.New("the list would not have this one more element")
	}
	for i := range b.Len() - 1 {
		if !reflect.DeepEqual(a.Index(i).Interface(), b.Index(i).Interface()) {
			return errors.New("another element would change")
		}
	}
	old, now = maps.Clone(old), maps.Clone(now)
	delete(old, in)
	delete(now, in)
	if !reflect.DeepEqual(old, now) {
		return errors.New("other keys would change")
	}
	return nil
}

// tables returns an array of tables as a list.
func tables(v any) []map[string]any {
	list, _ := v.([]map[string]any)
	return list
}

// tableOf returns the table of a rule as a decoder returns it.
func tableOf(r HTTPRule) map[string]any {
	table := map[string]any{"host": r.Host.String()}
	if r.Path != "" {
		table["path"] = r.Path
	}
	var methods []any
	for _, m := range r.Listed() {
		methods = append(methods, m)
	}
	if methods != nil {
		table["method"] = methods
	}
	return table
}

// addTable adds a table for a rule at the end of a file.
func addTable(text string, r HTTPRule) string {
	var out strings.Builder
	out.WriteString(strings.TrimRight(text, "\n"))
	fmt.Fprintf(&out, "\n\n[[net.rule]]\nhost = %s\n", asString(r.Host.String()))
	if list := r.Listed(); len(list) > 0 {
		for i := range list {
			list[i] = asString(list[i])
		}
		fmt.Fprintf(&out, "method = [%s]\n", strings.Join(list, ", "))
	}
	if r.Path != "" {
		fmt.Fprintf(&out, "path = %s\n", asString(r.Path))
	}
	return strings.TrimLeft(out.String(), "\n")
}

// asString returns a text without control characters, as rules are, in TOML's form.
func asString(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

// addToList adds a text to a list of the top level.
func addToList(text, key, value string) (string, error) {
	l, ok := findList(text, key)
	if !ok {
		return "", errors.New("the list is not at the top of the file")
	}
	value = asString(value)
	comma := ","
	if l.empty || l.comma {
		comma = ""
	}
	if !strings.Contains(text[l.open:l.close], "\n") {
		if !l.empty {
			value = " " + value
		}
		return text[:l.last] + comma + value + text[l.last:], nil
	}
	line := strings.LastIndexByte(text[:l.close], '\n') + 1
	if strings.TrimSpace(text[line:l.close]) != "" { // the bracket follows a value
		return text[:l.last] + comma + " " + value + text[l.last:], nil
	}
	indent := "  "
	if !l.empty {
		of := text[strings.LastIndexByte(text[:l.last], '\n')+1 : l.last]
		indent = of[:len(of)-len(strings.TrimLeft(of, " \t"))]
	}
	return text[:l.last] + comma + text[l.last:line] + indent + value + ",\n" + text[line:], nil
}

// list is where a list of TOML is: its brackets, and the end of its last value or of the comma after that.
type list struct {
	open, last, close int
	comma, empty      bool
}

// findList finds a list of the top level, which ends at the first table. The text is valid TOML.
func findList(text, key string) (l list, ok bool) {
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '[':
			return l, false
		case c == '#' || strings.IndexByte(" \t\r\n", c) >= 0:
			i = skip(text, i)
			continue
		}
		from := i
		for i < len(text) && text[i] != '=' { // keys have no = outside of strings
			i = skip(text, i)
		}
		name := strings.TrimSpace(text[from:i])
		for i++; i < len(text) && (text[i] == ' ' || text[i] == '\t'); {
			i++
		}
		found := name == key || name == `"`+key+`"` || name == "'"+key+"'"
		if found && (i >= len(text) || text[i] != '[') {
			return l, false
		}
		l = list{open: i, last: i + 1, empty: true}
		for depth := 0; i < len(text) && (depth > 0 || text[i] != '\n'); {
			c, at := text[i], i
			i = skip(text, i)
			switch {
			case c == '[' || c == '{':
				depth++
			case c == ']' || c == '}':
				if depth--; depth == 0 {
					l.close = at
				}
			case c == '#' || strings.IndexByte(" \t\r\n", c) >= 0:
			default:
				l.last, l.comma, l.empty = i, c == ',', false
			}
			if found && depth == 0 {
				return l, true
			}
		}
	}
	return l, false
}

// skip returns the end of what begins at an offset: a string, a comment, or one byte.
func skip(text string, i int) int {
	end := func(from int, by string) int {
		if n := strings.Index(text[from:], by); n >= 0 {
			return from + n + len(by)
		}
		return len(text)
	}
	switch {
	case strings.HasPrefix(text[i:], "'''"):
		return end(i+3, "'''")
	case text[i] == '\'':
		return end(i+1, "'")
	case text[i] == '#':
		if n := strings.IndexByte(text[i:], '\n'); n >= 0 {
			return i + n
		}
		return len(text)
	case text[i] != '"':
		return i + 1
	}
	by := `"`
	if strings.HasPrefix(text[i:], `"""`) {
		by = `"""`
	}
	for i += len(by); i < len(text) && !strings.HasPrefix(text[i:], by); i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return min(i+len(by), len(text))
}

// Replace writes a new text of a ceiling's file, in one step. It fails with ErrCeilingChanged unless the file still is
// as it was read. The file stays trusted if it was. Its mode stays, too.
func (t Trust) Replace(c *Ceiling, text string, now time.Time) (trusted bool, err error) {
	fail := func(err error) (bool, error) { return false, fmt.Errorf("%s: %w", c.Path, err) }
	lock, err := filelock.Take(t.file + ".ceilings.lock")
	if err != nil {
		return false, err
	}
	defer lock.Unlock()
	if _, err := ParseCeiling(c.Path, []byte(text)); err != nil {
		return false, err
	}
	is, err := ReadCeiling(c.Path)
	if err != nil {
		return false, err
	}
	if !bytes.Equal(is.text, c.text) {
		return fail(ErrCeilingChanged)
	}
	switch err := t.Of(is); {
	case err == nil:
		trusted = true
	case !errors.Is(err, ErrNotTrusted):
		return false, err
	}
	real, err := filepath.EvalSymlinks(c.Path)
	if err != nil {
		return false, err
	}
	st, err := os.Lstat(real)
	if err != nil {
		return false, err
	}
	if owner := int(st.Sys().(*syscall.Stat_t).Uid); owner != os.Geteuid() {
		return fail(fmt.Errorf("belongs to another user (uid %d): change it as that user", owner))
	}
	if err := atomicfile.Fill(real, st.Mode().Perm(), func(f *os.File) error {
		_, err := f.WriteString(text)
		return errors.Join(err, f.Sync())
	}); err != nil {
		return false, err
	}
	if is, err = ReadCeiling(c.Path); err != nil || !trusted {
		return false, err
	}
	if is.Text() != text {
		return fail(ErrCeilingChanged)
	}
	return true, t.Add(is, now)
}
