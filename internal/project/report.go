package project

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/unitask/unitask/internal/hostfiles"
)

// MaxFile bounds a file whose text a report has, in bytes.
const MaxFile = 64 << 20

// maxReport bounds a report's list, in bytes.
const maxReport = 256 << 20

// ErrMoving means that files changed while they were read.
var ErrMoving = errors.New("it was changed while it was read: try again")

// Report is what a session changed. The texts of the changes that are Sent follow it, in their order.
type Report struct {
	Session string   `json:"session"`
	Host    string   `json:"host"`
	Branch  string   `json:"branch,omitempty"`
	Changes []Change `json:"changes"`
	Ignored int      `json:"ignored,omitempty"` // new files that .gitignore files name

	texts   io.ReaderAt
	offsets []int64
}

// Send marks the changes whose texts follow, and returns their files.
func (r *Report) Send() (names []string) {
	total := int64(0)
	for i := range r.Changes {
		one := &r.Changes[i]
		if after := one.After; after != nil && after.Kind == IsFile && after.Size <= MaxFile &&
			(one.Before == nil || one.Before.Digest != after.Digest || one.From != "") &&
			total+after.Size <= hostfiles.MaxFolderBytes {
			one.Sent, total = true, total+after.Size
			names = append(names, one.Path)
		}
	}
	return names
}

// Bytes returns the size of the texts.
func (r *Report) Bytes() (total int64) {
	for _, one := range r.Changes {
		if one.Sent {
			total += one.After.Size
		}
	}
	return total
}

// Write writes a report and its texts. The error is ErrMoving if they are not those that the digests are of.
func (r *Report) Write(w io.Writer, texts io.Reader) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := w.Write(append(text, '\n')); err != nil {
		return err
	}
	_, err = r.each(texts, w)
	return err
}

// Check reads the texts and compares them with the digests.
func (r *Report) Check(texts io.Reader) error {
	_, err := r.each(texts, io.Discard)
	return err
}

func (r *Report) each(texts io.Reader, w io.Writer) (offsets []int64, err error) {
	at := int64(0)
	offsets = make([]int64, len(r.Changes))
	for i, one := range r.Changes {
		if !one.Sent {
			continue
		}
		sum := sha256.New()
		n, err := io.CopyN(io.MultiWriter(w, sum), texts, one.After.Size)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if n != one.After.Size || DigestPrefix+hex.EncodeToString(sum.Sum(nil)) != one.After.Digest {
			return nil, fmt.Errorf("%s: %w", one.Path, ErrMoving)
		}
		offsets[i] = at
		at += n
	}
	if n, err := io.Copy(io.Discard, texts); n > 0 || err != nil {
		return nil, errors.Join(ErrMoving, err)
	}
	return offsets, nil
}

// Spool is a file for a report's texts.
type Spool interface {
	io.Writer
	io.ReaderAt
}

// Read reads a report, and keeps its texts in a file.
func Read(from io.Reader, texts Spool) (*Report, error) {
	in := bufio.NewReader(from)
	r := &Report{}
	line, err := bufio.NewReader(io.LimitReader(&lineReader{in: in}, maxReport)).ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("read what the session changed: %w", err)
	}
	if err := json.Unmarshal(line, r); err != nil {
		return nil, err
	}
	for _, one := range r.Changes {
		if one.After == nil && (one.Before == nil || one.Sent) {
			return nil, errLies
		}
	}
	r.offsets, err = r.each(in, texts)
	r.texts = texts
	return r, err
}

// lineReader reads up to the end of a line, and not a byte more.
type lineReader struct {
	in   *bufio.Reader
	done bool
}

func (l *lineReader) Read(p []byte) (int, error) {
	if l.done || len(p) == 0 {
		return 0, io.EOF
	}
	if _, err := l.in.Peek(1); err != nil {
		return 0, err
	}
	part, _ := l.in.Peek(min(l.in.Buffered(), len(p)))
	n := len(part)
	for i, b := range part {
		if b == '\n' {
			n, l.done = i+1, true
			break
		}
	}
	copy(p, part[:n])
	_, err := l.in.Discard(n)
	return n, err
}

// Text returns the new text of a change, by its number; nil if it was not sent.
func (r *Report) Text(i int) *io.SectionReader {
	if one := r.Changes[i]; one.Sent {
		return io.NewSectionReader(r.texts, r.offsets[i], one.After.Size)
	}
	return nil
}
