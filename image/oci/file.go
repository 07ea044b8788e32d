package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Bounds on the description of an image.
const (
	maxText    = 4 << 20 // of a manifest or a configuration
	maxMembers = 100_000 // of an archive that holds an image
	maxNested  = 4       // indexes that lead to indexes
	maxListed  = 1000    // images and indexes that all of a layout's indexes name together
)

// box gives access to an image's parts by name: a folder, or an archive.
type box interface {
	open(name string) (io.ReadCloser, int64, error)
	Close() error
}

// folderBox is a box in a folder; links can't lead out of it.
type folderBox struct{ *os.Root }

func (b folderBox) open(name string) (io.ReadCloser, int64, error) {
	st, err := b.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	if !st.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is no file", name)
	}
	f, err := b.Open(name)
	return f, st.Size(), err
}

// archiveBox is a box in an uncompressed archive: its members are read in place.
type archiveBox struct {
	f       *os.File
	members map[string]member
}

type member struct{ at, size int64 }

func (b archiveBox) Close() error { return b.f.Close() }

func (b archiveBox) open(name string) (io.ReadCloser, int64, error) {
	m, ok := b.members[path.Clean(name)]
	if !ok {
		return nil, 0, fmt.Errorf("%.100q: %w", name, os.ErrNotExist)
	}
	return io.NopCloser(io.NewSectionReader(b.f, m.at, m.size)), m.size, nil
}

func openArchive(ctx context.Context, f *os.File) (archiveBox, error) {
	b := archiveBox{f, map[string]member{}}
	var magic [4]byte
	if _, err := f.ReadAt(magic[:], 0); err == nil &&
		(bytes.HasPrefix(magic[:], []byte("\x1f\x8b")) || string(magic[:]) == "\x28\xb5\x2f\xfd") {
		return b, errors.New("it is packed: unpack it first, with gunzip or zstd -d")
	}
	st, err := f.Stat()
	if err != nil {
		return b, err
	}
	r := tar.NewReader(f)
	links := map[string]string{}
	for n := 0; ; n++ {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if ctx.Err() != nil {
			return b, context.Cause(ctx)
		}
		if err != nil {
			return b, fmt.Errorf("it is no archive of an image: %w", err)
		}
		if n >= maxMembers {
			return b, fmt.Errorf("it has more than %d members", maxMembers)
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "/"))
		switch h.Typeflag {
		case tar.TypeReg:
			at, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return b, err
			}
			if h.Size > st.Size()-at {
				return b, fmt.Errorf("it ends before its member %.100q does", h.Name)
			}
			b.members[name] = member{at, h.Size}
		case tar.TypeSymlink: // older versions of docker save store each layer once
			links[name] = path.Join(path.Dir(name), h.Linkname)
		}
	}
	for name, target := range links {
		if m, ok := b.members[target]; ok {
			b.members[name] = m
		}
	}
	return b, nil
}

// Open reads an image from a file or a folder: the output of docker save or podman save, or an OCI layout. Of several
// architectures it opens the one asked for.
func Open(ctx context.Context, file, arch string) (*Image, error) {
	im, err := open(ctx, file, arch)
	if err != nil {
		return nil, fmt.Errorf("read the image in %s: %w", file, err)
	}
	return im, nil
}

func open(ctx context.Context, file, arch string) (*Image, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	var b box
	switch {
	case !st.IsDir() && !st.Mode().IsRegular():
		return nil, errors.New("it is neither a file nor a folder: save the image to a file first")
	case st.IsDir():
		root, err := os.OpenRoot(file)
		if err != nil {
			return nil, err
		}
		b = folderBox{root}
	default:
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		if b, err = openArchive(ctx, f); err != nil {
			f.Close()
			return nil, err
		}
	}
	im, err := read(ctx, b, arch)
	if err != nil {
		b.Close()
		return nil, err
	}
	im.close = b.Close
	return im, nil
}

func read(ctx context.Context, b box, arch string) (*Image, error) {
	text, err := readText(b, "index.json")
	if err == nil {
		return readLayout(ctx, b, text, arch)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	text, err = readText(b, "manifest.json")
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("there is neither index.json (an OCI layout) nor manifest.json (docker save) in it")
	}
	if err != nil {
		return nil, err
	}
	return readSaved(b, text, arch)
}

func readText(b box, name string) ([]byte, error) {
	r, size, err := b.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > maxText {
		return nil, fmt.Errorf("%.100q has %d bytes; %d is the most", name, size, maxText)
	}
	return io.ReadAll(io.LimitReader(r, maxText))
}

// blobPath returns the path in a layout of the content with a digest.
func blobPath(h v1.Hash) (string, error) {
	if h.Algorithm != "sha256" || len(h.Hex) != 2*sha256.Size {
		return "", fmt.Errorf("a digest like %.80q: only sha256 is read", h)
	}
	return path.Join("blobs", "sha256", h.Hex), nil
}

