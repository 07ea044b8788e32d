package fleet_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
)

// ownFleet is a fleet whose workers are in this process, each with its own home and ceiling.
type ownFleet struct {
	base, url string
}

func compressed(t *testing.T, content []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(content, nil)
}

func startOwnFleet(t *testing.T) *ownFleet {
	t.Helper()
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	return &ownFleet{base, startNATS(t, nil).ClientURL()}
}

func (f *ownFleet) worker(t *testing.T, tenant, ceiling string) *unitask.Runtime {
	t.Helper()
	c, err := policy.ParseCeiling(filepath.Join(t.TempDir(), "of-the-worker.toml"), []byte(ceiling))
	if err != nil {
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: testhome.New(t, f.base)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	config := workerConfig(f.url, 1)
	config.Tenant = tenant
	if policy.ForFleet(c).TakesImages() {
		config.Info.Images = []string{policy.ShippedImages}
	}
	startWorker(t, config, fleet.OnHost(rt, c))
	return rt
}

func (f *ownFleet) submit(t *testing.T, home, tenant string, ceiling *policy.Ceiling,
	req unitask.Request) (*unitask.Result, error) {
	t.Helper()
	client, err := fleet.Connect(fleet.Config{URL: f.url, Tenant: tenant})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	rt, err := unitask.Open(unitask.Options{Home: home, Fleet: client})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	return rt.RunFor(t.Context(), unitask.Caller{Ceiling: ceiling}, req, unitask.IO{})
}

// build builds a custom image in a home, from a file in its own folder.
func build(t *testing.T, home, name, text string, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for at, content := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, at)), 0o700),
			os.WriteFile(filepath.Join(dir, at), []byte(content), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, name+".toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if _, _, err := rt.BuildImage(t.Context(), file, ""); err != nil {
		t.Fatal(err)
	}
}

// tookAlong returns the digests of the shipped images that a worker keeps.
func tookAlong(t *testing.T, rt *unitask.Runtime) (digests []string) {
	t.Helper()
	list, err := rt.Images().Containers().List()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		digests = append(digests, c.Digest)
	}
	return digests
}

var cameAs = regexp.MustCompile(`shipped as (sha256:[0-9a-f]{64})`)

// showsWords prints what the image words has.
const showsWords = "import os, subprocess, sys\nwarm = 'colorsys' in sys.modules\ntry:\n" +
	" open('/opt/words/new', 'w')\n" +
	"except OSError as e:\n no = e.errno\n" +
	"print(open('/opt/words/a.txt').read(), os.environ['WHO'], no, subprocess.run('/opt/words/tool', " +
	"capture_output=True, text=True).stdout.strip(), warm)"

