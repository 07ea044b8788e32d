package unitask_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// Only its own machine reads a disk that another host's tenant has shipped: no image of the user begins with it.
func TestAttackShippedBase(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	disk := bytes.Repeat([]byte("no file system"), 512)
	b := catalog.Shipped{Arch: unitask.HostArch(), Disk: sha256Hex(disk), Size: int64(len(disk))}
	b.Owner.Home = "/"
	err = rt.Catalog().TakeShipped(t.Context(), "mallory", b,
		func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(disk)), nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []string{"run = ['x']", "debian = ['jq']", "pip = ['x']"} {
		_, _, err := rt.BuildImage(t.Context(), describe(t, t.TempDir(), "over",
			"from = '"+b.KeyFor("mallory")+"'\n"+more+"\n"), "")
		var field *policy.FieldError
		refused := errors.As(err, &field) && strings.Contains(err.Error(),
			"was shipped by another host, as the tenant mallory's")
		attack.Check(t, "an image over a shipped one, "+more+": refused", "true", fmt.Sprint(refused))
	}
}
