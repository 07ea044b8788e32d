// Package regular opens files that nobody asked for by name, or that others have put there. Any other kind of file
// could block, never end, or have an effect when it is opened: the package returns an error and does not open it.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrNot means that there is something, and no regular file.
var ErrNot = errors.New("is not a regular file")

// Open opens one; a link is followed.
func Open(name string) (*os.File, fs.FileInfo, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s %w", name, ErrNot)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	if st, err = f.Stat(); err == nil && !st.Mode().IsRegular() { // it was exchanged in between
		err = fmt.Errorf("%s %w", name, ErrNot)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// Read returns what is in one, if that is at most so many bytes.
func Read(name string, most int64) ([]byte, error) {
	f, _, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes", name, most)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}
