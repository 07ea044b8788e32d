package broker

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// readable asks for an answer that can be searched for values. It must not be compressed, in a charset that encodes
// ASCII differently, or a difference to another answer.
func readable(h http.Header) {
	h.Set("Accept-Encoding", "identity")
	for _, name := range []string{"Sec-Websocket-Extensions", "Grpc-Accept-Encoding", "Connect-Accept-Encoding",
		"Accept-Charset", "A-Im"} {
		h.Del(name)
	}
	for i, accept := range h["Accept"] {
		h["Accept"][i] = withoutCharset(accept)
	}
}

// withoutCharset removes the charsets from an Accept field.
func withoutCharset(accept string) string {
	if !strings.Contains(strings.ToLower(accept), "charset") {
		return accept
	}
	kinds := strings.Split(accept, ",")
	for i, kind := range kinds {
		kinds[i] = strings.Join(slices.DeleteFunc(strings.Split(kind, ";"), func(p string) bool {
			return strings.HasPrefix(strings.ToLower(strings.TrimSpace(p)), "charset")
		}), ";")
	}
	return strings.Join(kinds, ",")
}

// pieces are fields that ask for a part of the answer. They are removed from a request with a value, although a server
// may ignore them (RFC 9110, 14.2). A value that is echoed byte by byte can't be found.
var pieces = []string{"Range", "If-Range", "Request-Range", "X-Ms-Range"}

// contentCoding returns the encodings of an answer's body; "" means none.
func contentCoding(h http.Header) string {
	var codings []string
	for c := range strings.SplitSeq(strings.Join(h["Content-Encoding"], ","), ",") {
		if c = strings.ToLower(strings.TrimSpace(c)); c != "" && c != "identity" {
			codings = append(codings, c)
		}
	}
	return strings.Join(codings, ", ")
}

// oddCharset returns the declared charset of an answer if values can't be found in it; else "".
func oddCharset(h http.Header) string {
	for p := range strings.SplitSeq(strings.Join(h["Content-Type"], ";"), ";") {
		name, value, _ := strings.Cut(p, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "charset") {
			continue
		}
		if value = strings.Trim(strings.TrimSpace(value), `"'`); !asciiIn(value) {
			return value
		}
	}
	return ""
}

// asciiIn reports whether a charset encodes ASCII as itself, or as UTF-16, for which the forms of a value are
// known. Java servers use whatever charset a request names: IBM037, UTF-7.
func asciiIn(charset string) bool {
	charset = strings.ToLower(charset)
	return slices.ContainsFunc([]string{"utf-8", "utf8", "utf-16", "utf16", "us-ascii", "ascii", "ansi", "iso-8859-",
		"iso8859", "iso_8859", "latin", "windows-12", "cp125", "koi8", "shift", "sjis", "euc-", "gb", "big5",
		"binary", "tis-620", "macintosh", "x-mac", "ibm866", "cp866", "ibm437", "cp437", "ibm850", "cp850", "x-user-defined"},
		func(known string) bool { return strings.HasPrefix(charset, known) }) || charset == ""
}

// tunnel is the server's side after an upgrade: its frames are searched for values.
type tunnel struct {
	io.ReadWriteCloser
	from io.ReadCloser
}

func (t *tunnel) Read(p []byte) (int, error) { return t.from.Read(p) }

func (t *tunnel) Close() error { return t.from.Close() }

// restore replaces values in an answer with their placeholders.
func (p *proxy) restore(res *http.Response) error {
	x := exchangeOf(res.Request)
	if res.StatusCode == http.StatusSwitchingProtocols && res.Request.Header.Get("Upgrade") == "" {
		return errors.New("an upgrade that nobody asked for")
	}
	res.Header.Del(refusedField) // only the broker may set it
	r := p.redaction(x, false)
	if r.swapper == nil {
		return nil
	}
	res.Status = "" // contains text of the server, which an upgrade repeats
	if err := x.early(); err != nil {
		return err
	}
	if err := errors.Join(r.header(res.Header), r.header(res.Trailer)); err != nil { // so far only the trailers' names
		return err
	}
	if conn, ok := res.Body.(io.ReadWriteCloser); ok && res.StatusCode == http.StatusSwitchingProtocols {
		tunneled := p.redaction(x, true)
		res.Body = &tunnel{conn, tunneled.body(newReadAhead(conn, &p.broker.ahead), func() error { return nil })}
		return nil
	}
	if res.Body == nil || res.Body == http.NoBody {
		return nil
	}
	switch coding := contentCoding(res.Header); {
	case res.Request.Method == http.MethodHead:
		return nil
	case coding == "":
	case coding == "gzip" || coding == "x-gzip":
		unpacked, err := gzip.NewReader(res.Body)
		if err != nil {
			return fmt.Errorf("a gzip body: %w", err)
		}
		res.Body = &readCloser{unpacked, res.Body}
		res.Header.Del("Content-Encoding")
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	default:
		return fmt.Errorf("Content-Encoding %q, where identity was asked for", coding)
	}
	if r.resizes {
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	}
	if c := oddCharset(res.Header); c != "" {
		return fmt.Errorf("the charset %q, in which nobody can look for values", c)
	}
	res.Body = r.body(newReadAhead(res.Body, &p.broker.ahead), func() error { return r.header(res.Trailer) })
	return nil
}
