package wrapped

import (
	"slices"
	"strings"
	"testing"
)

// The command of a client's configuration becomes an image, packages and a command of the machine.
func TestTranslateServer(t *testing.T) {
	js := []string{"node", "-e", npxStart, "--"}
	py := []string{"python3", "-c", uvxStart}
	for command, want := range map[string]Server{
		"npx -y @scope/server a -b": {"node", []string{"npm:@scope/server"},
			append(slices.Clone(js), "@scope/server", "", "a", "-b")},
		"npx --yes @scope/server@1.2.3": {"node", []string{"npm:@scope/server@1.2.3"},
			append(slices.Clone(js), "@scope/server", "")},
		"/usr/bin/npx server@latest -y": {"node", []string{"npm:server"},
			append(slices.Clone(js), "server", "", "-y")},
		"npx -y -p one --package=two@3 x": {"node", []string{"npm:one", "npm:two@3"},
			append(slices.Clone(js), "one", "x")},
		"npx -y -- server": {"node", []string{"npm:server"},
			append(slices.Clone(js), "server", "")},
		"uvx mcp-server-time --zone UTC": {"python", []string{"pip:mcp-server-time"},
			append(slices.Clone(py), "mcp-server-time", "--zone", "UTC")},
		"uvx server@1.0": {"python", []string{"pip:server==1.0"},
			append(slices.Clone(py), "server")},
		"uvx server[cli]@latest": {"python", []string{"pip:server[cli]"},
			append(slices.Clone(py), "server")},
		"uvx --from big[x]==2 --with y go": {"python", []string{"pip:big[x]==2", "pip:y"},
			append(slices.Clone(py), "go")},
		"uvx --with y server": {"python", []string{"pip:server", "pip:y"},
			append(slices.Clone(py), "server")},
		"pipx run server": {"python", []string{"pip:server"},
			append(slices.Clone(py), "server")},
		"python -m server": {"python", nil, []string{"python3", "-m", "server"}},
		"node main.js":     {"node", nil, []string{"node", "main.js"}},
		"cat -":            {"shell", nil, []string{"cat", "-"}},
	} {
		got, err := Translate(strings.Fields(command))
		if err != nil || got.Image != want.Image || !slices.Equal(got.Packages, want.Packages) ||
			!slices.Equal(got.Args, want.Args) {
			t.Errorf("%s: %q %q %q %v", command, got.Image, got.Packages, got.Args, err)
		}
	}
	for command, want := range map[string]string{
		"npx": "a package must follow", "npx -y": "a package must follow", "npx -p": "a package must follow",
		"npx --registry=x y": "no such option", "npx -y git+ssh://x/y": "no package of npm",
		"uvx ./folder":       "no package of pip",
		"uvx --python 3.9 x": "no such option", "docker run -i x": "--image IMAGE", "npx -y ../x": "no package of npm",
	} {
		if got, err := Translate(strings.Fields(command)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q %v", command, got.Args, err)
		}
	}
}
