package unitask

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// Node's specific options do not apply to other languages. If a ceiling does not list a language's image, its code
// neither runs nor is recorded.
func TestImagesCeiling(t *testing.T) {
	ceiling, err := policy.ParseCeiling("/x/.unitask.toml", []byte(`images = ["node", "shell"]`))
	if err != nil {
		t.Fatal(err)
	}
	eff, denials, err := Resolve(Request{Language: "python"}, ceiling)
	if err != nil || eff.Image != "" || len(denials) != 1 || denials[0].Key != "images" {
		t.Errorf("%q %v %v", eff.Image, denials, err)
	}
	if eff, denials, err := Resolve(Request{Language: "shell"}, ceiling); err != nil || eff.Image != "shell" ||
		len(denials) != 0 {
		t.Errorf("%q %v %v", eff.Image, denials, err)
	}
	res, err := Run(t.Context(), Request{Language: "python"}, Options{Home: testdir.Private(t), Ceiling: ceiling})
	var field *policy.FieldError
	if res != nil || !errors.As(err, &field) || field.Field != "image" ||
		!strings.Contains(err.Error(), "only node, shell is allowed by /x/.unitask.toml (key images)") {
		t.Errorf("%v", err)
	}
}

// Tables that must agree.
func TestLanguagesTable(t *testing.T) {
	if !slices.Equal(policy.ImageNames, language.Images()) {
		t.Errorf("policy: %q, languages: %q", policy.ImageNames, language.Images())
	}
	seen := map[string]bool{}
	for _, name := range language.Names() {
		if seen[name] {
			t.Errorf("%s is twice a name", name)
		}
		seen[name] = true
		if _, err := language.Extension(name); err != nil {
			t.Error(err)
		}
	}
	for _, arch := range []image.Arch{image.AMD64, image.ARM64} {
		locked, err := image.Lock(arch)
		if err != nil {
			t.Fatal(err)
		}
		for _, im := range language.AllImages() {
			for _, part := range slices.Concat(im.Payload.Parts, im.Payload.BuildParts) {
				if only := im.Payload.Only[part]; only != "" && only != string(arch) {
					continue
				}
				if !slices.ContainsFunc(locked, func(p image.LockedPart) bool { return p.Name == part }) {
					t.Errorf("vendor.lock has no %s for %s", part, arch)
				}
			}
		}
	}
}

