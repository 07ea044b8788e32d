package catalog

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// declares puts an image into a home as if a build had made it.
func declares(t *testing.T, dir, name string, d *language.Declared) {
	t.Helper()
	o := Custom{Schema: CustomSchema, Name: name, From: "shell", File: "/x/" + name + ".toml", Arch: image.HostArch(),
		Language: d}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	file := home.Dir(dir).CustomFile(name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func ceiling(t *testing.T, text string) *policy.Ceiling {
	t.Helper()
	c, err := policy.ParseCeiling(filepath.Join(t.TempDir(), policy.CeilingFile), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A request finds the image that declares its language; the user's images, and those that the ceiling allows, first.
func TestDeclaring(t *testing.T) {
	dir := t.TempDir()
	images, err := image.Open(dir, language.Payloads(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	cat := &Catalog{Home: dir, Images: images}
	only := ceiling(t, `images = ["ruby", "node"]`)
	finds := func(req run.Request, c *policy.Ceiling, want string) {
		t.Helper()
		got := ""
		asked, err := cat.ResolveCustom(Request{Request: req}, c)
		if err != nil {
			got = err.Error()
		} else if l, im, ext, err := asked.FindLanguage(); err != nil {
			got = err.Error()
		} else {
			got = strings.Join([]string{im.Payload.Name, l.Name, ext}, " ")
			if asked.Custom.Missing() {
				got += ", missing"
			}
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%+v: %s, want %s", req, got, want)
		}
	}
	finds(run.Request{Path: "/a/b.rb"}, nil, "ruby ruby .rb, missing")
	finds(run.Request{Language: "RB"}, nil, "ruby ruby .rb, missing")
	finds(run.Request{Language: "c++"}, nil, "cpp c++ .cpp, missing")
	finds(run.Request{Language: "cc"}, nil, "cpp c++ .cc, missing")
	finds(run.Request{Image: "ruby"}, nil, "ruby ruby .rb, missing")
	finds(run.Request{Image: "ruby", Path: "x.txt"}, nil, "ruby ruby .rb, missing")
	finds(run.Request{Image: "ruby", Path: "x.sh"}, nil, "ruby shell .sh, missing")
	finds(run.Request{Image: "ruby", Language: "shell"}, nil, "ruby shell .sh, missing")
	finds(run.Request{Image: "ruby", Language: "python"}, nil, "image shell: has no python")
	finds(run.Request{Language: "ts", Path: "x.rb"}, nil, "node js .ts")
	finds(run.Request{Path: "x"}, nil, "node js .js")
	finds(run.Request{Path: "x.R"}, nil, "r r .R, missing")
	finds(run.Request{Language: "cobol"}, nil, `language "cobol": use js`)

	// Models learn of built languages, and of those that a ceiling names.
	if names := cat.AllowedLanguages(only); !slices.Contains(names, "rb") || slices.Contains(names, "lua") ||
		!slices.Contains(cat.AllowedImages(only), "ruby") {
		t.Errorf("under a ceiling: %v", names)
	}
	if names := cat.AllowedLanguages(nil); slices.Contains(names, "ruby") {
		t.Errorf("without a ceiling: %v", names)
	}
	if err := cat.CheckCeiling(only); err != nil {
		t.Error(err)
	}
	all := len(cat.ListLanguages(nil))

	toy := &language.Declared{Name: "ruby", Extensions: []string{".rb", ".toy"}, Run: []string{"toy", "{file}"}}
	declares(t, dir, "mine", toy)
	finds(run.Request{Path: "x.rb"}, nil, "mine ruby .rb")
	finds(run.Request{Path: "x.rb"}, only, "ruby ruby .rb, missing")
	finds(run.Request{Language: "toy"}, only, "mine ruby .toy") // and the policy denies the image
	if n := len(cat.ListLanguages(nil)); n != all+1 || !slices.Contains(cat.AllowedLanguages(nil), "toy") {
		t.Errorf("%d languages, and %d before", n, all)
	}
	// A built image hides the shipped one of its name. A declaration that this release can't have is an error.
	declares(t, dir, "ruby", nil)
	finds(run.Request{Path: "x.rb"}, only, "mine ruby")
	finds(run.Request{Image: "ruby"}, nil, "ruby shell .sh")
	declares(t, dir, "bad", &language.Declared{Name: "python", Extensions: []string{".p"}, Run: toy.Run})
	if _, err := cat.ResolveCustom(Request{Request: run.Request{Image: "bad"}}, nil); err == nil ||
		!strings.Contains(err.Error(), `unitask itself has python: use another name: change /x/bad.toml`) {
		t.Error(err)
	}
}
