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
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// tree makes files of a folder: "name" a file, "name/" a folder, "name -> target" a
// link. It returns the folder, links resolved.
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

// What can be named, and what comes of it under filesUnder and dirsUnder of /work in
// a folder that also holds /work-evil and /secret.
func TestAttackHostPaths(t *testing.T) {
	root := tree(t, "work/a.txt", "work/sub/b.txt", "work-evil/a.txt", "secret/key", "work/out -> ../secret", "work/key -> ../secret/key", "work/gone -> ../secret/nothing/at/all", "work/gone2 -> gone", "work/missing -> a/b/c", "work/here -> a.txt",
		"work/loop -> loop", "work/hop -> hop2", "work/hop2 -> ../secret/key", "work/abs -> /etc/passwd", "work/dot./x", "work/A.TXT", "work/sp ace/x", "work/nl\nname", "work/colon:x",
		"alias -> work", "work/empty/", "work/\xff\xfe.bin", "trees/good/f", "trees/good/in -> f", "trees/good/deep/up -> ../f", "trees/dangling/x -> nowhere", "trees/out/x -> ../../secret/key",
		"trees/climb/x -> y/../../../secret", "trees/abs/x -> /etc/passwd", "trees/two/a -> b", "trees/two/b -> ../../secret/key", "trees/dirlink/d -> ../../secret", "trees/self/x -> .",
		"trees/ignored/keep", "trees/ignored/node_modules/m/index.js", "trees/ignored/sub/x.log", "trees/ignored/sub/y.txt", "trees/ignored/bad -> /etc/passwd", "trees/big/f")
	for name, text := range map[string]string{"trees/ignored/.unitaskignore": "# what stays out\nnode_modules/\n*.log\n/bad\n", "trees/ignored/sub/.unitaskignore": "!x.log\n"} {
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
	ceiling, err := policy.ParseCeiling(filepath.Join(root, "c.toml"), []byte("filesUnder = [\"work\", \"not-there\"]\ndirsUnder = [\"work\", \"trees\", \""+short+"\"]"))
	if err != nil {
		t.Fatal(err)
	}
	const denied, ok = "denied", "ok"
	long := work + "/" + strings.Repeat("x/", 3000)
	for _, c := range []struct {
		dir         bool
		host, guest string
		want        string // ok, denied, or what the error says
	}{
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
		{false, work + "/a.txt/", "", ok}, // a trailing slash is cleaned away
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
		{false, work + "/out/nothing", "", denied}, // by way of a link, what is missing outside is outside
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
	} {
		if runtime.GOOS != "linux" && (strings.HasPrefix(c.host, "/proc") || strings.Contains(c.host, "\xff") || strings.Contains(c.host, "A.txt")) {
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
	found, _, err := unitask.ReadInputs(unitask.Request{Dirs: []unitask.Mount{{Host: root + "/trees/ignored", Guest: "/w"}, {Host: root + "/trees/good", Guest: "/g"}}}, ceiling, nil)
	want := map[string]string{"/w": "d---------", "/w/.unitaskignore": "# what stays out\nnode_modules/\n*.log\n/bad\n", "/w/keep": "content of trees/ignored/keep", "/w/sub": "d---------",
		"/w/sub/.unitaskignore": "!x.log\n", "/w/sub/x.log": "content of trees/ignored/sub/x.log", "/w/sub/y.txt": "content of trees/ignored/sub/y.txt",
		"/g": "d---------", "/g/f": "content of trees/good/f", "/g/in": "L---------f", "/g/deep": "d---------", "/g/deep/up": "L---------../f"}
	if err != nil || fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("%v\n%v\n%v", err, found, want)
	}
	twice := []unitask.Mount{{Host: work + "/a.txt"}, {Host: work + "/sub/b.txt", Guest: work + "/a.txt"}}
	if _, _, err := unitask.Resolve(unitask.Request{Files: twice}, nil); err == nil || !strings.Contains(err.Error(), "not the only one") {
		t.Error(err)
	}
	if _, _, err := unitask.Resolve(unitask.Request{DirMax: -1}, nil); err == nil {
		t.Error("a negative bound")
	}
}

// Outside of filesUnder and dirsUnder there is one answer, whatever is there.
func TestAttackOneAnswer(t *testing.T) {
	root := tree(t, "work/a.txt", "secret/file", "secret/folder/", "secret/closed/x", "secret/link -> file", "secret/dangling -> nothing", "secret/loop -> loop", "secret/inside -> ../work/a.txt/..",
		"work/to-file -> ../secret/file", "work/to-folder -> ../secret/folder", "work/to-nothing -> ../secret/nothing", "work/to-pipe -> ../secret/pipe", "work/to-link -> ../secret/link", "work/way -> ../secret")
	if err := errors.Join(syscall.Mkfifo(root+"/secret/pipe", 0o600), os.Chmod(root+"/secret/closed", 0), os.WriteFile(root+"/secret/empty", nil, 0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(root+"/secret/closed", 0o700) }) // else only root removes it
	ceiling, err := policy.ParseCeiling(filepath.Join(root, "c.toml"), []byte("filesUnder = [\"work\"]\ndirsUnder = [\"work\"]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"secret/file", "secret/folder", "secret/pipe", "secret/empty", "secret/nothing", "secret/nothing/below", "secret/file/below", "secret/closed", "secret/closed/x", "secret/closed/nothing",
		"secret/link", "secret/dangling", "secret/loop", "secret/" + strings.Repeat("y", 300), "nothing", "work/to-file", "work/to-folder", "work/to-nothing", "work/to-pipe", "work/to-link",
		"work/way/file", "work/way/nothing", "work/way/pipe", "work/way/loop", "work/way/dangling"} {
		for field, req := range map[string]unitask.Request{"filesUnder": {Files: []unitask.Mount{{Host: root + "/" + host, Guest: "/x"}}}, "dirsUnder": {Dirs: []unitask.Mount{{Host: root + "/" + host, Guest: "/x"}}}} {
			_, denials, err := unitask.ReadInputs(req, ceiling, nil)
			got := fmt.Sprint(err)
			if len(denials) == 1 && err == nil && denials[0].Requested == root+"/"+host {
				got = denials[0].Reason
			}
			attack.Check(t, "outside of "+field+": "+host, "is not under a folder of "+field, got)
		}
	}
}

// A request that names more than it may is refused before anything is looked for: each
// path would take a descriptor, and be compared with all others.
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

// A request that no machine takes leaves no record of itself.
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
		"a variable": {Env: map[string]string{"A": large}}, "a variable's name": {Env: map[string]string{large: "a"}}, "many variables": {Env: env},
		"arguments and variables": {Args: slices.Repeat([]string{small}, 600), Env: map[string]string{"A": large[:600<<10]}},
	} {
		req.Code = "1"
		res, err := rt.Run(t.Context(), req, unitask.IO{})
		got := fmt.Sprint(err)
		if res == nil && errors.As(err, new(*policy.FieldError)) && strings.HasPrefix(got, "args of ") {
			got = "refused"
		}
		ids, _ := rt.Runs().IDs()
		attack.Check(t, "a request with too much in it: "+name, "refused, 0 records", fmt.Sprintf("%s, %d records", got, len(ids)))
	}
}

// A request as it is recorded does not tell where a path leads that was denied.
func TestDeniedPathIsNotResolved(t *testing.T) {
	root := tree(t, "work/", "secret/target", "secret/link -> target")
	ceiling, err := policy.ParseCeiling(filepath.Join(root, "c.toml"), []byte(`filesUnder = ["work"]`))
	if err != nil {
		t.Fatal(err)
	}
	asked, eff, denials, err := unitask.ResolveRequest(unitask.Request{Files: []unitask.Mount{{Host: root + "/secret/link", Guest: "/x"}}}, ceiling)
	if err != nil || len(denials) != 1 || strings.Contains(fmt.Sprint(asked, eff, denials), "target") {
		t.Errorf("%+v %+v %+v %v", asked, eff, denials, err)
	}
}

// What is read is what was checked, whatever is exchanged meanwhile: the link itself,
// a folder on the way, a file in the tree.
func TestSwappedInputs(t *testing.T) {
	root := tree(t, "work/dir/f", "work/other/f", "secret/dir/f", "secret/f")
	if err := os.WriteFile(filepath.Join(root, "secret/dir/f"), []byte("content of nothing!"), 0o644); err != nil { // as long as the good one
		t.Fatal(err)
	}
	link, dir, real := filepath.Join(root, "work/link"), filepath.Join(root, "work/way"), filepath.Join(root, "work/dir")
	if err := errors.Join(os.Symlink("dir/f", link), os.Symlink("dir", dir)); err != nil {
		t.Fatal(err)
	}
	ceiling, err := policy.ParseCeiling(filepath.Join(root, "c.toml"), []byte("filesUnder = [\"work\"]\ndirsUnder = [\"work\"]"))
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
		found, _, _ := unitask.ReadInputs(unitask.Request{Files: []unitask.Mount{{Host: link}, {Host: filepath.Join(dir, "f")}, {Host: filepath.Join(real, "f")}},
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
	// Exchanged between the check and the reading.
	plain := tree(t, "d/f", "d/g/h")
	found, _, err := unitask.ReadInputs(unitask.Request{Dirs: []unitask.Mount{{Host: plain + "/d", Guest: "/w/d"}}}, nil, func() {
		if err := errors.Join(os.Remove(plain+"/d/f"), os.Symlink("/etc/passwd", plain+"/d/f")); err != nil {
			t.Fatal(err)
		}
	})
	if strings.Contains(fmt.Sprint(found), "root:") {
		t.Errorf("%v %v", found, err)
	}
}

// Files and folders of the host are inside as they are outside, and stay as they are.
func TestInputs(t *testing.T) {
	needVM(t)
	dir := tree(t, "proj/data/sales.csv", "proj/data/tool.sh", "proj/data/latest -> sales.csv", "proj/src/main.js", "proj/empty/", "one.txt", "evil -> /etc/passwd")
	if err := errors.Join(os.Chmod(dir+"/proj/data/tool.sh", 0o755), os.Chtimes(dir+"/proj/data/sales.csv", time.Time{}, time.Unix(1_500_000_000, 0))); err != nil {
		t.Fatal(err)
	}
	const code = `
const fs = require("fs"), path = require("path");
const show = (name, f) => { try { console.log(name, f()); } catch (e) { console.log(name, e.code); } };
show("relative", () => fs.readFileSync("data/sales.csv", "utf8"));
show("absolute", () => fs.readFileSync(path.resolve("data/latest"), "utf8") + " " + fs.readlinkSync("data/latest"));
show("elsewhere", () => fs.readFileSync("/elsewhere/file", "utf8"));
show("list", () => fs.readdirSync(".").sort().join());
show("time", () => fs.statSync("data/sales.csv").mtimeMs / 1000);
for (const f of ["data/sales.csv", "data/new", "new", "/elsewhere/file", "empty/x"]) show("write " + f, () => fs.writeFileSync(f, "x"));
show("append", () => fs.appendFileSync("data/sales.csv", "x"));
show("unlink", () => fs.unlinkSync("data/sales.csv"));
show("rename", () => fs.renameSync("data/sales.csv", "data/y"));
show("mkdir", () => fs.mkdirSync("data/d"));
show("truncate", () => fs.truncateSync("data/sales.csv"));
show("tmp", () => fs.writeFileSync("/tmp/x", "x"));
show("require", () => require("./src/main.js"));
`
	if err := os.WriteFile(dir+"/proj/src/main.js", []byte("module.exports = 'a module'"), 0o644); err != nil {
		t.Fatal(err)
	}
	const want = `relative content of proj/data/sales.csv
absolute content of proj/data/sales.csv sales.csv
elsewhere content of one.txt
list code.js,data,empty,src
time 1500000000
write data/sales.csv EACCES
write data/new EACCES
write new EACCES
write /elsewhere/file EACCES
write empty/x EACCES
append EACCES
unlink EACCES
rename EACCES
mkdir EACCES
truncate EACCES
tmp undefined
require a module
`
	req := unitask.Request{Code: code, Dir: dir + "/proj", Dirs: []unitask.Mount{{Host: dir + "/proj"}}, Files: []unitask.Mount{{Host: dir + "/one.txt", Guest: "/elsewhere/file"}}}
	for _, kernel := range kernels(t) {
		for _, cold := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s cold=%v", kernel, cold), func(t *testing.T) {
				req := req
				req.Kernel, req.Cold = kernel, cold
				rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
				if err != nil {
					t.Fatal(err)
				}
				defer rt.Close()
				res, err := rt.Run(t.Context(), req, unitask.IO{})
				if err != nil || res.Cloned == cold {
					t.Fatalf("%+v %v", res, err)
				}
				if string(res.Stdout) != want || len(res.Stderr) > 0 {
					t.Errorf("%s%s", res.Stdout, res.Stderr)
				}
				again, err := rt.History().Request(res.RunID, "")
				if err != nil || len(again.Dirs) != 1 || again.Dirs[0].Host != dir+"/proj" || again.Files[0].Guest != "/elsewhere/file" {
					t.Errorf("%+v %v", again, err)
				}
			})
		}
	}
	text, err := os.ReadFile(dir + "/proj/data/sales.csv")
	if err != nil || string(text) != "content of proj/data/sales.csv" {
		t.Errorf("%q %v", text, err)
	}
	t.Run("names that are no text", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("this host's file system has none")
		}
		odd := tree(t, "\xff\xfe", "d\x80/f", "link -> \xff\xfe")
		req := unitask.Request{Dirs: []unitask.Mount{{Host: odd, Guest: "/w"}}, Code: `
const fs = require("fs");
console.log(fs.readdirSync("/w", "latin1").sort().join(), fs.readFileSync(Buffer.from([47, 119, 47, 0xff, 0xfe]), "latin1"), fs.readFileSync("/w/link", "latin1"))`}
		res, err := unitask.Run(t.Context(), req, unitask.Options{Home: newHome(t)})
		if err != nil || res.Kernel != image.Linux || string(res.Stdout) != "d\u0080,link,\u00ff\u00fe content of \u00ff\u00fe content of \u00ff\u00fe\n" {
			t.Errorf("%q %q %v", res.Stdout, res.Stderr, err)
		}
		req.Kernel = image.Nanos
		if _, err = unitask.Run(t.Context(), req, unitask.Options{Home: newHome(t)}); err == nil || !strings.Contains(err.Error(), "use linux") {
			t.Error(err)
		}
	})
	t.Run("too much for the machine", func(t *testing.T) {
		big := tree(t, "x")
		if err := os.Truncate(big+"/x", 200<<20); err != nil {
			t.Fatal(err)
		}
		_, err := unitask.Run(t.Context(), unitask.Request{Code: "1", MemoryMB: 256, Files: []unitask.Mount{{Host: big + "/x"}}}, unitask.Options{Home: newHome(t)})
		if !errors.As(err, new(*policy.FieldError)) || !strings.Contains(err.Error(), "memoryMb 490 would do") {
			t.Error(err)
		}
	})
}