// If a name in a ceiling means no image, the error shows a similar name, whatever a run asks for. A name of an image
// that can still be built causes no error.
func TestCeilingMistyped(t *testing.T) {
	home := testdir.Private(t)
	if err := os.MkdirAll(filepath.Join(home, "environments"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pythom.toml", "python@3.10.toml"} { // no image can be built from the second one
		if err := os.WriteFile(filepath.Join(home, "environments", name), []byte("from = 'python'\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rt, err := Open(Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for text, says := range map[string]string{
		`images = ["node", "pyton"]`: `/x/.unitask.toml:1: images "pyton": is no image here: ` +
			`there are node, python, data, shell, go`,
		"debug = false\nimages = [\"sh\", \"shel\"]":         `/x/.unitask.toml:2: images "shel": is no image here`,
		`images = ["pyton"]`:                                 "did you mean python?",
		`images = ["words", "reports"]`:                      `images "words": is no image here`, // so nothing could run
		`images = ["node", "python@3.10"]`:                   `images "python@3.10": is no image here`,
		`images = ["node", "python@3.11"]`:                   "",
		`images = ["python@3.11"]`:                           "",
		"[principals.a]\nimages = [\"nodee\"]":               "did you mean node?",
		`images = ["node", "words"]`:                         "",
		`images = ["node", "pythom"]`:                        "", // it has a description
		`images = ["words", "alpine:3.20"]`:                  "",
		`images = ["ghcr.io/acme/*"]`:                        "",
		`memoryMb = 300`:                                     "",
		`images = ["node", "python", "data", "shell", "go"]`: "",
	} {
		ceiling, err := policy.ParseCeiling("/x/.unitask.toml", []byte(text))
		if err != nil {
			t.Fatal(text, err)
		}
		for _, c := range []*policy.Ceiling{ceiling.For("a"), policy.BuiltIn("", home).With(ceiling).For("a"),
			policy.BuiltIn("", home).NarrowedBy(ceiling).For("a")} {
			err := rt.Catalog().CheckCeiling(c)
			if (err == nil) != (says == "") || err != nil && (!strings.Contains(err.Error(), says) ||
				strings.Contains(err.Error(), "python@3.10.toml")) {
				t.Errorf("%q: %v", text, err)
			}
		}
	}
	// No run and no session starts under it, and an extremely long list gives a short error.
	ceiling, err := policy.ParseCeiling("/x/.unitask.toml", []byte(`images = ["node", "pyton"]`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rt.RunFor(t.Context(), Caller{Ceiling: ceiling}, Request{Code: "1"}, IO{}); err == nil ||
		!strings.Contains(err.Error(), "did you mean python?") {
		t.Error(err)
	}
	if _, err := rt.NewSessionFor(t.Context(), Caller{Ceiling: ceiling}, SessionRequest{}); err == nil ||
		!strings.Contains(err.Error(), "did you mean python?") {
		t.Error(err)
	}
	many := `images = ["pyton"` + strings.Repeat(`, "x"`, 10_000) + "]"
	if ceiling, err = policy.ParseCeiling("/x/.unitask.toml", []byte(many)); err != nil {
		t.Fatal(err)
	}
	if err := rt.Catalog().CheckCeiling(ceiling); err == nil || len(err.Error()) > 2000 {
		t.Errorf("%.3000v", err)
	}
}

// A ceiling that lists a custom image called shipped, which an older release allowed, does not now allow the images of
// other hosts.
func TestAttackShippedName(t *testing.T) {
	home := testdir.Private(t)
	rt, err := Open(Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for _, name := range []string{"", "own/shipped.json", "environments/shipped.toml"} {
		file, there := filepath.Join(home, name), name != ""
		if there {
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700),
				os.WriteFile(file, []byte("{}"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		for text, lists := range map[string]bool{
			`images = ["shipped"]`: true, `images = ["node", "brought"]`: true,
			"[principals.a]\nimages = [\"shipped\"]": true,
			`images = ["node"]`:                      false, `memoryMb = 300`: false,
		} {
			ceiling, err := policy.ParseCeiling("/x/.unitask.toml", []byte(text))
			if err != nil {
				t.Fatal(text, err)
			}
			for which, c := range map[string]*policy.Ceiling{
				"itself":            ceiling.For("a"),
				"with the worker's": policy.ForFleet(ceiling).For("a"),
				"that narrows":      policy.BuiltIn("", home).NarrowedBy(ceiling).For("a"),
			} {
				err := rt.Catalog().CheckCeiling(c)
				got := fmt.Sprint(err != nil && strings.Contains(err.Error(), "this home has an image of that name"))
				row := fmt.Sprintf("a ceiling %q, %s, where an image is called shipped (%s): refused",
					text, which, cmp.Or(name, "none"))
				attack.Check(t, row, fmt.Sprint(there && lists), got)
			}
		}
		if there && os.Remove(file) != nil {
			t.Error(file)
		}
	}
}

func TestLanguageOfScript(t *testing.T) {
	for line, want := range map[string]string{
		"#!/usr/bin/python3\nx": "python", "#! /usr/bin/env python3.13 -u": "python", "#!/usr/bin/python": "python",
		"#!/usr/bin/env -S A=1 node --x": "js", "#!/bin/sh -e\r\n": "shell", "#!/usr/local/bin/bash": "shell",
		"#!/usr/bin/env": "", "#!": "", "#!/usr/bin/perl": "", "print(1)": "", "": "", "#!/usr/bin/python2": "",
		"#!/bin/python3-config": "", "#!/bin/dash.x": "", "#!/usr/bin/node-gyp": "",
	} {
		if got := language.OfScript(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// A first line of any length costs only the search for its end.
func TestAttackLanguageOfScript(t *testing.T) {
	const size = 16 << 20
	for name, code := range map[string]string{
		"of many words":        "#!" + strings.Repeat(" a", size/2),
		"of many words of env": "#!/usr/bin/env" + strings.Repeat(" -a", size/3),
		"of blanks":            "#!" + strings.Repeat(" ", size) + "/bin/sh",
		"of one word":          "#!/" + strings.Repeat("a/", size/2) + "sh",
		"of digits":            "#!/bin/python3." + strings.Repeat("1", size),
		"of no end":            "#!/bin/sh -" + strings.Repeat("e", size),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		language := language.OfScript(code)
		runtime.ReadMemStats(&after)
		got := "none"
		if language != "" {
			got = language
		} else if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			got = fmt.Sprintf("none, after %d MiB", took>>20)
		}
		attack.Check(t, fmt.Sprintf("a #! line of %d MiB, %s", size>>20, name), "none", got)
	}
}
