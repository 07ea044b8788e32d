package unitask

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/image/oci"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/policy"
)

// Images of the user's own that begin with a container's image. What they bring are layers over that: one with the
// description's files, and one with all that its steps have changed, in a machine. They are kept in the home's
// layers/ by their digests; what runs is a container's image like any other, to which the name leads.

// ownLayer says in a lock file what an image was made of.
type ownLayer struct {
	From      string         `json:"from"`            // the reference
	Image     string         `json:"image"`           // the digest of the image that it led to
	Files     string         `json:"files,omitempty"` // the digest of the layer of the description's files
	Wanted    []string       `json:"debianAsked,omitempty"`
	Debian    []image.Deb    `json:"debian,omitempty"`
	Installed string         `json:"installed,omitempty"` // the digest of the layer that came of them
	Packages  []ownInstalled `json:"packages,omitempty"`
	Steps     []string       `json:"steps,omitempty"`
	Network   []string       `json:"network,omitempty"` // of the steps
	Env       []string       `json:"env"`               // of the steps, NAME=VALUE, beside the image's; nil where it was not noted
	Digest    string         `json:"digest,omitempty"`  // of the layer that came of the steps
}

// check says what is wrong with what others have written.
func (l *ownLayer) check() error {
	err := image.CheckDebs(l.Debian)
	digests := []string{l.Image, l.Files, l.Installed, l.Digest}
	for _, p := range l.Packages {
		if digests = append(digests, p.Digest); err == nil {
			err = p.check()
		}
	}
	for _, digest := range digests {
		if err == nil && digest != "" && !catalog.WholeDigest.MatchString(digest) {
			err = fmt.Errorf("has the digest %.80q for an image or a layer", digest)
		}
	}
	return err
}

// sameWanted says that another build began with the same image, and wanted the same of Debian.
func (l ownLayer) sameWanted(other ownLayer) bool {
	return l.From == other.From && l.Image == other.Image && slices.Equal(l.Wanted, other.Wanted)
}

// sameBase says that another build began with the same, files and all, and wanted the same of Debian over that.
func (l ownLayer) sameBase(other ownLayer) bool {
	return l.sameWanted(other) && l.Files == other.Files
}

// same says that another build began with the same, and did the same.
func (l ownLayer) same(other ownLayer) bool {
	return l.sameBase(other) && l.Installed == other.Installed && slices.EqualFunc(l.Packages, other.Packages, ownInstalled.same) && slices.Equal(l.Steps, other.Steps) && slices.Equal(l.Network, other.Network) &&
		l.Env != nil && other.Env != nil && slices.Equal(l.Env, other.Env)
}

// checkOver holds what a description says against a container's image as its beginning.
func checkOver(o *catalog.Custom, env *imagefile.Environment, c *policy.Ceiling) (ref string, reached stepNetwork, err error) {
	bad := func(format string, args ...any) (string, stepNetwork, error) {
		return "", reached, fmt.Errorf(format, args...)
	}
	ref, _, err = policy.Reference(env.From)
	if err != nil {
		return bad("from: %s %w", env.From, err)
	}
	if len(env.Warm) > 0 {
		return bad("warm is for the images that come along, whose Python waits in the machine that runs are cloned from; in %s it starts anew in each run: from = \"python\" with pip and debian has it", env.From)
	}
	for _, f := range env.Files {
		for own := range strings.SplitSeq(ownPaths, ":") {
			if f.Guest == own || strings.HasPrefix(f.Guest, own+"/") {
				return bad("files: %s is not where a container's image can have files: %s is the machine's", f.Guest, own)
			}
		}
	}
	if o.MemoryMB > 0 {
		if _, _, err := policy.Resolve(policy.Request{MemoryMB: o.MemoryMB}, nil); err != nil {
			return bad("%w", err)
		}
	}
	for _, spec := range env.Debian {
		if err := image.CheckDebSpec(spec); err != nil {
			return bad("debian: %w", err)
		}
	}
	if len(env.Network) > 0 && len(env.Run) == 0 {
		return bad("network: is for the steps of run, and there are none")
	}
	reached, err = parseNetwork(env.Network)
	for system, list := range map[string][]string{policy.Pip: env.Pip, policy.Npm: env.Npm} {
		specs, bad := overSpecs(system, list)
		if bad == nil {
			bad = reached.allowed(c, system, specs)
		}
		if err == nil {
			err = bad
		}
	}
	return ref, reached, err
}

