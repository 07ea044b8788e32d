package record

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
)

// shows are ways to print a secret, each without this package's help.
var shows = map[string]func(s string, r *rand.Rand) string{
	"plain": func(s string, _ *rand.Rand) string { return "key=" + s + "&" },
	"base64 of a longer text": func(s string, r *rand.Rand) string {
		return base64.StdEncoding.EncodeToString([]byte(text(r) + s + text(r)))
	},
	"base64url of a longer text": func(s string, r *rand.Rand) string {
		return base64.RawURLEncoding.EncodeToString([]byte(text(r) + s + text(r)))
	},
	"hex": func(s string, r *rand.Rand) string { return hex.EncodeToString([]byte(text(r) + s + text(r))) },
	"HEX": func(s string, r *rand.Rand) string {
		return strings.ToUpper(hex.EncodeToString([]byte(text(r) + s + text(r))))
	},
	"a Buffer": func(s string, _ *rand.Rand) string { return "<Buffer " + fmt.Sprintf("% x", s) + ">" },
	"an array": func(s string, _ *rand.Rand) string {
		return strings.ReplaceAll(fmt.Sprint([]byte(s)), " ", ", ")
	},
	"a query":  func(s string, _ *rand.Rand) string { return "https://x.example/?a=" + url.QueryEscape(s) + "&b" },
	"a path":   func(s string, _ *rand.Rand) string { return "https://x.example/" + url.PathEscape(s) + "/b" },
	"JSON":     func(s string, _ *rand.Rand) string { b, _ := json.Marshal(map[string]string{"k": s}); return string(b) },
	"reversed": func(s string, _ *rand.Rand) string { b := []byte(s); reverse(b); return string(b) },
	"base64, reversed": func(s string, _ *rand.Rand) string {
		b := []byte(base64.StdEncoding.EncodeToString([]byte(s)))
		reverse(b)
		return string(b)
	},
	"twice, overlapping itself": func(s string, _ *rand.Rand) string { return s + s + s[1:] + s[:len(s)-1] + s },
}

func reverse(b []byte) {
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
}

func text(r *rand.Rand) string {
	return strings.Repeat("·", r.IntN(4)) + strings.Repeat("-", r.IntN(5))
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+= \"\\<&'\n\té€"

func randomSecret(r *rand.Rand) string {
	runes := []rune(letters)
	var s strings.Builder
	for range MinSecret + r.IntN(40) {
		s.WriteRune(runes[r.IntN(len(runes))])
	}
	return s.String()
}

// However a secret is printed and split, nothing of it that is long enough to help
// comes out, and what surrounds it does.
func TestRedact(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	rounds := 10_000
	if testing.Short() {
		rounds = 500
	}
	for range rounds / len(shows) {
		secret := randomSecret(r)
		red, err := NewRedactor(map[string]string{"A": secret, "B": randomSecret(r)})
		if err != nil {
			t.Fatal(err)
		}
		for name, show := range shows {
			shown := show(secret, r)
			whole := "before " + shown + " after"
			var out bytes.Buffer
			w := red.Writer(&out)
			for rest := whole; rest != ""; {
				n := min(1+r.IntN(9), len(rest))
				if _, err := w.Write([]byte(rest[:n])); err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			got := out.String()
			if !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") || !strings.Contains(got, Redacted) {
				t.Fatalf("%s of %q: %q became %q", name, secret, whole, got)
			}
			for _, form := range Forms(secret) {
				if strings.Contains(got, form) {
					t.Fatalf("%s of %q: %q is left of %q in %q", name, secret, form, whole, got)
				}
			}
		}
	}
}

func TestRedactNothing(t *testing.T) {
	if r, err := NewRedactor(nil); r != nil || err != nil || r.String("x") != "x" {
		t.Errorf("%v %v", r, err)
	}
	red, err := NewRedactor(map[string]string{"A": "secret-value"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"", "secret-valu", "secretsecret-secret-valuf", "SECRET", base32.StdEncoding.EncodeToString([]byte("secret-value")), strings.Repeat("secret-valu ", 1000)} {
		if got := red.String(s); got != s {
			t.Errorf("%.60q became %.60q", s, got)
		}
	}
	// What holds no secret is not held back.
	var out bytes.Buffer
	w := red.Writer(&out)
	if _, err := w.Write([]byte("tick\n")); err != nil || out.String() != "tick\n" {
		t.Errorf("%q %v", out.String(), err)
	}
	if _, err := w.Write([]byte("secr")); err != nil || out.String() != "tick\n" {
		t.Errorf("%q %v", out.String(), err)
	}
	if _, err := NewRedactor(map[string]string{"A": strings.Repeat("long", 10_000)}); err == nil {
		t.Error("40 kB were taken")
	}
}

// Nothing is lost or invented but secrets, and the split does not matter.
func FuzzRedact(f *testing.F) {
	f.Add("secret-value", "a secret-value b", uint8(3))
	f.Add("aaaaaa", "aaaaaaaaaaaab", uint8(1))
	f.Fuzz(func(t *testing.T, secret, text string, step uint8) {
		if len(secret) < MinSecret || len(secret) > 200 || len(text) > 4096 {
			return
		}
		red, err := NewRedactor(map[string]string{"A": secret})
		if err != nil {
			return
		}
		whole := red.String(text)
		var out strings.Builder
		w := red.Writer(&out)
		for rest := text; rest != ""; {
			n := min(int(step)+1, len(rest))
			_, _ = w.Write([]byte(rest[:n]))
			rest = rest[n:]
		}
		_ = w.Close()
		if out.String() != whole {
			t.Errorf("%q in %q: %q or %q", secret, text, whole, out.String())
		}
		left := whole
		for part := range strings.SplitSeq(whole, Redacted) {
			if !strings.Contains(text, part) {
				t.Errorf("%q in %q: %q was not there", secret, text, part)
			}
		}
		if !strings.Contains(text, Redacted) && strings.Contains(left, secret) && !strings.Contains(Redacted, secret) && !strings.Contains(secret, "[") && !strings.Contains(secret, "]") {
			t.Errorf("%q is left in %q", secret, left)
		}
	})
}
