package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
)

// A plugin does not go into a folder that somebody has prepared: Claude Code would start what is there, or a link would
// lead elsewhere. It is not for npx, which prefers a program of the project.
func TestAttackPlugin(t *testing.T) {
	std := Streams{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}}
	a := &app{std: std, ui: newUI(std)}
	put := func(dir, command string) string {
		if err := a.writePlugin(dir, &mcp.Config{Snippet: "{}"}, []string{command, "it's"}, nil); err != nil {
			return "refused"
		}
		return "written"
	}
	ours := testdir.Private(t)
	for range 2 {
		attack.Check(t, "plugin: our own folder", "written", put(ours, "/opt/a b/unitask"))
	}
	text, err := os.ReadFile(filepath.Join(ours, "hooks/hooks.json"))
	if err != nil || !strings.Contains(string(text), `"'/opt/a b/unitask' 'it'\\''s' hook claude-code || exit 2"`) {
		t.Errorf("%v %s", err, text)
	}
	attack.Check(t, "plugin: npx", "refused", put(filepath.Join(ours, "none"), "npx"))
	for name, target := range map[string]string{"bin/git": "", ".lsp.json": "", "skills/other/SKILL.md": "",
		"hooks/hooks.json": "/etc/x", "skills": "/etc", "hooks": "skills", ".mcp.json": "nosuch"} {
		dir := testdir.Private(t)
		put(dir, "/unitask")
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if err == nil && target != "" {
			if err = os.RemoveAll(at); err == nil {
				err = os.Symlink(target, at)
			}
		} else if err == nil {
			err = os.WriteFile(at, nil, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "plugin: a folder with "+name, "refused", put(dir, "/unitask"))
	}
	link := filepath.Join(testdir.Private(t), "link")
	if err := os.Symlink(ours, link); err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "plugin: a link", "refused", put(link, "/unitask"))
}
