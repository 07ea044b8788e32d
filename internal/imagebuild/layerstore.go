package imagebuild

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/unitask/unitask/image/oci"
	"github.com/unitask/unitask/internal/imagefile"
)

// This file stores the layers of custom images, in the home's layers/ by their digests.

// hasLayer reports whether a layer is stored undamaged. A damaged layer is built again, and replaced.
func (b *Builder) hasLayer(digest string) bool {
	if raw, err := hex.DecodeString(strings.TrimPrefix(digest, "sha256:")); err != nil || len(raw) != sha256.Size {
		return false
	}
	return isLayer(b.Catalog.LayerFile(digest), digest, maxLayer)
}

// isLayer reports whether a file is the layer with a digest, of at most that many bytes.
func isLayer(file, digest string, most int64) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		return false
	}
	defer z.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(z, most+1))
	return err == nil && n <= most && "sha256:"+hex.EncodeToString(sum.Sum(nil)) == digest
}

// storeLayer stores the archive that make writes; make returns its digest.
func (b *Builder) storeLayer(make func(io.Writer) (string, error)) (digest string, err error) {
	if err := os.MkdirAll(b.Catalog.LayersDir(), 0o700); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(b.Catalog.LayersDir(), ".new-")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	z, err := zstd.NewWriter(f, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return "", err
	}
	digest, err = make(z)
	if err = errors.Join(err, z.Close()); err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	return digest, os.Rename(f.Name(), b.Catalog.LayerFile(digest))
}

// storeFiles stores a description's files as a layer.
func (b *Builder) storeFiles(env *imagefile.Environment) (string, error) {
	return b.storeLayer(func(to io.Writer) (string, error) {
		r, w := io.Pipe()
		go func() {
			files := tar.NewWriter(w)
			err := env.WriteTo(files)
			if err == nil {
				err = files.Close()
			}
			w.CloseWithError(err)
		}()
		sum := sha256.New()
		err := normalizeTimes(io.MultiWriter(to, sum), r)
		r.CloseWithError(errors.New("the layer takes no more")) // this ends the goroutine
		return "sha256:" + hex.EncodeToString(sum.Sum(nil)), err
	})
}

// normalizeTimes copies an archive, and gives its files the same time and owner.
func normalizeTimes(to io.Writer, from io.Reader) error {
	w := tar.NewWriter(to)
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return w.Close()
		}
		if err != nil {
			return err
		}
		now := &tar.Header{Typeflag: h.Typeflag, Name: h.Name, Mode: h.Mode, Size: h.Size, ModTime: oci.LayerTime}
		if err := w.WriteHeader(now); err != nil {
			return err
		}
		if _, err := io.Copy(w, r); err != nil {
			return err
		}
	}
}
