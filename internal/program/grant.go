package program

import (
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Grant cuts a request to the caller's ceiling, and gives the code its secrets.
func (p *Program) Grant(caller run.Caller, req catalog.Request, requireJail []string) (asked policy.Request,
	granted run.Policy, err error) {
	asked, eff, denials, err := Resolve(req, caller.Ceiling, &p.Inputs)
	if err != nil {
		return asked, granted, err
	}
	if eff.RequireJail, err = policy.Jail(eff.RequireJail, requireJail); err != nil {
		return asked, granted, err
	}
	if eff.Image == "" {
		return asked, granted, ImageDenied(asked.Image, denials)
	}
	kernel, err := p.Kernel(image.Kernel(eff.Kernel))
	if err == nil {
		kernel, err = kernelFor(kernel, &p.Inputs)
	}
	if err != nil {
		return asked, granted, err
	}
	eff.Kernel = string(kernel)
	if err := p.Give(eff, req.Secrets); err != nil {
		return asked, granted, err
	}
	return asked, run.Policy{Effective: eff, Denials: denials, Ceiling: caller.CeilingPath()}, nil
}

// ImageDenied returns the error of a run whose image was denied.
func ImageDenied(name string, denials []policy.Denial) error {
	for _, d := range denials {
		if d.Field == "image" {
			return policy.Bad("image", name, "%s by %s (key %s)", d.Reason, d.Rule, d.Key)
		}
	}
	return policy.Bad("image", name, "is not granted")
}
