package mcp_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/hack/testhome"
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
			if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Tools) != 4 || got.Stdout != "hello from linux\n" || !got.IsError || got.Exit != 7 || !strings.Contains(got.Progress, "one\ntwo\n") {
				t.Errorf("%s: %v\n%s", how, err, out)
			}
		}
	})
}
