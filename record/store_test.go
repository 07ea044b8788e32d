package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func create(t *testing.T, s *Store, at time.Time) *Run {
	t.Helper()
	r, err := s.Create(at, "", ViaCLI, "code.mjs", []byte("the code"), map[string]int{"memoryMb": 7})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.closeFiles)
	return r
}

func TestRun(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "runs"))
	r := create(t, s, time.Now())
	if rec, err := s.Get(r.ID); err != nil || rec.Status != Running || rec.CodeFile != "code.mjs" ||
		!json.Valid(rec.Request) {
		t.Errorf("while it runs: %+v %v", rec, err)
	}
	fmt.Fprint(r.Stdout(), "out")
	fmt.Fprint(r.Stderr(), "err")
	fmt.Fprint(r.Console(), "boot")
	r.Netlog(map[string]string{"verdict": "denied\nforged"})
	r.Status = Done
	if err := r.Finish(time.Now()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"code.mjs": "the code", StdoutFile: "out", StderrFile: "err",
		ConsoleFile: "boot", NetlogFile: `{"verdict":"denied\nforged"}` + "\n"} {
		if got, err := os.ReadFile(s.Path(r.ID, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	if rec, err := s.Get(r.ID); err != nil || rec.Status != Done || rec.Finished == nil {
		t.Errorf("%+v %v", rec, err)
	}
	// Nobody else may read the store.
	_ = filepath.WalkDir(s.Dir(), func(path string, d os.DirEntry, _ error) error {
		if info, err := d.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
		return nil
	})
}

// A record whose process is gone says so. The lock shows this, so neither a clock nor a process id has to be right.
func TestInterrupted(t *testing.T) {
	s := Open(t.TempDir())
	r := create(t, s, time.Now())
	r.closeFiles() // the kernel does this to a killed process
	rec, err := s.Get(r.ID)
	if err != nil || rec.Status != Interrupted {
		t.Errorf("%+v %v", rec, err)
	}
	if err := os.Remove(s.Path(r.ID, lockFile)); err != nil {
		t.Fatal(err)
	}
	if rec, err := s.Get(r.ID); err != nil || rec.Status != Interrupted {
		t.Errorf("without a lock: %+v %v", rec, err)
	}
}

func TestFind(t *testing.T) {
	s := Open(t.TempDir())
	if _, err := s.Find("last"); !errors.Is(err, ErrNotFound) {
		t.Errorf("nothing there: %v", err)
	}
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var ids []string
	for i := range 3 {
		ids = append(ids, create(t, s, start.Add(time.Duration(i)*time.Millisecond)).ID)
	}
	if !slices.IsSorted(ids) {
		t.Errorf("ids do not sort by time: %v", ids)
	}
	if got, err := s.IDs(); err != nil || !slices.Equal(got, ids) {
		t.Errorf("%v %v", got, err)
	}
	for prefix, want := range map[string]string{"last": ids[2], ids[0]: ids[0], "20260102-030405001": ids[1]} {
		if got, err := s.Find(prefix); err != nil || got != want {
			t.Errorf("%q: %q %v", prefix, got, err)
		}
	}
	for _, prefix := range []string{"", "2027", "../x", "/", "20260102"} {
		if got, err := s.Find(prefix); err == nil {
			t.Errorf("%q: %q", prefix, got)
		}
	}
	for _, id := range []string{"", ".", "..", "../" + ids[0], "a/b", ".hidden", "nothing"} {
		if _, err := s.Get(id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// An id says only when its run was created.
func TestCreatedAt(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 67_890_000, time.UTC)
	if at, ok := CreatedAt(newID(now)); !ok || !at.Equal(now.Truncate(time.Millisecond)) {
		t.Error(at, ok)
	}
	for _, id := range []string{"", "x", "20260102-030405", "20260102-030405067", "20261302-030405067-abcdef",
		"20260102-030405067+abcdef", "20260102-0304+5067-abcdef", "--------------------"} {
		if at, ok := CreatedAt(id); ok {
			t.Errorf("%q: %v", id, at)
		}
	}
}

func TestUniqueIDs(t *testing.T) {
	s := Open(t.TempDir())
	now := time.Now()
	var mu sync.Mutex
	seen := map[string]bool{}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				r, err := s.Create(now, "", ViaCLI, "code.js", nil, nil)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				seen[r.ID] = true
				mu.Unlock()
				r.closeFiles()
			}
		})
	}
	group.Wait()
	if len(seen) != 400 {
		t.Errorf("%d ids", len(seen))
	}
}

