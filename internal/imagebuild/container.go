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
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// containerBuild builds a custom image over a container's image. It adds layers: one with the description's files, and
// one for each installation or step in a machine. They are stored in the home's layers/ by their digests. The result is
// an ordinary container image, to which the name leads.
type containerBuild struct {
	build
	ref     string      // of the base image
	network stepNetwork // of its steps

	base   *image.Container
	was    lockedLayer // in the lock file
	now    lockedLayer
	layers []string // digests of the layers over base, so far
}

// check checks the description against its base image, which is a container's, and against the ceiling.
func (b *containerBuild) check() (err error) {
	if b.ref, _, err = policy.Reference(b.env.From); err != nil {
		return fmt.Errorf("from: %s %w", b.env.From, err)
	}
	if len(b.env.Warm) > 0 {
		return fmt.Errorf("warm is for the bundled images, "+
			"whose Python waits in the machine that runs are cloned from; in %s it starts anew in each run: "+
			"from = \"python\" with pip and debian has it", b.env.From)
	}
	for _, f := range b.env.Files {
		for machines := range strings.SplitSeq(machinePaths, ":") {
			if f.Guest == machines || strings.HasPrefix(f.Guest, machines+"/") {
				return fmt.Errorf("files: %s is not where a container's image can have files: %s is the machine's",
					f.Guest, machines)
			}
		}
	}
	if err := b.checkMemory(); err != nil {
		return err
	}
	if err := b.checkDebian(); err != nil {
		return err
	}
	if len(b.env.Network) > 0 && len(b.env.Run) == 0 {
		return errors.New("network: is for the steps of run, and there are none")
	}
	b.network, err = parseNetwork(b.env.Network)
	for system, list := range map[string][]string{policy.Pip: b.env.Pip, policy.Npm: b.env.Npm} {
		specs, bad := parseSpecs(language.OfSystem(system), system, list)
		slices.Sort(specs)
		if bad == nil {
			bad = b.network.allowed(b.Ceiling, system, specs)
		}
		if err == nil {
			err = bad
		}
	}
	return err
}

// run builds the image.
func (b *containerBuild) run(ctx context.Context) (*catalog.Custom, *image.Image, error) {
	if err := b.check(); err != nil {
		return nil, nil, policy.Bad("image", b.env.File, "%v", err)
	}
	held, err := b.Catalog.LockCustom(ctx)
	if err != nil {
		return nil, nil, failed(ctx, err)
	}
	defer held.Unlock()
	o, im, err := b.buildLayers(ctx)
	if err != nil {
		b.Catalog.TidyCustom()
		return nil, nil, failed(ctx, err)
	}
	return o, im, nil
}

// buildLayers makes the image's missing layers, and the image of all layers.
func (b *containerBuild) buildLayers(ctx context.Context) (*catalog.Custom, *image.Image, error) {
	locks, err := readLockFile(b.lock)
	if err != nil {
		return nil, nil, err
	}
	if at := locks.at(b.arch); at != nil && at.Layer != nil && at.Layer.From == b.ref {
		b.was = *at.Layer
	}
	if b.base, err = b.baseImage(ctx); err != nil {
		return nil, nil, err
	}
	if b.base.ShippedBy != "" { // this host would read the base image's disk, and must trust who made it
		return nil, nil, policy.Bad("image", b.env.File, "from: %s was shipped by another host, as the tenant %s's: "+
			"only its own machine reads it; begin with an image that was pulled or imported here", b.env.From, b.base.ShippedBy)
	}
	b.now = lockedLayer{From: b.ref, Image: b.base.Digest, Steps: b.env.Run, Network: b.env.Network, Env: []string{}}
	if len(b.env.Files) > 0 {
		if b.now.Files, err = b.storeFiles(b.env); err != nil {
			return nil, nil, err
		}
		b.layers = append(b.layers, b.now.Files)
	}
	for name, value := range b.env.Env {
		b.now.Env = append(b.now.Env, name+"="+value)
	}
	slices.Sort(b.now.Env)
	config := b.base.Config
	config.Env = slices.Concat(config.Env, b.now.Env)
	if err := b.installDebian(ctx); err != nil {
		return nil, nil, err
	}
	if err := b.installLayers(ctx); err != nil {
		return nil, nil, err
	}
	if err := b.layerOfSteps(ctx, config); err != nil {
		return nil, nil, err
	}
	c, err := b.derive(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	images, err := b.Catalog.Images.OfContainer(c)
	if err != nil {
		return nil, nil, err
	}
	im, err := b.Catalog.Obtain(ctx, images, image.Linux, b.arch)
	if err != nil {
		return nil, nil, err
	}
	locks.set(lockedBuild{Arch: b.arch, Layer: &b.now, Digest: c.Digest})
	if err := locks.write(b.lock); err != nil {
		return nil, nil, err
	}
	o, err := b.finish(ctx, c)
	return o, im, err
}

// finish makes the name lead to the image.
func (b *containerBuild) finish(ctx context.Context, c *image.Container) (*catalog.Custom, error) {
	o := b.custom()
	if err := b.Catalog.Images.Containers().Name(ctx, c, image.Imported, o.Name); err != nil {
		return nil, err
	}
	for _, p := range b.now.Packages {
		o.Packages, o.System = append(o.Packages, p.Packages...), p.System
	}
	o.Layers, o.Debian, o.From = b.layers, b.now.Debian, b.ref
	o.Container, o.Digest, o.Bytes = c.Digest, c.Digest, c.Size()
	return o, b.publish(o, map[string]any{"image": c.Digest, "network": b.env.Network})
}

// baseImage returns the base image: the one in the lock file, else the one that the reference leads to. A lock file
// never selects an image that has only other names here.
func (b *containerBuild) baseImage(ctx context.Context) (*image.Container, error) {
	locked := b.was.Image
	if locked == "" || strings.HasPrefix(b.ref, "sha256:") {
		return b.Catalog.Container(ctx, b.ref, b.arch)
	}
	name, _, _ := strings.Cut(b.ref, "@")
	if tag := strings.LastIndexByte(name, ':'); tag > strings.LastIndexByte(name, '/') {
		name = name[:tag]
	}
	name += "@" + locked
	if _, err := b.Catalog.Images.Containers().Get(b.arch, name); errors.Is(err, fs.ErrNotExist) {
		c, err := b.Catalog.Images.Containers().Get(b.arch, locked)
		if err == nil && len(c.Names) == 0 { // its tag leads to a newer one
			return c, nil
		}
	}
	c, err := b.Catalog.Container(ctx, name, b.arch)
	if err != nil {
		return nil, fmt.Errorf("%w: the lock file names this digest of %s; without the file it is chosen anew", err, b.ref)
	}
	return c, nil
}

// derive puts the layers so far over the container's image.
func (b *containerBuild) derive(ctx context.Context, config oci.Config) (*image.Container, error) {
	disk, err := b.base.Disk()
	if err != nil {
		return nil, err
	}
	defer disk.Close()
	var layers []oci.Layer
	for _, digest := range b.layers {
		open := func() (io.ReadCloser, error) { return os.Open(b.Catalog.LayerFile(digest)) }
		layers = append(layers, oci.Layer{Digest: digest, Open: open})
	}
	im, err := oci.Derive(b.base.Digest, disk, string(b.arch), config, layers...)
	if err != nil {
		return nil, err
	}
	c, err := b.Catalog.Images.Containers().Add(ctx, b.arch, im, image.Imported, nil)
	if err != nil {
		return nil, fmt.Errorf("lay %d layers over %s: %w", len(b.layers), b.base.Digest[:19], err)
	}
	return c, nil
}
