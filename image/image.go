// Package image makes and keeps the files that a machine boots from.
//
// A Store holds vendored parts (Node, its libraries, kernels: vendor.lock pins them), and bootable images built from
// them. An image is a directory with the kernel, an initramfs if the kernel needs one, and a root disk. Its name is the
// digest of all its inputs. The store builds an image under a temporary name and renames it. So nobody sees an
// incomplete image, and two processes may build at once.
//
// The package never starts a machine and never talks to a guest. It uses the network only in Vendor and VendorFrom,
// through the package managers' own clients, or for one file with a known digest.
package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/userdir"
)

// Kernel names a guest kernel.
type Kernel string

const (
	Linux Kernel = "linux" // Debian's cloud kernel, with our init as PID 1
	Nanos Kernel = "nanos" // the Nanos unikernel: one process, no fork
)

// Arch names a guest architecture as Go does.
type Arch string

const (
	AMD64 Arch = "amd64"
	ARM64 Arch = "arm64"
)

// HostArch returns the architecture of this machine.
func HostArch() Arch { return Arch(runtime.GOARCH) }

// ParseArch accepts amd64, x86_64, arm64 and aarch64. "" means the host's architecture.
func ParseArch(s string) (Arch, error) {
	switch s {
	case "":
		return HostArch(), nil
	case "amd64", "x86_64":
		return AMD64, nil
	case "arm64", "aarch64":
		return ARM64, nil
	}
	return "", fmt.Errorf("unknown architecture %q: use amd64 or arm64", s)
}

// triplet returns Debian's name for the architecture's library folder, as in /lib/<triplet>.
func (a Arch) triplet() string {
	if a == ARM64 {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}

// loader returns the path of libc's dynamic loader, which every program names.
func (a Arch) loader() string {
	if a == ARM64 {
		return "lib/ld-linux-aarch64.so.1"
	}
	return "lib64/ld-linux-x86-64.so.2"
}

// ErrNotVendored means that a part an image needs is not in the store.
var ErrNotVendored = errors.New("not vendored")

// ErrOffline means that parts are missing and must not be fetched.
var ErrOffline = errors.New("offline")

// ErrDamaged means that an image's files differ from those that were built.
var ErrDamaged = errors.New("image is damaged")

// Image is a bootable image in the store. All paths are absolute.
type Image struct {
	Digest  string    `json:"digest"` // hex SHA-256 over the inputs
	Kernel  Kernel    `json:"kernel"`
	Arch    Arch      `json:"arch"`
	Version string    `json:"kernelVersion"`  // the kernel package's version
	Name    string    `json:"name"`           // the payload's: node, python
	Base    string    `json:"base,omitempty"` // the bundled image that a custom image begins with
	Runtime string    `json:"runtime"`        // the version of its program
	Built   time.Time `json:"built"`
	BuildMs int64     `json:"buildMs"`
	Parts   []string  `json:"parts"` // "name version" of each input
	Files   []File    `json:"files"`
	// Container is the digest of the container image, or of the shipped image, that provides the files. "" for other
	// images.
	Container string `json:"container,omitempty"`

	dir string
}

// File is one file of an image and its digest.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// Stamp is the inode's change time in ns when the digest was last verified. A file that still has it is not read
	// again.
	Stamp int64 `json:"stamp"`
}

// Names of an image's files.
const (
	KernelFile = "kernel"
	InitrdFile = "initrd" // linux only
	DiskFile   = "disk.img"
)

// Path returns the path of one of the image's files, or "" if the image has no file of that name.
func (im *Image) Path(name string) string {
	for _, f := range im.Files {
		if f.Name == name {
			return filepath.Join(im.dir, name)
		}
	}
	return ""
}

// usedName is the file whose modification time is the image's last use.
const usedName = "used"

// Used returns when the image was last obtained for a machine, or else built.
func (im *Image) Used() time.Time {
	if st, err := os.Stat(filepath.Join(im.dir, usedName)); err == nil && st.ModTime().After(im.Built) {
		return st.ModTime()
	}
	return im.Built
}

