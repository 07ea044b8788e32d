package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Row is a field of the policy as texts for people; "" means that nobody set it.
type Row struct {
	Key     string
	Asked   string
	Ceiling string
	Gets    string
}

// Rows lists the fields in which a run differs from the default: requested, limited by the ceiling, or granted another
// value. usual is the Effective of an empty request. asked and gets are the JSON of a request and of an Effective;
// either may be missing. The request's other members follow, without a ceiling.
func Rows(usual Effective, asked json.RawMessage, c *Ceiling, gets json.RawMessage) []Row {
	text, err := json.Marshal(usual)
	if err != nil {
		panic(err) // only for our own types
	}
	request, granted, defaults := members(asked), members(gets), members(text)
	var rows []Row
	for _, f := range Fields {
		row := Row{Key: f.name(), Asked: f.text(request[f.Key], false)}
		var limits []string
		for over := c; over != nil; over = over.over {
			if value, ok := members(must(over))[f.ceiling()]; ok {
				limits = append(limits, f.text(value, true))
			}
		}
		row.Ceiling = strings.Join(slices.Compact(limits), " and ")
		value := granted[f.Key]
		if row.Gets = f.text(value, false); row.Gets == "" && (row.Asked != "" || row.Ceiling != "") && gets != nil {
			row.Gets = "none"
		}
		delete(request, f.Key)
		if row.Asked != "" || row.Ceiling != "" || value != nil && f.text(defaults[f.Key], false) != f.text(value, false) {
			rows = append(rows, row)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(request)) {
		if text := plainText(request[key]); text != "" {
			rows = append(rows, Row{Key: key, Asked: text})
		}
	}
	return rows
}

func must(c *Ceiling) json.RawMessage {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // only for our own types
	}
	return text
}

func members(text json.RawMessage) map[string]any {
	all := map[string]any{}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	if d.Decode(&all) != nil {
		return map[string]any{}
	}
	return all
}

// text returns a value of the field with its unit; "" for no value. limit means that the value is a ceiling's.
func (f *Field) text(value any, limit bool) string {
	number, ok := value.(json.Number)
	n, err := number.Float64()
	switch {
	case limit && isEmpty(value):
		return "none"
	case !ok || err != nil:
		return plainText(value)
	case n == 0 && !limit:
		return ""
	case n <= 0 && f.Form() == Number:
		return "none"
	case f.Form() == Duration && !limit:
		return strconv.FormatFloat(n/1000, 'f', -1, 64) + " s"
	case f.Form() == Duration:
		return number.String() + " s"
	case f.Unit() > 0 && n*float64(f.Unit()) >= 1<<20:
		return strconv.FormatFloat(n*float64(f.Unit())/(1<<20), 'f', -1, 64) + " MiB"
	case f.Unit() > 0:
		return number.String() + " bytes"
	}
	return number.String()
}

// PlainText returns a JSON value for people: lists with commas, and objects as "name: value; name: value". A text that
// could be read as more than one value is in quotes.
func PlainText(value json.RawMessage) string {
	all := members(fmt.Appendf(nil, `{"value":%s}`, value))
	return plainText(all["value"])
}

// member returns the text of an object's member, which may be empty or an object itself.
func member(value any) string {
	text := plainText(value)
	switch value.(type) {
	case map[string]any:
		return "{" + text + "}"
	case bool:
		return cmp.Or(text, "no")
	}
	return cmp.Or(text, `""`)
}

// one returns a text unchanged, or in quotes if it could be read as several values, columns or lines.
func one(text string) string {
	odd := func(r rune) bool { return !strconv.IsPrint(r) }
	if strings.ContainsAny(text, ",;\"\\") || strings.Contains(text, ": ") || strings.Contains(text, "  ") ||
		strings.TrimSpace(text) != text || strings.ContainsFunc(text, odd) {
		return strconv.Quote(text)
	}
	return text
}

func isEmpty(value any) bool {
	list, ok := value.([]any)
	return ok && len(list) == 0
}

// plainText returns a JSON value without JSON's punctuation.
func plainText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case bool:
		if v {
			return "yes"
		}
		return ""
	case string:
		return one(v)
	case []any:
		var texts []string
		for _, element := range v {
			texts = append(texts, plainText(element))
		}
		return strings.Join(texts, ", ")
	case map[string]any:
		host, hasHost := v["host"].(string)
		if guest, ok := v["guest"].(string); ok && hasHost && len(v) == 2 { // a mount
			if guest != "" && guest != host {
				return one(host + ":" + guest)
			}
			return one(host)
		}
		var texts []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			texts = append(texts, one(key)+": "+member(v[key]))
		}
		return strings.Join(texts, "; ")
	}
	return fmt.Sprint(value)
}
