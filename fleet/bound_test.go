package fleet

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	"golang.org/x/crypto/nacl/box"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/sessiond"
)

// Secrets that a submitter has sealed for a call are available to that call, once, and to no other.
func TestAttackSealedCall(t *testing.T) {
	public, private, err := box.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	made := func() call {
		return call{Request: sessiond.Request{Op: sessiond.OpNew,
			New: &sessiond.New{LifeMS: 60_000, IdleMS: 1000,
				Request: unitask.Request{Language: "shell", AllowNet: []string{"api.example"},
					Secrets: map[string]string{"KEY": "v", "OTHER": "w"}, SecretHosts: map[string][]string{"KEY": {"api.example"}},
					Env: map[string]string{"A": "<&>\u2028"}, Args: []string{}, Files: []unitask.Mount{}, Timeout: time.Minute,
					MemoryMB: 512, Ask: []string{"*"}, Packages: []string{"pip:x==1"}}}}, Caller: "alice"}
	}
	secrets := map[string]string{"KEY": "correct-horse-battery"}
	for _, row := range []struct {
		name   string
		change func(*call)
		later  time.Duration
		twice  bool
		want   string
	}{
		{"as it was", func(*call) {}, 0, false, "given"},
		{"the value goes to the code", func(c *call) { c.New.Request.SecretHosts = nil }, 0, false, "refused"},
		{"it goes to another host",
			func(c *call) { c.New.Request.SecretHosts = map[string][]string{"KEY": {"evil.example"}} }, 0, false, "refused"},
		{"the network is wider", func(c *call) { c.New.Request.AllowNetAny = true }, 0, false, "refused"},
		{"another caller", func(c *call) { c.Caller = "mallory" }, 0, false, "refused"},
		{"to go on with another session", func(c *call) { c.Op, c.Session = sessiond.OpResume, "20260101-000000000-aaaaaa" },
			0, false, "refused"},
		{"a second time", func(*call) {}, 0, true, "refused"},
		{"a day later", func(*call) {}, 24 * time.Hour, false, "refused"},
		{"by a worker that was a day late", func(*call) {}, -24 * time.Hour, false, "refused"},
	} {
		l := &tenantQueue{w: &Worker{public: public, private: private}}
		c := made()
		if err := c.seal(secrets, public); err != nil {
			t.Fatal(err)
		}
		var there call // as received
		text, err := json.Marshal(c)
		if err == nil {
			err = decode(text, maxValues, &there)
		}
		if err != nil {
			t.Fatal(err)
		}
		row.change(&there)
		if row.twice {
			if _, err := l.unseal(there, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		got := "refused"
		if values, err := l.unseal(there, time.Now().Add(row.later)); err == nil {
			if got = "given"; !maps.Equal(values, secrets) {
				got = fmt.Sprint(values)
			}
		}
		attack.Check(t, "secrets that a submitter has sealed for a session: "+row.name, row.want, got)
	}
	l := &tenantQueue{w: &Worker{public: public, private: private}}
	text := []byte(`{"KEY":"correct-horse-battery"}`) // as older versions sealed it
	c := made()
	if c.Sealed, err = box.SealAnonymous(nil, text, public, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := l.unseal(c, time.Now()); err == nil {
		t.Error("what is bound to no call is taken")
	}
}

// A known value stays known until it expires.
func TestOnce(t *testing.T) {
	var o once
	at := time.Now()
	for i := range maxOnce {
		if !o.first([32]byte{byte(i), byte(i >> 8), byte(i >> 16)}, at) {
			t.Fatal(i)
		}
	}
	if o.first([32]byte{1}, at) || o.first([32]byte{1, 1, 1, 1}, at.Add(sealedFor)) ||
		!o.first([32]byte{1, 1, 1, 1}, at.Add(3*sealedFor)) || len(o.seen) != 1 {
		t.Errorf("%d are known", len(o.seen))
	}
}
