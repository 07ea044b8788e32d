package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParseDefaults(t *testing.T) {
	for text, want := range map[string]string{
		"memory = \"1G\"\nwith = [\"pip:a\", \"npm:b\"]\ncpus = 0.5\nallow-net-any = true": "map[allow-net-any:[true] " +
			"cpus:[0.5] memory:[1G] with:[pip:a npm:b]]",
		"timeout = 90":              "map[timeout:[90]]",
		"allow-net = \"a.example\"": "map[allow-net:[a.example]]",
		"":                          "map[]",
		"memoryMb = 1":              `x.toml:1: defaults: unknown key "memoryMb": use timeout, memory,`,
		"\"\" = 1":                  `unknown key ""`,
		"file = [\"/etc/passwd\"]":  `unknown key "file"`,
		"dir = [\"/etc\"]":          `unknown key "dir"`,
		"out = \"/etc\"":            `unknown key "out"`,
		"memory = [\"1G\"]":         "memory is a list, and has one value",
		"allow-net = 1":             "allow-net is a number: use a list of strings",
		"allow-net = [1]":           "allow-net holds a number",
		"memory = 1979-05-27":       "memory is a ",
		"[defaults.memory]\na = 1":  "memory is a table",
	} {
		c, err := ParseCeiling("x.toml", []byte("[defaults]\n"+text))
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprint(c.Defaults)
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	if _, err := ParseCeiling("x.toml", []byte("defaults = 1")); err == nil {
		t.Error("a number is a table")
	}
	if _, err := ParseCeiling("x.toml", []byte("[principals.a.defaults]\nmemory = 1")); err == nil {
		t.Error("a principal has defaults")
	}
}

// The defaults of each applicable file are found, the nearest first. Trust belongs to the file that contains them.
func TestDefaultsFound(t *testing.T) {
	top, home := t.TempDir(), t.TempDir()
	below := filepath.Join(top, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	near, far := filepath.Join(below, CeilingFile), filepath.Join(top, CeilingFile)
	for name, text := range map[string]string{far: "[defaults]\nmemory = 1",
		near: "memoryMb = 200\n[defaults]\nmemory = 2"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := func() string {
		p, err := LoadForPeople(home, below, "")
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(p.Defaults)
	}
	want := fmt.Sprintf("[{%s map[memory:[2]] false} {%s map[memory:[1]] false}]", near, far)
	if got := found(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	file, err := ReadCeiling(near)
	if err != nil {
		t.Fatal(err)
	}
	if err := OpenTrust(home).Add(file, time.Now()); err != nil {
		t.Fatal(err)
	}
	if got, want := found(), fmt.Sprintf("[{%s map[memory:[2]] true}]", near); got != want {
		t.Errorf("trusted: %s, want %s", got, want)
	}
	if err := os.WriteFile(near, []byte("[defaults]\nallow-net = [\"a.example\"]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := found(); !strings.Contains(got, "allow-net:[a.example]] false}") {
		t.Errorf("changed since: %s", got)
	}
}
