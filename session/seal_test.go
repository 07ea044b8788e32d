package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/netstack/broker"
)

// Sealed data opens with the home's key, for its session, and is bound to both.
func TestAttackSealedAuthority(t *testing.T) {
	home, plain := testdir.Private(t), []byte("-----BEGIN CERTIFICATE of a session, and its key")
	var all sync.WaitGroup
	sealed := make([][]byte, 8)
	for i := range sealed { // processes that make the key at once make one
		all.Go(func() {
			var err error
			if sealed[i], err = sealAuthority(home, "one", plain); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, s := range sealed {
		if got, err := openAuthority(
			home,
			"one",
			s,
		); err != nil || !bytes.Equal(got, plain) ||
			bytes.Contains(s, plain[:10]) {
			t.Errorf("%q %v", got, err)
		}
	}
	if got, err := openAuthority(home, "one", plain); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("of an older version: %q %v", got, err)
	}
	name := layout.Dir(home).PauseKey()
	key, err := os.ReadFile(name)
	if list, e := os.ReadDir(home); err != nil || e != nil || len(list) != 1 || len(key) != pauseKeySize {
		t.Fatalf("%v, %d bytes, %v %v", list, len(key), err, e)
	}
	changed := bytes.Clone(sealed[0])
	changed[len(changed)-1] ^= 1
	for what, open := range map[string]func() error{
		"for another session": func() error { _, err := openAuthority(home, "two", sealed[0]); return err },
		"changed":             func() error { _, err := openAuthority(home, "one", changed); return err },
		"cut": func() error {
			_, err := openAuthority(home, "one",
				sealed[0][:len(sealedMark)+3])
			return err
		},
		"in another home": func() error { _, err := openAuthority(t.TempDir(), "one", sealed[0]); return err },
		"by a key that others may read": func() error {
			_ = os.Chmod(name, 0o640)
			defer os.Chmod(name, 0o600)
			_, err := openAuthority(home, "one", sealed[0])
			return err
		},
		"by a key behind a link": func() error {
			_ = os.Rename(name, name+".real")
			_ = os.Symlink(name+".real", name)
			defer os.Rename(name+".real", name)
			_, err := openAuthority(home, "one", sealed[0])
			return err
		},
		"by a short key": func() error {
			_ = os.WriteFile(name, key[:16], 0o600)
			defer os.WriteFile(name, key, 0o600)
			_, err := openAuthority(home, "one", sealed[0])
			return err
		},
	} {
		got := "opened"
		if err := open(); err != nil {
			got = "refused"
		}
		attack.Check(t, "a sealed authority: "+what, "refused", got)
	}
	if _, err := openAuthority(home, "one", sealed[0]); err != nil {
		t.Error(err)
	}
}

// A session that moves to another home is sealed with that home's key, and nothing else of it changes.
func TestSealedAuthorityMoves(t *testing.T) {
	from, to, plain := t.TempDir(), t.TempDir(), []byte("certificate and key")
	sealed, err := sealAuthority(from, "one", plain)
	if err != nil {
		t.Fatal(err)
	}
	note, err := json.Marshal(
		paused.Note{
			ID:     "one",
			Owner:  "ada",
			Dir:    "/w",
			Policy: paused.NotePolicy{Effective: json.RawMessage(`{}`)},
			Broker: &broker.Kept{Authority: sealed},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(machine.Pause{Version: 1, QEMU: "10", Note: note})
	if err != nil {
		t.Fatal(err)
	}
	carried, err := OpenPaused(from, text)
	landed, e := SealPaused(to, carried)
	if err != nil || e != nil {
		t.Fatal(err, e)
	}
	var p machine.Pause
	var k paused.Note
	if err := errors.Join(
		json.Unmarshal(landed, &p),
		json.Unmarshal(p.Note, &k),
	); err != nil || p.QEMU != "10" || k.Owner != "ada" ||
		k.Dir != "/w" {
		t.Errorf("%s %v", landed, err)
	}
	if got, err := openAuthority(to, "one", k.Broker.Authority); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("%q %v", got, err)
	}
	if back, err := OpenPaused(to, landed); err != nil || !bytes.Equal(back, carried) {
		t.Errorf("%s\n%s\n%v", back, carried, err)
	}
	if _, err := OpenPaused(to, text); err == nil || !strings.Contains(err.Error(), "pause.key") {
		t.Errorf("with the wrong home: %v", err)
	}
	for _, other := range []string{"", "{}", "null", `{"note": 1}`, `{"note": {"id": "x"}}`} {
		if got, err := SealPaused(to, []byte(other)); err != nil || string(got) != other {
			t.Errorf("%q: %q %v", other, got, err)
		}
	}
}
