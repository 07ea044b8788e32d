package mcp_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
)

type sessionToolsRow struct {
	tool   string
	args   map[string]any
	want   string // in the text
	failed bool
}

// sessionToolsRows are the cases of TestSessionTools.
func sessionToolsRows(id, outside string) []sessionToolsRow {
	return slices.Concat(stepRows(id, outside), commandRows(id), valueRows(id), lifeRows(id))
}

// stepRows are the cases about steps and files.
func stepRows(id, outside string) []sessionToolsRow {
	return []sessionToolsRow{
		{"run_code", object{"session": id, "language": "python", "code": "x + 2"}, "--- value\n42", false},
		{
			tool: "run_code",
			args: object{"session": id, "language": "python", "code": "x + 2", "timeoutSeconds": 30},
			want: "--- value\n42",
		},
		{"session_command", object{"session": id, "command": "true", "timeoutSeconds": 3600}, "exit code 0", false},
		{"run_code", object{"session": id, "language": "python", "code": "1/0"}, "ZeroDivisionError", true},
		{
			tool: "run_code",
			args: object{"session": id, "language": "python",
				"code":  "import helper, os; print(helper.x, open('late.csv').read(), os.listdir('late'))",
				"files": []any{"late.csv", object{"name": "helper.py", "content": "x = 7"}}, "dirs": []string{"late"}},
			want: "7 1,2 ['f']",
		},
		{
			tool: "run_code",
			args: object{"session": id, "language": "python", "code": "1", "files": []any{filepath.Join(outside, "f")}},
			want: "not given: files",
		},
		{
			tool:   "run_code",
			args:   object{"session": id, "language": "python", "code": "1", "allowNet": []string{"example.com"}},
			want:   "since it began",
			failed: true,
		},
		{"run_code", object{"session": "new", "language": "js", "code": "1", "stdin": "x"}, "do not go with session", true},
		{
			tool:   "run_code",
			args:   object{"session": "20261122-000000000-aaaaaa", "language": "js", "code": "1"},
			want:   "there is no such session",
			failed: true,
		},
		{
			tool: "session_files",
			args: object{"session": id, "op": "create", "path": "m/a.py", "file_text": "def f():\n    return 1\n"},
			want: "m/a.py is written",
		},
		{
			tool: "session_files",
			args: object{"session": id, "op": "str_replace", "path": "m/a.py", "old_str": "return 1", "new_str": "return 7"},
			want: "edited",
		},
		{
			tool:   "session_files",
			args:   object{"session": id, "op": "str_replace", "path": "m/a.py", "old_str": "return 1", "new_str": "x"},
			want:   "exactly once",
			failed: true,
		},
		{
			tool: "session_files",
			args: object{"session": id, "op": "insert", "path": "m/a.py", "insert_line": 0, "insert_text": "# first"},
			want: "edited",
		},
		{
			tool: "session_files",
			args: object{"session": id, "op": "view", "path": "m/a.py", "view_range": []int{1, 3}},
			want: "     1\t# first\n     2\tdef f():\n     3\t    return 7\n",
		},
		{"session_files", object{"session": id, "op": "view", "path": "m"}, "/work/m/a.py", false},
		{"session_files", object{"session": id, "op": "view", "path": "nothing"}, "no such file", true},
		{
			tool: "run_code",
			args: object{"session": id, "language": "python", "code": "import sys; sys.path.insert(0, 'm'); import a; a.f()"},
			want: "--- value\n7",
		},
	}
}

// commandRows are the cases about commands.
func commandRows(id string) []sessionToolsRow {
	return []sessionToolsRow{
		{"session_command", object{"session": id, "command": "python3 m/a.py; pwd; exit 4"}, "exit code 4", true},
		{
			tool: "session_command",
			args: object{"session": id, "command": "cat; echo $A", "stdin": "in ", "env": map[string]string{"A": "b"}},
			want: "in b\n",
		},
		{"session_command", object{"session": id, "command": "exec sleep 100", "timeoutSeconds": 0.5}, "time limit", true},
		{
			tool:   "session_command",
			args:   object{"session": id, "command": "cat", "background": true, "stdin": "x"},
			want:   "does not go with background",
			failed: true,
		},
		{
			tool: "session_command",
			args: object{"session": id, "command": "printf 'up \\303'; until [ -e go ]; do sleep 0.1; done; " +
				"printf '\\251\\n'; exit 3", "background": true},
			want: "goes on in the background",
		},
		{
			tool: "wait_command",
			args: object{"run": "RUN"},
			want: "running; afterSeq 3 of the next call gives what comes then\n--- output\nup ",
		},
		{"wait_command", object{"run": "RUN", "afterSeq": 3, "waitSeconds": 0}, "running; afterSeq 3", false},
		{"wait_command", object{"run": "RUN", "afterSeq": 1000}, "from 0 to 4", true},
		{"wait_command", object{"run": "RUN", "waitSeconds": 51}, "waitSeconds", true},
		{"wait_command", object{"run": "../../etc"}, "is not in the background", true},
		{"wait_command", object{"run": id}, "no command in the background", true},
		{"session_command", object{"session": id, "command": "touch go"}, "exit code 0", false},
		{"wait_command", object{"run": "RUN", "afterSeq": 3, "waitSeconds": 50}, "exit code 3\n--- output\né\n", false},
		{"wait_command", object{"run": "RUN", "afterSeq": 6, "waitSeconds": 50}, "exit code 3", false},
		{
			tool: "session_command",
			args: object{"session": id, "command": "exec sleep 1000", "background": true},
			want: "goes on in the background",
		},
		{"manage_session", object{"op": "stop", "session": id, "run": "RUN"}, id, false},
		{"wait_command", object{"run": "RUN"}, "cancelled: it was stopped", false},
	}
}

