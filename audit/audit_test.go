package audit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/unitask/unitask/internal/attack"
)

// filled is a log with so many lines, and the folder's name.
func filled(t *testing.T, n int) (Log, string) {
	t.Helper()
	home := t.TempDir()
	l := In(home)
	for i := range n {
		if err := l.Append(Entry{Time: time.Unix(int64(i), 0), Kind: RunStarted, Run: fmt.Sprint("run", i), Detail: map[string]int{"i": i}}); err != nil {
			t.Fatal(err)
		}
	}
	return l, filepath.Join(home, "audit")
}

func TestAppend(t *testing.T) {
	l, dir := filled(t, 5)
	if err := l.Append(Entry{Kind: RunEnded, Detail: strings.Repeat("x", maxLine)}, Entry{Kind: NetRefused, Detail: "line\nend"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := l.Read(func(n int64, line []byte) error {
		if n != int64(len(got)) {
			t.Errorf("line %d is number %d", len(got), n)
		}
		got = append(got, string(line))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(got) != 7 || got[3] != `{"schema":1,"time":"1970-01-01T00:00:03Z","kind":"run.started","run":"run3","detail":{"i":3}}`+"\n" || !strings.Contains(got[5], `"leftOutBytes"`) {
		t.Errorf("%q", got)
	}
	if n, err := l.Verify("", ""); n != 7 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	for _, name := range []string{"log.jsonl", "hashes", "index"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, st, err)
		}
	}
	if n, err := In(t.TempDir()).Verify("", ""); n != 0 || err != nil {
		t.Errorf("a log that is not there: %d %v", n, err)
	}
}

// Many at once write whole lines, each once.
func TestAppendAtOnce(t *testing.T) {
	l, _ := filled(t, 0)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for k := range 10 {
				if err := l.Append(Entry{Run: fmt.Sprint(i, " ", k)}, Entry{Run: fmt.Sprint(i, " ", k, " second")}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 20 { // in between everything is whole, too
		if _, err := l.Verify("", ""); err != nil {
			t.Error(err)
		}
	}
	group.Wait()
	if n, err := l.Verify("", ""); n != 160 || err != nil {
		t.Errorf("%d %v", n, err)
	}
}

// Whatever is done to the files, verify says where.
func TestAttackAudit(t *testing.T) {
	edit := func(lines ...func([]string) []string) func(string) {
		return func(dir string) {
			name := filepath.Join(dir, "log.jsonl")
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			list := strings.SplitAfter(string(text), "\n")
			for _, f := range lines {
				list = f(list)
			}
			if err := os.WriteFile(name, []byte(strings.Join(list, "")), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	change := edit(func(l []string) []string { l[3] = strings.Replace(l[3], "run3", "run4", 1); return l })
	// anew writes hashes and index for the lines that there are.
	anew := func(dir string) {
		var made tree
		var index, hashes []byte
		end := uint64(0)
		err := (Log{dir}).Read(func(n int64, line []byte) error {
			stored, err := tlog.StoredHashes(n, line, made)
			for _, h := range stored {
				hashes = append(hashes, h[:]...)
			}
			end += uint64(len(line))
			made, index = append(made, stored...), binary.BigEndian.AppendUint64(index, end)
			return err
		})
		if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "hashes"), hashes, 0o600), os.WriteFile(filepath.Join(dir, "index"), index, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name       string
		do         func(dir string)
		want, head string // without and with a head of 8 of the 10 lines
	}{
		{"nothing", func(string) {}, "10", "10"},
		{"a line changed", change, "the audit log's line 4 is not what was written, or one before it was taken away", ""},
		{"a line taken away", edit(func(l []string) []string { return append(l[:3:3], l[4:]...) }), "the audit log's line 4 is not what was written, or one before it was taken away", ""},
		{"a line put in", edit(func(l []string) []string { return append(append(l[:3:3], "{}\n"), l[3:]...) }), "the audit log's line 4 is not what was written, or one before it was taken away", ""},
		{"two lines exchanged", edit(func(l []string) []string { l[1], l[2] = l[2], l[1]; return l }), "the audit log's line 2 is not what was written, or one before it was taken away", ""},
		{"a line put behind", edit(func(l []string) []string { return append(l, "{}\n") }), "the audit log's line 11 was not written by unitask, or its hash is gone", ""},
		{"the last lines taken away", edit(func(l []string) []string { return l[:7] }), "the audit log's line 8 and those behind it are gone", ""},
		{"all lines taken away", edit(func(l []string) []string { return nil }), "the audit log's line 1 and those behind it are gone", ""},
		{"a newline taken away", edit(func(l []string) []string { l[9] = strings.TrimSuffix(l[9], "\n"); return l }), "the audit log's line 10 is not what was written, or one before it was taken away", ""},
		{"a line changed, and all hashes", func(dir string) { change(dir); anew(dir) }, "10", "the audit log was written anew: its first 8 lines are not those of the head"},
		{"a line behind the head changed, and all hashes", func(dir string) {
			edit(func(l []string) []string { l[8] = "{}\n"; return l })(dir)
			anew(dir)
		}, "10", "10"},
		{"the last lines taken away, and their hashes", func(dir string) {
			edit(func(l []string) []string { return l[:7] })(dir)
			anew(dir)
		}, "7", "the audit log's line 8 and those behind it are gone: the head has 8 lines"},
		{"all taken away", func(dir string) {
			for _, name := range []string{"log.jsonl", "hashes", "index"} {
				_ = os.Remove(filepath.Join(dir, name))
			}
		}, "0", "no such file"},
		{"the key taken away", func(dir string) { _ = os.Remove(filepath.Join(dir, "verifier")) }, "10", "no such file"},
		{"another key", func(dir string) {
			_ = os.Remove(filepath.Join(dir, "key"))
			_, _ = (Log{dir}).Head()
		}, "10", "the head was not signed by the key of this log"},
	} {
		l, dir := filled(t, 8)
		head, err := l.Head()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := l.Append(Entry{Kind: RunEnded}); err != nil {
				t.Fatal(err)
			}
		}
		c.do(dir)
		verify := func(head string) string {
			n, err := l.Verify(head, "")
			if err != nil {
				return err.Error()
			}
			return fmt.Sprint(n)
		}
		attack.Check(t, "the audit log: "+c.name, c.want, verify(""))
		if c.head == "" {
			c.head = c.want
		}
		got := verify(head)
		if strings.Contains(got, c.head) {
			got = c.head
		}
		attack.Check(t, "the audit log, with a head: "+c.name, c.head, got)
	}
}

// A process that dies while it writes leaves what the next one takes in.
func TestCrash(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(dir string)
		want int64
	}{
		"a line without hashes": {func(dir string) { appendTo(t, dir, "log.jsonl", []byte("{\"kind\":\"x\"}\n")) }, 6},
		"half a line":           {func(dir string) { appendTo(t, dir, "log.jsonl", []byte("{\"kind\"")) }, 6},
		"hashes without an index": {func(dir string) {
			appendTo(t, dir, "log.jsonl", []byte("{}\n"))
			appendTo(t, dir, "hashes", bytes.Repeat([]byte{1}, tlog.HashSize))
		}, 6},
		"half a hash":      {func(dir string) { appendTo(t, dir, "hashes", []byte{1, 2, 3}) }, 5},
		"half of an index": {func(dir string) { appendTo(t, dir, "index", []byte{1, 2, 3}) }, 5},
	} {
		l, dir := filled(t, 4)
		c.do(dir)
		if err := l.Append(Entry{Kind: RunEnded}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n, err := l.Verify("", ""); n != c.want || err != nil {
			t.Errorf("%s: %d lines, %v", name, n, err)
		}
	}
	l, dir := filled(t, 4)
	if err := os.Truncate(filepath.Join(dir, "log.jsonl"), 10); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(Entry{}); err == nil || !strings.Contains(err.Error(), "unitask audit verify") {
		t.Errorf("a log that was cut: %v", err)
	}
}

func appendTo(t *testing.T, dir, name string, text []byte) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.Write(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}
