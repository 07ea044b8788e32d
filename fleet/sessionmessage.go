package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/unitask/unitask"
)

// envelope is the wire form of a call or an answer. Parts that may be as large as a file are separate, so that the
// reader knows the needed memory before decoding anything.
type envelope struct {
	Text  json.RawMessage `json:"text,omitempty"`
	Blob  *blob           `json:"blob,omitempty"` // in place of a large Text
	Parts [][]byte        `json:"parts,omitempty"`
	Sizes []int64         `json:"sizes,omitempty"` // of the parts, if they are concatenated in Apart
	Apart *blob           `json:"apart,omitempty"`
}

// Limits of envelopes.
const (
	maxParts  = 4
	maxReply  = 4 << 20   // bytes of an answer's text
	maxOutput = 256 << 20 // bytes of an answer's parts
)

// bounds limit what a reader accepts. A message contains at most inline bytes of text and of parts; larger ones go to
// the object store. Calls that wait for room stay in a worker's memory, so their messages must be short.
type bounds struct {
	envelope, inline int
	text, parts      int64
	values           int
}

var (
	ofCall  = bounds{128 << 10, 32 << 10, maxTask, unitask.MaxSessionFile, maxValues}
	ofReply = bounds{1 << 20, 256 << 10, maxReply, maxOutput, maxReportValues}
)

// enclose encodes an envelope for sending.
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

// openEnvelope decodes a message's envelope, which has the sizes of the rest.
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

// memory returns the approximate memory needed to read the rest.
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
	_, err = io.Copy(io.Discard, inTime{ctx, from}) // to the end, where the checksum is verified
	return parts, err
}

// part returns one of the parts, or nil if it is missing.
func part(parts [][]byte, i int) []byte {
	if i < len(parts) {
		return parts[i]
	}
	return nil
}
