// Package oci reads container images, from registries and from files, and writes their files as a disk that a linux
// kernel mounts. It starts no programs, stores nothing, and trusts only an image's digest.
package oci

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Image is an image that can be written as a disk.
type Image struct {
	Names  []string // the image's own references
	Digest string   // sha256:HEX of its manifest, or of its configuration if it has no manifest
	Arch   string   // in Go's naming
	Size   int64    // of its layers, compressed; 0 if unknown
	Config Config

	layers        []layer
	passwd, group []byte // set by Write
	close         func() error
	fetched       atomic.Int64
}

// Fetched returns how many bytes of the layers have been read from a registry. It may be called from any goroutine.
func (im *Image) Fetched() int64 { return im.fetched.Load() }

// metered counts what is read of a layer.
type metered struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (m metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.bytes.Add(int64(n))
	return n, err
}

// Config tells how to start the image's program.
type Config struct {
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"`
	Dir        string   `json:"dir,omitempty"`
	User       string   `json:"user,omitempty"`
	Volumes    []string `json:"volumes,omitempty"` // folders that must exist, whether a layer has them or not
}

// Close closes the image's source.
func (im *Image) Close() error {
	if im.close == nil {
		return nil
	}
	return im.close()
}

// layer is an archive of files.
type layer struct {
	diffID v1.Hash // of the unpacked archive
	digest v1.Hash // of the packed archive; zero if unknown
	open   func() (io.ReadCloser, error)
	walk   func(adding) error // replaces the other fields: lists the files of a disk (Derive)
}

func (l layer) name() string {
	switch {
	case l.walk != nil:
		return "the image that it begins with"
	case l.digest.Hex != "":
		return l.digest.String()
	}
	return l.diffID.String()
}

// maxWindow bounds the memory that a zstd layer may demand.
const maxWindow = 128 << 20

// read returns the unpacked layer, which may have at most limit bytes packed.
func (l layer) read(limit int64) (*unpacked, error) {
	r, err := l.open()
	if err != nil {
		return nil, err
	}
	packed := &packed{r: r, want: l.digest, sum: sha256.New(), left: limit}
	b := bufio.NewReaderSize(packed, 1<<18)
	magic, _ := b.Peek(4)
	switch {
	case bytes.HasPrefix(magic, []byte("\x1f\x8b")):
		z, err := gzip.NewReader(b)
		if err != nil {
			r.Close()
			return nil, err
		}
		packed.Reader = z
	case bytes.HasPrefix(magic, []byte("\x28\xb5\x2f\xfd")):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow),
			zstd.WithDecoderLowmem(true))
		if err != nil {
			r.Close()
			return nil, err
		}
		packed.Reader, packed.free = z, z.Close
	default:
		packed.Reader = b
	}
	packed.rest = b
	return &unpacked{packed}, nil
}

// packed reads a layer as stored, and counts and hashes it.
type packed struct {
	io.Reader // unpacked
	r         io.ReadCloser
	rest      io.Reader
	free      func()
	want      v1.Hash
	sum       hash.Hash
	left      int64
}

type unpacked struct{ p *packed }

func (u *unpacked) Read(b []byte) (int, error) { return u.p.Reader.Read(b) }

func (p *packed) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if p.left -= int64(n); p.left < 0 {
		return 0, errors.New("it is larger than the whole image may be")
	}
	p.sum.Write(b[:n])
	return n, err
}

// finish reads the rest of the packed layer, and returns an error unless its digest is the expected one.
func (u *unpacked) finish() error {
	p := u.p
	if p.want.Hex == "" {
		return nil
	}
	if _, err := io.Copy(io.Discard, p.rest); err != nil {
		return err
	}
	if got := hex.EncodeToString(p.sum.Sum(nil)); got != p.want.Hex {
		return fmt.Errorf("it has digest sha256:%s, and the manifest says %s", got, p.want)
	}
	return nil
}

// Close stops reading: the rest of a layer that is not needed is not fetched.
func (u *unpacked) Close() error {
	if u.p.free != nil {
		u.p.free()
	}
	return u.p.r.Close()
}

