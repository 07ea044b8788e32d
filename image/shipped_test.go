package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/image/oci"
	"github.com/unitask/unitask/internal/attack"
)

func shippedDisk(fill byte) ([]byte, Shipped) {
	disk := bytes.Repeat([]byte{fill}, 1<<20)
	disk = append(append(disk, make([]byte, 4<<20)...), disk...)
	sum := sha256.Sum256(disk)
	return disk, Shipped{Arch: AMD64, Config: oci.Config{Cmd: []string{"sh"}}, Owner: oci.Owner{Home: "/root"},
		Disk: hex.EncodeToString(sum[:]), Size: int64(len(disk))}
}

func reader(disk []byte) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(disk)), nil }
}

func unused() (map[string]bool, error) { return nil, nil }

// A shipped image is stored once, for its submitter only. It is removed if it was not used for a day, or to make room.
func TestShipped(t *testing.T) {
	s := &Store{home: t.TempDir(), log: func(string) {}}
	disk, b := shippedDisk('a')
	c, err := s.Containers().AddShipped(t.Context(), "alice", b, unused, reader(disk))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(c.dir, rootFile)); err != nil || !bytes.Equal(text, disk) {
		t.Fatal("the disk is another", err)
	}
	if c.Size() > 3<<20 {
		t.Errorf("zeros take room: %d bytes", c.Size())
	}
	none := func(context.Context) (io.ReadCloser, error) { return nil, errors.New("is asked for twice") }
	if again, err := s.Containers().AddShipped(t.Context(), "alice", b, unused, none); err != nil ||
		again.Digest != c.Digest {
		t.Errorf("again: %v", err)
	}
	if _, err := s.Containers().AddShipped(t.Context(), "bob", b, unused, none); err == nil {
		t.Error("bob has what alice has brought")
	}
	if other, err := s.Containers().AddShipped(t.Context(), "bob", b, unused, reader(disk)); err != nil ||
		other.Digest == c.Digest {
		t.Errorf("bob's: %v", err)
	}
	// Ship returns the shipped image.
	if back, err := s.Containers().Ship(c); err != nil || back.Digest() != b.Digest() {
		t.Errorf("%+v %v", back, err)
	}
	age := func(c *Container, by time.Duration) {
		at := time.Now().Add(-by)
		if err := os.Chtimes(filepath.Join(c.dir, usedFile), at, at); err != nil {
			t.Fatal(err)
		}
	}
	there := func(c *Container) bool { _, err := os.Stat(c.dir); return err == nil }
	age(c, ShippedAge+time.Minute)
	if err := s.Containers().PruneShipped(t.Context(), map[string]bool{c.Digest: true}); err != nil || !there(c) {
		t.Errorf("an image in use went: %v", err)
	}
	if err := s.Containers().PruneShipped(t.Context(), nil); err != nil || there(c) {
		t.Errorf("an old image stayed: %v", err)
	}
	list, err := s.Containers().List()
	if err != nil || len(list) != 1 || list[0].ShippedBy != "bob" {
		t.Errorf("%v %+v", err, list)
	}
	var first *Container
	for i := range maxShippedImages {
		disk, b := shippedDisk(byte(i + 1))
		c, err := s.Containers().AddShipped(t.Context(), "carol", b, unused, reader(disk))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = c
		}
	}
	disk, b = shippedDisk('x')
	if _, err := s.Containers().AddShipped(t.Context(), "carol", b, unused, reader(disk)); err == nil ||
		!strings.Contains(err.Error(), "take their room") {
		t.Errorf("one more than may be: %v", err)
	}
	age(first, time.Hour)
	if _, err := s.Containers().AddShipped(t.Context(), "carol", b,
		func() (map[string]bool, error) { return map[string]bool{first.Digest: true}, nil }, reader(disk)); err == nil {
		t.Error("an image in use made room")
	}
	if _, err := s.Containers().AddShipped(t.Context(), "carol", b, unused, reader(disk)); err != nil || there(first) {
		t.Errorf("what was not used for an hour did not make room: %v", err)
	}
	if other, err := s.Containers().AddShipped(t.Context(), "bob", b, unused, reader(disk)); err != nil || !there(other) {
		t.Errorf("bob pays for carol: %v", err)
	}
}

