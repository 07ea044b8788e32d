package bounded

import (
	"regexp"
	"strings"
)

// login matches the login before the host of an address, also if it is escaped as in JSON or a URL. It also matches a
// login with a quote in the password, which ends what address finds, and the logins of several addresses in a row.
var login = regexp.MustCompile(`(//|\\/\\/|%2[fF]%2[fF])(?:[^\s/?#\\]|\\[^\s/?#])*(?:@|%40)`)

// bareLogin matches the login of an address without a scheme, such as a proxy's with a port. Before a slash, the
// password must not consist of digits only: digits would be a port, followed by a path.
var bareLogin = regexp.MustCompile(`[^\s"'/@:=]+:(?:[^\s/@]+|\d*[^\s/\d]\S*?)@` +
	`((?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):\d{1,5})\b`)

// address matches the beginning of a URL, up to a character that ends a URL in a message.
var address = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>` + "`" + `\x{2018}-\x{201f}]+`)

// Said returns the message of a tool or a server, limited as Text does, for people to read. It leaves out the login and
// the query of each address. A tool may quote the proxy or registry in its configuration, and a registry may quote a
// signed URL.
func Said(text string, limit int) string {
	text = bareLogin.ReplaceAllString(login.ReplaceAllString(text, "$1"), "$1")
	return Text(address.ReplaceAllStringFunc(text, hideLogin), limit)
}

// hideLogin removes the login and the query of an address.
func hideLogin(url string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	host := rest[:end]
	_, port, colon := strings.Cut(host[strings.LastIndexByte(host, ']')+1:], ":")
	at := strings.LastIndexByte(host, '@')
	if at < 0 && colon &&
		strings.Trim(port, "0123456789") != "" { // a password with a slash in it, which a valid address can't have
		at = strings.LastIndexByte(rest, '@')
	}
	rest = rest[at+1:]
	if query := strings.IndexAny(rest, "?#"); query >= 0 {
		tail := strings.TrimRight(rest[query:], ".,;:)]}")
		rest = rest[:query] + rest[query+len(tail):]
	}
	return scheme + "://" + rest
}

// SaidError returns an error with the text that Said returns. It unwraps to err.
func SaidError(err error, limit int) error {
	if err == nil {
		return nil
	}
	return Reworded(err, Said(err.Error(), limit))
}

// Reworded returns an error with another text. It unwraps to err.
func Reworded(err error, text string) error { return &reworded{text, err} }

type reworded struct {
	text string
	err  error
}

func (e *reworded) Error() string { return e.text }
func (e *reworded) Unwrap() error { return e.err }
