package doctor

import (
	"context"

	"github.com/unitask/unitask/image"
)

// CheckClone returns a report with the check of clones only.
func CheckClone(ctx context.Context, d *Doctor, im *image.Image) *Report {
	r := &Report{OK: true}
	d.checkClone(ctx, r, im)
	return r
}
