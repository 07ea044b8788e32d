package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/tailscale/hujson"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/regular"
)

// client describes where an MCP client stores its servers.
type client struct {
	// file is the configuration's path: in the home, in the project, or by system.
	file func(home, project string) string
	// key is the member that contains the servers; entry is the form of a server.
	key   string
	entry func(command string, args []string) map[string]any
	toml  bool
}

func plainEntry(command string, args []string) map[string]any {
	return map[string]any{"command": command, "args": args}
}

func typedEntry(command string, args []string) map[string]any {
	return map[string]any{"type": "stdio", "command": command, "args": args}
}

func homeFile(parts ...string) func(string, string) string {
	return func(home, _ string) string { return filepath.Join(append([]string{home}, parts...)...) }
}

// appFile is a file below the folder that desktop programs keep their configuration in.
func appFile(parts ...string) func(string, string) string {
	folder := []string{".config"}
	if runtime.GOOS == "darwin" {
		folder = []string{"Library", "Application Support"}
	}
	return homeFile(append(folder, parts...)...)
}

var clients = map[string]client{
	"claude-code": {func(_, project string) string { return filepath.Join(project, ".mcp.json") }, "mcpServers",
		typedEntry, false},
	"claude-desktop": {appFile("Claude", "claude_desktop_config.json"), "mcpServers", plainEntry, false},
	"cline": {appFile("Code", "User", "globalStorage", "saoudrizwan.claude-dev", "settings", "cline_mcp_settings.json"),
		"mcpServers", plainEntry, false},
	"cursor": {homeFile(".cursor", "mcp.json"), "mcpServers", plainEntry, false},
	"vscode-copilot": {func(_, project string) string { return filepath.Join(project, ".vscode", "mcp.json") }, "servers",
		typedEntry, false},
	"gemini-cli": {homeFile(".gemini", "settings.json"), "mcpServers", plainEntry, false},
	"codex":      {homeFile(".codex", "config.toml"), "mcp_servers", plainEntry, true},
	"windsurf":   {homeFile(".codeium", "windsurf", "mcp_config.json"), "mcpServers", plainEntry, false},
	"zed":        {homeFile(".config", "zed", "settings.json"), "context_servers", plainEntry, false},
}

// Clients returns the names that ClientConfig accepts.
func Clients() []string { return slices.Sorted(maps.Keys(clients)) }

// Config is a client's configuration for unitask.
type Config struct {
	File    string // its path
	Snippet string // its text, as a separate file
	project string // the project that it belongs to, with files of a repository; "" for the home's
	client  client
	entry   map[string]any
}

// serverName is unitask's name in clients' configuration.
const serverName = "unitask"

// ClientConfig returns the configuration of a client that starts command with args, and with env in addition to
// its own environment.
func ClientConfig(name, home, project, command string, args []string, env map[string]string) (*Config, error) {
	c, ok := clients[name]
	if !ok {
		return nil, fmt.Errorf("client %q: use %s", name, strings.Join(Clients(), ", "))
	}
	entry := c.entry(command, args)
	if len(env) > 0 {
		entry["env"] = env
	}
	cfg := &Config{File: c.file(home, project), client: c, entry: entry}
	if c.file(home, "") != cfg.File {
		cfg.project = project
	}
	whole := map[string]any{c.key: map[string]any{serverName: cfg.entry}}
	if c.toml {
		var b strings.Builder
		enc := toml.NewEncoder(&b)
		enc.Indent = ""
		if err := enc.Encode(whole); err != nil {
			return nil, err
		}
		cfg.Snippet = strings.TrimPrefix(b.String(), "["+c.key+"]\n")
		return cfg, nil
	}
	text, err := json.MarshalIndent(whole, "", "  ")
	cfg.Snippet = string(text) + "\n"
	return cfg, err
}

