package unitask_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// Files and folders of the host are where relative paths of a session's code lead, from its beginning and in later steps.
func TestSessionBrings(t *testing.T) {
	needVM(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"data/x.csv": "1,2", "data/deep/y": "y", "one.txt": "one", "other/z": "z"} {
		mustDo(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		mustDo(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	mustDo(t, os.Symlink("x.csv", filepath.Join(dir, "data/link")))
	t.Chdir(dir)
	for _, whole := range []bool{false, true} {
		req := unitask.Request{Image: "shell", Dirs: []unitask.Mount{{Host: "data"}}, Files: []unitask.Mount{{Host: "./one.txt"}}}
		if whole {
			req.Files, req.Dirs = nil, []unitask.Mount{{Host: "."}}
		}
		s := openSession(t, sessionRuntime(t), unitask.SessionRequest{Request: req})
		step := func(step unitask.Step, want string) {
			t.Helper()
			if res, err := s.Run(t.Context(), step); err != nil || string(res.Stdout) != want {
				t.Errorf("%q: %+v %v", step.Code, res, err)
			}
		}
		step(unitask.Step{Code: "cat data/x.csv data/deep/y one.txt data/link; echo mine > mine; cat mine"}, "1,2yone1,2mine\n")
		if whole { // what it has from its beginning can't be written to
			continue
		}
		step(unitask.Step{Code: "cat other/z beside; echo again >> other/z", Dirs: []unitask.Mount{{Host: "other"}}, Neighbours: []unitask.Neighbour{{Name: "beside", Content: "b"}}}, "zb")
		step(unitask.Step{Code: "cat other/z /tmp/w", Files: []unitask.Mount{{Host: "other/z"}, {Host: filepath.Join(dir, "one.txt"), Guest: "/tmp/w"}}}, "zone")
		if res, err := s.Run(t.Context(), unitask.Step{Code: "true", Files: []unitask.Mount{{Host: "nowhere"}}}); err == nil {
			t.Errorf("a file that there is not: %+v", res)
		}
	}

	ceiling, err := policy.ParseCeiling(filepath.Join(dir, policy.CeilingFile), []byte("filesUnder = [\"other\"]\ndirsUnder = [\"other\"]\n"))
	mustDo(t, err)
	s, err := sessionRuntime(t).NewSessionFor(t.Context(), unitask.Caller{Ceiling: ceiling}, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}})
	mustDo(t, err)
	defer s.Close()
	res, err := s.Run(t.Context(), unitask.Step{Code: "cat other/z; cat one.txt; ls data", Files: []unitask.Mount{{Host: "one.txt"}}, Dirs: []unitask.Mount{{Host: "data"}, {Host: "other"}}})
	if err != nil || string(res.Stdout) != "z" || len(res.Policy.Denials) != 2 || !strings.Contains(res.Policy.Denials[0].String(), "one.txt") {
		t.Errorf("%+v %v", res, err)
	}
}
