package imagebuild

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/language"
)

// This file builds the shipped images, when a run first needs one. They are custom images: a file in the
// home's environments describes each. unitask writes it, and the user may extend it.

// language builds a shipped image, unless another process has just built it.
func (b *Builder) language(ctx context.Context, o *catalog.Custom) (*catalog.Custom, error) {
	if why := b.Catalog.Images.Offline; why != "" {
		return nil, fmt.Errorf("%w (%s): packages for %s would have to be fetched: "+
			"`unitask image build --offline=false %[3]s` does that", image.ErrOffline, why, o.Name)
	}
	began, err := b.describe(o.Name, o.Arch)
	if err != nil {
		return nil, err
	}
	if l, d := imagefile.FindShipped(o.Name).Language, began.env.Language; l != nil && (d == nil || d.Name != l.Name) {
		return nil, fmt.Errorf("%s: it declares no language %s: remove the file, and a new one is written", began.env.File,
			l.Name)
	}
	over := &bundledBuild{build: *began, language: language.OfImage(began.env.From)}
	if err := over.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", began.env.File, err)
	}
	ready := func() *catalog.Custom {
		built, err := catalog.ReadCustom(b.Catalog.Home, o.Name)
		if err != nil || built.Arch != o.Arch || (built.Language == nil) != (began.env.Language == nil) {
			return nil
		}
		return built
	}
	over.found = ready
	built, _, err := over.run(ctx)
	return built, err
}

// describeLanguage writes the description of a shipped image to the home, if there is none.
func describeLanguage(file, name string) error {
	of := imagefile.FindShipped(name)
	if _, err := os.Lstat(file); of == nil || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	text := fmt.Sprintf("# unitask wrote this file. Extend it, and build it again: unitask image build %s\n%s", name,
		of.ShippedText())
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(file, []byte(text), 0o600)
}
