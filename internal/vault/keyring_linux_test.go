package vault

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zalando/go-keyring"
)

// inKeyringSession is set in the process that a real keyring answers.
const inKeyringSession = "VAULT_TEST_KEYRING"

// The list of a real keyring, of GNOME, has exactly the accounts of our service. Each source in it reads its entry.
// make test installs what this needs.
func TestKeyringList(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a keyring")
	}
	if os.Getenv(inKeyringSession) == "" {
		dir := t.TempDir()
		cmd := exec.Command("dbus-run-session", "--", "sh", "-c",
			`printf unlock | gnome-keyring-daemon --unlock --components=secrets >&2 && exec "$0" "$@"`,
			os.Args[0], "-test.run=^TestKeyringList$", "-test.v")
		cmd.Env = append(os.Environ(), inKeyringSession+"=1", "HOME="+dir, "XDG_DATA_HOME="+filepath.Join(dir, "share"),
			"XDG_RUNTIME_DIR="+dir)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestKeyringList") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	v := &Vault{Most: 100, Secrets: map[string]string{"CONFIGURED": "keyring:CONFIGURED", "MOVED": "keyring:TOKEN"}}
	if list, err := v.List(t.Context()); err != nil || len(list) != 2 {
		t.Fatalf("an empty keyring: %v, %v", list, err)
	}
	for _, entry := range [][2]string{{Service, "TOKEN"}, {Service, "odd/name"}, {Service, "CONFIGURED"},
		{Service, "MOVED"}, {"elsewhere", "OTHER"}} {
		if err := keyring.Set(entry[0], entry[1], "value of "+entry[1]); err != nil {
			t.Fatal(err)
		}
	}
	want := []Entry{{Name: "CONFIGURED", Source: "keyring:CONFIGURED", InConfig: true},
		{Name: "MOVED", Source: "keyring:MOVED"}, {Name: "MOVED", Source: "keyring:TOKEN", InConfig: true},
		{Name: "TOKEN", Source: "keyring:TOKEN"}, {Name: "odd/name", Source: "keyring:unitask/odd/name"}}
	list, err := v.List(t.Context())
	if err != nil || !slices.Equal(list, want) {
		t.Errorf("got %+v, %v", list, err)
	}
	for _, e := range list {
		if _, err := v.Read(t.Context(), e.Source); err != nil {
			t.Errorf("%+v: %v", e, err)
		}
	}
	accounts := []string{"CONFIGURED", "MOVED", "TOKEN", "odd/name"}
	if got := Accounts(t.Context()); !slices.Equal(got, accounts) {
		t.Errorf("a completion gets %q", got)
	}
	if out, err := exec.Command("dbus-send", "--session", "--print-reply", "--dest=org.freedesktop.secrets",
		"/org/freedesktop/secrets", "org.freedesktop.Secret.Service.Lock",
		"array:objpath:/org/freedesktop/secrets/collection/login").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := listKeyring(false); !errors.Is(err, errLocked) || got != nil {
		t.Errorf("the keyring is locked: %q, %v", got, err)
	}
}

// A keyring that does not answer is an error that says what to do, and never an empty list.
func TestKeyringSilent(t *testing.T) {
	for name, address := range map[string]string{"no bus": "unix:path=" + filepath.Join(t.TempDir(), "none"),
		"no address": "garbage"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKeyringSilentChild$", "-test.v")
		cmd.Env = append(os.Environ(), inKeyringSession+"=silent", "DBUS_SESSION_BUS_ADDRESS="+address)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "no keyring answers here (") ||
			!strings.Contains(string(out), "start one in this login session") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestKeyringSilentChild lists a keyring in a process whose bus TestKeyringSilent has chosen.
func TestKeyringSilentChild(t *testing.T) {
	if os.Getenv(inKeyringSession) != "silent" {
		t.Skip("TestKeyringSilent starts it")
	}
	list, err := (&Vault{}).List(t.Context())
	if err == nil || len(list) != 0 {
		t.Fatalf("%v, %v", list, err)
	}
	t.Log(err)
	began := time.Now()
	if got := Accounts(t.Context()); got != nil || time.Since(began) > time.Minute {
		t.Errorf("a completion gets %q", got)
	}
}
