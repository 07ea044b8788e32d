package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// saved returns a store with one template, whose memory has holes.
func saved(t *testing.T, key string) (*Templates, string) {
	t.Helper()
	if !CanClone {
		t.Skip("snapshots need Linux's memfd")
	}
	s := OpenTemplates(filepath.Join(t.TempDir(), "templates"))
	save(t, s, key)
	return s, s.path(key, "")
}

func save(t *testing.T, s *Templates, key string) {
	t.Helper()
	memory, err := NewMemory(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	for at, text := range map[int64]string{0: "first", 3 << 20: "middle", 8<<20 - 4: "last"} {
		if _, err := memory.WriteAt([]byte(text), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Save(key, memory, []byte("state")); err != nil {
		t.Fatal(err)
	}
}

func TestTemplate(t *testing.T) {
	s, dir := saved(t, "key")
	got, err := s.Load("key")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if err := got.Ready(); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(io.NewSectionReader(got.Memory, 0, 9<<20))
	if err != nil || len(all) != 8<<20 || string(all[:5]) != "first" || string(all[3<<20:3<<20+6]) != "middle" ||
		string(all[8<<20-4:]) != "last" || string(got.Devices) != "state" {
		t.Errorf("%d bytes: %v", len(all), err)
	}
	// Nobody changes the memory any more: neither its contents nor its size.
	if _, err := got.Memory.WriteAt([]byte("evil"), 0); err == nil {
		t.Error("the template's memory can be written")
	}
	if err := got.Memory.Truncate(1); err == nil {
		t.Error("the template's memory can be cut")
	}
	if w, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", got.Memory.Fd()), os.O_RDWR, 0); err == nil {
		if _, err := w.WriteAt([]byte("evil"), 0); err == nil {
			t.Error("the template's memory can be written by another descriptor")
		}
		w.Close()
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		want := fs.FileMode(0o600)
		switch {
		case d.IsDir():
			want = 0o700
		case d.Name() == memoryName:
			want = 0o644
		}
		if info, err := d.Info(); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
		return nil
	})
	if _, err := s.Load("another"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another key: %v", err)
	}
	_, _ = s.Drop("key")
	if _, err := s.Load("key"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Drop: %v", err)
	}
}

// A QEMU that maps a template's own file gets it read-only.
func TestTemplateMap(t *testing.T) {
	s, dir := saved(t, "key")
	got, err := s.Map("key")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	text := make([]byte, 6)
	if _, err := got.Memory.ReadAt(text, 3<<20); err != nil || string(text) != "middle" ||
		string(got.Devices) != "state" || !got.File || got.Ready() != nil {
		t.Errorf("%q %v %+v", text, err, got)
	}
	if mine, err := got.Memory.Stat(); err != nil || !os.SameFile(mine, must(os.Stat(filepath.Join(dir, memoryName)))) {
		t.Errorf("it is not the template's file: %v", err)
	}
	if _, err := got.Memory.WriteAt([]byte("evil"), 0); err == nil {
		t.Error("it can be written")
	}
	_, _ = s.Drop("key") // its machines keep it
	if _, err := got.Memory.ReadAt(text, 3<<20); err != nil || string(text) != "middle" {
		t.Errorf("%q %v", text, err)
	}
	if _, err := s.Map("key"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestTemplateDamage(t *testing.T) {
	replace := func(name, old, with string) error {
		text, err := os.ReadFile(name)
		if err == nil && !strings.Contains(string(text), old) {
			err = fmt.Errorf("no %s", old)
		}
		if err != nil {
			return err
		}
		return os.WriteFile(name, []byte(strings.Replace(string(text), old, with, 1)), 0o600)
	}
	for name, c := range map[string]struct {
		damage func(dir string) error
		want   error
	}{
		"memory cut":      {func(dir string) error { return os.Truncate(dir+"/memory", 1<<20) }, ErrTemplate},
		"memory longer":   {func(dir string) error { return os.Truncate(dir+"/memory", 1<<30) }, ErrTemplate},
		"memory edited":   {func(dir string) error { return replace(dir+"/memory", "middle", "edited") }, ErrTemplate},
		"memory missing":  {func(dir string) error { return os.Remove(dir + "/memory") }, ErrTemplate},
		"state cut":       {func(dir string) error { return os.Truncate(dir+"/state", 2) }, ErrTemplate},
		"state edited":    {func(dir string) error { return replace(dir+"/state", "state", "stale") }, ErrTemplate},
		"state missing":   {func(dir string) error { return os.Remove(dir + "/state") }, ErrTemplate},
		"description cut": {func(dir string) error { return os.Truncate(dir+"/template.json", 10) }, ErrTemplate},
		"another's": {func(dir string) error { return replace(dir+"/template.json", `"key":"key"`, `"key":"yek"`) },
			ErrTemplate},
		"description gone": {func(dir string) error { return os.Remove(dir + "/template.json") }, fs.ErrNotExist},
		"used too often": {func(dir string) error {
			return os.WriteFile(dir+"/uses", make([]byte, maxTemplateUses), 0o600)
		}, fs.ErrNotExist},
		"too old": {func(dir string) error { return replace(dir+"/template.json", `"created":"20`, `"created":"19`) },
			fs.ErrNotExist},
		"from the future": {func(dir string) error { return replace(dir+"/template.json", `"created":"20`, `"created":"29`) },
			fs.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := saved(t, "key")
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Load("key"); !errors.Is(err, c.want) {
				t.Errorf("%v", err)
			}
			save(t, s, "key") // and it can be made again
			got, err := s.Load("key")
			if err != nil {
				t.Fatal(err)
			}
			got.Close()
		})
	}
}

func TestTemplateStore(t *testing.T) {
	s, _ := saved(t, "first")
	for range maxTemplateUses - 1 {
		s.Used("first")
	}
	if got, err := s.Load("first"); err != nil {
		t.Error(err)
	} else {
		got.Close()
	}
	s.Used("first")
	if _, err := s.Load("first"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after %d uses: %v", maxTemplateUses, err)
	}
	for i := range maxTemplates + 3 {
		save(t, s, fmt.Sprint(i))
		if i > 0 {
			s.Used("0")
		}
	}
	if err := s.Check("0"); err != nil {
		t.Errorf("the oldest, which is the one that is used, is gone: %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(s.dir, "[0-9a-f]*"))
	if len(left) != maxTemplates {
		t.Errorf("%d templates are kept", len(left))
	}
	if got, err := s.Load(fmt.Sprint(maxTemplates + 2)); err != nil {
		t.Errorf("the newest is gone: %v", err)
	} else {
		got.Close()
	}
	for i := range maxFolders + 2 {
		save(t, s, fmt.Sprint("with", foldersMark, i))
	}
	for i := range maxFolders + 2 {
		err := s.Check(fmt.Sprint("with", foldersMark, i))
		if kept := i >= 2; (err == nil) != kept {
			t.Errorf("template %d of those with folders: %v", i, err)
		}
	}
	killed := filepath.Join(s.dir, ".new-1")
	if err := os.Mkdir(killed, 0o700); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(killed, long, long); err != nil {
		t.Fatal(err)
	}
	s.Prune(2)
	if left, _ := filepath.Glob(filepath.Join(s.dir, "[0-9a-f]*")); len(left) != 2 {
		t.Errorf("%d templates after Prune", len(left))
	}
	if _, err := os.Stat(killed); err == nil {
		t.Error("what a killed maker left is still there")
	}
	unlock, ok := s.Lock("x")
	if !ok {
		t.Fatal("no lock")
	}
	if _, again := s.Lock("x"); again {
		t.Error("two have the lock")
	}
	unlock()
	if unlock, ok := s.Lock("x"); !ok {
		t.Error("the lock is not given back")
	} else {
		unlock()
	}
}

// At half of its life a template needs a successor, which replaces it in one step: nobody finds none, or a damaged one,
// meanwhile.
func TestTemplateSuccessor(t *testing.T) {
	s, dir := saved(t, "key")
	want := func(what string, want Want) {
		t.Helper()
		if got := s.Wants("key"); got != want {
			t.Errorf("%s: it wants %d, not %d", what, got, want)
		}
	}
	want("fresh", Nothing)
	for range maxTemplateUses / 2 {
		s.Used("key")
	}
	want("half of its uses", Successor)
	unlock, _ := s.Lock("key")
	want("being made", Nothing)
	unlock()
	save(t, s, "key")
	want("after the swap", Nothing)

	text, err := os.ReadFile(dir + "/template.json")
	if err != nil {
		t.Fatal(err)
	}
	var info templateInfo
	if err := json.Unmarshal(text, &info); err != nil {
		t.Fatal(err)
	}
	info.Created = time.Now().Add(-maxTemplateAge/2 - time.Second)
	if text, err = json.Marshal(info); err == nil {
		err = os.WriteFile(dir+"/template.json", text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	want("half of its age", Successor)
	_, _ = s.Drop("key")
	want("dropped", Missing)
	save(t, s, "key")

	stop := make(chan struct{})
	var group sync.WaitGroup
	defer group.Wait()
	defer close(stop)
	for range 2 {
		group.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				_, err := s.Created("key")
				if err = errors.Join(err, s.Check("key")); err != nil {
					t.Errorf("look %d: %v", n, err)
					return
				}
			}
		})
	}
	for range 50 {
		save(t, s, "key")
	}
}

// A source that is closed loads nothing.
func TestLoadAfterClose(t *testing.T) {
	s, _ := saved(t, "key")
	loaded := loadedTemplates{kept: map[string]*Snapshot{}}
	first, err := loaded.load(s, "key")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	loaded.close()
	if _, err := loaded.load(s, "key"); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := first.Ready(); err != nil {
		t.Errorf("one that was handed out: %v", err)
	}
}

// A template that is made in the background does not bring back a home that was removed meanwhile.
func TestRemovedHome(t *testing.T) {
	if !CanClone {
		t.Skip("snapshots need Linux's memfd")
	}
	memory, err := NewMemory(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	home := filepath.Join(t.TempDir(), "home")
	s := OpenTemplates(filepath.Join(home, "templates"))
	s.Failed("key", errors.New("x"))
	OpenCache(filepath.Join(home, "cache", "memo.json")).Put("a", "1")
	err = s.Save("key", memory, nil)
	if _, there := os.Stat(home); !errors.Is(err, fs.ErrNotExist) || !errors.Is(there, fs.ErrNotExist) {
		t.Errorf("%v; the home: %v", err, there)
	}
}
