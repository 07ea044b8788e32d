package project

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/hostfiles"
)

// repository returns a user's repository with a commit of these files.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git")
	}
	dir := write(t, files)
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "-A", "-f"}, {"commit", "-q", "-m", "one"}} {
		runGit(t, dir, args...)
	}
	return dir
}

func runGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	own := []string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com"}
	cmd := exec.Command("git", append(own, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// clone clones a repository into a new folder.
func clone(t *testing.T, dir string) (string, error) {
	t.Helper()
	found, err := hostfiles.Find(filepath.Join(dir, GitFolder), true)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	var set hostfiles.Set
	defer set.Close()
	if err := set.Add(found, "/work/.git", hostfiles.MaxFolderBytes); err != nil {
		return "", err
	}
	to := t.TempDir()
	r, err := NewRepository(to, "/work/.git")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err = set.Put(context.Background(), r, hostfiles.All, func(hostfiles.Sent) {}); err == nil {
		err = r.CheckOut(t.Context(), to, "unitask/x")
	}
	return to, err
}

// A clone has the commit's files and its history, with packed objects and refs, too.
func TestClone(t *testing.T) {
	dir := repository(t, map[string]string{"a": "1\n", "d/b": "2\n", "l": "-> a"})
	runGit(t, dir, "gc", "-q")
	runGit(t, dir, "commit", "-q", "--allow-empty", "-m", "two")
	to, err := clone(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := runGit(t, to, "log", "--format=%s", "unitask/x"); got != "two\none" {
		t.Errorf("%q", got)
	}
	if got := runGit(t, to, "status", "--short", "--branch"); got != "## unitask/x" {
		t.Errorf("%q", got)
	}
}

// Nothing that a hostile repository's configuration, hooks or attributes name runs on the host, and none of it is in
// the clone.
func TestAttackClone(t *testing.T) {
	dir := repository(t, map[string]string{"a": "1\n", ".gitattributes": "* filter=evil diff=evil merge=evil\n",
		".gitmodules": "[submodule \"x\"]\n\tpath = x\n\turl = file:///etc\n"})
	mark := filepath.Join(t.TempDir(), "ran")
	evil := "touch " + mark + "; cat"
	config := "[core]\nfsmonitor = " + evil + "\nhooksPath = .git/evil\nsshCommand = " + evil + "\npager = " + evil +
		"\nalternateRefsCommand = " + evil + "\n[uploadpack]\npackObjectsHook = " + evil +
		"\n[filter \"evil\"]\nsmudge = " + evil + "\nclean = " + evil + "\nprocess = " + evil + "\nrequired = true\n" +
		"[remote \"origin\"]\nurl = ext::sh -c \"" + evil + "\"\npromisor = true\nuploadpack = " + evil +
		"\n[include]\npath = /etc/passwd\n[extensions]\npartialClone = origin\n"
	config = strings.ReplaceAll(config, evil, "\""+strings.ReplaceAll(evil, "\"", "\\\"")+"\"")
	for name, text := range map[string]string{"config": config, "evil/post-checkout": "#!/bin/sh\ntouch " + mark,
		"hooks/post-checkout": "#!/bin/sh\ntouch " + mark, "info/attributes": "* filter=evil\n"} {
		name = filepath.Join(dir, GitFolder, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	to, err := clone(t, dir)
	attack.Check(t, "project: a clone of a repository that names programs", "<nil>", fmt.Sprint(err))
	_, ran := os.Stat(mark)
	attack.Check(t, "project: what its configuration names", "refused", outcome(ran))
	var list []string
	for name := range read(t, filepath.Join(to, GitFolder)) {
		if !strings.HasPrefix(name, "objects/") {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	attack.Check(t, "project: a clone beside its objects", "[HEAD config index refs/heads/unitask/x]", fmt.Sprint(list))
}

// A repository that borrows objects, or whose files lead elsewhere, brings nothing of another one.
func TestAttackCloneBorrows(t *testing.T) {
	private := repository(t, map[string]string{"secret": "s\n"})
	commit := runGit(t, private, "rev-parse", "HEAD")
	objects := filepath.Join(private, GitFolder, "objects")
	for name, prepare := range map[string]func(git string) error{
		"alternates": func(git string) error {
			return os.WriteFile(filepath.Join(git, "objects/info/alternates"), []byte(objects+"\n"), 0o644)
		},
		"a link to objects": func(git string) error {
			if err := os.RemoveAll(filepath.Join(git, "objects")); err != nil {
				return err
			}
			return os.Symlink(objects, filepath.Join(git, "objects"))
		},
		"another's commit": func(git string) error { return nil },
		"a ref that is an option": func(git string) error {
			return os.WriteFile(filepath.Join(git, "HEAD"), []byte("ref: refs/heads/--upload-pack=x\n"), 0o644)
		},
		"a ref that leads out": func(git string) error {
			return os.WriteFile(filepath.Join(git, "HEAD"), []byte("ref: ../../"+private+"/.git/refs/heads/main\n"), 0o644)
		},
	} {
		dir := repository(t, map[string]string{"a": "1\n"})
		git := filepath.Join(dir, GitFolder)
		if err := os.WriteFile(filepath.Join(git, "refs/heads/main"), []byte(commit+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := prepare(git); err != nil {
			t.Fatal(err)
		}
		to, err := clone(t, dir)
		if err == nil {
			_, err = os.Stat(filepath.Join(to, "a"))
		}
		attack.Check(t, "project: a clone with "+name, "refused", outcome(err))
	}
}

// A commit whose few objects describe any number of files is refused before they are written.
func TestAttackCloneBomb(t *testing.T) {
	dir := repository(t, map[string]string{"a": "1\n"})
	tree := runGit(t, dir, "rev-parse", "HEAD^{tree}")
	for range 6 {
		var lines strings.Builder
		for i := range 10 {
			fmt.Fprintf(&lines, "040000 tree %s\td%d\n", tree, i)
		}
		cmd := exec.Command("git", "-C", dir, "mktree")
		cmd.Stdin = strings.NewReader(lines.String())
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		tree = strings.TrimSpace(string(out))
	}
	commit := runGit(t, dir, "commit-tree", "-m", "bomb", tree)
	runGit(t, dir, "update-ref", "refs/heads/main", commit)
	to, err := clone(t, dir)
	attack.Check(t, "project: a clone of a million files in some objects", "refused", outcome(err))
	if list, _ := fs.Glob(os.DirFS(to), "d*"); len(list) > 0 {
		t.Errorf("%q", list)
	}
}

// Without git on the host, a clone says so.
func TestCloneWithoutGit(t *testing.T) {
	dir := repository(t, map[string]string{"a": "1\n"})
	t.Setenv("PATH", t.TempDir())
	if _, err := clone(t, dir); err == nil || !strings.Contains(err.Error(), "needs git") {
		t.Error(err)
	}
}
