package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Prune removes the containers' images that no name leads to any more, and the images that runs would build anew,
// and says how many there were. The name of an image of the user's own leads to what was built last; those that a run
// under way or a paused session has stay.
func (cat *Catalog) Prune(ctx context.Context) (removed int, err error) {
	held, err := cat.LockCustom(ctx) // a build's container has no name yet
	if err != nil {
		return 0, err
	}
	defer held.Unlock()
	list, err := cat.Images.List()
	if err != nil {
		return 0, err
	}
	images, containers, err := cat.InUse(list)
	if err != nil {
		return 0, err
	}
	built, err := cat.customs()
	if err != nil { // what it has would be taken for nobody's
		return 0, failure.Host("images", err)
	}
	own := map[string]string{}
	for _, o := range built {
		own[string(o.Arch)+" "+o.Name] = o.Container
		if o.Container != "" {
			containers[o.Container] = true // also where a build that was killed has had the name lead elsewhere
		}
	}
	leads := func(arch run.Arch, name, digest string) bool {
		return imagefile.CheckName(name) != nil || own[string(arch)+" "+name] == digest
	}
	gone, err := cat.Images.Containers().Prune(ctx, leads, containers)
	for _, digest := range gone {
		cat.Journal.Change(audit.ImageRemoved, map[string]any{"image": digest})
	}
	removed = len(gone)
	if err != nil {
		return removed, err
	}
	if list, err = cat.Images.List(); err != nil {
		return removed, err
	}
	for _, im := range cat.Unused(list, images) {
		if _, err := cat.Images.Remove(im.Digest); err != nil {
			return removed, err
		}
		cat.Journal.Change(audit.ImageRemoved, map[string]any{"image": im.Digest})
		removed++
	}
	return removed, nil
}

// Unused returns those of the images that neither are in use nor would be had by a run.
func (cat *Catalog) Unused(list []*image.Image, used map[string]bool) (nobodys []*image.Image) {
	for _, im := range list {
		if !used[im.Digest] && !cat.current(im) {
			nobodys = append(nobodys, im)
		}
	}
	return nobodys
}

// current reports whether an image is the one that a run of its kind gets.
func (cat *Catalog) current(im *image.Image) bool {
	of, err := cat.Images.For(im)
	if err != nil {
		return false
	}
	now, err := of.Digest(im.Kernel, im.Arch)
	return err == nil && now == im.Digest
}

// InUse returns the digests of the images that runs under way have, of this process or another, and paused sessions,
// and of the containers' images that these are of.
func (cat *Catalog) InUse(list []*image.Image) (images, containers map[string]bool, err error) {
	images, containers = map[string]bool{}, map[string]bool{}
	ids, err := cat.Records.IDs()
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		if !cat.Records.Held(id) {
			continue
		}
		rec, err := cat.Records.Get(id)
		if errors.Is(err, record.ErrNotFound) { // it is being made
			continue
		}
		if err != nil {
			return nil, nil, failure.Host("images", err)
		}
		if rec.Machine != nil {
			images[rec.Machine.ImageDigest] = true
		}
	}
	paused := paused.Open(cat.Home)
	if ids, err = paused.IDs(); err != nil {
		return nil, nil, failure.Host("sessions", err)
	}
	for _, id := range ids {
		p, err := machine.ReadPause(paused.Folder(id))
		if errors.Is(err, fs.ErrNotExist) { // it has not been paused yet, or is going
			continue
		}
		if err != nil {
			return nil, nil,
				failure.Host("sessions",
					fmt.Errorf("which image the paused session %s has can't be read: %w (`unitask session rm %[1]s` ends it)", id,
						err))
		}
		images[p.ImageDigest] = true
	}
	for _, im := range list {
		if images[im.Digest] && im.Container != "" {
			containers[im.Container] = true
		}
	}
	return images, containers, nil
}