// buildOver builds an image of the user's own that begins with a container's.
func (rt *Runtime) buildOver(ctx context.Context, o *catalog.Custom, env *imagefile.Environment) (*catalog.Custom, *image.Image, error) {
	ref, reached, err := checkOver(o, env, rt.opts.Ceiling)
	if err != nil {
		return nil, nil, policy.Bad("image", env.File, "%v", err)
	}
	held, err := rt.catalog.LockCustom(ctx)
	if err != nil {
		return nil, nil, rt.buildFailed(ctx, err)
	}
	defer held.Unlock()
	im, err := rt.layOver(ctx, o, env, ref, reached)
	if err != nil {
		rt.catalog.TidyCustom()
		return nil, nil, rt.buildFailed(ctx, err)
	}
	return o, im, nil
}

func (rt *Runtime) layOver(ctx context.Context, o *catalog.Custom, env *imagefile.Environment, ref string, reached stepNetwork) (*image.Image, error) {
	lockFile := strings.TrimSuffix(env.File, imagefile.Extension) + catalog.LockFileEnds
	locks, err := readOwnLock(lockFile)
	if err != nil {
		return nil, err
	}
	at, was := locks.at(o.Arch), ownLayer{}
	if at != nil && at.Layer != nil && at.Layer.From == ref {
		was = *at.Layer
	}
	base, err := rt.beginning(ctx, ref, was.Image, o.Arch)
	if err != nil {
		return nil, err
	}
	if base.Brought != "" { // this host reads the disk of what it begins with, and nobody's whom it does not trust
		return nil, policy.Bad("image", o.File, "from: %s came along from another host, as the tenant %s's: only its own machine reads it; begin with an image that was pulled or imported here", o.From, base.Brought)
	}
	now := ownLayer{From: ref, Image: base.Digest, Steps: env.Run, Network: env.Network}
	if len(env.Files) > 0 {
		if now.Files, err = rt.keepFiles(env); err != nil {
			return nil, err
		}
		o.Layers = append(o.Layers, now.Files)
	}
	now.Env = []string{}
	for name, value := range env.Env {
		now.Env = append(now.Env, name+"="+value)
	}
	slices.Sort(now.Env)
	config := base.Config
	config.Env = slices.Concat(config.Env, now.Env)
	if len(env.Debian) > 0 {
		if err := rt.installDebian(ctx, o, env, base, was, &now); err != nil {
			return nil, err
		}
	}
	if err := rt.installOver(ctx, o, env, base, was, &now); err != nil {
		return nil, err
	}
	if len(env.Run) > 0 {
		if now.same(was) && rt.hasLayer(was.Digest) {
			now.Digest = was.Digest
		} else if now.Digest, err = rt.runSteps(ctx, o, base, config, env.Run, reached); err != nil {
			return nil, err
		} else if now.same(was) && was.Digest != "" && was.Digest != now.Digest {
			rt.opts.Events(Event{Kind: EventImage, Message: "the steps are those of " + lockFile + ", and have left other files than then"})
		}
		o.Layers = append(o.Layers, now.Digest)
	}
	c, err := rt.lay(ctx, base, o.Arch, config, o.Layers)
	if err != nil {
		return nil, err
	}
	images, err := rt.images.OfContainer(c)
	if err != nil {
		return nil, err
	}
	im, err := rt.catalog.Obtain(ctx, images, image.Linux, o.Arch)
	if err != nil {
		return nil, err
	}
	locks.set(ownBuild{Arch: o.Arch, Layer: &now, Digest: c.Digest})
	if err := locks.write(lockFile); err != nil {
		return nil, err
	}
	if err := rt.images.NameContainer(ctx, c, image.Imported, o.Name); err != nil {
		return nil, err
	}
	o.Debian, o.From, o.Container, o.Digest, o.Bytes = now.Debian, ref, c.Digest, c.Digest, c.Size()
	return im, rt.nameOwn(o, map[string]any{"image": c.Digest, "network": env.Network})
}

