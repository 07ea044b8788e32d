package cli

import (
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/internal/testwait"
)

// The command of a client's configuration becomes an image, packages and a command of the machine.
func TestTranslateServer(t *testing.T) {
	js := []string{"node", "-e", npxStart, "--"}
	py := []string{"python3", "-c", uvxStart}
	for command, want := range map[string]wrapped{
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
		got, err := translate(strings.Fields(command))
		if err != nil || got.image != want.image || !slices.Equal(got.packages, want.packages) ||
			!slices.Equal(got.args, want.args) {
			t.Errorf("%s: %q %q %q %v", command, got.image, got.packages, got.args, err)
		}
	}
	for command, want := range map[string]string{
		"npx": "a package must follow", "npx -y": "a package must follow", "npx -p": "a package must follow",
		"npx --registry=x y": "no such option", "npx -y git+ssh://x/y": "no package of npm",
		"uvx ./folder":       "no package of pip",
		"uvx --python 3.9 x": "no such option", "docker run -i x": "--image IMAGE", "npx -y ../x": "no package of npm",
	} {
		if got, err := translate(strings.Fields(command)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q %v", command, got.args, err)
		}
	}
}

// The configuration that docs/agents.md shows has commands that start.
func TestWrapDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```json\n")
	text, _, _ = strings.Cut(text, "```\n")
	var shown struct {
		MCPServers map[string]struct {
			Command string
			Args    []string
		}
	}
	if err := json.Unmarshal([]byte(text), &shown); err != nil || len(shown.MCPServers) == 0 {
		t.Fatalf("%v %s", err, text)
	}
	for name, server := range shown.MCPServers {
		cmd, args, err := Command().Find(server.Args)
		if err != nil || cmd.Name() != "wrap" || server.Command != "unitask" {
			t.Fatalf("%s: %v %v", name, cmd, err)
		}
		if err := cmd.ParseFlags(args); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := translate(cmd.Flags().Args()); err != nil || cmd.ArgsLenAtDash() != 0 {
			t.Errorf("%s: %q %v", name, cmd.Flags().Args(), err)
		}
	}
}

// A server ends if it prints nothing for some time after the end of its input. Until then it may be silent.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Bool
		l := &linger{end: func() { ended.Store(true) }}
		in, out := &wrapInput{strings.NewReader("x"), l}, &wrapOutput{io.Discard, l}
		step := func(d time.Duration) {
			testwait.Pass(d)
			synctest.Wait()
		}
		buffer := make([]byte, 1)
		if _, err := in.Read(buffer); err != nil {
			t.Fatal(err)
		}
		step(time.Hour)
		if _, err := in.Read(buffer); err != io.EOF {
			t.Fatal(err)
		}
		step(lingerTime / 2)
		_, _ = out.Write(buffer)
		step(lingerTime / 2)
		if ended.Load() {
			t.Error("it has ended although it printed")
		}
		step(lingerTime)
		if !ended.Load() {
			t.Error("it has not ended")
		}
		l.stop()
	})
}
