package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// blob is content: small content is inside its message, large content in the tenant's object store under its SHA-256.
type blob struct {
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	Inline []byte `json:"inline,omitempty"`
}

// same reports whether two contents are the same; nil means no content.
func (b *blob) same(other *blob) bool {
	return b == nil && other == nil || b != nil && other != nil && b.SHA256 == other.SHA256
}

// transferTime bounds one transfer to or from the object store, so that a slow or stalled transfer does not occupy a
// slot.
const transferTime = 10 * time.Minute

// stallTime bounds NATS's silence in a transfer. A stream that loses its leader stops sending, and the client library
// waits until the deadline of the whole transfer.
const stallTime = 20 * time.Second

// errStalled means that a transfer stalled.
var errStalled = fmt.Errorf("the transfer came to a stop: nothing more came for %v", stallTime)

// watched cancels a transfer that stalls.
type watched struct {
	cancel  func()
	stalled atomic.Bool
	timer   *time.Timer
}

func watch(cancel func()) *watched {
	w := &watched{cancel: cancel}
	w.timer = time.AfterFunc(stallTime, func() {
		w.stalled.Store(true)
		w.cancel()
	})
	return w
}

// moves notes progress of the transfer.
func (w *watched) moves() { w.timer.Reset(stallTime) }

// end ends the watch, and returns the transfer's error.
func (w *watched) end(err error) error {
	w.timer.Stop()
	if err != nil && w.stalled.Load() && !errors.Is(err, io.EOF) {
		return errStalled
	}
	return err
}

// steady wraps the client library's own reader, and returns errStalled when its pipe times out.
type steady struct{ io.ReadCloser }

func (s steady) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) || n == 0 && err == nil && len(p) > 0 {
		err = errStalled
	}
	return n, err
}

// silent is a context for the client library's reader, which waits until the deadline for each piece.
type silent struct{ context.Context }

func (silent) Deadline() (time.Time, bool) { return time.Now().Add(stallTime), true }

// moving is content being sent: each read of it counts as progress.
type moving struct {
	io.Reader
	w *watched
}

func (m moving) Read(p []byte) (int, error) {
	m.w.moves()
	return m.Reader.Read(p)
}

// info returns an object's description in the store.
func (s tenantStore) info(ctx context.Context, name string) (*jetstream.ObjectInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, stallTime)
	defer cancel()
	return s.files.GetInfo(ctx, name)
}

// send stores an object. With ctx as the only limit, send would wait for a lost answer until the end of ctx.
func (s tenantStore) send(ctx context.Context, name string, content io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, transferTime)
	defer cancel()
	w := watch(cancel)
	_, err := s.files.Put(ctx, jetstream.ObjectMeta{Name: name}, moving{content, w})
	return w.end(err)
}

// fetch opens an object. Close on its reader stops the transfer.
func (s tenantStore) fetch(ctx context.Context, name string) (io.ReadCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, transferTime)
	w := watch(cancel)
	from, err := s.files.Get(silent{ctx}, name)
	if err = w.end(err); err != nil {
		cancel()
		return nil, err
	}
	return closing{steady{from}, cancel}, nil
}

type closing struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c closing) Close() error {
	c.cancel()
	return c.ReadCloser.Close()
}

var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// put stores content. It reads the content twice: the first time for its name.
func (s tenantStore) put(ctx context.Context, content io.ReadSeeker, inline bool) (b blob, err error) {
	h := sha256.New()
	if b.Size, err = io.Copy(h, content); err != nil {
		return b, err
	}
	b.SHA256 = hex.EncodeToString(h.Sum(nil))
	if _, err := content.Seek(0, io.SeekStart); err != nil {
		return b, err
	}
	if inline && b.Size <= maxInline {
		b.Inline, err = io.ReadAll(content)
		return b, err
	}
	// An existing object will do if it can't expire before the run is over.
	if info, err := s.info(ctx, b.SHA256); err == nil && int64(info.Size) == b.Size && time.Since(info.ModTime) < keep/4 {
		return b, nil
	}
	if err = s.send(ctx, b.SHA256, content); err != nil {
		return b, fmt.Errorf("store %d bytes in the fleet: %w", b.Size, err)
	}
	return b, nil
}

