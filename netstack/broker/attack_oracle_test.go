package broker

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/unitask/unitask/internal/attack"
)

// kinds are secrets of every kind, and others of the same form.
var kinds = []struct{ name, value, other string }{
	{"a token of Slack's", "xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oOcHrzqqgy",
		"xoxb-17653672481-19874698323-Qm4Tz8VbN2xW6yLc0JfRgHsD"},
	{"a JWT", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.rTCH8cLoGxAm_xw68z-zXVKi9ie6xJn9tnVWjd_9ftE",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.9ftErTCH8cLoGxAm_xw68z-zXVKi9ie6xJn9tnVWjdE"},
	{"a PIN", "48151623", "42108999"},
	{"a URL with a password", "postgres://app:Zk3vQ8sXw1Lr7Tn5@db/x", "postgres://app:Tn5Lr7Zk3vQ8sXw1@db/x"},
	{"a URL with a guessable password", "postgres://app:hunter2@db/x", "postgres://app:pass123@db/x"},
	{"JSON", `{"user":"app","key":"Zk3vQ8sXw1Lr7Tn5"}`, `{"user":"app","key":"Tn5Lr7Zk3vQ8sXw1"}`},
}

// guesses are the guesses of an attacker who knows all except the end, the beginning or a middle of a value.
func guesses(value string) (list []string) {
	for n := range len(value) {
		list = append(list, value[:n], value[n+1:], value[:n]+"~"+value[n+1:], strings.ToUpper(value[:n]),
			hex.EncodeToString([]byte(value[:n])))
	}
	return list
}

// echoing is an origin that answers with its input, in pieces.
func echoing(t testing.TB) *origin {
	return newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Echo", r.Header.Get("X-Guess"))
		w.Header().Set("Trailer", "X-End")
		for piece := range slices.Chunk(body, 1000) {
			_, _ = w.Write(piece)
			_ = http.NewResponseController(w).Flush()
		}
		w.Header().Set("X-End", r.Header.Get("X-Guess"))
	})
}

// An echo of guesses comes back unchanged, right or nearly right: the code learns nothing of a value from the filter.
// If the value is not bound to the host, or is guessable, even the whole value comes back.
func TestAttackOracle(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		o := echoing(t)
		for _, kind := range kinds {
			for _, bound := range []Host{host, "other.example.com"} {
				for _, carries := range []bool{false, true} {
					if carries && bound != host {
						continue
					}
					all := guesses(kind.value)
					if bound != host || strings.Contains(kind.name, "PIN") || strings.Contains(kind.name, "guessable") {
						all = append(all, kind.value, kind.value, kind.value, kind.value, hex.EncodeToString([]byte(kind.value)))
					}
					r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: kind.value, Hosts: []Host{bound}}},
						Rules: []Rule{{Name: "all", Host: host}}})
					name := fmt.Sprintf("guesses of %s that is bound to %s, echoed by %s, with the placeholder %t, HTTP/2 %t",
						kind.name, bound, host, carries, h2)
					attack.Check(t, name, "as they were", echoed(t, r, h2, carries, all))
				}
			}
		}
	})
}

// echoed sends guesses one by one, then all in one request, and returns the echoes.
func echoed(t *testing.T, r *rig, h2, carries bool, guesses []string) string {
	c := r.client(h2)
	header := http.Header{}
	if carries {
		header.Set("Authorization", r.Placeholder("KEY"))
	}
	few := guesses[:0:0]
	for i := 0; i < len(guesses); i += 1 + len(guesses)/40 {
		few = append(few, guesses[i])
	}
	for _, body := range append(append(few, guesses[len(guesses)-1]), strings.Join(guesses, "\n")) {
		header["X-Guess"] = []string{strings.TrimSpace(strings.ReplaceAll(body[:min(len(body), 1000)], "\n", " "))}
		res, text := do(t, c, "POST", "https://"+host+"/", header, body)
		end := res.Trailer.Get("X-End")
		if res.StatusCode != 200 || text != body || res.Header.Get("X-Echo") != header.Get("X-Guess") ||
			end != header.Get("X-Guess") {
			return fmt.Sprintf("%d: %.200q came back as %.200q", res.StatusCode, body, text)
		}
	}
	return "as they were"
}

