package catalog

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	ociregistry "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/home/config"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/run"
)

// A registry's login comes from the source in the home's configuration, and is in no stored file.
func TestRegistryLogins(t *testing.T) {
	const password = "pw-Hd83kQz0vB"
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	real := ociregistry.New(ociregistry.Logger(log.New(io.Discard, "", 0)))
	open := httptest.NewServer(real)
	defer open.Close()
	shut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, given, _ := r.BasicAuth(); user != "me" || given != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		real.ServeHTTP(w, r)
	}))
	defer shut.Close()
	pushTool(t, open)
	home, at := testdir.Private(t), strings.TrimPrefix(shut.URL, "http://")
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	images, err := image.Open(home, language.Payloads(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	journal := &audit.Journal{Log: audit.In(home), OnError: func(err error) { t.Error(err) }}
	cat := &Catalog{Home: home, Images: images, Journal: journal, Tell: func(run.Event) {}}
	pull := func(text string) error {
		t.Helper()
		file := filepath.Join(home, config.File)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := cat.Pull(t.Context(), at+"/acme/tool:1", "")
		return err
	}
	t.Setenv("REGISTRY_PASSWORD", password)
	login := func(password string) string {
		return fmt.Sprintf("[registries.%q]\nuser = \"me\"\npassword = %q\n", at, password)
	}
	for text, says := range map[string]string{
		"": "wants a login",
		// another registry's
		fmt.Sprintf("[registries.\"x%s\"]\nuser = \"me\"\npassword = \"env:REGISTRY_PASSWORD\"\n", at): "wants a login",
		login("env:NO_SUCH_VARIABLE"):   "the login of " + at + ": the environment has no NO_SUCH_VARIABLE",
		login("cmd:pass:x"):             `has no helper "pass"`,
		login(password):                 "is no source of a secret",
		login("file:"+secret) + "x = 1": "unknown key registries." + at + ".x",
	} {
		err := pull(text)
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `"`, ""), strings.ReplaceAll(says, `"`, "")) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := os.Chmod(filepath.Join(home, config.File), 0o622); err != nil {
		t.Fatal(err)
	}
	if err := pull(login("env:REGISTRY_PASSWORD")); err == nil || !strings.Contains(err.Error(), "others can write it") {
		t.Errorf("a configuration that others can write: %v", err)
	}
	if err := os.Chmod(filepath.Join(home, config.File), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := images.Containers().List(); err != nil || len(list) != 0 {
		t.Errorf("pulled: %v %v", list, err)
	}
	for _, source := range []string{"file:" + secret, "env:REGISTRY_PASSWORD"} {
		if err := pull(login(source)); err != nil {
			t.Errorf("%s: %v", source, err)
		}
	}
	if list, err := images.Containers().List(); err != nil || len(list) != 1 || len(list[0].Names) != 1 {
		text, _ := json.Marshal(list)
		t.Errorf("pulled: %s %v", text, err)
	}
	findPassword(t, home, password)
}

// pushTool pushes an image to the open registry.
func pushTool(t *testing.T, open *httptest.Server) {
	t.Helper()
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	if err := w.WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser,
		error) {
		return io.NopCloser(bytes.NewReader(content.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	im, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	c, err := im.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", string(image.HostArch())
	if im, err = mutate.ConfigFile(im, c); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(strings.TrimPrefix(open.URL, "http://") + "/acme/tool:1")
	if err == nil {
		err = remote.Write(ref, im)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// findPassword checks that no file of the home has the password.
func findPassword(t *testing.T, home, password string) {
	t.Helper()
	if err := filepath.WalkDir(home, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(name)
		if bytes.Contains(text, []byte(password)) {
			t.Errorf("%s has the password", name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
