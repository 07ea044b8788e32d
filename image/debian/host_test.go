package debian

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// full is a file on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// If this host can't store a file, that is not the mirror's fault: one mirror is asked, once.
func TestFullDisk(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		fmt.Fprint(w, "a")
	}))
	defer server.Close()
	a := &Archive{Mirrors: Mirrors{Main: []string{server.URL, server.URL + "/other"}}}
	var local *HostError
	err := retry(t.Context(), func() error {
		return a.read(t.Context(), server.URL, "a", func(r io.Reader) error { return copyExactly(full{}, r, File{Size: 1}) })
	})
	if !errors.As(err, &local) || !errors.Is(err, syscall.ENOSPC) || asked != 1 {
		t.Errorf("%v, asked %d times", err, asked)
	}
	err = a.Fetch(t.Context(), File{Path: "pool/a", Size: 1}, filepath.Join(t.TempDir(), "not", "there"))
	if !errors.As(err, &local) || strings.Count(err.Error(), "not/there") != 1 || asked != 1 {
		t.Errorf("%v, asked %d times", err, asked)
	}
}

// A stalled or truncated download leaves nothing. If the caller ends it, it is not retried.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		w.Header().Set("Content-Length", "10")
		fmt.Fprint(w, "part")
		w.(http.Flusher).Flush()
		cancel(errors.New("enough"))
		<-r.Context().Done()
	}))
	defer server.Close()
	a := &Archive{Mirrors: Mirrors{Main: []string{server.URL, server.URL + "/other"}}}
	dir := t.TempDir()
	err := a.Fetch(ctx, File{Path: "pool/a", Size: 10}, filepath.Join(dir, "a"))
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if err == nil || !strings.Contains(err.Error(), "enough") || asked != 1 || len(left) > 0 {
		t.Errorf("%v, asked %d times, left %q", err, asked, left)
	}
}
