package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// What a shipped custom image adds to a bundled one. Instead of a disk there is a tar archive of the added files.
// This
// host does not unpack the archive, but writes the image's disk from it.

// ShippedCustom describes a custom image apart from its archive of files.
type ShippedCustom struct {
	Base    string            `json:"base"`              // the image that it begins with, which this host has
	Runtime string            `json:"runtime,omitempty"` // same as Custom.Runtime
	Folders []string          `json:"folders,omitempty"` // same as Payload.Folders, in addition to those of the base
	Env     map[string]string `json:"env,omitempty"`
	Warm    []string          `json:"warm,omitempty"` // modules to import in advance
}

// Bounds on such an archive.
const (
	maxShippedCustom = 1<<30 + 128<<20 // bytes: as much as a build leaves, and its headers
	maxAdded         = 60_000          // entries, and the folders that contain them
	maxAddedPath     = 1000            // bytes of a path, and of a link's target
	maxAddedDepth    = 100             // nested folders
	maxAddedWork     = 250_000_000     // steps to write the disk, a minute or two: entries of folders on paths
)

// addArchive adds an archive's files and links at their paths in the guest. The archive's author is not trusted.
func (t tree) addArchive(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	refused := func(what string, reason string) error {
		return fmt.Errorf("the shipped files: %.80q %s", what, reason)
	}
	added, together := map[string]bool{}, map[string]int{}
	for r, n := tar.NewReader(f), 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the shipped files: %w", err)
		}
		at := "/" + path.Clean(h.Name)
		switch {
		case n == maxAdded:
			return fmt.Errorf("the shipped files are more than %d", maxAdded)
		case !filepath.IsLocal(h.Name) || at == "/." || !utf8.ValidString(h.Name) || strings.ContainsAny(h.Name, "\x00\n") ||
			len(at) > maxAddedPath || strings.Count(at, "/") > maxAddedDepth || len(path.Base(at)) > maxExt4Name:
			return refused(h.Name, "has a name that can't be")
		case added[at]:
			return refused(h.Name, "is there twice")
		}
		added[at] = true
		for dir := path.Dir(at); ; dir = path.Dir(dir) { // each folder that was not counted yet
			if together[dir]++; together[dir] > 1 || dir == "/" {
				break
			}
			if len(path.Base(dir)) > maxExt4Name {
				return refused(h.Name, "has a name that can't be")
			}
			if len(together) > maxAdded {
				return fmt.Errorf("the shipped files are in more than %d folders", maxAdded)
			}
		}
		switch {
		case h.Typeflag == tar.TypeSymlink && h.Linkname != "" && len(h.Linkname) <= maxAddedPath &&
			utf8.ValidString(h.Linkname) && !strings.ContainsRune(h.Linkname, 0):
			t.link(at, h.Linkname)
		case h.Typeflag == tar.TypeReg && !sparse(h):
			begin, err := f.Seek(0, io.SeekCurrent) // the reader's position: it does not read ahead
			if err != nil {
				return err
			}
			if h.Size > st.Size()-begin {
				return refused(h.Name, "ends after the archive")
			}
			mode := fs.FileMode(0o644)
			if h.Mode&0o100 != 0 {
				mode = 0o755
			}
			t.put(node{path: at, mode: mode, source: name, begin: begin, length: h.Size, part: true})
		default:
			return refused(h.Name, "is neither a file nor a link that can be")
		}
	}
	work := 0
	for at := range added {
		for dir := path.Dir(at); ; dir = path.Dir(dir) {
			if work += together[dir]; work > maxAddedWork {
				return fmt.Errorf("the shipped files are too many in one folder: some %d can be written there",
					int(math.Sqrt(maxAddedWork)))
			}
			if dir == "/" {
				break
			}
		}
	}
	return t.whole()
}

// sparse reports whether a file has holes, which archive/tar would fill.
func sparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// whole returns an error if an entry of the tree lies in something that is not a folder.
func (t tree) whole() error {
	for at := range t {
		if dir, there := t[path.Dir(at)]; there && !dir.mode.IsDir() {
			return fmt.Errorf("%.80q lies in %.80q, which is no folder", at, dir.path)
		}
	}
	return nil
}
