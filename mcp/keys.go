package mcp

import (
	"errors"
	"io"
	"net/http"
	"time"

	"golang.org/x/time/rate"
)

// Limits of fetching an issuer's keys. A token with an unknown key triggers a fetch, because the keys may have
// changed. A stranger must not be able to make us ask the issuer any number of times.
const (
	keyFetches     = 2                // at once: one at the start, one more as the keys change
	keyFetchPeriod = 10 * time.Second // then one in each such period
	maxKeySet      = 1 << 20          // bytes of the answer; a set has some thousands

	maxKeyRedirects = 3
)

// errKeysFresh means that the keys were fetched a moment ago and are not fetched again.
var errKeysFresh = errors.New("the issuer's keys were fetched a moment ago")

// boundedFetches is the transport for the issuer's keys, with these limits.
type boundedFetches struct {
	next  http.RoundTripper
	limit *rate.Limiter
}

func newKeyFetches(next http.RoundTripper) *boundedFetches {
	return &boundedFetches{next, rate.NewLimiter(rate.Every(keyFetchPeriod), keyFetches)}
}

func (b *boundedFetches) RoundTrip(r *http.Request) (*http.Response, error) {
	if !b.limit.Allow() {
		return nil, errKeysFresh
	}
	res, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(res.Body, maxKeySet), res.Body}
	return res, nil
}
