package fleet_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/policy"
)

// boxImage writes a container image, in docker save's format, with busybox and a file.
func boxImage(t *testing.T, base, name, content string) string {
	t.Helper()
	box, err := os.ReadFile(filepath.Join(base, "vendor", runtime.GOARCH, "busybox", "root", "bin", "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	type file struct{ name, text, link string }
	archive := func(to string, files ...file) (sum string) {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, f := range files {
			h := &tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(f.text))}
			if f.link != "" {
				h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
			}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(f.text)); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		if err := os.WriteFile(to, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%x", sha256.Sum256(out.Bytes()))
	}
	dir := t.TempDir()
	layer := filepath.Join(dir, "layer.tar")
	sum := archive(layer, file{name: "bin/busybox", text: string(box)}, file{name: "bin/sh", link: "busybox"},
		file{name: "bin/cat", link: "busybox"}, file{name: "what", text: content})
	text, err := os.ReadFile(layer)
	if err != nil {
		t.Fatal(err)
	}
	config := asJSON(map[string]any{"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Env": []string{"OF=the-image"}, "WorkingDir": "/bin"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum}}})
	list := asJSON([]map[string]any{{"Config": "config.json", "RepoTags": []string{name},
		"Layers": []string{"layer.tar"}}})
	saved := filepath.Join(dir, "saved.tar")
	archive(saved, file{name: "manifest.json", text: list}, file{name: "config.json", text: config},
		file{name: "layer.tar", text: string(text)})
	return saved
}

