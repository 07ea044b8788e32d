package unitask_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// containerSession starts a session of a container image that is imported.
func containerSession(t *testing.T, rt *unitask.Runtime, req unitask.SessionRequest, file string) *unitask.Session {
	t.Helper()
	if _, err := rt.Catalog().Import(t.Context(), file, "", ""); err != nil {
		t.Fatal(err)
	}
	return openSession(t, rt, req)
}

// execs runs commands in a session: each has its command line for sh, what it prints, and its exit code.
func execs(t *testing.T, s *unitask.Session, rows []execRow) {
	t.Helper()
	for _, row := range rows {
		args := row.args
		if args == nil {
			args = []string{"sh", "-c", row.script}
		}
		res, err := s.Exec(t.Context(), unitask.Command{Args: args, User: row.user})
		if err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		if string(res.Stdout) != row.stdout || !strings.Contains(string(res.Stderr), row.stderr) || res.ExitCode != row.exit {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want %d, %q, %q", args, res.ExitCode, res.Stdout, res.Stderr,
				row.exit, row.stdout, row.stderr)
		}
	}
}

type execRow struct {
	args           []string // nil means script, in sh
	script, user   string
	stdout, stderr string // stderr: a part of it
	exit           int
}

// A session of a container image: its user, variables, folder and volumes, and what its root can't do.
func TestSessionContainer(t *testing.T) {
	needVM(t)
	rt := sessionRuntime(t)
	slot(t)
	s := containerSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "test/app:1"}},
		boxImage(t, "test/app:1", map[string]any{"User": "app", "WorkingDir": "/srv/x",
			"Entrypoint": []string{"/bin/entry"}, "Env": []string{"PATH=/bin", "A=b c"},
			"Volumes": map[string]any{"/data/deep": map[string]any{}}}))
	execs(t, s, []execRow{
		{script: "id; pwd; echo $HOME $A; stat -c '%u %a %n' /work /out /srv/x /data/deep",
			stdout: "uid=1234(app) gid=1235(app) groups=77(more),1235(app)\n/srv/x\n/home/app b c\n" +
				"1234 755 /work\n1234 755 /out\n0 755 /srv/x\n0 755 /data/deep\n"},
		{script: "cat /secret; ls /image /stage /unitask/lib; kill -9 1; echo on", stdout: "on\n", stderr: "Permission denied"},
		{args: []string{"nosuch"}, stderr: "no such file", exit: 127},
		{args: []string{"id", "-u"}, user: "root", stdout: "", exit: 125},
	})
	_ = policy.Bad
	_ = errors.Is
	_ = fs.ErrExist
	_ = slices.Sort[[]int]
	_ = context.Background
}
