package mcp_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/mcp"
)

// The official Inspector and the TypeScript SDK's client, from npm, on real machines.
func TestOtherClients(t *testing.T) {
	nodePath := node(t)
	path := "PATH=" + filepath.Dir(nodePath) + ":" + os.Getenv("PATH")
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	home := testhome.New(t, base)
	rt := open(t, unitask.PoolSize{})
	url := serve(t, newServer(t, rt, mcp.Options{}), mcp.HTTPOptions{}) + "/mcp"

	t.Run("inspector", func(t *testing.T) {
		dir := npm(t, "inspector", "@modelcontextprotocol/inspector@2.12.0")
		for _, c := range []struct {
			args []string
			want string
		}{
			{[]string{"--strict", "--method", "tools/list"}, `"run_code"`},
			{[]string{"--method", "tools/call", "--tool-name", "run_code", "--tool-arg", "code=console.log(6 * 7)"}, `42`},
			{[]string{"--method", "resources/list"}, `unitask://runs/`},
			{[]string{"--method", "prompts/list"}, `"prompts"`},
		} {
			args := append([]string{filepath.Join(dir, "node_modules/.bin/mcp-inspector"), "--cli", "-e", "UNITASK_HOME=" + home, bin, "mcp", "--pool", "0"}, c.args...)
			out, err := run(t, t.TempDir(), []string{path}, args...)
			if err != nil || !strings.Contains(out, c.want) {
				t.Errorf("%v: %v\n%s", c.args, err, out)
			}
		}
	})
	t.Run("docs", func(t *testing.T) {
		text, err := os.ReadFile("../docs/mcp.md")
		if err != nil {
			t.Fatal(err)
		}
		snippet := regexp.MustCompile("(?ms)^```js\n(.*?)^```").FindSubmatch(text)
		if snippet == nil {
			t.Fatal("docs/mcp.md has no js block")
		}
		dir := npm(t, "sdk", "@modelcontextprotocol/sdk@1.32.2")
		name := filepath.Join(dir, "readme.mjs")
		if err := os.WriteFile(name, snippet[1], 0o600); err != nil {
			t.Fatal(err)
		}
		own := t.TempDir() // the client passes HOME on, and nothing of ours
		if err := os.Symlink(home, filepath.Join(own, ".unitask")); err != nil {
			t.Fatal(err)
		}
		out, err := run(t, dir, []string{"PATH=" + filepath.Dir(bin) + ":" + path[5:], "HOME=" + own}, name)
		if err != nil || out != "hello from linux\n\n" {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("typescript", func(t *testing.T) {
		dir := npm(t, "sdk", "@modelcontextprotocol/sdk@1.32.2")
		script, err := os.ReadFile("testdata/client.mjs")
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, "client.mjs") // beside its node_modules
		if err := os.WriteFile(name, script, 0o600); err != nil {
			t.Fatal(err)
		}
		for how, args := range map[string][]string{"stdio": {bin}, "http": {url}} {
			out, err := run(t, dir, []string{path, "UNITASK_HOME=" + home}, append([]string{name}, args...)...)
			if err != nil {
				t.Errorf("%s: %v\n%s", how, err, out)
				continue
			}
			var got struct {
				Tools    []string
				Stdout   string
				IsError  bool
				Progress string
				Exit     int
			}
			if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Tools) != 8 || got.Stdout != "hello from linux\n" || !got.IsError || got.Exit != 7 || !strings.Contains(got.Progress, "one\ntwo\n") {
				t.Errorf("%s: %v\n%s", how, err, out)
			}
		}
	})
}

// What `make dist` builds is what the official validator takes, and starts.
func TestBundle(t *testing.T) {
	if os.Getenv("UNITASK_TEST_LONG") == "" {
		t.Skip("builds the command as a release is built: make long")
	}
	nodePath := node(t)
	out := t.TempDir()
	cmd := exec.Command("go", "run", "./hack/dist", "-version", "0.0.1", "-o", out, "-only", runtime.GOOS+"/"+runtime.GOARCH)
	cmd.Dir = ".."
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var entry struct {
		Packages []struct{ Identifier, FileSha256 string }
	}
	text, err := os.ReadFile(filepath.Join(out, "server.json"))
	if err != nil || json.Unmarshal(text, &entry) != nil || len(entry.Packages) != 1 {
		t.Fatalf("%v %s", err, text)
	}
	dir := npm(t, "mcpb", "@anthropic-ai/mcpb@2.1.2")
	path := "PATH=" + filepath.Dir(nodePath) + ":" + os.Getenv("PATH")
	for _, p := range entry.Packages {
		name := filepath.Join(out, filepath.Base(p.Identifier))
		text, err := os.ReadFile(name)
		if err != nil || fmt.Sprintf("%x", sha256.Sum256(text)) != p.FileSha256 {
			t.Errorf("%s: %v", name, err)
		}
		to := t.TempDir()
		if text, err := run(t, to, []string{path}, filepath.Join(dir, "node_modules/.bin/mcpb"), "unpack", name, to); err != nil {
			t.Errorf("unpack: %v\n%s", err, text)
		}
		if text, err := run(t, to, []string{path}, filepath.Join(dir, "node_modules/.bin/mcpb"), "validate", filepath.Join(to, "manifest.json")); err != nil {
			t.Errorf("validate: %v\n%s", err, text)
		}
		if text, err := exec.Command(filepath.Join(to, "server", "unitask"), "--version").CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
}
