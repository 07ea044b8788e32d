package mcp_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/changes"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

const filesCeiling = `
hostFiles = true
filesUnder = ["docs", "notes"]
dirsUnder = ["docs"]
writeUnder = ["notes", "docs/Makefile"]
`

// filesClient is a client of a server in a folder with docs/, notes/ and secret.txt.
func filesClient(t *testing.T, ceiling, revision string, answer func(message string) *sdk.ElicitResult) (
	cs *sdk.ClientSession, dir, home string) {
	t.Helper()
	dir = testdir.Private(t)
	for name, text := range map[string]string{"docs/a.txt": "alpha\n", "docs/Makefile": "all:\n", "docs/bin": "\x00",
		"notes/n.txt": "one\ntwo\n", "secret.txt": "secret\n", policy.CeilingFile: ceiling} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755),
			os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, policy.CeilingFile)
	held, err := policy.LoadForModels(testdir.Private(t), dir, file, false)
	if err != nil {
		t.Fatal(err)
	}
	rt := bare(t)
	s := newServer(t, rt, mcp.Options{Dir: dir, Ceiling: held.Ceiling, Policy: held})
	mcp.AddHostFiles(s)
	return connectAsked(t, s, revision, answering(answer)), dir, rt.Images().Home()
}

func filesCall(t *testing.T, cs *sdk.ClientSession, args object) string {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "host_files", Arguments: args})
	if err != nil {
		return err.Error()
	}
	return res.Content[0].(*sdk.TextContent).Text
}

// Lists, reads and a change that its user sees and allows, in clients of each kind of revision.
func TestHostFiles(t *testing.T) {
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		var asked []string
		cs, dir, home := filesClient(t, filesCeiling, revision, func(message string) *sdk.ElicitResult {
			asked = append(asked, message)
			return accepts([]string{"once", "deny"}[len(asked)-1])
		})
		if got := filesCall(t, cs, object{"op": "list", "path": "docs"}); !strings.Contains(got, "file\ta.txt\t6\n") {
			t.Errorf("%s: the list is %q", revision, got)
		}
		if got := filesCall(t, cs, object{"op": "read", "path": "docs/a.txt", "offset": 2}); got != "pha\n" {
			t.Errorf("%s: read %q", revision, got)
		}
		got := filesCall(t, cs, object{"op": "write", "path": "notes/n.txt", "text": "one\n2\n"})
		now, err := os.ReadFile(filepath.Join(dir, "notes/n.txt"))
		if err != nil || string(now) != "one\n2\n" || !strings.Contains(got, "the file is changed") {
			t.Errorf("%s: the file has %q, %v: %s", revision, now, err, got)
		}
		const diff = "--- a/n.txt\n+++ b/n.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
		if len(asked) != 1 || !strings.Contains(asked[0], diff) {
			t.Errorf("%s: asked %q", revision, asked)
		}
		got = filesCall(t, cs, object{"op": "copy", "path": "notes/new/a.txt", "from": "docs/a.txt"})
		if _, err := os.Stat(filepath.Join(dir, "notes/new")); err == nil || !strings.Contains(got, "its user denied it") {
			t.Errorf("%s: a denied copy: %v: %s", revision, err, got)
		}
		list, err := changes.Open(home, nil).List()
		if err != nil || len(list) != 1 || list[0].State != changes.Applied {
			t.Errorf("%s: the sets are %v, %v", revision, list, err)
		}
	}
}

// Without an answer, a change stays a proposal that unitask apply applies.
func TestHostFilesProposed(t *testing.T) {
	cs, dir, home := filesClient(t, filesCeiling, "2025-11-25", nil)
	got := filesCall(t, cs, object{"op": "write", "path": filepath.Join(dir, "docs/Makefile"), "text": "all: x\n"})
	list, err := changes.Open(home, nil).List()
	if err != nil || len(list) != 1 || !strings.Contains(got, "unitask apply "+list[0].ID) {
		t.Fatalf("%v, %v: %s", list, err, got)
	}
	now, err := os.ReadFile(filepath.Join(dir, "docs/Makefile"))
	if err != nil || string(now) != "all:\n" {
		t.Errorf("the file has %q, %v", now, err)
	}
}

