package vault

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

func write(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSources checks a value, or an error with the source and the reason.
func TestSources(t *testing.T) {
	t.Setenv("VAULT_TEST", "from the environment")
	t.Setenv("VAULT_EMPTY", "")
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	v := &Vault{Most: 64, Helpers: map[string][]string{
		"print": {"printf", "%s\\r\\n", "op://{}"}, "fail": {"sh", "-c", "echo locked >&2; exit 3; {}"},
		"none": {"no-such-helper", "{}"},
		"much": {"sh", "-c", "yes | head -c 1000000; : {}"},
	}}
	for source, want := range map[string]string{
		"env:VAULT_TEST":  "from the environment",
		"env:VAULT_EMPTY": "error: env:VAULT_EMPTY is empty",
		"env:VAULT_NO":    "error: the environment has no VAULT_NO",
		"file:" + write(t, "a", "one\ntwo\r\n", 0o600):                 "one\ntwo",
		"file:" + write(t, "b", "\n", 0o600):                           "is empty",
		"file:" + write(t, "c", strings.Repeat("x", 64)+"\r\n", 0o600): strings.Repeat("x", 64),
		"file:" + write(t, "d", strings.Repeat("x", 65), 0o600):        "has more than 64 bytes",
		"file:" + write(t, "e", "a\x00b", 0o600):                       "has a zero byte",
		"file:/dev/zero":                                               "has more than 64 bytes",
		"file:" + t.TempDir():                                          "is no file",
		"file:" + fifo:                                                 "is empty",
		"file:/no/such":                                                "error: file:/no/such: no such file or directory",
		"cmd:print:work/token":                                         "op://work/token",
		"cmd:print:; echo $(x)":                                        "op://; echo $(x)", // one argument, whatever it is
		"cmd:fail:x":                                                   `error: cmd:fail:x: sh: exit status 3: "locked"`,
		"cmd:none:x":                                                   "executable file not found",
		"cmd:much:x":                                                   "prints more than 64 bytes",
		"cmd:print:-rf":                                                "begins with no -",
		"cmd:print:":                                                   "begins with no -",
		"cmd:print":                                                    "begins with no -",
		"cmd:other:x":                                                  `has no helper "other": secretHelpers.other =`,
		"cmd:print:a\nb":                                               "is no source of a secret: use env:VARIABLE",
		"value":                                                        "is no source of a secret",
		"env:":                                                         "is no source of a secret",
		"http:x":                                                       "is no source of a secret",
	} {
		got, err := v.Read(t.Context(), source)
		if err != nil {
			got = "error: " + err.Error()
		}
		if !strings.Contains(got, want) || err == nil && got != want {
			t.Errorf("%.40q: %q, want %q", source, got, want)
		}
	}
}

// TestHelperEnds checks that a helper that never ends is ended with its caller.
func TestHelperEnds(t *testing.T) {
	v := &Vault{Most: 64, Helpers: map[string][]string{"wait": {"sleep", "{}"}}}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := v.Read(ctx, "cmd:wait:600"); err == nil || time.Since(began) > 30*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}

// TestWhose checks that a caller's own source comes before everybody's, and that one before the environment.
func TestWhose(t *testing.T) {
	t.Setenv("KEY", "environment")
	t.Setenv("OTHER", "environment's other")
	file := func(text string) string { return "file:" + write(t, "f", text, 0o600) }
	v := &Vault{Most: 64, Secrets: map[string]string{"KEY": file("everybody")},
		Callers: map[string]map[string]string{"alice": {"KEY": file("alice")}, "issuer#bob": {"KEY": file("bob")}}}
	for _, row := range []struct {
		name    string
		callers []string
		want    string
	}{
		{"KEY", nil, "everybody"}, {"KEY", []string{"alice"}, "alice"}, {"KEY", []string{"issuer#bob", "alice"}, "bob"},
		{"KEY", []string{"carol"}, "everybody"}, {"OTHER", []string{"alice"}, "environment's other"},
	} {
		if got, err := v.Value(t.Context(), row.name, row.callers...); got != row.want || err != nil {
			t.Errorf("%s of %v: %q, %v", row.name, row.callers, got, err)
		}
	}
}

func TestCheck(t *testing.T) {
	for want, v := range map[string]*Vault{
		"":                                    {Secrets: map[string]string{"A": "env:B", "C": "keyring:x/y"}},
		"secrets.A: \"value\" is no":          {Secrets: map[string]string{"A": "value"}},
		"is relative":                         {Secrets: map[string]string{"A": "file:x"}},
		"callerSecrets.bob.A":                 {Callers: map[string]map[string]string{"bob": {"A": ""}}},
		"secrets.A: \"cmd:x:y\"":              {Secrets: map[string]string{"A": "cmd:x:y"}},
		"secretHelpers.x is empty":            {Helpers: map[string][]string{"x": nil}},
		"must have {} in one argument":        {Helpers: map[string][]string{"x": {"pass", "show"}}},
		"secretHelpers.y must have {}":        {Helpers: map[string][]string{"y": {"{}"}}},
		"a name has no colon":                 {Helpers: map[string][]string{"a:b": {"pass", "{}"}}},
		"registries.\"a b\": use HOST":        {Registries: map[string]Login{"a b": {Token: "env:A"}}},
		"registries.\"GHCR.IO\": use HOST":    {Registries: map[string]Login{"GHCR.IO": {Token: "env:A"}}},
		"registries.\"https://x/\": use HOST": {Registries: map[string]Login{"https://x/": {Token: "env:A"}}},
		"registries.\"c\" must have user":     {Registries: map[string]Login{"c": {User: "u"}}},
		"registries.\"d\" must have user":     {Registries: map[string]Login{"d": {Password: "env:A"}}},
		"registries.\"e\" must have user":     {Registries: map[string]Login{"e": {}}},
		"registries.\"f\" must have user": {Registries: map[string]Login{"f": {User: "u", Password: "env:A",
			Token: "env:A"}}},
		"registries.\"g\".password: \"p\"":     {Registries: map[string]Login{"g": {User: "u", Password: "p"}}},
		"registries.\"h\".token: \"p\" is rel": {Registries: map[string]Login{"h": {Token: "file:p"}}},
		"\"u:v\" can't be a user":              {Registries: map[string]Login{"i": {User: "u:v", Password: "env:A"}}},
		"secretHelpers.z must have {} in":      {Helpers: map[string][]string{"z": {"pass", "{}", "{}"}}},
	} {
		err := v.Check()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// A registry gets its own login, however its host is written, and no other one's.
func TestLoginTo(t *testing.T) {
	t.Setenv("LOGIN_TEST", "tk-5Xq8")
	v := &Vault{Most: 100, Registries: map[string]Login{"ghcr.io": {Token: "env:LOGIN_TEST"},
		"docker.io": {User: "u", Password: "env:LOGIN_TEST"}, "x:5000": {Token: "env:LOGIN_TEST_NONE"}}}
	for host, want := range map[string]*Login{
		"ghcr.io": {Token: "tk-5Xq8"}, "GHCR.IO": {Token: "tk-5Xq8"}, "index.docker.io": {User: "u", Password: "tk-5Xq8"},
		"ghcr.io:443": nil, "x": nil, "evil.ghcr.io": nil, "": nil,
	} {
		got, err := v.LoginTo(t.Context(), host)
		if err != nil || (got == nil) != (want == nil) || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v, expected %+v", host, got, err, want)
		}
	}
	if l, err := v.LoginTo(t.Context(), "x:5000"); err == nil {
		t.Errorf("a source that has nothing: %+v", l)
	}
}
