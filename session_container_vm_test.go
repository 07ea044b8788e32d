package unitask_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/policy"
)

// containerSession starts a session of a container image, which it imports from a file.
func containerSession(t *testing.T, rt *unitask.Runtime, req unitask.SessionRequest, file string) *unitask.Session {
	t.Helper()
	if _, err := rt.Catalog().Import(t.Context(), file, "", ""); err != nil {
		t.Fatal(err)
	}
	slot(t)
	return openSession(t, rt, req)
}

// execRow is a command in a session, with what it prints (stderr: a part of it) and its exit code. Without args it is
// a script for sh.
type execRow struct {
	args           []string
	script, user   string
	stdout, stderr string
	exit           int
}

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

// A session of a container image of busybox: its user by name, its variables, folder and volumes; its entry point does
// not run. Files, folders, artifacts, a terminal, a connection, a pause and a fork are as in bundled images.
func TestSessionContainer(t *testing.T) {
	t.Parallel()
	needClones(t)
	rt := sessionRuntime(t)
	s := containerSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "test/app:1"}},
		boxImage(t, "test/app:1", map[string]any{"User": "app", "WorkingDir": "/srv/x",
			"Entrypoint": []string{"/bin/entry"}, "Env": []string{"PATH=/bin", "A=b c"},
			"Volumes": map[string]any{"/data/deep": map[string]any{}}}, [2]string{"bin/tar", "busybox"}))
	execs(t, s, []execRow{
		{script: "id; pwd; echo $HOME $A; stat -L -c '%u %n' /work /out /srv/x /data/deep",
			stdout: "uid=1234(app) gid=1235(app) groups=77(more),1235(app)\n/srv/x\n/home/app b c\n" +
				"0 /work\n1234 /out\n0 /srv/x\n0 /data/deep\n"},
		{script: "cat /secret; ls /image /stage; kill -9 1; echo on", stdout: "on\n", stderr: "Permission denied"},
		{args: []string{"nosuch"}, stderr: "no such file", exit: 127},
		{script: "sleep 600 >/dev/null 2>&1 & echo $! > /work/pid"},
	})
	_, err := s.Exec(t.Context(), unitask.Command{Args: []string{"id"}, User: "root"})
	if !errors.As(err, new(*policy.FieldError)) {
		t.Errorf("root without being asked for: %v", err)
	}
	for language, program := range map[string]string{"": "bash", "python": "python3", "js": "node"} {
		_, err := s.Run(t.Context(), unitask.Step{Language: language, Code: "1"})
		if !errors.As(err, new(*policy.FieldError)) || !strings.Contains(err.Error(), "test/app:1 has no "+program) {
			t.Errorf("a step in %q: %v", language, err)
		}
	}
	containerFiles(t, rt, s)
	t.Run("terminal", func(t *testing.T) {
		var out bytes.Buffer
		res, err := s.Exec(t.Context(), unitask.Command{
			Args:     []string{"sh", "-c", "test -t 0 && stat -Lc %u /proc/self/fd/0"},
			Terminal: &unitask.Terminal{Size: unitask.TerminalSize{Columns: 80, Rows: 24}}, Stdout: &out})
		if err != nil || res.ExitCode != 0 || out.String() != "1234\r\n" {
			t.Errorf("%+v %v %q", res, err, out.String())
		}
	})
	pauseSession(t, s)
	execs(t, s, []execRow{{script: "kill -0 $(cat /work/pid) && cat /work/sub/f", stdout: "text"}})
	forks, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer forks[0].Close()
	execs(t, forks[0], []execRow{{script: "kill $(cat /work/pid) && id -u; echo fork > /srv/../tmp/f; cat /tmp/f",
		stdout: "1234\nfork\n"}})
	execs(t, s, []execRow{{script: "kill -0 $(cat /work/pid) && ls /tmp/f", stderr: "No such file", exit: 1}})
}

