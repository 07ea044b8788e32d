package mcp_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/record"
)

// A session over MCP: code, commands and files in one machine, by one caller.
func TestSessionTools(t *testing.T) {
	testhome.Ready(t, base, image.Linux)
	home, dir := testhome.New(t, base), t.TempDir()
	outside := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "f"), nil, 0o644),
		os.WriteFile(filepath.Join(dir, "late.csv"), []byte("1,2"), 0o644), os.Mkdir(filepath.Join(dir, "late"), 0o755),
		os.WriteFile(filepath.Join(dir, "late/f"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	cs := stdio(t, home, dir, nil)
	call := func(tool string, args map[string]any) (text string, structured map[string]any, failed bool) {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatalf("%s %v: %v", tool, args, err)
		}
		for _, c := range res.Content {
			if c, ok := c.(*sdk.TextContent); ok {
				text += c.Text
			}
		}
		if typed, _ := res.Meta["unitask/error"].(map[string]any); res.IsError && res.StructuredContent == nil &&
			(typed["code"] == nil || typed["message"] == "" || typed["retryable"] == nil) {
			t.Errorf("%s %v: %v", tool, args, res.Meta)
		}
		if res.StructuredContent != nil {
			raw, err := json.Marshal(res.StructuredContent)
			if err != nil {
				t.Fatal(err)
			}
			_ = json.Unmarshal(raw, &structured)
		}
		return text, structured, res.IsError
	}
	text, res, failed := call("run_code", map[string]any{"session": "new", "language": "python",
		"code": "x = 40\nprint('up')\nx + 1", "timeoutSeconds": 10})
	id, _ := res["session"].(string)
	if failed || id == "" || res["value"] != "41" || res["stdout"] != "up\n" || !strings.Contains(text, "--- value\n41") ||
		!strings.Contains(text, "session "+id+", expires at ") {
		t.Fatalf("%s\n%v", text, res)
	}
	if granted(t, cs, res)["timeoutMs"] != 10e3 || res["hint"] != nil {
		t.Errorf("%v", res)
	}
	checkCutSteps(t, id, cs)
	forked, started := "", "" // the ids of the last fork, and of the last background command
	for _, row := range sessionToolsRows(id, outside) {
		if row.args["session"] == "FORK" {
			row.args["session"] = forked
		}
		if row.args["run"] == "RUN" {
			row.args["run"] = started
		}
		if row.tool == "SERVER" { // the next server continues the session that this one left paused
			if err := cs.Close(); err != nil {
				t.Error(err)
			}
			cs = stdio(t, home, dir, nil)
			continue
		}
		text, structured, failed := call(row.tool, row.args)
		// otherwise each of them has its own
		if at, _ := structured["expiresAt"].(string); structured["sessions"] == nil && !failed {
			if until, err := time.Parse(time.RFC3339, at); err != nil || time.Until(until) < time.Hour {
				t.Errorf("%s %v: expires at %q", row.tool, row.args, at)
			}
		}
		checkHints(t, cs, row, structured)
		if row.args["background"] == true && !failed {
			if started, _ = structured["runId"].(string); structured["outcome"] != "running" || structured["exitCode"] != nil {
				t.Errorf("%v", structured)
			}
		}
		if row.args["op"] == "fork" && !failed {
			forked = forkOf(structured, id)
		}
		if failed != row.failed || !strings.Contains(text, row.want) {
			t.Errorf("%s %v: failed %v\n%s\n%v", row.tool, row.args, failed, text, structured)
		}
	}
}

// forkOf returns the last fork of a session.
func forkOf(structured map[string]any, id string) (forked string) {
	for _, s := range structured["sessions"].([]any) {
		if s := s.(map[string]any); s["parent"] == id {
			forked, _ = s["session"].(string)
		}
	}
	return forked
}

