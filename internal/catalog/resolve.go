package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Reference returns the image's reference in its normal form, or the name of a custom container image; "" for bundled
// images.
func (req Request) Reference() (string, error) {
	if req.Custom != nil && req.Custom.Container != "" {
		return req.Custom.Name, nil
	}
	if req.Custom != nil { // its name may be a digest
		return "", nil
	}
	ref, is, err := policy.Reference(req.Image)
	if !is {
		return "", nil
	}
	if err != nil {
		return "", policy.Bad("image", fmt.Sprintf("%.80q", req.Image), "%v", err)
	}
	return ref, nil
}

// containerLanguage returns the language of a request whose image is a container's.
func (req Request) containerLanguage(ref string) (*language.Language, *language.Image, string, error) {
	if req.Check {
		return nil, nil, "", policy.Bad("check", "with "+ref, "is for the bundled images")
	}
	if req.steps {
		l := language.InContainer(ref, nil, true)
		return l, &l.Images[0], ".txt", nil
	}
	if req.Exec {
		switch {
		case req.Code != "" || req.Language != "" || req.Path != "" || len(req.InlineFiles) > 0:
			return nil, nil, "", policy.Bad("exec", "with code",
				"runs a command, which stands in args: leave out code, path, language and what lies beside")
		case len(req.Args) > 0 && req.Args[0] == "":
			return nil, nil, "", policy.Bad("args", `""`, "is no command")
		}
		l := language.InContainer(ref, nil, true)
		return l, &l.Images[0], ".txt", nil
	}
	plain := req
	plain.Image, plain.Custom = "", nil
	l, _, ext, err := plain.FindLanguage()
	if err != nil {
		return nil, nil, "", err
	}
	if language.Interpreters[l.Name] == nil {
		return nil, nil, "", &policy.FieldError{Field: "image", Value: ref,
			Reason: "has no interpreter of " + l.Name +
				", as it may have of JavaScript, Python and shell: --exec runs any command"}
	}
	l = language.InContainer(ref, l, false)
	return l, &l.Images[0], ext, nil
}

// FindLanguage returns a request's language and image. The request, its image or its file determines the
// language, in this order.
func (req Request) FindLanguage() (l *language.Language, im *language.Image, ext string, err error) {
	l, ext = language.All[0], language.All[0].Extensions[0]
	if ref, err := req.Reference(); err != nil {
		return nil, nil, "", err
	} else if ref != "" {
		return req.containerLanguage(ref)
	}
	if req.Custom != nil {
		if l, ext := req.declaredLanguage(); l != nil {
			return l, &req.Custom.Row, ext, nil
		}
		plain := req
		plain.Custom, plain.Image = nil, req.Custom.From
		if l, _, ext, err = plain.FindLanguage(); err != nil {
			return nil, nil, "", err
		}
		return l, &req.Custom.Row, ext, nil
	}
	switch {
	case req.Exec && (req.Image == "" || language.OfImage(req.Image) != nil):
		return nil, nil, "", policy.Bad("exec", cmp.Or(req.Image, "without an image"),
			"runs a command of a container image: name one, as alpine:3.20, by image")
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
	return nil, nil, "", policy.Bad("image", req.Image, "has no %s, which is in %s", l.Name, strings.Join(in, ", "))
}

// Request is a request with its custom image, once that was looked up.
type Request struct {
	run.Request
	Custom *Custom
	steps  bool // it is a session of a container image (WithoutLanguage)
}

// ResolveCustom finds the custom image that a request names, if any. A custom image replaces the bundled
// image of the same name. An image that another host shipped is available to callers whose ceiling allows it.
func (cat *Catalog) ResolveCustom(req Request, ceiling *policy.Ceiling) (Request, error) {
	// A build makes it, or a session has found it. No custom image reads pages.
	if req.Custom != nil || req.WebFetch && req.Image == policy.WebImage {
		return req, nil
	}
	if c := cat.shipped(req.Image, ceiling); c != nil {
		o, err := ShippedCustom(c)
		req.Custom = o
		return req, err
	}
	if o := cat.declaring(req.Request, ceiling); o != nil {
		return req.with(o)
	}
	name := req.Image
	if name == "" {
		_, im, _, err := req.FindLanguage()
		if err != nil {
			return req, nil // the run reports that
		}
		name = im.Payload.Name
	}
	o, err := ReadCustom(cat.Home, name)
	if errors.Is(err, fs.ErrNotExist) {
		if o := shippedImage(name); o != nil {
			return req.with(o)
		}
		file := imagefile.Find(name, cat.ImageFiles())
		if imagefile.CheckName(name) != nil || language.OfImage(name) != nil {
			return req, nil
		}
		if _, err := os.Stat(file); err == nil {
			return req, policy.Bad("image", name, "is described by %s and not built: `unitask image build %s` does that", file,
				name)
		}
		return req, nil
	}
	if err != nil {
		return req, failure.Host("image", err)
	}
	return req.with(o)
}

// with returns the request with its custom image.
func (req Request) with(o *Custom) (Request, error) {
	req.Custom = o
	if req.MemoryMB == 0 {
		req.MemoryMB = o.MemoryMB
	}
	if req.Timeout == 0 {
		req.Timeout = time.Duration(o.TimeoutMs) * time.Millisecond
	}
	arch, err := image.ParseArch(string(req.Arch))
	if err == nil && o.missing {
		o.Arch = arch
	}
	if err == nil && arch != o.Arch {
		return req,
			policy.Bad("arch", string(arch),
				"is not what the image %s was built for, %s: `unitask image build --arch %s %s` builds it for the other one",
				o.Name, o.Arch, arch, o.File)
	}
	return req, nil
}
