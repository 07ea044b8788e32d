package cli_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testwait"
)

const webhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// New log entries go to the webhook in the home's configuration, signed, until the program is interrupted.
func TestDeliver(t *testing.T) {
	verify, err := standard.NewWebhook(webhookSecret)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan audit.Event, 10)
	hs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var event audit.Event
		if err := verify.Verify(body, r.Header); err != nil || json.Unmarshal(body, &event) != nil {
			t.Errorf("%v: %s", err, body)
		}
		got <- event
	}))
	defer hs.Close()
	home := testdir.Private(t)
	config := "[[webhook]]\nurl = \"" + hs.URL + "\"\nsecret = \"" + webhookSecret + "\"\nkinds = [\"run.refused\"]\n"
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unitask", "events", "--deliver")
	cmd.Env = append(os.Environ(), "UNITASK_HOME="+home)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the process delivers", func() bool {
		files, _ := filepath.Glob(filepath.Join(home, "webhooks", "*.json"))
		return len(files) > 0
	})
	if _, text, code := ran(t, home, nil, "run", "--code", "1", "--memory", "7M"); code != 2 {
		t.Fatal(text)
	}
	select {
	case event := <-got:
		if event.Kind() != "run.refused" || !strings.Contains(string(event.Data), "memory") {
			t.Errorf("%+v %s", event, event.Data)
		}
	case <-time.After(patience):
		t.Error("nothing came")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || stderr.Len() > 0 {
		t.Errorf("%v %s", err, stderr.String())
	}
}

// An invalid configuration is refused, and the error contains no secret.
func TestDeliverConfig(t *testing.T) {
	for name, row := range map[string]struct {
		config string
		mode   os.FileMode
		args   string
		want   string
	}{
		"no hook": {"", 0o600, "", "names no webhook"},
		"others can read it": {"[[webhook]]\nurl = \"https://h.example/\"\nsecret = \"" + webhookSecret + "\"\n", 0o644, "",
			"others can read it: chmod 600"},
		"no secret": {"[[webhook]]\nurl = \"https://h.example/\"\n", 0o600, "",
			"webhook 1: its secret is not whsec_"},
		"a key that is none": {"[[webhook]]\nurl = \"https://h.example/\"\nsecrets = \"x\"\n", 0o600, "",
			"unknown key webhook.secrets"},
		"with --follow": {"", 0o600, "--follow", "leave --follow and --after away"},
	} {
		home := testdir.Private(t)
		file := filepath.Join(home, "config.toml")
		if err := errors.Join(os.WriteFile(file, []byte(row.config), row.mode), os.Chmod(file, row.mode)); err != nil {
			t.Fatal(err)
		}
		_, stderr, code := ran(t, home, nil, append([]string{"events", "--deliver"}, strings.Fields(row.args)...)...)
		if code != 2 || !strings.Contains(stderr, row.want) || strings.Contains(stderr, webhookSecret) {
			t.Errorf("%s: %d %s", name, code, stderr)
		}
	}
}
