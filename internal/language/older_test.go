package language

import (
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/policy"
)

// An image with an older version has the parts of one release, each of which is locked.
func TestOlderImages(t *testing.T) {
	var names []string
	for _, im := range AllImages() {
		p := im.Payload
		if !strings.Contains(p.Name, "@") {
			continue
		}
		names = append(names, p.Name)
		if !policy.IsImageName(p.Name) {
			t.Errorf("%s is no name of a bundled image", p.Name)
		}
		current := OfImage(p.Name).Image(Unversioned(p.Name)).Payload
		for _, part := range slices.Concat(p.Parts, p.BuildParts) {
			if !strings.HasSuffix(part, "@"+p.Release()) || p.Release() == image.Release {
				t.Errorf("%s has the part %s", p.Name, part)
			}
			plain, _, _ := strings.Cut(part, "@")
			if of := slices.Concat(current.Parts, current.BuildParts); !slices.Contains(of, plain) &&
				!slices.Contains(python311.more, plain) {
				t.Errorf("%s has the part %s, and the current image has not", p.Name, part)
			}
		}
		if len(p.Parts) < len(current.Parts)-len(python311.lacks) {
			t.Errorf("%s has %d parts, and the current image %d", p.Name, len(p.Parts), len(current.Parts))
		}
	}
	if want := []string{"python@3.11", "data@3.11"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	// An older release's lock has only parts that some image needs.
	locked, err := image.Lock(image.AMD64)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range locked {
		used := slices.ContainsFunc(AllImages(), func(im *Image) bool {
			return slices.Contains(slices.Concat(im.Payload.Parts, im.Payload.BuildParts), p.Name)
		})
		if p.Release != image.Release && !used {
			t.Errorf("no image has %s", p.Name)
		}
	}
}

// Texts belong to images by their names, in any order. An image without a text has no older version.
func TestOlderAbouts(t *testing.T) {
	python := OfSystem(policy.Pip)
	data, own := *python.Image("data"), *python.Image("python")
	other := own
	other.Payload.Name = "other"
	abouts := map[string]string{}
	for _, im := range withPython311([]Image{other, data, own}) {
		abouts[im.Payload.Name] = im.About
	}
	for _, name := range []string{"python@3.11", "data@3.11"} {
		if want := python.Image(name).About; abouts[name] != want || !strings.HasPrefix(want, "As "+Unversioned(name)+",") {
			t.Errorf("%s: %q, want %q", name, abouts[name], want)
		}
	}
	if len(abouts) != 5 {
		t.Errorf("%q", abouts)
	}
}

// Packages are installed by the interpreter of the version that they are for.
func TestFirstLike(t *testing.T) {
	for name, want := range map[string]string{"": "python", "python": "python", "data": "python", "own": "python",
		"python@3.11": "python@3.11", "data@3.11": "python@3.11", "python@3.10": "python", "python@": "python"} {
		if got := OfSystem(policy.Pip).FirstLike(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
	if got := OfSystem(policy.Npm).FirstLike("node"); got != "node" {
		t.Error(got)
	}
}
