package image

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// Compile describes how a payload's own program generates files of an image from other files of the image, such as
// Python's bytecode. The program runs on the host, with the vendored libc, in a copy of the image's files. It reads
// only files of the vendored packages.
type Compile struct {
	// Dirs are the folders in the guest that receive files.
	Dirs []string
	// Args and Env are passed to the program; ROOT in them stands for the copy's folder.
	Args, Env []string
}

// compiles reports whether Compile is used for images of this architecture: the program must run on this host.
func (ps Parts) compiles(arch Arch) bool {
	return ps.images.payload.Compile != nil && runtime.GOOS == "linux" && arch == HostArch()
}

// compileTree adds the files that the payload's program generates to a tree. A failure is only logged.
func (ps Parts) compileTree(ctx context.Context, t tree, arch Arch, dir string) error {
	if !ps.compiles(arch) {
		return nil
	}
	err := t.compile(ctx, ps.images.payload, arch, dir)
	if err != nil && ctx.Err() == nil {
		ps.images.logf("%s stays as it is, and programs start slower: %v", strings.Join(ps.images.payload.Compile.Dirs, ", "),
			err)
		return nil
	}
	return err
}

// compile adds the files that the payload's program generates to a tree. It puts the copy into dir.
func (t tree) compile(ctx context.Context, p Payload, arch Arch, dir string) error {
	root, err := os.MkdirTemp(dir, ".root-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return err
	}
	for _, n := range t.sorted() {
		if err := n.place(root); err != nil {
			return err
		}
	}
	inside := func(list []string) (all []string) {
		for _, s := range list {
			all = append(all, strings.ReplaceAll(s, "ROOT", root))
		}
		return all
	}
	libraries := []string{"/lib/" + arch.triplet(), "/usr/lib/" + arch.triplet()}
	args := append([]string{"--library-path", root + strings.Join(libraries, ":"+root), root + p.Program},
		inside(p.Compile.Args)...)
	cmd := exec.CommandContext(ctx, filepath.Join(root, arch.loader()), args...)
	cmd.Dir, cmd.Env = root, append(inside(p.Compile.Env), "PATH=")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", path.Base(p.Program), err, lastLine(out.String()))
	}
	for _, dir := range p.Compile.Dirs {
		err := filepath.WalkDir(root+dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			t.put(node{path: strings.TrimPrefix(name, root), mode: 0o644, data: data})
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// place puts a node below a folder of the host. A file becomes a link to its source.
func (n node) place(root string) error {
	at := filepath.Join(root, n.path)
	switch {
	case n.mode.IsDir():
		return os.Mkdir(at, 0o755)
	case n.target != "" && path.IsAbs(n.target):
		return os.Symlink(root+n.target, at)
	case n.target != "":
		return os.Symlink(n.target, at)
	case n.source != "":
		source, err := filepath.Abs(n.source)
		if err != nil {
			return err
		}
		return os.Symlink(source, at)
	}
	return nil // texts that this package generates
}
