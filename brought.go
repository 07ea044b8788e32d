package unitask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Images that come along from another host, which has them, containers' and the user's own: at the host of the run
// (FleetRun.Image), and at the one that takes it.

// BroughtImage is a container's image, but for its disk, or an own one, but for the archive of its files.
type BroughtImage = image.Brought

// bringImage finds the image of a run's request, if it is the user's own, or a container's and in the store. Where it
// is not, the other host gets the reference, and may pull it.
func (x *execution) bringImage(remote *FleetRun, req imageRequest) error {
	if o := req.own; o != nil && o.Container == "" {
		b, err := o.bringOwn()
		if err != nil {
			return run.AsHostError("image", err)
		}
		remote.Image, remote.disk = &b, func() (io.ReadCloser, error) { return o.archive(), nil }
		return nil
	}
	ref, err := req.container()
	if err != nil || ref == "" {
		return err
	}
	if req.own != nil { // and not what its name leads to, which a build under way may have changed
		ref = req.own.Container
	}
	c, err := x.rt.images.Container(x.code.arch, ref)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return run.AsHostError("image", err)
	}
	b, err := x.rt.images.Bring(c)
	if err != nil {
		return run.AsHostError("image", err)
	}
	remote.Image, remote.disk = &b, func() (io.ReadCloser, error) { return c.Disk() }
	return nil
}

// Disk opens the disk of Image, or its archive.
func (r *FleetRun) Disk() (io.ReadCloser, error) { return r.disk() }

// BringImage keeps an image that somebody brings, unless it is there: as KeyFor(who) runs can name it. disk opens its
// disk, which is held to what was said of it. What nobody has used for a day is removed.
func (cat *Catalog) BringImage(ctx context.Context, who string, b BroughtImage, disk func(context.Context) (io.ReadCloser, error)) error {
	if arch := image.HostArch(); b.Arch != arch {
		return policy.Bad("image", b.Digest(), "came along, and is for %.20q: this host has %s", b.Arch, arch)
	}
	if b.Own != nil {
		if err := checkOwn(b.Own); err != nil {
			return policy.Bad("image", b.Digest(), "%s", "came along, and "+err.Error())
		}
	}
	leave, err := cat.Enter()
	if err != nil {
		return err
	}
	defer leave()
	used := func() (map[string]bool, error) {
		list, err := cat.Images.List()
		if err != nil {
			return nil, err
		}
		_, containers, err := cat.inUse(list)
		return containers, err
	}
	came := false
	c, err := cat.Images.AddBrought(ctx, who, b, used, func(ctx context.Context) (io.ReadCloser, error) {
		came = true
		return disk(ctx)
	})
	if err != nil {
		return fmt.Errorf("image %s came along: %w", b.Digest(), err)
	}
	if came {
		cat.Journal.Change(audit.ImageAdded, map[string]any{"image": c.Digest, "brought": b.Digest(), "by": who})
	}
	return nil
}
