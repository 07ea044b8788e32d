package catalog

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// This file finds the languages that images declare: custom ones, and shipped ones that are built on first use.

// Missing reports whether the image is shipped with unitask, and is not built yet. Catalog.Build builds it.
func (o *Custom) Missing() bool { return o != nil && o.missing }

// checkLanguage returns an error if the image's declared language can't be one. The file may be of another release,
// which lacked a bundled language of that name.
func (o *Custom) checkLanguage() error {
	if o.Language == nil {
		return nil
	}
	err := o.Language.Verify()
	if err == nil && !language.Declares(o.From) {
		err = fmt.Errorf("%s starts no commands", o.From)
	}
	if err != nil {
		return fmt.Errorf("the image %s: language: %w: change %s, and build it again, or `unitask image rm %[1]s`",
			o.Name, err, o.File)
	}
	return nil
}

// declaredLanguage returns the language that a request's custom image declares, and the extension of code without a
// file. It returns nil if there is none, or if the request is for the language of the image's base.
func (req Request) declaredLanguage() (*language.Language, string) {
	d := req.Custom.Language
	if d == nil {
		return nil, ""
	}
	base, ext := language.OfImage(req.Custom.From), d.Extensions[0]
	if req.Language != "" {
		named, is := d.Named(req.Language)
		if !is {
			return nil, ""
		}
		ext = named
	} else if of := path.Ext(req.Path); slices.Contains(base.Extensions, of) {
		return nil, ""
	}
	return d.Language(req.Custom.Row, base), ext
}

// WithoutLanguage returns a session's request. Steps are in the language of the image's base; the declared language's
// programs are there for commands. A container image has no language: each step names its own.
func (req Request) WithoutLanguage() Request {
	if ref, err := req.Reference(); ref != "" && err == nil {
		req.steps, req.Language = true, ""
	}
	if req.Custom == nil || req.Custom.Language == nil {
		return req
	}
	o := *req.Custom
	if _, is := o.Language.Named(req.Language); is {
		req.Language = ""
	}
	o.Language = nil
	req.Custom = &o
	return req
}

// shippedImage returns the shipped image of that name, as it is before it is built, or nil.
func shippedImage(name string) *Custom {
	if e := imagefile.FindShipped(name); e != nil {
		return missingCustom(e)
	}
	return nil
}

func missingCustom(e *imagefile.Environment) *Custom {
	o := &Custom{Schema: CustomSchema, Name: e.Name, From: e.From, Description: e.Description, Env: e.Env,
		MemoryMB: e.MemoryMB, TimeoutMs: e.Timeout.Milliseconds(), Language: e.Language, missing: true}
	o.describe()
	return o
}

// Declared returns the images that declare languages: the user's, then shipped ones whose names no image has.
func (cat *Catalog) Declared() (list []*Custom) {
	own := cat.Customs()
	for _, o := range own {
		if o.Language != nil {
			list = append(list, o)
		}
	}
	for _, e := range imagefile.Languages() {
		if !slices.ContainsFunc(own, func(o *Custom) bool { return o.Name == e.Name }) {
			list = append(list, missingCustom(e))
		}
	}
	return list
}

// declaring returns the image that declares the language of a request without an image, or nil. Bundled languages, and
// images that the ceiling allows, take precedence.
func (cat *Catalog) declaring(req run.Request, ceiling *policy.Ceiling) (first *Custom) {
	if req.Image != "" || req.Exec {
		return nil
	}
	is := func(o *Custom) bool { return slices.Contains(o.Language.Extensions, path.Ext(req.Path)) }
	if req.Language != "" {
		if _, _, err := language.Named(req.Language); err == nil {
			return nil
		}
		is = func(o *Custom) bool { _, named := o.Language.Named(req.Language); return named }
	} else if ext := path.Ext(req.Path); ext == "" || bundledExtension(ext) {
		return nil
	}
	for _, o := range cat.Declared() {
		switch {
		case !is(o):
		case ceiling.Image(o.Name):
			return o
		case first == nil:
			first = o
		}
	}
	return first
}

func bundledExtension(ext string) bool {
	return slices.ContainsFunc(language.All, func(l *language.Language) bool { return slices.Contains(l.Extensions, ext) })
}

// LanguageInfo describes a language for people.
type LanguageInfo struct {
	Name       string   `json:"name"`
	Extensions []string `json:"extensions"`
	Image      string   `json:"image"`             // the one that its code gets without another
	About      string   `json:"about"`             // of the image
	Version    string   `json:"version,omitempty"` // of the language's program, once the image is built
	Ready      bool     `json:"ready"`             // the image is built
	SizeMB     int64    `json:"sizeMb,omitempty"`  // of the image, if it is built
}

// ready reports whether a bundled or custom image is built, and its size in MiB.
func (cat *Catalog) ready(name string) (is bool, sizeMB int64) {
	of, err := cat.Images.Of(name)
	if err != nil {
		return false, 0
	}
	built, err := of.Lookup(of.Best(image.HostArch()), image.HostArch())
	if err != nil {
		return false, 0
	}
	return true, built.Size() >> 20
}

// offered returns the images with languages that models learn of: those that are built, and those that the ceiling
// lists by name.
func (cat *Catalog) offered(ceiling *policy.Ceiling) []*Custom {
	return slices.DeleteFunc(cat.Declared(), func(o *Custom) bool {
		return !ceiling.Image(o.Name) || o.missing && !ceiling.Bounds("images")
	})
}

// ListLanguages returns the languages of the images that a ceiling allows; nil allows all.
func (cat *Catalog) ListLanguages(ceiling *policy.Ceiling) []LanguageInfo {
	list := []LanguageInfo{}
	for _, l := range language.All {
		rows := cat.rows(l, ceiling)
		if len(rows) == 0 {
			continue
		}
		name := rows[0].Payload.Name
		info := LanguageInfo{Name: l.Name, Extensions: l.Extensions, Image: name, About: rows[0].About}
		info.Ready, info.SizeMB = cat.ready(name)
		if of, err := cat.Images.Of(name); err == nil && info.Ready {
			info.Version = of.Parts().LanguageVersion(image.HostArch())
		}
		list = append(list, info)
	}
	for _, o := range cat.Declared() {
		if !ceiling.Image(o.Name) {
			continue
		}
		info := LanguageInfo{Name: o.Language.Name, Extensions: o.Language.Extensions, Image: o.Name,
			About: o.Row.About}
		if info.Ready, info.SizeMB = cat.ready(o.Name); info.Ready {
			info.Version = cat.version(o)
		}
		list = append(list, info)
	}
	return list
}

// version returns the version of the first package that the description names, without Debian's own part.
func (cat *Catalog) version(o *Custom) string {
	e, err := imagefile.Read(o.File, cat.ImageFiles(), language.Images())
	if err != nil || len(e.Debian)+len(e.Npm) == 0 {
		return ""
	}
	if len(e.Debian) == 0 {
		for _, p := range o.Packages {
			if strings.HasPrefix(e.Npm[0]+"@", p.Name+"@") {
				return p.Version
			}
		}
		return ""
	}
	name, _, _ := strings.Cut(e.Debian[0], "=")
	for _, d := range o.Debian {
		if d.Name == name {
			version, _, _ := strings.Cut(d.Version[strings.Index(d.Version, ":")+1:], "-")
			return version
		}
	}
	return ""
}