func TestBadRecords(t *testing.T) {
	s := Open(t.TempDir())
	r := create(t, s, time.Now())
	for name, text := range map[string]string{"empty": "", "cut": `{"id": "x"`, "newer": `{"schemaVersion": 99}`,
		"a list": "[]"} {
		if err := os.WriteFile(s.Path(r.ID, recordFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(r.ID); err == nil {
			t.Errorf("%s: no error", name)
		} else if name == "newer" && !strings.Contains(err.Error(), "newer unitask") {
			t.Error(err)
		}
	}
}

// A full disk: the run continues, and the record says so at the end.
func TestFullDisk(t *testing.T) {
	s := Open(t.TempDir())
	r := create(t, s, time.Now())
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full on this system")
	}
	r.stdout.Close()
	r.stdout = full
	if n, err := r.Stdout().Write([]byte("x")); n != 1 || err != nil {
		t.Errorf("the guest would stall: %d %v", n, err)
	}
	if err := r.Finish(time.Now()); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), r.ID) {
		t.Errorf("%v", err)
	}
}

// Space for a record's end is reserved while the run is in progress, and does not count.
func TestReserve(t *testing.T) {
	s := Open(t.TempDir())
	reserve := func(r *Run) int64 {
		st, err := os.Stat(s.Path(r.ID, reserveFile))
		if err != nil {
			return 0
		}
		return st.Size()
	}
	r := create(t, s, time.Now())
	size, err := s.Size(r.ID, 1<<20)
	if n := reserve(r); n < reserveBytes || err != nil || size > 4<<10 || folderSize(r.Dir()) > 12*blockBytes {
		t.Errorf("%d reserved, %d and %d counted, %v", n, size, folderSize(r.Dir()), err)
	}
	if err := r.Leave(); err != nil || reserve(r) > 0 {
		t.Errorf("after Leave: %d, %v", reserve(r), err)
	}
	if r, err = s.Reopen(r.ID); err != nil || reserve(r) < reserveBytes {
		t.Fatalf("after Reopen: %d, %v", reserve(r), err)
	}
	r.Status, r.Error = Failed, strings.Repeat("long ", reserveBytes) // longer than the reserved space
	if err := r.Finish(time.Now()); err != nil || reserve(r) > 0 {
		t.Errorf("after Finish: %d, %v", reserve(r), err)
	}
	if rec, err := s.Get(r.ID); err != nil || rec.Status != Failed || rec.Error != r.Error {
		t.Errorf("%+v, %v", rec, err)
	}
	killed := create(t, s, time.Now())
	killed.closeFiles()
	if _, _, err := s.sweep("", 1<<20); err != nil || reserve(killed) > 0 {
		t.Errorf("of a process that was killed: %d, %v", reserve(killed), err)
	}
}

// A folder that can't be created leaves nothing.
func TestCreateFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(dir, "file")).Create(time.Now(), "", ViaCLI, "code.js", nil, nil); err == nil {
		t.Error("a record in a file")
	}
	s := Open(filepath.Join(dir, "runs"))
	if _, err := s.Create(time.Now(), "", ViaCLI, "no/such/folder.js", nil, nil); err == nil {
		t.Error("code in a folder that is not there")
	}
	if ids, err := s.IDs(); err != nil || len(ids) != 0 {
		t.Errorf("left %v %v", ids, err)
	}
}

func FuzzGet(f *testing.F) {
	f.Add(`{"schemaVersion":1,"id":"x","status":"running"}`)
	f.Add(`{"schemaVersion":1,"created":"yesterday"}`)
	f.Fuzz(func(t *testing.T, text string) {
		s := Open(t.TempDir())
		if err := os.MkdirAll(s.Path("x", ""), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.Path("x", recordFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		rec, err := s.Get("x")
		if err == nil && rec.Status == Running {
			t.Error("runs, but nobody holds it")
		}
	})
}
