package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/unitask/unitask/guest/contract"
)

// detailed is a session's program with a folder for files.
type detailed struct {
	*Client
	dir string
	ctx context.Context
}

func openDetailed(t *testing.T) detailed { return detailed{open(t), t.TempDir(), within(t)} }

func (d detailed) at(name string) string { return filepath.Join(d.dir, name) }

func (d detailed) info(args ...string) (FileInfo, error) { return d.Info(d.ctx, Exec{Args: args}) }

func (d detailed) put(name string, from io.Reader, mode fs.FileMode, metadata map[string]string) (FileInfo, error) {
	return d.Put(d.ctx, false, d.at(name), from, mode, metadata)
}

func TestPutAndRead(t *testing.T) {
	t.Parallel()
	d := openDetailed(t)
	big := strings.Repeat("0123456789abcdef", 64<<10) // more than a window
	is, err := d.put("a/b/big", strings.NewReader(big), 0o640, map[string]string{"one": "1", "two": "ü x"})
	if errors.Is(err, syscall.ENOTSUP) {
		t.Skip("the file system has no extended attributes")
	}
	if err != nil || is.Size != int64(len(big)) || is.Mode != 0o640 || is.Path != d.at("a/b/big") ||
		is.UID != os.Getuid() || is.Owner == "" || is.Group == "" || is.Metadata["one"] != "1" ||
		is.Metadata["two"] != "ü x" || len(is.Metadata) != 2 {
		t.Errorf("written: %+v %v", is, err)
	}
	var out bytes.Buffer
	if err := d.Read(d.ctx, false, d.at("a/b/big"), 10, &out); err != nil || out.String() != big[10:] {
		t.Errorf("read: %d bytes, %v", out.Len(), err)
	}
	if is, err = d.put("a/b/big", strings.NewReader(""), 0o600, nil); err != nil || is.Mode != 0o640 || is.Size != 0 ||
		is.Metadata != nil {
		t.Errorf("written again: %+v %v", is, err)
	}
	lost := errors.New("lost")
	broken := io.MultiReader(strings.NewReader("x"), iotest.ErrReader(lost))
	if _, err = d.put("a/b/big", broken, 0o600, nil); !errors.Is(err, lost) {
		t.Errorf("written in part: %v", err)
	}
	if list, err := os.ReadDir(d.at("a/b")); len(list) != 1 || err != nil {
		t.Errorf("left beside it: %v %v", list, err)
	}
	if err := d.Read(d.ctx, false, d.dir, 0, io.Discard); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("read a folder: %v", err)
	}
}

