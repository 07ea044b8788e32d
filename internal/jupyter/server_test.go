package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testjupyter"
	"github.com/unitask/unitask/session"
)

// serve serves a kernel whose session can't start.
func serve(t *testing.T) (content map[string]any, ended chan error) {
	t.Helper()
	name, content := testjupyter.File(t)
	c, err := ReadConnection(name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended = make(chan error, 1)
	go func() {
		ended <- Serve(ctx, c, Options{Version: "1", Start: func(context.Context) (*session.Session, error) {
			return nil, errors.New("no room")
		}})
		close(ended)
	}()
	t.Cleanup(func() { stop(); <-ended })
	return content, ended
}

// A kernel without a machine answers, says why code does not run, and ends when the client asks.
func TestWithoutMachine(t *testing.T) {
	content, ended := serve(t)
	c := testjupyter.Connect(t, content)
	if got := c.Ask("kernel_info_request", nil); got["protocol_version"] != protocol ||
		got["implementation"] != "unitask" {
		t.Errorf("%v", got)
	}
	for range 2 {
		reply, shown := c.Run("1", nil)
		if reply["status"] != "error" || !strings.Contains(fmt.Sprint(reply["evalue"]), "did not start: no room") ||
			len(shown) != 1 || shown[0].Type != "error" {
			t.Errorf("%v %v", reply, shown)
		}
	}
	for kind, want := range map[string]string{"history_request": "map[history:[] status:ok]",
		"comm_info_request":   "map[comms:map[] status:ok]",
		"is_complete_request": "map[status:unknown]",
		"complete_request":    "map[cursor_end:0 cursor_start:0 matches:[] metadata:map[] status:ok]",
		"inspect_request":     "map[data:map[] found:false metadata:map[] status:ok]"} {
		if got := fmt.Sprint(c.Ask(kind, map[string]any{})); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
	if got := c.Ask("complete_request", map[string]any{"code": "é", "cursor_pos": 2}); got["status"] != "error" {
		t.Errorf("a place outside the code: %v", got)
	}
	c.Send("control", "interrupt_request", nil)
	if m := c.Receive("control"); m.Type != "interrupt_reply" {
		t.Errorf("%v", m)
	}
	c.Send("control", "shutdown_request", map[string]any{"restart": true})
	if m := c.Receive("control"); m.Type != "shutdown_reply" || m.Content["restart"] != true {
		t.Errorf("%v", m)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A client without the key gets nothing done.
func TestAttackClients(t *testing.T) {
	content, ended := serve(t)
	port := content["control_port"].(int)
	stranger := testjupyter.Dial(t, port, "DEALER", "stranger")
	stranger.Send(testjupyter.Frames("guessed", "1", "shutdown_request", map[string]any{})...)
	stranger.Send([]byte("garbage"))
	stranger.Send(testjupyter.Frames("a key", "2", "kernel_info_request", map[string]any{})...)
	var head struct {
		ID string `json:"msg_id"`
	}
	frames := stranger.Receive()
	_ = json.Unmarshal(frames[3], &head)
	attack.Check(t, "Jupyter: requests without the key", "2", head.ID) // the first answer is to the signed one
	select {
	case err := <-ended:
		t.Fatal(err)
	default:
	}
}

// A kernel's file is where Jupyter looks, replaces only ours, and goes again.
func TestSpecs(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("JUPYTER_DATA_DIR", "")
	t.Setenv("XDG_DATA_HOME", filepath.Join(home, "xdg"))
	kernels, err := UserKernels()
	if err != nil || !strings.HasPrefix(kernels, home) || filepath.Base(kernels) != "kernels" {
		t.Fatal(kernels, err)
	}
	t.Setenv("JUPYTER_DATA_DIR", filepath.Join(home, "data"))
	if kernels, err = UserKernels(); kernels != filepath.Join(home, "data", "kernels") {
		t.Fatal(kernels, err)
	}
	for _, display := range []string{"One", "Two"} {
		if _, err := Install(kernels, "mine", NewSpec(display, "/bin/unitask", "kernel", "run")); err != nil {
			t.Fatal(err)
		}
	}
	foreign := filepath.Join(kernels, "python3")
	if err := os.MkdirAll(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(foreign, specFile), []byte(`{"argv":["python3"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(kernels, "python3", NewSpec("x")); !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
	if err := Remove(kernels, "python3"); !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
	for _, name := range []string{"", "..", "a/b", "ä", strings.Repeat("x", 65)} {
		if _, err := Install(kernels, name, NewSpec("x")); err == nil {
			t.Errorf("the name %q", name)
		}
	}
	list, err := List(kernels)
	if err != nil || len(list) != 1 || list[0].Display != "Two" || list[0].Args[3] != "{connection_file}" {
		t.Errorf("%+v %v", list, err)
	}
	if err := Remove(kernels, "mine"); err != nil {
		t.Error(err)
	}
	if list, err := List(kernels); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
}

// Other users of the host do not read the variables that a kernel's machine gets.
func TestAttackSpecRead(t *testing.T) {
	for arg, want := range map[string]string{"--env=TOKEN=x": "-rw-------", "--memory=2G": "-rw-r--r--"} {
		dir, err := Install(t.TempDir(), "unitask", NewSpec("Python", "unitask", arg))
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, specFile))
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "the mode of kernel.json with "+arg, want, info.Mode().String())
	}
}
