package record

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/export"
)

// finished returns a store with a run that left these artifacts, "code" in each.
func finished(t testing.TB, names ...string) (s *Store, id string, list []Artifact) {
	t.Helper()
	s = Open(filepath.Join(t.TempDir(), "runs"))
	r, err := s.Create(time.Now(), "", ViaCLI, "code.js", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.closeFiles)
	a := r.Artifacts(1<<20, nil)
	for _, name := range names {
		if err := a.Begin(0, 0o777, name); err != nil {
			t.Fatal(err)
		}
		if err := a.Data([]byte("code")); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(true); err != nil || len(a.Refused) > 0 {
		t.Fatal(err, a.Refused)
	}
	return s, r.ID, a.Kept
}

func outFolder(t testing.TB, dir string, replace bool) *OutFolder {
	t.Helper()
	to, err := OpenOut(dir, replace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { to.Close() })
	return to
}

// A copied file has the same bytes, and its mode if it is executable.
func seen(name string) string {
	st, err := os.Lstat(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "nothing"
	case err != nil:
		return err.Error()
	case st.IsDir():
		return "folder"
	case st.Mode()&os.ModeSymlink != 0:
		return "link"
	case st.Mode()&os.ModeNamedPipe != 0:
		return "pipe"
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	if st.Mode().Perm()&0o111 != 0 {
		return string(text) + ", executable"
	}
	return string(text)
}

type attackOutRow struct {
	name, artifact string
	replace        bool
	at             string // checked afterwards; "" is the artifact's name
	want, left     string
}

// attackOutRows are the cases of TestAttackOut.
func attackOutRows(zwnj string) []attackOutRow {
	return []attackOutRow{
		{"a new file", "new", false, "", "code", ""},
		{"a new file in a new folder", "a/b/new", false, "", "code", ""},
		{"a new file in an old folder", "sub/new", false, "", "code", ""},
		{"an executable", "tool.sh", true, "", "code", ""},
		{"a file that is there", "mine", false, "", "mine", "exists; --out-replace"},
		{"a file that is there, to be replaced", "mine", true, "", "code", ""},
		{"Makefile", "Makefile", false, "", "mine", "tools run"},
		{"Makefile, to be replaced", "Makefile", true, "", "mine", "tools run"},
		{"GNUmakefile beside a Makefile", "GNUmakefile", false, "", "nothing", "tools run"},
		{"a module that Python imports at its start", "sub/sitecustomize.py", false, "", "nothing", "tools run"},
		{"what npm runs", "a/package.json", false, "", "nothing", "tools run"},
		{"what cargo builds with", "build.rs", false, "", "nothing", "tools run"},
		{"what pytest loads", "sub/conftest.py", true, "", "nothing", "tools run"},
		{"what agents obey", "CLAUDE.md", false, "", "nothing", "tools run"},
		{"what agents obey, in another case and with a dot at its end", "agents.MD.", false, "", "nothing", "tools run"},
		{"a package that Node finds", "node_modules/react/index.js", false, "", "nothing", "tools run"},
		{"a configuration that is code", "vite.config.ts", false, "", "nothing", "tools run"},
		{"what compose puts over its file", "docker-compose.override.yml", false, "", "nothing", "tools run"},
		{"a module in the place of Python's own", "sub/random.py", false, "", "nothing", "tools run"},
		{"a compiled module in the place of Python's own", "json.cpython-311-x86_64-linux-gnu.so", false, "", "nothing",
			"tools run"},
		{"a test that pytest finds", "sub/test_x.py", false, "", "nothing", "tools run"},
		{"a test that go finds", "x_test.go", false, "", "nothing", "tools run"},
		{"what ansible obeys", "ansible.cfg", false, "", "nothing", "tools run"},
		{"what gradle builds first", "buildSrc/src/main/java/A.java", false, "", "nothing", "tools run"},
		{"what MATLAB runs at its start", "startup.m", false, "", "nothing", "tools run"},
		{"what jupyter runs at its start", "jupyter_notebook_config.py", false, "", "nothing", "tools run"},
		{"what pylint runs", "pylintrc", false, "", "nothing", "tools run"},
		{"a stream of NTFS's", "GNUmakefile::$DATA", false, "", "nothing", "tools run"},
		{"a long s, which is one in another case", "con\u017ftest.py/\u017fetup.py", false, "", "nothing", "tools run"},
		{"a ligature, which is two letters in another case", "GNUmake\ufb01le", false, "", "nothing", "tools run"},
		{"the sign of Kelvin, which is a k", "GNUma\u212aefile", false, "", "nothing", "tools run"},
		{"a folder that is a repository to git", "sub/bare/HEAD", false, "", "nothing", "HEAD"},
		{"a folder that is a repository to git, in another case", "sub/bare/Head", false, "", "nothing", "HEAD"},
		{"a git hook, by NTFS's rules, with a stream", "GIT~1::$INDEX_ALLOCATION/hooks/post-commit", true, "", "nothing",
			"NAME~1"},
		{"a path file of Python's", "x.pth", false, "", "nothing", "tools run"},
		{"an option", "-rf", false, "", "nothing", "begins with -"},
		{"an option in a folder", "sub/--help", false, "", "nothing", "begins with -"},
		{"a blank in front", " x", false, "", "nothing", "blank"},
		{"a blank at the end", "x ", false, "", "nothing", "blank"},
		{"a name that is read from right to left", "gpj.\u202egpj.exe", false, "", "nothing", "can't be seen"},
		{"a line's end", "a\nb", false, "", "nothing", "can't be seen"},
		{"an escape of terminals", "a\x1b[2Jb", false, "", "nothing", "can't be seen"},
		{"a line separator", "a\u2028b", false, "", "nothing", "can't be seen"},
		{"an executable over one, to be replaced", "run.sh", true, "", "code", ""},
		{"the ceiling", ".unitask.toml", false, "", "mine", "begins with a dot"},
		{"the ceiling, to be replaced", ".unitask.toml", true, "", "mine", "begins with a dot"},
		{"the ceiling, in capitals", ".UNITASK.toml", true, ".unitask.toml", "mine", "begins with a dot"},
		{"a git hook", ".git/hooks/post-commit", true, "", "nothing", "begins with a dot"},
		{"a git hook, in capitals", ".Git/hooks/post-commit", true, ".git/hooks/post-commit", "nothing", "begins with a dot"},
		{"a git hook of a submodule", "sub/.git/hooks/post-commit", true, "", "nothing", "begins with a dot"},
		{"a git hook, by HFS+'s rules", zwnj + ".git/hooks/post-commit", true, "", "nothing", "begins with a dot"},
		{"a git hook, with a character without width inside", ".g" + zwnj + "it/hooks/post-commit", true, "", "nothing",
			"begins with a dot"},
		{"a git hook, by FAT's rules", "GIT~1/hooks/post-commit", true, "", "nothing", "NAME~1"},
		{"a git hook, by FAT's rules, with dots at the end", "GIT~1...../hooks/post-commit", true, "", "nothing", "NAME~1"},
		{"a git hook, by NTFS's rules, with a blank at the end", "git~1 /hooks/post-commit", true, "", "nothing", "NAME~1"},
		{"a git hook, by NTFS's rules, when there are many", "GI7EBA~1/hooks/post-commit", true, "", "nothing", "NAME~1"},
		{"the ceiling, by FAT's rules, with blanks and dots", "UNITAS~1.TOM. .", true, "", "nothing", "NAME~1"},
		{"a dot of full width, which is none", "\uff0egit/x", false, "", "code", ""},
		{"the ceiling behind a mark of byte order", "\ufeff.unitask.toml", true, ".unitask.toml", "mine",
			"begins with a dot"},
		{"the ceiling, by FAT's rules", "UNITAS~1.TOM", true, "", "nothing", "NAME~1"},
		{"a git hook, by way of a link", "repo/hooks/post-commit", true, ".git/hooks/post-commit", "nothing", "tools run"},
		{"a file of git's, by way of a link", "repo/info/exclude", true, ".git/info/exclude", "nothing", "not a folder"},
		{"out of the folder, by way of a link", "outside/x", true, "../x", "nothing", "not a folder"},
		{"a link that is there", "link", false, "../target", "mine", "exists; --out-replace"},
		{"a link that is there, to be replaced", "link", true, "../target", "mine", ""},
		{"a link to nowhere", "dangling", false, "../nowhere", "nothing", "exists; --out-replace"},
		{"a folder that is there", "sub", true, "", "folder", "exists and is not a file"},
		{"below a file that is there", "mine/x", true, "mine", "mine", "not a folder"},
		{"a pipe that is there", "pipe", true, "", "pipe", "exists and is not a file"},
		{"the name of the copy in progress", "a/.unitask-x", true, "", "nothing", "begins with a dot"},
		{"a backup's name", "notes.txt~1~", false, "", "code", ""},
		{"a dot inside", "a.b..", false, "", "code", ""},
	}
}

// The folder of --out belongs to the user and has a repository in it. Files that code leaves in /out must not become
// files that other programs read and execute.
func TestAttackOut(t *testing.T) {
	const zwnj = "\u200c" // zero width; HFS+ ignores it
	for _, c := range attackOutRows(zwnj) {
		t.Run(c.name, func(t *testing.T) {
			s, id, list := finished(t, c.artifact)
			outer := t.TempDir()
			dir := filepath.Join(outer, "out")
			for name, mode := range map[string]os.FileMode{"out/Makefile": 0o644, "out/mine": 0o644, "out/.unitask.toml": 0o644,
				"out/run.sh": 0o755, "out/.git/hooks/pre-commit": 0o755, "out/sub/f": 0o644, "target": 0o644} {
				name = filepath.Join(outer, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755),
					os.WriteFile(name, []byte("mine"), mode)); err != nil {
					t.Fatal(err)
				}
			}
			for name, to := range map[string]string{"repo": ".git", "outside": "..", "link": "../target",
				"dangling": "../nowhere"} {
				if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			if c.artifact == "pipe" {
				if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			left, err := s.CopyArtifacts(id, list, outFolder(t, dir, c.replace))
			if err != nil {
				t.Fatal(err)
			}
			at := c.at
			if at == "" {
				at = c.artifact
			}
			attack.Check(t, "out: "+c.name, c.want, seen(filepath.Join(dir, at)))
			if c.left == "" && len(left) > 0 || c.left != "" &&
				(len(left) != 1 || left[0].Path != c.artifact || !strings.Contains(left[0].Reason, c.left)) {
				t.Errorf("left: %+v, want %q", left, c.left)
			}
			if stray, _ := filepath.Glob(filepath.Join(dir, "*/.unitask-*")); len(stray) > 0 {
				t.Errorf("there is %v", stray)
			}
		})
	}
}

// Git accepts a folder as a repository, even if no name in it begins with a dot. Output from a machine is never a
// repository.
func TestAttackOutBareRepository(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("there is no git")
	}
	for _, name := range []string{"", "x/"} {
		outer := t.TempDir()
		dir, mark := filepath.Join(outer, "out"), filepath.Join(outer, "mark")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		to := outFolder(t, dir, false)
		to.Begin()
		for file, text := range map[string]string{"HEAD": "ref: refs/heads/main\n", "objects/x": "x", "refs/x": "x",
			"config": fmt.Sprintf(
				"[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = \"touch %s; false\"\n",
				mark)} {
			if _, err := to.File(name+file, strings.NewReader(text)); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(git, "status")
		cmd.Dir = filepath.Join(dir, name)
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+outer)
		_ = cmd.Run() // there is no repository
		attack.Check(t, "out: a new folder that is a repository to git, in "+cmd.Dir[len(outer):], "nothing", seen(mark))
	}
}

// Two names can be one to the file system: the second does not replace the first. The same name twice is that on every
// file system.
func TestAttackOutTwins(t *testing.T) {
	for _, replace := range []bool{false, true} {
		s, id, list := finished(t, "a")
		dir := t.TempDir()
		left, err := s.CopyArtifacts(id, append(list, list...), outFolder(t, dir, replace))
		if err != nil || len(left) != 1 {
			t.Fatalf("%v %+v", err, left)
		}
		attack.Check(t, "out: two names that are one to the file system",
			`the folder's file system takes its name for that of "a", which was copied`, left[0].Reason)
	}
	// If the file system distinguishes them, both are copied.
	names := []string{"A", "a", "e\u0301", "\u00e9"}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "probe"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "PROBE")); err == nil {
		names = names[1:3]
	}
	s, id, list := finished(t, names...)
	if left, err := s.CopyArtifacts(id, list, outFolder(t, dir, false)); err != nil || len(left) > 0 {
		t.Errorf("%v %+v", err, left)
	}
}

