package imagebuild

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/image/oci"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// Custom images that begin with a container's image. What they bring are layers over that: one with the description's
// files, and one with all that its steps have changed, in a machine. They are stored in the home's layers/ by their
// digests. What runs is a container's image like any other, to which the name leads.

// checkOnContainer holds what a description says against a container's image as its beginning.
func checkOnContainer(o *catalog.Custom, env *imagefile.Environment, c *policy.Ceiling) (ref string, reached stepNetwork, err error) {
	bad := func(format string, args ...any) (string, stepNetwork, error) {
		return "", reached, fmt.Errorf(format, args...)
	}
	ref, _, err = policy.Reference(env.From)
	if err != nil {
		return bad("from: %s %w", env.From, err)
	}
	if len(env.Warm) > 0 {
		return bad("warm is for the images that come along, whose Python waits in the machine that runs are cloned from; in %s it starts anew in each run: from = \"python\" with pip and debian has it", env.From)
	}
	for _, f := range env.Files {
		for own := range strings.SplitSeq(machinePaths, ":") {
			if f.Guest == own || strings.HasPrefix(f.Guest, own+"/") {
				return bad("files: %s is not where a container's image can have files: %s is the machine's", f.Guest, own)
			}
		}
	}
	if o.MemoryMB > 0 {
		if _, _, err := policy.Resolve(policy.Request{MemoryMB: o.MemoryMB}, nil); err != nil {
			return bad("%w", err)
		}
	}
	for _, spec := range env.Debian {
		if err := image.CheckDebSpec(spec); err != nil {
			return bad("debian: %w", err)
		}
	}
	if len(env.Network) > 0 && len(env.Run) == 0 {
		return bad("network: is for the steps of run, and there are none")
	}
	reached, err = parseNetwork(env.Network)
	for system, list := range map[string][]string{policy.Pip: env.Pip, policy.Npm: env.Npm} {
		specs, bad := parseSpecs(language.OfSystem(system), system, list)
		slices.Sort(specs)
		if bad == nil {
			bad = reached.allowed(c, system, specs)
		}
		if err == nil {
			err = bad
		}
	}
	return ref, reached, err
}

// buildOnContainer builds a custom image that begins with a container's.
func (b *Builder) buildOnContainer(ctx context.Context, o *catalog.Custom, env *imagefile.Environment) (*catalog.Custom, *image.Image, error) {
	ref, reached, err := checkOnContainer(o, env, b.Ceiling)
	if err != nil {
		return nil, nil, policy.Bad("image", env.File, "%v", err)
	}
	held, err := b.Catalog.LockCustom(ctx)
	if err != nil {
		return nil, nil, failed(ctx, err)
	}
	defer held.Unlock()
	im, err := b.buildLayers(ctx, o, env, ref, reached)
	if err != nil {
		b.Catalog.TidyCustom()
		return nil, nil, failed(ctx, err)
	}
	return o, im, nil
}