func readBlob(b box, h v1.Hash) ([]byte, error) {
	name, err := blobPath(h)
	if err != nil {
		return nil, err
	}
	text, err := readText(b, name)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != h.Hex {
		return nil, fmt.Errorf("%s has digest sha256:%x", name, sum)
	}
	return text, nil
}

func matches(p *v1.Platform, arch string) bool {
	return p == nil || p.Architecture == "" || (p.OS == "linux" || p.OS == "") && p.Architecture == arch
}

// search finds the descriptors of images for an architecture, following indexes.
type search struct {
	ctx    context.Context
	b      box
	arch   string
	found  []v1.Descriptor
	others []string // platforms of other images
	listed int      // by all indexes so far; indexes may name each other many times, so the number can explode
}

func (s *search) index(text []byte, depth int, annotations map[string]string) error {
	index, err := v1.ParseIndexManifest(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("read an index: %w", err)
	}
	for _, d := range index.Manifests {
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		if s.listed++; s.listed > maxListed {
			return fmt.Errorf("its indexes name more than %d images", maxListed)
		}
		if d.Annotations == nil {
			d.Annotations = annotations
		}
		switch {
		case d.MediaType.IsIndex():
			if depth >= maxNested {
				return errors.New("indexes that lead to indexes, again and again")
			}
			nested, err := readBlob(s.b, d.Digest)
			if err != nil {
				return err
			}
			if err := s.index(nested, depth+1, d.Annotations); err != nil {
				return err
			}
		case !d.MediaType.IsImage():
		case matches(d.Platform, s.arch):
			s.found = append(s.found, d)
		default:
			s.others = append(s.others, d.Platform.String())
		}
	}
	return nil
}

func readLayout(ctx context.Context, b box, text []byte, arch string) (*Image, error) {
	s := search{ctx: ctx, b: b, arch: arch}
	if err := s.index(text, 0, nil); err != nil {
		return nil, err
	}
	list, others := s.found, s.others
	var digests []string
	seen := map[v1.Hash]bool{}
	for _, d := range list {
		if !seen[d.Digest] {
			digests = append(digests, d.Digest.String())
		}
		seen[d.Digest] = true
	}
	switch {
	case len(list) == 0 && len(others) > 0:
		return nil, fmt.Errorf("it has no image for linux/%s, but for %.200s", arch, strings.Join(others, ", "))
	case len(list) == 0:
		return nil, errors.New("it has no image")
	case len(seen) > 1:
		return nil, fmt.Errorf("it has %d images (%.300s): save one alone", len(seen), strings.Join(digests, ", "))
	}
	manifestText, err := readBlob(b, list[0].Digest)
	if err != nil {
		return nil, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(manifestText))
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	im := &Image{Digest: list[0].Digest.String()}
	for _, d := range list {
		for _, key := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
			if name := d.Annotations[key]; strings.ContainsAny(name, ":/") { // else it is only a tag
				im.Names = append(im.Names, name)
				break
			}
		}
	}
	for _, d := range m.Layers {
		if err := im.addBlob(b, d); err != nil {
			return nil, err
		}
	}
	config, err := readBlob(b, m.Config.Digest)
	if err != nil {
		return nil, err
	}
	return im, im.configure(config)
}

// addBlob adds a layer of a layout.
func (im *Image) addBlob(b box, d v1.Descriptor) error {
	if err := layerKind(d.MediaType); err != nil {
		return err
	}
	name, err := blobPath(d.Digest)
	if err != nil {
		return err
	}
	im.Size += d.Size
	im.layers = append(im.layers, layer{digest: d.Digest, open: func() (io.ReadCloser, error) {
		r, _, err := b.open(name)
		return r, err
	}})
	return nil
}

func layerKind(m types.MediaType) error {
	if !m.IsLayer() {
		return fmt.Errorf("a layer is of the kind %.100q: it is no container image", m)
	}
	if !m.IsDistributable() {
		return fmt.Errorf("a layer (%.100q) may not be distributed, and is not in the image", m)
	}
	return nil
}

// readSaved reads the output of docker save.
func readSaved(b box, text []byte, arch string) (*Image, error) {
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read manifest.json: %w", err)
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("it has %d images: save one alone", len(list))
	}
	config, err := readText(b, list[0].Config)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(config)
	im := &Image{Digest: "sha256:" + hex.EncodeToString(sum[:]), Names: list[0].RepoTags}
	for _, name := range list[0].Layers {
		r, size, err := b.open(name)
		if err != nil {
			return nil, err
		}
		r.Close()
		im.Size += size
		im.layers = append(im.layers, layer{open: func() (io.ReadCloser, error) {
			r, _, err := b.open(name)
			return r, err
		}})
	}
	if err := im.configure(config); err != nil {
		return nil, err
	}
	if im.Arch != "" && im.Arch != arch {
		return nil, fmt.Errorf("it is for linux/%.40s and not for linux/%s; --arch takes another one", im.Arch, arch)
	}
	return im, nil
}
