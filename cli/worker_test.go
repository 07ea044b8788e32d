package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/image"
)

// A worker's keys are for all tenants, or for one of its tenants. No other process may be able to read them.
func TestWorkerSessionKeys(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two := file("one", strings.Repeat("01", 32)+"\n", 0o600), file("two", strings.Repeat("02", 32), 0o600)
	for _, row := range []struct {
		keys       []string
		all, alice byte // the owner of the key, 0 for none
		says       string
	}{
		{},
		{keys: []string{one}, all: 1},
		{keys: []string{one, "alice=" + two}, all: 1, alice: 2},
		{keys: []string{"alice=" + two}, alice: 2},
		{keys: []string{"bob=" + two}, says: "no --tenant bob"},
		{keys: []string{one, two}, says: "another one"},
		{keys: []string{"alice=" + one, "alice=" + two}, says: "another one"},
		{keys: []string{file("seen", strings.Repeat("01", 32), 0o644)}, says: "chmod 600"},
		{keys: []string{file("short", "0102", 0o600)}, says: "64 hex digits"},
		{keys: []string{filepath.Join(dir, "none")}, says: "no such file"},
	} {
		tenants := []fleet.Tenant{{Name: "alice"}}
		all, err := (&workerFlags{sessionKeys: row.keys}).readSessionKeys(tenants)
		if row.says != "" {
			if err == nil || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%q: %v", row.keys, err)
			}
			continue
		}
		is := func(key []byte, of byte) bool {
			return of == 0 && key == nil || of != 0 && bytes.Equal(key, bytes.Repeat([]byte{of}, 32))
		}
		if err != nil || !is(all, row.all) || !is(tenants[0].SessionKey, row.alice) {
			t.Errorf("%q: %v, %x, %x", row.keys, err, all, tenants[0].SessionKey)
		}
	}
}

// A worker's list of images says whose shipped images they are.
func TestShippedRows(t *testing.T) {
	rows := containerRows([]*image.Container{{Digest: "sha256:" + strings.Repeat("a", 64), ShippedBy: "alice"},
		{Digest: "sha256:" + strings.Repeat("b", 64), Names: []string{"docker.io/acme/box:1"}}})
	if rows[0][1] != "(shipped by tenant alice)" || rows[1][1] != "docker.io/acme/box:1" {
		t.Errorf("%q", rows)
	}
}

// The options that join a worker's server with others are given together. No other process may be able to read their
// key.
func TestWorkerCluster(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("01", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := filepath.Join(dir, "seen")
	if err := errors.Join(os.WriteFile(seen, []byte(strings.Repeat("01", 32)+"\n"), 0o640),
		os.Chmod(seen, 0o640)); err != nil {
		t.Fatal(err)
	}
	whole := clusterFlags{listen: ":6222", routes: "nats://a:6222,nats://b:6222", key: key}
	for _, row := range []struct {
		change func(*clusterFlags)
		alone  bool // without --embedded
		says   string
	}{
		{func(*clusterFlags) {}, false, ""},
		{func(*clusterFlags) {}, true, "--embedded"},
		{func(f *clusterFlags) { f.listen = "" }, false, "--cluster-listen HOST:PORT is"},
		{func(f *clusterFlags) { f.routes = "" }, false, "--routes nats://HOST:PORT"},
		{func(f *clusterFlags) { f.key = "" }, false, "openssl rand"},
		{func(f *clusterFlags) { *f = clusterFlags{name: "x"} }, false, "need --routes"},
		{func(f *clusterFlags) { *f = clusterFlags{server: "x"} }, false, "need --routes"},
		{func(f *clusterFlags) { f.key = seen }, false, "--cluster-key " + seen + ": others can read it: chmod 600"},
		{func(f *clusterFlags) { f.key = dir + "/none" }, false, "--cluster-key: stat"},
	} {
		f := whole
		row.change(&f)
		c, err := f.read(!row.alone)
		if row.says != "" {
			if err == nil || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%+v: %v does not say %q", f, err, row.says)
			}
			continue
		}
		if err != nil || len(c.Routes) != 2 || c.Listen != ":6222" || !bytes.Equal(c.Key, bytes.Repeat([]byte{1}, 32)) {
			t.Errorf("%+v: %+v, %v", f, c, err)
		}
	}
	if c, err := (&clusterFlags{}).read(false); c != nil || err != nil {
		t.Errorf("no cluster: %+v, %v", c, err)
	}
}