func TestFilesInDetail(t *testing.T) {
	t.Parallel()
	d := openDetailed(t)
	if _, err := d.put("a/b/f", strings.NewReader("12345"), 0o600, nil); err != nil {
		t.Fatal(err)
	}
	probe := t.TempDir() + "/probe" // the umask applies to folders
	if err := os.Mkdir(probe, 0o755); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(probe)
	if err != nil {
		t.Fatal(err)
	}
	folder := st.Mode()
	if is, err := d.info("mkdir", d.at("c/d")); err != nil || is.Mode != folder {
		t.Errorf("folder: %+v %v", is, err)
	}
	for _, link := range [][2]string{{"../a", "c/link"}, {"nowhere", "c/lost"}, {"loop", "c/loop"}} {
		if err := os.Symlink(link[0], d.at(link[1])); err != nil {
			t.Fatal(err)
		}
	}
	if is, err := d.info("stat", d.at("c/link")); err != nil || is.Mode.Type() != fs.ModeSymlink ||
		is.Target != d.at("a") || is.TargetMode != folder {
		t.Errorf("link: %+v %v", is, err)
	}
	if is, err := d.info("stat", d.at("c/lost")); err != nil || is.Target != "" || is.TargetMode != 0 {
		t.Errorf("link to nothing: %+v %v", is, err)
	}
	list, more, err := d.List(d.ctx, false, d.dir, 2, 100, 1<<20)
	var names []string
	for _, one := range list {
		names = append(names, strings.TrimPrefix(one.Path, d.dir+"/"))
	}
	if err != nil || more || !slices.Equal(names, []string{"a", "a/b", "c", "c/d", "c/link", "c/loop", "c/lost"}) {
		t.Errorf("list: %q %v %v", names, more, err)
	}
	if list, more, err = d.List(d.ctx, false, d.dir, 9, 3, 1<<20); len(list) != 3 || !more || err != nil {
		t.Errorf("a part of the list: %v %v %v", list, more, err)
	}
	if is, err := d.info("move", d.at("a/b/f"), d.at("e/f")); err != nil || is.Path != d.at("e/f") || is.Size != 5 {
		t.Errorf("moved: %+v %v", is, err)
	}
	if _, _, err := d.List(d.ctx, false, d.at("e/f"), 1, 9, 1<<20); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("list a file: %v", err)
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	d := openDetailed(t)
	for i := range 3 {
		if _, err := d.put(fmt.Sprint(i), strings.NewReader(fmt.Sprint(i, ";")), 0o644, nil); err != nil {
			t.Fatal(err)
		}
	}
	if is, err := d.info("join", d.at("1"), d.at("0"), d.at("1"), d.at("2"), d.at("2")); err != nil || is.Size != 8 {
		t.Errorf("joined: %+v %v", is, err)
	}
	if text, err := os.ReadFile(d.at("1")); string(text) != "0;1;2;2;" || err != nil {
		t.Errorf("joined: %q %v", text, err)
	}
	if list, err := os.ReadDir(d.dir); len(list) != 1 || err != nil {
		t.Errorf("the sources: %v %v", list, err)
	}
	if err := os.MkdirAll(d.at("c/d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args []string
		want error
	}{
		{[]string{"stat", d.at("none")}, syscall.ENOENT}, {[]string{"mkdir", d.at("c/d")}, fs.ErrExist},
		{[]string{"mkdir", d.at("1/x")}, syscall.ENOTDIR}, {[]string{"move", d.at("none"), d.at("g/h")}, syscall.ENOENT},
		{[]string{"join", d.at("g"), d.at("none")}, syscall.ENOENT},
		{[]string{"join", d.at("g"), d.at("c")}, syscall.EISDIR}, {[]string{"put", d.at("c"), "644"}, syscall.EISDIR},
	} {
		if _, err := d.info(row.args...); !errors.Is(err, row.want) {
			t.Errorf("%q: %v, want %v", row.args, err, row.want)
		}
	}
}

// seen collects the changes of a watch.
type seen struct {
	mu   sync.Mutex
	list []FileEvent
	more chan struct{}
}

func (s *seen) on(e FileEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, e)
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// wait waits for a change.
func (s *seen) wait(t *testing.T, ctx context.Context, want FileEvent) {
	t.Helper()
	for {
		s.mu.Lock()
		found, list := slices.Contains(s.list, want), slices.Clone(s.list)
		s.mu.Unlock()
		if found {
			return
		}
		select {
		case <-s.more:
		case <-ctx.Done():
			t.Fatalf("no %+v in %+v", want, list)
		}
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	c, dir := open(t), t.TempDir()
	ctx, stop := context.WithCancel(within(t))
	defer stop()
	if err := os.Mkdir(filepath.Join(dir, "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := &seen{more: make(chan struct{}, 1)}
	ready, over := make(chan struct{}), make(chan error, 1)
	use := func() (func(), error) { return func() {}, nil }
	go func() { over <- c.Watch(ctx, false, dir, true, use, func() { close(ready) }, s.on) }()
	select {
	case <-ready:
	case err := <-over:
		t.Fatal(err)
	}
	sh := func(line string) {
		t.Helper()
		cmd, err := c.Start(ctx, Exec{Args: []string{"sh", "-ec", line}, Env: environment, Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if end, err := cmd.Wait(ctx); err != nil || end.Code != 0 {
			t.Fatalf("%s: %+v %v", line, end, err)
		}
	}
	sh("echo x > f; chmod 600 f; mv f g; rm g")
	for _, want := range []FileEvent{{"f", "create"}, {"f", "write"}, {"f", "chmod"}, {"f", "rename"}, {"g", "create"},
		{"g", "remove"}} {
		s.wait(t, ctx, want)
	}
	sh("mkdir -p old/new/deep; echo x > old/new/deep/f")
	s.wait(t, ctx, FileEvent{"old/new/deep/f", "create"})
	sh("mv old/new moved")
	// The new name is watched a moment later.
	s.wait(t, ctx, FileEvent{"old/new", "rename"})
	sh("i=0; while [ $i -lt 3000 ]; do echo x > moved/deep/many$i; i=$((i+1)); done") // more than a window
	s.wait(t, ctx, FileEvent{"moved/deep/many2999", "write"})
	sh("rm -r moved")
	s.wait(t, ctx, FileEvent{"moved", "remove"})
	stop()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("its end: %v", err)
	}
	for name, want := range map[string]error{"none": syscall.ENOENT, "file": syscall.ENOTDIR} {
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := c.Watch(within(t), false, filepath.Join(dir, name), false, use, nil, s.on); !errors.Is(err, want) {
			t.Errorf("watch %s: %v", name, err)
		}
	}
}

func TestProcessNumber(t *testing.T) {
	t.Parallel()
	c := open(t)
	ctx := within(t)
	var out bytes.Buffer
	told := 0
	e := Exec{Args: []string{"sh", "-c", "echo $$"}, Env: environment, Dir: "/", Stdout: &out}
	e.PID = func(_ *Command, pid int) {
		if told = pid; out.Len() > 0 {
			t.Error("told after output")
		}
	}
	cmd, err := c.Start(ctx, e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.Wait(ctx); err != nil || strings.TrimSpace(out.String()) != fmt.Sprint(told) || told == 0 {
		t.Errorf("told %d, is %q, %v", told, out.String(), err)
	}
	e.Args, told = []string{"no-such-program"}, 0
	cmd, err = c.Start(ctx, e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.Wait(ctx); !errors.As(err, new(*StartError)) || told != 0 {
		t.Errorf("told %d, %v", told, err)
	}
	if _, err := c.Start(ctx, Exec{Args: []string{"id"}, Root: true}); err == nil {
		t.Error("root without the right")
	}
}

func TestAnswersAboutFiles(t *testing.T) {
	const head = "f 644 1 2 3 4 - 0 "
	for text, whole := range map[string]bool{
		head + "0\x00/a\x00u\x00g\x00\x00": true, head + "1\x00/a\x00u\x00g\x00\x00k\x00v\x00": true,
		head + "0\x00a\x00u\x00g\x00\x00": false, head + "1\x00/a\x00u\x00g\x00\x00k\x00": false,
		head + "65\x00/a\x00u\x00g\x00\x00": false, head + "-1\x00/a\x00u\x00g\x00\x00": false, "\x00": false, "": false,
		"f 644 -1 2 3 4 - 0 0\x00/a\x00u\x00g\x00\x00": false, head + "0\x00/a\x00u\x00g\x00b\x00": false,
		"f 77777 1 2 3 4 - 0 0\x00/a\x00u\x00g\x00\x00": false, head + "0\x00/a\x00u\x00g": false,
	} {
		list, more := Infos([]byte(text), 9)
		if (len(list) == 1) != whole || more != (!whole && text != "") {
			t.Errorf("%q: %+v %v", text, list, more)
		}
	}
	for text, fine := range map[string]bool{"R\x00ca\x00": true, "ca\x00": false, "R\x00R\x00": false, "R\x00c\x00": false,
		"R\x00c/a\x00": false, "R\x00c../a\x00": false, "R\x00ca//b\x00": false, "R\x00O\x00": true, "R\x00Oa\x00": false,
		"\x00": false, "R\x00?a\x00": false, "R\x00c" + strings.Repeat("a", 2*contract.MaxPath+1): false} {
		w := &watching{ready: func() {}, on: func(FileEvent) {}}
		if err := w.take([]byte(text)); (err == nil) != fine {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}