// A worker runs a submitter's container image that it does not have, if its ceiling allows shipped images. It gets the
// image once. Another worker's ceiling refuses or allows the image by its digest.
func TestShippedImage(t *testing.T) {
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	dir := t.TempDir()
	ns := startNATS(t, nil)
	worker := func(tenant, ceiling string) *unitask.Runtime {
		t.Helper()
		c, err := policy.ParseCeiling(filepath.Join(dir, tenant+".toml"), []byte(ceiling))
		if err != nil {
			t.Fatal(err)
		}
		rt, err := unitask.Open(unitask.Options{Home: testhome.New(t, base)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { rt.Close() })
		config := workerConfig(ns.ClientURL(), 1)
		config.Tenant = tenant
		if policy.ForFleet(c).TakesImages() {
			config.Info.Images = []string{policy.ShippedImages}
		}
		startWorker(t, config, fleet.OnHost(rt, c))
		return rt
	}
	home := testdir.Private(t)
	submit := func(tenant string, req unitask.Request) (*unitask.Result, error) {
		t.Helper()
		client, err := fleet.Connect(fleet.Config{URL: ns.ClientURL(), Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		rt, err := unitask.Open(unitask.Options{Home: home, Fleet: client})
		if err != nil {
			t.Fatal(err)
		}
		defer rt.Close()
		return rt.Run(t.Context(), req, unitask.IO{})
	}
	b := bringBox(t, home, base)
	ask := unitask.Request{Image: "acme/box:1", Exec: true, Args: []string{"sh", "-c", `cat /what; echo "$OF"; pwd`},
		Cold: true}

	takes := worker(fleet.DefaultTenant, `images = ["node", "shipped"]`)
	_, js := dial(t, ns.ClientURL())
	files, err := js.ObjectStore(t.Context(), "unitask-files-default")
	if err != nil {
		t.Fatal(err)
	}
	bringTwice(t, submit, ask, takes, files, b)

	t.Run("by the digest", func(t *testing.T) {
		worker("dora", fmt.Sprintf(`images = [%q]`, b.Digest()))
		if res, err := submit("dora", ask); err != nil || !strings.HasPrefix(string(res.Stdout), "of the submitter") {
			t.Errorf("%v %s", err, asJSON(res))
		}
	})
	t.Run("refused", func(t *testing.T) {
		refuseImage(t, worker, b, ask, submit)
	})
	t.Run("another tenant's", func(t *testing.T) { // on the worker that has it
		key := b.KeyFor(fleet.DefaultTenant)
		for _, req := range []unitask.Request{{Image: key, Exec: true, Args: []string{"cat", "/what"}},
			{Image: key[:19], Exec: true, Args: []string{"cat", "/what"}}} {
			if res, err := submit(fleet.DefaultTenant, req); err == nil {
				t.Errorf("%s is had by its name: %s", req.Image, asJSON(res))
			}
		}
	})
	t.Run("forged", func(t *testing.T) {
		forgeImages(t, b, files, js, takes)
	})
}

// bringBox imports a container image, and returns its shipped form.
func bringBox(t *testing.T, home, base string) image.Shipped {
	t.Helper()
	local, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	c, err := local.Catalog().Import(t.Context(), boxImage(t, base, "acme/box:1", "of the submitter\n"), "", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := local.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := local.Images().Containers().Ship(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// bringTwice runs with a shipped image twice: first the worker lacks it, then the worker has it.
func bringTwice(
	t *testing.T, submit func(tenant string, req unitask.Request) (*unitask.Result, error), ask unitask.Request,
	takes *unitask.Runtime, files jetstream.ObjectStore, b image.Shipped,
) {
	t.Helper()
	for _, round := range []string{"it comes along", "it is there"} {
		res, err := submit(fleet.DefaultTenant, ask)
		if err != nil || string(res.Stdout) != "of the submitter\nthe-image\n/bin\n" {
			t.Fatalf("%s: %v %s", round, err, asJSON(res))
		}
		list, err := takes.Images().Containers().List()
		if err != nil || len(list) != 1 || list[0].ShippedBy != fleet.DefaultTenant {
			t.Fatalf("%s: %v %s", round, err, asJSON(list))
		}
		if round == "it is there" {
			continue
		}
		// The worker does not look at the tenant's replacement.
		if _, err := files.PutString(t.Context(), "image-"+b.Disk, "poison"); err != nil {
			t.Fatal(err)
		}
	}
}

// refuseImage checks who is refused an image.
func refuseImage(
	t *testing.T, worker func(tenant string, ceiling string) *unitask.Runtime, b image.Shipped,
	ask unitask.Request, submit func(tenant string, req unitask.Request) (*unitask.Result, error),
) {
	t.Helper()
	rt := worker("bob", `images = ["node", "shell", "sha256:`+strings.Repeat("0", 64)+`"]`)
	key := b.KeyFor(fleet.DefaultTenant)
	for what, req := range map[string]unitask.Request{b.Digest(): ask,
		key: {Image: key, Exec: true, Args: []string{"cat", "/what"}}} {
		_, err := submit("bob", req)
		var field *policy.FieldError
		if !errors.As(err, &field) || field.Field != "image" || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if list, err := rt.Images().Containers().List(); err != nil || len(list) > 0 {
		t.Errorf("%v %s", err, asJSON(list))
	}
}

// forgeImages makes a tenant send images that do not match their digests.
func forgeImages(
	t *testing.T, b image.Shipped, files jetstream.ObjectStore, js jetstream.JetStream, takes *unitask.Runtime,
) {
	t.Helper()
	with := func(change func(*catalog.Shipped)) catalog.Shipped { lie := b; change(&lie); return lie }
	poison := strings.Repeat("0", 64)
	if _, err := files.PutString(t.Context(), "image-"+poison, "poison"); err != nil {
		t.Fatal(err)
	}
	for i, row := range []struct {
		image catalog.Shipped
		says  string
	}{
		{with(func(b *catalog.Shipped) { b.Disk = poison }), "shipped"},
		{with(func(b *catalog.Shipped) { b.Disk = strings.Repeat("1", 64) }), "object not found"},
		{with(func(b *catalog.Shipped) { b.Disk = "../../etc/passwd" }), "digest is"},
		{with(func(b *catalog.Shipped) { b.Size = 1 << 50 }), "whole sectors"},
		{with(func(b *catalog.Shipped) { b.Size = 512 }), "shipped"},
		{with(func(b *catalog.Shipped) { b.Arch = "arm6502" }), "this host has"},
		{with(func(b *catalog.Shipped) { b.Owner.Home = "../.." }), "malformed"},
	} {
		last := forge(t, js, fmt.Sprint("forged-", i), map[string]any{"request": map[string]any{"image": "acme/box:1",
			"exec": true, "args": []string{"cat", "/what"}}, "image": row.image})
		if !strings.Contains(last, row.says) || strings.Contains(last, "of the submitter") {
			t.Errorf("%+v: %s", row.image, last)
		}
	}
	if list, err := takes.Images().Containers().List(); err != nil || len(list) != 1 {
		t.Errorf("%v %s", err, asJSON(list))
	}
}