// containerFiles tests files, artifacts and a connection of TestSessionContainer.
func containerFiles(t *testing.T, rt *unitask.Runtime, s *unitask.Session) {
	t.Helper()
	ctx := t.Context()
	if err := s.WriteFile(ctx, "/work/sub/f", []byte("text"), 0o640); err != nil {
		t.Error(err)
	}
	if text, err := s.ReadFile(ctx, "/secret", 0, 0); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a file of root: %q %v", text, err)
	}
	to := filepath.Join(t.TempDir(), "sub")
	if _, err := s.Download(ctx, "/work/sub", to); err != nil {
		t.Error(err)
	}
	if err := s.Upload(ctx, to, "/work/again"); err != nil {
		t.Error(err)
	}
	execs(t, s, []execRow{{script: "stat -c '%u %a' /work/sub/f; cat /work/again/f", stdout: "1234 640\ntext"}})
	res, err := s.Exec(ctx, unitask.Command{Args: []string{"sh", "-c", "echo kept > /out/result"}})
	if err != nil || len(res.Artifacts) != 1 || res.Artifacts[0].Path != "result" {
		t.Errorf("%+v %v", res, err)
	} else if f, err := rt.Runs().OpenArtifact(res.RunID, "result"); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
	// busybox's nc listens, and answers once.
	if _, err := s.Start(ctx, unitask.Command{Args: []string{"sh", "-c", "echo hello | nc -l -p 8080"}}); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(20 * time.Second); ; {
		conn, err := s.Dial(ctx, 8080)
		if err == nil {
			line, err := bufio.NewReader(conn).ReadString('\n')
			conn.Close()
			if line == "hello\n" {
				return
			}
			t.Logf("%q %v", line, err)
		}
		if time.Now().After(until) {
			t.Errorf("nobody answers: %v", err)
			return
		}
	}
}

// An image without a shell, whose user is a number: commands and files work, folders and steps say what is missing.
func TestSessionContainerWithoutShell(t *testing.T) {
	t.Parallel()
	needVM(t)
	layer := filepath.Join(t.TempDir(), "layer.tar")
	box := filepath.Join(baseHome, "vendor", runtime.GOARCH, "busybox", "root", "bin")
	if out, err := exec.Command("tar", "-c", "-f", layer, "--transform=s,busybox,opt/busybox,", "-C", box,
		"busybox").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	s := containerSession(t, sessionRuntime(t), unitask.SessionRequest{Request: unitask.Request{Image: "test/bare:1",
		Secrets: map[string]string{"KEY": "0123456789-abcdef"}, AllowNet: []string{"api.example.com"},
		SecretHosts: map[string][]string{"KEY": {"api.example.com"}}}},
		testhome.Saved(t, "test/bare:1", layer, map[string]any{"User": "4321:77", "Entrypoint": []string{"/opt/busybox"}}))
	execs(t, s, []execRow{{args: []string{"/opt/busybox", "id"}, stdout: "uid=4321 gid=77 groups=77\n"},
		{script: "echo", stderr: "no such file", exit: 127}})
	ctx := t.Context()
	if err := s.WriteFile(ctx, "a/b", []byte("text"), 0o600); err != nil {
		t.Error(err)
	}
	// Clients trust the broker of the secret, although the image has no certificates.
	res, err := s.Exec(ctx, unitask.Command{Args: []string{"/opt/busybox", "sh", "-c", "echo $SSL_CERT_FILE"}})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := s.ReadFile(ctx, strings.TrimSpace(string(res.Stdout)), 0, 0); err != nil ||
		!strings.Contains(string(text), "BEGIN CERTIFICATE") {
		t.Errorf("%q %q %v", res.Stdout, text, err)
	}
	list, _, err := s.List(ctx, "/work", 2)
	if err != nil || len(list) != 2 || list[1].Path != "/work/a/b" {
		t.Errorf("%v %v", list, err)
	}
	if err := s.Pack(ctx, "a", io.Discard); err == nil || !strings.Contains(err.Error(), "has no /bin/tar") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := s.Run(ctx, unitask.Step{Code: ":"}); err == nil || !strings.Contains(err.Error(), "no bash") {
		t.Errorf("a step: %v", err)
	}
}

