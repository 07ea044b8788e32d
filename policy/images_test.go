package policy

import (
	"fmt"
	"strings"
	"testing"
)

func TestReference(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for _, tt := range []struct{ text, want string }{
		{"python", ""}, {"", ""}, {"nosuch", ""}, {"python@3.11", ""}, {"data@3.11", ""}, {"python@3", ""}, {"x@1.2.3", ""},
		{"python@", "!"}, {"python@../x", "!"}, {"@3.11", "!"}, {"python@3.11@3", "!"}, {"python@3.11/x", "!"},
		{"python@3.11:1", "!"}, {"python@3.11.", "!"}, {"python@.3", "!"}, {"python@3.11\n", "!"}, {"python@3.11-x", "!"},
		{"Python@3.11", "!"}, {"python@3.11.2.1", "!"}, {"python@12345", "!"}, {"../python@3.11", "!"},
		{"alpine:3.20", "docker.io/library/alpine:3.20"}, {"docker.io/alpine:3.20", "docker.io/library/alpine:3.20"},
		{"acme/tool", "docker.io/acme/tool:latest"},
		{"ghcr.io/acme/a-b_c/d.e:v1", "ghcr.io/acme/a-b_c/d.e:v1"}, {"localhost/a", "localhost/a:latest"},
		{"localhost:5000/a:1", "localhost:5000/a:1"},
		{"Registry.Example:5000/a", "Registry.Example:5000/a:latest"},
		{"index.docker.io/library/alpine:1", "docker.io/library/alpine:1"},
		{"alpine@" + digest, "docker.io/library/alpine@" + digest},
		{"alpine:3@" + digest, "docker.io/library/alpine@" + digest}, {digest, digest}, {digest[:20], digest[:20]},
		{"Alpine:3", "!"}, {"alpine:", "!"}, {"alpine:3:4", "!"}, {"/alpine", "!"}, {"a//b", "!"}, {"../a", "!"},
		{"a/../b", "!"}, {"a/b/", "!"}, {"ghcr.io/", "!"},
		{"-x/a", "!"}, {"--flag:1", "!"}, {"a@sha256:12", "!"}, {"a@md5:12", "!"}, {"sha256:12", "!"},
		{"sha256:" + strings.Repeat("G", 20), "!"},
		{"https://ghcr.io/a:1", "!"}, {"a b:1", "!"}, {"a:1\n", "!"}, {strings.Repeat("a", 600) + ":1", "!"},
		{"a:" + strings.Repeat("1", 200), "!"},
	} {
		ref, is, err := Reference(tt.text)
		switch {
		case tt.want == "!" && (!is || err == nil):
			t.Errorf("%q: %q, %v, no error", tt.text, ref, is)
		case tt.want != "!" && (ref != tt.want || is != (tt.want != "") || err != nil):
			t.Errorf("%q: %q, %v, %v", tt.text, ref, is, err)
		}
		if again, _, err2 := Reference(ref); err == nil && is && (again != ref || err2 != nil) {
			t.Errorf("%q: %q, then %q, %v", tt.text, ref, again, err2)
		}
	}
}

