package image

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image/oci"
	"github.com/unitask/unitask/internal/disuse"
	"github.com/unitask/unitask/internal/home"
)

// Container is a container's image in the store: a disk with its files, and how it is started. The image that boots
// with the disk is an Image, built like any other.
type Container struct {
	Digest    string     `json:"digest"` // sha256:HEX, of its manifest, or of its configuration
	Arch      Arch       `json:"arch"`
	Config    oci.Config `json:"config"`
	Owner     oci.Owner  `json:"owner"`
	Entries   int        `json:"entries"`
	Devices   int        `json:"devicesLeftOut,omitempty"`
	Added     time.Time  `json:"added"`
	TookMs    int64      `json:"tookMs"`
	ShippedBy string     `json:"brought,omitempty"` // the submitter, if another host shipped the image
	// Custom, if not nil, means that the disk is not a container's, but an archive of what a custom image adds to a
	// bundled image.
	Custom *ShippedCustom `json:"own,omitempty"`

	Names    []string `json:"-"` // references that lead to it
	imported []string // those of Names that a user gave when importing
	dir      string
}

const (
	containerFile = "container.json"
	rootFile      = "root.img"
	namesFile     = "names.json" // references, and the digests that they lead to
)

// Containers gives access to a store's container images, including those that other hosts shipped. It has no state of
// its own.
type Containers struct{ images *Store }

// Containers returns the store's container images.
func (s *Store) Containers() Containers { return Containers{s} }

func (cs Containers) dir() string { return home.Dir(cs.images.home).Containers() }

// key returns the name of a container's folder.
func (c *Container) key() string { return strings.TrimPrefix(c.Digest, "sha256:") }

// Size returns the number of bytes that its files occupy.
func (c *Container) Size() int64 {
	st, err := os.Stat(filepath.Join(c.dir, rootFile))
	if err != nil {
		return 0
	}
	return allocated(st)
}

// Add writes an image's files into the store, unless they exist, and points the names to the image. by tells where the
// names come from.
func (cs Containers) Add(ctx context.Context, arch Arch, from *oci.Image, by NamesFrom, names []string) (*Container,
	error) {
	c := &Container{Digest: from.Digest, Arch: arch, Config: from.Config}
	if raw, err := hex.DecodeString(c.key()); err != nil || len(raw) != sha256.Size {
		return nil, fmt.Errorf("a digest like %.100q: only sha256 is taken", from.Digest)
	}
	unlock, err := cs.images.lock(ctx, "container-"+c.key())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if have, err := cs.read(c.key()); err == nil {
		return have, cs.Name(ctx, have, by, names...)
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrDamaged) {
		return nil, err
	}
	if err := os.MkdirAll(cs.dir(), 0o700); err != nil {
		return nil, err
	}
	tmp, done, err := newFolder(cs.dir())
	if err != nil {
		return nil, err
	}
	defer done()
	size := ""
	if from.Size > 0 {
		size = ", " + mebibytes(from.Size)
	}
	cs.images.logf("unpacking %.26s%s", c.Digest, size)
	start := time.Now()
	stop := func() {}
	if by == Pulled {
		stop = follow(cs.images.Transfer, from.Size, from.Fetched)
	}
	err = c.write(ctx, from, tmp)
	stop()
	if err != nil {
		return nil, err
	}
	if c.Owner, err = from.Owner(); err != nil {
		return nil, err
	}
	c.Added, c.TookMs = time.Now().UTC().Truncate(time.Second), time.Since(start).Milliseconds()
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(tmp, containerFile), append(text, '\n'), 0o600); err != nil {
		return nil, err
	}
	c.dir = filepath.Join(cs.dir(), c.key())
	if err := os.RemoveAll(c.dir); err != nil { // one with an unreadable description
		return nil, err
	}
	if err := os.Rename(tmp, c.dir); err != nil {
		return nil, err
	}
	return c, cs.Name(ctx, c, by, names...)
}

