package selfupdate

import (
	"archive/tar"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// A final release takes no prerelease: who offers releases could choose one that was signed for a test.
func TestAttackPrerelease(t *testing.T) {
	for _, row := range []struct{ has, offered, want string }{
		{"v1.2.3", "v1.3.0-rc.1", "refused"}, {"v1.3.0-rc.1", "v1.3.0-rc.2", "newer"}, {"v1.3.0-rc.1", "v1.3.0", "newer"},
		{"v1.3.0", "v1.3.0-rc.1", "refused"}, {"v1.2.3", "v1.2.3+build", "same"},
	} {
		newer, err := (&Release{Version: row.offered}).Newer(row.has)
		got := "same"
		if newer {
			got = "newer"
		}
		if err != nil {
			got = "refused"
		}
		attack.Check(t, row.offered+" for "+row.has, row.want, got)
	}
}

// A release from https never comes by http.
func TestAttackRedirect(t *testing.T) {
	for _, row := range []struct{ from, to, want string }{
		{"https://a.example.com/x", "https://b.example.com/x", "followed"},
		{"https://a.example.com/x", "http://a.example.com/x", "refused"},
		{"http://a.example.com/x", "http://b.example.com/x", "followed"},
	} {
		from, to := httptest.NewRequest(http.MethodGet, row.from, nil), httptest.NewRequest(http.MethodGet, row.to, nil)
		got := "followed"
		if redirected(to, []*http.Request{from}) != nil {
			got = "refused"
		}
		attack.Check(t, row.from+" leads to "+row.to, row.want, got)
		if redirected(from, make([]*http.Request, maxRedirects+1)) == nil {
			t.Error("endless redirects")
		}
	}
}

// A server may call an archive an encoded answer, as some do for each name that ends in .gz.
func TestAttackAnswers(t *testing.T) {
	public, private := pair(t)
	next := release(t, private, "v1.3.0", packed(t, tar.Header{Name: inArchive}, program("v1.3.0")))
	encoded := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".gz") {
			w.Header().Set("Content-Encoding", "gzip")
		}
		http.ServeFile(w, r, filepath.Join(next, filepath.Base(r.URL.Path)))
	}))
	defer encoded.Close()
	is, _, fault := update(t, Publisher{public, encoded.URL})
	attack.Check(t, "an archive as an encoded answer", "unitask v1.3.0", is+fault)
}