// touch notes that the image is used now, and reports whether the image is still there. Without the note, prune may
// take the image for unused.
func (im *Image) touch() (there bool) {
	name, now := filepath.Join(im.dir, usedName), time.Now()
	if err := os.Chtimes(name, now, now); errors.Is(err, fs.ErrNotExist) {
		if errors.Is(os.WriteFile(name, nil, 0o600), fs.ErrNotExist) {
			return false
		}
		_ = os.Chtimes(name, now, now) // the file system's clock may be some ms behind
	}
	return true
}

// Size returns the bytes that the image occupies on disk, without holes. A file that other images share (share.go)
// counts in equal parts, so that the sum over all images is right.
func (im *Image) Size() int64 {
	var n int64
	for _, f := range im.Files {
		if st, err := os.Stat(filepath.Join(im.dir, f.Name)); err == nil {
			n += allocated(st) / links(st)
		}
	}
	return n
}

// Store is a folder of parts and images: $UNITASK_HOME. It holds no other state. Any number of processes may use one
// folder.
type Store struct {
	// Mirror is the address of a mirror of Debian, or "" for the one that the host's apt uses.
	Mirror string
	// Offline names the setting that forbids fetching, or is "" if fetching is allowed. It is set before the store is
	// used.
	Offline string
	// PartsURL is the address of the bundle for hosts that can't or should not use packages. It is an http or https
	// address in which ARCH stands for the architecture, followed by the digest, #sha256-HEX. If it is "", a host
	// without apt uses the release's own bundle.
	PartsURL string
	// Installed is the folder of files that were installed with the program. It may have a bundle, parts_ARCH.tar.zst.
	Installed string

	// Transfer, if not nil, receives four times a second the downloaded bytes and the total. The last line of log names
	// the download.
	Transfer func(done, total int64)

	// Custom, if not nil, finds custom images, which take precedence over bundled images. The error wraps
	// fs.ErrNotExist if there is none of that name.
	Custom func(name string) (Payload, error)
	// Along returns the payload of a custom image that another host shipped (Container.Custom).
	Along func(c *Container) (Payload, error)

	home     string
	payloads []Payload // of all bundled images
	payload  Payload   // set by Of
	log      func(string)
	tracing  bool // set by Tracing

	container *Container // set by OfContainer
}

// Open returns the store in the folder home, which is created if missing. payloads, at least one, are what its images
// may run; the returned store builds images of the first one. log, if not nil, receives progress of long calls, in one
// short line each.
func Open(home string, payloads []Payload, log func(string)) (*Store, error) {
	if log == nil {
		log = func(string) {}
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w (UNITASK_HOME names another folder)", err)
	}
	return &Store{home: home, payloads: payloads, payload: payloads[0], log: log, Installed: userdir.Share()}, nil
}

// Of returns the same store for images of the payload with that name.
func (s *Store) Of(name string) (*Store, error) {
	if s.Custom != nil {
		p, err := s.Custom(name)
		if err == nil {
			return s.With(p), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	for _, p := range s.payloads {
		if p.Name == name && !p.Container {
			of := *s
			of.payload = p
			return &of, nil
		}
	}
	return nil, fmt.Errorf("unknown image %.40q: there are %s", name, strings.Join(s.Names(), ", "))
}

// With returns the same store for images of a payload.
func (s *Store) With(p Payload) *Store {
	of := *s
	of.payload = p
	return &of
}

// Name returns the name of the images that the store builds.
func (s *Store) Name() string { return s.payload.Name }

// kind returns how messages describe the store's images.
func (s *Store) kind() string {
	if s.container != nil {
		return fmt.Sprintf("container image (%.19s)", s.container.Digest)
	}
	return s.payload.Name + " image"
}

// Names returns the names of all images that the store can build.
func (s *Store) Names() (names []string) {
	for _, p := range s.payloads {
		if !p.Container {
			names = append(names, p.Name)
		}
	}
	return names
}

// Tracing returns the same store for images with kernels that report the code's system calls. Linux kernels can do so
// as they are. The kernel of nanos does so in every run, so such runs need a separate image.
func (s *Store) Tracing() *Store {
	traced := *s
	traced.tracing = true
	return &traced
}

// Home returns the store's folder.
func (s *Store) Home() string { return s.home }

func (s *Store) logf(format string, args ...any) { s.log(fmt.Sprintf(format, args...)) }

func (s *Store) vendorDir(arch Arch) string { return home.Dir(s.home).Vendor(string(arch)) }
func (s *Store) imagesDir() string          { return home.Dir(s.home).Images() }
