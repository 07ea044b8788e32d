package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/unitask/unitask/image/erofs"
	"github.com/unitask/unitask/internal/atomicfile"
)

// builderVersion is part of every image's digest: raise it when the same parts give another image.
const builderVersion = 3

const imageFile = "image.json"

// Digest returns the digest of the image that the store's current parts give. It is cheap: the digests of parts are
// recorded.
func (s *Store) Digest(kernel Kernel, arch Arch) (string, error) {
	s, err := s.versioned(arch)
	if err != nil {
		return "", err
	}
	guest, err := s.Parts().guestDigest(arch)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "unitask image %d %s %s %s\nguest %s\n", builderVersion, s.payload.Name, kernel, arch, guest)
	fmt.Fprintf(h, "links %q folders %q compiled %v\n", s.payload.Links, s.payload.Folders, s.Parts().compiles(arch))
	if c := s.container; c != nil {
		fmt.Fprintf(h, "container %s user %d:%d %d\n", c.Digest, c.Owner.UID, c.Owner.GID, c.Owner.Groups)
	}
	if own := s.payload.Custom; own != nil {
		fmt.Fprintf(h, "own %s %q\n", own.Digest, own.Files)
	}
	if kernel == Nanos {
		fmt.Fprintf(h, "arguments %q\n", s.payload.NanosArgs)
	}
	if s.tracing && kernel == Nanos {
		fmt.Fprintln(h, "tracing")
	}
	for _, name := range s.partsOf(kernel, arch) {
		p, err := s.Parts().Get(arch, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %s\n", name, p.Digest)
		if name == goPart { // parts that were fetched earlier lack it
			fmt.Fprintf(h, "go run %s\n", goRunID(p))
		}
		if name != kernelPart {
			continue
		}
		if pci, err := findModule(p.path("modules"), pciModule); err != nil {
			return "", err
		} else if pci != nil { // parts that were fetched earlier lack it
			fmt.Fprintln(h, pciModule)
		}
		if packed, err := s.packs(p); err != nil {
			return "", err
		} else if packed && kernel == Linux {
			fmt.Fprintf(h, "packed %d %q\n", erofs.Version, s.payload.Packed)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// partsOf names the parts of an image, without the guest's own programs.
func (s *Store) partsOf(kernel Kernel, arch Arch) []string {
	if s.payload.Container {
		return []string{kernelPart}
	}
	parts := append(slices.Concat(s.payload.parts(arch), s.payload.BuildParts), certificatesPart)
	if kernel == Nanos {
		return append(parts, nanosPart)
	}
	return append(parts, "busybox", kernelPart)
}

// Lookup returns the image of the store's current parts if it is built and complete. The error wraps fs.ErrNotExist if
// it was never built, ErrNotVendored if a part is missing, and ErrDamaged if a file was changed.
func (s *Store) Lookup(kernel Kernel, arch Arch) (*Image, error) {
	digest, err := s.Digest(kernel, arch)
	if err != nil {
		return nil, err
	}
	return s.load(digest)
}

// Ensure returns the image of the store's current parts, and builds it if it is missing.
func (s *Store) Ensure(ctx context.Context, kernel Kernel, arch Arch) (*Image, error) {
	im, err := s.Lookup(kernel, arch)
	if !errors.Is(err, fs.ErrNotExist) {
		return im, err
	}
	return s.Build(ctx, kernel, arch)
}

// Runs reports whether there can be an image with that kernel.
func (s *Store) Runs(kernel Kernel) bool { return kernel != Nanos || s.payload.Nanos }

// Obtain is like Ensure, but first fetches missing parts of the image. It fetches a Nanos kernel only on an explicit
// command. Every user of an image calls Obtain.
func (s *Store) Obtain(ctx context.Context, kernel Kernel, arch Arch) (*Image, error) {
	im, err := ensureUsed(ctx, s, kernel, arch)
	if !errors.Is(err, ErrNotVendored) {
		return im, err
	}
	if kernel == Nanos {
		if _, err := s.Parts().Get(arch, nanosPart); err != nil {
			return nil, err
		}
	}
	if err := s.Parts().Vendor(ctx, arch); err != nil {
		return nil, err
	}
	return ensureUsed(ctx, s, kernel, arch)
}

// ensureUsed is like Ensure, and notes that the image is used now. If it is removed meanwhile, it is built again.
func ensureUsed(ctx context.Context, s *Store, kernel Kernel, arch Arch) (*Image, error) {
	for {
		im, err := s.Ensure(ctx, kernel, arch)
		if err != nil || im.touch() {
			return im, err
		}
	}
}

// Build builds the image, or returns it if it exists.
func (s *Store) Build(ctx context.Context, kernel Kernel, arch Arch) (*Image, error) {
	if !s.Runs(kernel) {
		return nil, fmt.Errorf("build the %s image: it needs the linux kernel, not %s", s.payload.Name, kernel)
	}
	unlockVendor, err := s.Parts().lockVendor(ctx, arch)
	if err != nil {
		return nil, err
	}
	if err = s.Parts().ensureGuest(ctx, arch); err == nil {
		err = s.Parts().ensureGoRun(ctx, arch)
	}
	unlockVendor()
	if err != nil {
		return nil, err
	}
	if s, err = s.versioned(arch); err != nil {
		return nil, err
	}
	digest, err := s.Digest(kernel, arch)
	if err != nil {
		return nil, err
	}
	unlock, err := s.lock(ctx, "image-"+digest)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if im, err := s.load(digest); !errors.Is(err, fs.ErrNotExist) {
		return im, err
	}
	if err := os.MkdirAll(s.imagesDir(), 0o700); err != nil {
		return nil, err
	}
	tmp, done, err := newFolder(s.imagesDir())
	if err != nil {
		return nil, err
	}
	defer done()
	if err := s.buildInto(ctx, tmp, kernel, arch, digest); err != nil {
		return nil, err
	}
	final := filepath.Join(s.imagesDir(), digest)
	if err := os.RemoveAll(final); err != nil { // an incomplete image, without its description
		return nil, err
	}
	if err := os.Rename(tmp, final); err != nil {
		return nil, err
	}
	return s.load(digest)
}

// buildInto builds the image in a folder, including its description.
func (s *Store) buildInto(ctx context.Context, tmp string, kernel Kernel, arch Arch, digest string) error {
	what := s.kind() + " for " + string(kernel)
	if s.tracing && kernel == Nanos {
		what += " tracing"
	}
	s.logf("building the %s on %s", what, arch)
	start := time.Now()
	im := &Image{Digest: digest, Name: s.payload.Name, Kernel: kernel, Arch: arch, dir: tmp}
	if s.payload.Custom != nil {
		im.Base, im.Container = s.payload.Custom.Base, s.payload.Custom.Container
	}
	if s.container != nil {
		im.Container = s.container.Digest
		im.Runtime = s.container.Digest[:min(19, len(s.container.Digest))]
	}
	var parts []Part
	var err error
	switch kernel {
	case Linux:
		parts, im.Version, err = s.buildLinux(ctx, arch, tmp)
	case Nanos:
		parts, im.Version, err = s.buildNanos(ctx, arch, digest, tmp)
	default:
		err = fmt.Errorf("unknown kernel %q: use linux or nanos", kernel)
	}
	if err != nil {
		return fmt.Errorf("build %s image for %s: %w", kernel, arch, err)
	}
	for _, p := range parts {
		im.Parts = append(im.Parts, p.Name+" "+p.Version)
		if len(s.payload.Parts) > 0 && p.Name == s.payload.Parts[0] {
			im.Runtime = p.Version
		}
	}
	if err := im.describeFiles(); err != nil {
		return err
	}
	s.share(im)
	im.Built, im.BuildMs = time.Now().UTC().Truncate(time.Second), time.Since(start).Milliseconds()
	return im.save()
}

// imageMode is the mode of an image's files. The folders above them keep other users out.
const imageMode = 0o444

// describeFiles fills Files from the image's folder.
func (im *Image) describeFiles() error {
	entries, err := os.ReadDir(im.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		// QEMU reads the file as another user, whatever the umask was.
		if err := os.Chmod(filepath.Join(im.dir, e.Name()), imageMode); err != nil {
			return err
		}
		sum, err := sha256File(filepath.Join(im.dir, e.Name()))
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		im.Files = append(im.Files, File{Name: e.Name(), Size: info.Size(), SHA256: sum, Stamp: changeStamp(info)})
	}
	return nil
}

func (im *Image) save() error {
	text, err := json.MarshalIndent(im, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(im.dir, imageFile), append(text, '\n'), 0o600)
}

// load reads an image's description and checks that its files are unchanged.
func (s *Store) load(digest string) (*Image, error) {
	im, err := s.describe(digest)
	if err != nil {
		return nil, err
	}
	if err := im.verify(); err != nil {
		return nil, err
	}
	return im, nil
}

// ByDigest returns the image with a digest, verified. An image that a newer build has replaced exists until it is
// removed.
func (s *Store) ByDigest(digest string) (*Image, error) {
	if digest == "" || digest != filepath.Base(digest) {
		return nil, fmt.Errorf("%.80q is no digest of an image", digest)
	}
	return s.load(digest)
}

func (s *Store) describe(digest string) (*Image, error) {
	im := &Image{dir: filepath.Join(s.imagesDir(), digest)}
	text, err := os.ReadFile(filepath.Join(im.dir, imageFile))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, im); err != nil || im.Digest != digest {
		return nil, im.damaged(digest, "its description can't be read")
	}
	return im, nil
}

func (im *Image) damaged(digest, why string) error {
	return fmt.Errorf("%w: %s: %s; `unitask image rm %.12s` removes it, the next run builds it again", ErrDamaged, im.dir,
		why, digest)
}

// verify compares sizes and change stamps. It reads a file in full only if its stamp has changed since its digest was
// last verified.
func (im *Image) verify() error {
	restamped := false
	for i := range im.Files {
		f := &im.Files[i]
		path := filepath.Join(im.dir, f.Name)
		st, err := os.Lstat(path)
		if err != nil {
			return im.damaged(im.Digest, fmt.Sprintf("%s: %v", f.Name, err))
		}
		if !st.Mode().IsRegular() || st.Size() != f.Size {
			return im.damaged(im.Digest, fmt.Sprintf("%s has %d bytes and not %d", f.Name, st.Size(), f.Size))
		}
		if st.Mode().Perm()&imageMode != imageMode && os.Chmod(path, imageMode) == nil { // built under a narrow umask
			if st, err = os.Lstat(path); err != nil {
				return im.damaged(im.Digest, fmt.Sprintf("%s: %v", f.Name, err))
			}
		}
		if changeStamp(st) == f.Stamp {
			continue
		}
		sum, err := sha256File(path)
		if err != nil {
			return im.damaged(im.Digest, err.Error())
		}
		if sum != f.SHA256 {
			return im.damaged(im.Digest, fmt.Sprintf("the digest of %s is %.12s… and not %.12s…", f.Name, sum, f.SHA256))
		}
		f.Stamp, restamped = changeStamp(st), true
	}
	if restamped {
		_ = im.save() // only avoids reading the files again
	}
	return nil
}

// List returns every image in the store, newest first. Unreadable images are left out.
func (s *Store) List() ([]*Image, error) {
	entries, err := os.ReadDir(s.imagesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []*Image
	for _, e := range entries {
		if im, err := s.describe(e.Name()); err == nil {
			list = append(list, im)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Built.After(list[j].Built) })
	return list, nil
}

// Find returns the image whose digest begins with prefix, without checking its files.
func (s *Store) Find(prefix string) (*Image, error) {
	digest, err := s.findDigest(prefix)
	if err != nil {
		return nil, err
	}
	return s.describe(digest)
}

// Remove removes the image whose digest begins with prefix, and returns its digest. A machine that runs from the image
// keeps the files open.
func (s *Store) Remove(prefix string) (string, error) {
	digest, err := s.findDigest(prefix)
	if err != nil {
		return "", err
	}
	return digest, removeFolder(filepath.Join(s.imagesDir(), digest))
}

func (s *Store) findDigest(prefix string) (string, error) {
	entries, err := os.ReadDir(s.imagesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var found []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && !strings.HasPrefix(e.Name(), ".") {
			found = append(found, e.Name())
		}
	}
	switch {
	case prefix == "" || len(found) == 0:
		return "", fmt.Errorf("no image begins with %q: `unitask image ls` shows them", prefix)
	case len(found) > 1:
		return "", fmt.Errorf("%d images begin with %q: give more of the digest", len(found), prefix)
	}
	return found[0], nil
}

// Best returns the default kernel: nanos if it is vendored and the payload prefers it, else linux.
func (s *Store) Best(arch Arch) Kernel {
	if _, err := s.Parts().Get(arch, nanosPart); err == nil && s.Runs(Nanos) && !s.payload.LinuxFirst {
		return Nanos
	}
	return Linux
}