// A hundred thousand guesses in one answer come back unchanged.
func TestAttackOracleMany(t *testing.T) {
	var body strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&body, "%08d\n", 48_100_000+i)
	}
	o := echoing(t)
	for _, bound := range []Host{host, "other.example.com"} {
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "PIN", Value: "48151623", Hosts: []Host{bound}}},
			Rules: []Rule{{Name: "all", Host: host}}})
		_, text := do(t, r.client(true), "POST", "https://"+host+"/", nil, body.String())
		attack.Check(t, fmt.Sprintf("100 000 guesses in one answer, among them the PIN that is bound to %s", bound), "true",
			fmt.Sprint(text == body.String()))
	}
}

// An echo in base64 contains no bit of the value, wherever the value is and whatever surrounds it. The answer is the
// same for two values of one form.
func TestAttackEchoEdges(t *testing.T) {
	for _, kind := range kinds {
		for _, fit := range []bool{false, true} {
			put := strings.Repeat("p", len(kind.value))
			var redactors [2]*swapper
			for i, value := range []string{kind.value, kind.other} {
				b := &Broker{cfg: Config{Secrets: []Secret{{Name: "KEY", Value: value, Hosts: []Host{host}, placeholder: put}}},
					redactors: map[redactorKey]*swapper{}}
				redactors[i] = b.redactor(host, fit, nil)
			}
			if redactors[0] == nil { // it is guessable
				continue
			}
			for name, encode := range map[string]func([]byte) string{"base64": base64.StdEncoding.EncodeToString,
				"base64 without padding": base64.RawStdEncoding.EncodeToString,
				"base64url":              base64.RawURLEncoding.EncodeToString,
				"base64 in a query":      func(b []byte) string { return url.QueryEscape(base64.StdEncoding.EncodeToString(b)) },
				"base64 in PHP's JSON": func(b []byte) string {
					return strings.ReplaceAll(base64.StdEncoding.EncodeToString(b), "/",
						`\/`)
				}} {
				got := ""
				for n := range 2 * 3 * 3 * 64 {
					before, after := bytes.Repeat([]byte{byte(n / 9 * 37)}, n%3), bytes.Repeat([]byte{byte(n / 9 * 91)}, n/3%3)
					again := []byte{}
					var echo [2]string
					for i, value := range []string{kind.value, kind.other} {
						if n >= 9*64 { // the value twice in a row
							again = []byte(value)
						}
						all, err := redactors[i].all([]byte(encode(slices.Concat(before, []byte(value), again, after))),
							func(*pair) error { return nil })
						if err != nil {
							t.Fatal(err)
						}
						echo[i] = string(all)
					}
					if echo[0] != echo[1] {
						got = fmt.Sprintf("%q between %x and %x, %q", echo[0], before, after, echo[1])
					}
					if len(before)+len(after)+len(again) == 0 && echo[0] != encode([]byte(put)) {
						t.Fatalf("%s of %s: %q, want %q", name, kind.name, echo[0], encode([]byte(put)))
					}
				}
				attack.Check(t, fmt.Sprintf("the edges of %s, echoed in %s, with its length %t", kind.name, name, fit), "", got)
			}
		}
	}
}

// The same for an echo in base64 with the value several times, with anything between.
func TestAttackEchoRepeated(t *testing.T) {
	random := rand.New(rand.NewPCG(38, 2))
	encodings := []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding}
	for _, kind := range kinds {
		var redactors [2]*swapper
		for i, value := range []string{kind.value, kind.other} {
			b := &Broker{cfg: Config{Secrets: []Secret{{Name: "KEY", Value: value, Hosts: []Host{host},
				placeholder: strings.Repeat("p", len(value))}}}, redactors: map[redactorKey]*swapper{}}
			redactors[i] = b.redactor(host, false, nil)
		}
		if redactors[0] == nil { // it is guessable
			continue
		}
		got := ""
		for range 2000 {
			between := make([]string, 2+random.IntN(4))
			for i := range between {
				text := make([]byte, random.IntN(4))
				for k := range text {
					text[k] = byte(random.Uint32())
				}
				between[i] = string(text)
			}
			code := encodings[random.IntN(len(encodings))]
			var echo [2]string
			for i, value := range []string{kind.value, kind.other} {
				all, err := redactors[i].all([]byte(code.EncodeToString([]byte(strings.Join(between, value)))),
					func(*pair) error { return nil })
				if err != nil {
					t.Fatal(err)
				}
				echo[i] = string(all)
			}
			if echo[0] != echo[1] {
				got = fmt.Sprintf("%q and %q", echo[0], echo[1])
			}
		}
		attack.Check(t, fmt.Sprintf("%s up to four times in an echo in base64", kind.name), "", got)
	}
}

