package unitask_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/policy"
)

// To a ceiling, an image imported under a registry's name is not an image of that registry. Nothing boots here.
func TestAttackImportedName(t *testing.T) {
	needVM(t) // its parts include busybox
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	const name = "ghcr.io/acme/tool:1"
	c, err := rt.Catalog().Import(t.Context(), boxImage(t, "docker.io/library/tool:1", nil), name, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ images, asked string }{
		{`"ghcr.io/acme/*"`, name},
		{`"ghcr.io/acme/tool:1"`, name},
		{`"docker.io/library/*"`, "docker.io/library/tool:1"},
		{`"docker.io/library/*"`, "tool:1"},
		{`"ghcr.io/acme/*"`, "ghcr.io/acme/tool@" + c.Digest},
	} {
		ceiling, err := policy.ParseCeiling(policy.CeilingFile, []byte("images = ["+row.images+"]"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = rt.RunFor(t.Context(), unitask.Caller{Ceiling: ceiling},
			unitask.Request{Image: row.asked, Exec: true, Args: []string{"/bin/busybox", "true"}}, unitask.IO{})
		got := "refused"
		if !errors.As(err, new(*policy.FieldError)) || !strings.Contains(err.Error(), "was imported under that name") {
			got = fmt.Sprint(err)
		}
		attack.Check(t, "an imported image, as "+strings.Replace(row.asked, c.Digest, "DIGEST", 1)+" under a ceiling of "+
			row.images, "refused", got)
	}
	for _, entry := range []string{c.Digest[:19], c.Digest[:70]} {
		got := "refused"
		if _, err := policy.ParseCeiling(policy.CeilingFile, []byte(fmt.Sprintf("images = [%q]", entry))); err == nil {
			got = "taken"
		}
		attack.Check(t, fmt.Sprintf("a ceiling with %d characters of a digest", len(entry)), "refused", got)
	}
}
