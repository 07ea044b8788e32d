package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/unitask/unitask/guest/supervisor"
)

// Limits on one operation.
const (
	// MaxFile bounds a file for ReadFile, WriteFile and Edit, in bytes.
	MaxFile = 64 << 20
	// MaxList bounds a List, in entries.
	MaxList = 10_000
)

// fileTimeout bounds an operation on files.
const fileTimeout = time.Minute

// fileOp runs one of the session's own commands.
func (s *Session) fileOp(ctx context.Context, content []byte, most int, args ...string) (out []byte, err error) {
	err = s.fileUse(ctx, args, func(ctx context.Context) error {
		out, err = s.client.File(ctx, bytes.NewReader(content), most, args...)
		return err
	})
	return out, err
}

// fileUse calls use for one of the session's own commands.
func (s *Session) fileUse(ctx context.Context, args []string, use func(context.Context) error) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := s.clocks.start(ctx, fileTimeout)
	defer cancel()
	if err := use(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", args[0], args[1], err)
	}
	return nil
}

// ReadFile returns length bytes of a file from an offset on: fewer if the file ends, all the rest if length is 0.
// A relative name begins at the session's folder. Errors are fs.ErrNotExist and similar ones.
func (s *Session) ReadFile(ctx context.Context, name string, offset, length int64) ([]byte, error) {
	if offset < 0 || length < 0 || length > MaxFile {
		return nil, fmt.Errorf("read %s: from %d, %d bytes: %d is the most", name, offset, length, MaxFile)
	}
	if length == 0 {
		length = MaxFile + 1
	}
	text, err := s.fileOp(ctx, nil, MaxFile+1, "read", s.at(name), fmt.Sprint(offset), fmt.Sprint(length))
	if err == nil && len(text) > MaxFile {
		return nil, fmt.Errorf("read %s: it has more than %d bytes: read a part of it", name, MaxFile)
	}
	return text, err
}

// WriteFile creates or replaces a file atomically, and creates the folders above it. An existing file keeps its
// mode.
func (s *Session) WriteFile(ctx context.Context, name string, content []byte, mode fs.FileMode) error {
	if len(content) > MaxFile {
		return fmt.Errorf("write %s: %d bytes: %d is the most", name, len(content), MaxFile)
	}
	_, err := s.fileOp(ctx, content, 0, "write", s.at(name), fmt.Sprintf("%o", mode.Perm()))
	return err
}

// Remove removes a file, or a folder with its contents.
func (s *Session) Remove(ctx context.Context, name string) error {
	_, err := s.fileOp(ctx, nil, 0, "remove", s.at(name))
	return err
}

// File is a file, folder or other entry in a session's machine.
type File = supervisor.File

// List returns the entries of a folder, depth levels deep (1 means the folder alone), or the entry of a file.
// more reports that there are more than MaxList.
func (s *Session) List(ctx context.Context, name string, depth int) (list []File, more bool, err error) {
	text, err := s.fileOp(ctx, nil, MaxList*256, "list", s.at(name), fmt.Sprint(max(depth, 0)))
	if err != nil {
		return nil, false, err
	}
	list, more = supervisor.Entries(text, MaxList)
	return list, more, nil
}

// ErrEdit means that the text to replace does not occur exactly once.
var ErrEdit = errors.New("the text to replace must be in the file exactly once")

// Edit replaces a text that occurs exactly once in a file.
func (s *Session) Edit(ctx context.Context, name, old, new string) error {
	text, err := s.ReadFile(ctx, name, 0, 0)
	if err != nil {
		return err
	}
	if old == "" {
		return fmt.Errorf("edit %s: %w: it is empty", name, ErrEdit)
	}
	if n := strings.Count(string(text), old); n != 1 {
		return fmt.Errorf("edit %s: %w: it is there %d times", name, ErrEdit, n)
	}
	return s.WriteFile(ctx, name, []byte(strings.Replace(string(text), old, new, 1)), 0o644)
}
