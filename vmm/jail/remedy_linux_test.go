package jail

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The remedy for a host that refuses namespaces depends on what refuses them.
func TestRemedy(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"nothing known": {nil, "as root"},
		"a container": {map[string]string{"/.dockerenv": "", "/proc/sys/user/max_user_namespaces": "0"},
			"--security-opt seccomp=unconfined"},
		"Podman's": {map[string]string{"/run/.containerenv": ""}, "--security-opt seccomp=unconfined"},
		"Debian's switch": {map[string]string{"/proc/sys/kernel/unprivileged_userns_clone": "0\n"},
			"kernel.unprivileged_userns_clone=1"},
		"none to be had": {map[string]string{"/proc/sys/user/max_user_namespaces": "0\n"}, "user.max_user_namespaces="},
		"Ubuntu's profile": {map[string]string{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
			"/proc/sys/user/max_user_namespaces": "15000\n"}, "AppArmor profile"},
	} {
		h := host{t.TempDir()}
		for path, text := range c.files {
			file := filepath.Join(h.root, path)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := namespaceRemedy(h); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, expected %s", name, got, c.want)
		}
	}
	for _, name := range strings.Fields(allLayers) {
		if Remedy(Hold{Name: name, Holds: true}) != "" {
			t.Errorf("%s holds and has a remedy", name)
		}
	}
	for _, l := range []string{Filesystem, Landlock, Seccomp} {
		if got := Remedy(Hold{Name: l, Why: "/x is " + ErrNoProgram.Error()}); !strings.Contains(got, "UNITASK_QEMU") {
			t.Errorf("%s of a script: %s", l, got)
		}
	}
	for _, name := range append(noNamespaces, Landlock, Groups, Seccomp) {
		if Remedy(Hold{Name: name}) == "" {
			t.Errorf("%s has no remedy", name)
		}
	}
}
