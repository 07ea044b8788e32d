package catalog

import (
	"context"
	"fmt"
	"io"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/policy"
)

// Shipped is a container's image without its disk, or a custom image without the archive of its files.
type Shipped = image.Shipped

// TakeShipped keeps an image from another host, unless it is here; runs name it by KeyFor(who). disk opens its disk,
// which must match the description. Images that nobody has used for a day are removed.
func (cat *Catalog) TakeShipped(ctx context.Context, who string, b Shipped,
	disk func(context.Context) (io.ReadCloser, error)) error {
	if arch := image.HostArch(); b.Arch != arch {
		return policy.Bad("image", b.Digest(), "was shipped here, and is for %.20q: this host has %s", b.Arch, arch)
	}
	if b.Custom != nil {
		if err := checkShipped(b.Custom); err != nil {
			return policy.Bad("image", b.Digest(), "was shipped here, and %v", err)
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
		_, containers, err := cat.InUse(list)
		return containers, err
	}
	came := false
	c, err := cat.Images.Containers().AddShipped(ctx, who, b, used, func(ctx context.Context) (io.ReadCloser, error) {
		came = true
		return disk(ctx)
	})
	if err != nil {
		return fmt.Errorf("shipped image %s: %w", b.Digest(), err)
	}
	if came {
		cat.Journal.Change(audit.ImageAdded, map[string]any{"image": c.Digest, "shipped": b.Digest(), "by": who})
	}
	return nil
}
