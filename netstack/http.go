package netstack

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// requestHead holds the parsed fields of an HTTP/1 request.
type requestHead struct {
	host    string // as in the Host field
	length  int64  // of the body; -1: chunked
	upgrade bool
}

// readHead reads up to the empty line at the end of a request's head. io.EOF means that there is no further
// request.
func readHead(r *bufio.Reader) ([]byte, error) {
	var head []byte
	for {
		line, err := r.ReadSlice('\n')
		head = append(head, line...)
		switch {
		case len(head) > maxHead:
			return nil, refuse("an HTTP head of more than %d bytes", maxHead)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(head) == 0:
			return nil, io.EOF
		case err != nil:
			return nil, err
		case bytes.HasSuffix(head, []byte("\r\n\r\n")):
			return head, nil
		case len(head) == len(line) && !looksLikeRequest(line):
			return nil, refuseProtocol("no request line")
		}
	}
}

func looksLikeRequest(line []byte) bool {
	return bytes.HasSuffix(line, []byte(" HTTP/1.1\r\n")) || bytes.HasSuffix(line, []byte(" HTTP/1.0\r\n"))
}

// parseHead is strict. It refuses whatever two parsers could read differently, because the server may use another
// parser (RFC 9112, sections 2.2, 3.2, 5, 6 and 11.2).
func parseHead(head []byte) (requestHead, error) {
	var h requestHead
	lines := strings.Split(strings.TrimSuffix(string(head), "\r\n\r\n"), "\r\n")
	for _, l := range lines {
		if i := strings.IndexFunc(l, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }); i >= 0 {
			return h, refuse("an HTTP head with the control character %q", l[i])
		}
	}
	// Some parsers split this line at any white space, in some encoding (RFC 9112, 3).
	if i := strings.IndexFunc(lines[0], func(c rune) bool { return c < ' ' || c > '~' }); i >= 0 {
		return h, refuse("a request line with %q: percent-encode it", lines[0][i])
	}
	method, rest, _ := strings.Cut(lines[0], " ")
	at, proto, ok := strings.Cut(rest, " ")
	if !ok || !token(method) || at == "" || (proto != "HTTP/1.1" && proto != "HTTP/1.0") {
		return h, refuse("a malformed request line")
	}
	if strings.EqualFold(method, "CONNECT") {
		return h, refuse("CONNECT")
	}
	hosts, lengths, encodings := 0, 0, 0
	connection := ""
	for _, l := range lines[1:] {
		name, value, ok := strings.Cut(l, ":")
		if !ok || !token(name) {
			return h, refuse("a malformed header line")
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(name) {
		case "host":
			hosts++
			h.host = value
		case "content-length":
			n, err := strconv.ParseInt(value, 10, 64)
			if lengths++; err != nil || strings.Trim(value, "0123456789") != "" || lengths > 1 {
				return h, refuse("a Content-Length that is not one number")
			}
			h.length = n
		case "transfer-encoding":
			if encodings++; !strings.EqualFold(value, "chunked") || encodings > 1 {
				return h, refuse("a Transfer-Encoding that is not chunked")
			}
		case "connection":
			connection += "," + strings.ToLower(value)
		case "upgrade":
			h.upgrade = true
			if strings.Contains(strings.ToLower(value), "h2c") {
				return h, refuse("an upgrade to HTTP/2 in the clear")
			}
		}
	}
	switch {
	case hosts != 1:
		return h, refuse("%d Host fields", hosts)
	case encodings > 0 && (lengths > 0 || proto == "HTTP/1.0"):
		return h, refuse("both Content-Length and Transfer-Encoding, or an HTTP/1.0 request with the latter")
	case encodings > 0:
		h.length = -1
	}
	h.upgrade = h.upgrade && strings.Contains(connection, "upgrade")
	if at[0] == '/' || at == "*" {
		return h, nil
	}
	// Some servers prefer the absolute form to Host: the two must be equal.
	authority, ok := strings.CutPrefix(strings.ToLower(at), "http://")
	if end := strings.IndexAny(authority, "/?#"); end >= 0 {
		authority = authority[:end]
	}
	if !ok || authority != strings.ToLower(h.host) {
		return h, refuse("a request target for another host than Host's")
	}
	return h, nil
}

