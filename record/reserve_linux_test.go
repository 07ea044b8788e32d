package record

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testlack"
)

// Code chooses the length of its record's end, and can fill the disk: the end is written all the same.
func TestAttackLongEnd(t *testing.T) {
	names, err := json.Marshal(map[string]any{"outcome": "failed", "exitCode": 125,
		"artifacts": strings.Split(strings.Repeat(strings.Repeat("\x01", 1000)+",", 1000), ",")})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name    string
		request any
		rec     Record
	}{
		{"a thousand artifacts with long names", nil, Record{Status: Failed, Result: names}},
		{"the same, and the run thinks that all is well", nil, Record{Status: Done, Result: names}},
		{"a long error", nil, Record{Status: Failed, Error: strings.Repeat("x", 1<<20)}},
		{"a request of many short values, which are longer when they are printed", make([]int, 100_000),
			Record{Status: Failed, Result: names}},
		{"a policy as long as the request", make([]int, 100_000),
			Record{Status: Failed, Effective: json.RawMessage("[" + strings.Repeat("0,", 200_000) + "0]")}},
	} {
		dir := t.TempDir()
		testlack.Disk(t, dir, "size=4m")
		s := Open(filepath.Join(dir, "runs"))
		r, err := s.Create(time.Now(), "", ViaCLI, "code.js", nil, row.request)
		if err != nil {
			t.Fatal(err)
		}
		for size := 1 << 20; size > 0; size /= 2 {
			for r.err = nil; r.Err() == nil; {
				_, _ = r.Stdout().Write(make([]byte, size))
			}
		}
		r.err = nil
		r.Status, r.Error, r.Result, r.Effective = row.rec.Status, row.rec.Error, row.rec.Result, row.rec.Effective
		told := r.Finish(time.Now())
		got := "no end"
		if rec, err := s.Get(r.ID); err != nil {
			got = err.Error()
		} else if rec.Finished != nil {
			got = fmt.Sprintf("%s, an error %v, told %v", rec.Status, rec.Error != "", told != nil)
			if row.rec.Result != nil && !strings.Contains(string(rec.Result), `"exitCode":125`) {
				got += ", no exit code"
			}
		}
		if _, err := os.Lstat(s.Path(r.ID, reserveFile)); err == nil {
			t.Error("the reserve is still there")
		}
		attack.Check(t, "a run fills the disk, and its record's end is long: "+row.name, "failed, an error true, told true",
			got)
	}
}
