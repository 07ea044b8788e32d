// Package catalog resolves the names of images: bundled images, the user's own custom images, container images, and
// those that another host has sent. It finds, lists, pulls and removes them. Runs, sessions and builds ask it for an
// image; it builds no custom image and starts no machine.
package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Ensure returns the image of that name for a kernel, fetching and building what is missing. It also
// returns the container's image that it is made of, if any.
func (cat *Catalog) Ensure(ctx context.Context, images *image.Store, name string, kernel image.Kernel,
	arch image.Arch) (*image.Image, *image.Container, error) {
	images, contained, err := cat.imagesOf(ctx, images, name, arch)
	if err != nil {
		return nil, nil, err
	}
	im, err := cat.Obtain(ctx, images, kernel, arch)
	return im, contained, err
}

// Obtain returns the store's image for a kernel, "" for the best one, fetching and building what is missing.
func (cat *Catalog) Obtain(ctx context.Context, images *image.Store, kernel image.Kernel,
	arch image.Arch) (*image.Image, error) {
	if kernel == "" {
		kernel = images.Best(arch)
	}
	im, err := images.Obtain(ctx, kernel, arch)
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%w: UNITASK_HOME is %s", err, cat.Home)
	}
	return im, err
}

// Catalog finds, lists, pulls and removes images: bundled, custom and containers'.
type Catalog struct {
	Home    string
	Images  *image.Store
	Records *record.Store
	Source  *machine.Source // of templates and pools
	Journal *audit.Journal
	Tell    func(run.Event)
	// Build builds a shipped image with a language (Custom.Missing) for the run that needs it first.
	Build func(ctx context.Context, o *Custom, ceiling *policy.Ceiling, tell func(run.Event)) (*Custom, error)
	Enter func() (leave func(), err error) // fails if the runtime is closed
}

// WithDefaults checks a class and fills in its defaults, except the kernel's.
func WithDefaults(home string, sh machine.Class) (machine.Class, error) {
	l := language.All[0]
	if ref, is, err := policy.Reference(sh.Image); is {
		if err != nil {
			return sh, policy.Bad("image", fmt.Sprintf("%.80q", sh.Image), "%v", err)
		}
		l, sh.Image = language.InContainer(ref, nil, true), ref
	} else if o, err := ReadCustom(home, cmp.Or(sh.Image, l.Images[0].Payload.Name)); err == nil && o.Container != "" {
		l = language.InContainer(o.Name, nil, true)
	} else if err == nil {
		of := *language.OfImage(o.From)
		of.Images = []language.Image{o.Row}
		l, sh.Image = &of, o.Name
		if sh.Kernel == "" {
			sh.Kernel = image.Linux
		}
	} else if sh.Image != "" {
		if l = language.OfImage(sh.Image); l == nil {
			return sh, language.UnknownImage(sh.Image)
		}
	}
	arch, err := image.ParseArch(string(sh.Arch))
	if err != nil {
		return sh, policy.Bad("arch", fmt.Sprintf("%q", sh.Arch), "use amd64 or arm64")
	}
	kernel, err := language.FreshKernel(sh.Kernel, sh.FreshProcess, sh.CPUs)
	if err == nil {
		kernel, err = l.KernelFor(kernel)
	}
	if err != nil {
		return sh, err
	}
	eff, _, err := policy.Resolve(policy.Request{Kernel: string(kernel), MemoryMB: sh.MemoryMB, CPUs: sh.CPUs}, nil)
	return machine.Class{Image: l.Image(sh.Image).Payload.Name, Kernel: image.Kernel(eff.Kernel), Arch: arch,
		MemoryMB: eff.MemoryMB, CPUs: eff.CPUs, FreshProcess: sh.FreshProcess, Folders: sh.Folders}, err
}
