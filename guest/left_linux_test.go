package guest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/attack"
)

// leftRow is an action of code in its folder, and the agent's report.
type leftRow struct {
	name string
	make func(dir string)
	want string
}

func leftRows(t *testing.T) []leftRow {
	return []leftRow{
		{"nothing", func(string) {}, "<nil>"},
		{"a file and a folder", func(dir string) {
			write(t, filepath.Join(dir, "plot.png"))
			mkdir(t, filepath.Join(dir, "results"))
		}, "2 [plot.png results/]"},
		{"what was there, changed", func(dir string) { write(t, filepath.Join(dir, "before")) }, "1 [before]"},
		{"a file in a folder that was there", func(dir string) { write(t, filepath.Join(dir, "old", "x")) }, "1 [old/]"},
		{"what nobody looks for", func(dir string) {
			mkdir(t, filepath.Join(dir, "__pycache__"))
			write(t, filepath.Join(dir, ".cache"))
			if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
				t.Error(err)
			}
			if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
				t.Error(err)
			}
		}, "<nil>"},
		{"a cache in a package that was there", func(dir string) {
			mkdir(t, filepath.Join(dir, "old", "__pycache__"))
			write(t, filepath.Join(dir, "old", "__pycache__", "x.pyc"))
		}, "<nil>"},
		{"caches in packages", func(dir string) {
			mkdir(t, filepath.Join(dir, "old", "__pycache__"))
			mkdir(t, filepath.Join(dir, "old", "sub"))
			mkdir(t, filepath.Join(dir, "old", "sub", "__pycache__"))
		}, "<nil>"},
		{"a file beside a cache", func(dir string) {
			mkdir(t, filepath.Join(dir, "old", "__pycache__"))
			write(t, filepath.Join(dir, "old", "x"))
		}, "1 [old/]"},
		{"many", func(dir string) {
			for i := range 30 {
				write(t, filepath.Join(dir, fmt.Sprintf("%03d%s", i, strings.Repeat("x", 252))))
			}
		}, "30 of 8"},
		{"a link in its place", func(dir string) {
			if err := os.Rename(dir, dir+".old"); err != nil {
				t.Error(err)
			}
			if err := os.Symlink(dir+".old", dir); err != nil {
				t.Error(err)
			}
			write(t, filepath.Join(dir, "new"))
		}, "<nil>"},
		{"no folder", func(dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}, "<nil>"},
	}
}

// The agent reports which files and folders are new since the start, whatever else is in the folder.
func TestHostedLeft(t *testing.T) {
	t.Parallel()
	for _, c := range leftRows(t) {
		dir := filepath.Join(t.TempDir(), "work")
		mkdir(t, dir)
		write(t, filepath.Join(dir, "before"))
		mkdir(t, filepath.Join(dir, "old"))
		h := host(t, "agent")
		conn := h.connect()
		if err := conn.Look(dir); err != nil {
			t.Fatal(err)
		}
		h.run(conn)
		afterTick(t)
		c.make(dir)
		h.say(contract.ControlExit, 0)
		end, err := conn.Stream(t.Context(), nil, io.Discard, io.Discard)
		got := "<nil>"
		if end.Left != nil {
			slices.Sort(end.Left.Names)
			got = fmt.Sprint(end.Left.Count, " ", end.Left.Names)
			if len(got) > 500 {
				got = fmt.Sprint(end.Left.Count, " of ", len(end.Left.Names))
			}
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %s, want %s: %v", c.name, got, c.want, err)
		}
	}
}

// afterTick returns when new files get a time after now, which is the time of the kernel's last tick.
func afterTick(t *testing.T) {
	t.Helper()
	probe, now := filepath.Join(t.TempDir(), "probe"), time.Now()
	for {
		write(t, probe)
		if st, err := os.Stat(probe); err != nil || st.ModTime().After(now) {
			return
		}
	}
}

func write(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
}

func mkdir(t *testing.T, name string) {
	t.Helper()
	if err := os.Mkdir(name, 0o700); err != nil {
		t.Error(err)
	}
}

// A guest that reports leftover files unasked, twice or wrongly breaks the protocol.
func TestAttackLeft(t *testing.T) {
	left := func(count uint32, names string) string {
		return string(binary.BigEndian.AppendUint32(nil, count)) + names
	}
	for _, c := range []struct {
		name string
		look bool
		said []string
		want string
	}{
		{"well", true, []string{left(9, "a\x00b/\x00")}, "9 [a b/]"},
		{"more names than files", true, []string{left(1, "a\x00b\x00")}, "1 [a]"},
		{"unasked", false, []string{left(1, "a\x00")}, "protocol"},
		{"twice", true, []string{left(1, "a\x00"), left(1, "b\x00")}, "protocol"},
		{"no number", true, []string{"abc"}, "protocol"},
		{"no files", true, []string{left(0, "a\x00")}, "protocol"},
		{"no names", true, []string{left(1, "\x00")}, "protocol"},
		{"too many", true, []string{left(1<<32-1, "a\x00")}, "protocol"},
		{"too long", true, []string{left(1, strings.Repeat("a", maxJSON))}, "protocol"},
	} {
		w := withGuest(t, func(conn net.Conn) {
			sendFrame(conn, 'h', goodHello)
			for kind := byte(0); kind != contract.FrameStart; {
				var err error
				if kind, _, err = hostFrame(conn); err != nil {
					return
				}
			}
			sendFrame(conn, 's', "")
			for _, text := range c.said {
				sendFrame(conn, contract.FrameLeft, text)
			}
			sendFrame(conn, 'x', `{"code":0,"signal":0,"oom":false,"out":false}`)
		})
		conn, err := Connect(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if c.look {
			if err := conn.Look("/work"); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.Start(t.Context(), Start{Argv: []string{"/x"}, Dir: "/"}); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		end, err := conn.Stream(t.Context(), nil, &out, &out)
		got := fmt.Sprint(err)
		switch {
		case err != nil && strings.Contains(got, "broke the protocol"):
			got = "protocol"
		case err == nil && end.Left != nil:
			got = fmt.Sprint(end.Left.Count, " ", end.Left.Names)
		}
		attack.Check(t, "a guest tells what was left: "+c.name, c.want, got)
	}
}