func (c *Container) write(ctx context.Context, from *oci.Image, dir string) (err error) {
	f, err := os.OpenFile(filepath.Join(dir, rootFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	stats, err := from.Write(ctx, f, oci.DefaultLimits)
	if err != nil {
		return err
	}
	if err := f.Truncate(stats.Size); err != nil {
		return err
	}
	for _, h := range stats.Dead {
		punch(f, h.Offset, h.Size)
	}
	c.Entries, c.Devices = stats.Entries, stats.Devices
	return f.Chmod(0o444)
}

func (cs Containers) read(key string) (*Container, error) {
	c := &Container{dir: filepath.Join(cs.dir(), key)}
	text, err := os.ReadFile(filepath.Join(c.dir, containerFile))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, c); err != nil || c.key() != key {
		return nil, fmt.Errorf("%w: %s can't be read; pull or import the image again", ErrDamaged,
			filepath.Join(c.dir, containerFile))
	}
	return c, nil
}

// Disk opens the disk with the image's files.
func (c *Container) Disk() (*os.File, error) { return os.Open(c.Root()) }

// Root returns the path of the disk, or of the archive with a custom image's additions.
func (c *Container) Root() string { return filepath.Join(c.dir, rootFile) }

// leastDigest is the number of digits of a digest that are enough to name an image.
const leastDigest = 12

// repository returns a reference without its tag or digest.
func repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if tag := strings.LastIndexByte(ref, ':'); tag > strings.LastIndexByte(ref, '/') {
		ref = ref[:tag]
	}
	return ref
}

// Get returns the image for a reference, or for the first digits of a digest (12 at least). A digest after a name is
// found only if the image has that name: a ceiling may allow one name and not another. A shipped image is found only by
// its whole digest: anybody can choose an image's first digits. The error wraps fs.ErrNotExist if there is no image.
func (cs Containers) Get(arch Arch, name string) (*Container, error) {
	list, err := cs.List()
	if err != nil {
		return nil, err
	}
	prefix := strings.TrimPrefix(name, "sha256:")
	var begins *Container
	for _, c := range list {
		if c.Arch != arch || c.ShippedBy != "" && name != c.Digest {
			continue
		}
		behind := strings.HasSuffix(name, "@"+c.Digest) &&
			slices.ContainsFunc(c.Names, func(n string) bool { return repository(n) == repository(name) })
		if behind || slices.Contains(c.Names, name) {
			return c, nil
		}
		if len(prefix) >= leastDigest && strings.HasPrefix(c.key(), prefix) {
			if begins != nil {
				return nil, fmt.Errorf("container image %.200q for %s: the digests of several begin so: give all of one", name,
					arch)
			}
			begins = c
		}
	}
	if begins != nil {
		return begins, nil
	}
	return nil, fmt.Errorf("container image %.200q for %s: %w in the store", name, arch, fs.ErrNotExist)
}

// List returns every container image in the store, the newest first.
func (cs Containers) List() (list []*Container, err error) {
	entries, err := os.ReadDir(cs.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := cs.names()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if c, err := cs.read(e.Name()); err == nil {
			c.named(all)
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *Container) int { return b.Added.Compare(a.Added) })
	return list, nil
}

// Remove removes an image, its names, and the images built from it.
func (cs Containers) Remove(ctx context.Context, c *Container) error {
	list, err := cs.images.List()
	if err != nil {
		return err
	}
	for _, im := range list {
		if im.Container == c.Digest {
			if _, err := cs.images.Remove(im.Digest); err != nil {
				return err
			}
		}
	}
	if err := removeFolder(c.dir); err != nil {
		return err
	}
	return cs.changeNames(ctx, func(all map[string]string) {
		for name, key := range all {
			if key == c.key() {
				delete(all, name)
			}
		}
	})
}

