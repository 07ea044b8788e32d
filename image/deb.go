package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// maxWindow bounds the memory that a zstd stream may demand. The kernel's files are packed with the largest window that
// the command line tool uses without --long=31.
const maxWindow = 128 << 20

// decompressors lists the compressions of Debian's packages, kernels and kernel modules, with the first bytes of a
// stream of each.
var decompressors = []struct {
	suffix, magic string
	open          func(io.Reader) (io.ReadCloser, error)
}{
	{".xz", "\xfd7zXZ\x00", func(r io.Reader) (io.ReadCloser, error) {
		z, err := xz.NewReader(r)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(z), nil
	}},
	{".zst", "\x28\xb5\x2f\xfd", func(r io.Reader) (io.ReadCloser, error) {
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}},
	{".gz", "\x1f\x8b", func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }},
}

// decompress reads a stream in any of these compressions, or an uncompressed stream.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 1<<16)
	for _, d := range decompressors {
		if head, _ := b.Peek(len(d.magic)); string(head) == d.magic {
			return d.open(b)
		}
	}
	return io.NopCloser(b), nil
}

// A package is an ar archive (deb(5), ar(5)) of debian-binary, control.tar and data.tar, in this order.
const (
	arMagic     = "!<arch>\n"
	arHeader    = 60 // bytes before each member
	arEnd       = "`\n"
	maxArMember = 1 << 30 // far above any package in use
	maxMembers  = 16      // packages have three, and at most some signatures
)

// unpackDeb writes the wanted files of a package below dir.
func unpackDeb(file, dir string, want selector) error {
	return unpackDebOf(file, dir, want, new(int64(maxArchiveBytes)))
}

// unpackDebOf is like unpackDeb for one of several packages, whose files together may have *left more bytes.
func unpackDebOf(file, dir string, want selector, left *int64) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := debMember(f, "data.tar")
	if err == nil {
		defer data.Close()
		err = unpackOf(data, dir, want, left)
	}
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(file), err)
	}
	return nil
}

// debMember returns a package's files (data.tar) or its description (control.tar) as a tar stream.
func debMember(r io.Reader, member string) (io.ReadCloser, error) {
	var magic [len(arMagic)]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil || string(magic[:]) != arMagic {
		return nil, errors.New("not a Debian package: it is no ar archive")
	}
	for range maxMembers {
		var h [arHeader]byte
		if _, err := io.ReadFull(r, h[:]); err != nil {
			return nil, fmt.Errorf("the package ends before its files: %w", err)
		}
		size, err := strconv.ParseInt(strings.TrimSpace(string(h[48:58])), 10, 64)
		if err != nil || size < 0 || size > maxArMember || !bytes.HasSuffix(h[:], []byte(arEnd)) {
			return nil, errors.New("not a Debian package: malformed ar header")
		}
		if name := strings.TrimRight(string(h[:16]), " /"); strings.HasPrefix(name, member) {
			return decompress(io.LimitReader(r, size))
		}
		if _, err := io.CopyN(io.Discard, r, size+size%2); err != nil {
			return nil, fmt.Errorf("the package ends before its files: %w", err)
		}
	}
	return nil, fmt.Errorf("not a Debian package: no %s", member)
}
