package unitask_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/session"
)

// One session for many cases, because each takes a machine.
func TestSessionUsers(t *testing.T) {
	needVM(t)
	rt := sessionRuntime(t)
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}, Root: true})
	ctx := t.Context()
	t.Run("commands", func(t *testing.T) { userCommands(t, s) })
	t.Run("sudo", func(t *testing.T) { sudoCommands(t, s) })
	t.Run("files", func(t *testing.T) { userFiles(t, s) })
	t.Run("watch", func(t *testing.T) { userWatch(t, s) })
	if rec, err := rt.Runs().Get(s.ID); err != nil || !rec.Root {
		t.Errorf("record: %+v %v", rec, err)
	}
	plain := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}})
	if _, err := plain.FilesAs("root"); !errors.As(err, new(*policy.FieldError)) {
		t.Errorf("root's files without root: %v", err)
	}
	if _, err := plain.Exec(ctx, unitask.Command{Args: []string{"id"}, User: "root"}); !errors.As(err,
		new(*policy.FieldError)) {
		t.Errorf("root's command without root: %v", err)
	}
	res, err := plain.Exec(ctx, unitask.Command{Args: []string{"sh", "-c",
		"grep NoNewPrivs /proc/self/status; command -v sudo || echo none"}})
	if err != nil || string(res.Stdout) != "NoNewPrivs:\t1\nnone\n" {
		t.Errorf("without root: %q %v", res.Stdout, err)
	}
}

func userCommands(t *testing.T, s *unitask.Session) {
	for user, want := range map[string]string{"": "1000 /home/user\n", "user": "1000 /home/user\n", "root": "0 /root\n"} {
		var pid int
		res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", `echo $(id -u) $HOME; echo $$ >&2`},
			User: user, Started: func(r session.Running) { pid = r.PID }})
		if err != nil || string(res.Stdout) != want || strings.TrimSpace(string(res.Stderr)) != strconv.Itoa(pid) {
			t.Errorf("%q: %q %q, pid %d, %v", user, res.Stdout, res.Stderr, pid, err)
		}
	}
	started := make(chan session.Running, 1)
	id, err := s.Start(t.Context(), unitask.Command{Args: []string{"sleep", "1000"}, User: "root",
		Started: func(r session.Running) { started <- r }})
	if err != nil {
		t.Fatal(err)
	}
	r := <-started
	if err := r.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	for {
		is, err := s.Wait(t.Context(), id, 0, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if is.Result != nil {
			if is.Result.ExitCode != 128+15 {
				t.Errorf("its end: %+v", is.Result)
			}
			break
		}
	}
	if err := r.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal after its end: %v", err)
	}
}

func sudoCommands(t *testing.T, s *unitask.Session) {
	for line, want := range map[string]string{
		"sudo id -u":          "0\n",
		"sudo -u root id -un": "root\n",
		"sudo -u user id -un; sudo -u '#1000' id -u":                                    "user\n1000\n",
		"A=1 sudo -E sh -c 'echo $A $HOME'":                                             "1 /home/user\n",
		"sudo -n B=2 sh -c 'echo $B $HOME $SUDO_USER'":                                  "2 /root user\n",
		"cd /tmp; sudo -i pwd":                                                          "/root\n",
		"cd /tmp; sudo -s 'pwd'; sudo -s echo 'a  b'":                                   "/tmp\na  b\n",
		"sudo --non-interactive -- echo -n x":                                           "x",
		"sudo sudo id -u":                                                               "0\n",
		"sudo no-such; echo $?":                                                         "1\n",
		"sudo -u nobodyatall id; sudo; echo $?":                                         "1\n",
		"sudo touch /etc/made && stat -c %U /etc/made":                                  "root\n",
		"sudo rm /usr/local/bin/../../bin/nothing; sudo sh -c 'id -u; exit 7'; echo $?": "0\n7\n",
	} {
		res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", line}})
		if err != nil || string(res.Stdout) != want {
			t.Errorf("%s: %q %q %v", line, res.Stdout, res.Stderr, err)
		}
	}
	for language, code := range map[string]string{"shell": "sudo id -u"} {
		res, err := s.Run(t.Context(), unitask.Step{Language: language, Code: code})
		if err != nil || string(res.Stdout) != "0\n" {
			t.Errorf("%s: %q %q %v", language, res.Stdout, res.Stderr, err)
		}
	}
}

