package record_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask/record"
)

// own returns the ids in the index.
func own(t *testing.T, s *record.Store, owner string, before, prefix string, vias ...record.Via) []string {
	t.Helper()
	var ids []string
	for id, err := range s.Own(owner, vias, before, prefix) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

func TestIndex(t *testing.T) {
	s := record.Open(filepath.Join(t.TempDir(), "runs"))
	if ids := own(t, s, "alice", "", "", record.ViaMCP); ids != nil {
		t.Error(ids)
	}
	at := time.Date(2026, 1, 30, 23, 0, 0, 0, time.UTC)
	make := func(owner string, via record.Via, after time.Duration) string {
		t.Helper()
		r, err := s.Create(at.Add(after), owner, via, "code.js", nil, struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Finish(at); err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	first, second, third := make("alice", record.ViaMCP, 0), make("alice", record.ViaHTTP, time.Hour),
		make("alice", record.ViaMCP, 30*24*time.Hour)
	cli, bobs, nobodys := make("alice", record.ViaCLI, 0), make("bob", record.ViaHTTP, 0), make("", "", 0)
	both := []record.Via{record.ViaMCP, record.ViaHTTP}
	check := func(s *record.Store) {
		t.Helper()
		for _, c := range []struct {
			owner, before, prefix string
			vias                  []record.Via
			want                  []string
		}{
			{"alice", "", "", both, []string{third, second, first}}, {"alice", third, "", both, []string{second, first}},
			{"alice", second, "", both, []string{first}}, {"alice", first, "", both, nil},
			{"alice", "", "2026", both, []string{third, second, first}}, {"alice", "", "20260131", both, []string{second}},
			{"alice", "", third[:len(third)-1], both, []string{third}}, {"alice", "", "202603", both, []string{third}},
			{"alice", "", "x", both, nil}, {"alice", "", "..", both, nil},
			{"alice", "", "", []record.Via{record.ViaCLI}, []string{cli}}, {"bob", "", "", both, []string{bobs}},
			{"", "", "", []record.Via{""}, []string{nobodys}},
			{"carol", "", "", both, nil}, {"alice/../bob", "", "", both, nil},
		} {
			if got := own(t, s, c.owner, c.before, c.prefix, c.vias...); !slices.Equal(got, c.want) {
				t.Errorf("%+v: %v", c, got)
			}
		}
	}
	check(s)
	check(record.Open(s.Dir())) // another process

	// Records from before the index are in it after its first use.
	if err := os.RemoveAll(filepath.Join(s.Dir(), ".owners")); err != nil {
		t.Fatal(err)
	}
	check(s)

	// A removed record is not in it.
	gone := make("dave", record.ViaMCP, 0)
	if err := s.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if ids := own(t, s, "dave", "", "", both...); ids != nil {
		t.Error(ids)
	}

	// A record that a killed process did not finish creating is listed. After the process's time, somebody notices that it
	// is missing.
	lost := make("erin", record.ViaMCP, 0)
	if err := os.RemoveAll(filepath.Join(s.Dir(), lost)); err != nil {
		t.Fatal(err)
	}
	s.Gone("erin", both, lost)
	if ids := own(t, s, "erin", "", "", both...); !slices.Equal(ids, []string{lost}) {
		t.Error(ids)
	}
	marks, err := filepath.Glob(filepath.Join(s.Dir(), ".owners", "*", "*", lost))
	if err != nil || len(marks) != 1 || os.Chtimes(marks[0], at, at) != nil {
		t.Fatal(marks, err)
	}
	s.Gone("erin", both, lost)
	if ids := own(t, s, "erin", "", "", both...); ids != nil {
		t.Error(ids)
	}
}

// Several processes make and remove records at the same time; the index has the existing ones.
func TestIndexTogether(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs")
	var group sync.WaitGroup
	kept := make([]string, 8)
	for n := range kept {
		group.Go(func() {
			s := record.Open(dir)
			for i := range 50 {
				r, err := s.Create(time.Now(), "alice", record.ViaMCP, "code.js", nil, struct{}{})
				if err == nil {
					err = r.Finish(time.Now())
				}
				if err == nil && i < 49 {
					err = s.Remove(r.ID)
				}
				for _, e := range s.Own("alice", []record.Via{record.ViaMCP}, "", "") {
					err = errors.Join(err, e)
				}
				if err != nil {
					t.Error(err)
					return
				}
				kept[n] = r.ID
			}
		})
	}
	group.Wait()
	slices.Sort(kept)
	slices.Reverse(kept)
	if got := own(t, record.Open(dir), "alice", "", "", record.ViaMCP); !slices.Equal(got, kept) {
		t.Error(strings.Join(got, " "), fmt.Sprint(kept))
	}
}