// A large tree arrives in full. UNITASK_TEST_TREE=20000 makes it the whole size: 20 000
// files, 200 MB.
func TestTree(t *testing.T) {
	needVM(t)
	files := 2000
	if os.Getenv("UNITASK_TEST_TREE") != "" {
		files = 20000
	}
	root := t.TempDir()
	content := []byte(strings.Repeat("0123456789", 1000))
	for i := range files {
		dir := filepath.Join(root, "d"+itoa(i%7), "e"+itoa(i%100))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		copy(content, fmt.Sprintf("%010d", i))
		if err := os.WriteFile(filepath.Join(dir, "f"+itoa(i)), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const code = `
const fs = require("fs"), path = require("path");
let n = 0, bytes = 0, bad = 0;
(function walk(dir) {
  for (const e of fs.readdirSync(dir, { withFileTypes: true })) {
    const p = path.join(dir, e.name);
    if (e.isDirectory()) { walk(p); continue; }
    const b = fs.readFileSync(p);
    n++; bytes += b.length;
    if (b.subarray(0, 10).toString() !== e.name.slice(1).padStart(10, "0")) bad++;
  }
})(process.argv[2]);
console.log(n, bytes, bad);`
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			res, err := unitask.Run(t.Context(), unitask.Request{Kernel: kernel, Code: code, Args: []string{"/tree"}, MemoryMB: 768, Timeout: 5 * time.Minute,
				Dirs: []unitask.Mount{{Host: root, Guest: "/tree"}}}, unitask.Options{Home: newHome(t), Machines: unitask.Booted()})
			if err != nil || string(res.Stdout) != fmt.Sprintf("%d %d 0\n", files, files*10000) {
				t.Fatalf("%+v %v", res, err)
			}
			runtime.ReadMemStats(&after)
			t.Logf("%d files in after %d ms, read after %d ms; the host's heap grew by %d MiB", files, res.Duration.Connect.Milliseconds(), res.Duration.Run.Milliseconds(), (int64(after.HeapSys)-int64(before.HeapSys))>>20)
		})
	}
}

