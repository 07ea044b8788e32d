package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/export"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/regular"
	"github.com/unitask/unitask/internal/sessiond"
)

func (a *app) sessionCopy() *cobra.Command {
	var folders bool
	cmd := &cobra.Command{
		Use:   "cp SESSION:PATH FILE | FILE SESSION:PATH | SESSION:PATH SESSION:PATH",
		Short: "Copy a file or a folder out of a session's machine, into it, or into another's",
		Long: `Cp copies a file of 64 MiB at most, with its mode, or with -r a folder of 1 GiB and 100000
entries at most, under a name that is not taken. A relative PATH begins at /work, - is
standard input or output. Between sessions a folder needs no -r. What comes out of a machine is code's work: of a folder
names that begin with a dot or can't be read as they are stay there and are listed, and no file is executable. A
folder with a link that leads out of it, a device or a pipe is refused, and nothing of it is left.`,
		Example: `  unitask session cp data.csv build:
  unitask session cp -r build:out ./results
  unitask session cp build:report.json test:in/`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, source, out := inSession(args[0])
			to, target, in := inSession(args[1])
			switch {
			case in && out:
				return a.copyAcross(cmd.Context(), from, source, to, target)
			case in == out:
				return usage(errors.New("neither is SESSION:PATH: use cp"))
			case folders && in:
				return a.copyFolderIn(cmd.Context(), args[0], to, target)
			case folders:
				return a.copyFolderOut(cmd.Context(), from, source, args[1])
			case in:
				return a.copyIn(cmd.Context(), args[0], to, target)
			}
			return a.copyOut(cmd.Context(), from, source, args[1])
		},
	}
	cmd.Flags().BoolVarP(&folders, "recursive", "r", false, "copy a folder with all that is in it")
	return cmd
}

// under returns the target path in a machine; a target that names a folder gets the source's name appended.
func under(target, base string) string {
	if target == "" || strings.HasSuffix(target, "/") {
		return target + base
	}
	return target
}

// copyAcross copies from one session to another, or within one.
func (a *app) copyAcross(ctx context.Context, from, source, to, target string) error {
	base := path.Base(path.Clean("/work/" + source))
	_, err := a.asked(ctx, sessiond.Request{Op: sessiond.OpCopy, Session: from, Path: source, To: to,
		ToPath: under(target, base)}, sessiond.Streams{})
	return err
}

// copyFolderIn copies a folder to a name in the machine, or to its own name.
func (a *app) copyFolderIn(ctx context.Context, dir, session, target string) error {
	real, err := filepath.Abs(dir)
	if err != nil {
		return usage(err)
	}
	if st, err := os.Stat(real); err != nil {
		return usage(err)
	} else if !st.IsDir() {
		return usage(fmt.Errorf("%s is not a folder: leave out -r", dir))
	}
	target = under(target, filepath.Base(real))
	return hostfiles.SendFolder(real, func(r io.Reader) error {
		_, err := a.asked(ctx, sessiond.Request{Op: sessiond.OpUnpack, Session: session, Path: target},
			sessiond.Streams{Stdin: r})
		return err
	})
}

// copyFolderOut copies a folder out, into an existing folder under its own name.
func (a *app) copyFolderOut(ctx context.Context, session, source, dir string) error {
	if dir == "-" {
		return usage(errors.New("a folder goes to a name, and not to standard output"))
	}
	if st, err := os.Stat(dir); err == nil && st.IsDir() {
		base := path.Base(path.Clean("/work/" + source))
		dir = filepath.Join(dir, base)
	}
	left, err := hostfiles.TakeFolder(dir, func(w io.Writer) error {
		_, err := a.asked(ctx, sessiond.Request{Op: sessiond.OpPack, Session: session, Path: source},
			sessiond.Streams{Stdout: w})
		return err
	})
	for _, l := range left {
		a.ui.note("left out: %s: %s", safe(l.Path), safe(l.Reason))
	}
	return err
}

// inSession splits SESSION:PATH; a text with a slash before the colon, or without a colon, is a file here.
func inSession(s string) (session, path string, ok bool) {
	session, path, ok = strings.Cut(s, ":")
	return session, path, ok && session != "" && !strings.Contains(session, "/")
}

func (a *app) copyIn(ctx context.Context, name, session, target string) error {
	var from io.Reader = a.std.Stdin
	mode := fs.FileMode(0o644)
	if name != "-" {
		f, st, err := regular.Open(name)
		if errors.Is(err, regular.ErrNot) {
			return hint(usage(fmt.Errorf("%s is not a regular file", name)), "unitask session cp -r copies folders")
		}
		if err != nil {
			return usage(err)
		}
		defer f.Close()
		if st.Size() > unitask.MaxSessionFile {
			return usage(fmt.Errorf("%s has %s: %s is the most", name, mebibytes(st.Size()), mebibytes(unitask.MaxSessionFile)))
		}
		from, mode = f, st.Mode().Perm()
		target = under(target, filepath.Base(name))
	}
	_, err := a.asked(ctx, sessiond.Request{Op: sessiond.OpWrite, Session: session, Path: target, Mode: uint32(mode)},
		sessiond.Streams{Stdin: from})
	return err
}

func (a *app) copyOut(ctx context.Context, session, source, name string) error {
	fill := func(w io.Writer) error {
		_, err := a.asked(ctx, sessiond.Request{Op: sessiond.OpRead, Session: session, Path: source},
			sessiond.Streams{Stdout: w})
		return err
	}
	if name == "-" {
		to := a.output(a.std.Stdout, runFlags{})
		return errors.Join(fill(to), to.Close())
	}
	if st, err := os.Stat(name); err == nil && st.IsDir() {
		base := path.Base(path.Clean("/" + source))
		if base == "/" {
			return usage(fmt.Errorf("%q names no file", source))
		}
		name = filepath.Join(name, base)
	}
	if _, err := os.Stat(filepath.Dir(name)); err != nil {
		return usage(err)
	}
	return export.TakeFile(name, fill)
}
