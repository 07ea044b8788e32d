package image

import (
	"bytes"
	"os"
	"path/filepath"
)

// Files that all images of a kernel have in common are on the disk once: their kernel and initramfs are links to the
// same files. Nothing ever writes to a file of an image.

// share links an image's files, in the folder where it is built, to identical files of other images. A file that can't
// be linked stays a copy.
func (s *Store) share(im *Image) {
	others, err := s.List()
	if err != nil {
		return
	}
	for i := range im.Files {
		f := &im.Files[i]
		if f.Name == DiskFile {
			continue
		}
		for _, other := range others {
			if st, same := other.whole(*f); same && im.link(f, filepath.Join(other.dir, f.Name)) {
				restamp(others, f.Name, st)
				break
			}
		}
	}
}

// whole reports whether an image has the same file, and the file still has its verified change stamp.
func (im *Image) whole(f File) (os.FileInfo, bool) {
	for _, own := range im.Files {
		if own.Name == f.Name && own.SHA256 == f.SHA256 && own.Size == f.Size {
			st, err := os.Lstat(filepath.Join(im.dir, f.Name))
			return st, err == nil && st.Mode().IsRegular() && st.Size() == f.Size && changeStamp(st) == own.Stamp
		}
	}
	return nil, false
}

// link replaces one of the image's files with a link to another file.
func (im *Image) link(f *File, to string) bool {
	at := filepath.Join(im.dir, f.Name)
	linked := at + ".link"
	if os.Link(to, linked) != nil {
		return false
	}
	if os.Rename(linked, at) != nil {
		_ = os.Remove(linked)
		return false
	}
	if st, err := os.Lstat(at); err == nil {
		f.Stamp = changeStamp(st)
	}
	return true
}

// restamp updates the change stamps of a file that has a new link, in all images that have it. So the images are not
// read again. was describes the file before.
func restamp(images []*Image, name string, was os.FileInfo) {
	for _, im := range images {
		for i := range im.Files {
			f := &im.Files[i]
			st, err := os.Lstat(filepath.Join(im.dir, name))
			if f.Name == name && err == nil && os.SameFile(st, was) && f.Stamp == changeStamp(was) {
				f.Stamp = changeStamp(st)
				_ = im.save()
			}
		}
	}
}

// writeSparse writes a file and leaves holes for its blocks of zeros.
func writeSparse(name string, data []byte, mode os.FileMode) error {
	const block = 4096
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	zeros := make([]byte, block)
	for at := 0; at < len(data) && err == nil; {
		end := at
		for end < len(data) && !bytes.Equal(data[end:min(end+block, len(data))], zeros[:min(block, len(data)-end)]) {
			end = min(end+block, len(data))
		}
		if end > at {
			_, err = f.WriteAt(data[at:end], int64(at))
		}
		at = end + block
	}
	if err == nil {
		err = f.Truncate(int64(len(data)))
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