// valueRows are the cases about values.
func valueRows(id string) []sessionToolsRow {
	return []sessionToolsRow{
		{
			tool: "manage_session",
			args: object{"op": "put", "session": id, "name": "n",
				"value": object{"big": json.Number("12345678901234567890"), "text": "<é>"}},
			want: "expiresAt",
		},
		{
			tool: "run_code",
			args: object{"session": id, "language": "python",
				"code": "import json; v = json.load(open('.values/n.json')); " +
					"json.dump([v['big'] + 1, v['text']], open('.values/m.json', 'w')); json.dump(None, open('.values/o.json', 'w'))"},
			want: "exit code 0",
		},
		{"manage_session", object{"op": "get", "session": id, "name": "m"}, "[12345678901234567891, \"<\\u00e9>\"]", false},
		{"manage_session", object{"op": "get", "session": id, "name": "o"}, "null", false},
		{"manage_session", object{"op": "get", "session": id}, `"names":["m","n","o"]`, false},
		{"manage_session", object{"op": "get", "session": id, "name": "p"}, "there is no value p", true},
		{"manage_session", object{"op": "put", "session": id, "name": "../n", "value": 1}, "must be a letter", true},
		// Values that the code made too large for any client, and results without a value.
		{
			tool: "session_command",
			args: object{"session": id, "command": "cd .values && echo 1e400 > huge.json && ln -s /dev/zero zero.json && " +
				"mkfifo pipe.json && ln -s loop.json loop.json && for n in 501 9999; do (head -c $n /dev/zero | tr '\\0' '['; " +
				"head -c $n /dev/zero | tr '\\0' ']') > deep$n.json; done && printf '\"\\377\"' > bytes.json"},
			want: "exit code 0",
		},
		{
			tool:   "manage_session",
			args:   object{"op": "get", "session": id, "name": "huge"},
			want:   "value huge has a number that is beyond 64-bit floats: read /work/.values/huge.json",
			failed: true,
		},
		{
			tool:   "manage_session",
			args:   object{"op": "get", "session": id, "name": "deep501"},
			want:   "value deep501 has more than 500 levels",
			failed: true,
		},
		{
			tool:   "manage_session",
			args:   object{"op": "get", "session": id, "name": "deep9999"},
			want:   "value deep9999 has more than 500 levels",
			failed: true,
		},
		{"manage_session", object{"op": "get", "session": id, "name": "zero"}, "invalid argument", true},
		{"manage_session", object{"op": "get", "session": id, "name": "pipe"}, "invalid argument", true},
		{"manage_session", object{"op": "get", "session": id, "name": "loop"}, "too many levels of symbolic links", true},
		{"manage_session", object{"op": "get", "session": id, "name": "bytes"}, "not UTF-8", true},
		{
			tool:   "manage_session",
			args:   object{"op": "copy", "session": id, "path": ".values/pipe.json", "toPath": "c/p"},
			want:   "neither a file nor a folder",
			failed: true,
		},
		{
			tool:   "manage_session",
			args:   object{"op": "copy", "session": id, "path": "/dev/zero", "toPath": "c/z"},
			want:   "neither a file nor a folder",
			failed: true,
		},
		{"session_command", object{"session": id, "command": "rm -r .values"}, "exit code 0", false},
		{
			tool:   "manage_session",
			args:   object{"op": "get", "session": "20261122-000000000-aaaaaa", "name": "n"},
			want:   "there is no such session",
			failed: true,
		},
		{"manage_session", object{"op": "copy", "session": id, "path": "m", "toPath": "c/m"}, "expiresAt", false},
		{"session_files", object{"session": id, "op": "list", "path": "c/m"}, "a.py", false},
	}
}

// lifeRows are the cases about the life of sessions.
func lifeRows(id string) []sessionToolsRow {
	return []sessionToolsRow{
		{
			tool:   "manage_session",
			args:   object{"op": "copy", "session": id, "path": "m", "to": "20261122-000000000-aaaaaa"},
			want:   "there is no such session",
			failed: true,
		},
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
