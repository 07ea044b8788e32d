package entropy

import (
	"strings"
	"testing"
)

func TestBits(t *testing.T) {
	for _, c := range []struct {
		secret    string
		guessable bool
	}{
		{"", true},
		{"48151623", true},         // a PIN
		{"4815162342108999", true}, // a card's number
		{"hunter2", true},          //
		{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", true}, //
		{"postgres://user:hunter2@db.example.com/production", true},
		{"postgres://user@db.example.com/production", true},
		{`{"user":"production","pin":48151623}`, true},
		{"9f86d081884c7d659a2feaa0c55ad015", false}, // hexadecimal
		{"xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oOcHrzqqgy", false},
		{"ghp_0123456789abcdefghijklmnopqrstuvwx", false},
		{"Zk3vQ8sXw1Lr7Tn5", false},
		{"postgres://user:Zk3vQ8sXw1Lr7Tn5@db.example.com/production", false},
		{`{"user":"x","key":"Zk3vQ8sXw1Lr7Tn5"}`, false},
		{"\xff\xfe binary that is no text, \x00\x01", false},
		{strings.Repeat("Zk3vQ8sXw1Lr7Tn5", 512), false},
	} {
		if got := Guessable(c.secret); got != c.guessable {
			t.Errorf("Guessable(%.60q) = %t of %.0f bits, want %t", c.secret, got, Bits(c.secret), c.guessable)
		}
	}
}
