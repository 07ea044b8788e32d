package project

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/hostexec"
	"github.com/unitask/unitask/internal/hostfiles"
)

// A clone is made without git in the user's repository, whose configuration may name programs (core.fsmonitor, filters,
// uploadpack.packObjectsHook, a promisor's uploadpack). Its objects are copied as files into a new repository with a
// configuration of ours. There, git writes the files of the commit.

// Repository collects the parts of a user's repository that a clone gets. It implements hostfiles.Guest, for the files
// of a .git folder.
type Repository struct {
	root  *os.Root
	top   string            // the path of .git in the machine
	small map[string]string // HEAD and refs
}

// NewRepository creates an empty repository in a new folder. top is the path at which the set of files has .git.
func NewRepository(dir, top string) (*Repository, error) {
	for _, name := range []string{"objects/pack", "objects/info", "refs/heads", "refs/tags"} {
		if err := os.MkdirAll(filepath.Join(dir, GitFolder, name), 0o700); err != nil {
			return nil, err
		}
	}
	root, err := os.OpenRoot(filepath.Join(dir, GitFolder))
	return &Repository{root: root, top: top, small: map[string]string{}}, err
}

// Close releases the repository.
func (r *Repository) Close() { r.root.Close() }

var (
	objectName = regexp.MustCompile(`^objects/([0-9a-f]{2}/[0-9a-f]{38}([0-9a-f]{24})?|pack/pack-[0-9a-f]+\.(pack|idx))$`)
	refName    = regexp.MustCompile(`^(HEAD|packed-refs|shallow|refs/heads/.+)$`)
	commitName = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)
)

// The limits of a file of refs, and of one ref, in bytes.
const (
	maxSmall = 16 << 20 // bytes of a file of refs
	maxRef   = 1 << 10  // bytes of one ref
)

// Put implements hostfiles.Guest. What a clone does not get is left out: configuration, hooks, remotes, the index.
func (r *Repository) Put(f guest.File, content io.Reader) error {
	name := strings.TrimPrefix(strings.TrimPrefix(f.Path, r.top), "/")
	switch {
	case name == "objects/info/alternates":
		return errors.New("the repository borrows objects from another one: git repack -a -d, and remove " + name)
	case content == nil:
	case objectName.MatchString(name):
		if err := r.root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		to, err := r.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(to, content)
		return errors.Join(err, to.Close())
	case refName.MatchString(name) && (f.Size <= maxRef || f.Size <= maxSmall && !strings.HasPrefix(name, "refs/")):
		text, err := io.ReadAll(content)
		r.small[name] = string(text)
		return err
	}
	return nil
}

// head returns the commit of HEAD.
func (r *Repository) head() (string, error) {
	at := strings.TrimSpace(r.small["HEAD"])
	if ref, ok := strings.CutPrefix(at, "ref: "); ok {
		at = strings.TrimSpace(r.small[ref])
		for line := range strings.Lines(r.small["packed-refs"]) {
			if commit, name, _ := strings.Cut(strings.TrimSpace(line), " "); at == "" && name == ref {
				at = commit
			}
		}
	}
	if !commitName.MatchString(at) {
		return "", errors.New("its HEAD leads to no commit that a clone could begin with")
	}
	return at, nil
}

// branchName matches the branches that a clone may get.
var branchName = regexp.MustCompile(`^unitask/[A-Za-z0-9][A-Za-z0-9-]*$`)

