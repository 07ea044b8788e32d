package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/policy"
)

// Container images and custom images that a submitter has. The task says what a machine gets of one; its disk, or the
// archive of a custom one's files, is in the object store, compressed, under its own SHA-256. A worker takes it once,
// for that tenant, if its ceiling allows it.

const (
	imagePrefix = "image-"
	maxImage    = 1 << 30 // bytes of a disk, compressed
	maxWindow   = 8 << 20 // bytes that unpacking it may look back
	imageTries  = 3       // to get one from a NATS that is away in between
)

// putImage puts the disk where the workers get it, if one of them takes images.
func (s *submission) putImage(ctx context.Context) error {
	workers, now, err := s.c.lately(ctx)
	takes := func(w WorkerInfo) bool { return slices.Contains(w.Images, policy.ShippedImages) }
	if err == nil && !now && !slices.ContainsFunc(workers, takes) { // another may have come since
		workers, err = s.c.Workers(ctx)
	}
	if err != nil || !slices.ContainsFunc(workers, takes) {
		return err
	}
	name := imagePrefix + s.run.Image.Disk
	there := func() bool {
		info, err := s.store.info(ctx, name)
		return err == nil && time.Since(info.ModTime) < keep/4
	}
	if there() { // which waits for no other image
		return nil
	}
	select {
	case s.c.images <- struct{}{}:
		defer func() { <-s.c.images }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if there() { // several runs may have the same
		return nil
	}
	disk, err := s.run.Disk()
	if err != nil {
		return err
	}
	defer disk.Close()
	r, w := io.Pipe()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		z, err := zstd.NewWriter(&bounded.Writer{To: w, Left: maxImage,
			Err: fmt.Errorf(
				"the image has more than %d bytes, compressed: have the workers pull it, whose ceilings then list its reference",
				int64(maxImage))}, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(maxWindow))
		if err == nil {
			_, err = io.Copy(z, inTime{ctx, disk})
			err = errors.Join(err, z.Close())
		}
		w.CloseWithError(err)
	}()
	err = s.store.send(ctx, name, r)
	r.CloseWithError(errors.New("NATS takes no more")) // which ends the goroutine
	<-packed
	if err != nil {
		return fmt.Errorf("store the image in the fleet: %w", err)
	}
	return nil
}

// openImage opens a disk that a tenant has put there. What comes is not yet known to be what it should be.
func (s tenantStore) openImage(ctx context.Context, b catalog.Shipped) (io.ReadCloser, error) {
	if !digestForm.MatchString(b.Disk) {
		return nil, fmt.Errorf("image %.64q: %w", b.Disk, errMalformed)
	}
	name := imagePrefix + b.Disk
	info, err := s.info(ctx, name)
	if err == nil && (info.Opts != nil && info.Opts.Link != nil || info.Size > maxImage) {
		err = errMalformed
	}
	var from io.ReadCloser
	if err == nil {
		from, err = s.fetch(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("read the image's disk %s from the fleet: %w", b.Disk, err)
	}
	z, err := zstd.NewReader(io.LimitReader(from, maxImage), zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		from.Close()
		return nil, err
	}
	return unpacking{inTime{ctx, z}, z, from}, nil
}

type unpacking struct {
	io.Reader
	z    *zstd.Decoder
	from io.Closer
}

func (u unpacking) Close() error {
	err := u.from.Close()
	u.z.Close()
	return err
}

// image has the runtime keep the image that a job brings, where the ceiling allows that; it returns what the run asks
// for then, and its ceiling. Where it does not, a reference may lead to what this host pulls itself; a custom image's
// name here is somebody else's image.
func (h onHost) image(ctx context.Context, job Job, ceiling *policy.Ceiling) (string, *policy.Ceiling, error) {
	key, wide, taken := imageOf(job, ceiling)
	if !taken {
		return key, ceiling, nil
	}
	for try := 1; ; try++ {
		err := h.rt.Catalog().TakeShipped(ctx, job.Tenant, *job.Image, job.Disk)
		if err == nil || try == imageTries || !away(err) || ctx.Err() != nil {
			return key, wide, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
		}
	}
}

// imageOf returns the image that a job that brings one asks for under a ceiling, which is wider where that image is
// taken.
func imageOf(job Job, ceiling *policy.Ceiling) (name string, wide *policy.Ceiling, taken bool) {
	key := job.Image.KeyFor(job.Tenant)
	if wide = ceiling.BringingImage(job.Image.Digest(), key); wide.Image(key) {
		return key, wide, true
	}
	if _, reference, _ := policy.Reference(job.Request.Image); reference && job.Image.Custom == nil {
		return job.Request.Image, ceiling, false
	}
	return key, ceiling, false
}

// shippedError tells who is refused an image how it was shipped.
func shippedError(job Job, err error) error {
	var field *policy.FieldError
	if job.Image == nil || !errors.As(err, &field) || field.Field != "image" {
		return err
	}
	more := *field
	more.Value = job.Request.Image
	more.Reason += fmt.Sprintf("; it was shipped as %s: the worker's ceiling allows it by that digest, "+
		"or by %q for all shipped images", job.Image.Digest(), policy.ShippedImages)
	return &more
}
