// Package tail keeps the end of a stream: a reason when its writer has ended, or what a reader has not seen.
package tail

import (
	"slices"
	"sync"
)

// Buffer keeps the last Size bytes that are written to it. Its methods may be called at the same time.
type Buffer struct {
	Size int

	mu   sync.Mutex
	text []byte // up to twice as much, so that bytes move rarely
	all  int64  // bytes that were written
}

// Write never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all += int64(len(p))
	b.text = append(b.text, p[max(0, len(p)-b.Size):]...)
	if len(b.text) > 2*b.Size {
		b.text = append(b.text[:0], b.end()...)
	}
	return len(p), nil
}

func (b *Buffer) end() []byte { return b.text[max(0, len(b.text)-b.Size):] }

// String returns the kept bytes.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.end())
}

// Since returns the kept bytes after a position. It also returns how many bytes after the position are not kept, and
// the position of the end. A position behind the end counts as the end.
func (b *Buffer) Since(after int64) (text []byte, lost, end int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := b.end()
	from := b.all - int64(len(kept))
	after = max(0, min(after, b.all))
	return slices.Clone(kept[max(0, after-from):]), max(0, from-after), b.all
}
