package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/unitask/unitask/guest/contract"
)

// File is a file, folder or link to create in the guest before the start.
type File struct {
	Path   string // absolute
	Mode   os.FileMode
	Target string // for a symbolic link
	Size   int64  // for a regular file: the exact length of Put's content
	// ModTime applies to a regular file; zero means now.
	ModTime time.Time
	// User means that the file belongs to the user that the code runs as. Otherwise it belongs to root, and the code
	// may only read it.
	User bool
}

// stallTime bounds how long the guest may accept no data, or take to start the code after all data. The guest
// stores some hundred kilobytes, or a hundred files, in a second under TCG; on a busy machine it needs several
// times that.
const stallTime = 20 * time.Second

// Files that the guest has not stored yet are in the connection's buffers, which hold thousands of small ones.
// The start waits for these files too: fileTime for each, but at most maxStalls times stallTime.
const (
	fileTime  = 5 * time.Millisecond
	maxStalls = 5
)

// startTime bounds how long the guest may take to start the code.
func (c *Conn) startTime() time.Duration {
	return min(stallTime+time.Duration(c.files)*fileTime, maxStalls*stallTime)
}

// stalled explains a time limit that has passed; what describes the guest's failure. The errors of gVisor's
// connections are not os.ErrDeadlineExceeded.
func stalled(err error, what string, limit time.Duration) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("the guest %s for %s", what, limit)
	}
	return err
}

// Put creates a file, folder or link in the guest; parents are made as needed. content is read for regular files
// only. Put buffers: Start sends the rest, and the files exist when the code starts.
func (c *Conn) Put(f File, content io.Reader) error {
	if len(f.Path) == 0 || f.Path[0] != '/' || len(f.Path) >= contract.MaxPath {
		return fmt.Errorf("put %q: not an absolute path of less than %d bytes", f.Path, contract.MaxPath)
	}
	kind, size := byte(contract.KindFile), f.Size
	switch f.Mode.Type() {
	case os.ModeDir:
		kind, size = contract.KindDir, 0
	case os.ModeSymlink:
		kind, size = contract.KindLink, 0
	case 0:
	default:
		return fmt.Errorf("put %s: neither a file, a folder nor a link", f.Path)
	}
	owner := byte(0)
	if f.User {
		owner = 1
	}
	p := []byte{kind, owner}
	p = binary.BigEndian.AppendUint32(p, uint32(f.Mode.Perm()))
	p = binary.BigEndian.AppendUint64(p, uint64(size))
	mtime := int64(0)
	if !f.ModTime.IsZero() {
		mtime = max(f.ModTime.UnixNano(), 0)
	}
	p = binary.BigEndian.AppendUint64(p, uint64(mtime))
	p = binary.BigEndian.AppendUint16(p, uint16(len(f.Path)))
	p = append(append(p, f.Path...), f.Target...)
	c.within(stallTime)
	defer c.within(0)
	c.files++
	if err := c.write(contract.FrameFile, p); err != nil {
		return fmt.Errorf("put %s: %w", f.Path, stalled(err, "took no more files", stallTime))
	}
	for size > 0 {
		n, err := io.ReadFull(content, c.buf[:min(size, int64(len(c.buf)))])
		if err != nil {
			return &ContentError{f.Path, err}
		}
		c.within(stallTime)
		if err := c.write(contract.FrameData, c.buf[:n]); err != nil {
			return fmt.Errorf("put %s: %w", f.Path, stalled(err, "took no more files", stallTime))
		}
		size -= int64(n)
	}
	return nil
}

// ContentError means that a file's content could not be read: this is not the guest's fault.
type ContentError struct {
	Path string // in the guest
	Err  error
}

func (e *ContentError) Error() string { return "put " + e.Path + ": " + e.Err.Error() }

func (e *ContentError) Unwrap() error { return e.Err }