// What the code leaves in /out comes back, and nothing else.
func TestArtifacts(t *testing.T) {
	needVM(t)
	const secret = "s3cret-value"
	const code = `
const fs = require("fs"), cp = require("child_process");
fs.mkdirSync("/out/a/b/c", { recursive: true });
fs.writeFileSync("/out/plot.svg", "<svg/>");
fs.writeFileSync("/out/a/b/c/deep.bin", Buffer.alloc(300000, 7));
fs.writeFileSync("/out/empty", "");
fs.writeFileSync("/out/tool.sh", "#!/bin/sh\n", { mode: 0o755 });
fs.writeFileSync("/out/" + process.env.KEY + ".txt", "it is " + process.env.KEY + "!");
if (require("os").type() === "Linux") fs.writeFileSync(Buffer.from([47, 111, 117, 116, 47, 0xff]), "x");
fs.symlinkSync("/etc/passwd", "/out/passwd");
fs.symlinkSync("..", "/out/up");
fs.mkdirSync("/out/nothing");
process.exit(3);`
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			run := func(req unitask.Request) *unitask.Result {
				t.Helper()
				req.Kernel = kernel
				res, err := rt.Run(t.Context(), req, unitask.IO{})
				if err != nil || len(res.Stderr) > 0 {
					t.Fatalf("%v %s", err, res.Stderr)
				}
				return res
			}
			res := run(unitask.Request{Code: code, Secrets: map[string]string{"KEY": secret}})
			modes := map[string]string{}
			for _, a := range res.Artifacts {
				text, err := os.ReadFile(rt.Runs().Path(res.RunID, record.ArtifactsDir+"/"+a.Path))
				if err != nil || int64(len(text)) != a.Size || sha256Hex(text) != a.SHA256 || strings.Contains(string(text), secret) {
					t.Errorf("%+v: %v", a, err)
				}
				modes[a.Path] = a.Mode
			}
			want := map[string]string{"plot.svg": "0644", "a/b/c/deep.bin": "0644", "empty": "0644", "tool.sh": "0755", record.Redacted + ".txt": "0644"}
			refused, wantRefused := map[string]string{}, map[string]string{"passwd": "is a link", "up": "is a link"}
			if kernel == image.Linux {
				wantRefused["\ufffd"] = "has a name that is no text"
			}
			for _, r := range res.ArtifactsRefused {
				refused[r.Path] = r.Reason
			}
			if fmt.Sprint(modes) != fmt.Sprint(want) || res.ExitCode != 3 || fmt.Sprint(refused) != fmt.Sprint(wantRefused) {
				t.Errorf("%v %v", modes, refused)
			}
			to := t.TempDir()
			outside := filepath.Join(t.TempDir(), "outside")
			if err := errors.Join(os.WriteFile(outside, []byte("mine"), 0o600), os.Symlink(outside, to+"/plot.svg")); err != nil {
				t.Fatal(err)
			}
			folder, err := record.OpenOut(to, true)
			if err != nil {
				t.Fatal(err)
			}
			defer folder.Close()
			left, err := rt.Runs().CopyArtifacts(res.RunID, res.Artifacts, folder)
			if err != nil || len(left) != 0 {
				t.Errorf("%v %+v", err, left)
			}
			text, err := os.ReadFile(to + "/plot.svg")
			mine, _ := os.ReadFile(outside)
			if err != nil || string(text) != "<svg/>" || string(mine) != "mine" {
				t.Errorf("%q %v, %q", text, err, mine)
			}
			if st, err := os.Stat(to + "/tool.sh"); err != nil || st.Mode().Perm()&0o111 != 0 {
				t.Errorf("%v %v", st, err)
			}

			res = run(unitask.Request{Code: `const fs = require("fs"); for (const f of "ab") fs.writeFileSync("/out/" + f, Buffer.alloc(600)); console.log("done")`, MaxArtifacts: 1000})
			if len(res.Artifacts) != 1 || len(res.ArtifactsRefused) != 1 || !strings.Contains(res.ArtifactsRefused[0].Reason, "beyond 1000 bytes") || string(res.Stdout) != "done\n" {
				t.Errorf("%+v %+v", res.Artifacts, res.ArtifactsRefused)
			}
			res = run(unitask.Request{Code: `require("fs").writeFileSync("/out/x", "x")`, MaxArtifacts: -1})
			if len(res.Artifacts)+len(res.ArtifactsRefused) != 0 {
				t.Errorf("%+v %+v", res.Artifacts, res.ArtifactsRefused)
			}
			res = run(unitask.Request{Code: `const fs = require("fs"); for (let i = 0; i < 1100; i++) fs.writeFileSync("/out/" + i, "x")`})
			if len(res.Artifacts) != 1000 || len(res.ArtifactsRefused) != 100 || res.Outcome != unitask.OutcomeUndelivered || res.ExitCode != unitask.ExitUndelivered {
				t.Errorf("%d %s %+v", len(res.Artifacts), res.Outcome, res.ArtifactsRefused)
			}
			res = run(unitask.Request{Code: `const fs = require("fs"); let d = "/out"; for (let i = 0; i < 80; i++) fs.mkdirSync(d += "/d"); fs.writeFileSync(d + "/f", "x")`})
			if len(res.Artifacts) != 0 || len(res.ArtifactsRefused) == 0 {
				t.Errorf("%+v %+v", res.Artifacts, res.ArtifactsRefused)
			}
		})
	}
	t.Run("special files", func(t *testing.T) {
		res, err := unitask.Run(t.Context(), unitask.Request{Kernel: "linux", Code: `
require("child_process").execFileSync("/bin/busybox", ["mkfifo", "/out/p"]);
require("net").createServer().listen("/out/s", () => { require("fs").writeFileSync("/out/f", "x"); process.exit() });`}, unitask.Options{Home: newHome(t)})
		if err != nil || len(res.Artifacts) != 1 || len(res.ArtifactsRefused) != 2 {
			t.Errorf("%v %+v %+v %s", err, res.Artifacts, res.ArtifactsRefused, res.Stderr)
		}
	})
}

func TestParseMount(t *testing.T) {
	for text, want := range map[string]unitask.Mount{"a": {Host: "a"}, "a:/b": {Host: "a", Guest: "/b"}, "/a:b": {Host: "/a:b"}, "a:/b:/c": {Host: "a:/b", Guest: "/c"}, ":/x": {Host: ":/x"}, "": {}} {
		if got := unitask.ParseMount(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}
