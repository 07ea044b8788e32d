package unitask_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// tree makes the entries of a folder: "name" a file, "name/" a folder, "name -> target" a link. It returns the folder,
// with links resolved.
func tree(t *testing.T, names ...string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		from, target, link := strings.Cut(name, " -> ")
		at := filepath.Join(dir, from)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		switch {
		case link:
			err = os.Symlink(target, at)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(at, 0o755)
		default:
			err = os.WriteFile(at, []byte("content of "+from), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

type attackHostPathsRow struct {
	dir         bool
	host, guest string
	want        string // ok, denied, or the error's text
}

// attackHostPathsRows are the cases of TestAttackHostPaths.
func attackHostPathsRows(work, ok, root, denied, long, short string) []attackHostPathsRow {
	return []attackHostPathsRow{
		{false, work + "/a.txt", "", ok},
		{false, work + "//a.txt", "", ok},
		{false, work + "/./a.txt", "", ok},
		{false, work + "/sub/../a.txt", "", ok},
		{false, work + "/here", "", ok},
		{false, root + "/alias/a.txt", "", ok},
		{false, work + "/dot./x", "", ok},
		{false, work + "/sp ace/x", "", ok},
		{false, work + "/nl\nname", "", ok},
		{false, work + "/colon:x", "", ok},
		{false, work + "/\xff\xfe.bin", "/work/x.bin", ok},
		{false, work + "/\xff\xfe.bin", "", "UTF-8"},
		{false, work + "/../work/a.txt", "", ok},
		{false, root + "/work-evil/a.txt", "", denied},
		{false, work + "/../work-evil/a.txt", "", denied},
		{false, work + "/../secret/key", "", denied},
		{false, root + "/secret/key", "", denied},
		{false, work + "/key", "", denied},
		{false, work + "/hop", "", denied},
		{false, work + "/out/key", "", denied},
		{false, work + "/abs", "/work/passwd", denied},
		{false, "/etc/passwd", "/work/passwd", denied},
		{false, "/proc/self/root" + work + "/a.txt", "/work/a.txt", ok}, // it is the same file
		{false, "/proc/self/root" + root + "/secret/key", "/work/k", denied},
		{false, "/proc/self/environ", "/work/env", denied},
		{false, "/proc/self/fd/0", "/work/in", denied},
		{false, work + "/loop", "", "too many levels"},
		{false, work + "/A.txt", "", "no such file"},
		{false, work + "/a.txt.", "", "no such file"},
		{false, work + "/a.txt ", "", "no such file"},
		{false, work + "/a.txt/", "", ok}, // a trailing slash is removed
		{false, work + "/nothing", "", "no such file"},
		{false, work + "/a.txt\x00.png", "", "NUL"},
		{false, "", "", "no path"},
		{false, long, "", "no path"},
		{false, work + "/" + strings.Repeat("y", 300), "", "too long"},
		{false, work, "", "--dir"},
		{false, work + "/fifo", "", "pipe"},
		{false, short + "/sock", "/work/s", denied},
		{false, "/dev/null", "/work/null", denied},
		{false, work + "/a.txt", "relative", "absolute"},
		{false, work + "/a.txt", "/etc/passwd", "can have"},
		{false, work + "/a.txt", "/work/../etc/passwd", "can have"},
		{false, work + "/a.txt", "/proc/self/mem", "can have"},
		{false, work + "/a.txt", "/unitask/lib/preload.js", "can have"},
		{false, work + "/a.txt", "/", "can have"},
		{false, work + "/a.txt", "/out/x", "comes back"},
		{false, work + "/a.txt", "/work/\x00", "NUL"},
		{false, work + "/a.txt", "/" + strings.Repeat("z/", 2100), "at most"},
		{true, work + "/sub", "", ok},
		{true, work + "/empty", "", ok},
		{true, root + "/work-evil", "", denied},
		{true, root, "/work/all", denied},
		{true, work + "/out", "", denied},
		{true, work + "/a.txt", "", "--file brings files"},
		{false, work + "/out/nothing", "", denied}, // a missing file behind a link to the outside counts as outside
		{true, work + "/out/nothing", "", denied},
		{false, work + "/gone", "", denied},
		{false, work + "/gone2", "", denied},
		{false, work + "/missing", "", "no such file"},
		{true, work + "/nothing", "", "no such file"},
		{true, root + "/trees/good", "", ok},
		{true, root + "/trees/dangling", "", ok},
		{true, root + "/trees/self", "", ok},
		{true, root + "/trees/ignored", "", ok},
		{true, root + "/trees/out", "", `"x" is a link that leads out`},
		{true, root + "/trees/climb", "", `"x" is a link that leads out`},
		{true, root + "/trees/abs", "", `"x" is a link that leads out`},
		{true, root + "/trees/two", "", "is a link that leads"},
		{true, root + "/trees/dirlink", "", `"d" is a link that leads out`},
		{true, root + "/trees/pipe", "", `"p" is a pipe`},
		{true, root + "/trees/big", "", "and may bring 4096: .unitaskignore names what is not needed: dirMax"},
		{true, short, "/work/s", `"sock" is a socket`},
		{true, "/proc/self/root" + root + "/secret", "/work/k", denied},
	}
}

// Paths that a request can name, and the result under filesUnder and dirsUnder of /work. The folder also contains
// /work-evil and /secret.
func TestAttackHostPaths(t *testing.T) {
	root := makeNamedPaths(t)
	short, err := os.MkdirTemp("/tmp", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(short)
	l, err := net.Listen("unix", filepath.Join(short, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(filepath.Join(root, "trees", "big", "g"), make([]byte, 5000), 0o644); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(root, "work")
	ceiling, err := policy.ParseCeiling(filepath.Join(root, "c.toml"),
		[]byte("filesUnder = [\"work\", \"not-there\"]\ndirsUnder = [\"work\", \"trees\", \""+short+"\"]"))
	if err != nil {
		t.Fatal(err)
	}
	const denied, ok = "denied", "ok"
	long := work + "/" + strings.Repeat("x/", 3000)
	for _, c := range attackHostPathsRows(work, ok, root, denied, long, short) {
		if runtime.GOOS != "linux" && (strings.HasPrefix(c.host, "/proc") || strings.Contains(c.host, "\xff") ||
			strings.Contains(c.host, "A.txt")) {
			continue
		}
		req := unitask.Request{DirMax: 4096}
		if c.dir {
			req.Dirs = []unitask.Mount{{Host: c.host, Guest: c.guest}}
		} else {
			req.Files = []unitask.Mount{{Host: c.host, Guest: c.guest}}
		}
		found, denials, err := unitask.ReadInputs(req, ceiling, nil)
		got := ok
		switch {
		case errors.As(err, new(*policy.FieldError)):
			got = err.Error()
		case err != nil:
			t.Errorf("%q: %v", c.host, err)
		case len(denials) > 0:
			got = denied
			if len(found) > 0 || denials[0].Reason == "" || denials[0].Rule == "" {
				t.Errorf("%q: %v %v", c.host, found, denials)
			}
		}
		if c.want != ok && c.want != denied && strings.Contains(got, c.want) {
			got = c.want
		}
		what := "file "
		if c.dir {
			what = "dir "
		}
		attack.Check(t, what+strings.ReplaceAll(fmt.Sprintf("%.80s at %.40s", c.host, c.guest), root, "…"), c.want, got)
		for name, text := range found {
			if strings.Contains(text, "content of secret") {
				t.Errorf("%q: %s holds %q", c.host, name, text)
			}
		}
	}
	found, _, err := unitask.ReadInputs(unitask.Request{Dirs: []unitask.Mount{{Host: root + "/trees/ignored", Guest: "/w"},
		{Host: root + "/trees/good", Guest: "/g"}}}, ceiling, nil)
	want := map[string]string{"/w": "d---------", "/w/.unitaskignore": "# what stays out\nnode_modules/\n*.log\n/bad\n",
		"/w/keep": "content of trees/ignored/keep", "/w/sub": "d---------",
		"/w/sub/.unitaskignore": "!x.log\n", "/w/sub/x.log": "content of trees/ignored/sub/x.log",
		"/w/sub/y.txt": "content of trees/ignored/sub/y.txt",
		"/g":           "d---------", "/g/f": "content of trees/good/f", "/g/in": "L---------f", "/g/deep": "d---------",
		"/g/deep/up": "L---------../f"}
	if err != nil || fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("%v\n%v\n%v", err, found, want)
	}
	twice := []unitask.Mount{{Host: work + "/a.txt"}, {Host: work + "/sub/b.txt", Guest: work + "/a.txt"}}
	if _, _, err := unitask.Resolve(unitask.Request{Files: twice}, nil); err == nil ||
		!strings.Contains(err.Error(), "not the only one") {
		t.Error(err)
	}
	if _, _, err := unitask.Resolve(unitask.Request{DirMax: -1}, nil); err == nil {
		t.Error("a negative bound")
	}
}

// makeNamedPaths makes the folder with the paths in the rows of TestAttackHostPaths.
func makeNamedPaths(t *testing.T) string {
	t.Helper()
	root := tree(t, "work/a.txt", "work/sub/b.txt", "work-evil/a.txt", "secret/key", "work/out -> ../secret",
		"work/key -> ../secret/key", "work/gone -> ../secret/nothing/at/all", "work/gone2 -> gone", "work/missing -> a/b/c",
		"work/here -> a.txt",
		"work/loop -> loop", "work/hop -> hop2", "work/hop2 -> ../secret/key", "work/abs -> /etc/passwd", "work/dot./x",
		"work/A.TXT", "work/sp ace/x", "work/nl\nname", "work/colon:x",
		"alias -> work", "work/empty/", "work/\xff\xfe.bin", "trees/good/f", "trees/good/in -> f",
		"trees/good/deep/up -> ../f", "trees/dangling/x -> nowhere", "trees/out/x -> ../../secret/key",
		"trees/climb/x -> y/../../../secret", "trees/abs/x -> /etc/passwd", "trees/two/a -> b",
		"trees/two/b -> ../../secret/key", "trees/dirlink/d -> ../../secret", "trees/self/x -> .",
		"trees/ignored/keep", "trees/ignored/node_modules/m/index.js", "trees/ignored/sub/x.log", "trees/ignored/sub/y.txt",
		"trees/ignored/bad -> /etc/passwd", "trees/big/f")
	for name, text := range map[string]string{"trees/ignored/.unitaskignore": "# what stays out\nnode_modules/\n*.log\n" +
		"/bad\n",
		"trees/ignored/sub/.unitaskignore": "!x.log\n"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "trees", "pipe"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, fifo := range []string{"work/fifo", "trees/pipe/p"} {
		if err := syscall.Mkfifo(filepath.Join(root, fifo), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Outside of filesUnder and dirsUnder the answer is always the same, whether a file exists or not.
func TestAttackOneAnswer(t *testing.T) {
	root := tree(t, "work/a.txt", "secret/file", "secret/folder/", "secret/closed/x", "secret/link -> file",
		"secret/dangling -> nothing", "secret/loop -> loop", "secret/inside -> ../work/a.txt/..",
		"work/to-file -> ../secret/file", "work/to-folder -> ../secret/folder", "work/to-nothing -> ../secret/nothing",
		"work/to-pipe -> ../secret/pipe", "work/to-link -> ../secret/link", "work/way -> ../secret")
	if err := errors.Join(syscall.Mkfifo(root+"/secret/pipe", 0o600), os.Chmod(root+"/secret/closed", 0),
		os.WriteFile(root+"/secret/empty", nil, 0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(root+"/secret/closed", 0o700) }) // otherwise only root can remove it
	ceiling, err := policy.ParseCeiling(filepath.Join(root, "c.toml"),
		[]byte("filesUnder = [\"work\"]\ndirsUnder = [\"work\"]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"secret/file", "secret/folder", "secret/pipe", "secret/empty", "secret/nothing",
		"secret/nothing/below", "secret/file/below", "secret/closed", "secret/closed/x", "secret/closed/nothing",
		"secret/link", "secret/dangling", "secret/loop", "secret/" + strings.Repeat("y", 300), "nothing", "work/to-file",
		"work/to-folder", "work/to-nothing", "work/to-pipe", "work/to-link",
		"work/way/file", "work/way/nothing", "work/way/pipe", "work/way/loop", "work/way/dangling"} {
		for field, req := range map[string]unitask.Request{"filesUnder": {Files: []unitask.Mount{{Host: root + "/" + host,
			Guest: "/x"}}}, "dirsUnder": {Dirs: []unitask.Mount{{Host: root + "/" + host, Guest: "/x"}}}} {
			_, denials, err := unitask.ReadInputs(req, ceiling, nil)
			got := fmt.Sprint(err)
			if len(denials) == 1 && err == nil && denials[0].Requested == root+"/"+host {
				got = denials[0].Reason
			}
			attack.Check(t, "outside of "+field+": "+host, "is not under a folder of "+field, got)
		}
	}
}

// A request with too many paths is refused before any path is looked up. Each path would take a descriptor, and be
// compared with all others.
func TestAttackManyInputs(t *testing.T) {
	root := tree(t, "f")
	for _, field := range []string{"files", "dirs", "allowNet"} {
		const n = 100_000
		req := unitask.Request{}
		for i := range n {
			m := unitask.Mount{Host: root + "/f", Guest: fmt.Sprintf("/x/%d", i)}
			switch field {
			case "files":
				req.Files = append(req.Files, m)
			case "dirs":
				req.Dirs = append(req.Dirs, m)
			default:
				req.Files, req.AllowNet = append(req.Files[:0], m), append(req.AllowNet, fmt.Sprintf("x%d.example.com", i))
			}
		}
		begin := time.Now()
		_, _, err := unitask.Resolve(req, nil)
		got := fmt.Sprint(err)
		if len(got) > len(field)+18 {
			got = got[:len(field)+18]
		}
		if took := time.Since(begin); took > 5*time.Second {
			got += fmt.Sprintf(" after %s", took)
		}
		attack.Check(t, fmt.Sprintf("%d of %s", n, field), field+" of 100000 entries", got)
	}
}

// A request that no machine can run leaves no record.
func TestAttackLargeRequests(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	large, small := strings.Repeat("x", 1<<20+1), strings.Repeat("x", 1<<10)
	env := map[string]string{}
	for i := range 2000 {
		env[fmt.Sprint("V", i)] = small
	}
	for name, req := range map[string]unitask.Request{
		"an argument": {Args: []string{large}}, "many arguments": {Args: slices.Repeat([]string{small}, 2000)},
		"a variable": {Env: map[string]string{"A": large}}, "a variable's name": {Env: map[string]string{large: "a"}},
		"many variables":          {Env: env},
		"arguments and variables": {Args: slices.Repeat([]string{small}, 600), Env: map[string]string{"A": large[:600<<10]}},
	} {
		req.Code = "1"
		res, err := rt.Run(t.Context(), req, unitask.IO{})
		got := fmt.Sprint(err)
		if res == nil && errors.As(err, new(*policy.FieldError)) && strings.HasPrefix(got, "args of ") {
			got = "refused"
		}
		ids, _ := rt.Runs().IDs()
		attack.Check(t, "a request with too much in it: "+name, "refused, 0 records",
			fmt.Sprintf("%s, %d records", got, len(ids)))
	}
}

// A recorded request does not show where a denied path leads.
func TestDeniedPathIsNotResolved(t *testing.T) {
	root := tree(t, "work/", "secret/target", "secret/link -> target")
	ceiling, err := policy.ParseCeiling(filepath.Join(root, "c.toml"), []byte(`filesUnder = ["work"]`))
	if err != nil {
		t.Fatal(err)
	}
	asked, eff, denials, err := unitask.ResolveRequest(unitask.Request{Files: []unitask.Mount{{Host: root + "/secret/link",
		Guest: "/x"}}}, ceiling)
	if err != nil || len(denials) != 1 || strings.Contains(fmt.Sprint(asked, eff, denials), "target") {
		t.Errorf("%+v %+v %+v %v", asked, eff, denials, err)
	}
}

// The file that is read is the file that was checked. Meanwhile the link, a folder on the way, or a file in the tree
// may be replaced.
func TestSwappedInputs(t *testing.T) {
	root := tree(t, "work/dir/f", "work/other/f", "secret/dir/f", "secret/f")
	// as long as the good one
	if err := os.WriteFile(filepath.Join(root, "secret/dir/f"), []byte("content of nothing!"), 0o644); err != nil {
		t.Fatal(err)
	}
	link, dir, real := filepath.Join(root, "work/link"), filepath.Join(root, "work/way"), filepath.Join(root, "work/dir")
	if err := errors.Join(os.Symlink("dir/f", link), os.Symlink("dir", dir)); err != nil {
		t.Fatal(err)
	}
	ceiling, err := policy.ParseCeiling(filepath.Join(root, "c.toml"),
		[]byte("filesUnder = [\"work\"]\ndirsUnder = [\"work\"]"))
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		point := func(name, target string) {
			tmp := name + ".new"
			_ = os.Symlink(target, tmp)
			_ = os.Rename(tmp, name)
		}
		for {
			select {
			case <-stop:
				return
			default:
			}
			point(link, "../secret/dir/f")
			point(dir, "../secret/dir")
			_ = os.Rename(real, real+".away")
			_ = os.Symlink("../secret/dir", real)
			_ = os.Remove(real)
			_ = os.Rename(real+".away", real)
			point(link, "dir/f")
			point(dir, "dir")
		}
	})
	read := 0
	deadline := time.Now().Add(2 * time.Second)
	for time.Now().Before(deadline) {
		found, _, _ := unitask.ReadInputs(unitask.Request{Files: []unitask.Mount{{Host: link},
			{Host: filepath.Join(dir, "f")}, {Host: filepath.Join(real, "f")}},
			Dirs: []unitask.Mount{{Host: dir}, {Host: real, Guest: "/w/real"}}}, ceiling, nil)
		for name, text := range found {
			if strings.Contains(text, "nothing!") {
				t.Fatalf("%s holds %q", name, text)
			}
			read++
		}
	}
	close(stop)
	group.Wait()
	if read == 0 {
		t.Error("nothing was read at all")
	}
	// Replaced between the check and the read.
	plain := tree(t, "d/f", "d/g/h")
	found, _, err := unitask.ReadInputs(unitask.Request{Dirs: []unitask.Mount{{Host: plain + "/d", Guest: "/w/d"}}}, nil,
		func() {
			if err := errors.Join(os.Remove(plain+"/d/f"), os.Symlink("/etc/passwd", plain+"/d/f")); err != nil {
				t.Fatal(err)
			}
		})
	if strings.Contains(fmt.Sprint(found), "root:") {
		t.Errorf("%v %v", found, err)
	}
}

func TestParseMount(t *testing.T) {
	for text, want := range map[string]unitask.Mount{"a": {Host: "a"}, "a:/b": {Host: "a", Guest: "/b"},
		"/a:b": {Host: "/a:b"}, "a:/b:/c": {Host: "a:/b", Guest: "/c"}, ":/x": {Host: ":/x"}, "": {}} {
		if got := unitask.ParseMount(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}
