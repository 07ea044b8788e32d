package image

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// npm, go and apt quote the login of a registry or proxy. Our errors do not.
func TestAttackToolSays(t *testing.T) {
	if testing.Short() {
		t.Skip("starts npm, go and apt; not in -short")
	}
	const login = "someuser:verysecret"
	const at = "http://" + login + "@127.0.0.1:1"
	for _, row := range []struct {
		tool string
		set  map[string]string
		run  func(t *testing.T) error
	}{
		{"npm", map[string]string{"npm_config_registry": at + "/", "npm_config_fetch_retries": "0"},
			func(t *testing.T) error {
				_, err := npmDownload(t.Context(), LockedPart{Package: "isarray", Version: "2.0.5"}, t.TempDir())
				return err
			}},
		{"go", map[string]string{"GOPROXY": at, "GONOSUMDB": "*", "GOFLAGS": "-mod=mod"}, func(t *testing.T) error {
			_, err := goDownload(t.Context(), LockedPart{Package: "golang.org/x/none", Version: "v0.0.1"}, t.TempDir())
			return err
		}},
		{"go, by a proxy", map[string]string{"GOPROXY": "http://go.example", "HTTP_PROXY": at, "http_proxy": at,
			"GONOSUMDB": "*"}, func(t *testing.T) error {
			_, err := goDownload(t.Context(), LockedPart{Package: "golang.org/x/none", Version: "v0.0.1"}, t.TempDir())
			return err
		}},
		{"apt-get", nil, func(t *testing.T) error {
			s := fakeStore(t)
			s.Mirror = at + "/debian"
			_, err := s.Parts().Debs(t.Context(), HostArch(), nil, true, []string{"jq"}, nil, t.TempDir())
			return err
		}},
	} {
		name, _, _ := strings.Cut(row.tool, ",")
		if _, err := exec.LookPath(name); err != nil {
			t.Logf("%s is not on this machine", name)
			continue
		}
		for k, v := range row.set {
			t.Setenv(k, v)
		}
		err := row.run(t)
		got := "an error without the login"
		if err == nil || strings.Contains(err.Error(), "verysecret") || strings.Contains(err.Error(), "someuser") {
			got = "no error"
			if err != nil {
				got = err.Error()
			}
		}
		t.Log(err)
		attack.Check(t, "a registry with a login that does not answer: "+row.tool, "an error without the login", got)
	}
}
