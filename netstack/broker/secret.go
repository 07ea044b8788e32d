package broker

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
)

// Place is a part of a request where a secret may be put.
type Place string

const (
	InHeader Place = "header"
	InQuery  Place = "query"
	InPath   Place = "path"
	InBody   Place = "body"
	// InSigV4 is not a place: requests that the code signed with the placeholder, for AWS, are signed with the
	// value.
	InSigV4 Place = "sigv4"
)

// Secret is a value that stays on the host. The guest has a placeholder of the same length, which is replaced
// with the value on its way to one of the hosts. A secret with different places for several hosts has several
// entries.
type Secret struct {
	Name  string
	Value string
	// Hosts are the hosts that may receive the value.
	Hosts []Host
	// In lists the places for the value; none means InHeader alone.
	In []Place
	// Headers limits InHeader to these fields; none means every field.
	Headers []string
	// Misdirected selects what happens to the placeholder elsewhere.
	Misdirected Misdirected

	placeholder string
}

const (
	// minSecret makes an accidental placeholder unlikely: 8 letters and digits have 47 bits.
	minSecret = 8
	// maxSecret bounds a value: a key in PEM has 4 KiB.
	maxSecret = 8 << 10
	// maxSecrets bounds the entries of one run: each is a bit of a uint64.
	maxSecrets = 64
	// maxSecretsTogether bounds all values of a run: all the forms in which they may appear take a thousand times
	// as much.
	maxSecretsTogether = 32 << 10
)

func (s *Secret) check() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("secret %q: %w", s.Name, fmt.Errorf(format, args...))
	}
	switch {
	case s.Name == "":
		return errors.New("a secret has no name")
	case len(s.Value) < minSecret || len(s.Value) > maxSecret:
		return fail("has %d bytes: %d to %d can be bound to hosts", len(s.Value), minSecret, maxSecret)
	case len(s.Hosts) == 0:
		return fail("is bound to no host")
	}
	for _, h := range s.Hosts {
		if err := h.check(); err != nil {
			return fail("%w", err)
		}
	}
	for _, p := range s.In {
		if !slices.Contains([]Place{InHeader, InQuery, InPath, InBody, InSigV4}, p) {
			return fail("place %q: use header, query, path, body or sigv4", string(p))
		}
	}
	if s.in(InHeader) && strings.IndexFunc(s.Value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) >= 0 {
		return fail("has a control character, which no header can have: bind it to the body alone")
	}
	return nil
}

// same reports whether another entry has the same value.
func (s *Secret) same(o Secret) bool { return s.Name == o.Name }

func (s *Secret) in(p Place) bool {
	if len(s.In) == 0 {
		return p == InHeader
	}
	return slices.Contains(s.In, p)
}

func (s *Secret) boundTo(host string) bool {
	return slices.ContainsFunc(s.Hosts, func(h Host) bool { return h.covers(host) })
}

func (s *Secret) header(name string) bool {
	return len(s.Headers) == 0 || slices.ContainsFunc(s.Headers,
		func(h string) bool { return textproto.CanonicalMIMEHeaderKey(h) == name })
}

// letters are the characters of a placeholder: JSON, URLs and forms need no escapes for them.
const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// newPlaceholder returns a random placeholder that neither contains another one nor is contained in it.
func newPlaceholder(n int, others []Secret) (string, error) {
	for {
		b := make([]byte, 0, n)
		random := make([]byte, n)
		for len(b) < n {
			if _, err := rand.Read(random); err != nil {
				return "", fmt.Errorf("make a placeholder: %w", err)
			}
			for _, c := range random {
				if i := int(c) & 63; i < len(letters) && len(b) < n {
					b = append(b, letters[i])
				}
			}
		}
		p := string(b)
		if !slices.ContainsFunc(others, func(o Secret) bool {
			return o.placeholder != "" && (strings.Contains(p, o.placeholder) || strings.Contains(o.placeholder, p))
		}) {
			return p, nil
		}
	}
}

// encoding is the encoding of a text at its place.
type encoding int

const (
	asIs encoding = iota
	asJSON
	asForm // in a query, or in a form's body
	asPath
)

// bodyEncoding returns the encoding of a body, from its Content-Type.
func bodyEncoding(h http.Header) encoding {
	kind, _, _ := strings.Cut(strings.ToLower(h.Get("Content-Type")), ";")
	switch kind = strings.TrimSpace(kind); {
	case kind == "application/json" || strings.HasSuffix(kind, "+json") || kind == "application/x-ndjson":
		return asJSON
	case kind == "application/x-www-form-urlencoded":
		return asForm
	}
	return asIs
}

func (e encoding) of(text string) []byte {
	switch e {
	case asJSON:
		return jsonText(text)
	case asForm:
		return []byte(url.QueryEscape(text))
	case asPath:
		return []byte(url.PathEscape(text))
	}
	return []byte(text)
}
