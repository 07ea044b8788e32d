package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// ImageInfo describes an image for models and people.
type ImageInfo struct {
	Name      string   `json:"name"`
	Languages []string `json:"languages"` // names that Request.Language may have
	About     string   `json:"about"`     // what is in it, in two lines
	// Ready means that it is built, so no run waits for that. Template means that runs with the usual
	// memory are clones.
	Ready    bool  `json:"ready"`
	Template bool  `json:"template"`
	SizeMB   int64 `json:"sizeMb,omitempty"` // on disk, if it is built
}

// List returns the images that a ceiling allows; nil allows all.
func (cat *Catalog) List(ctx context.Context, ceiling *policy.Ceiling) []ImageInfo {
	list := []ImageInfo{}
	for _, l := range language.All {
		for _, im := range cat.rows(l, ceiling) {
			name := im.Payload.Name
			info := ImageInfo{Name: name, Languages: l.AllNames(), About: im.About}
			if of, err := cat.Images.Of(name); err == nil {
				if built, err := of.Lookup(of.Best(image.HostArch()), image.HostArch()); err == nil {
					info.Ready, info.SizeMB, info.Template = true, built.Size()>>20, cat.HasTemplate(ctx, built)
				}
			}
			list = append(list, info)
		}
	}
	for _, o := range cat.offered(ceiling) {
		info := ImageInfo{Name: o.Name, Languages: o.Language.AllNames(), About: o.Row.About}
		if of, err := cat.Images.Of(o.Name); err == nil {
			if built, err := of.Lookup(image.Linux, image.HostArch()); err == nil {
				info.Ready, info.SizeMB, info.Template = true, built.Size()>>20, cat.HasTemplate(ctx, built)
			}
		}
		list = append(list, info)
	}
	return list
}

// CheckCeiling refuses a ceiling that lists a name which resembles another image's, or only unknown names: it would
// silently allow nothing. Other names may be images that are built later. It also refuses a ceiling that lists
// ShippedImages if an image has that name. Releases before December 2026 allowed that name, and the file may mean that
// image alone.
func (cat *Catalog) CheckCeiling(ceiling *policy.Ceiling) error {
	if of := ceiling.ListsShipped(); of != nil {
		described := filepath.Join(cat.ImageFiles(), policy.ShippedImages+imagefile.Extension)
		for _, file := range []string{home.Dir(cat.Home).CustomFile(policy.ShippedImages), described} {
			if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
				return of.WrongImage(policy.ShippedImages, "stands for all images that other hosts ship, and "+
					"this home has an image of that name: build that one by another name, and remove "+file)
			}
		}
	}
	if name, _ := ceiling.MistypedImage(append(language.Images(), policy.ShippedImages),
		func(string) bool { return true }); name == "" {
		return nil // nothing had to be read
	}
	known := append(language.Images(), policy.ShippedImages)
	for _, e := range imagefile.Shipped() {
		known = append(known, e.Name)
	}
	described, _ := filepath.Glob(filepath.Join(cat.ImageFiles(), "*"+imagefile.Extension))
	built, _ := filepath.Glob(home.Dir(cat.Home).CustomFile("*"))
	for _, file := range append(described, built...) {
		if own := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)); imagefile.CheckName(own) == nil {
			known = append(known, own)
		}
	}
	name, of := ceiling.MistypedImage(known, func(name string) bool { return language.Nearest(name, known) != "" })
	if name == "" {
		return nil
	}
	says := "is no image here: there are " + strings.Join(known[:min(len(known), maxNamed)], ", ") +
		language.Nearest(name, known)
	if imagefile.CheckName(name) == nil {
		says += " (one of your own is described by " + filepath.Join(cat.ImageFiles(), name+imagefile.Extension) +
			", or built by `unitask image build FILE`)"
	}
	return of.WrongImage(name, says)
}

// maxNamed bounds the images that an error names.
const maxNamed = 20

// HasTemplate reports whether runs of an image with the usual memory are clones.
func (cat *Catalog) HasTemplate(ctx context.Context, im *image.Image) bool {
	memory := policy.DefaultMemoryMB
	if im.Base != "" {
		if o, err := ReadCustom(cat.Home, im.Name); err == nil && o.MemoryMB > 0 {
			memory = o.MemoryMB
		}
	}
	return cat.Source.HasTemplate(ctx, im, memory)
}

// ImageLanguages returns the names of an image's languages. A custom image's name is "" with a bundled one.
func (cat *Catalog) ImageLanguages(custom, name string) []string {
	if o, err := ReadCustom(cat.Home, custom); err == nil && o.Language != nil {
		return o.Language.AllNames()
	}
	if l := language.OfImage(name); l != nil {
		return l.AllNames()
	}
	return nil
}

// rows returns a language's images under a ceiling. Custom images come last, and replace those with the same name.
func (cat *Catalog) rows(l *language.Language, ceiling *policy.Ceiling) (list []language.Image) {
	own := cat.Customs()
	for _, im := range l.Images {
		if !slices.ContainsFunc(own, func(o *Custom) bool { return o.Name == im.Payload.Name }) {
			im.About = cat.Images.Versions(im.About)
			list = append(list, im)
		}
	}
	for _, o := range own {
		if language.OfImage(o.From) == l && o.Language == nil {
			row := o.Row
			if o.Description == "" { // it has its base image's
				row.About = cat.Images.Versions(row.About)
			}
			list = append(list, row)
		}
	}
	return slices.DeleteFunc(list, func(im language.Image) bool { return !ceiling.Image(im.Payload.Name) })
}

// AboutLanguages describes, in a phrase each, the languages that a ceiling allows, and what their images have. An image
// with an older version is left out beside the current one: models rarely need it, and image lists have it.
func (cat *Catalog) AboutLanguages(ceiling *policy.Ceiling) (phrases []string) {
	for _, l := range language.All {
		var in []string
		for _, im := range cat.rows(l, ceiling) {
			if l.Runner != "" { // it runs in another language's images
				phrases = append(phrases, l.About)
				break
			}
			if base := language.Unversioned(im.Payload.Name); base != im.Payload.Name && ceiling.Image(base) {
				continue
			}
			in = append(in, fmt.Sprintf("image %s: %s", im.Payload.Name, strings.TrimSuffix(im.About, ".")))
		}
		if len(in) > 0 {
			phrases = append(phrases, l.About+" ("+strings.Join(in, "; ")+")")
		}
	}
	for _, o := range cat.offered(ceiling) {
		phrases = append(phrases, fmt.Sprintf("%s (image %s: %s)", o.Language.Name, o.Name, o.Row.About))
	}
	return phrases
}

// AllowedLanguages returns the Languages that have an image under a ceiling.
func (cat *Catalog) AllowedLanguages(ceiling *policy.Ceiling) (names []string) {
	for _, l := range language.All {
		if len(cat.rows(l, ceiling)) > 0 {
			names = append(names, l.AllNames()...)
		}
	}
	for _, o := range cat.offered(ceiling) {
		names = append(names, o.Language.AllNames()...)
	}
	return names
}

// AllowedImages returns the images that a ceiling allows, with custom images.
func (cat *Catalog) AllowedImages(ceiling *policy.Ceiling) (names []string) {
	for _, l := range language.Interpreted {
		for _, im := range cat.rows(l, ceiling) {
			names = append(names, im.Payload.Name)
		}
	}
	for _, o := range cat.offered(ceiling) {
		names = append(names, o.Name)
	}
	return names
}
