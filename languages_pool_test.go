package unitask_test

import (
	"strings"
	"testing"

	"github.com/unitask/unitask"
)

// Pool, record and replay know the image of a run.
func TestLanguagesPoolAndReplay(t *testing.T) {
	needClones(t)
	rt := openPool(t, newHome(t), unitask.PoolSize{Min: 1, Max: 2}, unitask.MachineClass{Image: "python"})
	poolHas(t, rt, "it does not fill", func(st unitask.PoolStats) bool { return st.Idle >= 1 && st.Making == 0 })
	run := func(req unitask.Request) *unitask.Result {
		t.Helper()
		res, err := rt.Run(t.Context(), req, unitask.IO{})
		if err != nil || res.ExitCode != 0 {
			t.Fatalf("%v %+v", err, res)
		}
		return res
	}
	python := run(unitask.Request{Language: "python", Path: "/work/script",
		Code: "import sys, helper; from lib.deep import x; print(helper.py, sys.argv, x)", Args: []string{"a"},
		InlineFiles: []unitask.InlineFile{{Name: "helper.py", Content: "py = 'py'"}, {Name: "lib/__init__.py"},
			{Name: "lib/deep.py", Content: "x = 7"}}})
	if string(python.Stdout) != "py ['/work/script', 'a'] 7\n" || !python.Pooled || python.Kernel != "linux" {
		t.Errorf("%s %+v", python.Stdout, python)
	}
	shell := run(unitask.Request{Path: "x.sh", Code: `. ./helper.sh; say "$1 ${BASH_VERSION%%(*}"`, Args: []string{"b"},
		InlineFiles: []unitask.InlineFile{{Name: "helper.sh", Content: `say() { echo "sh $1"; }`}}})
	if !strings.HasPrefix(string(shell.Stdout), "sh b 5.2") || shell.Pooled {
		t.Errorf("%s %+v", shell.Stdout, shell)
	}
	res, err := rt.Run(t.Context(), unitask.Request{Language: "python", Code: "import numpy.linalg"}, unitask.IO{})
	if err != nil || res.ExitCode != 1 || res.Hint() !=
		"numpy is not in the machine: --image data has it; --with pip:numpy installs it, if it is a package" {
		t.Errorf("%v %+v", err, res)
	}
	res, err = rt.Run(t.Context(), unitask.Request{Language: "python", Code: "import requests"}, unitask.IO{})
	if err != nil || res.ExitCode != 1 ||
		res.Hint() != "requests is not in the machine: --with pip:requests installs it, if it is a package" {
		t.Errorf("%v %+v", err, res)
	}
	for _, was := range []*unitask.Result{python, shell} {
		in, err := rt.History().Inspect(was.RunID, 0)
		if err != nil || in.Machine == nil || in.Machine.Image != was.Policy.Effective.Image || in.Machine.Runtime == "" ||
			in.Machine.Image == "node" {
			t.Errorf("%v %+v", err, in.Machine)
		}
		req, err := rt.History().Request(was.RunID, "")
		if err != nil {
			t.Fatal(err)
		}
		if again := run(req); string(again.Stdout) != string(was.Stdout) {
			t.Errorf("again: %s", again.Stdout)
		}
	}
}
