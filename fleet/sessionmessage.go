package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/unitask/unitask"
)

// envelope is a call or an answer as it is sent. What of it may be as large as a file is apart, so that its reader
// knows what it takes before anything is decoded.
type envelope struct {
	Text  json.RawMessage `json:"text,omitempty"`
	Blob  *blob           `json:"blob,omitempty"` // in place of Text, where that is large
	Parts [][]byte        `json:"parts,omitempty"`
	Sizes []int64         `json:"sizes,omitempty"` // of the parts, where they are in Apart, one after the other
	Apart *blob           `json:"apart,omitempty"`
}

// Bounds of envelopes.
const (
	maxParts  = 4
	maxReply  = 4 << 20   // bytes of an answer's text
	maxOutput = 256 << 20 // bytes of an answer's parts
)

// bounds are what a reader takes of the other end. Of a text, and of parts, a message has inline bytes at most;
// larger ones go to the object store. Calls that wait for room are in a worker's memory meanwhile, so that their
// messages are short.
type bounds struct {
	envelope, inline int
	text, parts      int64
	values           int
}

var (
	ofCall  = bounds{128 << 10, 32 << 10, maxTask, unitask.MaxSessionFile, maxValues}
	ofReply = bounds{1 << 20, 256 << 10, maxReply, maxOutput, maxReportValues}
)

// enclose returns an envelope as it is sent.
func (s tenantStore) enclose(ctx context.Context, v any, most bounds, parts ...[]byte) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > most.text {
		return nil, fmt.Errorf("%d bytes in one call: %d are the most", len(text), most.text)
	}
	e := envelope{Text: text}
	if len(text) > most.inline {
		b, err := s.putBytes(ctx, text, false)
		if err != nil {
			return nil, err
		}
		e.Text, e.Blob = nil, &b
	}
	size, all := 0, joined{}
	for _, part := range parts {
		size += len(part)
		e.Sizes = append(e.Sizes, int64(len(part)))
		all = append(all, bytes.NewReader(part))
	}
	switch {
	case int64(size) > most.parts:
		return nil, fmt.Errorf("%d bytes in one call: %d are the most", size, most.parts)
	case size > most.inline:
		b, err := s.put(ctx, all, false)
		if err != nil {
			return nil, err
		}
		e.Apart = &b
	default:
		e.Parts, e.Sizes = parts, nil
	}
	return json.Marshal(e)
}

// openEnvelope reads a message as far as it says how large it is.
func openEnvelope(data []byte, most bounds) (e envelope, err error) {
	if len(data) > most.envelope {
		return e, fmt.Errorf("%d bytes: %w", len(data), errMalformed)
	}
	if err := decode(data, most.values, &e); err != nil {
		return e, err
	}
	left := most.parts
	for _, n := range e.Sizes {
		if left -= n; n < 0 || left < 0 {
			return e, fmt.Errorf("the sizes of its parts: %w", errMalformed)
		}
	}
	if len(e.Parts) > maxParts || len(e.Sizes) > maxParts || e.Apart == nil && e.Sizes != nil {
		return e, fmt.Errorf("%d parts: %w", len(e.Parts)+len(e.Sizes), errMalformed)
	}
	if b := e.Blob; b != nil && (b.Size < 0 || b.Size > most.text) {
		return e, fmt.Errorf("content of %d bytes: %w", b.Size, errMalformed)
	}
	return e, nil
}

// memory is about what it takes to read the rest.
func (e envelope) memory() (n int64) {
	n = int64(len(e.Text))
	if e.Blob != nil {
		n = e.Blob.Size
	}
	n *= decodedTimes
	for _, size := range e.Sizes {
		n += heldTimes * size
	}
	return n
}

// disclose reads the text of an envelope into v, and its parts.
func (s tenantStore) disclose(ctx context.Context, e envelope, most bounds, v any) (parts [][]byte, err error) {
	text := []byte(e.Text)
	if e.Blob != nil {
		if text, err = s.read(ctx, *e.Blob, most.text); err != nil {
			return nil, err
		}
	}
	if err := decode(text, most.values, v); err != nil {
		return nil, err
	}
	if e.Apart == nil {
		return e.Parts, nil
	}
	from, err := s.open(ctx, *e.Apart, most.parts)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	for _, n := range e.Sizes {
		part := make([]byte, n)
		if _, err := io.ReadFull(inTime{ctx, from}, part); err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	_, err = io.Copy(io.Discard, inTime{ctx, from}) // to its end, where it is held to its name
	return parts, err
}

// part is one of several, nil if it did not come.
func part(parts [][]byte, i int) []byte {
	if i < len(parts) {
		return parts[i]
	}
	return nil
}
