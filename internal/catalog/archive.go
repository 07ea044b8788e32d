package catalog

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// This file sends custom images to another host. The additions of such an image to its base image are sent as an
// archive of files; the other host has the base image itself. A custom image over a container's image is sent like any
// container image.

// Ship describes a request's custom image for another host.
func (o *Custom) Ship() (b Shipped, err error) {
	b = Shipped{Arch: o.Arch, Custom: &image.ShippedCustom{Base: o.From, Runtime: o.Runtime, Folders: o.Folders,
		Env: o.Env, Warm: o.Warm}}
	b.Disk, b.Size, err = o.archiveSum()
	return b, err
}

// archiveFile has the archive's size and digest. It is beside the image's files, which never change.
const archiveFile = "archive.json"

// archiveSum returns the archive's SHA-256, and its bytes.
func (o *Custom) archiveSum() (sum string, size int64, err error) {
	own := o.Row.Payload.Custom
	known := filepath.Join(filepath.Dir(own.Folder), archiveFile)
	var f image.File
	if own.Folder != "" {
		if text, err := os.ReadFile(known); err == nil && json.Unmarshal(text, &f) == nil && f.SHA256 != "" {
			return f.SHA256, f.Size, nil
		}
	}
	if err := own.Verify(); err != nil {
		return "", 0, err
	}
	h, count := sha256.New(), &counted{}
	if err := o.writeArchive(io.MultiWriter(h, count)); err != nil {
		return "", 0, err
	}
	f = image.File{Name: o.Name, Size: count.n, SHA256: hex.EncodeToString(h.Sum(nil))}
	if text, err := json.Marshal(f); err == nil && own.Folder != "" {
		_ = atomicfile.Write(known, text, 0o600) // only saves time later
	}
	return f.SHA256, f.Size, nil
}

type counted struct{ n int64 }

func (c *counted) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// Archive returns the image's own files as an archive.
func (o *Custom) Archive() io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(o.writeArchive(w)) }() // Close ends it
	return r
}

// writeArchive writes the image's own files as a tar without times, since no disk of an image has any. So the same
// files give the same archive on any host.
func (o *Custom) writeArchive(to io.Writer) error {
	w := tar.NewWriter(to)
	if folder := o.Row.Payload.Custom.Folder; folder != "" {
		root, err := os.OpenRoot(folder)
		if err != nil {
			return err
		}
		defer root.Close()
		err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			return archiveEntry(w, root, name, d)
		})
		if err != nil {
			return err
		}
	}
	return w.Close()
}

func archiveEntry(w *tar.Writer, root *os.Root, name string, d fs.DirEntry) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Format: tar.FormatPAX}
	if d.Type() == fs.ModeSymlink {
		target, err := root.Readlink(name)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, target, 0o777
		return w.WriteHeader(h)
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if h.Size = st.Size(); st.Mode()&0o100 != 0 {
		h.Mode = 0o755
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(w, f, h.Size)
	return err
}

// ShippedCustom returns a custom image that another host shipped. Its name is the digest that it is kept under.
func ShippedCustom(c *image.Container) (*Custom, error) {
	if language.OfImage(c.Custom.Base) == nil {
		return nil, fmt.Errorf("the image %s was shipped over %.40q, which is no image of this host any more", c.Digest,
			c.Custom.Base)
	}
	o := &Custom{Name: c.Digest, From: c.Custom.Base, Arch: c.Arch, Env: c.Custom.Env, Warm: c.Custom.Warm,
		Runtime: c.Custom.Runtime, Folders: c.Custom.Folders, Digest: c.Digest}
	o.describe()
	o.Row.Payload.Custom.Archive, o.Row.Payload.Custom.Container = c.Root(), c.Digest
	return o, nil
}

// shipped returns the custom image with a digest that another host shipped, or nil if there is none, or the ceiling
// allows none.
func (cat *Catalog) shipped(name string, ceiling *policy.Ceiling) *image.Container {
	if !WholeDigest.MatchString(name) || !ceiling.Image(name) {
		return nil
	}
	c, err := cat.Images.Containers().Get(image.HostArch(), name)
	if err != nil || c.Custom == nil {
		return nil
	}
	return c
}

// WholeDigest matches digests of images and layers. A part of a digest, or a name, could lead to any image here.
var WholeDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// runtimeForm matches the versions of programs.
var runtimeForm = regexp.MustCompile(`^[A-Za-z0-9.:+~-]{0,80}$`)

// checkShipped returns an error if another host's description of a custom image is wrong.
func checkShipped(own *image.ShippedCustom) error {
	l := language.OfImage(own.Base)
	if l == nil {
		return fmt.Errorf("begins with %.40q, which this host has not: there are %s", own.Base,
			strings.Join(language.Images(), ", "))
	}
	if err := imagefile.CheckAdded(own.Env, own.Warm); err != nil {
		return err
	}
	all := slices.Concat(l.Image(own.Base).Payload.Folders, own.Folders)
	for _, dir := range own.Folders {
		if !path.IsAbs(dir) || dir == "/" || path.Clean(dir) != dir || strings.ContainsAny(dir, "\n\x00") {
			return fmt.Errorf("has a folder %.80q", dir)
		}
	}
	switch {
	case len(strings.Join(all, "\n")) > MaxFolders:
		return errors.New("lies in too many folders")
	case !runtimeForm.MatchString(own.Runtime):
		return fmt.Errorf("is for version %.80q", own.Runtime)
	}
	return nil
}