// Write adds the server to the client's file, and leaves everything else in it unchanged, comments too. The
// previous file is kept in backup, "" if there was none.
func (c *Config) Write() (backup string, err error) {
	real, err := c.real()
	if err != nil {
		return "", err
	}
	old, err := regular.Read(real, maxClientFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	mode := fs.FileMode(0o644)
	if st, err := os.Stat(c.File); err == nil {
		mode = st.Mode().Perm()
	}
	merged, err := c.merge(old)
	if err != nil {
		return "", fmt.Errorf("%s: %w: it was left as it is", c.File, err)
	}
	if string(merged) == string(old) {
		return "", nil
	}
	if err := os.MkdirAll(filepath.Dir(c.File), 0o755); err != nil {
		return "", err
	}
	if old != nil {
		backup = c.File + ".bak"
		if err := atomicfile.Write(backup, old, mode); err != nil { // follows no link
			return "", err
		}
	}
	return backup, atomicfile.Write(real, merged, mode)
}

// maxClientFile bounds a client's file.
const maxClientFile = 16 << 20

// real returns the file's real path: a link (into a dotfiles folder, say) stays a link. In a project, whose links
// may be a stranger's, the target must be in that folder.
func (c *Config) real() (string, error) {
	real := c.File
	if to, err := filepath.EvalSymlinks(c.File); err == nil {
		real = to
	} else if dir, err := filepath.EvalSymlinks(filepath.Dir(c.File)); err == nil {
		real = filepath.Join(dir, filepath.Base(c.File))
	} else {
		return real, nil // its folder is made
	}
	if c.project == "" {
		return real, nil
	}
	top, err := filepath.EvalSymlinks(c.project)
	if err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(top, real); err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%s leads out of the project, to %s: remove the link", c.File, real)
	}
	return real, nil
}

func (c *Config) merge(old []byte) ([]byte, error) {
	if strings.TrimSpace(string(old)) == "" {
		return []byte(c.Snippet), nil
	}
	if c.client.toml {
		return c.mergeTOML(old)
	}
	doc, err := hujson.Parse(old)
	if err != nil {
		return nil, err
	}
	entry, err := json.MarshalIndent(c.entry, "    ", "  ")
	if err != nil {
		return nil, err
	}
	at := "/" + c.client.key
	if now := doc.Find(at + "/" + serverName); now != nil && same(now.Pack(), entry) {
		return old, nil
	}
	patch := fmt.Sprintf(`{"op":"add","path":"%s/%s","value":%s}`, at, serverName, entry)
	if doc.Find(at) == nil {
		patch = fmt.Sprintf(`{"op":"add","path":"%s","value":{}},`, at) + patch
	}
	if err := doc.Patch([]byte("[" + patch + "]")); err != nil {
		return nil, err
	}
	// On separate lines; the rest of the file keeps its format.
	indent(&doc, c.client.key, "\n  ")
	indent(doc.Find(at), serverName, "\n    ")
	return doc.Pack(), nil
}

// same reports whether two JSON texts have the same meaning.
func same(a, b []byte) bool {
	a, err := hujson.Minimize(a)
	if err != nil {
		return false
	}
	b, err = hujson.Minimize(b)
	return err == nil && string(a) == string(b)
}

// indent puts a member without anything before it on its own line.
func indent(v *hujson.Value, name, before string) {
	object, ok := v.Value.(*hujson.Object)
	if !ok {
		return
	}
	for i := range object.Members {
		m := &object.Members[i]
		if literal, ok := m.Name.Value.(hujson.Literal); !ok || literal.String() != name || len(m.Name.BeforeExtra) > 0 {
			continue
		}
		m.Name.BeforeExtra, m.Value.BeforeExtra = hujson.Extra(before), hujson.Extra(" ")
		if i == len(object.Members)-1 && len(object.AfterExtra) == 0 {
			object.AfterExtra = hujson.Extra(before[:len(before)-2])
		}
	}
}

// mergeTOML replaces our table, or appends it.
func (c *Config) mergeTOML(old []byte) ([]byte, error) {
	var all map[string]any
	if err := toml.Unmarshal(old, &all); err != nil {
		return nil, err
	}
	table := "[" + c.client.key + "." + serverName
	var out strings.Builder
	ours := false
	for line := range strings.Lines(string(old)) {
		if trimmed := strings.TrimSpace(line); strings.HasPrefix(trimmed, "[") {
			ours = strings.HasPrefix(trimmed, table+"]") || strings.HasPrefix(trimmed, table+".")
		}
		if !ours {
			out.WriteString(line)
		}
	}
	text := strings.TrimRight(out.String(), "\n")
	if text != "" {
		text += "\n\n"
	}
	text += c.Snippet
	var now map[string]any
	if err := toml.Unmarshal([]byte(text), &now); err != nil { // ours in another form than a table
		return nil, fmt.Errorf("it has %s in a form that can't be replaced: put this there:\n%s", serverName, c.Snippet)
	}
	return []byte(text), nil
}
