package language

import (
	"slices"
	"strings"

	"github.com/unitask/unitask/image"
)

// older is a release of Debian with an older version of a language. Its images are named IMAGE@VERSION.
type older struct {
	version, release string
	more             []string // parts that the current release lacks
	lacks            []string // parts of the current release that this one lacks, or has in other parts
}

var python311 = older{"3.11", image.Bookworm, []string{"python3-distutils", "python3-lib2to3"},
	[]string{"fonts-dejavu-mono", "libsharpyuv0", "libxxhash0"}}

// image returns an image with the parts of the release in place of its own.
func (o older) image(of Image, about string) Image {
	parts := func(names []string) (list []string) {
		for _, name := range names {
			if !slices.Contains(o.lacks, name) {
				list = append(list, image.PartOf(o.release, name))
			}
		}
		return list
	}
	p := &of.Payload
	p.Name += "@" + o.version
	p.Parts, p.BuildParts = parts(slices.Concat(p.Parts, o.more)), parts(p.BuildParts)
	only := map[string]string{}
	for name, arch := range p.Only {
		only[image.PartOf(o.release, name)] = arch
	}
	p.Only, of.About = only, about
	return of
}

// Unversioned returns an image's name without the version that may be in it.
func Unversioned(name string) string {
	name, _, _ = strings.Cut(name, "@")
	return name
}

// FirstLike returns the name of the language's first image that has the same version of the language as an image.
func (l *Language) FirstLike(name string) string {
	first := l.Images[0].Payload.Name
	if _, version, older := strings.Cut(name, "@"); older && l.Image(first+"@"+version) != nil {
		return first + "@" + version
	}
	return first
}

// versions returns the images that have a name, each with the language's version.
func versions(name string) (list []string) {
	for _, im := range AllImages() {
		switch base, version, _ := strings.Cut(im.Payload.Name, "@"); {
		case base != name:
		case version == "":
			list = append(list, image.LockedVersions(base+" ({"+im.Payload.Parts[0]+"})"))
		default:
			list = append(list, im.Payload.Name)
		}
	}
	return list
}
