package fleet

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/crypto/chacha20poly1305"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/machine"
)

// A paused machine moves between workers as a compressed tar of its folder, sealed with a key that workers share and no
// tenant has. QEMU loads it like its own memory, so whoever could write it could attack the worker.

// Limits of a sealed state.
const (
	maxSealedState = 1 << 30 // bytes, sealed
	maxStateFiles  = 16
	sealedPiece    = 64 << 10
	holePiece      = 64 << 10 // zeros of this size are left out of a file
)

// sessionKeySize is that of a key, in bytes.
const sessionKeySize = 32

// tenantKey derives a tenant's own key from the one for all tenants.
func tenantKey(key []byte, tenant string) ([]byte, error) {
	return hkdf.Key(sha256.New, key, nil, "unitask sessions of "+tenant, sessionKeySize)
}

// sealer seals pieces. Each piece has a number, and the last one is marked.
type sealer struct {
	aead  cipher.AEAD
	bound []byte // identity, so that another tenant's or session's state is not accepted
	nonce [chacha20poly1305.NonceSizeX]byte
	count uint64
}

func newSealer(key []byte, tenant, session string) (*sealer, error) {
	aead, err := chacha20poly1305.NewX(key)
	return &sealer{aead: aead, bound: []byte("unitask session " + tenant + "/" + session)}, err
}

// next returns the next piece's nonce: 15 random bytes, its number, and whether it is the last.
func (s *sealer) next(last bool) []byte {
	binary.BigEndian.PutUint64(s.nonce[15:23], s.count)
	s.count++
	s.nonce[23] = 0
	if last {
		s.nonce[23] = 1
	}
	return s.nonce[:]
}

// seal reads content and writes it sealed.
func (s *sealer) seal(to io.Writer, from io.Reader) error {
	_, _ = rand.Read(s.nonce[:15])
	if _, err := to.Write(s.nonce[:15]); err != nil {
		return err
	}
	in, piece := bufio.NewReaderSize(from, sealedPiece), make([]byte, sealedPiece)
	for {
		n, err := io.ReadFull(in, piece)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		_, end := in.Peek(1)
		if end != nil && !errors.Is(end, io.EOF) {
			return end
		}
		if _, err := to.Write(s.aead.Seal(nil, s.next(end != nil), piece[:n], s.bound)); err != nil || end != nil {
			return err
		}
	}
}

// unseal writes the content, each piece only once it is authenticated.
func (s *sealer) unseal(to io.Writer, from io.Reader) error {
	in, piece := bufio.NewReaderSize(from, 2*sealedPiece), make([]byte, sealedPiece+chacha20poly1305.Overhead)
	if _, err := io.ReadFull(in, s.nonce[:15]); err != nil {
		return fmt.Errorf("the paused session: %w: %w", errMalformed, err)
	}
	for {
		n, err := io.ReadFull(in, piece)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		_, end := in.Peek(1)
		if end != nil && !errors.Is(end, io.EOF) {
			return end
		}
		plain, err := s.aead.Open(nil, s.next(end != nil), piece[:n], s.bound)
		if err != nil {
			return fmt.Errorf("the paused session: %w: it was not sealed by a worker of this fleet's key for this tenant",
				errMalformed)
		}
		if _, err := to.Write(plain); err != nil || end != nil {
			return err
		}
	}
}

// putState stores the paused machine of a session in a home.
func (s tenantStore) putState(ctx context.Context, key []byte, session, home, scratch string) (b blob, err error) {
	seal, err := newSealer(key, s.tenant, session)
	if err != nil {
		return b, err
	}
	f, err := os.CreateTemp(scratch, scratchPrefix)
	if err != nil {
		return b, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return b, err
	}
	from, to := io.Pipe()
	go func() { to.CloseWithError(packState(to, home, session)) }()
	err = seal.seal(&bounded.Writer{To: f, Left: maxSealedState,
		Err: fmt.Errorf("the session's machine has more than %d bytes, compressed: a fleet keeps no more",
			int64(maxSealedState))}, inTime{ctx, from})
	from.CloseWithError(io.ErrClosedPipe)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return b, err
	}
	return s.put(ctx, f, false)
}

// sessionFolder returns the folder of a session's paused machine in a home.
func sessionFolder(of, session string) string { return filepath.Join(home.Dir(of).Sessions(), session) }

