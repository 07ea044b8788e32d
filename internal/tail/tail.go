// Package tail keeps the end of a stream, to give a reason when its writer has ended.
package tail

import "sync"

// Buffer keeps the last Size bytes that are written to it. Its methods may be called at the same time.
type Buffer struct {
	Size int

	mu   sync.Mutex
	text []byte // up to twice as much, so that bytes move rarely
}

// Write never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
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
