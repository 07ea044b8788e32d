package engine

import (
	"errors"
	"io"
	"io/fs"

	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/policy"
)

// Shipped images are containers' and custom ones: at the run's host (FleetRun.Image), and at
// the host that receives them.

// bringImage finds the image of a run's request if it is custom, or a container's in the store. Otherwise the other
// host gets the reference, and may pull it.
func (x *Execution) bringImage(remote *FleetRun, req catalog.Request) error {
	if o := req.Custom; o != nil && o.Language != nil {
		return policy.Bad("image", o.Name, "declares a language, which a fleet does not run: run it on this host")
	}
	if o := req.Custom; o != nil && o.Container == "" {
		b, err := o.Ship()
		if err != nil {
			return failure.Host("image", err)
		}
		remote.Image, remote.disk = &b, func() (io.ReadCloser, error) { return o.Archive(), nil }
		return nil
	}
	ref, err := req.Reference()
	if err != nil || ref == "" {
		return err
	}
	if req.Custom != nil { // its name may lead to another one after a build
		ref = req.Custom.Container
	}
	c, err := x.engine.Images.Containers().Get(x.Code.Arch, ref)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return failure.Host("image", err)
	}
	b, err := x.engine.Images.Containers().Ship(c)
	if err != nil {
		return failure.Host("image", err)
	}
	remote.Image, remote.disk = &b, func() (io.ReadCloser, error) { return c.Disk() }
	return nil
}

// Disk opens the disk of Image, or its archive.
func (r *FleetRun) Disk() (io.ReadCloser, error) { return r.disk() }
