package unitask_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/disuse"
	built "github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/internal/testdir"
)

type pruneUnreadRow struct {
	spoil, mend func()
	says        string
	own         bool
}

// pruneUnreadRows are the cases of TestPruneUnread.
func pruneUnreadRows(
	own func(name string, schema int), put func(name string, text string), home string, t *testing.T, pause,
	session string,
) map[string]pruneUnreadRow {
	return map[string]pruneUnreadRow{
		"another schema": {func() { own("odd", 99) }, func() { own("odd", 1) }, "own/odd.json", true},
		"what is no file": {func() { put("own/other.json/x", "") }, func() {
			if err := os.RemoveAll(filepath.Join(home, "own/other.json")); err != nil {
				t.Fatal(err)
			}
		}, "own/other.json", true},
		"a paused session": {func() { put(pause+"/pause.json", "{") }, func() {
			if err := os.RemoveAll(filepath.Join(home, pause)); err != nil {
				t.Fatal(err)
			}
		}, session, false},
		"a paused session of another version": {func() { put(pause+"/pause.json", `{"version":99}`) }, func() {
			put(pause+"/pause.json", fmt.Sprintf(`{"version":1,"imageDigest":%q}`, strings.Repeat("cd", 32)))
		}, session, false},
	}
}

// If data about use can't be read, nothing is removed.
func TestPruneUnread(t *testing.T) {
	home := testdir.Private(t)
	rt := openRuntime(t, unitask.Options{Home: home})
	put := func(name, text string) {
		t.Helper()
		file := filepath.Join(home, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	digest := strings.Repeat("ab", 32)
	im := "images/" + digest + "/image.json"
	others := []string{"own/" + digest + "/files/x", "layers/" + digest + ".tar.zst"}
	there := func(names ...string) (found int) {
		for _, name := range names {
			if _, err := os.Stat(filepath.Join(home, name)); err == nil {
				found++
			}
		}
		return found
	}
	own := func(name string, schema int) {
		const form = `{"schema":%d,"name":%q,"from":"shell","arch":%q}`
		put("own/"+name+".json", fmt.Sprintf(form, schema, name, runtime.GOARCH))
	}
	const session, pause = "20260101-000000000-abcdef", "sessions/20260101-000000000-abcdef"
	for name, c := range pruneUnreadRows(own, put, home, t, pause, session) {
		put(im, fmt.Sprintf(`{"digest":%q,"kernel":"linux","arch":%q,"name":"old"}`, digest, runtime.GOARCH))
		for _, name := range others {
			put(name, "x")
		}
		c.spoil()
		if n, err := rt.Catalog().Prune(t.Context(), disuse.Rule{}); err == nil || n.Count != 0 ||
			!strings.Contains(err.Error(), c.says) || there(im) != 1 {
			t.Errorf("%s: %d images removed, %d left: %v", name, n, there(im), err)
		}
		if c.own {
			own("mine", 1)
			if was, err := rt.Catalog().RemoveCustom(t.Context(), "mine"); !was || err == nil ||
				!strings.Contains(err.Error(), c.says) || there(others...) != 2 {
				t.Errorf("%s: %v, %d left: %v", name, was, there(others...), err)
			}
		}
		c.mend()
		own("mine", 1)
		if was, err := rt.Catalog().RemoveCustom(t.Context(), "mine"); !was || err != nil || there(others...) != 0 {
			t.Errorf("%s, mended: %v, %d left: %v", name, was, there(others...), err)
		}
		if n, err := rt.Catalog().Prune(t.Context(), disuse.Rule{}); err != nil || n.Count != 1 || there(im) != 0 {
			t.Errorf("%s, mended: %d images removed, %d left: %v", name, n, there(im), err)
		}
	}
	// The image of a paused session stays.
	put(im, fmt.Sprintf(`{"digest":%q,"kernel":"linux","arch":%q,"name":"old"}`, digest, runtime.GOARCH))
	put(pause+"/pause.json", fmt.Sprintf(`{"version":1,"imageDigest":%q}`, digest))
	if n, err := rt.Catalog().Prune(t.Context(), disuse.Rule{}); err != nil || n.Count != 0 || there(im) != 1 {
		t.Errorf("a paused session's: %d images removed, %d left: %v", n, there(im), err)
	}
	// The doctor reports the same.
	says := func() (detail, remedy string) {
		for _, c := range rt.Doctor(t.Context()).Checks {
			if c.Name == "images" && (!c.OK || strings.Contains(c.Detail, "no run has")) {
				return c.Detail, c.Remedy
			}
		}
		return "", ""
	}
	if detail, _ := says(); detail != "" {
		t.Errorf("the doctor says %q of a paused session's", detail)
	}
	put(pause+"/pause.json", "{")
	if detail, _ := says(); !strings.Contains(detail, session) {
		t.Errorf("the doctor says %q of one that can't be read", detail)
	}
	if err := os.RemoveAll(filepath.Join(home, pause)); err != nil {
		t.Fatal(err)
	}
	if detail, remedy := says(); detail != "1 that no run has any more, 0 MiB" || remedy != "unitask image prune" {
		t.Errorf("the doctor says %q, %q", detail, remedy)
	}
}

// Packages that a run is sending to its machine stay.
func TestRemovePackagesHeld(t *testing.T) {
	rt := openRuntime(t, unitask.Options{Home: testdir.Private(t)})
	store, kept := rt.Packages(), &built.Lock{Key: "k"}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg}), w.Close(),
		store.Add(kept, &files)); err != nil {
		t.Fatal(err)
	}
	held, err := store.Hold(kept)
	if err != nil {
		t.Fatal(err)
	}
	if n, _, err := rt.RemovePackages(t.Context(), time.Time{}, false); n != 0 || err != nil || store.Verify(kept) != nil {
		t.Errorf("%d removed: %v, %v", n, err, store.Verify(kept))
	}
	held.Unlock()
	if n, _, err := rt.RemovePackages(t.Context(), time.Time{}, false); n != 1 || err != nil {
		t.Errorf("%d removed: %v", n, err)
	}
}