// A folder on the path is replaced by a link while copies are made. The link is not followed.
func TestAttackOutRace(t *testing.T) {
	s, id, list := finished(t, "d/f")
	outer := t.TempDir()
	dir, elsewhere := filepath.Join(outer, "out"), filepath.Join(outer, "elsewhere")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(elsewhere, 0o755),
		os.Mkdir(filepath.Join(dir, ".git"), 0o755)); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		d := filepath.Join(dir, "d")
		for {
			for _, to := range []string{".git", "../elsewhere"} {
				select {
				case <-stop:
					return
				default:
				}
				_ = os.RemoveAll(d)
				_ = os.Symlink(to, d)
				_ = os.Remove(d)
				_ = os.Mkdir(d, 0o755)
			}
		}
	}()
	to := outFolder(t, dir, true)
	for range 2000 {
		// The race causes these errors: a folder may be gone when the file is made in it.
		_, _ = s.CopyArtifacts(id, list, to)
	}
	close(stop)
	<-done
	got := ""
	for _, d := range []string{elsewhere, filepath.Join(dir, ".git")} {
		entries, err := os.ReadDir(d)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			got += e.Name()
		}
	}
	attack.Check(t, "out: a folder exchanged for a link", "", got)
}

// A new folder gets files that tools execute, too: nobody runs a tool in it by accident.
func TestOutFresh(t *testing.T) {
	s, id, list := finished(t, "Makefile", "package.json", "a/CLAUDE.md", "node_modules/x/index.js")
	dir := t.TempDir()
	if left, err := s.CopyArtifacts(id, list, outFolder(t, dir, false)); err != nil || len(left) > 0 {
		t.Errorf("%v %+v", err, left)
	}
	left, err := s.CopyArtifacts(id, list, outFolder(t, dir, true))
	if err != nil || len(left) != len(list) {
		t.Errorf("a second time: %v %+v", err, left)
	}
	dir = t.TempDir()
	to := outFolder(t, dir, false)
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if left, err := s.CopyArtifacts(id, list, to); err != nil || len(left) != len(list) {
		t.Errorf("a folder that got a file while the code ran: %v %+v", err, left)
	}
}

