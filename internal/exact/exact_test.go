package exact

import (
	"errors"
	"testing"
)

type file struct {
	AllowNet []string         `toml:"allowNet"`
	Secrets  []string         `toml:"secrets"`
	Tables   map[string]*file `toml:"tables"`
	Hidden   string           `toml:"-"`
	Bare     string
}

func TestDecode(t *testing.T) {
	for text, want := range map[string]string{
		`allowNet = ["a"]`:                          "",
		"[tables.a]\nallowNet = []\n[tables.b]":     "",
		`ALLOWNET = ["a"]`:                          `unknown key "ALLOWNET": keys are exact, write allowNet`,
		"allowNet = []\nALLOWNET = [\"a\"]":         `keys "allowNet" and "ALLOWNET" differ only in case: keep one`,
		"\"ſecrets\" = []":                          `unknown key "ſecrets": keys are exact, write secrets`,
		"[tables.a]\nallownet = []":                 `unknown key "tables.a.allownet": keys are exact, write allowNet`,
		"[tables.a]\n[tables.A]":                    `keys "tables.a" and "tables.A" differ only in case: keep one`,
		"tables.a.allowNet = []\ntables.A.x = \"\"": `keys "tables.a" and "tables.A" differ only in case: keep one`,
		`Hidden = "x"`:                              `unknown key "Hidden"`,
		`bare = "x"`:                                `unknown key "bare"`,
		`Bare = "x"`:                                `unknown key "Bare"`,
		"[allowNet]\nx = 1":                         `unknown key "allowNet.x"`,
		"other = 1":                                 `unknown key "other"`,
	} {
		var f file
		_, err := Decode(text, &f)
		var key *KeyError
		switch {
		case want == "" && err != nil, want != "" && !errors.As(err, &key), key != nil && key.Reason != want:
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	var f file
	if _, err := Decode("allowNet = 5", &f); err == nil || errors.As(err, new(*KeyError)) {
		t.Errorf("a wrong type: %v", err)
	}
}
