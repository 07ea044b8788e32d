package policy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func ceiling(t *testing.T, text string) *Ceiling {
	t.Helper()
	c, err := ParseCeiling("test.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func memoryOf(e Effective) any  { return e.MemoryMB }
func secondsOf(e Effective) any { return e.Timeout.Seconds() }
func kernelOf(e Effective) any  { return e.Kernel }

// hosts returns a request for hosts.
func hosts(names ...string) Request { return Request{AllowNet: names} }

var narrowRows = map[string]struct {
	ceiling string
	asked   Request
	check   func(Effective) any
	want    any
	denied  string // fields, separated by a space
}{
	"none":                     {"", Request{MemoryMB: 4096}, memoryOf, 4096, ""},
	"memory":                   {"memoryMb = 256", Request{MemoryMB: 512}, memoryOf, 256, "memoryMb"},
	"the default is no denial": {"memoryMb = 256", Request{}, memoryOf, 256, ""},
	"less than the ceiling":    {"memoryMb = 256", Request{MemoryMB: 128}, memoryOf, 128, ""},
	"time": {
		ceiling: "timeoutSeconds = 1.5",
		asked:   Request{Timeout: 9 * time.Second},
		check:   secondsOf,
		want:    1.5,
		denied:  "timeoutSeconds",
	},
	"time as a whole number": {
		ceiling: "timeoutSeconds = 2",
		asked:   Request{Timeout: 9 * time.Second},
		check:   secondsOf,
		want:    2.0,
		denied:  "timeoutSeconds",
	},
	"output": {
		ceiling: "outputBytes = 10",
		asked:   Request{OutputBytes: 11},
		check:   func(e Effective) any { return e.OutputBytes },
		want:    int64(10),
		denied:  "outputBytes",
	},
	"transfer": {
		ceiling: "maxUploadBytes = 1\nmaxDownloadBytes = 2\nmaxConnections = 3",
		asked:   Request{MaxUpload: 9, MaxDownload: 9, MaxConnections: 9},
		check:   func(e Effective) any { return []int64{e.MaxUpload, e.MaxDownload, int64(e.MaxConnections)} },
		want:    []int64{1, 2, 3},
		denied:  "maxConnections maxDownloadBytes maxUploadBytes",
	},
	"kernel":                    {`kernel = "linux"`, Request{Kernel: "nanos"}, kernelOf, "linux", "kernel"},
	"kernel that was not named": {`kernel = "linux"`, Request{}, kernelOf, "linux", ""},
	"no network":                {`allowNet = []`, hosts("a.com"), net, []string{}, "allowNet"},
	"a host": {
		ceiling: `allowNet = ["a.com", "b.com"]`,
		asked:   hosts("b.com", "c.com"),
		check:   net,
		want:    []string{"b.com"},
		denied:  "allowNet",
	},
	"another spelling": {
		ceiling: `allowNet = ["Bücher.example."]`,
		asked:   hosts("xn--bcher-kva.example"),
		check:   net,
		want:    []string{"xn--bcher-kva.example"},
	},
	"a wildcard admits": {
		ceiling: `allowNet = ["*.a.com"]`,
		asked:   hosts("x.y.a.com", "a.com", "xa.com"),
		check:   net,
		want:    []string{"x.y.a.com"},
		denied:  "allowNet allowNet",
	},
	"a wildcard is narrowed": {
		ceiling: `allowNet = ["x.a.com", "y.b.com"]`,
		asked:   hosts("*.a.com"),
		check:   net,
		want:    []string{"x.a.com"},
		denied:  "allowNet",
	},
	"to several": {
		ceiling: `allowNet = ["x.a.com", "y.a.com:444", "z.a.com:443"]`,
		asked:   hosts("*.a.com"),
		check:   net,
		want:    []string{"x.a.com", "z.a.com:443"},
		denied:  "allowNet",
	},
	"two wildcards": {
		ceiling: `allowNet = ["*.x.a.com"]`,
		asked:   hosts("*.a.com", "*.y.x.a.com"),
		check:   net,
		want:    []string{"*.x.a.com", "*.y.x.a.com"},
		denied:  "allowNet",
	},
	"a port of both": {`allowNet = ["a.com:443"]`, hosts("a.com"), net, []string{"a.com:443"}, "allowNet"},
	"one of both":    {`allowNet = ["a.com"]`, hosts("a.com:80"), net, []string{"a.com:80"}, ""},
	"another port":   {`allowNet = ["a.com"]`, hosts("a.com:8080"), net, []string{}, "allowNet"},
	"an address": {
		ceiling: `allowNet = ["192.0.2.1"]`,
		asked:   hosts("192.0.2.1", "192.0.2.2"),
		check:   net,
		want:    []string{"192.0.2.1"},
		denied:  "allowNet",
	},
	"any, under a list": {
		ceiling: `allowNet = ["a.com", "b.com:8443", "*.c.com:80"]`,
		asked:   Request{AllowNetAny: true},
		check:   net,
		want:    []string{"a.com", "*.c.com:80"},
		denied:  "allowNetAny",
	},
	"any, forbidden": {
		ceiling: `allowNetAny = false`,
		asked:   Request{AllowNetAny: true, AllowNet: []string{"a.com:1"}},
		check:   net,
		want:    []string{"a.com:1"},
		denied:  "allowNetAny",
	},
	"any, allowed": {
		ceiling: "allowNetAny = true\nallowNet = []",
		asked:   Request{AllowNetAny: true, AllowNet: []string{"a.com", "a.com:8080"}},
		check:   net,
		want:    []string{"a.com"},
		denied:  "allowNet",
	},
	"secrets": {
		ceiling: `secrets = ["A_KEY"]`,
		asked:   Request{Secrets: []string{"A_KEY", "B_KEY"}},
		check:   func(e Effective) any { return e.Secrets },
		want:    []SecretRule{{Name: "A_KEY"}},
		denied:  "secrets",
	},
	"tcp": {
		ceiling: `allowTcp = ["127.0.0.1:5432"]`,
		asked:   Request{AllowTCP: []string{"127.0.0.1:5432", "localhost:5432", "[::1]:5432", "127.0.0.1:5433"}},
		check:   func(e Effective) any { return Asked(e).AllowTCP },
		want:    []string{"127.0.0.1:5432"},
		denied:  "allowTcp allowTcp allowTcp",
	},
}

func TestNarrow(t *testing.T) {
	for name, c := range narrowRows {
		top := ceiling(t, c.ceiling)
		e, denials, err := Resolve(c.asked, top)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var fields []string
		for _, d := range denials {
			if d.Requested == "" || d.Reason == "" || d.Rule != "test.toml" {
				t.Errorf("%s: %+v", name, d)
			}
			fields = append(fields, d.Field)
		}
		slices.Sort(fields)
		if got := c.check(e); !reflect.DeepEqual(got, c.want) || strings.Join(fields, " ") != c.denied {
			t.Errorf("%s: %v, denied %v; want %v, %q", name, got, fields, c.want, c.denied)
		}
		again, denials, err := Resolve(Asked(e), top)
		if err != nil || !reflect.DeepEqual(again, e) || len(denials) > 0 {
			t.Errorf("%s: once more it is %+v %v %v", name, again, denials, err)
		}
	}
}

func net(e Effective) any { return Asked(e).AllowNet }

func TestBadCeilings(t *testing.T) {
	for text, want := range map[string]string{
		"memoryMb = \"512\"":                       "test.toml:1:",
		"\n\nmemoryMB = 512":                       `test.toml:3: unknown key "memoryMB": keys are exact, write memoryMb`,
		"allowNet = []\nALLOWNET = [\"a.com\"]":    `test.toml:2: keys "allowNet" and "ALLOWNET" differ only in case`,
		"[principals.a]\nallownet = []":            `unknown key "principals.a.allownet": keys are exact, write allowNet`,
		"[Principals.a]\nmemoryMb = 512":           `test.toml:1: unknown key "Principals": keys are exact, write principals`,
		"[principals.a]\n[principals.A]":           `keys "principals.a" and "principals.A" differ only in case`,
		"# x\nmemory = 5":                          `test.toml:2: unknown key "memory"`,
		"memoryMb = 1":                             "test.toml:1: memoryMb 1: must be from 128",
		"memoryMb = 0":                             "must be from",
		"memoryMb = -5":                            "must be from",
		"memoryMb = 1.5":                           "test.toml:1:",
		"timeoutSeconds = 0":                       "timeoutSeconds",
		"timeoutSeconds = nan":                     "timeoutSeconds",
		"timeoutSeconds = inf":                     "timeoutSeconds",
		"\nkernel = \"bsd\"":                       `test.toml:2: kernel "bsd"`,
		"allowNet = \"a.com\"":                     "test.toml:1:",
		"allowNet = [\"a.com\", \"*\"]":            "--allow-net-any",
		"allowNet = [1]":                           "test.toml:1:",
		"allowTcp = [\"a.com\"]":                   "test.toml:1: allowTcp",
		"[policy]\nmemoryMb = 512":                 `test.toml:1: unknown key "policy`,
		"memoryMb = 512\nmemoryMb = 512":           "test.toml:2:",
		"memoryMb":                                 "test.toml:1:",
		"secrets = [\"a b\"]":                      "test.toml:1: secrets",
		"allowNetAny = 1":                          "test.toml:1:",
		"memoryMb = 99999999999999999999":          "test.toml:1:",
		"outputBytes = 0":                          "outputBytes 0: must be from 1",
		"a = [" + strings.Repeat("[", 5000):        "test.toml:1:",
		"\xff\xfe":                                 "test.toml:1:",
		"kernel = \"\"\nmemoryMb = 256\nx.y = 1\n": `test.toml:3: unknown key "x"`,
	} {
		c, err := ParseCeiling("test.toml", []byte(text))
		var bad *CeilingError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %+v %v, want %q", text, c, err, want)
		}
	}
	for text, want := range map[string]string{
		"[principals.a]\nmemoryMb = 1":        "test.toml:1: principals.a.memoryMb 1: must be from 128",
		"x = 1\n[principals.a]\nmemory = 512": `unknown key`,
		"[principals.a.principals.b]":         "principals of its own",
		"principals = 5":                      "test.toml:1:",
	} {
		if c, err := ParseCeiling("test.toml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v %v", text, c, err)
		}
	}
	if _, err := ParseCeiling("x", []byte(Example)); err != nil {
		t.Error(err)
	}
	if c, err := ParseCeiling("x", []byte(strings.ReplaceAll(Example, "\n# ", "\n"))); err == nil {
		t.Errorf("prose is no TOML: %+v", c)
	}
}

