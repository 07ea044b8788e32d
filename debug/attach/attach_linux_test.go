package attach

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/vmm"
)

// A run's name is not a path: nothing outside of the store's folder is opened.
func TestAttackAttachNames(t *testing.T) {
	home := testdir.Private(t)
	runs := filepath.Join(home, "runs")
	client := Client{History: &history.Store{Records: record.Open(runs), Home: home}}
	outside := filepath.Join(home, "outside")
	if err := errors.Join(os.Mkdir(runs, 0o700), os.Mkdir(outside, 0o700)); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	l, err := localsocket.Listen(outside, socketName)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(filepath.Join(outside, "run.json"),
		[]byte(`{"schemaVersion": 1, "id": "../outside", "status": "running"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"../outside", "..", ".", "", "/", outside, "x/../../outside", "..\x00", "*", "last"} {
		got := "not found"
		if _, _, err := client.Join(t.Context(), id, vmm.AccessRead, false); !errors.Is(err, record.ErrNotFound) {
			got = fmt.Sprint(err)
		}
		attack.Check(t, fmt.Sprintf("attach to a run named %q", strings.ReplaceAll(id, home, "HOME")), "not found", got)
	}
}

// Another user's process on a run's socket, with the folders open to it, is refused.
func TestAttackAttachStranger(t *testing.T) {
	perl, err := exec.LookPath("perl")
	if err != nil || os.Getuid() != 0 {
		t.Skip("wants root, to become somebody else, and perl")
	}
	dir := t.TempDir()
	l, err := localsocket.Listen(dir, socketName)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	st, err := os.Stat(filepath.Join(dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "the mode of a run's socket", "-rw-------", strings.Replace(st.Mode().String(), "S", "-", 1))
	for path, mode := range map[string]os.FileMode{dir: 0o755, filepath.Join(dir, socketName): 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	folder, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	done := make(chan string, 1)
	go func() { // until the client has connected, or the listener is closed
		conn, err := l.AcceptUnix()
		if err != nil {
			done <- err.Error()
			return
		}
		defer conn.Close()
		if localsocket.SameUser(conn) != nil {
			done <- "refused"
			return
		}
		done <- "served"
	}()
	cmd := exec.Command(perl, "-e",
		`use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new(Peer => "debug.sock") or die "connect: $!"; <$s>`)
	cmd.Dir = fmt.Sprintf("/proc/self/fd/%d", folder.Fd())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	attack.Check(t, "another user's process on a run's socket", "refused", <-done)
}
