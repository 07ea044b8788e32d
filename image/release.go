package image

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/fetch"
)

// Bounds on a download.
const (
	maxRelease     = 256 << 20 // a Nanos release has some ten megabytes
	releaseTimeout = 10 * time.Minute
)

var releaseVersion = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.-]{0,40}$`)

// VendorNanos fetches the official Nanos release of a version; "" means the version of vendor.lock. It compares the
// release's own MD5, and its SHA-256 if vendor.lock has one. Otherwise it records the first SHA-256, and requires it in
// every later fetch.
func (ps Parts) VendorNanos(ctx context.Context, arch Arch, version string) error {
	locked, err := Lock(arch)
	if err != nil {
		return err
	}
	for _, p := range locked {
		if p.From == "release" && p.Name == nanosPart {
			return ps.vendorRelease(ctx, p, version)
		}
	}
	return fmt.Errorf("vendor.lock names no Nanos release for %s", arch)
}

func (ps Parts) vendorRelease(ctx context.Context, p LockedPart, version string) error {
	if version != "" && version != p.Version {
		if !releaseVersion.MatchString(version) {
			return fmt.Errorf("version %.60q of Nanos: use one like %s", version, p.Version)
		}
		p.Version, p.Digest = version, ""
	}
	unlock, err := ps.lockVendor(ctx, p.Arch)
	if err != nil {
		return err
	}
	defer unlock()
	if err := ps.mayFetch("the Nanos release "+p.Version,
		"`unitask image vendor --nanos --offline=false --arch "+string(p.Arch)+"`"); err != nil {
		return err
	}
	have, haveErr := ps.Get(p.Arch, nanosPart)
	err = ps.addPart(p.Arch, nanosPart, func(dir string) (Part, error) {
		part := Part{Name: nanosPart, Version: p.Version, Package: p.at(p.URL), From: p.From, License: p.License}
		archive := filepath.Join(dir, ".archive")
		defer os.Remove(archive)
		ps.images.logf("fetching %s", part.Package)
		sums, err := download(ctx, part.Package, archive, maxRelease)
		if err != nil {
			return part, err
		}
		md5sum, err := fetchText(ctx, p.at(p.MD5URL))
		if err != nil {
			return part, err
		}
		if want := strings.ToLower(strings.Fields(md5sum + " -")[0]); want != sums.md5 {
			return part, fmt.Errorf("%s has MD5 %s, its release says %.40q", part.Package, sums.md5, want)
		}
		part.Digest = "sha256-" + sums.sha256
		switch {
		case p.Digest != "" && p.Digest != part.Digest:
			return part, fmt.Errorf("%s has digest %s, vendor.lock says %s", part.Package, part.Digest, p.Digest)
		case p.Digest == "" && haveErr == nil && have.From == p.From && have.Version == p.Version &&
			have.Digest != part.Digest:
			return part, fmt.Errorf("%s has digest %s, and had %s when it was first seen on %s", part.Package, part.Digest,
				have.Digest, have.Vendored.Format(time.DateOnly))
		case p.Digest == "":
			part.FirstSeen = true
			ps.images.logf("vendor.lock has no digest for Nanos %s yet; recorded as first seen: %s", p.Version, part.Digest)
		}
		if err := unpackTgz(archive, dir, nanosFiles); err != nil {
			return part, err
		}
		return part, checkNanos(p.Arch, dir)
	})
	if err != nil {
		return fmt.Errorf("vendor Nanos %s for %s: %w; --from takes a release that was brought by hand", p.Version, p.Arch,
			err)
	}
	return nil
}

// at fills the version into an address.
func (p LockedPart) at(url string) string { return strings.ReplaceAll(url, "VERSION", p.Version) }

// nanosFiles selects the needed files of a release.
func nanosFiles(name string) (string, bool) {
	switch name {
	case nanosKernel, nanosBoot, efiLoader(AMD64), efiLoader(ARM64), nanosKlibs + "/" + sandboxKlib,
		nanosKlibs + "/" + straceKlib:
		return name, true
	}
	return "", false
}

// maxFetchError bounds the bytes of an error that quotes an address.
const maxFetchError = 400

type checksums struct{ md5, sha256 string }

// get opens an address; the caller closes the body.
func get(ctx context.Context, url string) (io.ReadCloser, context.CancelFunc, error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	transport := fetch.Transport(nil, req.URL.Host)
	transport.DisableKeepAlives = true
	client := &http.Client{Transport: fetch.Patient(transport)}
	res, err := client.Do(req)
	if err != nil {
		cancel()
		return nil, nil, bounded.SaidError(err, maxFetchError)
	}
	if res.StatusCode != http.StatusOK {
		res.Body.Close()
		cancel()
		return nil, nil, fmt.Errorf("get %s: %s", bounded.Said(url, maxFetchError), bounded.Text(res.Status, 100))
	}
	return res.Body, cancel, nil
}

func download(ctx context.Context, url, to string, most int64) (checksums, error) {
	body, cancel, err := get(ctx, url)
	if err != nil {
		return checksums{}, err
	}
	defer cancel()
	defer body.Close()
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return checksums{}, err
	}
	m, h := md5.New(), sha256.New()
	n, err := io.Copy(io.MultiWriter(f, m, h), io.LimitReader(body, most+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return checksums{}, fmt.Errorf("get %s: %w", url, err)
	}
	if n > most {
		return checksums{}, fmt.Errorf("get %s: more than %d bytes", url, most)
	}
	return checksums{hex.EncodeToString(m.Sum(nil)), hex.EncodeToString(h.Sum(nil))}, nil
}

// maxText bounds a checksum file.
const maxText = 4 << 10

func fetchText(ctx context.Context, url string) (string, error) {
	body, cancel, err := get(ctx, url)
	if err != nil {
		return "", err
	}
	defer cancel()
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxText))
	if err != nil {
		return "", fmt.Errorf("get %s: %w", url, err)
	}
	return string(text), nil
}
