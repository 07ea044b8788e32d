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

// Container images and custom images of a submitter. The task describes the image. Its disk, or the archive of a custom
// image's files, is in the object store, compressed, under its own SHA-256. A worker fetches it once for the tenant, if
// its ceiling allows the image.

const (
	imagePrefix = "image-"
	maxImage    = 1 << 30 // bytes of a disk, compressed
	maxWindow   = 8 << 20 // bytes of the decompression window
	imageTries  = 3       // attempts to fetch an image while NATS is unavailable at times
)

// putImage uploads the disk to the object store, if a worker accepts images.
func (s *submission) putImage(ctx context.Context) error {
	workers, now, err := s.c.lately(ctx)
	takes := func(w WorkerInfo) bool { return slices.Contains(w.Images, policy.ShippedImages) }
	if err == nil && !now && !slices.ContainsFunc(workers, takes) { // another may have joined since
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
	if there() { // without waiting for other uploads
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

// openImage opens a disk that a tenant has uploaded. Its content is not verified yet.
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

// image stores the job's image in the runtime, if the ceiling allows that, and returns the image and ceiling for the
// run. Otherwise this host may pull a container reference itself; a custom image's name would mean another image here.
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

// imageOf returns the image to run for a job with a shipped image. If the ceiling accepts it, taken is true and wide
// also allows that image.
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

// shippedError adds to a refusal how the image was shipped.
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
