package mcp

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Front matter is read by its keys exactly.
func TestFrontMatterKeys(t *testing.T) {
	for text, want := range map[string]string{
		"description = \"x\"\n[arguments.A]\nrequired = true": "",
		"Description = \"x\"":                              `unknown key "Description": keys are exact, write description`,
		"description = \"x\"\nDESCRIPTION = \"y\"":         `keys "description" and "DESCRIPTION" differ only in case`,
		"[arguments.A]\nRequired = true":                   `unknown key "arguments.A.Required": keys are exact, write required`,
		"[arguments.A]\nrequired = true\n[arguments.a]":    `keys "arguments.A" and "arguments.a" differ only in case`,
		"[arguments.A]\nrequired = false\nREQUIRED = true": `keys "arguments.A.required" and "arguments.A.REQUIRED" differ only in case`,
		"name = \"other\"":                                 `unknown key "name"`,
		"code = \"process.exit(1)\"":                       `unknown key "code"`,
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
