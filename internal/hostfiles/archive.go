package hostfiles

import (
	"archive/tar"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/unitask/unitask/guest"
)

// Archive is a Guest that writes its files as a tar, with paths below the root. Close it.
type Archive struct{ *tar.Writer }

// NewArchive returns an Archive that writes to a stream.
func NewArchive(to io.Writer) Archive { return Archive{tar.NewWriter(to)} }

// Put implements Guest.
func (a Archive) Put(f guest.File, content io.Reader) error {
	h := &tar.Header{Name: strings.TrimPrefix(f.Path, "/"), Mode: int64(f.Mode.Perm()), ModTime: f.ModTime}
	if f.ModTime.IsZero() {
		h.ModTime = time.Now()
	}
	switch f.Mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Target
	default:
		h.Typeflag, h.Size = tar.TypeReg, f.Size
	}
	if err := a.WriteHeader(h); err != nil || content == nil {
		return err
	}
	_, err := io.Copy(a, content)
	return err
}
