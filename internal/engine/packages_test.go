package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// The network limits of the caller's ceiling apply to the machine that installs packages for a run.
func TestPackagesReach(t *testing.T) {
	c, err := policy.ParseCeiling("c.toml",
		[]byte("allowNet = []\nmaxConnections = 3\nmaxUploadBytes = 5\nmaxDownloadBytes = 7\n[[net.rule]]\n"+
			"host = \"pypi.example\"\nmethod = \"GET\"\npath = \"/simple/**\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	x := &Execution{Code: &program.Program{Language: language.OfSystem(policy.Pip)}, Live: &egress.LiveRules{Ceiling: c},
		Rec: &record.Run{}, Image: &image.Image{Runtime: "3.11"}}
	x.Rec.Owner, x.Rec.Via = "alice", record.ViaFleet
	to := x.installTarget()
	granted, denials, err := policy.Resolve(policy.Request{AllowNet: []string{"pypi.example:443"},
		MemoryMB: install.MemoryMB}, to.Caller.Ceiling)
	if err != nil || len(denials) > 0 || to.Caller.Name != "alice" || to.Caller.Via != record.ViaFleet {
		t.Fatalf("%+v %v %v", to.Caller, denials, err)
	}
	if got := fmt.Sprint(granted.AllowNet, granted.AllowHTTP, granted.MaxConnections, granted.MaxUpload,
		granted.MaxDownload); got != "[pypi.example:443] [1: GET pypi.example/simple/**] 3 5 7" {
		t.Error(got)
	}
}

// Packages for a bundled image are installed in the bundled image, even if a custom image hides that. The custom image
// may have another version of the language, and a wheel for one version would be kept for the other.
func TestBuildInBundledImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for base, container := range map[string]string{"python@3.11": "", "python:3.11": digest} {
		dir := t.TempDir()
		images, err := image.Open(dir, language.Payloads(), nil)
		if err != nil {
			t.Fatal(err)
		}
		images.Custom, images.Offline = catalog.CustomPayloads(dir), "a test"
		own, err := json.Marshal(catalog.Custom{Schema: catalog.CustomSchema, Name: "python", From: base,
			Arch: image.HostArch(), Container: container})
		file := home.Dir(dir).CustomFile("python")
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, own, 0o600)); err != nil {
			t.Fatal(err)
		}
		if o, err := catalog.ReadCustom(dir, "python"); err != nil || o.From != base {
			t.Fatal(o, err)
		}
		l := language.OfSystem(policy.Pip)
		x := &Execution{Code: &program.Program{Language: l, Image: l.Image("python"), Arch: image.HostArch()},
			Live:   &egress.LiveRules{},
			engine: &Engine{Images: images, Catalog: &catalog.Catalog{Home: dir, Images: images}}}
		err = x.resolveImage(t.Context())
		if !errors.Is(err, image.ErrOffline) || !strings.Contains(err.Error(), "parts of the python image") ||
			strings.Contains(err.Error(), "@bookworm") {
			t.Errorf("with a custom image over %s: %v", base, err)
		}
	}
}
