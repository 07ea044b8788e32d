package mcp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/tailscale/hujson"
	"go.yaml.in/yaml/v3"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
)

func config(t *testing.T, client, home string) *mcp.Config {
	t.Helper()
	cfg, err := mcp.ClientConfig(client, home, filepath.Join(home, "project"), "/usr/local/bin/unitask",
		[]string{"mcp", "--policy", "/x y/.unitask.toml"}, map[string]string{"UNITASK_HOME": "/h o/unitask", "PATH": "/a:/b"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(cfg.File, home) {
		t.Errorf("%s: %s", client, cfg.File)
	}
	return cfg
}

// read returns our entry of a client's file, and the number of servers in it.
func read(t *testing.T, file string) (entry map[string]any, servers int) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if strings.HasSuffix(file, ".toml") {
		err = toml.Unmarshal(text, &all)
	} else if strings.HasSuffix(file, ".yaml") {
		err = yaml.Unmarshal(text, &all)
	} else if text, err = hujson.Standardize(text); err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", file, err, text)
	}
	for _, key := range []string{"mcpServers", "servers", "mcp_servers", "context_servers", "mcp", "extensions"} {
		if m, ok := all[key].(map[string]any); ok {
			entry, _ = m["unitask"].(map[string]any)
			return entry, len(m)
		}
	}
	return nil, 0
}

// started returns the command line and the environment of a client's entry.
func started(entry map[string]any) (command []any, env any) {
	for _, key := range []string{"env", "environment", "envs"} {
		if entry[key] != nil {
			env = entry[key]
		}
	}
	if line, ok := entry["command"].([]any); ok {
		return line, env
	}
	for _, key := range []string{"command", "cmd"} {
		if entry[key] != nil {
			args, _ := entry["args"].([]any)
			return append([]any{entry[key]}, args...), env
		}
	}
	return nil, env
}

func TestClientConfig(t *testing.T) {
	for _, client := range mcp.Clients() {
		t.Run(client, func(t *testing.T) {
			home := testdir.Private(t)
			cfg := config(t, client, home)
			check := func(servers int) {
				t.Helper()
				entry, n := read(t, cfg.File)
				command, env := started(entry)
				if n != servers || fmt.Sprint(command) != "[/usr/local/bin/unitask mcp --policy /x y/.unitask.toml]" ||
					fmt.Sprint(env) != "map[PATH:/a:/b UNITASK_HOME:/h o/unitask]" {
					t.Errorf("%v, %d servers", entry, n)
				}
			}
			// Without any file.
			backup, err := cfg.Write()
			if err != nil || backup != "" {
				t.Fatalf("%q %v", backup, err)
			}
			check(1)
			// A second time: nothing changes.
			before, _ := os.ReadFile(cfg.File)
			if backup, err = cfg.Write(); err != nil || backup != "" {
				t.Fatalf("%q %v", backup, err)
			}
			if after, _ := os.ReadFile(cfg.File); string(after) != string(before) {
				t.Errorf("%s\n%s", before, after)
			}
			// Others' entries and comments stay, and our old entry is replaced.
			old := "// mine\n{\n  // a comment\n  \"other\": [1, 2],\n  \"" + key(before) +
				"\": {\"theirs\": {\"command\": \"x\"}, \"unitask\": {\"command\": \"old\", \"args\": []}, },\n}\n"
			if strings.HasSuffix(cfg.File, ".toml") {
				old = "# mine\nmodel = \"x\"\n[mcp_servers.theirs]\ncommand = \"x\"\n[mcp_servers.unitask]\ncommand = \"old\"\n" +
					"args = []\n[mcp_servers.unitask.env]\nA = \"b\"\n[other]\nx = 1 # one\n"
			}
			if strings.HasSuffix(cfg.File, ".yaml") {
				old = "# mine\nother: 1\nextensions:\n    theirs: {cmd: x}\n    unitask:\n        cmd: old\n        args: []\n"
			}
			if err := errors.Join(os.WriteFile(cfg.File, []byte(old), 0o600), os.Chmod(cfg.File, 0o600)); err != nil {
				t.Fatal(err)
			}
			if backup, err = cfg.Write(); err != nil || backup == "" {
				t.Fatalf("%q %v", backup, err)
			}
			check(2)
			text, _ := os.ReadFile(cfg.File)
			kept, _ := os.ReadFile(backup)
			st, err := os.Stat(cfg.File)
			if string(kept) != old || !strings.Contains(string(text), "mine") || !strings.Contains(string(text), "other") ||
				strings.Contains(string(text), "old") || err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("%s\n%v", text, st.Mode())
			}
			// An invalid file stays unchanged.
			if err := os.WriteFile(cfg.File, []byte("{ broken = "), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err = cfg.Write(); err == nil {
				t.Error("written over what is broken")
			}
			if text, _ := os.ReadFile(cfg.File); string(text) != "{ broken = " {
				t.Errorf("%s", text)
			}
		})
	}
	t.Run("a link stays one", func(t *testing.T) {
		keepConfigLink(t)
	})
}

