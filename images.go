package unitask

import (
	"context"
	"fmt"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/policy"
)

// ImageInfo is an image that comes along, as models and people are told of it.
type ImageInfo struct {
	Name      string   `json:"name"`
	Languages []string `json:"languages"` // names that Request.Language may have
	About     string   `json:"about"`     // what is in it, in two lines
	// Ready says that it is built, so that no run waits for that; Template, that runs with the usual
	// memory are cloned.
	Ready    bool  `json:"ready"`
	Template bool  `json:"template"`
	SizeMB   int64 `json:"sizeMb,omitempty"` // on disk, of one that is built
}

// ListImages are the images that a ceiling allows; nil allows all.
func (rt *Runtime) ListImages(ctx context.Context, ceiling *policy.Ceiling) []ImageInfo {
	list := []ImageInfo{}
	for _, l := range languages {
		for _, im := range l.images {
			name := im.payload.Name
			if !ceiling.Image(name) {
				continue
			}
			info := ImageInfo{Name: name, Languages: l.names(), About: im.about}
			if of, err := rt.images.Of(name); err == nil {
				if built, err := of.Lookup(of.Best(image.HostArch()), image.HostArch()); err == nil {
					info.Ready, info.SizeMB, info.Template = true, built.Size()>>20, rt.HasTemplate(ctx, built)
				}
			}
			list = append(list, info)
		}
	}
	return list
}

// HasTemplate says that runs of an image with the usual memory are cloned.
func (rt *Runtime) HasTemplate(ctx context.Context, im *image.Image) bool {
	return rt.source.HasTemplate(ctx, im, policy.DefaultMemoryMB)
}

// ImageLanguages are the names of the languages that are in an image.
func ImageLanguages(name string) []string {
	if l := imageLanguage(name); l != nil {
		return l.names()
	}
	return nil
}

// AboutLanguages says in a phrase each what code there can be under a ceiling, and what it finds.
func AboutLanguages(ceiling *policy.Ceiling) (phrases []string) {
	for _, l := range languages {
		var in []string
		for _, im := range l.images {
			if ceiling.Image(im.payload.Name) {
				in = append(in, fmt.Sprintf("image %s: %s", im.payload.Name, strings.TrimSuffix(im.about, ".")))
			}
		}
		if len(in) > 0 {
			phrases = append(phrases, l.about+" ("+strings.Join(in, "; ")+")")
		}
	}
	return phrases
}

// AllowedLanguages are the Languages that have an image under a ceiling.
func AllowedLanguages(ceiling *policy.Ceiling) (names []string) {
	for _, l := range languages {
		for _, im := range l.images {
			if ceiling.Image(im.payload.Name) {
				names = append(names, l.names()...)
				break
			}
		}
	}
	return names
}

// AllowedImages are the Images that a ceiling allows.
func AllowedImages(ceiling *policy.Ceiling) (names []string) {
	for _, name := range Images() {
		if ceiling.Image(name) {
			names = append(names, name)
		}
	}
	return names
}
