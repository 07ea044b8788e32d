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

type sessionToolsRow struct {
	tool   string
	args   map[string]any
	want   string // in the text
	failed bool
}

// sessionToolsRows are the cases of TestSessionTools.
func sessionToolsRows(id, outside string) []sessionToolsRow {
	return []sessionToolsRow{
		{"run_code", object{"session": id, "language": "python", "code": "x + 2"}, "--- value\n42", false},
		{"run_code", object{"session": id, "language": "python", "code": "x + 2", "timeoutSeconds": 30}, "--- value\n42", false},
		{"session_command", object{"session": id, "command": "true", "timeoutSeconds": 3600}, "exit code 0", false},
		{"run_code", object{"session": id, "language": "python", "code": "1/0"}, "ZeroDivisionError", true},
		{"run_code", object{"session": id, "language": "python", "code": "import helper, os; print(helper.x, open('late.csv').read(), os.listdir('late'))", "files": []any{"late.csv", object{"name": "helper.py", "content": "x = 7"}}, "dirs": []string{"late"}}, "7 1,2 ['f']", false},
		{"run_code", object{"session": id, "language": "python", "code": "1", "files": []any{filepath.Join(outside, "f")}}, "not given: files", false},
		{"run_code", object{"session": id, "language": "python", "code": "1", "allowNet": []string{"example.com"}}, "since it began", true},
		{"run_code", object{"session": "new", "language": "js", "code": "1", "stdin": "x"}, "do not go with session", true},
		{"run_code", object{"session": "20261122-000000000-aaaaaa", "language": "js", "code": "1"}, "there is no such session", true},
		{"session_files", object{"session": id, "op": "create", "path": "m/a.py", "file_text": "def f():\n    return 1\n"}, "m/a.py is written", false},
		{"session_files", object{"session": id, "op": "str_replace", "path": "m/a.py", "old_str": "return 1", "new_str": "return 7"}, "edited", false},
		{"session_files", object{"session": id, "op": "str_replace", "path": "m/a.py", "old_str": "return 1", "new_str": "x"}, "exactly once", true},
		{"session_files", object{"session": id, "op": "insert", "path": "m/a.py", "insert_line": 0, "insert_text": "# first"}, "edited", false},
		{"session_files", object{"session": id, "op": "view", "path": "m/a.py", "view_range": []int{1, 3}}, "     1\t# first\n     2\tdef f():\n     3\t    return 7\n", false},
		{"session_files", object{"session": id, "op": "view", "path": "m"}, "/work/m/a.py", false},
		{"session_files", object{"session": id, "op": "view", "path": "nothing"}, "no such file", true},
		{"run_code", object{"session": id, "language": "python", "code": "import sys; sys.path.insert(0, 'm'); import a; a.f()"}, "--- value\n7", false},
		{"session_command", object{"session": id, "command": "python3 m/a.py; pwd; exit 4"}, "exit code 4", true},
		{"session_command", object{"session": id, "command": "cat; echo $A", "stdin": "in ", "env": map[string]string{"A": "b"}}, "in b\n", false},
		{"session_command", object{"session": id, "command": "exec sleep 100", "timeoutSeconds": 0.5}, "time limit", true},
		{"session_command", object{"session": id, "command": "cat", "background": true, "stdin": "x"}, "does not go with background", true},
		{"session_command", object{"session": id, "command": "printf 'up \\303'; until [ -e go ]; do sleep 0.1; done; printf '\\251\\n'; exit 3", "background": true}, "goes on in the background", false},
		{"wait_command", object{"run": "RUN"}, "running; afterSeq 3 of the next call gives what comes then\n--- output\nup ", false},
		{"wait_command", object{"run": "RUN", "afterSeq": 3, "waitSeconds": 0}, "running; afterSeq 3", false},
		{"wait_command", object{"run": "RUN", "afterSeq": 1000}, "from 0 to 4", true},
		{"wait_command", object{"run": "RUN", "waitSeconds": 51}, "waitSeconds", true},
		{"wait_command", object{"run": "../../etc"}, "no command in the background of a session of yours", true},
		{"wait_command", object{"run": id}, "no command in the background", true},
		{"session_command", object{"session": id, "command": "touch go"}, "exit code 0", false},
		{"wait_command", object{"run": "RUN", "afterSeq": 3, "waitSeconds": 50}, "exit code 3\n--- output\né\n", false},
		{"wait_command", object{"run": "RUN", "afterSeq": 6, "waitSeconds": 50}, "exit code 3", false},
		{"session_command", object{"session": id, "command": "exec sleep 1000", "background": true}, "goes on in the background", false},
		{"manage_session", object{"op": "stop", "session": id, "run": "RUN"}, id, false},
		{"wait_command", object{"run": "RUN"}, "cancelled: it was stopped", false},
		{"manage_session", object{"op": "put", "session": id, "name": "n", "value": object{"big": json.Number("12345678901234567890"), "text": "<é>"}}, "expiresAt", false},
		{"run_code", object{"session": id, "language": "python", "code": "import json; v = json.load(open('.values/n.json')); json.dump([v['big'] + 1, v['text']], open('.values/m.json', 'w')); json.dump(None, open('.values/o.json', 'w'))"}, "exit code 0", false},
		{"manage_session", object{"op": "get", "session": id, "name": "m"}, "[12345678901234567891, \"<\\u00e9>\"]", false},
		{"manage_session", object{"op": "get", "session": id, "name": "o"}, "null", false},
		{"manage_session", object{"op": "get", "session": id}, `"names":["m","n","o"]`, false},
		{"manage_session", object{"op": "get", "session": id, "name": "p"}, "there is no value p", true},
		{"manage_session", object{"op": "put", "session": id, "name": "../n", "value": 1}, "must be a letter", true},
		// Values that the code made too large for any client, and results without a value.
		{"session_command", object{"session": id, "command": "cd .values && echo 1e400 > huge.json && ln -s /dev/zero zero.json && mkfifo pipe.json && ln -s loop.json loop.json && for n in 501 9999; do (head -c $n /dev/zero | tr '\\0' '['; head -c $n /dev/zero | tr '\\0' ']') > deep$n.json; done && printf '\"\\377\"' > bytes.json"}, "exit code 0", false},
		{"manage_session", object{"op": "get", "session": id, "name": "huge"}, "value huge has a number that is beyond 64-bit floats: read /work/.values/huge.json", true},
		{"manage_session", object{"op": "get", "session": id, "name": "deep501"}, "value deep501 has more than 500 levels", true},
		{"manage_session", object{"op": "get", "session": id, "name": "deep9999"}, "value deep9999 has more than 500 levels", true},
		{"manage_session", object{"op": "get", "session": id, "name": "zero"}, "invalid argument", true},
		{"manage_session", object{"op": "get", "session": id, "name": "pipe"}, "invalid argument", true},
		{"manage_session", object{"op": "get", "session": id, "name": "loop"}, "too many levels of symbolic links", true},
		{"manage_session", object{"op": "get", "session": id, "name": "bytes"}, "not UTF-8", true},
		{"manage_session", object{"op": "copy", "session": id, "path": ".values/pipe.json", "toPath": "c/p"}, "neither a file nor a folder", true},
		{"manage_session", object{"op": "copy", "session": id, "path": "/dev/zero", "toPath": "c/z"}, "neither a file nor a folder", true},
		{"session_command", object{"session": id, "command": "rm -r .values"}, "exit code 0", false},
		{"manage_session", object{"op": "get", "session": "20261122-000000000-aaaaaa", "name": "n"}, "there is no such session", true},
		{"manage_session", object{"op": "copy", "session": id, "path": "m", "toPath": "c/m"}, "expiresAt", false},
		{"session_files", object{"session": id, "op": "list", "path": "c/m"}, "a.py", false},
		{"manage_session", object{"op": "copy", "session": id, "path": "m", "to": "20261122-000000000-aaaaaa"}, "there is no such session", true},
		{"manage_session", object{"op": "extend", "session": id, "lifeSeconds": 7200}, id, false},
		{"manage_session", object{"op": "extend", "session": id, "lifeSeconds": 86401}, "lifeSeconds", true},
		{"manage_session", object{"op": "extend", "session": id}, "must be 1s at least", true},
		{"manage_session", object{"op": "pause", "session": id}, `"paused":true`, false},
		{"SERVER", nil, "", false},
		{"manage_session", object{"op": "list"}, `"paused":true`, false},
		{"run_code", object{"session": id, "language": "python", "code": "x + 3"}, "--- value\n43", false},
		{"manage_session", object{"op": "fork", "session": id, "count": 17}, "17", true},
		{"manage_session", object{"op": "fork", "session": id}, `"parent":"` + id + `"`, false},
		{"run_code", object{"session": id, "language": "python", "code": "x += 1; x"}, "--- value\n41", false},
		{"run_code", object{"session": "FORK", "language": "python", "code": "x"}, "--- value\n40", false},
		{"manage_session", object{"op": "end", "session": "FORK"}, id, false},
		{"session_files", object{"session": id, "op": "remove", "path": "m"}, "removed", false},
		{"manage_session", object{"op": "list"}, id, false},
		{"manage_session", object{"op": "end", "session": id}, `"sessions":[]`, false},
		{"manage_session", object{"op": "end", "session": id}, "there is no such session", true},
		{"session_command", object{"session": id, "command": "true"}, "there is no such session", true},
		{"run_code", object{"session": "new", "language": "shell", "code": "echo a\x00b"}, "NUL", true},
		{"manage_session", object{"op": "list"}, `"sessions":[]`, false},
	}
}