// Prune removes the images without a name, except those whose digests are in use, and returns the removed digests. It
// first forgets each name for which leads returns false.
func (cs Containers) Prune(ctx context.Context, leads func(arch Arch, name, digest string) bool,
	used map[string]bool, rule disuse.Rule) (removed []string, freed disuse.Freed, err error) {
	list, err := cs.List()
	if err != nil || len(list) == 0 {
		return nil, freed, err
	}
	forget := func(all map[string]string) {
		maps.DeleteFunc(all, func(name, key string) bool {
			arch, name, _ := strings.Cut(name, " ")
			return !leads(Arch(arch), name, "sha256:"+key)
		})
	}
	named, err := cs.names()
	if forget(named); err == nil && !rule.DryRun {
		err = cs.changeNames(ctx, forget)
	}
	for _, c := range list {
		if err != nil {
			return removed, freed, err
		}
		if used[c.Digest] || rule.Spares(c.Added) {
			continue
		}
		size, gone := cs.sizeWithImages(c), false
		if rule.DryRun {
			c.named(named)
			gone = c.unwanted()
		} else {
			gone, err = cs.prune(ctx, c)
		}
		if gone {
			removed = append(removed, c.Digest)
			freed.Add(size)
		}
	}
	return removed, freed, err
}

// sizeWithImages returns the bytes of an image and of the images built from it.
func (cs Containers) sizeWithImages(c *Container) int64 {
	size := disuse.Size(c.dir)
	list, _ := cs.images.List()
	for _, im := range list {
		if im.Container == c.Digest {
			size += disuse.Size(im.dir)
		}
	}
	return size
}

// unwanted reports whether no name leads to the image. A shipped image must also be unused for a while.
func (c *Container) unwanted() bool {
	return len(c.Names) == 0 && (c.ShippedBy == "" || time.Since(c.used()) > shippedRest)
}

// prune removes an image if it has no name and nobody is just naming it.
func (cs Containers) prune(ctx context.Context, c *Container) (bool, error) {
	unlock, err := cs.images.lock(ctx, "container-"+c.key())
	if err != nil {
		return false, err
	}
	defer unlock()
	all, err := cs.names()
	if err != nil {
		return false, err
	}
	if c.named(all); !c.unwanted() {
		return false, nil
	}
	return true, cs.Remove(ctx, c)
}

// OfContainer returns the same store for images that run a container's image, or a shipped custom image.
func (s *Store) OfContainer(c *Container) (*Store, error) {
	if c.Custom != nil {
		if s.Along == nil {
			return nil, errors.New("this store has no shipped images")
		}
		p, err := s.Along(c)
		return s.With(p), err
	}
	for _, p := range s.payloads {
		if p.Container {
			of := *s
			of.payload, of.container = p, c
			return &of, nil
		}
	}
	return nil, errors.New("this store has no container images")
}

// Named returns the same store for images of that name: a bundled image, or, for sha256:HEX, a container's.
func (s *Store) Named(arch Arch, name string) (*Store, error) {
	if !strings.HasPrefix(name, "sha256:") {
		return s.Of(name)
	}
	c, err := s.Containers().Get(arch, name)
	if err != nil {
		return nil, err
	}
	return s.OfContainer(c)
}

// For returns the same store for images like an existing one.
func (s *Store) For(im *Image) (*Store, error) {
	if im.Base != "" || im.Container != "" {
		of, err := s.Named(im.Arch, cmp.Or(im.Container, im.Name))
		if err == nil && of.payload.Container && of.container == nil {
			err = fmt.Errorf("%s is a container's image now", im.Name)
		}
		return of, err
	}
	along := *s
	along.Custom = nil
	return along.Of(im.Name)
}

// linkRoot puts the container's disk into an image's folder.
func (c *Container) linkRoot(to string) error {
	from := filepath.Join(c.dir, rootFile)
	if os.Link(from, to) == nil {
		return nil
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_, err = dst.ReadFrom(src)
	return errors.Join(err, dst.Close())
}

// initFiles returns the files that the initramfs of a container's image has in addition to init and the drivers.
func (s *Store) initFiles(guest Part) (map[string][]byte, error) {
	if s.container == nil {
		return nil, nil
	}
	program, err := os.ReadFile(guest.path(programFile))
	if err != nil {
		return nil, err
	}
	var ids bytes.Buffer
	fmt.Fprintf(&ids, "%d %d", s.container.Owner.UID, s.container.Owner.GID)
	for _, g := range s.container.Owner.Groups {
		fmt.Fprintf(&ids, " %d", g)
	}
	ids.WriteByte('\n')
	return map[string][]byte{s.payload.Program: program, contract.ExecFile: []byte(s.payload.execText()),
		contract.ContainerFile: ids.Bytes()}, nil
}
