package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Bounds on what an archive may unpack to. They are well above any known part, so that a crafted archive can't fill
// the disk.
const (
	maxArchiveFiles = 50_000
	maxArchiveBytes = 2 << 30 // of all files, wanted or not
)

// selector maps a name in an archive to a path in the part's folder. ok is false for a file that is not wanted.
type selector func(name string) (dst string, ok bool)

// unpackTar writes the wanted files and links of a tar stream below dir. A link may point anywhere, but nothing is
// written through a link that leads out of dir.
func unpackTar(r io.Reader, dir string, want selector) error {
	return unpackOf(r, dir, want, new(int64(maxArchiveBytes)))
}

// unpackOf is like unpackTar for one of several archives, which together may have *left more bytes.
func unpackOf(r io.Reader, dir string, want selector, left *int64) error {
	most := *left
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	tr := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if n >= maxArchiveFiles {
			return fmt.Errorf("read archive: more than %d files", maxArchiveFiles)
		}
		if *left -= h.Size; *left < 0 { // unwanted files count too: skipping them means unpacking them
			return fmt.Errorf("read archive: more than %d bytes", most)
		}
		name := strings.TrimPrefix(h.Name, "./")
		if name == "" || name == "." {
			continue
		}
		if !filepath.IsLocal(strings.TrimSuffix(name, "/")) {
			return fmt.Errorf("read archive: %q leads out of the archive", h.Name)
		}
		dst, ok := want(path.Clean(name))
		if !ok {
			continue
		}
		if err := root.MkdirAll(path.Dir(dst), 0o755); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
		switch h.Typeflag {
		case tar.TypeDir:
		case tar.TypeReg:
			if err := writeFile(root, dst, tr, h.Size, h.FileInfo().Mode().Perm()); err != nil {
				return fmt.Errorf("unpack %s: %w", name, err)
			}
		case tar.TypeSymlink:
			if err := root.Symlink(h.Linkname, dst); err != nil {
				return fmt.Errorf("unpack %s: %w", name, err)
			}
		case tar.TypeLink:
			if err := linkIn(root, h.Linkname, dst, want); err != nil {
				return fmt.Errorf("unpack %s: %w", name, err)
			}
		default:
			return fmt.Errorf("read archive: %q is neither a file, a folder nor a link", h.Name)
		}
	}
}

// linkIn makes a hard link to a file that was already unpacked.
func linkIn(root *os.Root, target, dst string, want selector) error {
	target = path.Clean(strings.TrimPrefix(target, "./"))
	from, ok := want(target)
	if !ok || !filepath.IsLocal(target) {
		return fmt.Errorf("is a link to %q, which is not unpacked", target)
	}
	if st, err := root.Lstat(from); err != nil || !st.Mode().IsRegular() {
		return errors.Join(fmt.Errorf("is a link to %q, which is no file", target), err)
	}
	return root.Link(from, dst)
}

// writeFile writes exactly size bytes of r to a new file.
func writeFile(root *os.Root, name string, r io.Reader, size int64, mode os.FileMode) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := io.CopyN(f, r, size); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func sha256File(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
