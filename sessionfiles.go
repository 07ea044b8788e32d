package unitask

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/unitask/unitask/guest/session"
)

// Bounds of what comes back at once.
const (
	// MaxSessionFile bounds a file that ReadFile, WriteFile and Edit take, in bytes.
	MaxSessionFile = 64 << 20
	// MaxSessionList bounds a List, in entries.
	MaxSessionList = 10_000
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

// fileUse calls use with one of the session's own commands.
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

// ReadFile returns length bytes of a file from an offset on: fewer if the file ends, the whole rest if length is 0. A
// relative name begins at the session's folder. Errors are fs.ErrNotExist and similar ones.
func (s *Session) ReadFile(ctx context.Context, name string, offset, length int64) ([]byte, error) {
	if offset < 0 || length < 0 || length > MaxSessionFile {
		return nil, fmt.Errorf("read %s: from %d, %d bytes: %d is the most", name, offset, length, MaxSessionFile)
	}
	if length == 0 {
		length = MaxSessionFile + 1
	}
	text, err := s.fileOp(ctx, nil, MaxSessionFile+1, "read", s.at(name), fmt.Sprint(offset), fmt.Sprint(length))
	if err == nil && len(text) > MaxSessionFile {
		return nil, fmt.Errorf("read %s: it has more than %d bytes: read a part of it", name, MaxSessionFile)
	}
	return text, err
}

// WriteFile makes or replaces a file in one step, and makes the folders above it. An existing file keeps its mode.
func (s *Session) WriteFile(ctx context.Context, name string, content []byte, mode fs.FileMode) error {
	if len(content) > MaxSessionFile {
		return fmt.Errorf("write %s: %d bytes: %d is the most", name, len(content), MaxSessionFile)
	}
	_, err := s.fileOp(ctx, content, 0, "write", s.at(name), fmt.Sprintf("%o", mode.Perm()))
	return err
}

// Remove removes a file, or a folder with its contents.
func (s *Session) Remove(ctx context.Context, name string) error {
	_, err := s.fileOp(ctx, nil, 0, "remove", s.at(name))
	return err
}

// SessionFile is something in a session's machine.
type SessionFile = session.Entry

// List returns the entries of a folder, depth levels down (1 is the folder alone), or of one file. more means that
// there were over MaxSessionList.
func (s *Session) List(ctx context.Context, name string, depth int) (list []SessionFile, more bool, err error) {
	text, err := s.fileOp(ctx, nil, MaxSessionList*256, "list", s.at(name), fmt.Sprint(max(depth, 0)))
	if err != nil {
		return nil, false, err
	}
	list, more = session.Entries(text, MaxSessionList)
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
