package hostexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

func runs(t *testing.T, c Command) (Result, string) {
	t.Helper()
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	res, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return res, out.String()
}

// A command gets its arguments as they are, no environment but its own, and no input.
func TestRun(t *testing.T) {
	t.Setenv("SECRET_OF_THE_SERVER", "value")
	res, out := runs(t, Command{Argv: []string{"env"}, Env: map[string]string{"ONE": "1"}})
	attack.Check(t, "the environment of a host command", "ONE=1\n", out)
	if res.ExitCode != 0 || res.TimedOut {
		t.Errorf("%+v", res)
	}
	_, out = runs(t, Command{Argv: []string{"env"}})
	attack.Check(t, "no environment of a host command", "", out)
	_, out = runs(t, Command{Argv: []string{"echo", "$HOME;", "`id`", "$(id)", "*"}})
	attack.Check(t, "arguments that a shell would expand", "$HOME; `id` $(id) *\n", out)
	_, out = runs(t, Command{Argv: []string{"cat"}})
	attack.Check(t, "the input of a host command", "", out)
	if res, _ = runs(t, Command{Argv: []string{"false"}}); res.ExitCode != 1 {
		t.Errorf("got %d, want 1", res.ExitCode)
	}
	if _, err := Run(t.Context(), Command{Argv: []string{"no-such-program"}, Timeout: time.Second}); err == nil ||
		!strings.Contains(err.Error(), "no-such-program") {
		t.Error(err)
	}
	_, out = runs(t, Command{Argv: []string{"sh", "-c", "pwd; ls -A"}})
	if dir := strings.TrimSpace(out); !strings.Contains(dir, "unitask-host-") || strings.Contains(dir, "\n") {
		t.Errorf("it ran in %q", out)
	} else if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder stays: %v", err)
	}
}

// A command that never ends, and the processes of its group, are killed at the time limit or when the call ends.
func TestAttackEndless(t *testing.T) {
	left := filepath.Join(t.TempDir(), "left")
	loop := "(while :; do date >>" + left + "; sleep 0.05; done) & sleep 1000"
	res, _ := runs(t, Command{Argv: []string{"sh", "-c", loop}, Env: map[string]string{"PATH": os.Getenv("PATH")},
		Timeout: 300 * time.Millisecond})
	if !res.TimedOut || res.ExitCode != -1 {
		t.Errorf("%+v", res)
	}
	still(t, "processes behind a time limit", left)

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := Run(ctx, Command{Argv: []string{"sh", "-c", loop}, Env: map[string]string{"PATH": os.Getenv("PATH")},
		Timeout: time.Minute})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	still(t, "processes behind an ended call", left)

	res, _ = runs(t, Command{Argv: []string{"sh", "-c", "(while :; do date >>" + left + "; sleep 0.05; done) & exit 0"},
		Env: map[string]string{"PATH": os.Getenv("PATH")}})
	if res.ExitCode != 0 || res.TimedOut {
		t.Errorf("%+v", res)
	}
	still(t, "processes that a command left", left)

	res, _ = runs(t, Command{Argv: []string{"sh", "-c", "setsid sleep 5 & sleep 0.3; exit 3"},
		Env: map[string]string{"PATH": os.Getenv("PATH")}, Timeout: time.Second})
	attack.Check(t, "a process that leaves the group, with the output open", "exit code 3, timed out: false",
		fmt.Sprintf("exit code %d, timed out: %t", res.ExitCode, res.TimedOut))
}

// still checks that a file does not grow.
func still(t *testing.T, what, file string) {
	t.Helper()
	size := func() int64 {
		st, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return st.Size()
	}
	got := "gone"
	if !testwait.Steady(5*time.Second, 500*time.Millisecond, size) {
		got = "alive"
	}
	attack.Check(t, what, "gone", got)
}

// Only root runs commands as another user. It then has no group of ours.
func TestUser(t *testing.T) {
	if os.Geteuid() != 0 {
		_, err := Run(t.Context(), Command{Argv: []string{"id"}, User: "root", Timeout: time.Minute})
		if err == nil || !strings.Contains(err.Error(), "only root may run a command as root") {
			t.Error(err)
		}
		return
	}
	_, out := runs(t, Command{Argv: []string{"id", "-un"}, User: "nobody"})
	attack.Check(t, "the user of a host command", "nobody\n", out)
	_, out = runs(t, Command{Argv: []string{"id", "-G"}, User: "nobody"})
	if strings.Contains(" "+strings.TrimSpace(out)+" ", " 0 ") {
		t.Errorf("it has the group 0: %s", out)
	}
}