// configure applies the image's configuration.
func (im *Image) configure(text []byte) error {
	c, err := v1.ParseConfigFile(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("read the image's configuration: %w", err)
	}
	if c.OS != "" && c.OS != "linux" {
		return fmt.Errorf("the image is for %.40s, and the machine runs linux", c.OS)
	}
	im.Arch = c.Architecture
	im.Config = Config{Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd, Env: c.Config.Env, Dir: c.Config.WorkingDir,
		User:    c.Config.User,
		Volumes: slices.Sorted(maps.Keys(c.Config.Volumes))}
	if err := im.Config.check(); err != nil {
		return err
	}
	if len(c.RootFS.DiffIDs) != len(im.layers) {
		return fmt.Errorf("the image has %d layers, and its configuration speaks of %d", len(im.layers),
			len(c.RootFS.DiffIDs))
	}
	for i, id := range c.RootFS.DiffIDs {
		if id.Algorithm != "sha256" {
			return fmt.Errorf("a layer's digest is of the kind %.20q: only sha256 is read", id.Algorithm)
		}
		im.layers[i].diffID = id
	}
	return nil
}

// maxWords bounds the bytes of a configuration's command and variables. A machine's start accepts four times as many,
// including those of the run.
const maxWords = 256 << 10

// maxVolumes bounds an image's volumes, each of which is a folder to make.
const maxVolumes = 1000

// check returns an error if the configuration can't start a program.
func (c Config) check() error {
	if len(c.Volumes) > maxVolumes {
		return fmt.Errorf("the image's configuration has %d volumes; %d is the most", len(c.Volumes), maxVolumes)
	}
	size := 0
	for _, w := range slices.Concat(c.Entrypoint, c.Cmd, c.Env, c.Volumes, []string{c.User}) {
		if strings.ContainsRune(w, 0) {
			return fmt.Errorf("the image's configuration has a NUL byte in %.80q", w)
		}
		size += len(w) + 1
	}
	if size > maxWords {
		return fmt.Errorf("the image's command and variables have %d bytes; %d is the most", size, maxWords)
	}
	return nil
}

// Owner identifies the user that the image's program runs as.
type Owner struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	Home   string   `json:"home"`
}

// MaxID is the greatest user or group id: the next number means none.
const MaxID = 1<<32 - 2

// Owner looks up the image's user in its own files: NAME, NAME:GROUP, or numbers. Write must have been called.
func (im *Image) Owner() (Owner, error) {
	user, group, _ := strings.Cut(im.Config.User, ":")
	hasGroup := group != ""
	o := Owner{Home: "/"}
	if user == "" {
		user = "0"
	}
	id, err := strconv.ParseUint(user, 10, 32)
	numeric := err == nil && id <= MaxID
	o.UID = uint32(id)
	found := false
	var name string
	for f := range records(im.passwd, 7) {
		uid, e1 := strconv.ParseUint(f[2], 10, 32)
		gid, e2 := strconv.ParseUint(f[3], 10, 32)
		if e1 != nil || e2 != nil || uid > MaxID || gid > MaxID || !(f[0] == user || numeric && uid == id) {
			continue
		}
		name, o.UID, found = f[0], uint32(uid), true
		o.GID = uint32(gid)
		if strings.HasPrefix(f[5], "/") {
			o.Home = f[5]
		}
		break
	}
	if !found && !numeric {
		return o, fmt.Errorf("the image's user is %.80q, whom its /etc/passwd does not have", user)
	}
	if o.UID == 0 && o.Home == "/" {
		o.Home = "/root"
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	groupID := err == nil && gid <= MaxID
	foundGroup := !hasGroup || groupID
	if hasGroup && groupID {
		o.GID = uint32(gid)
	}
	for f := range records(im.group, 4) {
		id, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil || id > MaxID {
			continue
		}
		if hasGroup && !groupID && f[0] == group {
			o.GID, foundGroup = uint32(id), true
		}
		for member := range strings.SplitSeq(f[3], ",") {
			if !hasGroup && name != "" && member == name && uint32(id) != o.GID && len(o.Groups) < maxGroups {
				o.Groups = append(o.Groups, uint32(id))
			}
		}
	}
	if !foundGroup {
		return o, fmt.Errorf("the image's group is %.80q, which its /etc/group does not have", group)
	}
	return o, nil
}

// maxGroups bounds the groups of a user.
const maxGroups = 64

// records returns the lines that have exactly that many fields, of a file like /etc/passwd.
func records(text []byte, fields int) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		for line := range strings.Lines(string(text)) {
			if f := strings.Split(strings.TrimSuffix(line, "\n"), ":"); len(f) == fields && !yield(f) {
				return
			}
		}
	}
}
