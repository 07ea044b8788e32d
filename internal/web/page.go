package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/unseen"
	"github.com/unitask/unitask/policy"
)

// Limits of what a machine says about a page.
const (
	maxURL   = 2048         // bytes
	maxLinks = 100          // of one page
	maxTitle = 600          // bytes; the program has 300 characters
	longLine = 8 * maxTitle // of what becomes a title; most of it may be blanks
	// leastLinks is how many bytes of links a page may have, however short its content must be.
	leastLinks = 8 << 10
)

// Page is a fetched page. Everything in it but RunID is the page's word.
type Page struct {
	URL       string `json:"url"` // after redirects
	Status    int    `json:"status"`
	Type      string `json:"type,omitempty"` // its media type
	Title     string `json:"title,omitempty"`
	Date      string `json:"date,omitempty"` // of its publication, as 2026-10-31
	Text      string `json:"text"`
	Base64    []byte `json:"base64,omitempty"` // in place of Text, of a raw page that is not UTF-8 text
	Links     []Link `json:"links,omitempty"`
	Truncated bool   `json:"truncated,omitempty"` // there is more
	Redirects int    `json:"redirects,omitempty"`
	RunID     string `json:"runId"`

	redirect *target // where another host has the page; nil if this is the page
}

// Link is a link of a page.
type Link struct {
	URL  string `json:"url"`
	Text string `json:"text,omitempty"`
}

// target is a URL that may be fetched.
type target struct {
	url  string
	rule string // its host, as allowNet has it
}

// parse checks a URL. The result has no fragment, and its host in ASCII.
func parse(text string) (*target, error) {
	if len(text) > maxURL {
		return nil, fmt.Errorf("has more than %d bytes", maxURL)
	}
	odd := func(r rune) bool { return !unicode.IsGraphic(r) || r == ' ' || unseen.Is(r) }
	if !utf8.ValidString(text) || strings.ContainsFunc(text, odd) {
		return nil, errors.New("has a space, or a character that nobody sees")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("is no URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must begin with https:// or http://")
	case u.User != nil:
		return nil, errors.New("has a user name, which is not sent")
	case u.Host == "" || u.Opaque != "" || strings.Contains(u.Hostname(), "*"):
		return nil, errors.New("has no host")
	}
	host := u.Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port := u.Port(); port != "" && port != "80" && port != "443" { // which a rule without a port allows
		host += ":" + port
	}
	rule, err := policy.ParseNetRule(host)
	if err != nil {
		return nil, fmt.Errorf("has a host that %w", err)
	}
	name := rule.Host
	if rule.Addr.IsValid() {
		name = rule.Addr.String()
	}
	port := u.Port()
	switch {
	case port != "":
		u.Host = net.JoinHostPort(name, port)
	case strings.Contains(name, ":"):
		u.Host = "[" + name + "]"
	default:
		u.Host = name
	}
	u.Fragment, u.RawFragment = "", ""
	if len(u.String()) > maxURL {
		return nil, fmt.Errorf("has more than %d bytes", maxURL)
	}
	return &target{url: u.String(), rule: rule.String()}, nil
}

// said is what the program in a machine prints. Other members are ignored.
type said struct {
	Error    string `json:"error"`
	Redirect string `json:"redirect"`
	Hops     int    `json:"hops"`
	URL      string `json:"url"`
	Status   int    `json:"status"`
	Type     string `json:"type"`
	Title    string `json:"title"`
	Date     string `json:"date"`
	Text     string `json:"text"`
	Base64   []byte `json:"base64"`
	Links    links  `json:"links"`

	Truncated bool `json:"truncated"`
}

// links are the first links of a page. The rest is not decoded: an empty one takes two bytes, and much more memory.
type links []Link

func (l *links) UnmarshalJSON(text []byte) error {
	if len(*l) >= maxLinks { // the member is there again
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return err
	}
	for len(*l) < maxLinks && d.More() {
		var one Link
		if err := d.Decode(&one); err != nil {
			return err
		}
		*l = append(*l, one)
	}
	return nil
}

var (
	mediaType = regexp.MustCompile(`^[a-z0-9.+-]{1,60}/[a-z0-9.+-]{1,60}$`)
	isoDate   = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}$`)
)

// read checks what a machine printed about a page of a target. The reason, if not "", says why there is no page.
func read(stdout []byte, at *target, in Request) (page *Page, reason string) {
	var s said
	if err := json.Unmarshal(stdout, &s); err != nil {
		return nil, "the program that reads pages was cut off, or has failed"
	}
	hops := min(max(s.Hops, 0), maxHops)
	switch {
	case s.Error != "":
		return nil, "the program that reads pages says: " + quoted(s.Error, maxError)
	case s.Redirect != "":
		to, err := parse(s.Redirect)
		if err != nil {
			return nil, fmt.Sprintf("it redirects to %s, which %v", quoted(s.Redirect, 200), err)
		}
		if to.rule == at.rule {
			return nil, "it redirects to its own host, which the program should have followed"
		}
		return &Page{redirect: to, Redirects: max(hops-1, 0)}, ""
	case s.Status < 100 || s.Status > 599:
		return nil, "it has no status"
	}
	from, err := parse(s.URL)
	if err != nil || from.rule != at.rule { // the machine reached no other host
		from = at
	}
	page = &Page{URL: from.url, Status: s.Status, Title: oneLine(s.Title), Truncated: s.Truncated, Redirects: hops}
	if mediaType.MatchString(s.Type) {
		page.Type = s.Type
	}
	if isoDate.MatchString(s.Date) {
		page.Date = s.Date
	}
	page.Text, page.Base64 = s.Text, s.Base64
	if in.As != "raw" {
		page.Text, page.Base64 = visible(s.Text), nil
	}
	if len(page.Text)+len(page.Base64) > in.MaxBytes {
		return nil, "it is longer than what was asked for"
	}
	size := 0
	for _, l := range s.Links {
		to, err := parse(l.URL)
		if err != nil {
			continue
		}
		one := Link{URL: to.url, Text: oneLine(l.Text)}
		if size += len(one.URL) + len(one.Text); size > max(in.MaxBytes, leastLinks) {
			page.Truncated = true
			break
		}
		page.Links = append(page.Links, one)
	}
	return page, ""
}

// visible removes control characters and invisible characters. A person does not see them, but a model reads them.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\u200c' || r == '\u200d': // the joiners belong to words
			return r
		case r == '\u2028' || r == '\u2029':
			return '\n'
		case r == '\u2800':
			return ' '
		case unseen.Is(r):
			return -1
		}
		return r
	}, text)
}

// quoted returns a text that a page or a taken-over machine chose, for an error.
func quoted(text string, most int) string {
	return strconv.QuoteToASCII(bounded.Text(oneLine(text), most))
}

// oneLine returns a short text in one line.
func oneLine(text string) string { return shortLine(text, maxTitle) }

// shortLine returns a text in one line of at most so many bytes.
func shortLine(text string, most int) string {
	text = text[:min(len(text), max(longLine, 2*most))]
	text = strings.Join(strings.Fields(visible(text)), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "")
	}
	return text
}
