// Package webhook sends new entries of a home's audit log to URLs. It sends each entry as CloudEvents JSON in a POST,
// signed as Standard Webhooks specifies (standardwebhooks.com). The log is the queue. The home keeps the position of
// each receiver, so nothing is lost between two processes, and no run waits.
package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/unitask/unitask/internal/audit"
)

// Hook is a receiver from the home's configuration: a table [[webhook]].
type Hook struct {
	URL string `toml:"url"`
	// Secret is the signing key: whsec_ and 24 to 64 bytes in base64, shared with the receiver.
	Secret string `toml:"secret"`
	// Kinds are the kinds of entries to send; an empty list means all.
	Kinds []string `toml:"kinds"`
}

// MaxHooks bounds the receivers of a home.
const MaxHooks = 16

// Limits of a key's length, from Standard Webhooks.
const (
	secretPrefix         = "whsec_"
	minSecret, maxSecret = 24, 64 // bytes
)

// Check returns what is wrong with a home's hooks.
func Check(hooks []Hook) error {
	if len(hooks) > MaxHooks {
		return fmt.Errorf("%d webhooks: %d at most", len(hooks), MaxHooks)
	}
	seen := map[string]bool{}
	for i, h := range hooks {
		if err := h.check(); err != nil {
			return fmt.Errorf("webhook %d: %w", i+1, err)
		}
		if seen[h.URL] {
			return fmt.Errorf("webhook %d: its url is that of another one: name all kinds in one", i+1)
		}
		seen[h.URL] = true
	}
	return nil
}

func (h *Hook) check() error {
	u, err := url.Parse(h.URL)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.Fragment != "":
		// not quoted: it may contain a token
		return errors.New("its url is none of https: use one like https://hooks.example.com/unitask")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return errors.New(
			"its url is of http, by which others could read what is sent: " +
				"use https, which only this machine's own receivers need not")
	}
	if _, err := h.key(); err != nil {
		return err
	}
	for _, kind := range h.Kinds {
		if !slices.Contains(audit.Kinds, audit.Kind(kind)) {
			return fmt.Errorf("kind %.40q: there is none; there are %s", kind, audit.Kinds)
		}
	}
	return nil
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// key returns the secret's bytes.
func (h *Hook) key() ([]byte, error) {
	text, ok := strings.CutPrefix(h.Secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) < minSecret || len(key) > maxSecret {
		return nil,
			fmt.Errorf("its secret is not %s and %d to %d bytes in base64: `echo %s$(openssl rand -base64 32)` makes one",
				secretPrefix, minSecret, maxSecret, secretPrefix)
	}
	return key, nil
}

// wants reports whether to send entries of a kind.
func (h *Hook) wants(kind string) bool { return len(h.Kinds) == 0 || slices.Contains(h.Kinds, kind) }

// name returns the hook's name for messages, without its URL, which may contain a token.
func (h *Hook) name() string {
	u, err := url.Parse(h.URL)
	if err != nil {
		return "webhook"
	}
	return "webhook " + u.Scheme + "://" + u.Host
}

// file returns the name of the hook's file in the home.
func (h *Hook) file() string {
	sum := sha256.Sum256([]byte(h.URL))
	return hex.EncodeToString(sum[:8])
}

// Limits of a request.
const (
	postTime   = 15 * time.Second
	maxError   = 300      // bytes of an error in a message, which may quote the receiver
	answerHead = 64 << 10 // bytes of the response's header
	answerBody = 4 << 10  // bytes of its body to read, so that the connection can be reused
)

// client sends requests. It follows no redirect, because nobody has configured its target. It uses nothing of a
// response except its status.
func client() *http.Client {
	return &http.Client{
		Timeout:       postTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: postTime}).DialContext,
			TLSHandshakeTimeout: postTime, ForceAttemptHTTP2: true,
			MaxResponseHeaderBytes: answerHead, DisableCompression: true, MaxIdleConns: 1, IdleConnTimeout: time.Minute,
		},
	}
}

// answerError is a response that does not accept the event.
type answerError struct {
	status int
	after  time.Duration // when to try again; 0 if the receiver does not tell
}

func (e *answerError) Error() string {
	text := fmt.Sprintf("answered %d", e.status)
	if e.status >= 300 && e.status < 400 {
		text += ", a redirect, which is not followed"
	}
	return text
}

// lasting reports whether a repeated request would get the same response.
func (e *answerError) lasting() bool {
	again := e.status >= 500 || e.status == http.StatusRequestTimeout || e.status == http.StatusTooEarly ||
		e.status == http.StatusTooManyRequests
	return !again
}

// post sends an event once. id is the same for every attempt.
func (h *Hook) post(ctx context.Context, c *http.Client, id string, event []byte) error {
	key, err := h.key()
	if err != nil {
		return err
	}
	now := time.Now()
	signer, err := standard.NewWebhookRaw(key)
	if err != nil {
		return err
	}
	signature, err := signer.Sign(id, now, event)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(event))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"Content-Type": "application/cloudevents+json; charset=utf-8", "User-Agent": "unitask",
		standard.HeaderWebhookID: id, standard.HeaderWebhookTimestamp: strconv.FormatInt(now.Unix(), 10),
		standard.HeaderWebhookSignature: signature,
	} {
		r.Header.Set(name, value)
	}
	res, err := c.Do(r)
	if err != nil {
		if outer := new(url.Error); errors.As(err, &outer) { // the outer error quotes the URL
			err = outer.Err
		}
		if text := err.Error(); len(text) > maxError {
			err = errors.New(strings.ToValidUTF8(text[:maxError], "") + "…")
		}
		return err
	}
	_, _ = io.CopyN(io.Discard, res.Body, answerBody)
	res.Body.Close()
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return nil
	}
	refusal := &answerError{status: res.StatusCode}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && seconds > 0 {
		refusal.after = time.Duration(min(seconds, 1<<20)) * time.Second
	}
	return refusal
}
