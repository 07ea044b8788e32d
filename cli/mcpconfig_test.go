package cli

import (
	"bytes"
	"fmt"
	"io"
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
			if got := h.desktopEnv("/opt/unitask/unitask"); !maps.Equal(got, c.want) {
				t.Errorf("%v, not %v", got, c.want)
			}
		})
	}
}

// A program in a cache of npx or uvx is started by that command, whose folder a desktop's PATH may lack.
func TestRunner(t *testing.T) {
	const npx, uvx = "/home/me/.npm/_npx/0a1b/node_modules/@unitask/", "/home/me/.cache/uv/archive-v0/x1/"
	for _, row := range [][3]string{
		{npx + "linux-x64/unitask", "", "npx --prefix /home/me/.npm/_npx -y unitask mcp"},
		{npx + "linux-x64/unitask", "/opt/share", "npx --prefix /home/me/.npm/_npx -y unitask mcp"},
		{npx + "linux-x64/unitask", npx + "parts-linux-x64/share/unitask",
			"npx --prefix /home/me/.npm/_npx -y -p unitask -p @unitask/parts-linux-x64 unitask mcp"},
		{uvx + "bin/unitask", "", "uvx unitask mcp"},
		{uvx + "bin/unitask", uvx + "share/unitask", "uvx --with unitask-parts unitask mcp"},
		{"/usr/bin/unitask", "/usr/share/unitask", "/usr/bin/unitask mcp"},
	} {
		command, args := runner(row[0], row[1])
		if got := strings.Join(append([]string{command}, args...), " "); got != row[2] {
			t.Errorf("%s: %s, not %s", row[0], got, row[2])
		}
	}
	h := host{func(name string) string { // npx' own value does not stay
		return map[string]string{"UNITASK_SHARE": npx + "parts-linux-x64/share/unitask"}[name]
	}, func(program string) (string, error) {
		if program == "npx" {
			return "/home/me/.nvm/bin/npx", nil
		}
		return "", fmt.Errorf("no %s", program)
	}, "linux"}
	if got := h.desktopEnv("npx"); len(got) != 1 || !strings.HasPrefix(got["PATH"], "/home/me/.nvm/bin:") {
		t.Errorf("the environment is %q", got)
	}
}

// A client whose file can't be changed does not keep the others of --all from theirs.
func TestConfigAll(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("PATH", home)
	t.Chdir(home)
	for name, text := range map[string]string{".cursor/mcp.json": "{ broken", ".lmstudio/mcp.json": "{}"} {
		file := filepath.Join(home, name)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err == nil {
			err = os.WriteFile(file, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var errs bytes.Buffer
	code := Main([]string{"mcp", "config", "--all", "--write"},
		Streams{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &errs})
	written, err := os.ReadFile(filepath.Join(home, ".lmstudio", "mcp.json"))
	if code == 0 || !strings.Contains(errs.String(), ".cursor/mcp.json") || !strings.Contains(string(written), "unitask") {
		t.Errorf("exit code %d, %v, %s\n%s", code, err, written, &errs)
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