// A custom image is shipped once to a worker that accepts such images: its files, variables and memory over the
// worker's own python. Another ceiling refuses it, whatever images of that name the worker has, or allows it by its
// digest.
func TestOwnImageAlong(t *testing.T) {
	f := startOwnFleet(t)
	home := testhome.New(t, f.base)
	build(t, home, "words",
		"from = 'python'\nmemoryMb = 320\nwarm = ['colorsys']\n[files]\n'/opt/words' = 'words'\n[env]\n"+
			"WHO = 'the submitter'\n", map[string]string{"words/a.txt": "one", "words/tool": "#!/bin/sh\necho tool\n"})
	ask := unitask.Request{Image: "words", Cold: true, Code: showsWords}
	const want = "one the submitter 30 tool False\n" // EROFS

	var digest string
	t.Run("refused", func(t *testing.T) {
		rt := f.worker(t, "bob", `images = ["python", "words", "node"]`)
		build(t, rt.Images().Home(), "words", "from = 'python'\n[env]\nWHO = 'the worker'\n", nil)
		_, err := f.submit(t, home, "bob", nil, ask)
		var field *policy.FieldError
		if !errors.As(err, &field) || field.Field != "image" || field.Value != "words" ||
			!strings.Contains(err.Error(), "of-the-worker.toml") || !cameAs.MatchString(err.Error()) {
			t.Fatalf("%v", err)
		}
		digest = cameAs.FindStringSubmatch(err.Error())[1]
		if took := tookAlong(t, rt); len(took) > 0 {
			t.Errorf("it was taken: %v", took)
		}
	})
	t.Run("refused here", func(t *testing.T) {
		c, err := policy.ParseCeiling("of-the-submitter.toml", []byte(`images = ["python"]`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.submit(t, home, "bob", c, ask); err == nil || !strings.Contains(err.Error(), "of-the-submitter.toml") {
			t.Errorf("%v", err)
		}
	})

	takes := f.worker(t, fleet.DefaultTenant, `images = ["shipped"]`)
	_, js := dial(t, f.url)
	files, err := js.ObjectStore(t.Context(), "unitask-files-default")
	if err != nil {
		t.Fatal(err)
	}
	if res, err := f.submit(t, home, fleet.DefaultTenant, nil, ask); err != nil || string(res.Stdout) != want ||
		res.MemoryMB != 320 || res.Policy.Effective.Image != "words" {
		t.Fatalf("%v %s", err, asJSON(res))
	}
	replaceStored(t, files)
	took := tookAlong(t, takes)
	if len(took) != 1 {
		t.Fatalf("the worker keeps %v", took)
	}
	key := took[0]
	if machine.CanClone {
		if _, err := takes.MakeTemplate(t.Context(), unitask.MachineClass{Image: key, MemoryMB: 320}); err != nil {
			t.Fatal(err)
		}
		again := ask
		again.Cold = false
		if res, err := f.submit(t, home, fleet.DefaultTenant, nil, again); err != nil ||
			string(res.Stdout) != strings.Replace(want, "False", "True", 1) || !res.Cloned {
			t.Errorf("a clone, in which colorsys is imported: %v %s", err, asJSON(res))
		}
	}

	t.Run("over a container's image", func(t *testing.T) { // it is shipped like any container image
		bringOverContainer(t, home, f)
	})
	t.Run("by the digest", func(t *testing.T) {
		f.worker(t, "dora", fmt.Sprintf(`images = ["node", %q]`, digest))
		if res, err := f.submit(t, home, "dora", nil, ask); err != nil || string(res.Stdout) != want {
			t.Errorf("%v %s", err, asJSON(res))
		}
	})
	t.Run("another tenant's", func(t *testing.T) { // another tenant can't find out whether the image exists, either
		bringOfAnother(t, key, f, home)
	})
	t.Run("forged", func(t *testing.T) {
		f.forgeOwn(t, takes)
	})
}

// replaceStored makes the tenant replace a shipped image in the store.
func replaceStored(t *testing.T, files jetstream.ObjectStore) {
	t.Helper()
	list, err := files.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list { // the tenant's replacement is not read any more
		if strings.HasPrefix(o.Name, "image-") {
			if _, err := files.PutString(t.Context(), o.Name, "poison"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// bringOverContainer ships the additions of a custom image to a container image.
func bringOverContainer(t *testing.T, home string, f *ownFleet) {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	_, err = rt.Catalog().Import(t.Context(), boxImage(t, f.base, "acme/box:1", "of the container\n"), "", "")
	if err = errors.Join(err, rt.Close()); err != nil {
		t.Fatal(err)
	}
	build(t, home, "boxed",
		"from = 'acme/box:1'\nmemoryMb = 300\n[files]\n'/opt/words' = 'words'\n[env]\nWHO = 'the submitter'\n",
		map[string]string{"words/a.txt": "one\n"})
	req := unitask.Request{Image: "boxed", Exec: true, Cold: true,
		Args: []string{"sh", "-c", `cat /what /opt/words/a.txt; echo "$WHO"`}}
	if res, err := f.submit(t, home, fleet.DefaultTenant, nil, req); err != nil ||
		string(res.Stdout) != "of the container\none\nthe submitter\n" || res.MemoryMB != 300 {
		t.Errorf("%v %s", err, asJSON(res))
	}
	f.worker(t, "bob", `images = ["python", "boxed", "node"]`)
	if _, err := f.submit(t, home, "bob", nil, req); err == nil || !cameAs.MatchString(err.Error()) ||
		!strings.Contains(err.Error(), "of-the-worker.toml") {
		t.Errorf("a worker that takes none: %v", err)
	}
}

// bringOfAnother checks that a tenant neither gets nor finds another's image.
func bringOfAnother(t *testing.T, key string, f *ownFleet, home string) {
	t.Helper()
	none := "sha256:" + strings.Repeat("0", 64)
	for _, change := range []func(*unitask.Request){
		func(r *unitask.Request) {}, func(r *unitask.Request) { r.Image = r.Image[:19] },
		func(r *unitask.Request) { r.Language = "js" },
		func(r *unitask.Request) { r.Code, r.Exec, r.Args = "", true, []string{"cat", "/opt/words/a.txt"} },
		func(r *unitask.Request) { r.Kernel = unitask.Nanos },
	} {
		var said []string
		for _, name := range []string{key, none} {
			req := unitask.Request{Image: name, Code: "print(1)", Language: "python"}
			change(&req)
			res, err := f.submit(t, home, fleet.DefaultTenant, nil, req)
			if err == nil {
				t.Fatalf("%s is had by its name: %s", req.Image, asJSON(res))
			}
			said = append(said, strings.ReplaceAll(err.Error(), req.Image, "IMAGE"))
		}
		if said[0] != said[1] {
			t.Errorf("one that is there: %s\none that is not: %s", said[0], said[1])
		}
	}
}

// forgeOwn makes a tenant write by hand false data about a custom image that no client sends.
func (f *ownFleet) forgeOwn(t *testing.T, takes *unitask.Runtime) {
	_, js := dial(t, f.url)
	files, err := js.ObjectStore(t.Context(), "unitask-files-default")
	if err != nil {
		t.Fatal(err)
	}
	before := len(tookAlong(t, takes))
	put := func(headers ...tar.Header) catalog.Shipped {
		var content bytes.Buffer
		w := tar.NewWriter(&content)
		for _, h := range headers {
			h.Mode = 0o644
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content.Bytes())
		b := catalog.Shipped{Arch: unitask.HostArch(), Disk: hex.EncodeToString(sum[:]), Size: int64(content.Len()),
			Custom: &image.ShippedCustom{Base: "python"}}
		if _, err := files.PutBytes(t.Context(), "image-"+b.Disk, compressed(t, content.Bytes())); err != nil {
			t.Fatal(err)
		}
		return b
	}
	fine := put(tar.Header{Name: "opt/a", Typeflag: tar.TypeReg})
	with := func(change func(*catalog.Shipped)) catalog.Shipped {
		lie, own := fine, *fine.Custom
		lie.Custom = &own
		change(&lie)
		return lie
	}
	for i, row := range []struct {
		image catalog.Shipped
		says  string
	}{
		{with(func(b *catalog.Shipped) {
			b.Disk = put(tar.Header{Name: "opt/b", Typeflag: tar.TypeReg}).Disk
			b.Size += 512
		}), "not what its digest says"},
		{with(func(b *catalog.Shipped) { b.Disk = strings.Repeat("1", 64) }), "object not found"},
		{with(func(b *catalog.Shipped) { b.Disk = "../../etc/passwd" }), "digest is"},
		{with(func(b *catalog.Shipped) { b.Size = 2 << 30 }), "whole sectors"},
		{with(func(b *catalog.Shipped) { b.Arch = "arm6502" }), "this host has"},
		{with(func(b *catalog.Shipped) { b.Custom.Base = "alpine:3.20" }), "which this host has not"},
		{with(func(b *catalog.Shipped) { b.Custom.Base = "words" }), "which this host has not"},
		{with(func(b *catalog.Shipped) { b.Custom.Base = "" }), "which this host has not"},
		{with(func(b *catalog.Shipped) { b.Custom.Env = map[string]string{"A=B": "c"} }), "can't be a variable"},
		{with(func(b *catalog.Shipped) { b.Custom.Env = map[string]string{"A": strings.Repeat("x", 64<<10)} }),
			"can't be a variable"},
		{with(func(b *catalog.Shipped) { b.Custom.Warm = []string{"os\nimport evil"} }), "no name of a module"},
		{with(func(b *catalog.Shipped) { b.Custom.Folders = []string{"/"} }), "has a folder"},
		{with(func(b *catalog.Shipped) { b.Custom.Folders = []string{"/opt/../../etc"} }), "has a folder"},
		{with(func(b *catalog.Shipped) { b.Custom.Folders = []string{"/" + strings.Repeat("f", 2000)} }), "too many folders"},
		{with(func(b *catalog.Shipped) { b.Custom.Runtime = "3.11\x1b[2J" }), "is for version"},
		{with(func(b *catalog.Shipped) { b.Custom = nil }), "malformed"}, // a disk of another image
		{put(tar.Header{Name: "../../outside", Typeflag: tar.TypeReg}), "can't be"},
		{put(tar.Header{Name: "opt/dev", Typeflag: tar.TypeBlock}), "neither a file nor a link"},
		{put(tar.Header{Name: "opt/l", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
			tar.Header{Name: "opt/l/passwd", Typeflag: tar.TypeReg}), "no folder"},
	} {
		last := forge(t, js, fmt.Sprint("forged-", i), map[string]any{"request": map[string]any{"image": "words",
			"code": "print('it ran')"}, "image": row.image})
		if !strings.Contains(last, row.says) || strings.Contains(last, "it ran") {
			t.Errorf("%s: %s", asJSON(row.image), last)
		}
		if now := len(tookAlong(t, takes)); now != before {
			t.Errorf("%s: the worker keeps %d images", row.says, now)
		}
	}
	// The image's files can't replace folders of the base image; this is detected when the image's disk is written.
	odd := put(tar.Header{Name: "usr", Typeflag: tar.TypeReg})
	if last := forge(t, js, "forged-usr", map[string]any{"request": map[string]any{"image": "words",
		"code": "print('it ran')"}, "image": odd}); !strings.Contains(last, "no folder") || strings.Contains(last, "it ran") {
		t.Errorf("%s", last)
	}
}

// wheels is a registry of pip on loopback, with one package, in this host's configuration.
func wheels(t *testing.T, name, version, module string) {
	t.Helper()
	var content bytes.Buffer
	z := zip.NewWriter(&content)
	info := name + "-" + version + ".dist-info/"
	for _, f := range [][2]string{{name + "/__init__.py", module},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", ""}} {
		w, err := z.Create(f[0])
		if err == nil {
			_, err = w.Write([]byte(f[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	file := fmt.Sprintf("/files/%s-%s-py3-none-any.whl", name, version)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case file:
			w.Write(content.Bytes())
		case "/simple/":
		case "/simple/" + name + "/":
			fmt.Fprintf(w, "<a href=\"%s#sha256=%x\">%s</a>\n", file, sha256.Sum256(content.Bytes()), filepath.Base(file))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	for name, value := range map[string]string{"PIP_INDEX_URL": s.URL + "/simple", "PIP_EXTRA_INDEX_URL": "",
		"PIP_CONFIG_FILE": os.DevNull, "PIP_CERT": ""} {
		t.Setenv(name, value)
	}
}

var wantsGreeting = unitask.Request{Language: "python", Packages: []string{"pip:greeting==1.2"}, Cold: true,
	Code: "try:\n import greeting\n print(greeting.TEXT, greeting.__file__)\nexcept ImportError as e:\n" +
		" print(e.name, 'is not there')"}

// Packages that one of the two ceilings forbids are missing, and the record says which ceiling it was.
func TestFleetPackagesDenied(t *testing.T) {
	f := startOwnFleet(t)
	home := testdir.Private(t)
	narrow, err := policy.ParseCeiling("of-the-submitter.toml", []byte(`packages = ["pip:other"]`))
	if err != nil {
		t.Fatal(err)
	}
	f.worker(t, fleet.DefaultTenant, `memoryMb = 1024`)
	f.worker(t, "dora", `packages = ["pip:other"]`)
	for _, row := range []struct {
		tenant string
		here   *policy.Ceiling
		rules  []string
	}{
		{fleet.DefaultTenant, nil, []string{"the worker's built-in ceiling"}},
		{"dora", nil, []string{"of-the-worker.toml"}},
		{"dora", narrow, []string{"of-the-submitter.toml"}},
	} {
		res, err := f.submit(t, home, row.tenant, row.here, wantsGreeting)
		if err != nil || string(res.Stdout) != "greeting is not there\n" || len(res.Packages) > 0 {
			t.Fatalf("%v: %v %s", row.rules, err, asJSON(res))
		}
		rt, err := unitask.Open(unitask.Options{Home: home})
		if err != nil {
			t.Fatal(err)
		}
		in, err := rt.History().Inspect(res.RunID, 0)
		var kept []policy.Denial
		if err == nil {
			err = json.Unmarshal(in.Denials, &kept)
		}
		if err = errors.Join(err, rt.Close()); err != nil || len(kept) != len(row.rules) {
			t.Fatalf("the record has %s: %v", asJSON(kept), err)
		}
		for i, rule := range row.rules {
			if d := kept[i]; d.Field != "packages" || d.Requested != "pip:greeting==1.2" || !strings.Contains(d.Rule, rule) {
				t.Errorf("%s: %s", rule, asJSON(kept))
			}
		}
	}
}

// A worker installs the packages of a run from its own pip's registry. The packages of a custom image were installed by
// its submitter and are shipped with it, to a worker that installs none.
func TestFleetPackages(t *testing.T) {
	if os.Getenv("UNITASK_TEST_LONG") == "" {
		t.Skip("pip runs twice in an emulated machine: make long (UNITASK_TEST_LONG=1)")
	}
	f := startOwnFleet(t)
	tools, err := unitask.Open(unitask.Options{Home: testhome.New(t, f.base)})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = tools.Images().Parts().Tool(t.Context(), unitask.HostArch(), image.PipTool) // from the host's registry
	if err = errors.Join(err, tools.Close()); err != nil {
		t.Fatal(err)
	}
	wheels(t, "greeting", "1.2", "TEXT = 'installed'\n")
	home := testhome.New(t, f.base)
	const there = "installed /usr/local/lib/python3"

	worker := f.worker(t, fleet.DefaultTenant, `packages = ["pip:greeting"]`)
	res, err := f.submit(t, home, fleet.DefaultTenant, nil, wantsGreeting)
	if err != nil || !strings.HasPrefix(string(res.Stdout), there) || len(res.Packages) != 1 ||
		res.Packages[0].Name != "pip:greeting" || res.Packages[0].Version != "1.2" {
		t.Fatalf("%v %s", err, asJSON(res))
	}
	if keys, err := worker.Packages().Keys(); err != nil || len(keys) != 1 {
		t.Errorf("the worker keeps %v %v", keys, err)
	}

	build(t, home, "greets", "from = 'python'\npip = ['greeting==1.2']\n", nil)
	own := wantsGreeting
	own.Language, own.Image, own.Packages = "", "greets", nil
	f.worker(t, "erin", `images = ["shipped"]`)
	if res, err := f.submit(t, home, "erin", nil, own); err != nil || !strings.HasPrefix(string(res.Stdout), there) {
		t.Errorf("%v %s", err, asJSON(res))
	}
}
