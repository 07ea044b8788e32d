package cli

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/mcp"
)

// ownSkills are our own Agent Skills. They tell a model when to use which tool.
//
//go:embed skills
var ownSkills embed.FS

// pluginManifest is the file that makes a folder a plugin of Claude Code.
const pluginManifest = ".claude-plugin/plugin.json"

// claudePlugin returns the files of a plugin for Claude Code, by their paths: the MCP server, the hooks and our skill.
// The hooks start line, the words of a command.
func claudePlugin(server *mcp.Config, line []string, env map[string]string) (map[string][]byte, error) {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		words = append(words, name+"="+shellWord(env[name]))
	}
	for _, word := range line {
		words = append(words, shellWord(word))
	}
	// Any other exit code than 2 lets the command run on the host.
	hook := map[string]any{"type": "command", "command": strings.Join(words, " ") + " hook claude-code || exit 2",
		"timeout": 600}
	files := map[string][]byte{}
	blocking := maps.Clone(hook)
	blocking["onFailure"] = "block" // also if it takes longer
	shells := strings.Join(shellTools, "|") + "|PowerShell"
	for name, value := range map[string]any{
		pluginManifest: map[string]any{"name": "unitask", "author": map[string]any{"name": "unitask"},
			"description": "Commands of the Bash tool run in a virtual machine; tools that run code in others"},
		".claude-plugin/marketplace.json": map[string]any{"name": "unitask", "owner": map[string]any{"name": "unitask"},
			"plugins": []any{map[string]any{"name": "unitask", "source": "./"}}},
		"hooks/hooks.json": map[string]any{"hooks": map[string]any{
			"PreToolUse":  []any{map[string]any{"matcher": shells, "hooks": []any{blocking}}},
			"PostToolUse": []any{map[string]any{"matcher": "Write|Edit|MultiEdit|NotebookEdit", "hooks": []any{hook}}},
			"SessionEnd":  []any{map[string]any{"hooks": []any{hook}}}}},
	} {
		text, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			return nil, err
		}
		files[name] = append(text, '\n')
	}
	files[".mcp.json"] = []byte(server.Snippet)
	err := fs.WalkDir(ownSkills, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[name], err = ownSkills.ReadFile(name)
		return err
	})
	return files, err
}

// shellWord returns a word for a POSIX shell that is exactly this text.
func shellWord(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// writePlugin writes the plugin into a folder: a new one, an empty one, or its own. Its hooks start line.
func (a *app) writePlugin(dir string, server *mcp.Config, line []string, env map[string]string) error {
	files, err := claudePlugin(server, line, env)
	if err != nil {
		return err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	if line[0] == "npx" {
		return usage(errors.New("--plugin: npx would start a program of the project named unitask, if there is one, in " +
			"place of this one: install unitask first, for example with npm install -g unitask"))
	}
	if err := onlyPlugin(dir, files); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := atomicfile.Write(to, files[name], 0o644); err != nil {
			return err
		}
	}
	a.ui.note("the plugin is in %s: claude --plugin-dir %s starts Claude Code with it", dir, shellWord(dir))
	return a.report(map[string]any{"client": "claude-code", "folder": dir,
		"files": slices.Sorted(maps.Keys(files))}, func() {})
}

// onlyPlugin returns an error for a folder with other files than the plugin's, or with links. Claude Code would run
// such files as the plugin's.
func onlyPlugin(dir string, files map[string][]byte) error {
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		for own := range files {
			if d.Type().IsRegular() && rel == own || d.IsDir() && (rel == "." || strings.HasPrefix(own, rel+"/")) {
				return nil
			}
		}
		return fmt.Errorf("%s is not of the plugin: name a new folder", rel)
	})
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return usage(fmt.Errorf("--plugin %s: %w", dir, err))
}
