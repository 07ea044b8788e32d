package tfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/diskfs/go-diskfs/filesystem"
)

// handle is an open file or folder.
type handle struct {
	f        *FileSystem
	n        *node
	pos      int64
	writable bool
	listed   int // entries that ReadDir has returned
}

// Open opens a file or folder for reading.
func (f *FileSystem) Open(name string) (fs.File, error) {
	n, err := f.find("open", name)
	if err != nil {
		return nil, err
	}
	return &handle{f: f, n: n}, nil
}

// ReadFile returns a file's content.
func (f *FileSystem) ReadFile(name string) ([]byte, error) {
	n, err := f.find("open", name)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(&handle{f: f, n: n})
}

// OpenFile opens a file, and creates it with os.O_CREATE. Writing streams to the disk. A Write after a Seek beyond the
// end leaves a hole.
func (f *FileSystem) OpenFile(name string, flag int) (filesystem.File, error) {
	n, err := f.lookup(name)
	if errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0 {
		n = &node{}
		err = f.add("open", name, n)
		if err != nil {
			return nil, err
		}
	}
	if err == nil && n.mode != 0 {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	write := flag&(os.O_WRONLY|os.O_RDWR) != 0
	if write {
		if err := f.writable("open", name); err != nil {
			return nil, err
		}
	}
	return &handle{f: f, n: n, writable: write}, nil
}

func (h *handle) Stat() (fs.FileInfo, error) { return info{h.n}, nil }
func (h *handle) Close() error               { return nil }

// ReadDir makes an open folder an fs.ReadDirFile.
func (h *handle) ReadDir(n int) ([]fs.DirEntry, error) {
	if h.n.mode != fs.ModeDir {
		return nil, errors.New("not a directory")
	}
	list := h.n.entries()[h.listed:]
	if n > 0 {
		if len(list) == 0 {
			return nil, io.EOF
		}
		list = list[:min(n, len(list))]
	}
	h.listed += len(list)
	return list, nil
}

func (h *handle) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += h.pos
	case io.SeekEnd:
		offset += h.n.size
	}
	if offset < 0 {
		return 0, fs.ErrInvalid
	}
	h.pos = offset
	return offset, nil
}

func (h *handle) Read(p []byte) (int, error) {
	if h.n.mode != 0 {
		return 0, errors.New("not a regular file")
	}
	if h.pos >= h.n.size {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), h.n.size-h.pos)]
	e, found := h.n.extentAt(h.pos / sectorSize)
	end := (e.file + e.length) * sectorSize // of the extent, or of the hole
	if !found {
		end = e.file * sectorSize
	}
	if end > h.pos {
		p = p[:min(int64(len(p)), end-h.pos)]
	}
	if !found {
		clear(p)
	} else if _, err := h.f.storage.ReadAt(p, h.f.start+e.sector*sectorSize+h.pos-e.file*sectorSize); err != nil {
		return 0, fmt.Errorf("read %s: %w", h.n.name, err)
	}
	h.pos += int64(len(p))
	return len(p), nil
}

// extentAt returns the extent that holds a sector of the file. If there is none, it returns false and the next extent,
// or an empty one.
func (n *node) extentAt(sector int64) (extent, bool) {
	for i := len(n.extents) - 1; i >= 0; i-- {
		e := n.extents[i]
		if sector >= e.file+e.length {
			if i+1 < len(n.extents) {
				return n.extents[i+1], false
			}
			return extent{}, false
		}
		if sector >= e.file {
			return e, true
		}
	}
	if len(n.extents) > 0 {
		return n.extents[0], false
	}
	return extent{}, false
}

// Write writes at the file's end or, after a Seek, beyond it. It can't overwrite data; building an image does not need
// that.
func (h *handle) Write(p []byte) (int, error) {
	if !h.writable || h.f.closed {
		return 0, filesystem.ErrReadonlyFilesystem
	}
	if h.pos < h.n.size {
		return 0, fmt.Errorf("write %s at %d: before its end", h.n.name, h.pos)
	}
	if len(p) == 0 {
		return 0, nil
	}
	first := h.pos / sectorSize
	last := (h.pos + int64(len(p)) - 1) / sectorSize
	e := h.n.cover(h.f, first, last)
	if e.sector+last-e.file >= h.f.sectors {
		return 0, fmt.Errorf("write %s: the filesystem is full", h.n.name)
	}
	at := h.f.start + e.sector*sectorSize + h.pos - e.file*sectorSize
	// Zero the rest of the last sector, and the part before the data in a new first sector, whatever the disk held.
	data := p
	if head := h.pos % sectorSize; head != 0 && h.n.size/sectorSize < first {
		data = append(make([]byte, head), data...)
		at -= head
	}
	if tail := (h.pos + int64(len(p))) % sectorSize; tail != 0 {
		data = append(data[:len(data):len(data)], make([]byte, sectorSize-tail)...)
	}
	if _, err := h.f.w.WriteAt(data, at); err != nil {
		return 0, fmt.Errorf("write %s: %w", h.n.name, err)
	}
	h.pos += int64(len(p))
	h.n.size = h.pos
	return len(p), nil
}

// cover extends the file's last extent to the sectors first to last, at the end of the file, and returns it.
func (n *node) cover(f *FileSystem, first, last int64) extent {
	if k := len(n.extents); k > 0 {
		e := &n.extents[k-1]
		if end := e.file + e.length; first < end || (first == end && e.sector+e.length == f.next) {
			if more := last + 1 - end; more > 0 {
				if e.sector+e.length != f.next { // another file's sectors follow
					return n.move(f, e, first, last)
				}
				e.length += more
				f.next += more
			}
			return *e
		}
	}
	e := extent{file: first, sector: f.next, length: last + 1 - first}
	f.next += e.length
	n.extents = append(n.extents, e)
	return e
}

// move replaces the extent's last, half-filled sector by a new extent that begins with a copy of it.
func (n *node) move(f *FileSystem, e *extent, first, last int64) extent {
	sector := make([]byte, sectorSize)
	from := f.start + (e.sector+first-e.file)*sectorSize
	to := extent{file: first, sector: f.next, length: last + 1 - first}
	if _, err := f.storage.ReadAt(sector, from); err == nil {
		_, _ = f.w.WriteAt(sector, f.start+to.sector*sectorSize) // the next write reports an error
	}
	if e.length = first - e.file; e.length == 0 {
		n.extents = n.extents[:len(n.extents)-1]
	}
	f.next += to.length
	n.extents = append(n.extents, to)
	return to
}
