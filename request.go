package unitask

import (
	"fmt"

	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/policy"
)

// Resolve returns what a request would be granted under a ceiling (nil is none), and what would be denied. It looks at
// the files and folders that the request names.
func Resolve(req Request, ceiling *policy.Ceiling) (policy.Effective, []policy.Denial, error) {
	return grantedOf(catalog.Request{Request: req}, ceiling)
}

func grantedOf(req catalog.Request, ceiling *policy.Ceiling) (policy.Effective, []policy.Denial, error) {
	var in hostfiles.Set
	defer in.Close()
	ref, err := req.Reference()
	if err == nil && req.Image != "" && ref == "" && req.Custom == nil && !policy.IsImageName(req.Image) {
		err = policy.Bad("image", fmt.Sprintf("%.80q", req.Image), "is no name of an image, which has small letters, digits, _ and -")
	}
	if err != nil { // no run has it
		return policy.Effective{}, nil, err
	}
	_, eff, denials, err := program.Resolve(req, ceiling, &in)
	return eff, denials, err
}
