package broker

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A signing key is not part of any request. The code signs with the placeholder, as any client does. The broker checks
// that signature and signs the request again with the value. It uses AWS Signature Version 4
// (docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html), in the Authorization header or in the query.

const (
	sigV4       = "AWS4-HMAC-SHA256"
	sigV4Stream = "STREAMING-" + sigV4 // each piece of the body has a signature, too
	sigV4End    = "aws4_request"
	sigV4Body   = "X-Amz-Content-Sha256"
	// maxSigned bounds a body that must be read before its request is sent, because only the signature covers its
	// hash.
	maxSigned = 8 << 20
	// maxSignings bounds the number of such bodies read at once.
	maxSignings = 4
	// maxSignedFields bounds the fields that a signature covers.
	maxSignedFields = 100
	// maxSkew bounds the distance of a request's date from now. AWS refuses older requests; a request with a
	// later date would still be valid after the run.
	maxSkew    = 15 * time.Minute
	sigV4Date  = "20060102T150405Z"
	expiresKey = "X-Amz-Expires"
)

// signature is a request's signature, as sent.
type signature struct {
	scope  []string // date, region, service, aws4_request
	fields []string // lower case
	value  string
	date   string // of the request: 20260102T030405Z
	query  bool   // it is in the query
}

// unsigned explains why a request can't be signed again.
type unsigned struct{ why string }

func (u *unsigned) Error() string { return "the request's AWS signature " + u.why }

func unsignedf(format string, args ...any) error { return &unsigned{fmt.Sprintf(format, args...)} }

// signatureOf parses a request's signature; nil if it has none.
func signatureOf(h http.Header, raw string) (*signature, error) {
	query, _ := url.ParseQuery(raw)
	s := &signature{}
	parts := map[string]string{}
	text := h.Get("Authorization")
	switch {
	case strings.HasPrefix(text, sigV4+" "):
		if len(h.Values("Authorization")) > 1 {
			return nil, unsignedf("is there twice")
		}
		for part := range strings.SplitSeq(text[len(sigV4)+1:], ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			parts[name] = value
		}
		if s.date = h.Get("X-Amz-Date"); s.date == "" {
			return nil, unsignedf("has no X-Amz-Date")
		}
		if len(pairsOf(raw, "X-Amz-Algorithm")) > 0 { // it would sign the link
			return nil, unsignedf("is in a field and in the query")
		}
	case query.Get("X-Amz-Algorithm") == sigV4:
		for _, name := range []string{"Credential", "SignedHeaders", "Signature"} {
			parts[name] = query.Get("X-Amz-" + name)
		}
		s.query, s.date = true, query.Get("X-Amz-Date")
	default:
		return nil, nil
	}
	_, scope, _ := strings.Cut(parts["Credential"], "/")
	s.scope, s.fields, s.value = strings.Split(scope, "/"), strings.Split(strings.ToLower(parts["SignedHeaders"]), ";"),
		parts["Signature"]
	switch {
	case len(s.scope) != 4 || s.scope[3] != sigV4End || slices.Contains(s.scope, ""):
		return nil, unsignedf("has a scope %.100q", scope)
	case len(s.fields) > maxSignedFields || slices.Contains(s.fields, ""):
		return nil, unsignedf("is about no fields, or more than %d", maxSignedFields)
	case len(s.value) != 2*sha256.Size:
		return nil, unsignedf("is not of %d hexadecimal digits", 2*sha256.Size)
	}
	return s, nil
}

