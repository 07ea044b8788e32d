package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/image/oci"
	"github.com/unitask/unitask/internal/atomicfile"
)

// Shipped describes an image of another host. For a container's image it has everything that a machine gets except
// the
// disk, which only the machine's own kernel reads. If Custom is not nil, it is a custom image and the disk is an
// archive.
type Shipped struct {
	Arch   Arch       `json:"arch"`
	Config oci.Config `json:"config"`
	Owner  oci.Owner  `json:"owner"`
	Disk   string     `json:"disk"` // hexadecimal SHA-256
	Size   int64      `json:"size"` // of the disk, in bytes
	// Custom is nil for a container's image.
	Custom *ShippedCustom `json:"own,omitempty"`
}

// Bounds on shipped images.
const (
	MaxShippedDisk   = 8 << 30   // bytes of a disk, holes included
	maxShippedText   = 256 << 10 // bytes of the rest
	maxShippedBytes  = 16 << 30  // bytes of all disks of one submitter
	maxShippedImages = 32        // disks of one submitter
	ShippedAge       = 24 * time.Hour
	shippedRest      = 10 * time.Minute // an image used more recently is never removed to make room
)

const (
	diskSumFile = "disk.json" // the disk's digest when it was last read
	usedFile    = "used"      // its modification time is the image's last use
)

// Digest covers everything that a run gets of the image.
func (b Shipped) Digest() string {
	text, _ := json.Marshal(b) // strings and numbers can't fail
	return "sha256:" + hexSum(text)
}

func hexSum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Check validates the description of a shipped image.
func (b Shipped) Check() error {
	raw, err := hex.DecodeString(b.Disk)
	text, e := json.Marshal(b)
	most := int64(MaxShippedDisk)
	if b.Custom != nil {
		most = maxShippedCustom
	}
	switch {
	case err != nil || len(raw) != sha256.Size || b.Disk != strings.ToLower(b.Disk):
		return fmt.Errorf("shipped image: its disk's digest is %.80q", b.Disk)
	case b.Owner.UID > oci.MaxID || b.Owner.GID > oci.MaxID ||
		slices.ContainsFunc(b.Owner.Groups, func(id uint32) bool { return id > oci.MaxID }):
		return fmt.Errorf("shipped image: nobody has the id %d, which the kernel takes for none", uint32(oci.MaxID+1))
	case b.Size <= 0 || b.Size > most || b.Size%sectorSize != 0:
		return fmt.Errorf("shipped image: its disk has %d bytes: it needs whole sectors, at most %d bytes", b.Size, most)
	case e != nil || len(text) > maxShippedText || len(b.Owner.Groups) > 64:
		return fmt.Errorf("shipped image: its description has %d bytes, and may have %d", len(text), maxShippedText)
	case b.Custom == nil && !filepath.IsAbs(b.Owner.Home) || strings.ContainsRune(string(text), 0) ||
		strings.Contains(string(text), `\u0000`):
		return errors.New("shipped image: what is said of it is malformed")
	}
	return nil
}

// KeyFor returns the digest under which a submitter's image is stored. Another submitter's image has another digest,
// even if its content is the same. So nobody can use, or detect, what somebody else has shipped.
func (b Shipped) KeyFor(who string) string {
	return "sha256:" + hexSum([]byte("unitask brought "+who+"\n"+b.Digest()))
}

// Ship describes a container's image for another host. It reads the disk only once.
func (cs Containers) Ship(c *Container) (b Shipped, err error) {
	b = Shipped{Arch: c.Arch, Config: c.Config, Owner: c.Owner, Custom: c.Custom}
	name := filepath.Join(c.dir, rootFile)
	st, err := os.Lstat(name)
	if err != nil {
		return b, err
	}
	known := filepath.Join(c.dir, diskSumFile)
	var f File
	if text, err := os.ReadFile(known); err == nil && json.Unmarshal(text, &f) == nil && f.Size == st.Size() &&
		f.Stamp == changeStamp(st) {
		b.Disk, b.Size = f.SHA256, f.Size
		return b, nil
	}
	if b.Disk, err = sha256File(name); err != nil {
		return b, err
	}
	b.Size = st.Size()
	if text, err := json.Marshal(File{Name: rootFile, Size: b.Size, SHA256: b.Disk, Stamp: changeStamp(st)}); err == nil {
		_ = atomicfile.Write(known, text, 0o600) // only avoids reading the disk again
	}
	return b, nil
}

