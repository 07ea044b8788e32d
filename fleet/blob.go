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

// blob is content: in the message that it is part of if it is small, else in the tenant's object
// store, where its SHA-256 is its name.
type blob struct {
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	Inline []byte `json:"inline,omitempty"`
}

// same reports whether two contents, nil being none, are the same.
func (b *blob) same(other *blob) bool {
	return b == nil && other == nil || b != nil && other != nil && b.SHA256 == other.SHA256
}

// transferTime bounds how long one content goes to or comes from the object store: who lets it go
// slowly, or not at all, does not keep a slot.
const transferTime = 10 * time.Minute

// stallTime is how long NATS may be silent in a transfer. A stream whose leader goes sends no more, and the client
// library waits for as long as the whole transfer may take.
const stallTime = 20 * time.Second

// errStalled means that a transfer came to a stop.
var errStalled = fmt.Errorf("the transfer came to a stop: nothing more came for %v", stallTime)

// watched cancels what is under way when it comes to a stop.
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

// moves says that it continues.
func (w *watched) moves() { w.timer.Reset(stallTime) }

// end says that nothing is under way, and how it ended.
func (w *watched) end(err error) error {
	w.timer.Stop()
	if err != nil && w.stalled.Load() && !errors.Is(err, io.EOF) {
		return errStalled
	}
	return err
}

// steady is content that comes without a stop: the client library's own reader, whose pipe says so.
type steady struct{ io.ReadCloser }

func (s steady) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) || n == 0 && err == nil && len(p) > 0 {
		err = errStalled
	}
	return n, err
}

// silent is a context for that reader, which waits until the deadline for each piece.
type silent struct{ context.Context }

func (silent) Deadline() (time.Time, bool) { return time.Now().Add(stallTime), true }

// moving is content that is sent: each time that more of it is asked for, the transfer continues.
type moving struct {
	io.Reader
	w *watched
}

func (m moving) Read(p []byte) (int, error) {
	m.w.moves()
	return m.Reader.Read(p)
}

// info returns what the store says of an object.
func (s tenantStore) info(ctx context.Context, name string) (*jetstream.ObjectInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, stallTime)
	defer cancel()
	return s.files.GetInfo(ctx, name)
}

// send stores an object. In a transfer that is limited by ctx alone, a lost answer would be waited for until its end.
func (s tenantStore) send(ctx context.Context, name string, content io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, transferTime)
	defer cancel()
	w := watch(cancel)
	_, err := s.files.Put(ctx, jetstream.ObjectMeta{Name: name}, moving{content, w})
	return w.end(err)
}

// fetch gets an object. Its Close ends what is under way.
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

// put stores content, which is read twice: once for its name.
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
	// An object that is there is as good, if it does not go before the run can be over.
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

// open opens content of at most most bytes. Its reader fails at the end if it is not what its
// name says; whoever uses it reads to the end first.
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
		err = errMalformed // a link is nothing that a client puts there
	}
	if err == nil {
		v.from, err = s.fetch(ctx, b.SHA256)
	}
	if err != nil {
		return nil, fmt.Errorf("read content %s from the fleet: %w", b.SHA256, err)
	}
	return v, nil
}

// read reads content whole.
func (s tenantStore) read(ctx context.Context, b blob, most int64) ([]byte, error) {
	r, err := s.open(ctx, b, most)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// spooled is content of which all has come, and which is what its name says: in a file of its own in a folder, which
// has no name any more, unless it came with its message.
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

// inTime is content that is read until ctx ends. Every loop over an archive reads through one.
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

// joined is several contents one after the other. Seek leads to its beginning only.
type joined []io.ReadSeeker

func (j joined) Read(p []byte) (int, error) {
	for _, part := range j { // those at their ends say so again
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

// verified is content that is held to its name.
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
