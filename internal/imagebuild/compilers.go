package imagebuild

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// This file builds the images in which packages without a binary are compiled. They are custom images: a file in the
// home's environments describes each. unitask writes it on first use, and the user may extend it.

// Serve makes an installer build the images with compilers by a catalog, when packages first need one. It makes the
// catalog build shipped images with languages.
func Serve(cat *catalog.Catalog, in *install.Installer, jail []string) {
	cat.Build = func(ctx context.Context, o *catalog.Custom, ceiling *policy.Ceiling, tell func(run.Event)) (
		*catalog.Custom, error) {
		own := *cat
		own.Tell = tell
		b := Builder{Catalog: &own, Installer: in, Ceiling: ceiling, RequireJail: jail}
		return b.language(ctx, o)
	}
	in.Compilers = func(ctx context.Context, to install.Target) (*catalog.Custom, error) {
		own := *cat
		own.Tell = to.Tell
		b := Builder{Catalog: &own, Installer: in, Ceiling: to.Caller.Ceiling, RequireJail: to.Jail}
		return b.compilers(ctx, to.Language, to.Image, to.Arch)
	}
}

// compilers returns the image with compilers of a language and a bundled image's version of it, and builds it if it is
// missing.
func (b *Builder) compilers(ctx context.Context, l *language.Language, of string, arch image.Arch) (*catalog.Custom,
	error) {
	l = language.OfSystem(l.Packages.System)
	if o := b.readyCompilers(ctx, l, of, arch); o != nil {
		return o, nil
	}
	name, from := l.CompilersFor(of)
	if err := describeCompilers(home.Dir(b.Catalog.Home).ImageFiles(), l, of); err != nil {
		return nil, fmt.Errorf("describe the image %s: %w", name, err)
	}
	began, err := b.describe(name, arch)
	if err != nil {
		return nil, err
	}
	if !compiles(l, from, began.env.From) {
		return nil, wrongBase(began.env, from)
	}
	over := &bundledBuild{build: *began, language: language.OfImage(began.env.From)}
	if err := over.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", began.env.File, err)
	}
	// Another process may have built it meanwhile.
	over.found = func() *catalog.Custom { return b.readyCompilers(ctx, l, of, arch) }
	o, _, err := over.run(ctx)
	return o, err
}

// readyCompilers returns the image with compilers, or nil if it is not built for this version of the language.
func (b *Builder) readyCompilers(ctx context.Context, l *language.Language, of string,
	arch image.Arch) *catalog.Custom {
	name, from := l.CompilersFor(of)
	o, err := catalog.ReadCustom(b.Catalog.Home, name)
	if err != nil || o.Container != "" || o.Arch != arch || !compiles(l, from, o.From) {
		return nil
	}
	if _, err := b.Catalog.Images.With(o.Row.Payload).Obtain(ctx, image.Linux, arch); err != nil {
		return nil
	}
	return o
}

// wrongBase returns the error for a file that does not lead to the bundled image whose packages are to be compiled.
func wrongBase(env *imagefile.Environment, bundled string) error {
	remedy := "remove the file, and a new one is written"
	if len(env.Chain) > 1 && filepath.Base(env.Chain[1]) == bundled+imagefile.Extension {
		remedy = fmt.Sprintf("%s hides the bundled image: give that file another name", env.Chain[1])
	}
	return fmt.Errorf("%s: it begins with %q, and not with the bundled %s, whose packages are to be compiled: %s",
		env.File, env.From, bundled, remedy)
}

// compiles reports whether an image over base compiles packages for the language's image of that name.
func compiles(l *language.Language, name, base string) bool {
	return !imagefile.Contained(base) && language.OfImage(base).Packages == l.Packages && l.FirstLike(base) == name
}

// describeCompilers writes the description of the image with compilers for a language's image, if there is none.
func describeCompilers(dir string, l *language.Language, of string) error {
	name, from := l.CompilersFor(of)
	file := filepath.Join(dir, name+imagefile.Extension)
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := fmt.Sprintf(`# Packages that have no binary are compiled in this image. unitask wrote the file.
# Add packages of Debian that yours need, as "libpq-dev", and build it: unitask image build %s
from = "%s"
debian = ["%s"]
description = "compilers of C and C++, for packages that have no binary"
`, name, from, strings.Join(l.Packages.Debian, `", "`))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(file, []byte(text), 0o600)
}

// addHeaders adds the headers of the image's language if the packages have a C compiler.
func (b *bundledBuild) addHeaders(ctx context.Context, root string) error {
	if b.language.Packages == nil {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(root, "usr/bin/gcc")); err != nil {
		return nil
	}
	dir, version, err := b.Catalog.Images.With(b.language.Image(b.env.From).Payload).Parts().Headers(ctx, b.arch)
	if err != nil {
		return err
	}
	b.runtime = version
	return copyHeaders(dir, root)
}

// copyHeaders copies the headers in dir to usr/include below root, which has the files of Debian packages. Existing
// files stay, and links lead to no file of the host.
func copyHeaders(dir, root string) error {
	to, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer to.Close()
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at := filepath.Join("usr/include", strings.TrimPrefix(name, dir))
		if d.IsDir() {
			return to.MkdirAll(at, 0o755)
		}
		if _, err := to.Lstat(at); !d.Type().IsRegular() || err == nil { // a package of Debian has it
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return to.WriteFile(at, text, 0o644)
	})
}
