package mcp_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/record"
)

// Only a client that declares the extension is told of the page; for others the list of tools is the same as without.
func TestApps(t *testing.T) {
	s := newServer(t, bare(t), mcp.Options{Ceiling: noMachine()})
	for _, revision := range []string{"2025-06-18", "2026-07-28"} {
		lists := map[bool][]*sdk.Tool{}
		for _, declares := range []bool{true, false} {
			can := &sdk.ClientCapabilities{}
			if declares {
				can.AddExtension("io.modelcontextprotocol/ui", map[string]any{"mimeTypes": []string{"text/html;profile=mcp-app"}})
			}
			cs := connectAsked(t, s, revision, &sdk.ClientOptions{Capabilities: can})
			tools, err := cs.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			lists[declares] = tools.Tools
			shell, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "ui://unitask/run"})
			if err != nil || shell.Contents[0].MIMEType != "text/html;profile=mcp-app" ||
				!strings.Contains(shell.Contents[0].Text, "ui/initialize") {
				t.Errorf("%v %v", err, shell)
			}
		}
		for i, tool := range lists[true] {
			if tool.Name == "run_code" {
				text, err := json.Marshal(tool.Meta["ui"])
				if err != nil || string(text) != `{"resourceUri":"ui://unitask/run"}` {
					t.Errorf("%s: %s, %v", revision, text, err)
				}
				delete(tool.Meta, "ui")
				if len(tool.Meta) == 0 {
					tool.Meta = nil
				}
			}
			with, err := json.Marshal(tool)
			without, err2 := json.Marshal(lists[false][i])
			if err != nil || err2 != nil || string(with) != string(without) {
				t.Errorf("%s: %s\n%s", revision, with, without)
			}
		}
	}
}

// A run's page for clients is text of the run without script, and loads nothing. It holds little of a large run.
func TestAttackAppPage(t *testing.T) {
	const evil = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b]0;x\x07"
	rt := bare(t)
	id := recorded(t, rt, unitask.LocalOwner(os.Geteuid()), record.ViaMCP)
	dir := filepath.Join(rt.Runs().Dir(), id)
	var rec map[string]any
	text, err := os.ReadFile(filepath.Join(dir, "run.json"))
	if err == nil {
		err = json.Unmarshal(text, &rec)
	}
	if err != nil {
		t.Fatal(err)
	}
	rec["error"] = evil
	rec["result"] = map[string]any{"outcome": evil, "artifacts": []map[string]any{{"path": evil + ".png", "size": 3},
		{"path": "a.png", "size": 12}, {"path": "evil.png", "size": 12}}}
	if text, err = json.Marshal(rec); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"run.json": string(text), "stdout": strings.Repeat(evil, 100_000),
		"netlog.jsonl":                 `{"name":"` + `\u003cscript\u003e` + `","verdict":"denied"}` + "\n",
		record.ArtifactsDir + "/a.png": "\x89PNG\r\n\x1a\n0000", record.ArtifactsDir + "/evil.png": "<svg onload=1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cs := inMemory(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}), nil)
	res, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "ui://unitask/runs/" + id})
	if err != nil {
		t.Fatal(err)
	}
	page := res.Contents[0].Text
	for what, row := range map[string]struct {
		most int
		of   []string
	}{"scripts": {0, []string{"<script"}}, "pictures": {1, []string{"<img"}}, "terminal sequences": {0, []string{"\x1b",
		"\x07"}}, "links and forms": {0, []string{"href=", "http:", "https:", "<form"}}} {
		n := 0
		for _, text := range row.of {
			n += strings.Count(page, text)
		}
		attack.Check(t, "a run's page in a client: "+what, strconv.Itoa(row.most), strconv.Itoa(n))
	}
	attack.Check(t, "a run's page in a client: the picture", "true",
		strconv.FormatBool(strings.Contains(page, `src="data:image/png;base64,`)))
	attack.Check(t, "a run's page in a client: 6 MB of output", "true", strconv.FormatBool(len(page) < 1<<20))
	for _, uri := range []string{"ui://unitask/runs/", "ui://unitask/runs/..", "ui://unitask/runs/" + id + "/code",
		"ui://unitask/x", "ui://other/run"} {
		_, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
		attack.Check(t, "a client reads "+strings.ReplaceAll(uri, id, "ID"), "an error",
			map[bool]string{true: "an error", false: "a page"}[err != nil])
	}
}

// The most hostile record's page stays within the memory that is reserved for it, as JSON.
func TestAttackAppPageSize(t *testing.T) {
	rt := bare(t)
	id := recorded(t, rt, unitask.LocalOwner(os.Geteuid()), record.ViaMCP)
	dir := filepath.Join(rt.Runs().Dir(), id)
	var rec map[string]any
	text, err := os.ReadFile(filepath.Join(dir, "run.json"))
	if err == nil {
		err = json.Unmarshal(text, &rec)
	}
	if err != nil {
		t.Fatal(err)
	}
	plus := "\x89PNG\r\n\x1a\n0" + strings.Repeat("\xfb\xef\xbe", 512<<10/3-4) // +, in base64
	var list []map[string]any
	for i := range 4 {
		name := strconv.Itoa(i) + ".png"
		list = append(list, map[string]any{"path": name, "size": len(plus)})
		if err := os.WriteFile(filepath.Join(dir, record.ArtifactsDir, name), []byte(plus), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 996 {
		list = append(list, map[string]any{"path": strings.Repeat("'", 1024), "size": 1})
	}
	rec["result"] = map[string]any{"outcome": "exit", "artifacts": list}
	if text, err = json.Marshal(rec); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"run.json": string(text), "stdout": strings.Repeat("'", 1<<20),
		"stderr": strings.Repeat("\x01", 1<<20)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cs := inMemory(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}), nil)
	res, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "ui://unitask/runs/" + id})
	if err != nil {
		t.Fatal(err)
	}
	text, err = json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(len(res.Contents[0].Text), len(text))
	attack.Check(t, "a run's page in a client: plus signs and quotes, below 8 MiB of JSON, with pictures", "true 4",
		fmt.Sprint(len(text) < 8<<20, " ", strings.Count(res.Contents[0].Text, "data:image/png;base64,")))
}
