package imagebuild

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/nesting"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/internal/regular"
)

// lockFile is the file beside a description that lists exactly what was installed.
type lockFile struct {
	Schema int           `json:"schema"`
	Builds []lockedBuild `json:"builds"` // one for each architecture
}

type lockedBuild struct {
	Arch     image.Arch         `json:"arch"`
	Release  string             `json:"release,omitempty"` // of the base image's parts; "" means image.Release
	System   string             `json:"system,omitempty"`
	Asked    []string           `json:"asked,omitempty"`
	Packages []packages.Package `json:"packages,omitempty"`
	Npm      json.RawMessage    `json:"npm,omitempty"`
	Wanted   []string           `json:"debianAsked,omitempty"`
	Debian   []image.Deb        `json:"debian,omitempty"`
	Digest   string             `json:"digest"` // of all files that were installed
	Layer    *lockedLayer       `json:"layer,omitempty"`
}

func readLockFile(file string) (l lockFile, err error) {
	text, err := regular.Read(file, catalog.MaxLockText)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		err = nesting.Check(text, catalog.MaxLockNesting, catalog.MaxLockValues)
	}
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err == nil && l.Schema != catalog.CustomSchema {
		err = fmt.Errorf("has schema %d, not %d", l.Schema, catalog.CustomSchema)
	}
	for _, b := range l.Builds {
		if err == nil {
			err = packages.CheckLocked(b.Packages)
		}
		if err == nil {
			err = packages.CheckNpm(b.Npm)
		}
		if err == nil {
			err = image.CheckDebs(b.Debian)
		}
		if err == nil && b.Layer != nil {
			err = b.Layer.check()
		}
	}
	if err != nil {
		return l, fmt.Errorf("read %s: %w: without the file versions are chosen anew", file, err)
	}
	return l, nil
}

// at returns the build of an architecture, or nil.
func (l *lockFile) at(arch image.Arch) *lockedBuild {
	for i := range l.Builds {
		if l.Builds[i].Arch == arch {
			return &l.Builds[i]
		}
	}
	return nil
}

// set replaces the build of an architecture.
func (l *lockFile) set(b lockedBuild) {
	if have := l.at(b.Arch); have != nil {
		*have = b
		return
	}
	l.Builds = append(l.Builds, b)
}

// sameAs reports whether another build installed the same packages.
func (b lockedBuild) sameAs(other lockedBuild) bool {
	return slices.Equal(b.Packages, other.Packages) && slices.Equal(b.Debian, other.Debian)
}

// write writes the lock file, if it has changed.
func (l lockFile) write(file string) error {
	l.Schema = catalog.CustomSchema
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if have, err := os.ReadFile(file); err == nil && string(have) == string(text) {
		return nil
	}
	return atomicfile.Write(file, text, 0o644)
}

// lockedLayer tells, in a lock file, what an image was made of.
type lockedLayer struct {
	From      string           `json:"from"`            // the reference
	Image     string           `json:"image"`           // the digest of its image
	Files     string           `json:"files,omitempty"` // the digest of the layer of the description's files
	Wanted    []string         `json:"debianAsked,omitempty"`
	Debian    []image.Deb      `json:"debian,omitempty"`
	Installed string           `json:"installed,omitempty"` // the digest of their layer
	Packages  []lockedPackages `json:"packages,omitempty"`
	Steps     []string         `json:"steps,omitempty"`
	Network   []string         `json:"network,omitempty"` // of the steps
	Env       []string         `json:"env"`               // of the steps, NAME=VALUE; nil: not noted
	Digest    string           `json:"digest,omitempty"`  // of the steps' layer
}

// check returns an error if a layer in a lock file, which others may have written, is wrong.
func (l *lockedLayer) check() error {
	err := image.CheckDebs(l.Debian)
	digests := []string{l.Image, l.Files, l.Installed, l.Digest}
	for _, p := range l.Packages {
		if digests = append(digests, p.Digest); err == nil {
			err = p.check()
		}
	}
	for _, digest := range digests {
		if err == nil && digest != "" && !catalog.WholeDigest.MatchString(digest) {
			err = fmt.Errorf("has the digest %.80q for an image or a layer", digest)
		}
	}
	return err
}

// sameWanted reports whether another build has the same base image and the same Debian packages.
func (l lockedLayer) sameWanted(other lockedLayer) bool {
	return l.From == other.From && l.Image == other.Image && slices.Equal(l.Wanted, other.Wanted)
}

// sameBase reports whether another build has the same base image, files and Debian packages.
func (l lockedLayer) sameBase(other lockedLayer) bool {
	return l.sameWanted(other) && l.Files == other.Files
}

// same reports whether another build has the same base and the same steps.
func (l lockedLayer) same(other lockedLayer) bool {
	return l.sameBase(other) && l.Installed == other.Installed &&
		slices.EqualFunc(l.Packages, other.Packages, lockedPackages.same) &&
		slices.Equal(l.Steps, other.Steps) && slices.Equal(l.Network, other.Network) &&
		l.Env != nil && other.Env != nil && slices.Equal(l.Env, other.Env)
}

// lockedPackages tells, in a lock file, what pip or npm has installed.
type lockedPackages struct {
	System   string             `json:"system"` // pip or npm
	Asked    []string           `json:"asked"`
	Packages []packages.Package `json:"packages"`
	Npm      json.RawMessage    `json:"npm,omitempty"`
	Digest   string             `json:"digest"` // of the layer
}

// same reports whether another build has the same layer of packages.
func (p lockedPackages) same(other lockedPackages) bool {
	return p.System == other.System && p.Digest == other.Digest
}

// check returns what is wrong with files that others have written.
func (p *lockedPackages) check() error {
	if err := packages.CheckLocked(p.Packages); err != nil {
		return err
	}
	return packages.CheckNpm(p.Npm)
}

// lockFileOf returns the name of the lock file beside a description.
func lockFileOf(env *imagefile.Environment) string {
	return strings.TrimSuffix(env.File, imagefile.Extension) + catalog.LockFileEnds
}