// A model reads, lists and changes nothing but what the ceiling names, and learns nothing about the rest.
func TestAttackHostFiles(t *testing.T) {
	cs, dir, home := filesClient(t, filesCeiling, "2025-11-25", func(message string) *sdk.ElicitResult {
		t.Errorf("asked %q", message)
		return accepts("once")
	})
	if err := errors.Join(os.Symlink("../secret.txt", filepath.Join(dir, "notes/link")),
		os.Symlink(home, filepath.Join(dir, "notes/home")), os.Symlink("..", filepath.Join(dir, "docs/up"))); err != nil {
		t.Fatal(err)
	}
	const files, dirs, writes = "is not below a folder of the ceiling's filesUnder", "the ceiling's dirsUnder",
		"the ceiling's writeUnder"
	for _, row := range []struct {
		name string
		args object
		want string
	}{
		{"a read beside the folders", object{"op": "read", "path": "secret.txt"}, files},
		{"a read of what is missing there", object{"op": "read", "path": "none.txt"}, files},
		{"a read by ..", object{"op": "read", "path": "docs/../secret.txt"}, files},
		{"a read by a link", object{"op": "read", "path": "notes/link"}, files},
		{"a read by a folder's link", object{"op": "read", "path": "docs/up/secret.txt"}, files},
		{"a read of a device", object{"op": "read", "path": "/dev/zero"}, files},
		{"a read of a folder", object{"op": "read", "path": "docs"}, "is a folder"},
		{"a read of what is no text", object{"op": "read", "path": "docs/bin"}, "is not text"},
		{"a read behind the end", object{"op": "read", "path": "docs/a.txt", "offset": 7}, "has 6 bytes"},
		{"a list of a folder for files only", object{"op": "list", "path": "notes"}, dirs},
		{"a list by a link", object{"op": "list", "path": "docs/up"}, dirs},
		{"a write beside the folders", object{"op": "write", "path": "secret.txt", "text": ""}, writes},
		{"a write of a file to read", object{"op": "write", "path": "docs/a.txt", "text": ""}, writes},
		{"a write by a link", object{"op": "write", "path": "notes/link", "text": ""}, writes},
		{"a write into the home by a link", object{"op": "write", "path": "notes/home/config.toml", "text": ""}, writes},
		{"a write of the ceiling", object{"op": "write", "path": policy.CeilingFile, "text": ""}, writes},
		{"a dot name", object{"op": "write", "path": "notes/.envrc", "text": "x"}, "begins with a dot"},
		{"a hook", object{"op": "write", "path": "notes/.git/hooks/pre-commit", "text": "x"}, "begins with a dot"},
		{"a file that tools run", object{"op": "write", "path": "notes/Makefile", "text": "x"}, "tools run a file"},
		{"a folder", object{"op": "write", "path": "notes", "text": "x"}, "is not a regular file"},
		{"a write without a text", object{"op": "write", "path": "notes/x"}, "text is missing"},
		{"the same text", object{"op": "write", "path": "notes/n.txt", "text": "one\ntwo\n"}, "nothing would change"},
		{"a copy of a secret", object{"op": "copy", "path": "notes/x", "from": "secret.txt"}, files},
		{"a copy of a device", object{"op": "copy", "path": "notes/x", "from": "/dev/zero"}, files},
		{"a copy of no run", object{"op": "copy", "path": "notes/x", "from": "unitask://runs/x/artifacts/y"}, "no such run"},
		{"an op that is not there", object{"op": "remove", "path": "notes/n.txt"}, "op"},
	} {
		got := filesCall(t, cs, row.args)
		if strings.Contains(got, row.want) && !strings.Contains(got, "secret\n") {
			got = row.want
		}
		attack.Check(t, "host_files: "+row.name, row.want, got)
	}
	list, err := changes.Open(home, nil).List()
	attack.Check(t, "sets of changes that were stored", "0 <nil>", fmt.Sprint(len(list), err))
}

