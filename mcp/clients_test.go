package mcp_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testregistry"
	"github.com/unitask/unitask/mcp"
)

// The official Inspector, from npm, and the program in the docs, on real machines.
func TestOtherClients(t *testing.T) {
	nodePath := node(t)
	path := "PATH=" + filepath.Dir(nodePath) + ":" + os.Getenv("PATH")
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	home := testhome.New(t, base)

	t.Run("inspector", func(t *testing.T) {
		dir := npm(t, "inspector", "@modelcontextprotocol/inspector@2.12.0")
		for _, c := range []struct {
			args []string
			want string
		}{
			{[]string{"--strict", "--method", "tools/list"}, `"run_code"`},
			{[]string{"--method", "tools/call", "--tool-name", "run_code", "--tool-arg", "language=js",
				"code=console.log(6 * 7)"}, `42`},
			{[]string{"--method", "resources/list"}, `unitask://runs/`},
			{[]string{"--method", "prompts/list"}, `"prompts"`},
		} {
			args := append([]string{filepath.Join(dir, "node_modules/.bin/mcp-inspector"), "--cli", "-e", "UNITASK_HOME=" + home,
				bin, "mcp", "--pool", "0"}, c.args...)
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
		own := t.TempDir() // the client passes on HOME, but no variables of ours
		if err := os.Symlink(home, filepath.Join(own, ".unitask")); err != nil {
			t.Fatal(err)
		}
		out, err := run(t, dir, []string{"PATH=" + filepath.Dir(bin) + ":" + path[5:], "HOME=" + own}, name)
		if err != nil || out != "hello from linux\n\n" {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// found is what the programs testdata/client.* find through an SDK.
type found struct {
	Tools, Resources, Prompts                            []string
	Templates, Exit, Sessions                            int
	Prompt, Cancelled, Value, Command, Waited, Put       string
	Read                                                 map[string]string
	Images, Listed, Inspected, Completed, Progress, File bool
	Doctor, Wrong                                        bool
}

// The official SDKs for TypeScript and Python use all features, on real machines. Both refuse data that is not in their
// schemas, such as a resource with neither text nor bytes.
func TestSDKs(t *testing.T) {
	nodePath := node(t)
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	prompts := t.TempDir()
	if err := os.WriteFile(filepath.Join(prompts, "hello.py"), []byte("print('hi')"), 0o600); err != nil {
		t.Fatal(err)
	}
	for sdk, prepare := range map[string]func(*testing.T) (command, env []string){
		"typescript": func(t *testing.T) (command, env []string) {
			name := filepath.Join(npm(t, "sdk", "@modelcontextprotocol/sdk@1.32.2"), "client.mjs") // beside its node_modules
			script, err := os.ReadFile("testdata/client.mjs")
			if err == nil {
				err = os.WriteFile(name, script, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			return []string{nodePath, name}, nil
		},
		"python": func(t *testing.T) (command, env []string) {
			return []string{"python3", "testdata/client.py"}, []string{"PYTHONPATH=" + pip(t, "sdk", "mcp==2.3.0")}
		},
	} {
		t.Run(sdk, func(t *testing.T) {
			command, env := prepare(t)
			t.Run("stdio", func(t *testing.T) {
				t.Parallel()
				checkFound(t, lookAround(t, command, env, bin, prompts))
			})
			t.Run("http", func(t *testing.T) {
				t.Parallel()
				server := newServer(t, open(t, unitask.PoolSize{}), mcp.Options{Prompts: prompts})
				mcp.SetDoctor(server, func(context.Context) *doctor.Report { // the real one, which boots, answers on stdio
					return &doctor.Report{OK: true, Checks: []doctor.Check{{Name: "test", OK: true}},
						Accelerators: []doctor.AccelReport{}}
				})
				checkFound(t, lookAround(t, command, env, serve(t, server, mcp.HTTPOptions{})+"/mcp", prompts))
			})
		})
	}
}

// lookAround makes an SDK use a server, which is a program or a URL.
func lookAround(t *testing.T, command, env []string, at, prompts string) (got found) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], append(slices.Clone(command[1:]), at, prompts)...)
	cmd.Env = append(append(os.Environ(), env...), "UNITASK_HOME="+testhome.New(t, base))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &got)
	}
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, errs.String())
	}
	return got
}

