package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/policy"
)

func zstdOf(t *testing.T, content []byte, opts ...zstd.EOption) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, opts...)
	if err == nil {
		_, err = z.Write(content)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// A tenant's objects can contain anything. An object that is not a disk with the right digest never becomes an image,
// and takes no more space than declared.
func TestAttackImages(t *testing.T) {
	t.Parallel()
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	s := bucket(t)
	rt, err := unitask.Open(unitask.Options{Home: testhome.New(t, base)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	packed := func(content []byte, opts ...zstd.EOption) []byte { return zstdOf(t, content, opts...) }
	disk := bytes.Repeat([]byte("disk"), 64<<10)
	whole := packed(disk)
	for name, row := range map[string]struct {
		object []byte
		size   int64
		change func(*jetstream.ObjectMeta)
		link   bool
		says   string // "" means that it is accepted
	}{
		"what it says": {object: whole, size: int64(len(disk))},
		"another disk": {object: packed(bytes.Repeat([]byte("evil"), 64<<10)), size: int64(len(disk)),
			says: "not what its digest says"},
		"cut off":           {object: whole[:len(whole)/2], size: int64(len(disk)), says: "not what its digest says"},
		"not compressed":    {object: disk, size: int64(len(disk)), says: "magic number"},
		"empty":             {object: nil, size: int64(len(disk)), says: "not what its digest says"},
		"more than it says": {object: whole, size: int64(len(disk)) - 512, says: "has more than"},
		"less than it says": {object: whole, size: int64(len(disk)) + 512, says: "not what its digest says"},
		"a bomb":            {object: packed(make([]byte, 512<<20)), size: int64(len(disk)), says: "has more than"},
		"a window of 64 MiB": {object: packed(append(bytes.Repeat([]byte("w"), 80<<20), disk...),
			zstd.WithWindowSize(64<<20)), size: int64(len(disk)), says: "window size exceeded"},
		"a link": {object: whole, size: int64(len(disk)), link: true, says: "malformed"},
		"nothing there": {size: 512, says: "object not found",
			change: func(m *jetstream.ObjectMeta) { m.Name = "elsewhere" }},
	} {
		sum := sha256.Sum256(append(disk, name...)) // a separate name, so that rows don't conflict
		if row.says == "" {
			sum = sha256.Sum256(disk)
		}
		b := catalog.Shipped{Arch: unitask.HostArch(), Disk: hex.EncodeToString(sum[:]), Size: row.size}
		b.Owner.Home = "/"
		meta := jetstream.ObjectMeta{Name: imagePrefix + b.Disk}
		if row.change != nil {
			row.change(&meta)
		}
		if row.link {
			target, err := s.files.PutBytes(t.Context(), "target", row.object)
			if err == nil {
				_, err = s.files.AddLink(t.Context(), meta.Name, target)
			}
			if err != nil {
				t.Fatal(err)
			}
		} else if _, err := s.files.Put(t.Context(), meta, bytes.NewReader(row.object)); err != nil {
			t.Fatal(err)
		}
		before := containers(t, rt)
		err := rt.Catalog().TakeShipped(t.Context(), "mallory", b,
			func(ctx context.Context) (io.ReadCloser, error) { return s.openImage(ctx, b) })
		if row.says == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		got := fmt.Sprintf("refused %t, stayed %t", err != nil && strings.Contains(err.Error(), row.says),
			containers(t, rt) != before)
		attack.Check(t, "the object store has an image that is "+name, "refused true, stayed false", got)
	}
}

// A run waits only for the transfer of its own image to the store. It can be cancelled meanwhile, and an image that is
// already there needs no wait.
func TestImageWaits(t *testing.T) {
	t.Parallel()
	s := bucket(t)
	c := &Client{config: Config{Times: Times{Beat: time.Hour}}, images: make(chan struct{}, 1),
		seen: []WorkerInfo{{Images: []string{policy.ShippedImages}}}, seenAt: time.Now()}
	c.images <- struct{}{} // another run's transfer, which takes long
	image := catalog.Shipped{Disk: strings.Repeat("ab", 32)}
	one := &submission{c: c, store: s, run: &unitask.FleetRun{Image: &image}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := one.putImage(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := s.files.PutBytes(t.Context(), imagePrefix+image.Disk, []byte("there")); err != nil {
		t.Fatal(err)
	}
	if err := one.putImage(t.Context()); err != nil {
		t.Errorf("it is there: %v", err)
	}
}

// containers returns the number of containers, and what was started.
func containers(t *testing.T, rt *unitask.Runtime) int {
	t.Helper()
	entries, err := os.ReadDir(rt.Images().Home() + "/containers")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return len(entries)
}