// buildLayers makes the image's layers, as far as they are not there, and the image of them.
func (b *Builder) buildLayers(ctx context.Context, o *catalog.Custom, env *imagefile.Environment, ref string, reached stepNetwork) (*image.Image, error) {
	lockName := lockFileOf(env)
	locks, err := readLockFile(lockName)
	if err != nil {
		return nil, err
	}
	at, was := locks.at(o.Arch), lockedLayer{}
	if at != nil && at.Layer != nil && at.Layer.From == ref {
		was = *at.Layer
	}
	base, err := b.baseImage(ctx, ref, was.Image, o.Arch)
	if err != nil {
		return nil, err
	}
	if base.Brought != "" { // this host reads the disk of what it begins with, and nobody's whom it does not trust
		return nil, policy.Bad("image", o.File, "from: %s came along from another host, as the tenant %s's: only its own machine reads it; begin with an image that was pulled or imported here", o.From, base.Brought)
	}
	now := lockedLayer{From: ref, Image: base.Digest, Steps: env.Run, Network: env.Network}
	if len(env.Files) > 0 {
		if now.Files, err = b.storeFiles(env); err != nil {
			return nil, err
		}
		o.Layers = append(o.Layers, now.Files)
	}
	now.Env = []string{}
	for name, value := range env.Env {
		now.Env = append(now.Env, name+"="+value)
	}
	slices.Sort(now.Env)
	config := base.Config
	config.Env = slices.Concat(config.Env, now.Env)
	if len(env.Debian) > 0 {
		if err := b.installDebian(ctx, o, env, base, was, &now); err != nil {
			return nil, err
		}
	}
	if err := b.installLayers(ctx, o, env, base, was, &now); err != nil {
		return nil, err
	}
	if len(env.Run) > 0 {
		if now.same(was) && b.hasLayer(was.Digest) {
			now.Digest = was.Digest
		} else if now.Digest, err = b.runSteps(ctx, o, base, config, env.Run, reached); err != nil {
			return nil, err
		} else if now.same(was) && was.Digest != "" && was.Digest != now.Digest {
			b.tell("the steps are those of " + lockName + ", and have left other files than then")
		}
		o.Layers = append(o.Layers, now.Digest)
	}
	c, err := b.derive(ctx, base, o.Arch, config, o.Layers)
	if err != nil {
		return nil, err
	}
	images, err := b.Catalog.Images.OfContainer(c)
	if err != nil {
		return nil, err
	}
	im, err := b.Catalog.Obtain(ctx, images, image.Linux, o.Arch)
	if err != nil {
		return nil, err
	}
	locks.set(lockedBuild{Arch: o.Arch, Layer: &now, Digest: c.Digest})
	if err := locks.write(lockName); err != nil {
		return nil, err
	}
	if err := b.Catalog.Images.NameContainer(ctx, c, image.Imported, o.Name); err != nil {
		return nil, err
	}
	o.Debian, o.From, o.Container, o.Digest, o.Bytes = now.Debian, ref, c.Digest, c.Digest, c.Size()
	return im, b.publish(o, map[string]any{"image": c.Digest, "network": env.Network})
}

// baseImage is the container's image that a custom one begins with: the one that its lock file names, else the one that
// the reference leads to. A lock file never selects an image that is known here only by other names.
func (b *Builder) baseImage(ctx context.Context, ref, locked string, arch image.Arch) (*image.Container, error) {
	if locked == "" || strings.HasPrefix(ref, "sha256:") {
		return b.Catalog.Container(ctx, ref, arch)
	}
	name, _, _ := strings.Cut(ref, "@")
	if tag := strings.LastIndexByte(name, ':'); tag > strings.LastIndexByte(name, '/') {
		name = name[:tag]
	}
	name += "@" + locked
	if _, err := b.Catalog.Images.Container(arch, name); errors.Is(err, fs.ErrNotExist) {
		if c, err := b.Catalog.Images.Container(arch, locked); err == nil && len(c.Names) == 0 { // which its tag has left
			return c, nil
		}
	}
	c, err := b.Catalog.Container(ctx, name, arch)
	if err != nil {
		return nil, fmt.Errorf("%w: the lock file names this digest of %s; without the file it is chosen anew", err, ref)
	}
	return c, nil
}

// derive puts layers over a container's image.
func (b *Builder) derive(ctx context.Context, base *image.Container, arch image.Arch, config oci.Config, digests []string) (*image.Container, error) {
	disk, err := base.Disk()
	if err != nil {
		return nil, err
	}
	defer disk.Close()
	var layers []oci.Layer
	for _, digest := range digests {
		layers = append(layers, oci.Layer{Digest: digest, Open: func() (io.ReadCloser, error) { return os.Open(b.Catalog.LayerFile(digest)) }})
	}
	im, err := oci.Derive(base.Digest, disk, string(arch), config, layers...)
	if err != nil {
		return nil, err
	}
	c, err := b.Catalog.Images.AddContainer(ctx, arch, im, image.Imported, nil)
	if err != nil {
		return nil, fmt.Errorf("lay %d layers over %s: %w", len(digests), base.Digest[:19], err)
	}
	return c, nil
}