// Who may write and not read learns no text. A user is never asked about a text that the form does not show.
func TestAttackHostFilesUnshown(t *testing.T) {
	cs, _, home := filesClient(t, `writeUnder = ["notes"]`, "2025-11-25", nil)
	got := filesCall(t, cs, object{"op": "write", "path": "notes/n.txt", "text": ""})
	if strings.Contains(got, "unitask apply change-") && !strings.Contains(got, "two") {
		got = "no text"
	}
	attack.Check(t, "a write's answer to who may not read", "no text", got)
	for i := range 30 {
		got = filesCall(t, cs, object{"op": "write", "path": "notes/n.txt", "text": fmt.Sprint(i)})
	}
	list, err := changes.Open(home, nil).List()
	attack.Check(t, "many proposals", "20 true <nil>",
		fmt.Sprint(len(list), strings.Contains(got, "wait for their user"), err))

	cs, dir, _ := filesClient(t, filesCeiling, "2025-11-25", func(message string) *sdk.ElicitResult {
		t.Errorf("asked %q", message)
		return accepts("once")
	})
	for name, text := range map[string]string{"a zero byte": "evil()//\x00", "a long text": strings.Repeat("x\n", 3000)} {
		got := filesCall(t, cs, object{"op": "write", "path": "notes/n.txt", "text": text})
		now, err := os.ReadFile(filepath.Join(dir, "notes/n.txt"))
		if strings.Contains(got, "Nothing is changed yet") && string(now) == "one\ntwo\n" && err == nil {
			got = "a proposal"
		}
		attack.Check(t, "a write that a form can't show: "+name, "a proposal", got)
	}
}

// The server's own policy file can't be changed, even if it lies in a folder of writeUnder.
func TestAttackHostFilesOfPolicy(t *testing.T) {
	dir := testdir.Private(t)
	file := filepath.Join(dir, "limits.toml")
	if err := os.WriteFile(file, []byte(`writeUnder = ["."]`), 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := policy.LoadForModels(testdir.Private(t), dir, file, false)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, bare(t), mcp.Options{Dir: dir, Ceiling: held.Ceiling, Policy: held})
	mcp.AddHostFiles(s)
	cs := inMemory(t, s, nil)
	got := filesCall(t, cs, object{"op": "write", "path": "limits.toml", "text": "allowNetAny = true"})
	if strings.Contains(got, "the ceiling's writeUnder") {
		got = "refused"
	}
	attack.Check(t, "a write of the server's policy", "refused", got)
	got = filesCall(t, cs, object{"op": "read", "path": "limits.toml"})
	if strings.Contains(got, "op") && !strings.Contains(got, "writeUnder =") {
		got = "refused"
	}
	attack.Check(t, "a read under a ceiling without hostFiles", "refused", got)
}

// Without a key of the ceiling, and on a server that serves no stdin, the tool does not exist.
func TestAttackHostFilesAbsent(t *testing.T) {
	for name, ceiling := range map[string]string{"no key": "memoryMb = 512",
		"no folder": "hostFiles = false\nwriteUnder = []"} {
		cs, _, _ := filesClient(t, ceiling, "2025-11-25", nil)
		got := filesCall(t, cs, object{"op": "list", "path": "docs"})
		if strings.Contains(got, `unknown tool "host_files"`) {
			got = "absent"
		}
		attack.Check(t, "host_files with "+name, "absent", got)
	}
	c, err := policy.ParseCeiling("/x/"+policy.CeilingFile, []byte(filesCeiling))
	if err != nil {
		t.Fatal(err)
	}
	got := "absent"
	for _, tool := range toolNames(t, inMemory(t, newServer(t, bare(t), mcp.Options{Ceiling: c}), nil)) {
		if tool == "host_files" {
			got = "there"
		}
	}
	attack.Check(t, "host_files on a server that serves no stdin", "absent", got)
}