// Images that make room for a large disk count with the space that they took. No more of them are removed than needed.
func TestShippedRoom(t *testing.T) {
	s := &Store{home: t.TempDir(), log: func(string) {}}
	var all []*Container
	for i := range 4 {
		disk, b := shippedDisk(byte('a' + i))
		c, err := s.Containers().AddShipped(t.Context(), "alice", b, unused, reader(disk))
		if err != nil {
			t.Fatal(err)
		}
		at, name := time.Now().Add(time.Duration(i-60)*time.Minute), filepath.Join(c.dir, rootFile)
		if err := errors.Join(os.Chtimes(filepath.Join(c.dir, usedFile), at, at), os.Chmod(name, 0o600),
			os.Truncate(name, maxShippedBytes/4)); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	disk, b := shippedDisk('x')
	if _, err := s.Containers().AddShipped(t.Context(), "alice", b, unused, reader(disk)); err != nil {
		t.Errorf("there was room to make: %v", err)
	}
	for i, c := range all {
		if _, err := os.Stat(c.dir); (err != nil) != (i == 0) {
			t.Errorf("image %d of 4, the longest unused first: %v", i, err)
		}
	}
	if left, _ := os.ReadDir(s.Containers().dir()); len(left) != len(all)+1 { // names.json
		t.Errorf("%v", left)
	}
}

// An image that a power failure left incomplete is shipped again.
func TestShippedHalf(t *testing.T) {
	s := &Store{home: t.TempDir(), log: func(string) {}}
	disk, b := shippedDisk('a')
	c, err := s.Containers().AddShipped(t.Context(), "alice", b, unused, reader(disk))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{containerFile, usedFile} {
		at := filepath.Join(c.dir, name)
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
		if name == containerFile {
			if err := os.WriteFile(at, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if again, err := s.Containers().AddShipped(t.Context(), "alice", b, unused, reader(disk)); err != nil ||
			again.Digest != c.Digest {
			t.Errorf("without a whole %s: %v", name, err)
		}
		if have, err := s.Containers().Get(c.Arch, c.Digest); err != nil || have.used().IsZero() {
			t.Errorf("without a whole %s: %v", name, err)
		}
	}
}

// By shipping many images, a submitter can choose the first digits of an image's digest. Such digits lead to no image.
func TestAttackShippedDigits(t *testing.T) {
	s := &Store{home: t.TempDir(), log: func(string) {}}
	disk, b := shippedDisk('a')
	c, err := s.Containers().AddShipped(t.Context(), "mallory", b, unused, reader(disk))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{c.Digest[:7+leastDigest], c.Digest[:len(c.Digest)-1], c.key(),
		"docker.io/library/alpine@" + c.Digest} {
		_, err := s.Containers().Get(c.Arch, name)
		row := fmt.Sprintf("a shipped image is named by %d bytes of %.9s…: not found", len(name), name)
		attack.Check(t, row, "true", fmt.Sprint(errors.Is(err, fs.ErrNotExist)))
	}
	if found, err := s.Containers().Get(c.Arch, c.Digest); err != nil || found.Digest != c.Digest {
		t.Errorf("the whole digest: %v", err)
	}
}

// A failed attempt leaves no lock file; otherwise each attempt would add one.
func TestAttackShippedLocks(t *testing.T) {
	s := &Store{home: t.TempDir(), log: func(string) {}}
	for i := range 3 {
		_, b := shippedDisk(byte(i))
		if _, err := s.Containers().AddShipped(t.Context(), "mallory", b, unused, reader(nil)); err == nil {
			t.Fatal("nothing was taken for a disk")
		}
	}
	locks, err := os.ReadDir(filepath.Join(s.home, "locks"))
	attack.Check(t, "locks that three images without a disk leave", "1 <nil>", fmt.Sprint(len(locks), err))
}

// endlessDisk never ends.
type endlessDisk struct{}

func (endlessDisk) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A disk that does not match its description is refused, and leaves nothing.
func TestAttackShipped(t *testing.T) {
	disk, good := shippedDisk('a')
	with := func(change func(*Shipped)) Shipped { b := good; change(&b); return b }
	for name, row := range map[string]struct {
		b    Shipped
		from io.Reader
		says string
	}{
		"another disk":   {good, bytes.NewReader(append([]byte("x"), disk[1:]...)), "not what its digest says"},
		"cut off":        {good, bytes.NewReader(disk[:len(disk)-1]), "not what its digest says"},
		"nothing":        {good, bytes.NewReader(nil), "not what its digest says"},
		"a byte more":    {good, bytes.NewReader(append(bytes.Clone(disk), 0)), "has more than"},
		"no end":         {good, endlessDisk{}, "has more than"},
		"an error":       {good, io.MultiReader(bytes.NewReader(disk[:4096]), errorReader{}), "is gone"},
		"too large":      {with(func(b *Shipped) { b.Size = MaxShippedDisk + sectorSize }), nil, "whole sectors"},
		"a size below 0": {with(func(b *Shipped) { b.Size = -sectorSize }), nil, "whole sectors"},
		"no size":        {with(func(b *Shipped) { b.Size = 0 }), nil, "whole sectors"},
		"half a sector":  {with(func(b *Shipped) { b.Size++ }), nil, "whole sectors"},
		"a path":         {with(func(b *Shipped) { b.Disk = "../../../etc/passwd" }), nil, "digest is"},
		"a digest of 1":  {with(func(b *Shipped) { b.Disk = "aa" }), nil, "digest is"},
		"capitals":       {with(func(b *Shipped) { b.Disk = strings.ToUpper(b.Disk) }), nil, "digest is"},
		"a long command": {with(func(b *Shipped) { b.Config.Cmd = []string{strings.Repeat("x", maxShippedText)} }), nil,
			"bytes, and"},
		"many groups":     {with(func(b *Shipped) { b.Owner.Groups = make([]uint32, 65) }), nil, "bytes, and"},
		"a NUL":           {with(func(b *Shipped) { b.Config.Env = []string{"A=\x00B"} }), nil, "malformed"},
		"no user's id":    {with(func(b *Shipped) { b.Owner.UID = 1<<32 - 1 }), nil, "nobody has the id"},
		"no group's id":   {with(func(b *Shipped) { b.Owner.GID = 1<<32 - 1 }), nil, "nobody has the id"},
		"nor another's":   {with(func(b *Shipped) { b.Owner.Groups = []uint32{7, 1<<32 - 1} }), nil, "nobody has the id"},
		"a relative home": {with(func(b *Shipped) { b.Owner.Home = "root" }), nil, "malformed"},
	} {
		s := &Store{home: t.TempDir(), log: func(string) {}}
		opened := false
		_, err := s.Containers().AddShipped(t.Context(), "mallory", row.b, unused,
			func(context.Context) (io.ReadCloser, error) {
				opened = true
				return io.NopCloser(row.from), nil
			})
		refused := err != nil && strings.Contains(err.Error(), row.says)
		left, _ := os.ReadDir(s.Containers().dir())
		got := fmt.Sprintf("refused %t, %d files left", refused, len(left))
		attack.Check(t, "an image comes along with "+name, "refused true, 0 files left", got)
		if opened != (row.from != nil) {
			t.Errorf("%s: the disk was opened: %v, %v", name, opened, err)
		}
	}
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errors.New("it is gone") }
