package node

import (
	"fmt"
	"testing"
)

func TestCheckArg(t *testing.T) {
	for arg, ok := range map[string]bool{
		"--expose-gc": true, "--require=./x.js": true, "--stack-size=2000": true, "-r=./x": true,
		"--import=data:text/javascript,1": true,
		"":                                false, "x.js": false, "-": false, "--": false, "-e": false, "--eval=1": false,
		"-p": false, "--test": false,
		"--a\x00": false, "--run=x": false,
		"--build_snapshot": false, "--prof_process": false, "--completion_bash": false, "--expose_gc": true,
	} {
		if err := CheckArg(arg); (err == nil) != ok {
			t.Errorf("%q: %v", arg, err)
		}
	}
}

func TestNeedsProcess(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  map[string]string
		want string
	}{
		{nil, nil, ""},
		{[]string{"--expose-gc", "--no-warnings"}, map[string]string{"NODE_PATH": "/x", "NODE_ENV": "test",
			"NODE_NO_WARNINGS": "1", "TZ": "UTC"}, ""},
		{[]string{"--expose-gc", "--stack-size=1"}, nil, "--stack-size=1"},
		{nil, map[string]string{"NODE_OPTIONS": ""}, ""},
		{nil, map[string]string{"NODE_OPTIONS": "--x", "NODE_DEBUG": "http"}, "NODE_DEBUG"},
		{nil, map[string]string{"SSL_CERT_FILE": "/x"}, ""},
		{nil, map[string]string{"UV_THREADPOOL_SIZE": "2"}, "UV_THREADPOOL_SIZE"},
		{nil, map[string]string{"LANG": "de_DE.UTF-8"}, "LANG"},
		{nil, map[string]string{"LANG": "en_US.UTF-8", "LC_ALL": "C", "LC_MESSAGES": "en_US.utf8"}, ""},
		{nil, map[string]string{"LC_ALL": "en_USA"}, "LC_ALL"},
	} {
		if got := NeedsProcess(c.args, c.env); got != c.want {
			t.Errorf("%v %v: %q, want %q", c.args, c.env, got, c.want)
		}
	}
}

func TestProcess(t *testing.T) {
	args, env := Process([]string{"--a"}, map[string]string{"NODE_OPTIONS": "--max_old_space_size=99 --b",
		"NODE_DEBUG": "http", "HOME": "/h"})
	if got, want := fmt.Sprint(args, env),
		"[--max_old_space_size=99 --a] [NODE_DEBUG=http NODE_OPTIONS=--require=/unitask/lib/preload.js "+
			"--max_old_space_size=99 --b UNITASK_FRESH=1]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestRefused(t *testing.T) {
	if got, want := Refused("/usr/bin/node: bad option: --x\n"), "Node does not take it: bad option: --x"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
