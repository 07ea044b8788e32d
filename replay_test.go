package unitask_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

type attackReplayRow struct{ name, id, owner, ceiling, link, want string }

// attackReplayRows are the cases of TestAttackReplay.
func attackReplayRows(own, all, named, self, narrow, alices, blank, old, garbled string) []attackReplayRow {
	return []attackReplayRow{
		{"no ceiling now", own, "", "", "given", all},
		{"one's own record", named, "", "", "given", all},
		{"one's own record, by its owner's name", named, self, "", "given", all},
		{"one's own record as another's, by its owner's name", named, "alice", "", "given", "another owner's"},
		{"the ceiling of then", own, "", narrow, "given", all},
		{"a narrower ceiling now", own, "", `memoryMb=128;allowNet=[];secrets=[];filesUnder=[]`, "given",
			"128 MiB, 2s, net [] false, tcp [], secrets [], files 0, dirs 0, artifacts -1"},
		{"a wider ceiling now", own, "", `memoryMb=8192;secrets=["A","B"];allowTcp=["127.0.0.1:22"]`, "given", all},
		{"a file's link leads elsewhere now", own, "", "", "kept", "files"},
		{"another's record", alices, "", "", "given", "another owner's"},
		{"another's record, the wrong owner named", alices, "bob", "", "given", "another owner's"},
		{"another's record, its owner named", alices, "alice", "", "given", all},
		{"one's own record as another's", own, "alice", "", "given", "another owner's"},
		{"a record that does not say what was granted", blank, "", "", "given", "refused"},
		{"a record of an older version", old, "", "", "given", "refused"},
		{"a record whose grant is garbled", garbled, "", "", "given", "refused"},
	}
}

// A replay asks for what was granted, under the current ceiling.
func TestAttackReplay(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	dir, link := makeReplayFolders(t)
	asked := unitask.Request{MemoryMB: 4096, Timeout: time.Hour, AllowNet: []string{"*.com.example"}, AllowNetAny: true,
		AllowTCP: []string{"127.0.0.1:22"}, Secrets: map[string]string{"A": "a-secret", "B": "b-secret"},
		Files: []policy.Mount{{Host: link, Guest: "/g"}, {Host: "/etc/shadow", Guest: "/s"}},
		Dirs:  []policy.Mount{{Host: "/", Guest: "/all"}}}
	narrow := `memoryMb=256;timeoutSeconds=2;allowNet=["x.com.example"];allowTcp=[];secrets=["A"];filesUnder=["` + dir +
		`"];dirsUnder=[];maxArtifactBytes=0`
	parse := func(text string) *policy.Ceiling {
		t.Helper()
		c, err := policy.ParseCeiling("c.toml", []byte(strings.ReplaceAll(text, ";", "\n")))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	granted, denials, err := unitask.Resolve(asked, parse(narrow))
	if err != nil {
		t.Fatal(err)
	}
	put := func(owner string, effective any) string {
		t.Helper()
		rec, err := rt.Runs().Create(time.Now(), owner, unitask.ViaCLI, "code.js", []byte("1"), asked)
		if err != nil {
			t.Fatal(err)
		}
		if effective != nil {
			rec.Effective, _ = json.Marshal(effective)
			rec.Denials, _ = json.Marshal(denials)
		}
		if err := rec.Finish(time.Now()); err != nil {
			t.Fatal(err)
		}
		return rec.ID
	}
	self := unitask.LocalOwner(os.Geteuid())
	own, named, alices, blank, garbled := put("", granted), put(self, granted), put("alice", granted), put("", nil),
		put("", "all")
	old := put("", map[string]any{"kernel": "linux", "memoryMb": 256, "timeoutSeconds": 2})
	const all = "256 MiB, 2s, net [x.com.example] false, tcp [], secrets [A], files 1, dirs 0, artifacts -1"
	for _, row := range attackReplayRows(own, all, named, self, narrow, alices, blank, old, garbled) {
		if err := errors.Join(os.Remove(link), os.Symlink(row.link, link)); err != nil {
			t.Fatal(err)
		}
		var ceiling *policy.Ceiling
		if row.ceiling != "" {
			ceiling = parse(row.ceiling)
		}
		got := "refused"
		req, err := rt.History().Request(row.id, row.owner)
		if errors.Is(err, history.ErrOwner) {
			got = "another owner's"
		}
		if err == nil {
			e, _, err := unitask.Resolve(req, ceiling)
			var field *policy.FieldError
			if errors.As(err, &field) {
				got = field.Field
			} else if err != nil {
				t.Fatal(err)
			} else {
				got = fmt.Sprintf("%d MiB, %s, net %v %v, tcp %v, secrets %v, files %d, dirs %d, artifacts %d", e.MemoryMB,
					e.Timeout, e.AllowNet, e.AllowNetAny, e.AllowTCP, e.Secrets, len(e.Files), len(e.Dirs), e.MaxArtifacts)
			}
			if names := slices.Sorted(maps.Keys(req.Secrets)); !slices.Equal(names, []string{"A"}) {
				t.Errorf("%s: asks for the secrets %v", row.name, names)
			}
		}
		attack.Check(t, "replay: "+row.name, row.want, got)
	}
}

// makeReplayFolders makes the folders that replayed runs are granted.
func makeReplayFolders(t *testing.T) (dir, link string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"given", "kept"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link = filepath.Join(dir, "link")
	if err := os.Symlink("given", link); err != nil {
		t.Fatal(err)
	}
	return dir, link
}

// The grants are in the record before a machine starts.
func TestGrantedIsRecordedFirst(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	// not vendored
	res, err := rt.Run(t.Context(), unitask.Request{Code: "1", Kernel: "nanos", MemoryMB: 256}, unitask.IO{})
	if err == nil || res == nil {
		t.Fatalf("%+v %v", res, err)
	}
	if req, err := rt.History().Request(res.RunID, ""); err != nil || req.MemoryMB != 256 {
		t.Errorf("%+v %v", req, err)
	}
}
