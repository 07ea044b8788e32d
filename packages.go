package unitask

import (
	"context"
	"slices"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/policy"
)

// install puts the packages that the run is granted beside what it brings.
func (x *execution) install(ctx context.Context) error {
	if len(x.granted.Packages) == 0 || x.code.Installed {
		return nil
	}
	l := x.code.Language
	place := image.At(l.Packages.Place, x.image.Runtime)
	if own := x.code.Image.Payload.Own; own != nil && slices.Contains(x.code.Image.Payload.Folders, place) {
		return policy.Bad("packages", "with the image "+x.code.Image.Payload.Name,
			"which has packages of its own: add these to its file, and build it")
	}
	if x.code.Inputs.At(place) {
		return policy.Bad("packages", "with a folder at "+place, "would lie there: give the folder another path inside")
	}
	specs := []string{}
	for _, p := range x.granted.Packages {
		specs = append(specs, p.Spec())
	}
	var lock *packages.Lock
	mount := func(store *packages.Store, kept *packages.Lock) (err error) {
		lock = kept
		x.code.Held, err = install.Mount(store, kept, place, &x.code.Inputs)
		return err
	}
	if err := x.engine.installer.Ensure(ctx, x.installTarget(), specs, nil, mount); err != nil {
		return err
	}
	for _, p := range lock.Packages {
		got := InstalledPackage{Name: lock.System + ":" + p.Name, Version: p.Version, Digest: p.Digest}
		x.res.Packages = append(x.res.Packages, got)
	}
	x.code.Installed = true
	if no := program.RoomFor(&x.code.Inputs, x.image.Kernel, x.granted.MemoryMB); no != nil {
		return no
	}
	return nil
}

// installTarget says what packages are installed for: in the caller's name, with as much of the network as it may have.
func (x *execution) installTarget() install.Target {
	caller := Caller{Name: x.rec.Owner, Via: x.rec.Via, Ceiling: x.live.Ceiling.Reaching()}
	return install.Target{Language: x.code.Language, Arch: x.code.Arch, Runtime: x.image.Runtime,
		Jail: x.granted.RequireJail, Caller: caller, Tell: x.streams.Events}
}
