package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// BodyError means that the body of a request is wrong. Status is its HTTP status.
type BodyError struct {
	Status int
	Text   string
}

func (e *BodyError) Error() string { return e.Text }

// readBody reads the body of a request, and reserves the memory to decode it. The body must be one JSON value
// within the limits of requests; nil means that the request has been answered.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, l *lease) []byte {
	body, tokens, err := s.receive(w, r, l)
	if err == nil {
		if ids := checkIDs(body); ids != nil {
			err = &BodyError{http.StatusBadRequest, ids.Error()}
		}
	}
	if err == nil {
		err = l.decode(r.Context(), len(body), tokens)
	}
	if wrong := new(BodyError); errors.As(err, &wrong) {
		http.Error(w, wrong.Text, wrong.Status)
		return nil
	} else if err != nil {
		s.tooMany(w, err)
		return nil
	}
	return body
}

// receive reads the body of a request, one JSON value, and waits for its turn to be decoded. tokens is the number of
// its tokens. The error is a *BodyError, a *LimitError, or ctx's.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, l *lease) (body []byte, tokens int, err error) {
	announced := r.ContentLength
	if announced < 0 || announced > bodyBytes {
		announced = bodyBytes
	}
	resize, err := s.visitors.hold(callerOf(r), announced)
	if err != nil {
		return nil, 0, err
	}
	defer resize(0)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTime))
	var count tokenCounter
	body, err = readAll(http.MaxBytesReader(w, r.Body, bodyBytes), announced, count.count)
	switch {
	case errors.Is(err, errTooMuch):
		w.Header().Set("Connection", "close") // the rest is not read
		return nil, 0, &BodyError{http.StatusBadRequest, err.Error()}
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, 0, &BodyError{http.StatusRequestEntityTooLarge,
			fmt.Sprintf("a request may have at most %d bytes", bodyBytes)}
	case err != nil:
		return nil, 0, &BodyError{http.StatusRequestTimeout, "the request did not come in time"}
	}
	_ = control.SetReadDeadline(time.Time{})
	if err := l.enter(r.Context(), s.decoding, len(body)); err != nil {
		return nil, 0, err
	}
	if !json.Valid(body) { // one value, not nested too deeply
		return nil, 0, &BodyError{http.StatusBadRequest, "the body is not one JSON value"}
	}
	return body, count.tokens, nil
}

// readAll is like io.ReadAll for a body of about that many bytes, and passes each piece to check. Bytes that have
// not arrived use no memory.
func readAll(r io.Reader, about int64, check func([]byte) error) (body []byte, err error) {
	const first = 64 << 10
	body = make([]byte, 0, min(about, first)+1)
	for {
		n, err := r.Read(body[len(body):cap(body)])
		if err := check(body[len(body) : len(body)+n]); err != nil {
			return nil, err
		}
		body = body[:len(body)+n]
		if err == io.EOF {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
		if len(body) == cap(body) {
			more := int64(len(body)) // twice as much
			if left := about + 1 - more; left > 0 {
				more = min(more, left)
			}
			body = slices.Grow(body, int(more))
		}
	}
}

// onceReader hands out a body once: then the reader holds the only reference.
type onceReader struct{ body []byte }

func (o *onceReader) Read(p []byte) (int, error) {
	if len(o.body) == 0 {
		o.body = nil
		return 0, io.EOF
	}
	n := copy(p, o.body)
	o.body = o.body[n:]
	return n, nil
}

func (o *onceReader) Close() error { return nil }

// maxMessageBytes bounds a message that is not a call, in bytes: a person's answers to our questions, and
// notifications. They are decoded when their request is over, because nothing waits for them.
const maxMessageBytes = 64 << 10

// maxBatch bounds the messages of one request of older revisions, because the limits of current requests count it once.
const maxBatch = 50

// checkIDs returns which id or progress token of a body's messages is too long. Both are repeated in messages about a
// call, a token in each notification.
func checkIDs(body []byte) (err error) {
	message := func(text []byte) {
		call, method := false, false
		members(text, func(name string, value []byte) {
			switch name {
			case "id":
				call = true
				if len(value) > maxIDBytes {
					err = fmt.Errorf("the id has more than %d bytes", maxIDBytes)
				}
			case "method":
				method = true
			case "params":
				members(value, func(name string, value []byte) {
					if name != "_meta" {
						return
					}
					members(value, func(name string, value []byte) {
						if name == "progressToken" && len(value) > maxIDBytes {
							err = fmt.Errorf("the progress token has more than %d bytes", maxIDBytes)
						}
					})
				})
			}
		})
		if (!call || !method) && len(text) > maxMessageBytes {
			err = fmt.Errorf("a message that is no call may have at most %d bytes", maxMessageBytes)
		}
	}
	calls := 0
	elements(body, func(text []byte) {
		if calls++; calls <= maxBatch {
			message(text)
		}
	})
	if calls > maxBatch {
		return fmt.Errorf("a batch may have at most %d messages", maxBatch)
	}
	if i := skipSpace(body, 0); i < len(body) && body[i] != '[' {
		message(body)
	}
	return err
}

// newer reports whether a call names its own revision, as calls without sessions do.
func newer(body []byte) (found bool) {
	members(body, func(name string, value []byte) {
		if name == "params" {
			members(value, func(name string, value []byte) {
				if name == "_meta" {
					members(value, func(name string, _ []byte) { found = found || name == sdk.MetaKeyProtocolVersion })
				}
			})
		}
	})
	return found
}