func (s tenantStore) putBytes(ctx context.Context, content []byte, inline bool) (blob, error) {
	return s.put(ctx, bytes.NewReader(content), inline)
}

// open opens content; most is its maximum size in bytes. The reader fails at its end if the checksum is wrong, so
// callers read to the end before they use the content.
func (s tenantStore) open(ctx context.Context, b blob, most int64) (io.ReadCloser, error) {
	if !digestForm.MatchString(b.SHA256) || b.Size < 0 || b.Size > most {
		return nil, fmt.Errorf("content %.64q of %d bytes: %w: at most %d are taken", b.SHA256, b.Size, errMalformed, most)
	}
	v := &verified{want: b.SHA256, left: b.Size, digest: sha256.New()}
	if b.Inline != nil || b.Size == 0 {
		v.from = io.NopCloser(bytes.NewReader(b.Inline))
		return v, nil
	}
	info, err := s.info(ctx, b.SHA256)
	if err == nil && (info.Opts != nil && info.Opts.Link != nil || int64(info.Size) != b.Size) {
		err = errMalformed // clients never store links
	}
	if err == nil {
		v.from, err = s.fetch(ctx, b.SHA256)
	}
	if err != nil {
		return nil, fmt.Errorf("read content %s from the fleet: %w", b.SHA256, err)
	}
	return v, nil
}

// read returns the whole content.
func (s tenantStore) read(ctx context.Context, b blob, most int64) ([]byte, error) {
	r, err := s.open(ctx, b, most)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// spooled returns content that is complete and verified. Content from the object store is in a nameless temporary file
// on the disk of dir.
func (s tenantStore) spooled(ctx context.Context, times Times, b blob, most int64, dir string) (io.ReadCloser, error) {
	if b.Inline != nil {
		content, err := s.read(ctx, b, most)
		return io.NopCloser(bytes.NewReader(content)), err
	}
	f, err := os.CreateTemp(dir, scratchPrefix)
	if err != nil {
		return nil, err
	}
	err = os.Remove(f.Name())
	if err == nil {
		err = times.patiently(ctx, func(ctx context.Context) error {
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return err
			}
			from, err := s.open(ctx, b, most)
			if err != nil {
				return err
			}
			defer from.Close()
			if err := f.Truncate(0); err != nil {
				return err
			}
			_, err = io.Copy(f, inTime{ctx, from})
			return err
		})
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// inTime reads content until ctx ends. Every loop over an archive reads through an inTime.
type inTime struct {
	ctx context.Context
	io.Reader
}

func (r inTime) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}

// joined reads several contents one after the other. Seek supports only the beginning.
type joined []io.ReadSeeker

func (j joined) Read(p []byte) (int, error) {
	for _, part := range j { // parts at their end return EOF again
		if n, err := part.Read(p); n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
	}
	return 0, io.EOF
}

func (j joined) Seek(int64, int) (int64, error) {
	for _, part := range j {
		if _, err := part.Seek(0, io.SeekStart); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// verified checks content against its name, the checksum.
type verified struct {
	from   io.ReadCloser
	want   string
	left   int64
	digest hash.Hash
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.from.Read(p)
	v.digest.Write(p[:n])
	if v.left -= int64(n); v.left < 0 {
		return 0, fmt.Errorf("content %s: %w: is longer than it says", v.want, errMalformed)
	}
	if errors.Is(err, io.EOF) && (v.left != 0 || hex.EncodeToString(v.digest.Sum(nil)) != v.want) {
		return n, fmt.Errorf("content %s: %w: is not what its name says", v.want, errMalformed)
	}
	return n, err
}

func (v *verified) Close() error { return v.from.Close() }
