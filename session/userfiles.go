package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// FileInfo describes a file, folder or link in a session's machine in detail.
type FileInfo = supervisor.FileInfo

// FileEvent is a change below a watched folder.
type FileEvent = supervisor.FileEvent

// Limits on a session's files as a user sees them.
const (
	// MaxWatches bounds the Watch calls of a session at once.
	MaxWatches = 16
	// maxMetadataName and maxMetadataValue bound a file's metadata, in bytes.
	maxMetadataName, maxMetadataValue = 200, 4096
)

// ErrTooManyFolders means that a folder has more folders below it than one Watch may have.
var ErrTooManyFolders = errors.New(
	"it has more than 8000 folders below it, or more than 64 levels: watch a folder below it")

// Files are the files of a session's machine as one of its users sees them. Relative names begin at the session's
// folder. Errors are syscall.Errno, which fs.ErrNotExist and similar ones match. Any goroutine may call its methods.
type Files struct {
	s    *Session
	root bool
}

// FilesAs returns the session's files as a user of the machine sees them: "user", the code's, or "root", in a session
// with Request.Root. It needs the linux kernel.
func (s *Session) FilesAs(user string) (*Files, error) {
	if err := s.hasCommands("users and detailed file operations"); err != nil {
		return nil, err
	}
	root, err := s.isRoot(user)
	if err != nil || user == "" {
		return nil, cmp.Or(err, error(policy.Bad("user", `""`, "must be user or root")))
	}
	return &Files{s, root}, nil
}

// op calls do while the session's machine runs, for a limited time.
func (f *Files) op(ctx context.Context, verb, name string, limit time.Duration, do func(context.Context) error) error {
	done, err := f.s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := f.s.clocks.start(ctx, limit)
	defer cancel()
	return opError(verb, name, do(ctx))
}

func opError(verb, name string, err error) error {
	if full := new(*supervisor.BusyError); errors.As(err, full) {
		return &run.BusyError{What: (*full).Error(), After: time.Second}
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, name, err)
	}
	return nil
}

// entry runs one of the session's own commands that answers with an entry.
func (f *Files) entry(ctx context.Context, verb string, names ...string) (info FileInfo, err error) {
	args := []string{verb}
	for _, name := range names {
		args = append(args, f.s.at(name))
	}
	err = f.op(ctx, verb, args[1], fileTimeout, func(ctx context.Context) error {
		info, err = f.s.client.Info(ctx, supervisor.Exec{Args: args, Root: f.root})
		return err
	})
	return info, err
}

// Stat returns an entry itself: a link is not followed.
func (f *Files) Stat(ctx context.Context, name string) (FileInfo, error) {
	return f.entry(ctx, "stat", name)
}

// List returns the entries of a folder, depth levels deep (1 means the folder alone). more reports that there are more:
// than MaxList, or than the bytes that a list may have. The error is ENOTDIR for a file.
func (f *Files) List(ctx context.Context, name string, depth int) (list []FileInfo, more bool, err error) {
	at := f.s.at(name)
	err = f.op(ctx, "list", at, fileTimeout, func(ctx context.Context) error {
		list, more, err = f.s.client.List(ctx, f.root, at, max(depth, 1), MaxList, MaxList*512)
		return err
	})
	below := strings.TrimSuffix(at, "/") + "/"
	list = slices.DeleteFunc(list, func(is FileInfo) bool { return !strings.HasPrefix(is.Path, below) })
	return list, more, err
}

// Read writes a file's bytes from an offset on. to may be slow; the session is not paused meanwhile.
func (f *Files) Read(ctx context.Context, name string, offset int64, to io.Writer) error {
	at := f.s.at(name)
	if offset < 0 {
		return policy.Bad("offset", fmt.Sprint(offset), "must not be negative")
	}
	return f.op(ctx, "read", at, f.s.limits.Life, func(ctx context.Context) error {
		return f.s.client.Read(ctx, f.root, at, offset, to)
	})
}