func packState(to io.Writer, home, session string) error {
	folder := sessionFolder(home, session)
	z, err := zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	w := tar.NewWriter(z)
	entries, err := os.ReadDir(folder)
	for _, e := range entries {
		switch {
		case err != nil || !e.Type().IsRegular():
		case e.Name() == machine.PauseFile:
			err = packPause(w, home, filepath.Join(folder, e.Name()))
		default:
			err = addFile(func(name string, _ os.FileMode, size int64, content io.Reader) error {
				if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, Typeflag: tar.TypeReg,
					Format: tar.FormatPAX}); err != nil {
					return err
				}
				_, err := io.CopyN(w, content, size)
				return err
			}, e.Name(), 0o600, func() (*os.File, error) { return os.Open(filepath.Join(folder, e.Name())) })
		}
	}
	return errors.Join(err, w.Close(), z.Close())
}

// packPause packs a pause's description in a form for other homes.
func packPause(w *tar.Writer, home, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, machine.MaxPauseText))
	if err == nil {
		text, err = unitask.OpenPaused(home, text)
	}
	if err == nil {
		err = w.WriteHeader(&tar.Header{Name: machine.PauseFile, Mode: 0o600, Size: int64(len(text)), Typeflag: tar.TypeReg,
			Format: tar.FormatPAX})
	}
	if err == nil {
		_, err = w.Write(text)
	}
	return err
}

// getState creates the folder of a session's paused machine in a home, completely or not at all.
func (s tenantStore) getState(ctx context.Context, times Times, key []byte, session string, b blob, memoryMB int, home,
	scratch string) error {
	folder := sessionFolder(home, session)
	seal, err := newSealer(key, s.tenant, session)
	if err != nil {
		return err
	}
	sealed, err := s.spooled(ctx, times, b, maxSealedState, scratch)
	if err != nil {
		return err
	}
	defer sealed.Close()
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return err
	}
	// machine.RemoveLeftovers removes this folder if this process is killed.
	made, err := os.MkdirTemp(filepath.Dir(folder), "."+filepath.Base(folder)+".pausing-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(made)
	from, to := io.Pipe()
	go func() { to.CloseWithError(seal.unseal(to, sealed)) }()
	err = unpackState(inTime{ctx, from}, home, made, int64(memoryMB)<<20)
	from.CloseWithError(io.ErrClosedPipe)
	if err != nil {
		return err
	}
	return os.Rename(made, folder)
}

func unpackState(from io.Reader, home, dir string, most int64) error {
	z, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(64<<20))
	if err != nil {
		return err
	}
	defer z.Close()
	r, room := tar.NewReader(z), 2*most+64<<20 // the memory and the devices' state
	for n := 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, from) // where the last piece must be marked as such
			return err
		}
		if err != nil {
			return err
		}
		if room -= h.Size; n == maxStateFiles || h.Typeflag != tar.TypeReg || h.Name != filepath.Base(h.Name) ||
			h.Name[0] == '.' || h.Size < 0 || room < 0 {
			return fmt.Errorf("the paused session: %w: file %.80q of %d bytes", errMalformed, h.Name, h.Size)
		}
		if h.Name == machine.PauseFile {
			err = unpackPause(home, filepath.Join(dir, h.Name), r)
		} else {
			err = unpackSparse(filepath.Join(dir, h.Name), h.Size, r)
		}
		if err != nil {
			return err
		}
	}
}

// unpackPause writes a pause's description in the form of this home.
func unpackPause(home, name string, from io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(from, machine.MaxPauseText+1))
	if err == nil && len(text) > machine.MaxPauseText {
		err = fmt.Errorf("the paused session: %w: its description has more than %d bytes", errMalformed, machine.MaxPauseText)
	}
	if err == nil {
		text, err = unitask.SealPaused(home, text)
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// unpackSparse writes a file, with holes in place of zeros.
func unpackSparse(name string, size int64, from io.Reader) error {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	piece, zero := make([]byte, holePiece), make([]byte, holePiece)
	for at := int64(0); at < size; {
		n, err := io.ReadFull(from, piece[:min(holePiece, size-at)])
		if err != nil {
			return err
		}
		if !bytes.Equal(piece[:n], zero[:n]) {
			if _, err := f.WriteAt(piece[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// keyName returns a name for a key that reveals nothing about it.
func keyName(key []byte) string {
	sum := sha256.Sum256(append([]byte("unitask session key "), key...))
	return hex.EncodeToString(sum[:8])
}
