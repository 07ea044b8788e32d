package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/image/oci"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/home/config"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Container returns the image that a reference leads to. It pulls what is missing, if that is allowed.
func (cat *Catalog) Container(ctx context.Context, ref string, arch image.Arch) (*image.Container, error) {
	c, err := cat.Images.Containers().Get(arch, ref)
	if !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	if strings.HasPrefix(ref, "sha256:") {
		return nil,
			fmt.Errorf(
				"%w: `unitask image ls` shows what is there, `unitask image pull` and `unitask image import` bring others", err)
	}
	return cat.Pull(ctx, ref, arch)
}

// Pull fetches a container's image from its registry, and keeps it by its digest. Runs that name the
// reference get this image until the next pull.
func (cat *Catalog) Pull(ctx context.Context, reference string, arch run.Arch) (*image.Container, error) {
	arch, err := image.ParseArch(string(arch))
	if err != nil {
		return nil, err
	}
	ref, is, err := policy.Reference(reference)
	if !is {
		ref, _, err = policy.Reference(reference + ":latest")
	}
	if err != nil && language.OfImage(reference) != nil {
		err = fmt.Errorf("is a bundled image, whose parts `unitask image vendor --image %s` fetches", reference)
	}
	if err != nil {
		return nil, policy.Bad("image", fmt.Sprintf("%.80q", reference), "%v", err)
	}
	if why := cat.Images.Offline; why != "" {
		return nil, fmt.Errorf("%w (%s): %s would have to be pulled: `unitask image pull --offline=false %[3]s` does that",
			image.ErrOffline, why, ref)
	}
	cat.Tell(run.Event{Kind: run.EventImage, Message: "pulling " + ref + " for " + string(arch)})
	secrets, err := config.Vault(cat.Home)
	if err != nil {
		return nil, err
	}
	im, err := oci.Pull(ctx, ref, string(arch), func(ctx context.Context, registry string) (*oci.Login, error) {
		l, err := secrets.LoginTo(ctx, registry)
		return (*oci.Login)(l), err
	})
	if err != nil {
		return nil, err
	}
	defer im.Close()
	c, err := cat.Images.Containers().Add(ctx, arch, im, image.Pulled, []string{ref})
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", ref, err)
	}
	cat.Journal.Change(audit.ImageAdded, map[string]any{"image": c.Digest, "names": []string{ref}, "pulled": true})
	return c, nil
}

// maxListed bounds the names of an image in the audit log.
const maxListed = 64

// Import reads a container's image from a file of docker save or podman save, or an OCI layout. A ceiling allows it by
// its digest only, not by a rule for a registry. name is one more reference that leads to it.
func (cat *Catalog) Import(ctx context.Context, file, name string, arch run.Arch) (*image.Container, error) {
	arch, err := image.ParseArch(string(arch))
	if err != nil {
		return nil, err
	}
	im, err := oci.Open(ctx, file, string(arch))
	if err != nil {
		return nil, err
	}
	defer im.Close()
	names := im.Names
	if name != "" {
		names = append([]string{name}, names...)
	}
	for i, n := range names {
		ref, is, err := policy.Reference(n)
		if !is {
			ref, _, err = policy.Reference(n + ":latest")
		}
		if err != nil {
			return nil, policy.Bad("name", fmt.Sprintf("%.80q", n), "%v", err)
		}
		names[i] = ref
	}
	c, err := cat.Images.Containers().Add(ctx, arch, im, image.Imported, names)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", file, err)
	}
	cat.Journal.Change(audit.ImageAdded, map[string]any{"image": c.Digest, "names": names[:min(len(names), maxListed)],
		"pulled": false})
	return c, nil
}

// imagesOf returns the store for images of a name: a bundled one, a reference, or a custom container image.
func (cat *Catalog) imagesOf(ctx context.Context, images *image.Store, name string, arch image.Arch) (*image.Store,
	*image.Container, error) {
	ref, is, err := policy.Reference(name)
	if !is {
		if o, err := ReadCustom(cat.Home, name); err == nil && o.Container != "" {
			ref, is = o.Container, true
		}
	}
	if !is {
		images, err = images.Of(name)
		return images, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	c, err := cat.Container(ctx, ref, arch)
	if err != nil {
		return nil, nil, err
	}
	images, err = images.OfContainer(c)
	return images, c, err
}