// beginning is the container's image that one of the user's own begins with: the one that its lock file names, else the
// one that the reference leads to. A lock file leads to no image that has only other names than the reference's.
func (rt *Runtime) beginning(ctx context.Context, ref, locked string, arch image.Arch) (*image.Container, error) {
	if locked == "" || strings.HasPrefix(ref, "sha256:") {
		return rt.catalog.Container(ctx, ref, arch)
	}
	name, _, _ := strings.Cut(ref, "@")
	if tag := strings.LastIndexByte(name, ':'); tag > strings.LastIndexByte(name, '/') {
		name = name[:tag]
	}
	name += "@" + locked
	if _, err := rt.images.Container(arch, name); errors.Is(err, fs.ErrNotExist) {
		if c, err := rt.images.Container(arch, locked); err == nil && len(c.Names) == 0 { // which its tag has left
			return c, nil
		}
	}
	c, err := rt.catalog.Container(ctx, name, arch)
	if err != nil {
		return nil, fmt.Errorf("%w: the lock file names this digest of %s; without the file it is chosen anew", err, ref)
	}
	return c, nil
}

// lay is a container's image with layers over it.
func (rt *Runtime) lay(ctx context.Context, base *image.Container, arch image.Arch, config oci.Config, digests []string) (*image.Container, error) {
	disk, err := base.Disk()
	if err != nil {
		return nil, err
	}
	defer disk.Close()
	var layers []oci.Layer
	for _, digest := range digests {
		layers = append(layers, oci.Layer{Digest: digest, Open: func() (io.ReadCloser, error) { return os.Open(rt.catalog.LayerFile(digest)) }})
	}
	im, err := oci.Derive(base.Digest, disk, string(arch), config, layers...)
	if err != nil {
		return nil, err
	}
	c, err := rt.images.AddContainer(ctx, arch, im, image.Imported, nil)
	if err != nil {
		return nil, fmt.Errorf("lay %d layers over %s: %w", len(digests), base.Digest[:19], err)
	}
	return c, nil
}

// hasLayer says that a layer is kept, and is what it was. One that is not is built again, and that takes its place.
func (rt *Runtime) hasLayer(digest string) bool {
	if raw, err := hex.DecodeString(strings.TrimPrefix(digest, "sha256:")); err != nil || len(raw) != sha256.Size {
		return false
	}
	return isLayer(rt.catalog.LayerFile(digest), digest, maxLayer)
}

// isLayer says that a file has the layer of a digest, of at most so many bytes.
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

// keepLayer keeps what make writes, an archive whose digest it returns.
func (rt *Runtime) keepLayer(make func(io.Writer) (string, error)) (digest string, err error) {
	if err := os.MkdirAll(rt.catalog.LayersDir(), 0o700); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(rt.catalog.LayersDir(), ".new-")
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
	return digest, os.Rename(f.Name(), rt.catalog.LayerFile(digest))
}

// keepFiles keeps a description's files as a layer.
func (rt *Runtime) keepFiles(env *imagefile.Environment) (string, error) {
	return rt.keepLayer(func(to io.Writer) (string, error) {
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
		err := atOneTime(io.MultiWriter(to, sum), r)
		r.CloseWithError(errors.New("the layer takes no more")) // which ends the goroutine
		return "sha256:" + hex.EncodeToString(sum.Sum(nil)), err
	})
}

// atOneTime copies an archive whose files get the same time and owner.
func atOneTime(to io.Writer, from io.Reader) error {
	w := tar.NewWriter(to)
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return w.Close()
		}
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: h.Typeflag, Name: h.Name, Mode: h.Mode, Size: h.Size, ModTime: oci.LayerTime}); err != nil {
			return err
		}
		if _, err := io.Copy(w, r); err != nil {
			return err
		}
	}
}