// An image of Debian's packages: steps go to its own interpreters, and another process continues with them.
func TestSessionContainerDebian(t *testing.T) {
	t.Parallel()
	needClones(t)
	home := newHome(t)
	rt := openRuntime(t, unitask.Options{Home: home})
	s := containerSession(t, rt, unitask.SessionRequest{Root: true, Request: unitask.Request{Image: "test/debian:1",
		Language: "python", Env: map[string]string{"B": "given"}}},
		testhome.Debian(t, baseHome, "test/debian:1", map[string]any{"User": "1000", "Env": []string{"A=image", "B=image"}}))
	if got := value(t, s, "", "x = 41; import os\n"+
		"f'{os.getuid()} {os.getcwd()} {os.environ[\"A\"]} {os.environ[\"B\"]}'"); got != "'1000 /work image given'" {
		t.Error(got)
	}
	if got := value(t, s, "js", "const y = 1; process.getuid() + y"); got != "1001" {
		t.Error(got)
	}
	if got := value(t, s, "shell", "n=1; echo $BASH_VERSION | head -c 1"); got != "5" {
		t.Error(got)
	}
	execs(t, s, []execRow{{args: []string{"id", "-u"}, user: "root", stdout: "0\n"},
		{args: []string{"sudo", "id", "-u"}, stdout: "0\n"}})
	pauseSession(t, s)
	if err := s.Leave(); err != nil {
		t.Fatal(err)
	}
	rt.Close()
	again, err := openRuntime(t, unitask.Options{Home: home}).Revive(t.Context(), unitask.Caller{}, s.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got := value(t, again, "python", "x + 1") + value(t, again, "js", "y + 1") +
		value(t, again, "shell", "echo $n $B"); got != "4221 given\n" {
		t.Error(got)
	}
	execs(t, again, []execRow{{script: "id -u; pwd", stdout: "1000\n/work\n"}})
}

// The root of a hostile image can't stop the session's program, and reaches only the image's files. Whatever links it
// makes, no file of the session leads to a file of init's.
func TestAttackSessionContainer(t *testing.T) {
	t.Parallel()
	needVM(t)
	rt := sessionRuntime(t)
	s := containerSession(t, rt, unitask.SessionRequest{Root: true, Request: unitask.Request{Image: "test/box:1"}},
		boxImage(t, "test/box:1", map[string]any{"Env": []string{"PATH=/bin", "HOME=/"}}, [2]string{"bin/python3", "/init"},
			[2]string{"bin/readlink", "busybox"}, [2]string{"bin/mkfifo", "busybox"},
			[2]string{"usr/local/bin/sudo", "/bin/busybox"}))
	sh := func(script string) string {
		t.Helper()
		res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", script}})
		if err != nil {
			t.Fatal(err)
		}
		return string(res.Stdout)
	}
	for _, row := range [][3]string{
		{"the target of a link where sudo goes", "Sudo of unitask\non\n", "/usr/local/bin/sudo -V; echo on"},
		{"the program's memory", "", "(: </proc/1/mem) && echo opened; cat /proc/1/maps /proc/1/environ"},
		{"the command's own memory", "opened\n", "(: </proc/self/mem) && echo opened"},
		{"the program's file", "", "readlink /proc/1/exe; head -c 4 /proc/1/exe"},
		{"the program's root", "", "ls /proc/1/root/"},
		{"the program's streams", "", "cat /proc/1/fd/0 /proc/1/fd/4; echo x > /proc/1/fd/1"},
		{"init's folders", "", "ls -d /stage /image /modules /init"},
		{"a device", "", "mknod /tmp/m c 1 1 && cat /tmp/m"},
		{"a mount", "", "mount -t tmpfs x /tmp && echo mounted"},
		{"the kernel", "", "echo 1 > /proc/sys/kernel/panic && echo written"},
		{"the program's end", "on\n", "kill -9 1; kill -STOP 1; kill -9 -1; echo on"},
		{"a terminal that is none", "on\n", "rm /dev/ptmx; mkfifo /dev/ptmx; rm -r /out; ln -s /proc /out; echo on"},
	} {
		attack.Check(t, row[0], row[1], sh(row[2]))
	}
	res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"id"},
		Terminal: &unitask.Terminal{Size: unitask.TerminalSize{Columns: 80, Rows: 24}}})
	attack.Check(t, "a terminal after that", "127 <nil>", fmt.Sprint(res.ExitCode, " ", err))
	_, err = s.Run(t.Context(), unitask.Step{Language: "python", Code: "1"})
	attack.Check(t, "an interpreter that leads to init", "true", fmt.Sprint(errors.As(err, new(*policy.FieldError))))
	res, err = s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", "id -u"}})
	attack.Check(t, "the session goes on", "0\n0 <nil>", fmt.Sprintf("%s%d %v", res.Stdout, len(res.Artifacts), err))
}
