package mcp

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// client describes where an MCP client stores its servers.
type client struct {
	// file is the configuration's path: in the home, in the project, or by system.
	file func(home, project string) string
	// key is the member that contains the servers; entry is the form of a server.
	key    string
	entry  func(command string, args []string, env map[string]string) map[string]any
	format format
	// sign is a program on PATH, or a path in the home (it has a slash), of a host that has the client.
	sign string
}

// format is the language of a client's file.
type format int

const (
	inJSON format = iota // with comments
	inTOML
	inYAML
)

func plainEntry(command string, args []string, env map[string]string) map[string]any {
	entry := map[string]any{"command": command, "args": args}
	if len(env) > 0 {
		entry["env"] = env
	}
	return entry
}

func typedEntry(command string, args []string, env map[string]string) map[string]any {
	entry := plainEntry(command, args, env)
	entry["type"] = "stdio"
	return entry
}

func openCodeEntry(command string, args []string, env map[string]string) map[string]any {
	entry := map[string]any{"type": "local", "command": append([]string{command}, args...), "enabled": true}
	if len(env) > 0 {
		entry["environment"] = env
	}
	return entry
}

func gooseEntry(command string, args []string, env map[string]string) map[string]any {
	entry := map[string]any{"name": serverName, "type": "stdio", "cmd": command, "args": args, "enabled": true,
		"timeout": 300} // seconds
	if len(env) > 0 {
		entry["envs"] = env
	}
	return entry
}

func homeFile(parts ...string) func(string, string) string {
	return func(home, _ string) string { return filepath.Join(append([]string{home}, parts...)...) }
}

func projectFile(parts ...string) func(string, string) string {
	return func(_, project string) string { return filepath.Join(append([]string{project}, parts...)...) }
}

// appFolder is the folder, in the home, that desktop programs keep their configuration in.
func appFolder() string {
	if runtime.GOOS == "darwin" {
		return filepath.Join("Library", "Application Support")
	}
	return ".config"
}

func appFile(parts ...string) func(string, string) string {
	return homeFile(append([]string{appFolder()}, parts...)...)
}

// clineFolder is the folder of Cline's settings in appFolder.
var clineFolder = filepath.Join("Code", "User", "globalStorage", "saoudrizwan.claude-dev")

var clients = map[string]client{
	"claude-code": {projectFile(".mcp.json"), "mcpServers", typedEntry, inJSON, "claude"},
	"claude-desktop": {appFile("Claude", "claude_desktop_config.json"), "mcpServers", plainEntry, inJSON,
		filepath.Join(appFolder(), "Claude")},
	"cline": {appFile(clineFolder, "settings", "cline_mcp_settings.json"), "mcpServers", plainEntry, inJSON,
		filepath.Join(appFolder(), clineFolder)},
	"codex":      {homeFile(".codex", "config.toml"), "mcp_servers", plainEntry, inTOML, "codex"},
	"cursor":     {homeFile(".cursor", "mcp.json"), "mcpServers", plainEntry, inJSON, "./.cursor"},
	"gemini-cli": {homeFile(".gemini", "settings.json"), "mcpServers", plainEntry, inJSON, "gemini"},
	"goose":      {homeFile(".config", "goose", "config.yaml"), "extensions", gooseEntry, inYAML, "goose"},
	"jetbrains":  {homeFile(".junie", "mcp", "mcp.json"), "mcpServers", plainEntry, inJSON, "./.junie"},
	"lm-studio":  {homeFile(".lmstudio", "mcp.json"), "mcpServers", plainEntry, inJSON, "./.lmstudio"},
	"opencode":   {homeFile(".config", "opencode", "opencode.json"), "mcp", openCodeEntry, inJSON, "opencode"},
	"vscode":     {projectFile(".vscode", "mcp.json"), "servers", typedEntry, inJSON, "code"},
	"windsurf": {homeFile(".codeium", "windsurf", "mcp_config.json"), "mcpServers", plainEntry, inJSON,
		"./.codeium/windsurf"},
	"zed": {homeFile(".config", "zed", "settings.json"), "context_servers", plainEntry, inJSON, "./.config/zed"},
}

// aliases are other names of clients.
var aliases = map[string]string{"claude": "claude-code", "vscode-copilot": "vscode", "copilot": "vscode",
	"gemini": "gemini-cli", "junie": "jetbrains", "lmstudio": "lm-studio"}

// Clients returns the names that ClientConfig accepts, without aliases.
func Clients() []string { return slices.Sorted(maps.Keys(clients)) }

// InstalledClients returns the names of the clients that a host has. look finds a program on PATH.
func InstalledClients(home string, look func(program string) (path string, err error)) (names []string) {
	for _, name := range Clients() {
		sign, err := clients[name].sign, error(nil)
		if strings.Contains(sign, "/") {
			_, err = os.Stat(filepath.Join(home, sign))
		} else {
			_, err = look(sign)
		}
		if err == nil {
			names = append(names, name)
		}
	}
	return names
}