func userFiles(t *testing.T, s *unitask.Session) {
	ctx := t.Context()
	as := map[string]*session.Files{}
	for _, user := range []string{"user", "root"} {
		f, err := s.FilesAs(user)
		if err != nil {
			t.Fatal(err)
		}
		as[user] = f
		is, err := f.Write(ctx, "/tmp/"+user+"/f", strings.NewReader("text"), 0, map[string]string{"a": "1"})
		if err != nil || is.Owner != user || is.Group != user || is.Mode != 0o644 || is.Metadata["a"] != "1" || is.Size != 4 {
			t.Errorf("%s: %+v %v", user, is, err)
		}
		if is, err = f.Stat(ctx, "/tmp/"+user); err != nil || is.Owner != user || is.Mode != fs.ModeDir|0o755 {
			t.Errorf("%s: %+v %v", user, is, err)
		}
	}
	user, root := as["user"], as["root"]
	if _, err := user.Write(ctx, "/tmp/root/f", strings.NewReader("x"), 0, nil); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("another's file: %v", err)
	}
	if _, err := root.Write(ctx, "/etc/by-root", strings.NewReader("x"), 0o600, nil); err != nil {
		t.Errorf("root's file: %v", err)
	}
	if err := user.Read(ctx, "/etc/by-root", 0, &bytes.Buffer{}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("its file: %v", err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), (session.MaxFile>>4)+1000)
	if _, err := user.Write(ctx, "/tmp/large", bytes.NewReader(large), 0, nil); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := user.Read(ctx, "/tmp/large", 5, &got); err != nil || !bytes.Equal(got.Bytes(), large[5:]) {
		t.Errorf("a large file: %d bytes, %v", got.Len(), err)
	}
	if err := root.Remove(ctx, "/tmp/large"); err != nil {
		t.Error(err)
	}
	if _, err := user.MakeDir(ctx, "made/deep"); err != nil {
		t.Error(err)
	}
	if _, err := user.MakeDir(ctx, "made/deep"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a folder again: %v", err)
	}
	if is, err := user.Move(ctx, "made", "moved/to"); err != nil || is.Path != "/work/moved/to" {
		t.Errorf("moved: %+v %v", is, err)
	}
	for _, name := range []string{"p1", "p2"} {
		if _, err := user.Write(ctx, name, strings.NewReader(name+"\n"), 0, nil); err != nil {
			t.Error(err)
		}
	}
	if _, err := user.Concatenate(ctx, []string{"p1", "p2"}, "whole"); err != nil {
		t.Error(err)
	}
	if text, err := s.ReadFile(ctx, "whole", 0, 0); string(text) != "p1\np2\n" || err != nil {
		t.Errorf("joined: %q %v", text, err)
	}
	list, more, err := user.List(ctx, ".", 9)
	names := ""
	for _, is := range list {
		names += strings.TrimPrefix(is.Path, "/work/") + " "
	}
	if names != "moved moved/to moved/to/deep whole " || more || err != nil {
		t.Errorf("list: %q %v %v", names, more, err)
	}
	if _, _, err := user.List(ctx, "whole", 1); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("list a file: %v", err)
	}
}

func userWatch(t *testing.T, s *unitask.Session) {
	f, err := s.FilesAs("user")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	events, over := make(chan session.FileEvent, 100), make(chan error, 1)
	exec := func(line string) {
		res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", line}})
		if err != nil || res.ExitCode != 0 {
			t.Errorf("%s: %+v %v", line, res, err)
		}
	}
	ready := make(chan struct{})
	exec("mkdir -p w/below")
	go func() {
		over <- f.Watch(ctx, "w", true, func() { close(ready) }, func(e session.FileEvent) { events <- e })
	}()
	select {
	case <-ready:
	case err := <-over:
		t.Fatal(err)
	}
	exec("echo x > w/below/f")
	for _, want := range []session.FileEvent{{Name: "below/f", Kind: "create"}, {Name: "below/f", Kind: "write"}} {
		if e := <-events; e != want {
			t.Errorf("%+v, want %+v", e, want)
		}
	}
	stop()
	if err := <-over; err != nil {
		t.Error(err)
	}
	exec("mkdir many; cd many; i=0; while [ $i -lt 9000 ]; do echo $i; i=$((i+1)); done | xargs mkdir")
	err = f.Watch(t.Context(), "many", true, nil, nil)
	if !errors.Is(err, session.ErrTooManyFolders) {
		t.Errorf("too many: %v", err)
	}
}

// Root and a watch outlast a pause; root outlasts a fork and a resumption, too.
func TestSessionRootLasts(t *testing.T) {
	needClones(t)
	rt := sessionRuntime(t)
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}, Root: true})
	root := func(s *unitask.Session, line string) {
		t.Helper()
		res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", line + "; id -u"}, User: "root"})
		if err != nil || string(res.Stdout) != "0\n" {
			t.Errorf("%s: %+v %v", line, res, err)
		}
		res, err = s.Exec(t.Context(), unitask.Command{Args: []string{"sudo", "id", "-u"}})
		if err != nil || string(res.Stdout) != "0\n" {
			t.Errorf("sudo: %+v %v", res, err)
		}
	}
	f, err := s.FilesAs("root")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ready, events, over := make(chan struct{}), make(chan session.FileEvent, 100), make(chan error, 1)
	go func() {
		over <- f.Watch(ctx, "/root", true, func() { close(ready) }, func(e session.FileEvent) { events <- e })
	}()
	select {
	case <-ready:
	case err := <-over:
		t.Fatal(err)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	root(s, "touch /root/f")
	if e := <-events; e != (session.FileEvent{Name: "f", Kind: "create"}) {
		t.Errorf("after the pause: %+v", e)
	}
	forks, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	root(forks[0], "rm /root/f")
	if err := forks[0].Close(); err != nil {
		t.Error(err)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Leave(); err != nil {
		t.Error(err)
	}
	if err := <-over; err == nil {
		t.Error("the watch of a session that was left had no error")
	}
	again, err := rt.Revive(t.Context(), unitask.Caller{}, s.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	root(again, "rm /root/f")
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
