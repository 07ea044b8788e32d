package engine

import (
	"cmp"
	"context"
	"slices"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// install adds the granted packages to the run's inputs.
func (x *Execution) install(ctx context.Context) error {
	if len(x.Granted.Packages) == 0 || x.Code.Installed {
		return nil
	}
	l := x.Code.Language
	place := image.At(l.Packages.Place, x.Image.Runtime)
	if own := x.Code.Image.Payload.Custom; own != nil && slices.Contains(x.Code.Image.Payload.Folders, place) {
		return policy.Bad("packages", "with the image "+x.Code.Image.Payload.Name,
			"which has packages of its own: add these to its file, and build it")
	}
	if x.Code.Inputs.At(place) {
		return policy.Bad("packages", "with a folder at "+place, "would lie there: give the folder another path inside")
	}
	specs := []string{}
	for _, p := range x.Granted.Packages {
		specs = append(specs, p.Spec())
	}
	var lock *packages.Lock
	mount := func(store *packages.Store, kept *packages.Lock) (err error) {
		lock = kept
		x.Code.Held, err = install.Mount(store, kept, place, &x.Code.Inputs)
		return err
	}
	if err := x.engine.Installer.Ensure(ctx, x.installTarget(), specs, nil, mount); err != nil {
		return err
	}
	for _, p := range lock.Packages {
		got := run.InstalledPackage{Name: lock.System + ":" + p.Name, Version: p.Version, Digest: p.Digest}
		x.Res.Packages = append(x.Res.Packages, got)
	}
	x.Code.Installed = true
	if no := program.RoomFor(&x.Code.Inputs, x.Image.Kernel, x.Granted.MemoryMB); no != nil {
		return no
	}
	return nil
}

// installTarget returns the target of an installation. Its ceiling contains the caller's limits of the network.
func (x *Execution) installTarget() install.Target {
	caller := run.Caller{Name: x.Rec.Owner, Via: x.Rec.Via, Ceiling: x.Live.Ceiling.Reaching()}
	return install.Target{Language: x.Code.Language, Image: cmp.Or(x.Image.Base, x.Image.Name), Arch: x.Code.Arch,
		Runtime: x.Image.Runtime, Jail: x.Granted.RequireJail, Caller: caller,
		Tell: x.streams.Events}
}
