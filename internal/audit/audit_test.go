package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// filled returns a log with n lines, and the folder's name.
func filled(t *testing.T, n int) (Log, string) {
	t.Helper()
	home := t.TempDir()
	l := In(home)
	for i := range n {
		if err := l.Append(Entry{Time: time.Unix(int64(i), 0), Kind: RunStarted, Run: fmt.Sprint("run", i),
			Detail: map[string]int{"i": i}}); err != nil {
			t.Fatal(err)
		}
	}
	return l, filepath.Join(home, "audit")
}

func TestAppend(t *testing.T) {
	l, dir := filled(t, 5)
	if err := l.Append(Entry{Kind: RunEnded, Detail: strings.Repeat("x", maxLine)},
		Entry{Kind: NetRefused, Detail: "line\nend"}); err != nil {
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
	if len(got) != 7 ||
		got[3] != `{"schema":1,"time":"1970-01-01T00:00:03Z","kind":"run.started","run":"run3","detail":{"i":3}}`+"\n" ||
		!strings.Contains(got[5], `"leftOutBytes"`) {
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

// Many processes at once write complete lines, each once.
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
	for range 20 { // in between everything is complete, too
		if _, err := l.Verify("", ""); err != nil {
			t.Error(err)
		}
	}
	group.Wait()
	if n, err := l.Verify("", ""); n != 160 || err != nil {
		t.Errorf("%d %v", n, err)
	}
}

// A process that dies during an append leaves all or nothing, whatever it did last. The result never counts as a
// manipulation.
func TestCrash(t *testing.T) {
	l, dir := filled(t, 4)
	files := []string{"log.jsonl", "hashes", "index"}
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	var before, after [3][]byte
	for i, name := range files {
		before[i] = read(name)
	}
	if err := l.Append(Entry{Kind: RunEnded}, Entry{Kind: NetRefused}, Entry{Kind: SecretUsed}); err != nil {
		t.Fatal(err)
	}
	for i, name := range files {
		after[i] = read(name)
	}
	if left := read("pending"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	lines := string(after[0][len(before[0]):])
	plan(t, dir, 4, uint64(len(before[0])), lines)
	planned := read("pending")
	// state makes files as a crash leaves them. It returns verify's result, also after one more entry.
	state := func(pending []byte, now [3][]byte) string {
		for i, name := range files {
			if err := os.WriteFile(filepath.Join(dir, name), now[i], 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "pending"), pending, 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := l.Verify("", "")
		var listed int64
		if e := l.Read(func(int64, []byte) error { listed++; return nil }); e != nil || listed != n {
			t.Errorf("%d lines are listed: %v", listed, e)
		}
		if e := l.Append(Entry{Kind: RunStarted}); e != nil {
			t.Error(e)
		}
		m, e := l.Verify("", "")
		return fmt.Sprint(n, err, m-n, e)
	}
	const nothing, all = "4 <nil> 1 <nil>", "7 <nil> 1 <nil>"
	check := func(what string, cut int, want, got string) {
		t.Helper()
		if got != want {
			t.Errorf("%s, at %d: %s, not %s", what, cut, got, want)
		}
	}
	const step = 5
	for cut := 0; cut < len(planned); cut += step {
		check("the plan", cut, nothing, state(planned[:cut], before))
	}
	now := before
	for i, name := range files {
		for cut := len(before[i]); cut < len(after[i]); cut += step {
			now[i] = after[i][:cut]
			check(name, cut, all, state(planned, now))
		}
		now[i] = after[i]
		// A power failure may lose some files, and leave empty blocks.
		one := before
		one[i] = after[i]
		check(name+" alone", 0, all, state(planned, one))
		one[i] = append(bytes.Clone(before[i]), make([]byte, len(after[i])-len(before[i]))...)
		check(name+" of zeros", 0, all, state(planned, one))
	}
	check("no crash", 0, all, state(nil, after))
}

// An entry without room is written once there is room, or not at all. The limit applies to the whole process, and go
// test makes this process write its own file, so another process runs the test.
func TestDiskFull(t *testing.T) {
	const variable = "UNITASK_TEST_AUDIT_FULL"
	if os.Getenv(variable) == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestDiskFull$", "-test.v")
		c.Env = append(os.Environ(), variable+"=1")
		if out, err := c.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestDiskFull")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	room := func(n uint64) {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: n, Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
	}
	defer room(limit.Cur)
	for _, c := range []struct {
		room uint64
		want int64
	}{{1, 31}, {200, 32}, {1000, 32}} { // for the plan of an entry, for an index, for hashes
		room(limit.Cur)
		l, _ := filled(t, 30)
		room(c.room)
		if err := l.Append(Entry{Kind: RunStarted}); err == nil || !strings.Contains(err.Error(), "file too large") {
			t.Errorf("with room for %d bytes: %v", c.room, err)
		}
		room(limit.Cur)
		if err := l.Append(Entry{Kind: RunEnded}); err != nil {
			t.Error(err)
		}
		if n, err := l.Verify("", ""); n != c.want || err != nil {
			t.Errorf("with room for %d bytes: %d lines, %v", c.room, n, err)
		}
	}
}

// Processes that are killed while they append leave complete appends.
func TestKilled(t *testing.T) {
	const variable = "UNITASK_TEST_AUDIT"
	if home := os.Getenv(variable); home != "" {
		for {
			if err := In(home).Append(Entry{Kind: RunStarted}, Entry{Kind: SecretGranted},
				Entry{Kind: PolicyDenied}); err != nil {
				panic(err)
			}
		}
	}
	home := t.TempDir()
	before := int64(0)
	for i := range 10 {
		var killed []*exec.Cmd
		for range 2 {
			c := exec.Command(os.Args[0], "-test.run=^TestKilled$")
			c.Env = append(os.Environ(), variable+"="+home)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			killed = append(killed, c)
		}
		n := before
		for n == before { // until one has written
			var err error
			if n, err = In(home).Verify("", ""); err != nil {
				t.Error(err)
			}
		}
		for _, c := range killed {
			time.AfterFunc(time.Duration(i)*time.Millisecond, func() { _ = c.Process.Kill() })
		}
		for _, c := range killed {
			_ = c.Wait()
		}
		n, err := In(home).Verify("", "")
		if n%3 != 0 || err != nil {
			t.Errorf("%d lines: %v", n, err)
		}
		before = n
	}
}

// A caller with too many requests of one kind hides nothing else.
func TestTooLong(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for _, c := range []struct {
		detail any
		want   string
	}{
		{map[string]any{"a": long, "b": "kept"}, `{"a":{"leftOutBytes":65538},"b":"kept"}`},
		{map[string]any{"a": long[:maxLine/2], "b": long[:maxLine/2+1], "c": []int{1}},
			`{"a":"` + long[:maxLine/2] + `","b":{"leftOutBytes":32771},"c":[1]}`},
		{long, `{"leftOutBytes":65538}`},
		{map[string]any{long: 1}, `{"leftOutBytes":65542}`},
	} {
		line, err := Entry{Detail: c.detail}.line()
		var e struct{ Detail json.RawMessage }
		if err = errors.Join(err, json.Unmarshal(line, &e)); err != nil || string(e.Detail) != c.want ||
			len(line) >= maxLine {
			t.Errorf("%.100s %v", line, err)
		}
	}
	l, _ := filled(t, 1)
	many := make([]Entry, 65)
	for i := range many {
		many[i].Detail = long[:maxLine-100]
	}
	if err := l.Append(many...); err == nil || !strings.Contains(err.Error(), "is the most") {
		t.Error(err)
	}
	if n, err := l.Verify("", ""); n != 1 || err != nil {
		t.Errorf("%d %v", n, err)
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

// Kinds has all existing kinds.
func TestKinds(t *testing.T) {
	text, err := os.ReadFile("audit.go")
	if err != nil {
		t.Fatal(err)
	}
	_, declared, _ := strings.Cut(string(text), "type Kind string")
	declared, _, _ = strings.Cut(declared, "\n)\n")
	found := regexp.MustCompile(`(?m)^\t\w+ +Kind = "([a-z.]+)"`).FindAllStringSubmatch(declared, -1)
	for _, m := range found {
		if kind := Kind(m[1]); !slices.Contains(Kinds, kind) {
			t.Errorf("%s is not in Kinds", kind)
		}
	}
	if len(found) != len(Kinds) || len(found) < 18 {
		t.Errorf("%d kinds are declared, Kinds has %d", len(found), len(Kinds))
	}
}

// The check for room leaves no trace in the log.
func TestRoom(t *testing.T) {
	l := In(t.TempDir())
	for i := range 3 {
		if err := l.Room(); err != nil {
			t.Fatal(err)
		}
		if n, err := l.Len(); n != int64(i) || err != nil {
			t.Fatalf("%d lines, %v", n, err)
		}
		if err := l.Append(Entry{Time: time.Now(), Kind: RunStarted}); err != nil {
			t.Fatal(err)
		}
	}
	// the checking process was killed
	if err := os.WriteFile(l.name(pendingFile), make([]byte, maxLine), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Len(); n != 3 || err != nil {
		t.Errorf("%d lines, %v", n, err)
	}
}
