package cli

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/mcp"
)

// A client's configuration contains the variables that a client started from a desktop lacks, and no others.
func TestDesktopEnv(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	const mac, linux = "/usr/bin:/bin:/usr/sbin:/sbin", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for name, c := range map[string]struct {
		env      map[string]string
		programs map[string]string
		goos     string
		want     map[string]string
	}{
		"nothing": {nil, nil, "linux", nil},
		"all is where it is": {nil, map[string]string{"qemu-system-x86_64": "/usr/bin", "npm": "/usr/local/bin",
			"gcc": "/usr/bin"}, "linux", nil},
		"a home": {map[string]string{"UNITASK_HOME": "/data/unitask", "HOME": "/home/me", "SECRET": "x"}, nil,
			"linux", map[string]string{"UNITASK_HOME": "/data/unitask"}},
		"a home beside us": {map[string]string{"UNITASK_HOME": "unitask"}, nil, "linux",
			map[string]string{"UNITASK_HOME": filepath.Join(here, "unitask")}},
		"a QEMU, and parts": {map[string]string{"UNITASK_QEMU": "/opt/qemu/bin/",
			"UNITASK_PARTS_URL": "https://example.com/parts", "UNITASK_OFFLINE": "1"}, nil, "linux",
			map[string]string{"UNITASK_QEMU": "/opt/qemu/bin", "UNITASK_PARTS_URL": "https://example.com/parts",
				"UNITASK_OFFLINE": "1"}},
		"Homebrew": {nil, map[string]string{"qemu-system-x86_64": "/opt/homebrew/bin",
			"qemu-system-aarch64": "/opt/homebrew/bin", "npm": "/opt/homebrew/bin", "gcc": "/usr/bin"}, "darwin",
			map[string]string{"PATH": "/opt/homebrew/bin:" + mac}},
		"/usr/local on macOS": {nil, map[string]string{"npm": "/usr/local/bin"}, "darwin",
			map[string]string{"PATH": "/usr/local/bin:" + mac}},
		"a version manager": {nil, map[string]string{"qemu-system-x86_64": "/opt/qemu", "npm": "/home/me/.nvm/bin"},
			"linux", map[string]string{"PATH": "/opt/qemu:/home/me/.nvm/bin:" + linux}},
		"a folder that is not": {nil, map[string]string{"npm": "bin"}, "linux", nil}, // from anywhere
	} {
		t.Run(name, func(t *testing.T) {
			h := host{func(name string) string { return c.env[name] }, func(program string) (string, error) {
				if dir, ok := c.programs[program]; ok {
					return dir + "/" + program, nil
				}
				return "", fmt.Errorf("no %s", program)
			}, c.goos}
			if got := h.desktopEnv(); !maps.Equal(got, c.want) {
				t.Errorf("%v, not %v", got, c.want)
			}
		})
	}
}

// README.md and mcp config agree on what a model may reach.
func TestDefaultReach(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(strings.Join(strings.Fields(string(readme)), " "), "`", "")
	if !strings.Contains(text, mcp.DefaultReach) {
		t.Errorf("README.md does not say %q", mcp.DefaultReach)
	}
}
