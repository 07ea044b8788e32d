package policy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

func TestApprovals(t *testing.T) {
	home := t.TempDir()
	a := OpenApprovals(home)
	if list, err := a.List(); len(list) != 0 || err != nil {
		t.Fatal(list, err)
	}
	at := time.Date(2026, 11, 23, 15, 0, 0, 0, time.UTC)
	one := Approved{Host: "a.example:443", Ceiling: "/p/.unitask.toml", By: "local:me", Run: "r1", At: at}
	two := Approved{Host: "a.example:443", By: "local:me", Run: "r2", At: at}
	again := one
	again.Run = "r3"
	for _, e := range []Approved{one, two, again} {
		if err := a.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	list, err := a.List()
	if err != nil || fmt.Sprint(list) != fmt.Sprint([]Approved{two, again}) {
		t.Fatal(list, err)
	}
	for _, row := range []struct {
		host, ceiling, owner string
		want                 bool
	}{
		{one.Host, one.Ceiling, one.By, true}, {one.Host, "", one.By, true},
		{one.Host, "/other/.unitask.toml", one.By, false},
		{one.Host, "", "alice", false}, {"a.example:80", "", one.By, false}, {"b.a.example:443", "", one.By, false},
		{"A.example:443", "", one.By, false}, {"", "", "", false},
	} {
		_, ok, err := a.Find(row.host, row.ceiling, row.owner)
		attack.Check(t, fmt.Sprintf("an approval for %q, %q, %q", row.host, row.ceiling, row.owner),
			fmt.Sprint(row.want, " <nil>"), fmt.Sprint(ok, " ", err))
	}
	if removed, err := a.Remove("b.example:443"); !errors.Is(err, ErrNotApproved) || removed != nil {
		t.Error(removed, err)
	}
	if removed, err := a.Remove("a.example:443"); err != nil || len(removed) != 2 {
		t.Error(removed, err)
	}
	if list, err := a.List(); len(list) != 0 || err != nil {
		t.Error(list, err)
	}
	var group sync.WaitGroup
	for i := range 2 * maxApproved {
		group.Go(func() {
			_ = a.Add(Approved{Host: fmt.Sprintf("n%d.example:443", i), By: "local:me", At: at})
		})
	}
	group.Wait()
	list, err = a.List()
	attack.Check(t, "approvals of many that come at once", fmt.Sprint(maxApproved, " <nil>"),
		fmt.Sprint(len(list), " ", err))
}

// A file that others may have written, or with invalid approvals, approves nothing.
func TestAttackApproved(t *testing.T) {
	const good = "[[approved]]\nhost = \"a.example:443\"\nby = \"local:me\"\n"
	for name, text := range map[string]string{
		"a wildcard": strings.Replace(good, "a.example", "*.example.com", 1), "no port": strings.Replace(good, ":443", "", 1),
		"every host":   strings.Replace(good, "a.example", "*", 1),
		"another case": strings.Replace(good, "a.example", "A.example", 1),
		"nobody's":     "[[approved]]\nhost = \"a.example:443\"\n", "an unknown key": good + "ports = [1]\n",
		"a key in another case": strings.Replace(good, "by =", "By =", 1),
		"no TOML":               "allow everything\n", "another table": "[approved]\nhost = \"a.example:443\"\n",
		"too many": strings.Repeat(good, maxApproved+1), "too long": strings.Repeat("#", maxTrust+1),
		"an escape": strings.Replace(good, "a.example", `a\u001b[2J.example`, 1),
	} {
		home := t.TempDir()
		if err := os.WriteFile(filepath.Join(home, ApprovedFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := "approved"
		if _, ok, err := OpenApprovals(home).Find("a.example:443", "", "local:me"); !ok && err != nil &&
			strings.Contains(err.Error(), ApprovedFile) && !strings.Contains(err.Error(), "\x1b") {
			got = "an error that names the file"
		}
		attack.Check(t, "an approval by a file with "+name, "an error that names the file", got)
	}
	for name, make := range map[string]func(string) error{
		"others may read and write": func(f string) error {
			return errors.Join(os.WriteFile(f, []byte(good), 0o600),
				os.Chmod(f, 0o666))
		},
		"a link": func(f string) error {
			return errors.Join(os.WriteFile(f+".x", []byte(good), 0o600), os.Symlink(f+".x", f))
		},
		"a pipe":   func(f string) error { return syscall.Mkfifo(f, 0o600) },
		"a folder": func(f string) error { return os.Mkdir(f, 0o700) },
	} {
		home := t.TempDir()
		if err := make(filepath.Join(home, ApprovedFile)); err != nil {
			t.Fatal(err)
		}
		_, ok, err := OpenApprovals(home).Find("a.example:443", "", "local:me")
		attack.Check(t, "an approval by a file that is "+name, "false true", fmt.Sprint(ok, " ", err != nil))
	}
	a := OpenApprovals(t.TempDir())
	for _, host := range []string{"*.example.com:443", "a.example", "a.example:0", "a\n.example:443",
		"a.example:443\"\nby = \"x", "", "A.example:443"} {
		if err := a.Add(Approved{Host: host, By: "local:me"}); err == nil {
			t.Errorf("%q is taken", host)
		}
	}
}