// CheckOut gives the repository in a folder a branch at the user's commit, and writes the commit's files.
func (r *Repository) CheckOut(ctx context.Context, dir, branch string) error {
	if !branchName.MatchString(branch) {
		return fmt.Errorf("the branch %.100q has no name for one", branch)
	}
	commit, err := r.head()
	if err != nil {
		return err
	}
	config := "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
	if len(commit) == 64 {
		config = strings.Replace(config, "= 0", "= 1", 1) + "[extensions]\n\tobjectformat = sha256\n"
	}
	files := map[string]string{"config": config, "HEAD": "ref: refs/heads/" + branch + "\n",
		"refs/heads/" + branch: commit + "\n"}
	if shallow := r.small["shallow"]; shallow != "" {
		for line := range strings.Lines(shallow) {
			if !commitName.MatchString(strings.TrimSpace(line)) {
				return errors.New("its file shallow is not one")
			}
		}
		files["shallow"] = shallow
	}
	for name, text := range files {
		if err := r.root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		if err := r.root.WriteFile(name, []byte(text), 0o600); err != nil {
			return err
		}
	}
	sizes := &treeSizes{}
	if err := git(ctx, dir, sizes, "ls-tree", "-r", "-l", "-z", commit); err != nil {
		return errors.Join(err, sizes.err)
	}
	return git(ctx, dir, io.Discard, "read-tree", "--reset", "-u", commit)
}

// treeSizes adds up what ls-tree prints, and fails beyond the limits of a folder. Small objects can describe any number
// of files.
type treeSizes struct {
	rest  []byte
	count int
	bytes int64
	err   error
}

func (t *treeSizes) Write(p []byte) (int, error) {
	t.rest = append(t.rest, p...)
	for t.err == nil {
		line, rest, whole := bytes.Cut(t.rest, []byte{0})
		if !whole {
			break
		}
		t.rest = rest
		t.count++
		head, _, _ := bytes.Cut(line, []byte("\t"))
		if f := strings.Fields(string(head)); len(f) == 4 && f[3] != "-" { // "-" is a submodule
			size, err := strconv.ParseInt(f[3], 10, 64)
			if t.bytes += size; err != nil || size < 0 {
				t.err = errLies
			}
		}
		if t.count > hostfiles.MaxFolderEntries || t.bytes > hostfiles.MaxFolderBytes {
			t.err = fmt.Errorf("its commit has more than %d files, or than %d bytes", hostfiles.MaxFolderEntries,
				int64(hostfiles.MaxFolderBytes))
		}
	}
	if t.err != nil || len(t.rest) > 1<<20 {
		return 0, errors.Join(t.err, io.ErrShortWrite)
	}
	return len(p), nil
}

// gitTime bounds a git command.
const gitTime = 10 * time.Minute

// gitSettings keep git from everything beside the repository: no program, no other file, no network.
var gitSettings = []string{"core.hooksPath=/dev/null", "core.fsmonitor=false", "core.attributesFile=/dev/null",
	"core.excludesFile=/dev/null", "core.protectHFS=true", "core.protectNTFS=true", "core.symlinks=true",
	"core.autocrlf=false", "protocol.allow=never", "gc.auto=0", "submodule.recurse=false"}

// git runs git in a clone.
func git(ctx context.Context, dir string, out io.Writer, args ...string) error {
	argv := []string{"git", "--git-dir=" + filepath.Join(dir, GitFolder), "--work-tree=" + dir}
	for _, setting := range gitSettings {
		argv = append(argv, "-c", setting)
	}
	var said bytes.Buffer
	res, err := hostexec.Run(ctx, hostexec.Command{Argv: append(argv, args...), Dir: dir, Timeout: gitTime, Stdout: out,
		Stderr: &bounded.Head{To: &said, Left: 1000},
		Env: map[string]string{"PATH": os.Getenv("PATH"), "HOME": "/nonexistent", "LC_ALL": "C",
			"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": os.DevNull, "GIT_CONFIG_GLOBAL": os.DevNull,
			"GIT_ATTR_NOSYSTEM": "1", "GIT_ALLOW_PROTOCOL": "", "GIT_TERMINAL_PROMPT": "0",
			"GIT_NO_REPLACE_OBJECTS": "1", "GIT_ALLOC_LIMIT": "1g", "GIT_NO_LAZY_FETCH": "1"}})
	switch {
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return errors.New("--mode clone needs git on this host: install it, or use --mode copy")
	case err != nil:
		return err
	case res.TimedOut:
		return fmt.Errorf("git %s took more than %v", args[0], gitTime)
	case res.ExitCode != 0:
		return fmt.Errorf("git %s: %s", args[0], strings.TrimSpace(strings.ToValidUTF8(said.String(), "\ufffd")))
	}
	return nil
}
