package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"
)

// Part is the description of a vendored part: vendor/<arch>/<name>/part.json.
type Part struct {
	Name     string    `json:"name"`
	Version  string    `json:"version"`
	Package  string    `json:"package,omitempty"`
	Digest   string    `json:"digest"` // of the package as fetched
	From     string    `json:"from"`
	License  string    `json:"license"`
	Vendored time.Time `json:"vendored"`
	// BehindLock: the pinned version is gone from the archive; this part is its successor by the archive's signed
	// index.
	BehindLock bool `json:"behindLock,omitempty"`
	// Release: the Debian release of a package; "" is one from before they were recorded.
	Release string `json:"release,omitempty"`
	// FirstSeen: no digest was known beforehand; this one was recorded when the part was first fetched.
	FirstSeen bool `json:"firstSeen,omitempty"`

	// Bundled: the part came in a bundle, whose digest was checked instead of the package's.
	Bundled bool `json:"bundled,omitempty"`

	dir string
}

// fits reports whether the part can stay in place of a locked one. It has the same digest, or is a successor or a
// bundle's part of the same release.
func (p Part) fits(locked LockedPart) bool {
	return p.Digest == locked.Digest ||
		(p.BehindLock || p.Bundled) && (locked.From != "debian" || p.Release == locked.Release)
}

const partFile = "part.json"

// path joins names to the part's folder.
func (p Part) path(names ...string) string {
	return filepath.Join(append([]string{p.dir}, names...)...)
}

// Parts gives access to the vendored files that a store's images are built from. It has no state of its own.
type Parts struct{ images *Store }

// Parts returns the parts of the store's images.
func (s *Store) Parts() Parts { return Parts{s} }

// Get returns a vendored part, or an error that wraps ErrNotVendored and tells how to get the part.
func (ps Parts) Get(arch Arch, name string) (Part, error) {
	p := Part{dir: filepath.Join(ps.images.vendorDir(arch), name)}
	text, err := os.ReadFile(p.path(partFile))
	if errors.Is(err, fs.ErrNotExist) {
		how := fmt.Sprintf("`unitask image vendor --image %s --arch %s` fetches it", ps.images.payload.Name, arch)
		if name == nanosPart {
			how = fmt.Sprintf("`unitask image vendor --nanos --arch %s` fetches its release, --from DIR takes one that you have",
				arch)
		}
		return p, fmt.Errorf("%s for %s: %w: %s", name, arch, ErrNotVendored, how)
	}
	if err != nil {
		return p, fmt.Errorf("read part %s: %w", name, err)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("read %s: %w: remove the folder and run `unitask image vendor --arch %s`", p.path(partFile), err,
			arch)
	}
	if missing := ps.missing(p, arch, name); missing != "" {
		return p, fmt.Errorf("%s for %s: %w as a whole: %s lacks %s; `unitask image vendor --arch %s` fetches it again", name,
			arch, ErrNotVendored, p.dir, missing, arch)
	}
	return p, nil
}

// NodeLibrary returns the library that reseeds the random numbers of Node, of the guest's compiled programs, or "" if
// they are not there. It needs glibc.
func (ps Parts) NodeLibrary(arch Arch) string {
	p, err := ps.Get(arch, guestPart)
	if err != nil {
		return ""
	}
	text, err := os.ReadFile(p.path(libraryFile))
	if err != nil {
		return ""
	}
	return string(text)
}

// missing names a file that the part must have but lacks, or returns "".
func (ps Parts) missing(p Part, arch Arch, name string) string {
	var must []string
	for _, of := range ps.each() {
		switch program := of.payload.Program; {
		case name == of.Parts().guestPart() && of.payload.Library != "":
			must = []string{"init", libraryFile}
		case name == of.Parts().guestPart():
			must = []string{"init"}
			if of.payload.ProgramSources != nil {
				must = append(must, programFile)
			}
		case len(of.payload.Parts) > 0 && name == of.payload.Parts[0] && of.payload.ProgramSources == nil:
			if program = strings.ReplaceAll(program, version, "*"); len(glob(p.path("root", program))) == 0 {
				must = []string{path.Base(program)}
			}
		case slices.Contains(of.payload.BuildParts, name):
			must = []string{"include"}
		}
	}
	if name == kernelPart && ps.images.payload.Container { // parts from before container images lack it
		must = append(must, "modules/"+overlayModule+".ko*")
	}
	if name == nanosPart {
		must = []string{nanosKernel}
	}
	if name == goPart {
		must = []string{goRoot + "/bin/go"}
	}
	if name == esbuildPart {
		must = []string{esbuildFile}
	}
	if tool := toolFiles[name]; tool != "" {
		must = []string{tool}
	}
	for _, w := range debianParts(name, arch) {
		if strings.HasSuffix(w.dst, "/") {
			w.dst += path.Base(w.pattern)
		}
		must = append(must, w.dst)
	}
	for _, pattern := range must {
		if found, err := filepath.Glob(p.path(pattern)); err != nil || len(found) == 0 {
			return pattern
		}
	}
	return ""
}

// All returns every vendored part of an architecture, by name.
func (ps Parts) All(arch Arch) ([]Part, error) {
	entries, err := os.ReadDir(ps.images.vendorDir(arch))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var parts []Part
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		p, err := ps.Get(arch, e.Name())
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	sort.Slice(parts, func(i, j int) bool { return parts[i].Name < parts[j].Name })
	return parts, nil
}