// The output of a filter and its timing are the same for any two secrets of one form, unless one of them occurs
// completely.
func FuzzOracle(f *testing.F) {
	f.Add([]byte("xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oOcHrz"), []byte{3, 1, 20})
	f.Add([]byte("786f78622d31373635333637323438312d"), []byte{1})
	f.Add([]byte(`eG94Yi0xNzY1MzY3MjQ4MS0xOTg3NDY5ODMyMy1wZEZaS1ZlVHVFOHNrN29PY0hyenFxZ3k`), []byte{7})
	var found bool
	redactors := make([]*swapper, 2)
	for i, value := range []string{kinds[0].value, kinds[0].other} {
		b := &Broker{cfg: Config{Secrets: []Secret{{Name: "KEY", Value: value, Hosts: []Host{host},
			placeholder: strings.Repeat("p", len(value))}}}, redactors: map[redactorKey]*swapper{}}
		redactors[i] = b.redactor(host, false, nil)
	}
	f.Fuzz(func(t *testing.T, text, lengths []byte) {
		found = false
		var streams [2]swapping
		for i := range streams {
			streams[i] = swapping{swapper: redactors[i], blind: true, found: func(*pair) error { found = true; return nil }}
		}
		for i := 0; len(text) > 0; i++ {
			n := min(len(text), 1+int(append(lengths, 9)[i%(len(lengths)+1)]))
			one, _ := streams[0].write(nil, text[:n])
			other, _ := streams[1].write(nil, text[:n])
			if text = text[n:]; !found && !bytes.Equal(one, other) {
				t.Fatalf("%q with one secret, %q with the other", one, other)
			}
		}
	})
}

// The same with random texts, most of which resemble the secret.
func TestAttackOracleRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(38, 1))
	for _, kind := range kinds {
		var redactors [2]*swapper
		for i, value := range []string{kind.value, kind.other} {
			b := &Broker{cfg: Config{Secrets: []Secret{{Name: "KEY", Value: value, Hosts: []Host{host},
				placeholder: strings.Repeat("p", len(value))}}}, redactors: map[redactorKey]*swapper{}}
			redactors[i] = b.redactor(host, random.IntN(2) == 0, nil)
		}
		if redactors[0] == nil || redactors[1] == nil { // of a guessable one
			if redactors[0] != redactors[1] {
				t.Errorf("%s: one of two is looked for", kind.name)
			}
			continue
		}
		list, seen := guesses(kind.value), "as with another value"
		for range 2000 {
			var streams [2]swapping
			for i := range streams {
				streams[i] = swapping{swapper: redactors[i], blind: true,
					found: func(*pair) error { t.Fatal("a guess is found"); return nil }}
			}
			for range 1 + random.IntN(5) {
				piece := []byte(list[random.IntN(len(list))] + " ")
				one, _ := streams[0].write(nil, piece)
				other, _ := streams[1].write(nil, piece)
				if !bytes.Equal(one, other) {
					seen = fmt.Sprintf("%q passes %q with it, %q with another", piece, one, other)
				}
			}
		}
		attack.Check(t, "2000 answers of guesses at random: "+kind.name, "as with another value", seen)
	}
}