// A link that replaces the folder while the code runs is not followed.
func TestAttackOutExchanged(t *testing.T) {
	s, id, list := finished(t, "x")
	outer := t.TempDir()
	dir, victim := filepath.Join(outer, "out"), filepath.Join(outer, "victim")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(victim, 0o755)); err != nil {
		t.Fatal(err)
	}
	to := outFolder(t, dir, false)
	if err := errors.Join(os.Rename(dir, dir+".was"), os.Symlink(victim, dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CopyArtifacts(id, list, to); err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "out: a link in the place of the folder", "nothing, and code in the folder",
		seen(filepath.Join(victim, "x"))+", and "+seen(filepath.Join(dir+".was", "x"))+" in the folder")
}

// A killed copy leaves nothing under the file's name, and the next copy removes its leftovers.
func TestAttackOutKilled(t *testing.T) {
	const as = "UNITASK_TEST_OUT_KILLED"
	if dir := os.Getenv(as); dir != "" {
		to, err := export.Open(dir, false)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = to.File("sub/report.csv", endless{})
		return
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestAttackOutKilled$")
	cmd.Env = append(os.Environ(), as+"="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for { // until some of it is written
		if list, _ := filepath.Glob(filepath.Join(dir, "sub/.unitask-cp-*")); len(list) == 1 {
			if st, err := os.Stat(list[0]); err == nil && st.Size() > 1<<20 {
				break
			}
		}
		runtime.Gosched()
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	got := seen(filepath.Join(dir, "sub/report.csv"))
	left, _ := filepath.Glob(filepath.Join(dir, "sub/.unitask-cp-*"))
	long := time.Now().Add(-time.Hour)
	for _, name := range left {
		if err := os.Chtimes(name, long, long); err != nil {
			t.Fatal(err)
		}
	}
	s, id, list := finished(t, "sub/report.csv")
	if left, err := s.CopyArtifacts(id, list, outFolder(t, dir, false)); err != nil || len(left) > 0 {
		t.Errorf("the next run: %v %+v", err, left)
	}
	strays, _ := filepath.Glob(filepath.Join(dir, "sub/.unitask-cp-*"))
	attack.Check(t, "out: a copy that is killed, and the next one", "nothing, then code, 0 left",
		fmt.Sprintf("%s, then %s, %d left", got, seen(filepath.Join(dir, "sub/report.csv")), len(strays)))
}

// endless is an endless file.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
