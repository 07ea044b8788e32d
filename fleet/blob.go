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

// transferTime bounds how long one content goes to or comes from the object store: who lets it go
// slowly, or not at all, does not keep a slot.
const transferTime = 10 * time.Minute

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
	ctx, cancel := context.WithTimeout(ctx, transferTime)
	defer cancel()
	// An object that is there is as good, if it does not go before the run can be over.
	if info, err := s.files.GetInfo(ctx, b.SHA256); err == nil && int64(info.Size) == b.Size && time.Since(info.ModTime) < keep/4 {
		return b, nil
	}
	if _, err = s.files.Put(ctx, jetstream.ObjectMeta{Name: b.SHA256}, content); err != nil {
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
	ctx, cancel := context.WithTimeout(ctx, transferTime)
	info, err := s.files.GetInfo(ctx, b.SHA256)
	if err == nil && (info.Opts != nil && info.Opts.Link != nil || int64(info.Size) != b.Size) {
		err = errMalformed // a link is nothing that a client puts there
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("read content %s from the fleet: %w", b.SHA256, err)
	}
	from, err := s.files.Get(ctx, b.SHA256)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("read content %s from the fleet: %w", b.SHA256, err)
	}
	v.from, v.cancel = from, cancel
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
			_, err = io.Copy(f, from)
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

// verified is content that is held to its name.
type verified struct {
	from   io.ReadCloser
	want   string
	left   int64
	digest hash.Hash
	cancel context.CancelFunc // nil is none
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

func (v *verified) Close() error {
	if v.cancel != nil {
		defer v.cancel()
	}
	return v.from.Close()
}