// A principal's table narrows the ceiling and never widens it.
func TestPrincipals(t *testing.T) {
	c := ceiling(t,
		"memoryMb = 512\nallowNet = [\"*.a.com\"]\n[principals.low]\nmemoryMb = 256\nallowNet = [\"x.a.com\", \"b.com\"]\n"+
			"[principals.high]\nmemoryMb = 4096")
	ask := Request{MemoryMB: 8192, AllowNet: []string{"x.a.com", "y.a.com", "b.com"}}
	for name, want := range map[string]string{"low": "256 [x.a.com] 4", "high": "512 [x.a.com y.a.com] 2",
		"other": "512 [x.a.com y.a.com] 2"} {
		e, denials, err := Resolve(ask, c.For(name))
		if got := fmt.Sprint(e.MemoryMB, " ", e.AllowNet, " ", len(denials)); err != nil || got != want {
			t.Errorf("%s: %s %v %+v", name, got, err, denials)
		}
	}
	if (*Ceiling)(nil).For("x") != nil {
		t.Error("a ceiling out of nothing")
	}
}

func TestFindCeiling(t *testing.T) {
	root := t.TempDir()
	deep := filepath.Join(root, "a", "b", "c")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(dir, text string, mode os.FileMode) string {
		t.Helper()
		name := filepath.Join(dir, CeilingFile)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	upper := put(root, "memoryMb = 256", 0o644)
	find := func(wantPath string, wantMB int) {
		t.Helper()
		c, err := FindCeiling(deep)
		if err != nil || c == nil || c.Path != wantPath || c.most["memoryMb"] != wantMB {
			t.Errorf("%+v %v", c, err)
		}
	}
	find(upper, 256)
	nearer := put(filepath.Join(root, "a"), "memoryMb = 300", 0o600)
	find(nearer, 300)
	if c, err := FindCeiling(deep); err != nil || c.over == nil || c.over.Path != upper { // it narrows the one above
		t.Errorf("%+v %v", c, err)
	}

	refuse := func(says string) {
		t.Helper()
		if c, err := FindCeiling(deep); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v %v, want %q", c, err, says)
		}
	}
	if err := os.Chmod(nearer, 0o666); err != nil {
		t.Fatal(err)
	}
	refuse("may be written by everybody")
	put(filepath.Join(root, "a"), "memoryMb = ", 0o600)
	refuse(nearer + ":1:")
	if err := os.Remove(nearer); err != nil {
		t.Fatal(err)
	}
	checkLinkedCeilings(t, nearer, refuse, root, find, upper)
	if os.Getuid() == 0 {
		if err := os.Chown(upper, 12345, 0); err != nil {
			t.Fatal(err)
		}
		refuse("another user")
	}
}