// of computes a request's signature with a secret. whole encodes the path once more, as all services except S3
// do.
func (s *signature) of(secret, method, host, path, query string, h http.Header, length int64, body string,
	whole bool) string {
	if path == "" {
		path = "/"
	}
	if whole {
		path = awsEscape(path, true)
	}
	var fields strings.Builder
	for _, name := range s.fields {
		values := h[http.CanonicalHeaderKey(name)]
		switch name {
		case "host":
			values = []string{host}
		case "content-length":
			values = []string{fmt.Sprint(length)}
		}
		var clean []string
		for _, v := range values {
			clean = append(clean, strings.Join(strings.Fields(v), " "))
		}
		fields.WriteString(name + ":" + strings.Join(clean, ",") + "\n")
	}
	canonical := sha256.Sum256([]byte(strings.Join([]string{method, path, awsQuery(query), fields.String(),
		strings.Join(s.fields, ";"), body}, "\n")))
	key := []byte("AWS4" + secret)
	for _, part := range s.scope {
		key = hmacOf(key, part)
	}
	return hex.EncodeToString(hmacOf(key, strings.Join([]string{sigV4, s.date, strings.Join(s.scope, "/"),
		hex.EncodeToString(canonical[:])}, "\n")))
}

func hmacOf(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// awsEscape percent-encodes as AWS does: everything except letters, digits and -._~, and except / in a path.
func awsEscape(text string, path bool) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0 ||
			path && c == '/' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// awsQuery returns a query in the order and encoding for signing, without the signature.
func awsQuery(raw string) string {
	var pairs []string
	for pair := range strings.FieldsFuncSeq(raw, func(c rune) bool { return c == '&' }) {
		name, value, _ := strings.Cut(pair, "=")
		for _, part := range []*string{&name, &value} {
			if plain, err := url.QueryUnescape(*part); err == nil {
				*part = awsEscape(plain, false)
			}
		}
		if name != "X-Amz-Signature" {
			pairs = append(pairs, name+"="+value)
		}
	}
	slices.SortFunc(pairs, func(a, b string) int {
		a, aValue, _ := strings.Cut(a, "=")
		b, bValue, _ := strings.Cut(b, "=")
		if c := strings.Compare(a, b); c != 0 {
			return c
		}
		return strings.Compare(aValue, bValue)
	})
	return strings.Join(pairs, "&")
}

// signers returns the secrets that may sign requests to this host.
func (p *proxy) signers() (list []*Secret) {
	for i := range p.broker.cfg.Secrets {
		if s := &p.broker.cfg.Secrets[i]; p.to.TLS && s.boundTo(p.to.Host) && s.in(InSigV4) {
			list = append(list, s)
		}
	}
	return list
}

// sign replaces the signature of a request that the code has signed with a placeholder. out is the request to
// send, not yet signed; in is the code's request, whose body sign may read.
func (p *proxy) sign(x *exchange, out, in *http.Request) error {
	signers := p.signers()
	if len(signers) == 0 {
		return nil
	}
	s, err := signatureOf(in.Header, in.URL.RawQuery)
	if err != nil {
		return x.refuse(err)
	}
	if s == nil {
		return nil
	}
	hash := in.Header.Get(sigV4Body)
	if s.query && hash == "" {
		hash = "UNSIGNED-PAYLOAD"
	}
	if strings.HasPrefix(hash, sigV4Stream) {
		return x.refuse(
			unsignedf("is for each piece of the body, which are not signed again: have the client send %s: UNSIGNED-PAYLOAD",
				sigV4Body))
	}
	if hash == "" {
		if hash, err = p.hashBody(out, in); err != nil {
			return x.refuse(err)
		}
	}
	for _, secret := range signers {
		for _, whole := range []bool{true, false} {
			with := func(key string, r *http.Request) string {
				return s.of(key, r.Method, r.Host, r.URL.EscapedPath(), r.URL.RawQuery, r.Header, in.ContentLength, hash, whole)
			}
			was := with(secret.placeholder, in)
			if subtle.ConstantTimeCompare([]byte(was), []byte(s.value)) != 1 {
				continue
			}
			if err := p.checkDate(s.date); err != nil {
				return x.refuse(err)
			}
			if s.query {
				if err := p.boundExpiry(out); err != nil {
					return x.refuse(err)
				}
			}
			// Fields that are not sent can't be signed.
			before := strings.Join(s.fields, ";")
			s.fields = slices.DeleteFunc(s.fields, func(name string) bool {
				return name != "host" && name != "content-length" && len(out.Header[http.CanonicalHeaderKey(name)]) == 0 &&
					len(in.Header[http.CanonicalHeaderKey(name)]) > 0
			})
			after := strings.Join(s.fields, ";")
			if s.query {
				out.URL.RawQuery = strings.Replace(out.URL.RawQuery, url.QueryEscape(before), url.QueryEscape(after), 1)
			}
			now := with(secret.Value, out)
			if s.query {
				out.URL.RawQuery = strings.Replace(out.URL.RawQuery, was, now, 1)
			} else {
				text := strings.Replace(out.Header.Get("Authorization"), before, after, 1)
				out.Header.Set("Authorization", strings.Replace(text, was, now, 1))
			}
			p.broker.signed(x, secret, was, now)
			return p.use(x, secret)
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.Reason == "" {
		x.Reason = "its signature is by none of the placeholders: it goes out as it is"
	}
	return nil
}

// checkDate returns an error if a request's date is invalid.
func (p *proxy) checkDate(text string) error {
	date, err := time.Parse(sigV4Date, text)
	if err != nil {
		return unsignedf("has a date %.40q", text)
	}
	if away := p.broker.cfg.Now().Sub(date).Abs(); away > maxSkew {
		return unsignedf("is dated %s, which is %v from now: %v is the most", text, away.Round(time.Second), maxSkew)
	}
	return nil
}

// boundExpiry limits the validity of a signed query to the end of the run.
func (p *proxy) boundExpiry(out *http.Request) error {
	most := p.broker.cfg.MaxSigned
	if most == 0 {
		return nil
	}
	found := pairsOf(out.URL.RawQuery, expiresKey)
	if len(found) != 1 {
		return unsignedf("has %d of %s: one is needed", len(found), expiresKey)
	}
	text, ok := strings.CutPrefix(found[0], expiresKey+"=")
	if !ok {
		return unsignedf("has %s in an odd form", expiresKey)
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 1 {
		return unsignedf("has %s %.40q", expiresKey, text)
	}
	if limit := int64(max(1, most.Seconds())); seconds > limit {
		pairs := strings.Split(out.URL.RawQuery, "&")
		at := slices.Index(pairs, found[0])
		if at < 0 {
			return unsignedf("has %s in an odd form", expiresKey)
		}
		pairs[at] = expiresKey + "=" + strconv.FormatInt(limit, 10)
		out.URL.RawQuery = strings.Join(pairs, "&")
	}
	return nil
}

// pairsOf returns the pairs of a query whose key some server may read as name: in any case, and also if
// malformed.
func pairsOf(raw, name string) (list []string) {
	for pair := range strings.FieldsFuncSeq(raw, func(c rune) bool { return c == '&' || c == ';' }) {
		key, _, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(key); err == nil {
			key = plain
		}
		if folded(strings.TrimSpace(key)) == folded(name) {
			list = append(list, pair)
		}
	}
	return list
}

// hashBody reads a whole body, and puts it back to be sent.
func (p *proxy) hashBody(out, in *http.Request) (string, error) {
	var body []byte
	if in.Body != nil && in.Body != http.NoBody {
		defer p.broker.signings.leave()
		if err := p.broker.signings.enter(); err != nil {
			return "", unsignedf("has to wait: %v", err)
		}
		var err error
		if body, err = io.ReadAll(io.LimitReader(in.Body, maxSigned+1)); err != nil {
			return "", unsignedf("is of a body that does not come: %v", err)
		}
		if len(body) > maxSigned {
			return "", unsignedf("is of a body of more than %d bytes: have the client send %s", maxSigned, sigV4Body)
		}
		in.Body = readCloser{bytes.NewReader(body), in.Body}
		out.Body = in.Body
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:]), nil
}