// A value in an answer whose request did not contain it is not an echo. No part of it is passed on, and the log records
// it. After three times no request gets the secret any more, even in a session that continues elsewhere.
func TestAttackExposed(t *testing.T) {
	ways := map[string]func(w http.ResponseWriter){
		"in the body": func(w http.ResponseWriter) { fmt.Fprint(w, "<", plain, ">") },
		"in base64":   func(w http.ResponseWriter) { fmt.Fprint(w, "Z2hwXzAxMjM0NTY3ODlhYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3g=") },
		"in a field":  func(w http.ResponseWriter) { w.Header().Set("X-Token", plain) },
		"in a name":   func(w http.ResponseWriter) { w.Header().Set(plain, "x") },
		"in a trailer": func(w http.ResponseWriter) {
			w.Header().Set(http.TrailerPrefix+"X-Token", plain)
			fmt.Fprint(w, "body")
		},
		"in an early answer": func(w http.ResponseWriter) {
			w.Header().Set("Link", plain)
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			fmt.Fprint(w, "body")
		},
		"behind a megabyte": func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 1<<20)); fmt.Fprint(w, plain) },
	}
	both(t, func(t *testing.T, h2 bool) {
		for name, way := range ways {
			sent := 0
			o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) { sent++; way(w) })
			r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
			c := r.client(h2)
			for n := range maxExposed {
				got := "nothing of it"
				if res, err := c.Get("https://" + host + "/"); err == nil {
					body, _ := io.ReadAll(res.Body)
					res.Body.Close()
					if all := fmt.Sprint(res.Header, res.Trailer) + string(body); strings.Contains(strings.ToLower(all), plain[:8]) ||
						bytes.Contains(body, []byte("Z2hwXzAx")) {
						got = all
					}
				}
				attack.Check(t, "a value that the request did not carry, "+name, "nothing of it", got)
				if x := r.logged(n + 1); len(x.Exposed) != 1 || x.Exposed[0] != "KEY" || x.Allowed ||
					!strings.Contains(x.Reason, "the value of KEY") {
					t.Errorf("%s: logged as %+v", name, x)
				}
			}
			kept, err := r.Keep()
			if err != nil {
				t.Fatal(err)
			}
			again := newRig(t, o, Config{Kept: kept, Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
			for _, later := range []*rig{r, again} {
				before := sent
				res, text := do(t, later.client(h2), "GET", "https://"+host+"/",
					http.Header{"Authorization": {r.Placeholder("KEY")}}, "")
				attack.Check(t, "a request with a secret that was withdrawn, "+name, "403 0",
					fmt.Sprint(res.StatusCode, " ", sent-before))
				if !strings.Contains(text, "KEY was withdrawn") {
					t.Errorf("%s: %q", name, text)
				}
			}
		}
	})
}

// A signature with the real key does not come back, and is not valid for longer than the run.
func TestAttackSignatureReflected(t *testing.T) {
	var real string // what the server received
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Has("X-Amz-Signature") {
			real = q.Get("X-Amz-Signature")
			w.Header().Set("X-Expires", q.Get("X-Amz-Expires"))
		} else if _, signature, ok := strings.Cut(r.Header.Get("Authorization"), "Signature="); ok {
			real = signature
		}
		w.Header().Set("Location", "https://elsewhere.example/?"+r.URL.RawQuery+"&again="+real)
		w.WriteHeader(http.StatusTemporaryRedirect)
		fmt.Fprint(w, "<SignatureProvided>", real, "</SignatureProvided>")
	})
	both(t, func(t *testing.T, h2 bool) {
		r := newRig(t, o, Config{MaxSigned: time.Minute,
			Secrets: []Secret{{Name: "KEY", Value: awsKey, Hosts: []Host{host}, In: []Place{InSigV4}}}})
		c, creds := r.client(h2), aws.Credentials{AccessKeyID: "AKIA", SecretAccessKey: r.Placeholder("KEY")}
		empty := sha256.Sum256(nil)
		for _, row := range []struct {
			name    string
			presign bool
			at      time.Time
			want    string
		}{
			{"in a field", false, time.Now(), "nothing of it"},
			{"in the query", true, time.Now(), "nothing of it"},
			{"in the query, of tomorrow", true, time.Now().Add(24 * time.Hour), "403"},
			{"in a field, of tomorrow", false, time.Now().Add(24 * time.Hour), "403"},
		} {
			real = ""
			req, _ := http.NewRequest("GET", "https://"+host+"/bucket/key?X-Amz-Expires=604800", nil)
			if row.presign {
				signed, _, err := v4.NewSigner().PresignHTTP(t.Context(), creds, req, "UNSIGNED-PAYLOAD", "s3", "eu-central-1",
					row.at)
				if err != nil {
					t.Fatal(err)
				}
				req, _ = http.NewRequest("GET", signed, nil)
			} else if err := v4.NewSigner().SignHTTP(t.Context(), creds, req, hex.EncodeToString(empty[:]), "s3", "eu-central-1",
				row.at); err != nil {
				t.Fatal(err)
			}
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			got := "nothing of it"
			switch all := fmt.Sprint(res.Header) + string(body); {
			case res.StatusCode == http.StatusForbidden:
				got = "403"
			case real == "":
				got = "it was not signed"
			case strings.Contains(all, real):
				got = all
			case row.presign && res.Header.Get("X-Expires") != "60":
				got = "it expires after " + res.Header.Get("X-Expires")
			}
			attack.Check(t, fmt.Sprintf("a signature with the real key, %s, HTTP/2 %t", row.name, h2), row.want, got)
		}
	})
}
