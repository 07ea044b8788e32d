package selfupdate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/fetch"
)

const (
	smallTime    = 2 * time.Minute // for a small file
	archiveTime  = 2 * time.Hour   // for an archive
	maxRedirects = 10              // of one download
)

// open returns a file of a release: from a folder, or from an address. The caller closes it.
func open(ctx context.Context, from, name string) (io.ReadCloser, error) {
	at, err := url.Parse(from)
	if err != nil || at.Scheme != "https" && at.Scheme != "http" {
		f, err := os.Open(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is no release: %w", from, err)
		}
		return f, err
	}
	at.Path = strings.TrimSuffix(at.Path, "/") + "/" + name
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	transport := fetch.Transport(nil, at.Host)
	transport.DisableCompression = true // the digest is of the file as it is
	answer, err := (&http.Client{Transport: fetch.Patient(transport), CheckRedirect: redirected}).Do(req)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("%s: %s", at.Redacted(), answer.Status)
	}
	return answer.Body, nil
}

// redirected refuses to go from https to http, and endless redirects.
func redirected(to *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	case to.URL.Scheme != "https" && len(via) > 0 && via[0].URL.Scheme == "https":
		return errors.New("it leads from https to http")
	}
	return nil
}

// get returns a small file of a release.
func get(ctx context.Context, from, name string, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, smallTime)
	defer cancel()
	f, err := open(ctx, from, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s of %s: %w", name, from, err)
	case int64(len(text)) > most:
		return nil, fmt.Errorf("%s of %s has more than %d bytes: it is no release's", name, from, most)
	}
	return text, nil
}
