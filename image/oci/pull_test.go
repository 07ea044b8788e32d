package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// made returns an image of these layers.
func made(t testing.TB, arch, user string, layers ...[]byte) v1.Image {
	t.Helper()
	im := empty.Image
	var err error
	for _, data := range layers {
		layer, e := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
		if e != nil {
			t.Fatal(e)
		}
		if im, err = mutate.AppendLayers(im, layer); err != nil {
			t.Fatal(err)
		}
	}
	c, err := im.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", arch
	c.Config = v1.Config{Cmd: []string{"/run"}, Env: []string{"A=b"}, WorkingDir: "/w", User: user}
	if im, err = mutate.ConfigFile(im, c); err != nil {
		t.Fatal(err)
	}
	return im
}

func index(t testing.TB, images ...v1.Image) v1.ImageIndex {
	var ix v1.ImageIndex = empty.Index
	for _, im := range images {
		c, err := im.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		ix = mutate.AppendManifests(ix, mutate.IndexAddendum{Add: im,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: c.OS, Architecture: c.Architecture}}})
	}
	return ix
}

// registryWith is a registry on loopback; change, if not nil, may answer instead.
func registryWith(t testing.TB, change func(http.ResponseWriter, *http.Request, http.Handler)) string {
	t.Helper()
	real := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if change != nil && r.Method == http.MethodGet {
			change(w, r, real)
			return
		}
		real.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func reference(t testing.TB, text string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(text)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func TestPull(t *testing.T) {
	at := registryWith(t, nil)
	ref := reference(t, at+"/acme/tool:1")
	mine := made(t, "arm64", "", tarOf(t, text("a", "arm"), text("b", "old")), tarOf(t, text(".wh.b", "")))
	if err := remote.WriteIndex(ref, index(t, made(t, "amd64", "", tarOf(t, text("a", "amd"))), mine)); err != nil {
		t.Fatal(err)
	}
	im, err := Pull(context.Background(), ref.String(), "arm64", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	digest, err := mine.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if im.Digest != digest.String() || im.Config.Dir != "/w" || !slices.Equal(im.Config.Cmd, []string{"/run"}) {
		t.Errorf("got %+v", im)
	}
	f, stats, err := written(t, im, DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	if got := files(t, f, stats); !slices.Equal(got, []string{"a arm", "w/"}) {
		t.Errorf("got %q", got)
	}
}

type pullFailsRow struct {
	name, tag, arch, want string
	change                func(http.ResponseWriter, *http.Request, http.Handler)
}

// pullFailsRows are the cases of TestPullFails.
func pullFailsRows(
	lying func(change func(manifest map[string]any)) func(http.ResponseWriter, *http.Request, http.Handler),
	configOf func(size int64, data []byte) func(map[string]any),
	garble func(part string) func(http.ResponseWriter, *http.Request, http.Handler),
) []pullFailsRow {
	return []pullFailsRow{
		{"a configuration without an end", "tool:1", "amd64", "configuration has -1 bytes", lying(configOf(-1, nil))},
		{"a configuration of any size", "tool:1", "amd64", "is the most", lying(configOf(1<<40, nil))},
		{"a configuration in the manifest", "tool:1", "amd64", "is the most", lying(configOf(10, make([]byte, maxText+1)))},
		{"layer upon layer", "tool:1", "amd64", "has 257 layers; 256 is the most", lying(func(manifest map[string]any) {
			manifest["layers"] = slices.Repeat(manifest["layers"].([]any), 257)
		})},
		{"no such image", "nosuch:1", "amd64", "has no such image", nil},
		{"no such architecture", "tool:1", "arm64", "arm64", nil},
		{"a layer or a configuration that is another one", "tool:1", "amd64", "sha256", garble("/blobs/")},
		{"a login is wanted", "tool:1", "amd64", "wants a login",
			func(w http.ResponseWriter, r *http.Request, real http.Handler) {
				http.Error(w, `{"errors":[{"code":"DENIED"}]}`, http.StatusForbidden)
			}},
		{"it is broken", "tool:1", "amd64", "500", func(w http.ResponseWriter, r *http.Request, real http.Handler) {
			http.Error(w, "broken", http.StatusInternalServerError)
		}},
		{"a manifest that is none", "tool:1", "amd64", "registry",
			func(w http.ResponseWriter, r *http.Request, real http.Handler) {
				if strings.Contains(r.URL.Path, "/manifests/") {
					_, _ = w.Write([]byte("<html>"))
					return
				}
				real.ServeHTTP(w, r)
			}},
	}
}

// Faults of a registry.
func TestPullFails(t *testing.T) {
	data := tarOf(t, text("a", "A"))
	garble := func(part string) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, real http.Handler) {
			answer := httptest.NewRecorder()
			real.ServeHTTP(answer, r)
			body := answer.Body.Bytes()
			if strings.Contains(r.URL.Path, part) && len(body) > 40 {
				body[len(body)/2] ^= 1
			}
			for key, values := range answer.Header() {
				w.Header()[key] = values
			}
			w.WriteHeader(answer.Code)
			_, _ = w.Write(body)
		}
	}
	lying := func(change func(manifest map[string]any)) func(http.ResponseWriter, *http.Request, http.Handler) {
		return func(w http.ResponseWriter, r *http.Request, real http.Handler) {
			switch {
			case strings.Contains(r.URL.Path, "/manifests/"):
				answer := httptest.NewRecorder()
				real.ServeHTTP(answer, r)
				manifest := map[string]any{}
				_ = json.Unmarshal(answer.Body.Bytes(), &manifest)
				change(manifest)
				w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
				_ = json.NewEncoder(w).Encode(manifest)
			case strings.Contains(r.URL.Path, "/blobs/"):
				t.Errorf("%s was fetched", r.URL.Path)
				http.NotFound(w, r)
			default:
				real.ServeHTTP(w, r)
			}
		}
	}
	configOf := func(size int64, data []byte) func(map[string]any) {
		return func(manifest map[string]any) {
			config, _ := manifest["config"].(map[string]any)
			config["size"] = size
			if data != nil {
				config["data"] = data
			}
		}
	}
	for _, tt := range pullFailsRows(lying, configOf, garble) {
		t.Run(tt.name, func(t *testing.T) {
			at := registryWith(t, tt.change)
			ref := reference(t, at+"/tool:1")
			if err := remote.Write(ref, made(t, "amd64", "", data)); err != nil && tt.change == nil {
				t.Fatal(err)
			}
			im, err := Pull(context.Background(), at+"/"+tt.tag, tt.arch, nil)
			if err == nil {
				_, _, err = written(t, im, DefaultLimits)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	// The error for a missing registry names it, and comes soon.
	gone := httptest.NewServer(http.NotFoundHandler())
	at := strings.TrimPrefix(gone.URL, "http://")
	gone.Close()
	if _, err := Pull(context.Background(), at+"/tool:1", "amd64", nil); err == nil || !strings.Contains(err.Error(), at) {
		t.Errorf("got %v", err)
	}
}

// A digest names exactly one image, whatever its tag has become. A registry that answers with another image is refused
// before any layer is read.
func TestPullPinned(t *testing.T) {
	ours, theirs := made(t, "amd64", "", tarOf(t, text("a", "ours"))), made(t, "amd64", "", tarOf(t, text("a", "theirs")))
	digest, err := ours.Digest()
	if err != nil {
		t.Fatal(err)
	}
	lies, blobs := false, 0
	at := registryWith(t, func(w http.ResponseWriter, r *http.Request, real http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") {
			blobs++
		}
		if lies && strings.HasSuffix(r.URL.Path, "/manifests/"+digest.String()) {
			r.URL.Path = "/v2/tool/manifests/1"
		}
		real.ServeHTTP(w, r)
	})
	for _, im := range []v1.Image{ours, theirs} {
		if err := remote.Write(reference(t, at+"/tool:1"), im); err != nil {
			t.Fatal(err)
		}
	}
	pinned := at + "/tool@" + digest.String()
	im, err := Pull(t.Context(), pinned, "amd64", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	f, stats, err := written(t, im, DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	if got := files(t, f, stats); im.Digest != digest.String() || !slices.Contains(got, "a ours") {
		t.Errorf("%s: %q", im.Digest, got)
	}
	lies, blobs = true, 0
	if _, err := Pull(t.Context(), pinned, "amd64", nil); err == nil || !strings.Contains(err.Error(), at) ||
		!strings.Contains(err.Error(), digest.Hex) || blobs > 0 {
		t.Errorf("%d blobs were read: %v", blobs, err)
	}
}

// saved writes an archive of files by their names.
func saved(t testing.TB, members map[string]string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for name, text := range members {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644,
			Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestOpen(t *testing.T) {
	im := made(t, "amd64", "", tarOf(t, text("a", "A")))
	dir := filepath.Join(t.TempDir(), "layout")
	path, err := layout.Write(dir, index(t, made(t, "arm64", "", tarOf(t, text("a", "arm"))), im))
	if err != nil {
		t.Fatal(err)
	}
	_ = path
	members := map[string]string{}
	if err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		rel, _ := filepath.Rel(dir, name)
		members[rel] = string(text)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	archive := saved(t, members)
	docker := filepath.Join(t.TempDir(), "docker.tar")
	if err := tarball.WriteToFile(docker, reference(t, "acme/tool:1"), im); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{dir, archive, docker} {
		im, err := Open(context.Background(), file, "amd64")
		if err != nil {
			t.Fatal(err)
		}
		f, stats, err := written(t, im, DefaultLimits)
		if err != nil {
			t.Fatal(err)
		}
		if got := files(t, f, stats); !slices.Equal(got, []string{"a A", "w/"}) || im.Config.Dir != "/w" {
			t.Errorf("%s: %q, %+v", file, got, im.Config)
		}
		if file == docker && !slices.Equal(im.Names, []string{"acme/tool:1"}) &&
			!slices.Equal(im.Names, []string{"index.docker.io/acme/tool:1"}) {
			t.Errorf("names %q", im.Names)
		}
		im.Close()
	}
}

// A folder's layers are opened one at a time, when they are read.
func TestOpenKeepsNothingOpen(t *testing.T) {
	const layers = 200
	dir := t.TempDir()
	list, err := json.Marshal([]map[string]any{{"Config": "c", "Layers": slices.Repeat([]string{"l"}, layers)}})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := json.Marshal(slices.Repeat([]string{hashOf(nil).String()}, layers))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"manifest.json": string(list), "l": "",
		"c": `{"rootfs":{"diff_ids":` + string(ids) + `}}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func() int {
		list, err := os.ReadDir("/dev/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := open()
	im, err := Open(context.Background(), dir, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	if now := open(); now > before+layers/2 {
		t.Errorf("%d files are open, of %d before", now, before)
	}
}

// Indexes that name the same index again and again would be read forever.
func TestOpenWide(t *testing.T) {
	dir := t.TempDir()
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o700); err != nil {
		t.Fatal(err)
	}
	text := `{"schemaVersion":2,"manifests":[]}`
	for range maxNested {
		sum := hashOf([]byte(text))
		if err := os.WriteFile(filepath.Join(blobs, sum.Hex), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		one := fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.index.v1+json","size":%d,"digest":%q}`, len(text), sum)
		text = `{"schemaVersion":2,"manifests":[` + strings.Repeat(one+",", 11) + one + `]}`
	}
	if err := os.WriteFile(filepath.Join(dir, "index.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir, "amd64"); err == nil ||
		!strings.Contains(err.Error(), "name more than 1000 images") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := Open(ctx, dir, "amd64"); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Error(err)
	}
}

func TestOpenFails(t *testing.T) {
	im := made(t, "amd64", "", tarOf(t, text("a", "A")))
	layoutOf := func(images ...v1.Image) string {
		dir := filepath.Join(t.TempDir(), "layout")
		if _, err := layout.Write(dir, index(t, images...)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	config, err := im.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	manifest := func(list ...map[string]any) string {
		text, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	packed := filepath.Join(t.TempDir(), "image.tar.gz")
	if err := os.WriteFile(packed, []byte("\x1f\x8b..."), 0o644); err != nil {
		t.Fatal(err)
	}
	leads := layoutOf(im)
	if err := os.Remove(filepath.Join(leads, "index.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(leads, "index.json")); err != nil {
		t.Fatal(err)
	}
	changed := layoutOf(im)
	digest, err := im.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(changed, "blobs", "sha256", digest.Hex), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	one := map[string]any{"Config": "c", "Layers": []string{"l"}}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	fewer := manifest(map[string]any{"Config": "c"})
	of := func(config string) string { return saved(t, map[string]string{"manifest.json": fewer, "c": config}) }
	says := func(config string) string { return of(`{"os":"linux","rootfs":{},"config":` + config + `}`) }
	for _, tt := range []struct{ name, file, want string }{
		{"nothing", filepath.Join(t.TempDir(), "none"), "no such file"},
		{"an empty folder", t.TempDir(), "neither index.json"},
		{"no image", saved(t, map[string]string{"a": ""}), "neither index.json"},
		{"packed", packed, "unpack it first"},
		{"two images", layoutOf(im, made(t, "amd64", "x")), "2 images"},
		{"another architecture", layoutOf(made(t, "arm64", "")), "no image for linux/amd64, but for linux/arm64"},
		{"an index that is a link out", leads, "escapes"},
		{"a manifest that was changed", changed, "has digest"},
		{"no configuration", saved(t, map[string]string{"manifest.json": manifest(one)}), `"c"`},
		{"no layer", saved(t, map[string]string{"manifest.json": manifest(one), "c": string(config)}), `"l"`},
		{"more images", saved(t, map[string]string{"manifest.json": manifest(one, one)}), "2 images"},
		{"fewer layers", of(string(config)), "0 layers"},
		{"a large configuration", saved(t, map[string]string{"manifest.json": manifest(one),
			"c": strings.Repeat(" ", maxText+1)}), "is the most"},
		{"another system", of(`{"os":"windows","rootfs":{}}`), "runs linux"},
		{"a pipe", pipe, "to a file first"},
		{"a NUL byte in a variable", says(`{"Env":["A=\u0000"]}`), `NUL byte in "A=\x00"`},
		{"a NUL byte in a command", says(`{"Cmd":["sh","\u0000"]}`), "NUL byte"},
		{"a NUL byte in a user", says(`{"User":"\u0000"}`), "NUL byte"},
		{"many variables", says(`{"Env":["A=` + strings.Repeat("a", maxWords) + `"]}`), "is the most"},
		{"another kind of digest", saved(t, map[string]string{"manifest.json": manifest(one), "l": "",
			"c": `{"rootfs":{"diff_ids":["md5:00"]}}`}), "unsupported hash"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Open(context.Background(), tt.file, "amd64")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