// Write creates or replaces a file atomically, and creates the folders above it. An existing file keeps its mode; mode
// 0 means 0644. The file belongs to the user, and metadata replaces all it had. If from fails, nothing changes.
func (f *Files) Write(ctx context.Context, name string, from io.Reader, mode fs.FileMode, metadata map[string]string,
) (info FileInfo, err error) {
	if len(metadata) > supervisor.MaxMetadata {
		return info, policy.Bad("metadata", fmt.Sprint(len(metadata)), "must be at most %d", supervisor.MaxMetadata)
	}
	for key, value := range metadata {
		if key == "" || len(key) > maxMetadataName || len(value) > maxMetadataValue || strings.ContainsRune(key+value, 0) {
			return info, policy.Bad("metadata", fmt.Sprintf("%.80q", key),
				"must be a name of 1 to %d bytes and a value of at most %d, without NUL", maxMetadataName, maxMetadataValue)
		}
	}
	at := f.s.at(name)
	err = f.op(ctx, "write", at, f.s.limits.Life, func(ctx context.Context) error {
		info, err = f.s.client.Put(ctx, f.root, at, from, cmp.Or(mode.Perm(), 0o644), metadata)
		return err
	})
	return info, err
}

// MakeDir creates a folder, and those above it. The error is fs.ErrExist if the name is taken.
func (f *Files) MakeDir(ctx context.Context, name string) (FileInfo, error) {
	return f.entry(ctx, "mkdir", name)
}

// Move renames an entry as rename(2) does, and creates the folders above the new name. Between file systems the error
// is EXDEV.
func (f *Files) Move(ctx context.Context, from, to string) (FileInfo, error) {
	return f.entry(ctx, "move", from, to)
}

// Remove removes a file, or a folder with its contents.
func (f *Files) Remove(ctx context.Context, name string) error {
	at := f.s.at(name)
	return f.op(ctx, "remove", at, fileTimeout, func(ctx context.Context) error {
		return f.s.client.Builtin(ctx, supervisor.Exec{Args: []string{"remove", at}, Root: f.root})
	})
}

// Concatenate writes the contents of files, in their order, to a file atomically, and then removes the files.
func (f *Files) Concatenate(ctx context.Context, names []string, to string) (info FileInfo, err error) {
	args := []string{"join", f.s.at(to)}
	for _, name := range names {
		args = append(args, f.s.at(name))
	}
	err = f.op(ctx, "join", args[1], folderTimeout, func(ctx context.Context) error {
		info, err = f.s.client.Info(ctx, supervisor.Exec{Args: args, Root: f.root})
		return err
	})
	return info, err
}

// Watch calls on for each change below a folder, or in it alone, until ctx ends, which is no error, or the session
// does. ready is called first, once the watch is in place. on may be slow: if changes are lost then, it gets an
// "overflow". Watch does not keep the session from a pause, and a fork has none. The error may be ErrTooManyFolders,
// ENOENT, or ENOTDIR.
func (f *Files) Watch(ctx context.Context, name string, recursive bool, ready func(), on func(FileEvent)) error {
	select {
	case f.s.watches <- struct{}{}:
		defer func() { <-f.s.watches }()
	default:
		return &run.BusyError{What: fmt.Sprintf("%d folders of this session are watched", MaxWatches), After: time.Second}
	}
	at := f.s.at(name)
	use := func() (func(), error) { return f.s.use(ctx) }
	err := f.s.client.Watch(ctx, f.root, at, recursive, use, ready, on)
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, syscall.ENOSPC):
		err = ErrTooManyFolders
	}
	return opError("watch", at, err)
}

// installSudo gives the machine the command sudo.
func (s *Session) installSudo(ctx context.Context) error {
	root := &Files{s, true}
	return root.op(ctx, "install", "sudo", fileTimeout, func(ctx context.Context) error {
		return s.client.Builtin(ctx, supervisor.Exec{Args: []string{"sudo"}, Root: true})
	})
}