// checkCutSteps checks steps with a long output.
func checkCutSteps(t *testing.T, id string, cs *sdk.ClientSession) {
	t.Helper()
	for _, c := range []struct {
		tool string
		args map[string]any
		name string
	}{
		{"run_code", object{"session": id, "language": "python",
			"code": "import base64, os\nos.makedirs('/out/d')\nopen('/out/d/dot.png', 'wb').write(base64.b64decode('" +
				base64.StdEncoding.EncodeToString(pixel) + "'))"}, "d/dot.png"},
		{"session_command", object{"session": id, "command": "cp /out/d/dot.png /out/dot.png"}, "dot.png"},
	} {
		got, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: c.tool, Arguments: c.args})
		if err != nil || got.IsError || len(got.Content) != 3 {
			t.Fatalf("%s: %+v %v", c.tool, got, err)
		}
		picture, isPicture := got.Content[1].(*sdk.ImageContent)
		link, isLink := got.Content[2].(*sdk.ResourceLink)
		if !isPicture || !bytes.Equal(picture.Data, pixel) || !isLink || link.Name != c.name {
			t.Errorf("%s: %+v", c.tool, got.Content)
			continue
		}
		if read, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: link.URI}); err != nil ||
			len(read.Contents) != 1 || !bytes.Equal(read.Contents[0].Blob, pixel) {
			t.Errorf("%s: %+v %v", link.URI, read, err)
		}
	}
}

// checkHints checks the hints in a step's result.
func checkHints(t *testing.T, cs *sdk.ClientSession, row sessionToolsRow, structured map[string]any) {
	t.Helper()
	if row.tool == "run_code" || row.tool == "session_command" && row.args["background"] == nil {
		want := any(60e3)
		if seconds, ok := row.args["timeoutSeconds"].(int); ok {
			want = float64(seconds) * 1e3
		}
		if _, half := row.args["timeoutSeconds"].(float64); structured["policy"] != nil && !half {
			if got := granted(t, cs, structured)["timeoutMs"]; got != want {
				t.Errorf("%s %v: %v ms", row.tool, row.args, got)
			}
		}
	}
}

// The output of a step or a command is shown up to a limit, and a resource has all of it.
func TestSessionOutputIsKept(t *testing.T) {
	cs := inMemory(t, newServer(t, open(t, unitask.PoolSize{}), mcp.Options{}), nil)
	const size = 1 << 20
	_, out, text := call(t, cs, "run_code", object{"session": "new", "language": "python", "code": "print('x' * 1048575)"})
	id, _ := out["session"].(string)
	if id == "" {
		t.Fatal(text)
	}
	resource := func(uri string) string {
		t.Helper()
		r, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
		if err != nil {
			t.Fatal(err)
		}
		return r.Contents[0].Text
	}
	check := func(out object, stream, last string) {
		t.Helper()
		n, total, uri := cutOf(out, stream)
		if n != 24<<10 || total != size || out["truncated"] != true || !strings.HasSuffix(out[stream].(string), last) {
			t.Errorf("%d of %d %s", n, total, uri)
			return
		}
		if all := resource(uri); len(all) != size || !strings.HasSuffix(all, last) {
			t.Errorf("%s: %d bytes", uri, len(all))
		}
	}
	check(out, "stdout", "x\n")
	_, out, _ = call(t, cs, "session_command", object{"session": id,
		"command": "(head -c 1048574 /dev/zero | tr '\\0' y; echo z) >&2"})
	check(out, "stderr", "yz\n")

	res, out, text := call(t, cs, "session_command", object{"session": id, "command": "echo left > /out/a.txt"})
	link, ok := res.Content[len(res.Content)-1].(*sdk.ResourceLink)
	if !ok || link.URI != fmt.Sprintf("unitask://runs/%s/artifacts/a.txt", out["runId"]) ||
		resource(link.URI) != "left\n" {
		t.Errorf("%v %s", res.Content, text)
	}

	_, out, _ = call(t, cs, "session_command", object{"session": id, "background": true,
		"command": "head -c 1048574 /dev/zero | tr '\\0' w; echo v; exec sleep 1000"})
	run := out["runId"]
	for begin := time.Now(); out["total"] != float64(size); {
		if _, out, text = call(t, cs, "wait_command", object{"run": run, "afterSeq": 0}); time.Since(begin) > time.Minute {
			t.Fatal(text[max(0, len(text)-300):])
		}
	}
	shown, _ := out["output"].(string)
	if out["shown"] != float64(24<<10) || out["lost"] == nil || out["seq"] != float64(size) ||
		!strings.HasSuffix(shown, "wv\n") || len(shown) > 25<<10 {
		t.Errorf("shown %v, lost %v, seq %v", out["shown"], out["lost"], out["seq"])
	}
	if all := resource(fmt.Sprint(out["resource"])); len(all) != size || !strings.HasSuffix(all, "wv\n") {
		t.Errorf("%d bytes", len(all))
	}
}

