package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/testdir"
)

// An image from a tenant is removed by the digest that image ls shows, although nothing runs by that digest.
func TestShippedByDigits(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	disk := make([]byte, 4096)
	sum := sha256.Sum256(disk)
	b := catalog.Shipped{Arch: unitask.HostArch(), Disk: hex.EncodeToString(sum[:]), Size: int64(len(disk))}
	b.Owner.Home = "/"
	if err := rt.Catalog().TakeShipped(t.Context(), "alice", b,
		func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(disk)), nil }); err != nil {
		t.Fatal(err)
	}
	list, err := rt.Images().Containers().List()
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	shown := containerRows(list)[0][0]
	if c := containerNamed(rt, shown); c == nil || c.Digest != b.KeyFor("alice") {
		t.Errorf("%s: %+v", shown, c)
	}
	if c := containerNamed(rt, "sha256:"+hex.EncodeToString(sum[:6])); c != nil {
		t.Errorf("another digest: %+v", c)
	}
}
