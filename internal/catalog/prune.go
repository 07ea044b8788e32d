package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/disuse"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Prune removes containers' images without a name, and images that runs would build again. The name of a custom image
// leads to its latest build. Images of current runs and of paused sessions stay, and so does what the rule spares.
func (cat *Catalog) Prune(ctx context.Context, rule disuse.Rule) (freed disuse.Freed, err error) {
	held, err := cat.LockCustom(ctx) // a build's container has no name yet
	if err != nil {
		return freed, err
	}
	defer held.Unlock()
	list, err := cat.Images.List()
	if err != nil {
		return freed, err
	}
	_, containers, err := cat.InUse(list)
	if err != nil {
		return freed, err
	}
	for _, im := range list {
		if rule.Spares(im.Used()) && im.Container != "" {
			containers[im.Container] = true
		}
	}
	built, err := cat.customs()
	if err != nil { // its files would seem to belong to nobody
		return freed, failure.Host("images", err)
	}
	own := map[string]string{}
	for _, o := range built {
		own[string(o.Arch)+" "+o.Name] = o.Container
		if o.Container != "" {
			containers[o.Container] = true // also if a killed build made the name lead elsewhere
		}
	}
	leads := func(arch run.Arch, name, digest string) bool {
		return imagefile.CheckName(name) != nil || own[string(arch)+" "+name] == digest
	}
	gone, freed, err := cat.Images.Containers().Prune(ctx, leads, containers, rule)
	if !rule.DryRun {
		for _, digest := range gone {
			cat.Journal.Change(audit.ImageRemoved, map[string]any{"image": digest})
		}
	}
	if err != nil {
		return freed, err
	}
	if list, err = cat.Images.List(); err != nil {
		return freed, err
	}
	images, _, err := cat.InUse(list) // runs may have started meanwhile
	if err != nil {
		return freed, err
	}
	for _, im := range cat.Unused(list, images) {
		if rule.Spares(im.Used()) || slices.Contains(gone, im.Container) { // counted with its container
			continue
		}
		size := im.Size()
		if !rule.DryRun {
			if _, err := cat.Images.Remove(im.Digest); err != nil {
				return freed, err
			}
			cat.Journal.Change(audit.ImageRemoved, map[string]any{"image": im.Digest})
		}
		freed.Add(size)
	}
	return freed, nil
}

// ErrInUse means that a current run or a paused session uses an image.
var ErrInUse = errors.New("a run under way or a paused session has it")

// Remove removes the images that a name or the beginning of a digest means, and returns their digests or names. A name
// means a container's image, a custom image, or all images of a bundled name. It refuses what is in use.
func (cat *Catalog) Remove(ctx context.Context, name string, container *image.Container) (removed []string, err error) {
	list, err := cat.Images.List()
	if err != nil {
		return nil, err
	}
	images, containers, err := cat.InUse(list)
	if err != nil {
		return nil, err
	}
	custom := imagefile.CheckName(name) == nil
	var named []*image.Image
	for _, im := range list {
		if policy.IsImageName(name) && im.Name == name && im.Container == "" {
			named = append(named, im)
		}
	}
	for _, im := range named {
		if images[im.Digest] {
			return nil, fmt.Errorf("image %s (%.12s): %w", name, im.Digest, ErrInUse)
		}
	}
	if container != nil {
		if containers[container.Digest] {
			return nil, fmt.Errorf("image %s: %w", name, ErrInUse)
		}
		if err := cat.Images.Containers().Remove(ctx, container); err != nil {
			return nil, err
		}
		cat.Journal.Change(audit.ImageRemoved, map[string]any{"image": container.Digest})
		return []string{container.Digest}, nil
	}
	if o, _ := ReadCustom(cat.Home, name); custom && o != nil && containers[o.Container] {
		return nil, fmt.Errorf("image %s: %w", name, ErrInUse)
	}
	if own, err := cat.RemoveCustom(ctx, name); err != nil {
		return nil, err
	} else if own {
		return []string{name}, nil
	}
	if len(named) == 0 {
		im, err := cat.Images.Find(name)
		if err == nil && (images[im.Digest] || im.Container != "" && containers[im.Container]) {
			return nil, fmt.Errorf("image %.12s: %w", im.Digest, ErrInUse)
		}
		digest, err := cat.Images.Remove(name) // also one that can't be read
		if err != nil {
			return nil, policy.Bad("image", name, "%s", err)
		}
		cat.Journal.Change(audit.ImageRemoved, map[string]any{"image": digest})
		return []string{digest}, nil
	}
	for _, im := range named {
		if _, err := cat.Images.Remove(im.Digest); err != nil {
			return removed, err
		}
		cat.Journal.Change(audit.ImageRemoved, map[string]any{"image": im.Digest})
		removed = append(removed, im.Digest)
	}
	return removed, nil
}

// Unused returns the images that are not in use, and that no run would get.
func (cat *Catalog) Unused(list []*image.Image, used map[string]bool) (nobodys []*image.Image) {
	for _, im := range list {
		if !used[im.Digest] && !cat.current(im) {
			nobodys = append(nobodys, im)
		}
	}
	return nobodys
}

// current reports whether runs of an image's kind get this image.
func (cat *Catalog) current(im *image.Image) bool {
	of, err := cat.Images.For(im)
	if err != nil {
		return false
	}
	now, err := of.Digest(im.Kernel, im.Arch)
	return err == nil && now == im.Digest
}

// InUse returns the digests of the images of current runs, in any process, and of paused sessions. It includes the
// containers' images that they are made of. Nobody knows the image of a run that has no machine yet: so every image
// obtained since it began counts as in use.
func (cat *Catalog) InUse(list []*image.Image) (images, containers map[string]bool, err error) {
	images, containers = map[string]bool{}, map[string]bool{}
	var starting time.Time // when the first run began that has no machine yet
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
		switch {
		case rec.Machine != nil:
			images[rec.Machine.ImageDigest] = true
		case rec.Session != "" && rec.Session != rec.ID: // a step: its session's record has the machine
		case starting.IsZero() || rec.Created.Before(starting):
			starting = rec.Created
		}
	}
	paused := paused.Open(cat.Home)
	if ids, err = paused.IDs(); err != nil {
		return nil, nil, failure.Host("sessions", err)
	}
	for _, id := range ids {
		p, err := machine.ReadPause(paused.Folder(id))
		if errors.Is(err, fs.ErrNotExist) { // it has not been paused yet, or is being removed
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
		if !starting.IsZero() && !im.Used().Before(starting) {
			images[im.Digest] = true
		}
		if images[im.Digest] && im.Container != "" {
			containers[im.Container] = true
		}
	}
	return images, containers, nil
}