// checkFound compares the results of an SDK with the expected ones.
func checkFound(t *testing.T, got found) {
	t.Helper()
	if _, ok := got.Read["/console"]; !ok {
		t.Error("no console was read")
	}
	delete(got.Read, "/console") // it comes from the kernel
	if !strings.Contains(got.Prompt, "print('hi')") {
		t.Errorf("the prompt is %q", got.Prompt)
	}
	got.Prompt = ""
	want := found{
		Tools: []string{"inspect_run", "list_runs", "manage_session", "run_code", "session_command", "session_files",
			"unitask_doctor", "wait_command"},
		Resources: []string{"unitask://images", "unitask://stats"}, Prompts: []string{"hello"}, Templates: 3,
		Read: map[string]string{
			"": "true", "/code": "true", "/inlineFiles": "true", "/stdout": "é\n", "/stderr": "", "/netlog": "",
			"/artifacts/bytes": "0001", "/artifacts/none": "",
		},
		Images: true, Listed: true, Inspected: true, Completed: true, Exit: 7, Progress: true, Cancelled: "cancelled",
		Value: "42", Command: "hi\n", File: true, Waited: "cancelled", Put: `{"y":[1,null]}`, Sessions: 1,
		Doctor: true, Wrong: true,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// pip installs packages of PyPI, once, and returns their folder.
func pip(t *testing.T, name string, packages ...string) string {
	t.Helper()
	return testregistry.Pip(t, base, name, packages...)
}

// The official validator accepts the output of `make dist`, and the output starts.
func TestBundle(t *testing.T) {
	if os.Getenv("UNITASK_TEST_LONG") == "" {
		t.Skip("builds the command as a release is built: make long")
	}
	nodePath := node(t)
	out := t.TempDir()
	cmd := exec.Command("go", "run", "./hack/dist", "-version", "0.0.1", "-o", out, "-only",
		runtime.GOOS+"/"+runtime.GOARCH)
	cmd.Dir = ".."
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var entry struct {
		Packages []struct{ RegistryType, Identifier, FileSha256 string }
	}
	text, err := os.ReadFile(filepath.Join(out, "server.json"))
	if err != nil || json.Unmarshal(text, &entry) != nil || len(entry.Packages) != 3 {
		t.Fatalf("%v %s", err, text)
	}
	dir := npm(t, "mcpb", "@anthropic-ai/mcpb@2.1.2")
	path := "PATH=" + filepath.Dir(nodePath) + ":" + os.Getenv("PATH")
	for _, p := range entry.Packages {
		if p.RegistryType != "mcpb" {
			if p.Identifier != "unitask" || p.FileSha256 != "" {
				t.Errorf("%+v", p)
			}
			continue
		}
		name := filepath.Join(out, filepath.Base(p.Identifier))
		text, err := os.ReadFile(name)
		if err != nil || fmt.Sprintf("%x", sha256.Sum256(text)) != p.FileSha256 {
			t.Errorf("%s: %v", name, err)
		}
		to := t.TempDir()
		if text, err := run(t, to, []string{path}, filepath.Join(dir, "node_modules/.bin/mcpb"), "unpack", name,
			to); err != nil {
			t.Errorf("unpack: %v\n%s", err, text)
		}
		if text, err := run(t, to, []string{path}, filepath.Join(dir, "node_modules/.bin/mcpb"), "validate",
			filepath.Join(to, "manifest.json")); err != nil {
			t.Errorf("validate: %v\n%s", err, text)
		}
		program := exec.Command(filepath.Join(to, "server", "unitask"), "--version")
		if text, err := program.CombinedOutput(); err != nil || string(text) != "unitask v0.0.1\n" {
			t.Errorf("%v\n%s", err, text)
		}
	}
}
