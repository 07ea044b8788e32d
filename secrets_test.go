package unitask_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// The code has its secrets; the record, the result and the errors contain none of them.
func TestSecrets(t *testing.T) {
	needVM(t)
	const secret = `t0ken/with+"odd" chars=`
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			home := newHome(t)
			rt, err := unitask.Open(unitask.Options{Home: home})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			code := testarchive.Open(t, "testdata/secretsprinted.txtar").Text("printed.js")
			res, err := rt.Run(t.Context(), unitask.Request{Kernel: kernel,
				Secrets: map[string]string{"API_TOKEN": secret, "OTHER": "other-secret"}, Code: code}, unitask.IO{})
			if err != nil || res.ExitCode != 1 {
				t.Fatalf("%v %+v", err, res)
			}
			out, errs := string(res.Stdout), string(res.Stderr)
			if !strings.Contains(out, "length 23 12 API_TOKEN,HOME,LANG,OTHER,PATH\n"+record.Redacted+"| "+record.Redacted) ||
				!strings.Contains(errs, "Error: with "+record.Redacted) || !strings.Contains(out, "ENOTFOUND "+record.Redacted) {
				t.Errorf("%s%s", out, errs)
			}
			text, _ := res.MarshalJSON()
			noSecret(t, "the result", string(text)+out+errs, secret, "other-secret")
			everyFile(t, filepath.Join(home, "runs"), func(name,
				content string) {
				noSecret(t, name, content, secret, "other-secret")
			})
			rec, err := rt.Runs().Get(res.RunID)
			if err != nil || !strings.Contains(strings.Join(strings.Fields(string(rec.Request)), ""),
				`"secrets":["API_TOKEN","OTHER"]`) {
				t.Errorf("%v %s", err, rec.Request)
			}
		})
	}
}

