package mcp

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Keys of the front matter must match exactly.
func TestFrontMatterKeys(t *testing.T) {
	for text, want := range map[string]string{
		"description = \"x\"\n[arguments.A]\nrequired = true": "",
		"Description = \"x\"":                      `unknown key "Description": keys are exact, write description`,
		"description = \"x\"\nDESCRIPTION = \"y\"": `keys "description" and "DESCRIPTION" differ only in case`,
		"[arguments.A]\nRequired = true": `unknown key "arguments.A.Required": ` +
			`keys are exact, write required`,
		"[arguments.A]\nrequired = true\n[arguments.a]": `keys "arguments.A" and "arguments.a" differ only in case`,
		"[arguments.A]\nrequired = false\nREQUIRED = true": `keys "arguments.A.required" and "arguments.A.REQUIRED" ` +
			`differ only in case`,
		"name = \"other\"":           `unknown key "name"`,
		"code = \"process.exit(1)\"": `unknown key "code"`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "p.js"), []byte("/* +++\n"+text+"\n+++ */\n1"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readSnippets(dir)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A program in Python or shell describes itself in its comments.
func TestSnippetsOfLanguages(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sum.py": "#!/usr/bin/env python3\n# +++\n# description = \"Add\"\n# [arguments.A]\n# required = true\n# +++\n" +
			"print(1)\n",
		"list.sh":  "# +++\n#description = \"List\"\n# +++\nls\n",
		"plain.py": "print(2)  # +++\n",
		"code.js":  "/* +++\ndescription = \"Node's\"\n+++ */\n1",
		"no.rb":    "puts 1",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := readSnippets(dir)
	if err != nil || len(found) != 4 {
		t.Fatalf("%v %v", found, err)
	}
	for name, want := range map[string]string{"sum": "Add", "list": "List", "plain": "", "code": "Node's"} {
		if found[name].Description != want {
			t.Errorf("%s: %q", name, found[name].Description)
		}
	}
	if missing := found["sum"].missing(nil); len(missing) != 1 || missing[0] != "A" {
		t.Errorf("%q", missing)
	}
	if err := os.WriteFile(filepath.Join(dir, "bad.py"), []byte("# +++\n# nonsense = 1\n# +++\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readSnippets(dir); err == nil || !strings.Contains(err.Error(), "bad.py") {
		t.Errorf("%v", err)
	}
}
