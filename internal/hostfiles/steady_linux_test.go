package hostfiles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/internal/attack"
)

// many is a folder that is large enough to keep: 40 small files in 20 folders, a large sparse file, and a link. With
// the folder itself it has 63 entries.
func many(t *testing.T, dir string) string {
	t.Helper()
	for i := range 40 {
		name := filepath.Join(dir, fmt.Sprintf("d%d/f%d", i%20, i))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, fmt.Appendf(nil, "text %04d", i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	large := filepath.Join(dir, "large")
	if err := errors.Join(os.WriteFile(large, nil, 0o644), os.Truncate(large, minSteadyBytes)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("d0", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// listed returns the set of some folders, each at /NUMBER in the guest, or where "at" says.
func listed(t *testing.T, at map[string]string, dirs ...string) *Set {
	t.Helper()
	s := &Set{}
	t.Cleanup(s.Close)
	for i, dir := range dirs {
		f, err := Find(dir, true)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		to := at[dir]
		if to == "" {
			to = fmt.Sprintf("/%d", i)
		}
		if err := s.Add(f, to, math.MaxInt64); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func needSteady(t *testing.T, dir string) {
	t.Helper()
	if listed(t, nil, dir).Steady() == nil {
		t.Skip("the folder of temporary files is on no disk whose times of changes can be trusted")
	}
}

// tick returns when the clock of file times has advanced.
func tick(t *testing.T, from time.Time) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "clock")
	for {
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(name); err != nil || stampOf(st).changed > from.UnixNano() {
			return
		}
	}
}

type nothing struct{ put func(guest.File) error }

func (n nothing) Put(f guest.File, content io.Reader) error {
	if content != nil {
		if _, err := io.Copy(io.Discard, content); err != nil {
			return err
		}
	}
	return n.put(f)
}

type attackSteadyRow struct {
	name, want string
	change     func(dir string) error
}

// attackSteadyRows are the cases of TestAttackSteady.
func attackSteadyRows(
	one string, asItWas func(dir string, name string, change func(string) error) error, t *testing.T,
	write func(dir string, name string, text string) error,
) []attackSteadyRow {
	return []attackSteadyRow{
		{"nothing", "kept", func(string) error { return nil }},
		{"it is read", "kept", func(dir string) error { _, err := os.ReadFile(filepath.Join(dir, one)); return err }},
		{"as many bytes, and the file's old time", "sent", func(dir string) error {
			return asItWas(dir, one, func(f string) error { return os.WriteFile(f, []byte("evil 0001"), 0o644) })
		}},
		{"a byte through a mapping, and the old time", "sent", func(dir string) error {
			return asItWas(dir, one, func(name string) error {
				f, err := os.OpenFile(name, os.O_RDWR, 0)
				if err != nil {
					return err
				}
				defer f.Close()
				m, err := unix.Mmap(int(f.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				if err != nil {
					return err
				}
				m[0] = 'T'
				return unix.Munmap(m)
			})
		}},
		{"another file in its place, with its time", "sent", func(dir string) error {
			return asItWas(dir, one, func(f string) error {
				return errors.Join(os.WriteFile(f+".new", []byte("evil 0001"), 0o644), os.Rename(f+".new", f))
			})
		}},
		{"two files exchanged that are as long and as old", "sent", func(dir string) error {
			a, b := filepath.Join(dir, one), filepath.Join(dir, "d1/f21")
			at := time.Unix(1, 0)
			return errors.Join(os.Chtimes(a, at, at), os.Chtimes(b, at, at),
				unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE))
		}},
		{"by another name of it, elsewhere", "sent", func(dir string) error {
			return asItWas(dir, one, func(f string) error {
				other := filepath.Join(t.TempDir(), "other")
				return errors.Join(os.Link(f, other), os.WriteFile(other, []byte("evil 0001"), 0o644))
			})
		}},
		{"it may be executed", "sent", func(dir string) error { return os.Chmod(filepath.Join(dir, one), 0o755) }},
		{"one more", "sent", func(dir string) error { return write(dir, "d1/new", "") }},
		{"one less", "sent", func(dir string) error { return os.Remove(filepath.Join(dir, one)) }},
		{"a folder more", "sent", func(dir string) error { return os.Mkdir(filepath.Join(dir, "new"), 0o755) }},
		{"a link leads elsewhere", "sent", func(dir string) error {
			l := filepath.Join(dir, "link")
			return errors.Join(os.Remove(l), os.Symlink("d1", l))
		}},
		{"names that run into each other", "sent", func(dir string) error {
			return os.Rename(filepath.Join(dir, "d1/f1"), filepath.Join(dir, "d1f1"))
		}},
		{"patterns leave one out", "sent", func(dir string) error { return write(dir, IgnoreFile, "f1\n") }},
		{"a copy of it all in its place", "sent", func(dir string) error {
			old := dir + ".old"
			return errors.Join(os.Rename(dir, old), os.CopyFS(dir, os.DirFS(old)))
		}},
		{"a link in its place", "sent", func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".old"), os.Symlink(dir+".old", dir))
		}},
	}
}

// Whatever happens to a folder, old files never count as the new ones.
func TestAttackSteady(t *testing.T) {
	write := func(dir, name, text string) error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644) }
	const one = "d1/f1"
	// asItWas restores a file's times.
	asItWas := func(dir, name string, change func(string) error) error {
		full := filepath.Join(dir, name)
		st, err := os.Stat(full)
		if err != nil {
			return err
		}
		return errors.Join(change(full), os.Chtimes(full, st.ModTime(), st.ModTime()))
	}
	for _, c := range attackSteadyRows(one, asItWas, t, write) {
		dir := many(t, filepath.Join(folder(t), "in"))
		needSteady(t, dir)
		before := listed(t, nil, dir).Steady()
		tick(t, before.Changed)
		if err := c.change(dir); err != nil {
			t.Fatal(c.name, err)
		}
		got := "kept"
		if err := before.Put(t.Context(), nothing{func(guest.File) error { return nil }}); err != nil {
			got = "sent"
		}
		attack.Check(t, c.name, c.want, got)
	}
}

// Folders that change while they are sent make no template.
func TestAttackSteadyWhileSent(t *testing.T) {
	dir := many(t, folder(t))
	needSteady(t, dir)
	s := listed(t, nil, dir).Steady()
	for name, change := range map[string]func(at string) error{
		"one that was sent": func(at string) error {
			return os.WriteFile(filepath.Join(dir, at), []byte("text 9999"),
				0o644)
		},
		"one more": func(string) error { return os.WriteFile(filepath.Join(dir, "more"), nil, 0o644) },
	} {
		done := false
		err := s.Put(t.Context(), nothing{func(f guest.File) error {
			if done || f.Mode.IsDir() {
				return nil
			}
			done = true
			return change(strings.TrimPrefix(f.Path, "/0/"))
		}})
		attack.Check(t, name, "no template", map[bool]string{true: "no template",
			false: "a template"}[errors.Is(err, ErrUnsteady)])
		s = listed(t, nil, dir).Steady()
	}
}

// What is kept: of a folder with modules only these, otherwise everything; nothing if it is doubtful or too small.
func TestSteady(t *testing.T) {
	base := folder(t)
	plain := many(t, filepath.Join(base, "plain"))
	needSteady(t, plain)
	project := filepath.Join(base, "project")
	many(t, filepath.Join(project, modulesDir))
	small := filepath.Join(base, "small")
	for name, text := range map[string]string{project + "/src.js": "1", small + "/a": "a"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	volatile, err := os.MkdirTemp("/dev/shm", "unitask-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(volatile) })
	many(t, volatile)
	for name, c := range map[string]struct {
		dirs []string
		at   map[string]string
		want int // entries
	}{
		"a folder":                       {[]string{plain}, nil, 63},
		"modules":                        {[]string{project}, nil, 63},
		"both":                           {[]string{project, plain}, nil, 126},
		"a few files":                    {[]string{small}, nil, 0},
		"on a disk that keeps no times":  {[]string{volatile}, nil, 0},
		"with one that is":               {[]string{plain, volatile}, nil, 0},
		"one in the other":               {[]string{plain, project}, map[string]string{plain: "/a", project: "/a/d1"}, 0},
		"the same in the other order":    {[]string{project, plain}, map[string]string{plain: "/a", project: "/a/d1"}, 0},
		"names that begin alike":         {[]string{plain, project}, map[string]string{plain: "/a", project: "/ab"}, 126},
		"over everything":                {[]string{plain}, map[string]string{plain: "/"}, 63},
		"at a path that is modules' own": {[]string{plain}, map[string]string{plain: "/x/node_modules"}, 63},
	} {
		s := listed(t, c.at, c.dirs...)
		got, steady := 0, s.Steady()
		if steady != nil {
			got = steady.Count
		}
		if got != c.want {
			t.Errorf("%s: %d entries are kept, want %d", name, got, c.want)
		}
		sent := map[Part]int{}
		for _, part := range []Part{All, OnlySteady, AllButSteady} {
			if err := s.Put(t.Context(), nothing{func(guest.File) error { sent[part]++; return nil }}, part,
				func(Sent) {}); err != nil {
				t.Fatal(err)
			}
		}
		if sent[OnlySteady] != c.want || sent[All] != sent[OnlySteady]+sent[AllButSteady] || sent[All] != s.Count() {
			t.Errorf("%s: %v are sent", name, sent)
		}
	}
}

func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			ago, want time.Duration
			err       error
		}{{time.Hour, 0, nil}, {SettleTime, 0, nil}, {10 * time.Second, SettleTime - 10*time.Second, nil},
			{-time.Second, 0, ErrUnsteady}} {
			begin := time.Now()
			err := (&Steady{Changed: begin.Add(-c.ago)}).Settle(t.Context())
			if took := time.Since(begin); took != c.want || !errors.Is(err, c.err) {
				t.Errorf("changed %s ago: %v after %s", c.ago, err, took)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := (&Steady{Changed: time.Now()}).Settle(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("given up: %v", err)
		}
	})
}
