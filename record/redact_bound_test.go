package record

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

const boundToken = "xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oOcHrzqqgy"

// A machine's output is passed on at once and unchanged, however much of a bound secret is in it. A guessable value
// even passes whole. The filter's behavior must not confirm a guess.
func TestAttackBoundGuesses(t *testing.T) {
	for name, value := range map[string]string{"a token": boundToken, "a PIN": "48151623",
		"a URL":               "postgres://app:hunter2@db/x",
		"JSON":                `{"user":"app","key":"Zk3vQ8sXw1Lr7Tn5"}`,
		"a text of two lines": "line one of it, secret\nline two of it, secret"} {
		r, err := NewRedactor(Secrets{Bound: map[string]string{"KEY": value}})
		if err != nil {
			t.Fatal(err)
		}
		var guesses []string
		for n := range len(value) {
			guesses = append(guesses, value[:n], value[n+1:], hex.EncodeToString([]byte(value[:n])),
				base64.StdEncoding.EncodeToString([]byte(value[:n])))
		}
		guesses = append(guesses, "hunter2", "Zk3vQ8sXw1Lr7Tn5", "line one of it, secret", "48151623")
		got := "at once, as they were"
		var out bytes.Buffer
		w := r.Writer(&out)
		for _, guess := range guesses {
			out.Reset()
			if _, err := w.Write([]byte(guess + "|")); err != nil || out.String() != guess+"|" {
				got = guess + " as " + out.String()
			}
			if s := r.String("code " + guess); s != "code "+guess {
				got = guess + " in code as " + s
			}
		}
		if r.Exposed() != 0 {
			got += ", counted"
		}
		attack.Check(t, "guesses of "+name+" in what a machine prints", "at once, as they were", got)
	}
}

// The whole value is redacted and counted, in any known form, and ends the stream the third time.
func TestAttackBoundExposed(t *testing.T) {
	for name, form := range map[string]string{"as it is": boundToken,
		"hexadecimal": hex.EncodeToString([]byte(boundToken)),
		"base64":      base64.StdEncoding.EncodeToString([]byte(boundToken)), "upper case": strings.ToUpper(boundToken)} {
		r, err := NewRedactor(Secrets{Bound: map[string]string{"KEY": boundToken}})
		if err != nil {
			t.Fatal(err)
		}
		if s := r.String("code " + form); strings.Contains(s, form[4:]) || !strings.Contains(s, Redacted) ||
			r.Exposed() != 0 {
			t.Errorf("%s in code: %q, %d counted", name, s, r.Exposed())
		}
		var out bytes.Buffer
		w := r.Writer(&out)
		long := strings.Repeat("long before ", 20_000) + form + " behind "
		for n, text := range []string{"one " + form + " ", long} {
			out.Reset()
			got := fmt.Sprintf("redacted, %d counted", n+1)
			if _, err := w.Write([]byte(text)); err != nil || strings.Contains(out.String(), form[4:20]) || r.Exposed() != n+1 {
				got = fmt.Sprintf("%v, %d counted, %.100q", err, r.Exposed(), out.String())
			}
			row := fmt.Sprintf("a machine prints a bound secret's value, %s, time %d", name, n+1)
			attack.Check(t, row, fmt.Sprintf("redacted, %d counted", n+1), got)
		}
		out.Reset()
		got := "redacted, and the run ends"
		if _, err := w.Write([]byte(form)); !errors.As(err, new(*ExposedError)) ||
			strings.Contains(out.String(), form[4:20]) {
			got = fmt.Sprintf("%v %q", err, out.String())
		}
		attack.Check(t, "a machine prints a bound secret's value the third time, "+name, "redacted, and the run ends", got)
		known, _ := NewRedactor(Secrets{Bound: map[string]string{"KEY": boundToken}})
		known.Known()
		if _, err := known.Writer(&out).Write([]byte(strings.Repeat(form+" ", 9))); err != nil || known.Exposed() != 0 {
			t.Errorf("%s, which the request has: %v, %d counted", name, err, known.Exposed())
		}
	}
}

// Both kinds are found next to each other, however a text is split.
func TestGivenAndBound(t *testing.T) {
	const given = "Zk3vQ8sXw1Lr7Tn5"
	r, err := NewRedactor(Secrets{Given: map[string]string{"A": given}, Bound: map[string]string{"B": boundToken}})
	if err != nil {
		t.Fatal(err)
	}
	text := "a " + given + " b " + boundToken + " c " + given + boundToken + "%4" + " " + given[:8]
	for n := 1; n <= len(text); n++ {
		var out bytes.Buffer
		w := r.writer(&out)
		for rest := text; rest != ""; {
			k := min(n, len(rest))
			if _, err := w.Write([]byte(rest[:k])); err != nil {
				t.Fatal(err)
			}
			rest = rest[k:]
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if s := out.String(); strings.Contains(s, given) || strings.Contains(s, boundToken) ||
			!strings.HasPrefix(s, "a [redacted] b ") || !strings.HasSuffix(s, "%4 Zk3vQ8sX") {
			t.Errorf("in pieces of %d: %q", n, s)
		}
	}
}
