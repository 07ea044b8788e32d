package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
)

// kept is a tree in memory.
type kept []tlog.Hash

func (k kept) ReadHashes(at []int64) (out []tlog.Hash, err error) {
	for _, n := range at {
		out = append(out, k[n])
	}
	return out, nil
}

type attackAuditRow struct {
	name       string
	do         func(dir string)
	want, head string // without and with a head of 8 of the 10 lines
}

func changedAt(line int) string {
	return fmt.Sprintf("the audit log's line %d is not what was written, or one before it was taken away", line)
}

func foreignAt(line int) string {
	return fmt.Sprintf("the audit log's line %d was not written by unitask, or its hash is gone", line)
}

func goneFrom(line int) string {
	return fmt.Sprintf("the audit log's line %d and those behind it are gone", line)
}

func indexOf(lines int) string {
	return fmt.Sprintf("the audit log has 10 lines, and its index %d: the index was changed", lines)
}

// attackAuditRows are the cases of TestAttackAudit.
func attackAuditRows(
	change func(string), edit func(lines ...func([]string) []string) func(string), anew func(dir string),
	remove func(names ...string) func(string), t *testing.T,
) []attackAuditRow {
	return []attackAuditRow{
		{"nothing", func(string) {}, "10", "10"},
		{"a line changed", change, changedAt(4), ""},
		{"a line taken away", edit(func(l []string) []string { return append(l[:3:3], l[4:]...) }), changedAt(4), ""},
		{"a line put in", edit(func(l []string) []string { return append(append(l[:3:3], "{}\n"), l[3:]...) }), changedAt(4),
			""},
		{"two lines exchanged", edit(func(l []string) []string { l[1], l[2] = l[2], l[1]; return l }), changedAt(2), ""},
		{"a line put behind", edit(func(l []string) []string { return append(l, "{}\n") }), foreignAt(11), ""},
		{"the last lines taken away", edit(func(l []string) []string { return l[:7] }), goneFrom(8), ""},
		{"all lines taken away", edit(func(l []string) []string { return nil }), goneFrom(1), ""},
		{"a newline taken away", edit(func(l []string) []string { l[9] = strings.TrimSuffix(l[9], "\n"); return l }),
			changedAt(10), ""},
		{"a line changed, and all hashes", func(dir string) { change(dir); anew(dir) }, "10",
			"the audit log was written anew: its first 8 lines are not those of the head"},
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
		}, "0", "the audit log's line 1 and those behind it are gone: the head has 8 lines"},
		{"the folder taken away", func(dir string) { _ = os.RemoveAll(dir) }, "0", "no such file"},
		{"the hashes taken away", remove("hashes"), foreignAt(1), ""},
		{"hashes and index taken away", remove("hashes", "index"), foreignAt(1), ""},
		{"lines and index taken away", remove("log.jsonl", "index"), goneFrom(1), ""},
		{"the index taken away", remove("index"), indexOf(0), ""},
		{"the index cut", func(dir string) { _ = os.Truncate(filepath.Join(dir, "index"), 8) }, indexOf(1), ""},
		{"the index's end changed", func(dir string) {
			_ = os.WriteFile(filepath.Join(dir, "index"), make([]byte, 80), 0o600)
		}, indexOf(10), ""},
		{"half a hash more", func(dir string) { appendTo(t, dir, "hashes", []byte{1, 2, 3}) }, goneFrom(11), ""},
		{"a hash cut", func(dir string) { _ = os.Truncate(filepath.Join(dir, "hashes"), hashesEnd(10)-1) }, foreignAt(10),
			""},
		{"half a line put behind", func(dir string) { appendTo(t, dir, "log.jsonl", []byte("{\"kind\"")) }, foreignAt(11),
			""},
		{"a plan that is none", func(dir string) { appendTo(t, dir, "pending", []byte("{}\n")) }, "10", ""},
		{"a plan to begin anew", func(dir string) { plan(t, dir, 0, 0, "{}\n") }, "10", ""},
		{"a plan to cut three lines", func(dir string) { plan(t, dir, 7, 7*93, "{}\n") }, "10", ""},
		{"a plan of another end", func(dir string) { plan(t, dir, 10, 7, strings.Repeat("{}\n", 1000)) }, "10", ""},
		{"a link in place of the lines", func(dir string) {
			name := filepath.Join(dir, "log.jsonl")
			_ = os.Rename(name, filepath.Join(dir, "there"))
			_ = os.Symlink("there", name)
		}, "too many levels of symbolic links", ""},
		{"a pipe in place of the hashes", func(dir string) {
			name := filepath.Join(dir, "hashes")
			_ = os.Remove(name)
			_ = unix.Mkfifo(name, 0o600)
		}, "is no regular file", ""},
		{"a pipe in place of the key", func(dir string) {
			name := filepath.Join(dir, "verifier")
			_ = os.Remove(name)
			_ = unix.Mkfifo(name, 0o600)
		}, "10", "is no regular file"},
		{"the key taken away", func(dir string) { _ = os.Remove(filepath.Join(dir, "verifier")) }, "10", "no such file"},
		{"another key", func(dir string) {
			_ = os.Remove(filepath.Join(dir, "key"))
			_, _ = (Log{dir}).Head()
		}, "10", "the head was not signed by the key of this log: note has no verifiable signatures"},
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
	remove := func(names ...string) func(string) {
		return func(dir string) {
			for _, name := range names {
				_ = os.Remove(filepath.Join(dir, name))
			}
		}
	}
	change := edit(func(l []string) []string { l[3] = strings.Replace(l[3], "run3", "run4", 1); return l })
	// anew writes new hashes and index for the existing lines.
	anew := func(dir string) {
		var made kept
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
		if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "hashes"), hashes, 0o600),
			os.WriteFile(filepath.Join(dir, "index"), index, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range attackAuditRows(change, edit, anew, remove, t) {
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
		verify := func(head, want string) string {
			n, err := l.Verify(head, "")
			if err == nil {
				return fmt.Sprint(n)
			}
			if strings.HasSuffix(want, " links") || strings.HasSuffix(want, " file") { // the system's own words
				if strings.Contains(err.Error(), want) {
					return want
				}
			}
			return err.Error()
		}
		attack.Check(t, "the audit log: "+c.name, c.want, verify("", c.want))
		if c.head == "" {
			c.head = c.want
		}
		attack.Check(t, "the audit log, with a head: "+c.name, c.head, verify(head, c.head))
		if strings.HasPrefix(c.want, "the audit log") { // another entry does not repair it
			_ = l.Append(Entry{Kind: RunEnded})
			attack.Check(t, "the audit log, and an entry more: "+c.name, c.want, verify("", c.want))
		}
	}
}

// plan writes the first data of an append.
func plan(t *testing.T, dir string, n, end uint64, text string) {
	t.Helper()
	rest := append(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, n), end), text...)
	sum := sha256.Sum256(rest)
	appendTo(t, dir, "pending", append(sum[:], rest...))
}