// Pruning keeps entries that were used within the rule's time, and a dry run removes nothing.
func TestPruneRule(t *testing.T) {
	home := testdir.Private(t)
	rt := openRuntime(t, unitask.Options{Home: home})
	digest := strings.Repeat("ab", 32)
	dir := filepath.Join(home, "images", digest)
	text := fmt.Sprintf(`{"digest":%q,"kernel":"linux","arch":%q,"name":"old"}`, digest, runtime.GOARCH)
	used := filepath.Join(dir, "used")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "image.json"), []byte(text), 0o600),
		os.WriteFile(used, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	week := disuse.Rule{Since: time.Now().Add(-7 * 24 * time.Hour)}
	prune := func(rule disuse.Rule, want int, stays bool) {
		t.Helper()
		freed, err := rt.Catalog().Prune(t.Context(), rule)
		if _, gone := os.Stat(dir); err != nil || freed.Count != want || (gone == nil) != stays {
			t.Errorf("%+v: %+v, %v; there: %v", rule, freed, err, gone)
		}
	}
	prune(week, 0, true)
	prune(disuse.Rule{DryRun: true}, 1, true)
	before := week.Since.Add(-time.Hour)
	if err := os.Chtimes(used, before, before); err != nil {
		t.Fatal(err)
	}
	week.DryRun = true
	prune(week, 1, true)
	week.DryRun = false
	prune(week, 1, false)
}

// Removing the image of a paused session is refused, under any name.
func TestRemoveInUse(t *testing.T) {
	home := testdir.Private(t)
	rt := openRuntime(t, unitask.Options{Home: home})
	put := func(name, text string) {
		t.Helper()
		file := filepath.Join(home, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	digest, other := strings.Repeat("ab", 32), strings.Repeat("ac", 32)
	for _, d := range []string{digest, other} {
		put("images/"+d+"/image.json", fmt.Sprintf(`{"digest":%q,"kernel":"linux","arch":%q,"name":"node"}`, d,
			runtime.GOARCH))
	}
	pause := "sessions/20260101-000000000-abcdef/pause.json"
	put(pause, fmt.Sprintf(`{"version":1,"imageDigest":%q}`, digest))
	for _, name := range []string{"node", "abab", digest} {
		if removed, err := rt.Catalog().Remove(t.Context(), name, nil); !errors.Is(err, catalog.ErrInUse) || removed != nil {
			t.Errorf("%s: %q removed: %v", name, removed, err)
		}
	}
	put(pause, "{") // its contents are unknown
	if removed, err := rt.Catalog().Remove(t.Context(), "node", nil); err == nil || removed != nil {
		t.Errorf("%q removed: %v", removed, err)
	}
	if err := os.RemoveAll(filepath.Join(home, filepath.Dir(pause))); err != nil {
		t.Fatal(err)
	}
	checkStarting(t, rt, filepath.Join(home, "images"), digest)
	if removed, err := rt.Catalog().Remove(t.Context(), "node", nil); err != nil || len(removed) != 2 {
		t.Errorf("%q removed: %v", removed, err)
	}
}

// checkStarting checks that an image counts as used when a run has it but has no machine yet.
func checkStarting(t *testing.T, rt *unitask.Runtime, images, digest string) {
	t.Helper()
	starting, err := rt.Runs().Create(time.Now().Add(-time.Second), "me", unitask.ViaCLI, "code.js", []byte("1"),
		struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := starting.Leave(); err != nil {
			t.Error(err)
		}
	}()
	step, err := rt.Runs().Create(time.Now().Add(-2*time.Hour), "me", unitask.ViaCLI, "code.js", []byte("1"), struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	step.Session = "20260101-000000000-abcdef" // whose record has the machine
	if err := step.Update(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := step.Leave(); err != nil {
			t.Error(err)
		}
	}()
	used := filepath.Join(images, digest, "used")
	for _, row := range []struct {
		obtained time.Time
		stays    bool
	}{{time.Now(), true}, {time.Now().Add(-time.Hour), false}} {
		if err := errors.Join(os.WriteFile(used, nil, 0o600), os.Chtimes(used, row.obtained, row.obtained)); err != nil {
			t.Fatal(err)
		}
		freed, err := rt.Catalog().Prune(t.Context(), disuse.Rule{DryRun: true})
		if want := map[bool]int{true: 1, false: 2}[row.stays]; err != nil || freed.Count != want {
			t.Errorf("obtained %s ago: %d would be removed, want %d: %v", time.Since(row.obtained), freed.Count, want, err)
		}
		if row.stays {
			if removed, err := rt.Catalog().Remove(t.Context(), "node", nil); !errors.Is(err, catalog.ErrInUse) ||
				removed != nil {
				t.Errorf("%q removed while a run starts: %v", removed, err)
			}
		}
	}
}