// A session over MCP: code, commands and files in one machine, by one caller.
func TestSessionTools(t *testing.T) {
	testhome.Ready(t, base, image.Linux)
	home, dir := testhome.New(t, base), t.TempDir()
	outside := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "f"), nil, 0o644), os.WriteFile(filepath.Join(dir, "late.csv"), []byte("1,2"), 0o644), os.Mkdir(filepath.Join(dir, "late"), 0o755), os.WriteFile(filepath.Join(dir, "late/f"), nil, 0o644)); err != nil {
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
		if typed, _ := res.Meta["unitask/error"].(map[string]any); res.IsError && res.StructuredContent == nil && (typed["code"] == nil || typed["message"] == "" || typed["retryable"] == nil) {
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
	text, res, failed := call("run_code", map[string]any{"session": "new", "language": "python", "code": "x = 40\nprint('up')\nx + 1", "timeoutSeconds": 10})
	id, _ := res["session"].(string)
	if failed || id == "" || res["value"] != "41" || res["stdout"] != "up\n" || !strings.Contains(text, "--- value\n41") || !strings.Contains(text, "session "+id+", expires at ") {
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
			for _, s := range structured["sessions"].([]any) {
				if s := s.(map[string]any); s["parent"] == id {
					forked, _ = s["session"].(string)
				}
			}
		}
		if failed != row.failed || !strings.Contains(text, row.want) {
			t.Errorf("%s %v: failed %v\n%s\n%v", row.tool, row.args, failed, text, structured)
		}
	}
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