func TestCeilingOfReferences(t *testing.T) {
	c := ceiling(t, `images = ["python", "alpine:3.20", "ghcr.io/acme/*", "docker.io/library/debian:*"]`)
	if got := strings.Join(c.ContainerImages(), " "); got !=
		"docker.io/library/alpine:3.20 ghcr.io/acme/* docker.io/library/debian:*" {
		t.Errorf("of containers: %q", got)
	}
	for name, allowed := range map[string]bool{
		"python": true, "node": false, "docker.io/library/alpine:3.20": true, "docker.io/library/alpine:3.2": false,
		"docker.io/library/alpine:latest": false,
		"ghcr.io/acme/tool:1":             true, "ghcr.io/acme2/tool:1": false, "docker.io/library/debian:12": true,
		"docker.io/library/debian-x:12": false,
		"python@3.11":                   false, "python@3": false, // a name is that image alone
		"docker.io/evil/ghcr.io:1": false, "sha256:" + strings.Repeat("a", 64): false,
	} {
		eff, denials, err := Resolve(Request{Image: name}, c)
		if err != nil {
			t.Fatal(err)
		}
		if got := eff.Image == name; got != allowed || (len(denials) == 0) != allowed || c.Image(name) != allowed {
			t.Errorf("%s: %q, %+v", name, eff.Image, denials)
		}
	}
	for _, text := range []string{`["*"]`, `["ghcr.io*"]`, `["ghcr.io/acme*"]`, `["library/*"]`, `["No Such"]`,
		`["Alpine:3"]`, `["a/../b:1"]`, `["python@"]`, `["python@*"]`, `["python@3.11@3"]`, `["@3.11"]`} {
		if _, err := ParseCeiling("test.toml", []byte("images = "+text)); err == nil {
			t.Errorf("%s is no error", text)
		}
	}
	older := ceiling(t, `images = ["python@3.11"]`)
	if !older.Image("python@3.11") || older.Image("python") || older.Image("data@3.11") {
		t.Error("a name with a version allows another image, or not its own")
	}
	if b := BuiltIn("", ""); !b.Image("python@3.11") || b.Image("docker.io/library/alpine:3.20") || !b.Image("python") {
		t.Error("the built-in ceiling allows images of containers, or not shipped ones")
	}
}

// The old name of shipped images has the same meaning for this release, and a notice says where it is.
func TestOldShippedImages(t *testing.T) {
	c, err := ParseCeiling("old.toml", []byte("memoryMb = 512\nimages = [\"node\", \"brought\"]\n"+
		"[principals.alice]\nimages = [\"brought\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	if !c.TakesImages() || !c.BringingImage(digest, "key").Image("key") || c.Image(OldShippedImages) {
		t.Error("the old name does not mean what the new one does")
	}
	got := strings.Join(c.Notices(), "\n")
	want := "old.toml:2: images: \"brought\" is called \"shipped\" now; the next release does not take the old name\n" +
		"old.toml [principals.alice]: images: \"brought\" is called \"shipped\" now; " +
		"the next release does not take the old name"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if new := ceiling(t, `images = ["shipped"]`); !new.TakesImages() || len(new.Notices()) > 0 {
		t.Errorf("the new name: %v, %q", new.TakesImages(), new.Notices())
	}
}

// The key webFetch decides about the image of web_fetch; no list of images does. Without the key, models have neither.
func TestWebImage(t *testing.T) {
	dir, home := t.TempDir(), t.TempDir()
	fetch := Request{Image: WebImage, WebFetch: true}
	for _, c := range []struct {
		ceiling *Ceiling
		asked   Request
		want    string
	}{
		{nil, fetch, "web true"},
		{ceiling(t, `images = ["node"]`), fetch, "web true"},
		{ceiling(t, `images = ["node"]`), Request{Image: WebImage}, " false"},
		{ceiling(t, `images = ["node"]`), Request{Image: "python", WebFetch: true}, " true"},
		{ceiling(t, "images = [\"node\"]\nwebFetch = false"), fetch, " false"},
		{BuiltIn(dir, home), fetch, " false"},
		{BuiltIn(dir, home).With(ceiling(t, "webFetch = true")), fetch, "web true"},
		{BuiltIn(dir, home).NarrowedBy(ceiling(t, "webFetch = true")), fetch, " false"},
		{BuiltIn(dir, home).With(ceiling(t, "webFetch = true\n[principals.a]\nwebFetch = false")).For("a"), fetch, " false"},
		{ForFleet(nil), fetch, " false"},
	} {
		e, _, err := Resolve(c.asked, c.ceiling)
		if got := fmt.Sprint(e.Image, " ", e.WebFetch); err != nil || got != c.want {
			t.Errorf("%v: %q %v, want %q", c.asked, got, err, c.want)
		}
	}
	if beyond := ceiling(t, "webFetch = true").Beyond(BuiltIn(dir, home)); len(beyond) != 1 ||
		beyond[0].String() != "webFetch true" {
		t.Errorf("%v", beyond)
	}
}
