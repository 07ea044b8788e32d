package mcp_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/skill"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/mcp"
)

// skillFolder makes a folder with the skill hello.
func skillFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["SKILL.md"] = "---\nname: hello\ndescription: Says hello.\nmetadata:\n  unitask-allow-net: api.example.com\n" +
		"---\nSay hello by scripts/hello.sh.\n"
	for name, text := range files {
		at := filepath.Join(dir, "hello", name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// trustSkill trusts the skill of a folder as it is.
func trustSkill(t *testing.T, of, dir string) {
	t.Helper()
	s, err := skill.Read(filepath.Join(dir, "hello"), "")
	if err == nil {
		d := home.Dir(of)
		err = skill.Trust{Path: d.Skills(), Lock: d.Lock("skills")}.Set(s, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The program offers a folder of skills: prompts, resources, and scripts that run_code runs with the files beside them.
func TestSkills(t *testing.T) {
	testhome.Ready(t, base, image.Linux)
	of := testhome.New(t, base)
	dir := skillFolder(t, map[string]string{"scripts/hello.sh": "echo hello $1; cat words.txt ref/a.md",
		"scripts/words.txt": "beside\n", "ref/a.md": "below\n", "picture.png": "\xff\xfe"})
	cs := stdio(t, of, t.TempDir(), nil, "--skills", dir)
	prompt, err := cs.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	if text := prompt.Messages[0].Content.(*sdk.TextContent).Text; !strings.Contains(text, "Say hello by") ||
		!strings.Contains(text, `the snippet "hello/scripts/hello.sh"`) {
		t.Errorf("prompt: %s", text)
	}
	for uri, want := range map[string]string{"SKILL.md": "Says hello.", "ref/a.md": "below", "picture.png": "",
		"../hello/ref/a.md": "", "scripts/none": ""} {
		got, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "unitask://skills/hello/" + uri})
		if (err == nil) != (want != "") || err == nil && !strings.Contains(got.Contents[0].Text, want) {
			t.Errorf("%s: got %+v, %v, want %q", uri, got, err, want)
		}
	}
	hello := object{"snippet": "hello/scripts/hello.sh", "args": []string{"you"}}
	if _, _, text := call(t, cs, "run_code", hello); !strings.Contains(text, "hello you\nbeside\nbelow") {
		t.Errorf("got %s", text)
	}
	for _, more := range []object{{"allowNet": []string{"a.example"}}, {"packages": []string{"pip:six"}},
		{"filename": "a.sh"}} {
		for k, v := range hello {
			more[k] = v
		}
		if res, _, text := call(t, cs, "run_code", more); !res.IsError || !strings.Contains(text, "leave out") {
			t.Errorf("%v: got %s", more, text)
		}
	}
}

// A skill gets its hosts only while its user trusts what the server has read.
func TestAttackSkillHosts(t *testing.T) {
	rt := bare(t)
	dir := skillFolder(t, map[string]string{"scripts/hello.js": "1"})
	s := newServer(t, rt, mcp.Options{Skills: dir, Ceiling: noMachine()})
	cs := connect(t, serve(t, s, mcp.HTTPOptions{}), "")
	hosts := func() string {
		res, structured, text := call(t, cs, "run_code", object{"snippet": "hello/scripts/hello.js"})
		if id, _ := structured["runId"].(string); id != "" {
			rec, err := rt.Runs().Get(id)
			if err != nil {
				t.Fatal(err)
			}
			var asked struct{ AllowNet []string }
			if err := json.Unmarshal(rec.Request, &asked); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("runs with hosts %q", asked.AllowNet)
		}
		return map[bool]string{true: "refused", false: text}[res.IsError && strings.Contains(text, "another than")]
	}
	attack.Check(t, "a skill that nobody trusts", "runs with hosts []", hosts())
	trustSkill(t, rt.Images().Home(), dir)
	attack.Check(t, "a trusted skill", `runs with hosts ["api.example.com"]`, hosts())
	script := filepath.Join(dir, "hello", "scripts", "hello.js")
	if err := os.WriteFile(script, []byte("2"), 0o600); err != nil {
		t.Fatal(err)
	}
	// What was read runs.
	attack.Check(t, "a skill that changed after the start", `runs with hosts ["api.example.com"]`, hosts())
	trustSkill(t, rt.Images().Home(), dir)
	attack.Check(t, "a skill that is trusted in another form", "refused", hosts())
}

// What is no skill is refused at the start, by its name.
func TestSkillsRefused(t *testing.T) {
	dir := skillFolder(t, map[string]string{})
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "hello", "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := mcp.New(bare(t), mcp.Options{Skills: dir}); err == nil || !strings.Contains(err.Error(), "hello: ") {
		t.Errorf("a link: got %v", err)
	}
	prompts := t.TempDir()
	if err := os.WriteFile(filepath.Join(prompts, "hello.sh"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := mcp.New(bare(t), mcp.Options{Skills: skillFolder(t, map[string]string{}), Prompts: prompts})
	if err == nil || !strings.Contains(err.Error(), "same name") {
		t.Errorf("a snippet's name: got %v", err)
	}
}
