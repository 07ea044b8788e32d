// Package entropy estimates how hard a secret is to guess. Filters ask it before they look for a
// secret in text that hostile code may have chosen: what a filter does to a right guess shows that
// it was right. It never sees anything but the secret, and keeps nothing. Packages broker and record
// call it.
package entropy

import (
	"encoding/json"
	"math"
	"net/url"
	"unicode/utf8"
)

// Least is how many bits a secret must have to be looked for. Code that has a filter try a million
// guesses a second for a day finds one of 60 bits with a chance of one in ten million.
const Least = 60

// Bits estimates the bits that somebody must guess who knows what the secret looks like: of a URL
// only the password counts, of JSON only its longest string or number. A text of few different
// characters counts for less. The estimate knows no words: a sentence counts for more than it is worth.
func Bits(secret string) float64 {
	if u, err := url.Parse(secret); err == nil && u.User != nil {
		password, _ := u.User.Password()
		return bits(password)
	}
	var v any
	if json.Unmarshal([]byte(secret), &v) == nil {
		return most(v)
	}
	return bits(secret)
}

// Guessable says that a secret has too few bits to be looked for.
func Guessable(secret string) bool { return Bits(secret) < Least }

// most is the bits of the value in JSON that has the most.
func most(v any) (all float64) {
	switch v := v.(type) {
	case string:
		return bits(v)
	case float64:
		text, _ := json.Marshal(v)
		return bits(string(text))
	case []any:
		for _, e := range v {
			all = max(all, most(e))
		}
	case map[string]any:
		for _, e := range v {
			all = max(all, most(e))
		}
	}
	return all
}

// classes are the alphabets that characters are taken from.
var classes = []struct {
	size float64
	has  func(c rune) bool
}{
	{10, func(c rune) bool { return '0' <= c && c <= '9' }},
	{6, func(c rune) bool { return 'a' <= c && c <= 'f' }},
	{20, func(c rune) bool { return 'g' <= c && c <= 'z' }},
	{6, func(c rune) bool { return 'A' <= c && c <= 'F' }},
	{20, func(c rune) bool { return 'G' <= c && c <= 'Z' }},
	{33, func(c rune) bool {
		return c < utf8.RuneSelf && !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z')
	}},
	{100, func(c rune) bool { return c >= utf8.RuneSelf }},
}

// bits counts each character of a text by the alphabets that are in it, and by how many different
// characters there are.
func bits(text string) float64 {
	different, alphabet, length := map[rune]bool{}, 0.0, 0
	seen := make([]bool, len(classes))
	for _, c := range text {
		length++
		different[c] = true
		for i, class := range classes {
			if !seen[i] && class.has(c) {
				seen[i], alphabet = true, alphabet+class.size
			}
		}
	}
	if length == 0 {
		return 0
	}
	few := float64(len(different)) * float64(len(different))
	return float64(length) * math.Log2(min(alphabet, few))
}
