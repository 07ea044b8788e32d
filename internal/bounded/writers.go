package bounded

import "io"

// Head passes on the first Left bytes and drops the rest. It never fails.
type Head struct {
	To   io.Writer
	Left int64
	More string // is written after the first Left bytes
}

func (h *Head) Write(p []byte) (int, error) {
	if keep := p[:min(int64(len(p)), h.Left)]; len(keep) > 0 {
		h.Left -= int64(len(keep))
		_, _ = h.To.Write(keep)
		if h.Left == 0 {
			_, _ = io.WriteString(h.To, h.More)
		}
	}
	return len(p), nil
}

// Writer passes on the first Left bytes, and fails with Err if more come.
type Writer struct {
	To   io.Writer
	Left int64
	Err  error
}

func (w *Writer) Write(p []byte) (int, error) {
	keep := p[:min(int64(len(p)), w.Left)]
	n, err := w.To.Write(keep)
	w.Left -= int64(n)
	if err == nil && len(keep) < len(p) {
		err = w.Err
	}
	return n, err
}

// Reader fails with Err after Left bytes.
type Reader struct {
	From io.Reader
	Left int64
	Err  error
}

func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.From.Read(p)
	if r.Left -= int64(n); r.Left < 0 {
		return n, r.Err
	}
	return n, err
}