// AddShipped stores a shipped image, unless it exists, and returns it. open returns the disk, whose digest and size
// are
// checked. used returns the digests of the containers in use; it is called if images may have to be removed.
func (cs Containers) AddShipped(ctx context.Context, who string, b Shipped, used func() (map[string]bool, error),
	open func(context.Context) (io.ReadCloser, error)) (*Container, error) {
	if err := b.Check(); err != nil {
		return nil, err
	}
	c := &Container{Digest: b.KeyFor(who), Arch: b.Arch, Config: b.Config, Owner: b.Owner, ShippedBy: who,
		Custom: b.Custom}
	c.dir = filepath.Join(cs.dir(), c.key())
	turn, err := cs.images.lock(ctx, "brought-"+hexSum([]byte(who))) // one at a time, so that the bounds hold
	if err != nil {
		return nil, err
	}
	defer turn()
	if have, err := cs.haveShipped(ctx, c.key()); have != nil || err != nil {
		return have, err
	}
	if err := cs.roomFor(ctx, who, b.Size, used); err != nil {
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
	start := time.Now()
	if err := b.fill(ctx, filepath.Join(tmp, rootFile), open); err != nil {
		return nil, err
	}
	if b.Custom != nil { // a malformed archive could not become a disk
		if err := (tree{}).addArchive(filepath.Join(tmp, rootFile)); err != nil {
			return nil, err
		}
	}
	c.Added, c.TookMs = start.UTC().Truncate(time.Second), time.Since(start).Milliseconds()
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, err
	}
	for name, text := range map[string][]byte{containerFile: append(text, '\n'), usedFile: nil} {
		if err := os.WriteFile(filepath.Join(tmp, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	if err := os.RemoveAll(c.dir); err != nil { // half an image that a power failure left
		return nil, err
	}
	return c, os.Rename(tmp, c.dir)
}

// haveShipped returns an existing complete image, or nil. It marks the image as used, so that it is not removed as
// unused.
func (cs Containers) haveShipped(ctx context.Context, key string) (*Container, error) {
	if _, err := cs.read(key); err != nil {
		return nil, nil
	}
	unlock, err := cs.images.lock(ctx, "container-"+key) // the image may be about to be removed
	if err != nil {
		return nil, err
	}
	defer unlock()
	have, err := cs.read(key)
	if err != nil || have.touch() != nil {
		return nil, nil
	}
	return have, nil
}

// fill writes the disk to a file, with holes for zeros.
func (b Shipped) fill(ctx context.Context, name string, open func(context.Context) (io.ReadCloser, error)) error {
	from, err := open(ctx)
	if err != nil {
		return err
	}
	defer from.Close()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	defer f.Close()
	sum, zeros := sha256.New(), make([]byte, 1<<20)
	buf := make([]byte, len(zeros))
	for at := int64(0); ; {
		n, err := io.ReadFull(from, buf)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if at+int64(n) > b.Size {
			return fmt.Errorf("shipped image: its disk has more than the %d bytes that it says", b.Size)
		}
		sum.Write(buf[:n])
		if string(buf[:n]) != string(zeros[:n]) {
			if _, err := f.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			continue
		}
		if at != b.Size || hex.EncodeToString(sum.Sum(nil)) != b.Disk {
			return fmt.Errorf("shipped image: its disk, of %d bytes, is not what its digest says", at)
		}
		return errors.Join(f.Truncate(b.Size), f.Close())
	}
}

// roomFor makes room for a submitter's image: it removes the submitter's least recently used images.
func (cs Containers) roomFor(ctx context.Context, who string, size int64, inUse func() (map[string]bool, error)) error {
	used, err := inUse()
	if err != nil {
		return err
	}
	if err := cs.PruneShipped(ctx, used); err != nil {
		return err
	}
	list, err := cs.shippedBy(func(c *Container) bool { return c.ShippedBy == who })
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b *Container) int { return a.used().Compare(b.used()) })
	count := len(list)
	for _, c := range list {
		size += c.diskSize()
	}
	for _, c := range list {
		if size <= maxShippedBytes && count < maxShippedImages {
			break
		}
		had := c.diskSize()
		gone, err := cs.dropShipped(ctx, c, used, shippedRest)
		if err != nil {
			return err
		}
		if gone {
			size -= had
			count--
		}
	}
	if size > maxShippedBytes || count >= maxShippedImages {
		return fmt.Errorf("shipped images take their room on this host, %d bytes in %d images: "+
			"wait until some are no longer used", int64(maxShippedBytes), maxShippedImages)
	}
	return nil
}

// PruneShipped removes shipped images that nobody has used for a day.
func (cs Containers) PruneShipped(ctx context.Context, used map[string]bool) error {
	list, err := cs.shippedBy(func(c *Container) bool { return c.ShippedBy != "" && time.Since(c.used()) > ShippedAge })
	for _, c := range list {
		if err == nil {
			_, err = cs.dropShipped(ctx, c, used, ShippedAge)
		}
	}
	return err
}

func (cs Containers) shippedBy(is func(*Container) bool) (list []*Container, err error) {
	all, err := cs.List()
	return slices.DeleteFunc(all, func(c *Container) bool { return c.ShippedBy == "" || !is(c) }), err
}

// dropShipped removes an image that is not in use and was not used for that long.
func (cs Containers) dropShipped(ctx context.Context, c *Container, used map[string]bool, age time.Duration) (bool,
	error) {
	if used[c.Digest] {
		return false, nil
	}
	unlock, err := cs.images.lock(ctx, "container-"+c.key())
	if err != nil {
		return false, err
	}
	defer unlock()
	if time.Since(c.used()) <= age {
		return false, nil
	}
	return true, cs.Remove(ctx, c)
}

func (c *Container) used() time.Time {
	st, err := os.Stat(filepath.Join(c.dir, usedFile))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

func (c *Container) touch() error {
	now := time.Now()
	return os.Chtimes(filepath.Join(c.dir, usedFile), now, now)
}

// diskSize returns the length of the disk, holes included.
func (c *Container) diskSize() int64 {
	st, err := os.Stat(filepath.Join(c.dir, rootFile))
	if err != nil {
		return 0
	}
	return st.Size()
}