// keepConfigLink checks that a configuration that is a link stays one.
func keepConfigLink(t *testing.T) {
	t.Helper()
	home, dotfiles := testdir.Private(t), t.TempDir()
	cfg := config(t, "cursor", home)
	real := filepath.Join(dotfiles, "mcp.json")
	if err := os.MkdirAll(filepath.Dir(cfg.File), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(real, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, cfg.File); err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.Write(); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(cfg.File); err != nil || target != real {
		t.Errorf("%s %v", target, err)
	}
	if entry, _ := read(t, real); entry == nil {
		t.Error("not written")
	}
}

func TestClientNames(t *testing.T) {
	if _, err := mcp.ClientConfig("emacs", "/h", "/p", "x", nil, nil); err == nil ||
		!strings.Contains(err.Error(), "claude-code, claude-desktop, cline, codex, cursor") {
		t.Error(err)
	}
	if cfg, err := mcp.ClientConfig("cursor", "/h", "/p", "x", []string{"mcp"}, nil); err != nil ||
		strings.Contains(cfg.Snippet, "env") {
		t.Errorf("%+v %v", cfg, err)
	}
	if cfg, err := mcp.ClientConfig("vscode-copilot", "/h", "/p", "x", nil, nil); err != nil || cfg.Client != "vscode" {
		t.Errorf("an alias: %+v %v", cfg, err)
	}
	t.Run("installed", func(t *testing.T) {
		home := t.TempDir()
		if err := os.MkdirAll(filepath.Join(home, ".cursor"), 0o700); err != nil {
			t.Fatal(err)
		}
		got := mcp.InstalledClients(home, func(program string) (string, error) {
			if program == "goose" {
				return "/bin/goose", nil
			}
			return "", errors.New("no")
		})
		if fmt.Sprint(got) != "[cursor goose]" {
			t.Errorf("%v", got)
		}
	})
}

// A file of YAML may have only comments, and no newline at its end. Of several documents none is lost.
func TestClientYAML(t *testing.T) {
	cfg := config(t, "goose", testdir.Private(t))
	if err := os.MkdirAll(filepath.Dir(cfg.File), 0o755); err != nil {
		t.Fatal(err)
	}
	for old, fails := range map[string]bool{"# mine": false, "# mine\n\n": false, "---\na: 1 # mine\n": false,
		"a: 1 # mine\n---\nb: 2\n": true, "a: 1 # mine\n---\n{": true} {
		if err := os.WriteFile(cfg.File, []byte(old), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := cfg.Write()
		text, _ := os.ReadFile(cfg.File)
		if (err != nil) != fails || fails && string(text) != old || !strings.Contains(string(text), "# mine\n") && !fails {
			t.Errorf("%q: %v\n%s", old, err, text)
		}
		if fails {
			continue
		}
		if entry, _ := read(t, cfg.File); entry == nil {
			t.Errorf("%q: no entry:\n%s", old, text)
		}
	}
}

func key(text []byte) string {
	for _, k := range []string{"mcpServers", "context_servers", "servers", "mcp"} {
		if strings.Contains(string(text), `"`+k+`": {`) {
			return k
		}
	}
	return ""
}

// An entry that a repository puts in the place of a client's file leads nowhere outside. It is not waited for, and does
// not fill the memory. Its text may contain comments.
func TestAttackClientConfig(t *testing.T) {
	const hostile = "/*\ntouch attacked\n*/ {}"
	for _, client := range []string{"claude-code", "vscode-copilot"} {
		for _, c := range []struct {
			name string
			make func(file, outside string) error
			want string
		}{
			{"a backup that is a link to a file", func(file, outside string) error {
				return errors.Join(os.WriteFile(file, []byte(hostile), 0o600), os.Symlink(outside+"/kept", file+".bak"))
			}, "written, kept is mine"},
			{"a backup that is a link to what is not there", func(file, outside string) error {
				return errors.Join(os.WriteFile(file, []byte(hostile), 0o600), os.Symlink(outside+"/made", file+".bak"))
			}, "written, kept is mine"},
			{"a link to a file", func(file, outside string) error { return os.Symlink(outside+"/json", file) },
				"leads out of the project, kept is mine"},
			{"a link by a link", func(file, outside string) error {
				return errors.Join(os.Symlink(outside, file+".d"), os.Symlink(filepath.Base(file)+".d/json", file))
			}, "leads out of the project, kept is mine"},
			{"a link to what is not there", func(file, outside string) error { return os.Symlink(outside+"/made", file) },
				"written, kept is mine"},
			{"a folder that is a link", func(file, outside string) error {
				if filepath.Base(filepath.Dir(file)) == "project" {
					return os.Symlink(outside+"/json", file)
				}
				return errors.Join(os.Remove(filepath.Dir(file)), os.Symlink(outside, filepath.Dir(file)))
			}, "leads out of the project, kept is mine"},
			{"a link inside", func(file, _ string) error {
				return errors.Join(os.WriteFile(file+".real", []byte(hostile), 0o600),
					os.Symlink(filepath.Base(file)+".real", file))
			}, "written, kept is mine"},
			{"a pipe", func(file, _ string) error { return syscall.Mkfifo(file, 0o600) }, "is not a regular file, kept is mine"},
			{"the endless", func(file, _ string) error { return os.Symlink("/dev/random", file) },
				"leads out of the project, kept is mine"},
			{"a gigabyte", func(file, _ string) error {
				return errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 1<<30))
			}, "has more than, kept is mine"},
		} {
			home, outside := testdir.Private(t), t.TempDir()
			cfg := config(t, client, home)
			if err := errors.Join(os.MkdirAll(filepath.Dir(cfg.File), 0o700),
				os.WriteFile(outside+"/kept", []byte("mine"), 0o600), os.WriteFile(outside+"/json", []byte("{}"), 0o600),
				c.make(cfg.File, outside)); err != nil {
				t.Fatal(err)
			}
			said := make(chan string, 1)
			go func() {
				_, err := cfg.Write()
				said <- fmt.Sprint(err)
			}()
			got := "it waits"
			select {
			case got = <-said:
			case <-time.After(5 * time.Second):
			}
			for _, known := range []string{"leads out of the project", "is not a regular file", "has more than"} {
				if strings.Contains(got, known) {
					got = known
				}
			}
			if got == "<nil>" {
				got = "written"
			}
			kept, err := os.ReadFile(outside + "/kept")
			got += ", kept is " + string(kept)
			if list, _ := os.ReadDir(outside); err != nil || len(list) != 2 {
				got += fmt.Sprintf(", %d files are outside", len(list))
			}
			if text, _ := os.ReadFile(outside + "/json"); string(text) != "{}" {
				got += ", and one was changed"
			}
			attack.Check(t, "a repository brings, as the file of "+client+", "+c.name, c.want, got)
		}
	}
}
