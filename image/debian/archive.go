// Package debian reads archives of Debian over HTTP: packages by path and digest, and a release's signed index of
// packages. It needs no apt, so it works on any host. It never runs a program and installs nothing. Package image
// fetches the parts of its images with it.
package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/fetch"
)

// packagePath is the form of a package's path. Nothing in it is special in an address.
var packagePath = regexp.MustCompile(`^pool/[A-Za-z0-9+._~/-]+$`)

// ErrGone means that no mirror has a file.
var ErrGone = errors.New("no mirror has it")

// A File is a package's file in an archive.
type File struct {
	Path   string // below the archive's address, such as pool/main/b/bc/bc_1.07.1-4_amd64.deb
	SHA256 string // hexadecimal
	Size   int64  // bytes
}

// Archive reads one release of Debian for one architecture. Several goroutines may use it.
type Archive struct {
	Mirrors Mirrors
	Suite   string // the release's codename: trixie
	Arch    string // Debian's name: amd64
	Cache   string // folder for indexes
	// Logf receives what the caller should know, such as a mirror without security updates.
	Logf func(format string, args ...any)

	Keys string // armoured keys that sign the indexes; "" means Debian's of the suite

	mu    sync.Mutex
	index *Index
}

// Bounds of a transfer.
const (
	attempts   = 3
	retryPause = 300 * time.Millisecond
	fileTime   = 30 * time.Minute // for one file
	maxMessage = 300              // bytes of an error of the network
)

// statusError is a mirror's answer other than 200.
type statusError int

func (e statusError) Error() string {
	return fmt.Sprintf("it answers %d %s", int(e), http.StatusText(int(e)))
}

// lacks reports whether the server does not provide a file. Object stores answer 403 for a missing file, and other
// archives in the host's apt may require a login.
func (e statusError) lacks() bool {
	return e == http.StatusNotFound || e == http.StatusGone || e == http.StatusUnauthorized || e == http.StatusForbidden
}

// Fetch writes a file of the archive to a new file of the host. It tries the mirrors in their order. It fails with
// ErrGone if none of them has the file. It also fails if the received bytes have another digest. Without a mirror of
// security updates, no mirror has the files of these updates.
func (a *Archive) Fetch(ctx context.Context, f File, to string) error {
	if !packagePath.MatchString(f.Path) || path.Clean(f.Path) != f.Path {
		return fmt.Errorf("%.200q is no path of a package below pool", f.Path)
	}
	bases := a.Mirrors.Main
	if strings.HasPrefix(f.Path, "pool/updates/") {
		bases = a.Mirrors.Security
	}
	if len(a.Mirrors.Main) == 0 {
		return ErrNoMirror
	}
	var failed []error
	for _, base := range bases {
		err := a.save(ctx, base, f, to)
		var status statusError
		var local *HostError
		switch {
		case err == nil || ctx.Err() != nil || errors.As(err, &local):
			return err
		case errors.As(err, &status) && status.lacks():
		default:
			failed = append(failed, err)
		}
	}
	if len(failed) == 0 {
		return fmt.Errorf("%s: %w", f.Path, ErrGone)
	}
	return errors.Join(failed...)
}

// save writes a mirror's file to the host, and compares size and digest.
func (a *Archive) save(ctx context.Context, base string, f File, to string) error {
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return &HostError{err}
	}
	defer out.Close()
	err = retry(ctx, func() error {
		if _, err := out.Seek(0, io.SeekStart); err != nil {
			return &HostError{err}
		}
		if err := out.Truncate(0); err != nil {
			return &HostError{err}
		}
		return a.read(ctx, base, f.Path, func(r io.Reader) error { return copyExactly(out, r, f) })
	})
	if err != nil {
		_ = os.Remove(to)
		return fmt.Errorf("fetch %s from %s: %w", f.Path, shown(base), err)
	}
	if err := out.Close(); err != nil {
		_ = os.Remove(to)
		return &HostError{err}
	}
	return nil
}

// HostError means that this host can't store a file, for example because its disk is full. No other mirror helps.
type HostError struct{ Err error }

func (e *HostError) Error() string { return e.Err.Error() }
func (e *HostError) Unwrap() error { return e.Err }

// hostWriter makes the errors of a writer a HostError.
type hostWriter struct{ io.Writer }

func (w hostWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		err = &HostError{err}
	}
	return n, err
}

// digestError means that a server's file has a wrong digest. Asking it again is useless.
type digestError struct{ got, want string }

func (e *digestError) Error() string {
	return fmt.Sprintf("its digest is sha256-%s, and sha256-%s is wanted", e.got, e.want)
}

func copyExactly(out io.Writer, r io.Reader, f File) error {
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(hostWriter{out}, h), io.LimitReader(r, f.Size+1))
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); n != f.Size || got != f.SHA256 {
		return &digestError{got, f.SHA256}
	}
	return nil
}

// retry calls do until it succeeds, at most attempts times. It gives up at once on an answer that will not change.
func retry(ctx context.Context, do func() error) (err error) {
	for i := range attempts {
		if i > 0 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Duration(i) * retryPause):
			}
		}
		err = do()
		var status statusError
		var other *digestError
		var local *HostError
		if err == nil || errors.As(err, &other) || errors.As(err, &local) ||
			errors.As(err, &status) && status < http.StatusInternalServerError {
			return err
		}
	}
	return err
}

// read passes the body of a named file below an address to a function. It fails if no byte comes for fetch.Silence.
func (a *Archive) read(ctx context.Context, base, name string, body func(io.Reader) error) error {
	u, err := url.Parse(base)
	if err != nil {
		return errors.New("the mirror's address is malformed: use http://HOST/debian or https://HOST/debian")
	}
	ctx, end := context.WithTimeoutCause(ctx, fileTime, fmt.Errorf("the file did not come in %s", fileTime))
	defer end()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath(strings.Split(name, "/")...).String(), nil)
	if err != nil {
		return err
	}
	// The digest covers the file as stored. Servers declare .gz files as encoded, and net/http would unpack them.
	r.Header.Set("Accept-Encoding", "identity")
	resp, err := client(u.Host).Do(r)
	if err != nil {
		return cause(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return statusError(resp.StatusCode)
	}
	return cause(ctx, body(resp.Body))
}

// cause returns why a request failed, without the request's address, which may have a login.
func cause(ctx context.Context, err error) error {
	var local *HostError
	if err == nil || errors.As(err, &local) {
		return err
	}
	if why := context.Cause(ctx); why != nil {
		return why
	}
	var at *url.Error
	if errors.As(err, &at) {
		err = at.Err
	}
	var is *digestError
	if errors.As(err, &is) {
		return is
	}
	return errors.New(bounded.Said(err.Error(), maxMessage))
}

// clients has an *http.Client for each host that the user named.
var clients sync.Map

func client(host string) *http.Client {
	c, ok := clients.Load(host)
	if !ok {
		c, _ = clients.LoadOrStore(host, &http.Client{Transport: fetch.Patient(fetch.Transport(nil, host))})
	}
	return c.(*http.Client)
}

// shown returns an address without its login.
func shown(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "the mirror"
	}
	u.User = nil
	return u.String()
}
