package unitask

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/image/oci"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/home/config"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// Images of containers: what is known of them before one is there (a reference), and what
// is made of a run when it is.

// container is the image's reference in one form, or the name of one of the user's own that is a container's; "" where
// the request has one that comes along.
func (req imageRequest) container() (string, error) {
	if req.own != nil && req.own.Container != "" {
		return req.own.Name, nil
	}
	if req.own != nil { // whose name may be a digest
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

// containerLanguage is the language of a request whose image is a container's.
func (req imageRequest) containerLanguage(ref string) (*language.Language, *language.Image, string, error) {
	if req.Check {
		return nil, nil, "", policy.Bad("check", "with "+ref, "is for the images that come along")
	}
	if req.Exec {
		switch {
		case req.Code != "" || req.Language != "" || req.Path != "" || len(req.Neighbours) > 0:
			return nil, nil, "", policy.Bad("exec", "with code", "runs a command, which stands in args: leave out code, path, language and what lies beside")
		case len(req.Args) > 0 && req.Args[0] == "":
			return nil, nil, "", policy.Bad("args", `""`, "is no command")
		}
		l := language.InContainer(ref, nil, true)
		return l, &l.Images[0], ".txt", nil
	}
	plain := req
	plain.Image, plain.own = "", nil
	l, _, ext, err := plain.language()
	if err != nil {
		return nil, nil, "", err
	}
	if language.Interpreters[l.Name] == nil {
		return nil, nil, "", &policy.FieldError{Field: "image", Value: ref, Reason: "has no interpreter of " + l.Name + ", as it may have of JavaScript, Python and shell: --exec runs any command"}
	}
	l = language.InContainer(ref, l, false)
	return l, &l.Images[0], ext, nil
}

// adopt gives the program what its image says of how it is started.
func (p *program) adopt(c *image.Container) error {
	p.env = map[string]string{"PATH": language.ContainerPath, "HOME": c.Owner.Home}
	for _, v := range c.Config.Env {
		if name, value, ok := strings.Cut(v, "="); ok && name != "" {
			p.env[name] = value
		}
	}
	maps.Copy(p.env, p.given)
	if !p.command {
		p.inImage = append([]string{p.language.Interpreters[0], p.path}, p.args...)
		p.nodeArgs = p.language.Interpreters[1:]
		return nil
	}
	p.inImage = slices.Clone(c.Config.Entrypoint)
	if len(p.args) > 0 {
		p.inImage = append(p.inImage, p.args...)
	} else {
		p.inImage = append(p.inImage, c.Config.Cmd...)
	}
	if len(p.inImage) == 0 {
		return policy.Bad("args", "none", "and the image has no command of its own: give one after --")
	}
	if !p.ownDir {
		p.dir = path.Join("/", c.Config.Dir)
	}
	return nil
}

// container is the image that a reference leads to; what is missing is pulled, if that may be.
func (cat *Catalog) container(ctx context.Context, ref string, arch image.Arch) (*image.Container, error) {
	c, err := cat.Images.Container(arch, ref)
	if !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	if strings.HasPrefix(ref, "sha256:") {
		return nil, fmt.Errorf("%w: `unitask image ls` shows what is there, `unitask image pull` and `unitask image import` bring others", err)
	}
	return cat.PullImage(ctx, ref, arch)
}

// PullImage fetches a container's image from its registry, as it is now, and keeps it by its digest. Runs
// that name the reference have this one until it is pulled again.
func (cat *Catalog) PullImage(ctx context.Context, reference string, arch Arch) (*image.Container, error) {
	arch, err := image.ParseArch(string(arch))
	if err != nil {
		return nil, err
	}
	ref, is, err := policy.Reference(reference)
	if !is {
		ref, _, err = policy.Reference(reference + ":latest")
	}
	if err != nil {
		return nil, policy.Bad("image", fmt.Sprintf("%.80q", reference), "%v", err)
	}
	if why := cat.Images.Offline; why != "" {
		return nil, fmt.Errorf("%w (%s): %s would have to be pulled: `unitask image pull --offline=false %[3]s` does that", image.ErrOffline, why, ref)
	}
	cat.Tell(Event{Kind: EventImage, Message: "pulling " + ref + " for " + string(arch)})
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
	c, err := cat.Images.AddContainer(ctx, arch, im, image.Pulled, []string{ref})
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", ref, err)
	}
	cat.Journal.Change(audit.ImageAdded, map[string]any{"image": c.Digest, "names": []string{ref}, "pulled": true})
	return c, nil
}

// ImportImage takes a container's image from a file, as docker save and podman save write it, or an OCI layout. Under
// its names no ceiling's rule for a registry allows it: only its digest does. name is a reference that leads to it,
// beside those that it has.
func (cat *Catalog) ImportImage(ctx context.Context, file, name string, arch Arch) (*image.Container, error) {
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
	c, err := cat.Images.AddContainer(ctx, arch, im, image.Imported, names)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", file, err)
	}
	cat.Journal.Change(audit.ImageAdded, map[string]any{"image": c.Digest, "names": names[:min(len(names), maxAudited)], "pulled": false})
	return c, nil
}

// imagesOf is the store with images of that name: of those that come along, a reference, or a container's of the
// user's own.
func (cat *Catalog) imagesOf(ctx context.Context, images *image.Store, name string, arch image.Arch) (*image.Store, *image.Container, error) {
	ref, is, err := policy.Reference(name)
	if !is {
		if o, err := readOwn(cat.Home, name); err == nil && o.Container != "" {
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
	c, err := cat.container(ctx, ref, arch)
	if err != nil {
		return nil, nil, err
	}
	images, err = images.OfContainer(c)
	return images, c, err
}