// A wait returns all output of a command. It waits for the end if no output is requested.
func TestWaitGathers(t *testing.T) {
	cs := inMemory(t, newServer(t, open(t, unitask.PoolSize{}), mcp.Options{}), nil)
	_, out, text := call(t, cs, "run_code", object{"session": "new", "language": "shell", "code": "true"})
	id, _ := out["session"].(string)
	if id == "" {
		t.Fatal(text)
	}
	_, out, _ = call(t, cs, "session_command", object{"session": id, "background": true,
		"command": "for i in 1 2 3 4 5 6; do head -c 30000 /dev/zero | tr '\\0' x; sleep 0.3; done"})
	run, seq, shown := out["runId"], 0.0, 0.0
	for range 20 {
		_, out, text = call(t, cs, "wait_command", object{"run": run, "afterSeq": seq, "maxOutput": 256 << 10})
		if out["lost"] != nil {
			t.Fatalf("%v bytes are lost", out["lost"])
		}
		seq, shown = out["seq"].(float64), shown+out["shown"].(float64)
		if out["outcome"] != "running" {
			break
		}
	}
	if out["outcome"] != "exited" || shown != 180_000 || !strings.HasPrefix(text, "exit code 0") {
		t.Errorf("%v: %v bytes: %.200s", out["outcome"], shown, text)
	}
	for _, most := range []int{0, 8} {
		_, out, _ = call(t, cs, "session_command", object{"session": id, "background": true,
			"command": "echo begun; sleep 1; echo ended; exit 3"})
		_, out, text = call(t, cs, "wait_command", object{"run": out["runId"], "maxOutput": most})
		if out["outcome"] != "exited" || out["exitCode"] != 3.0 || text != "exit code 3" {
			t.Errorf("maxOutput %d: %v, %s", most, out, text)
		}
	}
}

// No model reaches sessions and runs that its user made with the command line or a program: only those made through
// MCP, including paused ones.
func TestAttackSessionsMadeElsewhere(t *testing.T) {
	home, dir := testhome.New(t, base), t.TempDir()
	const own = "20261122-000000000-bbbbbb"
	vias := map[string]record.Via{own: unitask.ViaMCP, "20261122-000000000-aaaaaa": unitask.ViaCLI,
		"20261122-000000000-cccccc": unitask.ViaAPI}
	folder := func(id string) string { return filepath.Join(home, "sessions", id) }
	for id, via := range vias {
		note, err := json.Marshal(map[string]any{"id": id, "owner": unitask.LocalOwner(os.Geteuid()), "via": via,
			"expires": time.Now().Add(time.Hour), "policy": map[string]any{"effective": map[string]any{}}})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(machine.Pause{Version: 1, Note: note})
		if err == nil {
			err = os.MkdirAll(folder(id), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(folder(id), "pause.json"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cs := stdio(t, home, dir, nil)
	listed := func() string {
		t.Helper()
		res, _, text := call(t, cs, "manage_session", map[string]any{"op": "list"})
		if res.IsError {
			t.Fatal(text)
		}
		raw, _ := json.Marshal(res.StructuredContent)
		return string(raw)
	}
	for id := range vias {
		attack.Check(t, "the list of sessions names one made by "+string(vias[id]), fmt.Sprint(id == own),
			fmt.Sprint(strings.Contains(listed(), id)))
		if id == own {
			continue
		}
		for tool, args := range map[string]map[string]any{
			"run_code":        {"language": "js", "code": "1"},
			"session_command": {"command": "cat private"},
			"files":           {"op": "view", "path": "private"},
			"session":         {"op": "end"},
		} {
			args["session"] = id
			res, _, text := call(t, cs, tool, args)
			attack.Check(t, tool+" with one made by "+string(vias[id]), "no such session",
				map[bool]string{true: "no such session", false: text}[res.IsError && strings.Contains(text, "no such session")])
		}
		_, err := os.Stat(filepath.Join(folder(id), "pause.json"))
		attack.Check(t, "its folder afterwards, made by "+string(vias[id]), "<nil>", fmt.Sprint(err))
	}
	if res, _, text := call(t, cs, "manage_session", map[string]any{"op": "end", "session": own}); res.IsError {
		t.Error(text)
	}
	if _, err := os.Stat(folder(own)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its own, which it has ended: %v", err)
	}
}

// granted returns the grants of a run, from its record.
func granted(t *testing.T, cs *sdk.ClientSession, structured object) object {
	t.Helper()
	_, record, _ := call(t, cs, "inspect_run", object{"runId": structured["runId"]})
	effective, _ := record["effective"].(object)
	return effective
}
