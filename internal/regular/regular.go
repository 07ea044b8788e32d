// Package regular opens files that nobody asked for by name, or that others may have placed. Any other kind of file
// could block, never end, or have an effect when it is opened. For such a file the package returns an error and does
// not open it.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrNot means that something exists, but is not a regular file.
var ErrNot = errors.New("is not a regular file")

// Open opens a regular file; it follows a link.
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
	if st, err = f.Stat(); err == nil && !st.Mode().IsRegular() { // it was replaced in between
		err = fmt.Errorf("%s %w", name, ErrNot)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// Read returns the content of a regular file. A file larger than the parameter most is an error.
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