// token reports whether s is a token (RFC 9110, 5.6.2).
func token(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// hostOf splits a Host field; a port in it must be the connection's.
func hostOf(field string, port uint16) (name string, addr netip.Addr, ok bool) {
	host := field
	if i := strings.LastIndexByte(field, ':'); i >= 0 && !strings.HasSuffix(field, "]") {
		if field[i+1:] != strconv.Itoa(int(port)) {
			return "", addr, false
		}
		host = field[:i]
	}
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); err == nil {
		return "", a.Unmap(), a.Zone() == ""
	}
	name, ok = normalName(host)
	return name, addr, ok
}

// httpRequests copies HTTP/1 requests and checks the Host of each.
type httpRequests struct {
	check    func(host string) error
	begin    func()                // called when the first request is allowed, before it is sent
	deadline func(time.Time) error // sets the deadline for reading
	// switched reports whether the server agreed to an upgrade.
	switched func() (bool, error)
}

// copy copies requests from r to w until there are no more, or one is refused.
func (c *httpRequests) copy(w io.Writer, r *bufio.Reader) error {
	for first := true; ; first = false {
		if _, err := r.Peek(1); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		// A head that has begun must be completed.
		if err := c.deadline(time.Now().Add(peekTime)); err != nil {
			return err
		}
		head, err := readHead(r)
		if err != nil {
			return slowHead(err)
		}
		if err := c.deadline(time.Time{}); err != nil {
			return err
		}
		req, err := parseHead(head)
		if err == nil {
			err = c.check(req.host)
		}
		if err == nil && req.upgrade && !first {
			// It would be unclear which of several answers agrees to the upgrade.
			err = refuse("an upgrade after other requests")
		}
		if err != nil {
			return err
		}
		if first {
			c.begin()
		}
		if _, err := w.Write(head); err != nil {
			return err
		}
		if req.length < 0 {
			err = copyChunked(w, r)
		} else {
			_, err = io.CopyN(w, r, req.length)
		}
		if err != nil {
			return err
		}
		if !req.upgrade {
			continue
		}
		switched, err := c.switched()
		if err != nil {
			return err
		}
		if switched { // WebSocket and the like, to the checked host
			_, err := io.Copy(w, r)
			return err
		}
	}
}

// slowHead explains a head that did not arrive in time.
func slowHead(err error) error {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return refuse("no complete HTTP head within %s", peekTime)
	}
	if errors.Is(err, io.EOF) {
		return refuse("a truncated HTTP head")
	}
	return err
}

// notInTrailer are the fields for routing and framing (RFC 9110, 6.5.1).
var notInTrailer = []string{"host", "content-length", "transfer-encoding", "connection", "upgrade"}

// copyChunked copies a chunked body, strictly (RFC 9112, section 7.1).
func copyChunked(w io.Writer, r *bufio.Reader) error {
	line := func() ([]byte, error) {
		l, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) || (err == nil &&
			(len(l) > maxHTTPRun || !bytes.HasSuffix(l, []byte("\r\n")) || bytes.IndexByte(l[:len(l)-2], '\r') >= 0)) {
			return nil, refuse("a malformed chunk")
		}
		return l, err
	}
	for {
		l, err := line()
		if err != nil {
			return err
		}
		digits, _, _ := strings.Cut(string(l[:len(l)-2]), ";")
		n, err := strconv.ParseUint(digits, 16, 60)
		if err != nil || strings.Trim(digits, "0123456789abcdefABCDEF") != "" {
			return refuse("a malformed chunk")
		}
		if _, err := w.Write(l); err != nil {
			return err
		}
		if n == 0 {
			break
		}
		if _, err := io.CopyN(w, r, int64(n)); err != nil {
			return err
		}
		l, err = line()
		if err != nil {
			return err
		}
		if len(l) != 2 {
			return refuse("a chunk that is longer than its size")
		}
		if _, err := w.Write(l); err != nil {
			return err
		}
	}
	for total := 0; ; { // trailers
		l, err := line()
		if err != nil {
			return err
		}
		if total += len(l); total > maxHead {
			return refuse("trailers of more than %d bytes", maxHead)
		}
		// A server that treats trailers as header fields must not find these.
		name, _, ok := strings.Cut(string(l), ":")
		switch {
		case len(l) == 2:
		case !ok || !token(name):
			return refuse("a malformed trailer")
		case slices.Contains(notInTrailer, strings.ToLower(name)):
			return refuseText("%s in a trailer", name)
		}
		if _, err := w.Write(l); err != nil {
			return err
		}
		if len(l) == 2 {
			return nil
		}
	}
}