// checkLinkedCeilings checks ceilings that are links and folders.
func checkLinkedCeilings(
	t *testing.T, nearer string, refuse func(says string), root string, find func(wantPath string, wantMB int),
	upper string,
) {
	t.Helper()
	outside := filepath.Join(t.TempDir(), "x.toml")
	if err := os.WriteFile(outside, []byte("memoryMb = 4096"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, nearer); err != nil {
		t.Fatal(err)
	}
	refuse("outside of its folder")
	if err := os.Remove(nearer); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("b/real.toml", nearer); err != nil {
		t.Fatal(err)
	}
	refuse("no such file")
	if err := os.WriteFile(filepath.Join(root, "a", "b", "real.toml"), []byte("memoryMb = 200"), 0o600); err != nil {
		t.Fatal(err)
	}
	find(nearer, 200)
	if err := os.Remove(nearer); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(nearer, 0o700); err != nil {
		t.Fatal(err)
	}
	refuse("not a regular file")
	if err := os.Remove(nearer); err != nil {
		t.Fatal(err)
	}
	find(upper, 256)
}

// For any ceiling and request: the grants are within both, a second resolution changes nothing, and the order of the
// lists does not matter.
func FuzzNarrow(f *testing.F) {
	f.Add("memoryMb = 256\nallowNet = [\"*.a.com\", \"b.com:1\"]", 512, "x.a.com", "*.com", true)
	f.Add("allowNet = [\"x.a.com\"]", 0, "*.a.com", "x.a.com:443", false)
	f.Add("allowNetAny = true\nallowTcp = []", 128, "1.2.3.4", "[::1]:5", true)
	f.Fuzz(func(t *testing.T, text string, memory int, one, two string, anyHost bool) {
		c, err := ParseCeiling("x", []byte(text))
		if err != nil {
			if !errors.As(err, new(*CeilingError)) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		asked := Request{MemoryMB: memory, AllowNet: []string{one, two}, AllowNetAny: anyHost}
		wide, _, err := Resolve(asked, nil)
		if err != nil {
			return
		}
		e, denials, err := Resolve(asked, c)
		if err != nil {
			t.Fatal(err)
		}
		most, bounded := c.most["memoryMb"].(int)
		list, listed := c.most["allowNet"].([]NetRule)
		every, said := c.most["allowNetAny"].(bool)
		every = every || !said && !listed
		if e.MemoryMB > wide.MemoryMB || (bounded && e.MemoryMB > most) || (e.AllowNetAny && (!anyHost || !every)) {
			t.Errorf("%q: %+v from %+v", text, e, wide)
		}
		within := func(rule NetRule, list []NetRule, anyToo bool) bool {
			for _, o := range list {
				if both, ok := rule.intersect(o); ok && both == rule {
					return true
				}
			}
			both, ok := rule.intersect(NetRule{Any: true})
			return anyToo && ok && both == rule
		}
		for _, rule := range e.AllowNet {
			if !within(rule, wide.AllowNet, anyHost) {
				t.Errorf("%q: %s was not asked for: %+v", text, rule, wide)
			}
			if listed && !within(rule, list, every) {
				t.Errorf("%q: %s is not allowed", text, rule)
			}
		}
		again, more, err := Resolve(Asked(e), c)
		if err != nil || !reflect.DeepEqual(again, e) || len(more) > 0 {
			t.Errorf("%q: %+v, then %+v %v %v", text, e, again, more, err)
		}
		turned, other, err := Resolve(Request{MemoryMB: memory, AllowNet: []string{two, one}, AllowNetAny: anyHost}, c)
		byText := func(a, b NetRule) int { return strings.Compare(a.String(), b.String()) }
		slices.SortFunc(turned.AllowNet, byText)
		slices.SortFunc(e.AllowNet, byText)
		if err != nil || !reflect.DeepEqual(turned, e) || len(other) != len(denials) {
			t.Errorf("%q: turned round it is %+v %v, not %+v %v", text, turned, other, e, denials)
		}
	})
}