// A secret that is also in the request is in no part of the record. The record shows where it was, and can't be
// replayed.
func TestRedactedRequest(t *testing.T) {
	const secret, denied = "a-secret-value", "a-denied-value"
	ceiling, err := policy.ParseCeiling("test.toml", []byte(`secrets = ["TOKEN"]`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		req    unitask.Request
		fields []string
	}{
		{"nothing", unitask.Request{Code: "1", Env: map[string]string{"X": denied}}, nil},
		{"code", unitask.Request{Code: `login("` + secret + `")`}, []string{"code"}},
		{"arguments, in base64", unitask.Request{Code: "1",
			Args: []string{"x", base64.StdEncoding.EncodeToString([]byte("user:" + secret))}}, []string{"args[1]"}},
		{"environment", unitask.Request{Code: "1", Env: map[string]string{"A": "x", "B": "Bearer " + secret}},
			[]string{"env.B"}},
		{"a name in the environment", unitask.Request{Code: "1", Env: map[string]string{secret: "x"}},
			[]string{"a name in env"}},
		{"path and folder", unitask.Request{Code: "1", Path: "/" + secret + ".js", Dir: "/" + secret},
			[]string{"dir", "path"}},
		{"hosts", unitask.Request{Code: "1", AllowNet: []string{secret + ".example.com"},
			AllowTCP: []string{secret + ".example.com:25"}}, []string{"allowNet[0]", "allowTcp[0]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t), Ceiling: ceiling})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			c.req.Secrets = map[string]string{"TOKEN": secret, "OTHER": denied}
			ended, cancel := context.WithCancel(t.Context())
			cancel() // the record is made, the machine is not
			res, err := rt.Run(ended, c.req, unitask.IO{})
			if err == nil || res == nil || !slices.Equal(res.Redacted, c.fields) {
				t.Fatalf("%v %+v", err, res)
			}
			everyFile(t, rt.Runs().Dir(), func(name, text string) { noSecret(t, name, text, secret) })
			rec, err := rt.Runs().Get(res.RunID)
			if err != nil || !slices.Equal(rec.Redacted, c.fields) {
				t.Errorf("%v %+v", err, rec)
			}
			_, err = rt.History().Request(res.RunID, "")
			if c.fields == nil {
				if err != nil {
					t.Error(err)
				}
			} else if !errors.Is(err, history.ErrRedacted) || !strings.Contains(err.Error(), c.fields[0]) {
				t.Error(err)
			}
		})
	}
}

func everyFile(t *testing.T, dir string, do func(name, text string)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		do(name, string(text))
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func noSecret(t *testing.T, where, text string, secrets ...string) {
	t.Helper()
	for _, s := range secrets {
		b := []byte(s)
		quoted, _ := json.Marshal(s)
		for _, form := range []string{s, string(quoted[1 : len(quoted)-1]), url.QueryEscape(s), url.PathEscape(s),
			hex.EncodeToString(b), fmt.Sprintf("% x", b),
			base64.StdEncoding.EncodeToString(b), base64.RawURLEncoding.EncodeToString(b),
			base64.RawURLEncoding.EncodeToString(b[1:])[:6], base64.RawURLEncoding.EncodeToString(b[2:])[:6]} {
			if strings.Contains(strings.ToLower(text), strings.ToLower(form)) {
				t.Errorf("%s holds %q", where, form)
			}
		}
	}
}

func TestSecretsRefused(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for says, c := range map[string]struct {
		secrets map[string]string
		env     map[string]string
		io      unitask.IO
	}{
		"has 5 bytes":             {secrets: map[string]string{"A": "12345"}},
		"has 0 bytes":             {secrets: map[string]string{"A": ""}},
		"NUL":                     {secrets: map[string]string{"A": "123\x00456"}},
		"is not a name of":        {secrets: map[string]string{"A-B": "123456"}},
		"is in env too":           {secrets: map[string]string{"A": "123456"}, env: map[string]string{"A": "x"}},
		"the capture would hold":  {secrets: map[string]string{"A": "123456"}, io: unitask.IO{Capture: new(strings.Builder)}},
		"too long to be looked":   {secrets: map[string]string{"A": strings.Repeat("x1", record.MaxSecrets/2+1)}},
		"must have 1 to 256 byte": {secrets: map[string]string{"": "123456"}},
	} {
		_, err := rt.Run(t.Context(), unitask.Request{Code: "1", Secrets: c.secrets, Env: c.env}, c.io)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	if ids, _ := rt.Runs().IDs(); len(ids) > 0 {
		t.Errorf("there are records: %v", ids)
	}
}

// A ceiling lists the secrets that a run may have. Other secrets are not searched for in the output, because that would
// confirm the code's guesses.
func TestSecretsUnderCeiling(t *testing.T) {
	needVM(t)
	ceiling, err := policy.ParseCeiling("test.toml", []byte(`secrets = ["GOOD"]`))
	if err != nil {
		t.Fatal(err)
	}
	res, err := unitask.Run(t.Context(), unitask.Request{Secrets: map[string]string{"GOOD": "good-secret",
		"BAD": "bad-secret"}, Code: `console.log(Object.keys(process.env).sort().join(), "bad-secret good-secret")`},
		unitask.Options{Home: newHome(t), Ceiling: ceiling})
	if err != nil || string(res.Stdout) != "GOOD,HOME,LANG,PATH bad-secret "+record.Redacted+"\n" ||
		len(res.Policy.Denials) != 1 || res.Policy.Denials[0].Requested != "BAD" || res.Policy.Ceiling != "test.toml" {
		t.Errorf("%v %s %+v", err, res.Stdout, res.Policy)
	}
}

// A secret reaches only the server that the policy allows.
func TestSecretReachesServer(t *testing.T) {
	needVM(t)
	const token = "ghp_0123456789abcdef"
	var got atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, "hello "+r.Header.Get("Authorization"))
	}))
	defer server.Close()
	address := server.Listener.Addr().String()
	for _, kernel := range kernels(t) {
		res, err := unitask.Run(t.Context(), unitask.Request{Kernel: kernel,
			Secrets: map[string]string{"GITHUB_TOKEN": token}, AllowTCP: []string{address},
			Code: `fetch("http://` + address +
				`/user", { headers: { Authorization: ` +
				`"Bearer " + process.env.GITHUB_TOKEN } }).then((r) => r.text()).then(console.log)`},
			unitask.Options{Home: newHome(t)})
		if err != nil || string(res.Stdout) != "hello Bearer "+record.Redacted+"\n" || got.Swap("") != "Bearer "+token {
			t.Errorf("%s: %v %q %q", kernel, err, res.Stdout, res.Stderr)
		}
	}
}
