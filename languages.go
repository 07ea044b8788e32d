package unitask

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// language is that of a request: the one that it, or its image, names, else that of its
// file; and the image that it runs in.
func (req imageRequest) language() (l *language.Language, im *language.Image, ext string, err error) {
	l, ext = language.All[0], language.All[0].Extensions[0]
	if ref, err := req.container(); err != nil {
		return nil, nil, "", err
	} else if ref != "" {
		return req.containerLanguage(ref)
	}
	if req.own != nil {
		plain := req
		plain.own, plain.Image = nil, req.own.From
		if l, _, ext, err = plain.language(); err != nil {
			return nil, nil, "", err
		}
		return l, &req.own.row, ext, nil
	}
	switch {
	case req.Exec && (req.Image == "" || language.OfImage(req.Image) != nil):
		return nil, nil, "", policy.Bad("exec", cmp.Or(req.Image, "without an image"), "runs a command of a container image: name one, as alpine:3.20, by image")
	case req.Language != "":
		if l, ext, err = language.Named(req.Language); err != nil {
			return nil, nil, "", policy.Bad("language", fmt.Sprintf("%.40q", req.Language), "%v", err)
		}
	case req.Image != "":
		if l = language.OfImage(req.Image); l == nil {
			return nil, nil, "", language.UnknownImage(req.Image)
		}
		for _, of := range language.All { // of those that the image has
			if of.Image(req.Image) != nil && slices.Contains(of.Extensions, path.Ext(req.Path)) {
				l = of
			}
		}
		ext = l.Extensions[0]
	default:
		for _, of := range language.All {
			if slices.Contains(of.Extensions, path.Ext(req.Path)) {
				l, ext = of, of.Extensions[0]
			}
		}
	}
	switch im = l.Image(req.Image); {
	case im != nil:
		return l, im, ext, nil
	case language.OfImage(req.Image) == nil:
		return nil, nil, "", language.UnknownImage(req.Image)
	}
	var in []string
	for _, im := range l.Images {
		in = append(in, im.Payload.Name)
	}
	return nil, nil, "", policy.Bad("image", req.Image, "%s", "has no "+l.Name+", which is in "+strings.Join(in, ", "))
}

// mainLink is what every language runs; its target is the code.
const mainLink = contract.MainLink
