package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/policy"
)

// Values are JSON texts by name. The session's code sees each as a file, NAME.json in ValuesDir, in every
// language. A file that the code writes there is also a value.

// ValuesDir is the folder of a session's values in its machine.
const ValuesDir = "/work/.values"

// MaxValue bounds a value, in bytes of JSON.
const MaxValue = 1 << 20

const valueSuffix = ".json"

var valueName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)

func valueFile(name string) (string, error) {
	if !valueName.MatchString(name) {
		return "", policy.Bad(
			"name",
			fmt.Sprintf("%.80q", name),
			"must be a letter or _, and then letters, digits, _ and -, 64 in all at most",
		)
	}
	return path.Join(ValuesDir, name+valueSuffix), nil
}

// Put creates or replaces a value. It encodes the value with encoding/json, and uses a json.RawMessage unchanged.
func (s *Session) Put(ctx context.Context, name string, value any) error {
	file, err := valueFile(name)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // keep < unescaped
	err = encoder.Encode(value)
	text := out.Bytes()
	if err != nil {
		return policy.Bad("value", "of "+name, "is not JSON: %v", err)
	}
	if len(text) > MaxValue {
		return policy.Bad("value", fmt.Sprintf("of %d bytes", len(text)), "must be at most %d: write a file", MaxValue)
	}
	return s.WriteFile(ctx, file, text, 0o644)
}

// Get returns a value, which the code may have written. The error is fs.ErrNotExist if the value does not exist.
func (s *Session) Get(ctx context.Context, name string) (json.RawMessage, error) {
	file, err := valueFile(name)
	if err != nil {
		return nil, err
	}
	text, err := s.ReadFile(ctx, file, 0, MaxValue+1)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf(
			"there is no value %s: put makes one, and code that writes %s (%w)",
			name,
			file,
			fs.ErrNotExist,
		)
	case err != nil:
		return nil, err
	case len(text) > MaxValue:
		return nil, fmt.Errorf("value %s has more than %d bytes: read %s as a file", name, MaxValue, file)
	}
	err = json.Unmarshal(text, new(json.RawMessage))
	if err == nil && !utf8.Valid(text) {
		err = errors.New("its text is not UTF-8")
	}
	if err != nil {
		return nil, fmt.Errorf("value %s is not JSON: %s: %w", name, file, err)
	}
	return bytes.TrimSpace(text), nil
}

// Values returns the names of the values, in order; more reports that there are others.
func (s *Session) Values(ctx context.Context) (names []string, more bool, err error) {
	list, more, err := s.List(ctx, ValuesDir, 1)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	for _, f := range list {
		name, ok := strings.CutSuffix(path.Base(f.Path), valueSuffix)
		if ok && f.Mode.IsRegular() && path.Dir(f.Path) == ValuesDir && valueName.MatchString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, more, nil
}

// Copy copies a file of at most MaxFile bytes, with its mode, to a session's machine, and replaces an existing
// one. It copies a folder, with the limits of Download, only to a new name. The session may be the same.
func (s *Session) Copy(ctx context.Context, name string, to *Session, target string) error {
	list, _, err := s.List(ctx, name, 0)
	if err != nil {
		return err
	}
	if len(list) != 1 {
		return fmt.Errorf("copy %s: %w", name, fs.ErrNotExist)
	}
	switch mode := list[0].Mode; {
	case mode.IsRegular():
		return s.copyFile(ctx, name, to, target, mode.Perm())
	case !mode.IsDir():
		return fmt.Errorf("copy %s: it is neither a file nor a folder", name)
	}
	way, err := s.manager.way()
	if err != nil {
		return err
	}
	return hostfiles.PassFolder(way, func(w io.Writer) error { return s.Pack(ctx, name, w) },
		func(r io.Reader) error { return to.Unpack(ctx, target, r) })
}

// copyFile copies a file through the host's disk: many copies may run at once, and none is held in memory.
func (s *Session) copyFile(ctx context.Context, name string, to *Session, target string, mode fs.FileMode) error {
	kept, err := s.manager.anonymousFile()
	if err != nil {
		return err
	}
	defer kept.Close()
	args := []string{"read", s.at(name), "0", fmt.Sprint(MaxFile + 1)}
	if err := s.fileUse(
		ctx,
		args,
		func(ctx context.Context) error { return s.client.FileTo(ctx, nil, kept, args...) },
	); err != nil {
		return err
	}
	size, err := kept.Seek(0, io.SeekCurrent)
	if err == nil && size > MaxFile {
		return fmt.Errorf("copy %s: it has more than %d bytes", name, MaxFile)
	}
	if err == nil {
		_, err = kept.Seek(0, io.SeekStart)
	}
	if err != nil {
		return failure.Host("session", err)
	}
	args = []string{"write", to.at(target), fmt.Sprintf("%o", mode)}
	return to.fileUse(
		ctx,
		args,
		func(ctx context.Context) error { return to.client.FileTo(ctx, kept, io.Discard, args...) },
	)
}
