package imagebuild

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// The description of an image with compilers is one that can be read, is written once, and then is the user's.
func TestDescribeCompilers(t *testing.T) {
	for _, system := range []string{policy.Pip, policy.Npm} {
		dir := filepath.Join(t.TempDir(), "environments")
		l := language.OfSystem(system)
		if err := describeCompilers(dir, l); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, l.Packages.Compilers+imagefile.Extension)
		env, err := imagefile.Read(file, dir, language.Images())
		if err != nil || language.OfImage(env.From) != l || env.Name != l.Packages.Compilers ||
			!slices.Equal(env.Debian, l.Packages.Debian) {
			t.Errorf("%s: %+v %v", system, env, err)
		}
		const own = "from = \"mine\"\n"
		if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := describeCompilers(dir, l); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != own {
			t.Errorf("%s: the user's file is now %q %v", system, text, err)
		}
		if err := errors.Join(os.Remove(file), os.Symlink("nowhere", file)); err != nil {
			t.Fatal(err)
		}
		if err := describeCompilers(dir, l); err != nil {
			t.Fatal(err)
		}
		if to, err := os.Readlink(file); err != nil || to != "nowhere" {
			t.Errorf("%s: a link of the user's is gone: %v", system, err)
		}
	}
}
