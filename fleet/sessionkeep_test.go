package fleet

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// Sealed data opens completely and only for its session; otherwise only its place is visible.
func TestSealed(t *testing.T) {
	t.Parallel()
	key := bytes.Repeat([]byte{7}, 32)
	sealed := func(content []byte) []byte {
		var to bytes.Buffer
		s, err := newSealer(key, "alice", "s1")
		if err == nil {
			err = s.seal(&to, bytes.NewReader(content))
		}
		if err != nil {
			t.Fatal(err)
		}
		return to.Bytes()
	}
	open := func(key []byte, tenant, session string, from []byte) ([]byte, error) {
		var to bytes.Buffer
		s, err := newSealer(key, tenant, session)
		if err != nil {
			t.Fatal(err)
		}
		err = s.unseal(&to, bytes.NewReader(from))
		return to.Bytes(), err
	}
	for _, size := range []int{0, 1, sealedPiece - 1, sealedPiece, sealedPiece + 1, 3*sealedPiece + 5} {
		content := bytes.Repeat([]byte("x"), size)
		text := sealed(content)
		if got, err := open(key, "alice", "s1", text); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes: %d %v", size, len(got), err)
		}
	}
	text := sealed(bytes.Repeat([]byte("x"), 3*sealedPiece))
	changed := bytes.Clone(text)
	changed[len(text)/2] ^= 1
	const piece = sealedPiece + 16
	swapped := bytes.Clone(text)
	copy(swapped[15:], text[15+piece:15+2*piece])
	copy(swapped[15+piece:], text[15:15+piece])
	for name, row := range map[string]struct {
		key             []byte
		tenant, session string
		text            []byte
	}{
		"another tenant's":  {key, "bob", "s1", text},
		"another session's": {key, "alice", "s2", text},
		"another key's":     {bytes.Repeat([]byte{8}, 32), "alice", "s1", text},
		"changed":           {key, "alice", "s1", changed},
		"cut at a piece":    {key, "alice", "s1", text[:15+2*piece]},
		"cut":               {key, "alice", "s1", text[:len(text)-1]},
		"longer":            {key, "alice", "s1", append(bytes.Clone(text), 0)},
		"swapped":           {key, "alice", "s1", swapped},
		"nothing":           {key, "alice", "s1", nil},
	} {
		if _, err := open(row.key, row.tenant, row.session, row.text); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each tenant has a separate key. Workers with the same key derive the same ones, and no key reveals another one.
func TestTenantKeys(t *testing.T) {
	t.Parallel()
	all := bytes.Repeat([]byte{7}, sessionKeySize)
	seen := map[string]string{string(all): "all"}
	for _, tenant := range []string{"alice", "bob", "default"} {
		key, err := tenantKey(all, tenant)
		again, e := tenantKey(bytes.Clone(all), tenant)
		if err != nil || e != nil || len(key) != sessionKeySize || !bytes.Equal(key, again) {
			t.Errorf("%s: %v %v, %d bytes", tenant, err, e, len(key))
		}
		if other, is := seen[string(key)]; is {
			t.Errorf("%s has the key of %s", tenant, other)
		}
		seen[string(key)] = tenant
	}
	own := WorkerConfig{Config: Config{URL: "nats://127.0.0.1:1"},
		Tenants: []Tenant{{Name: "alice", SessionKey: []byte("short")}},
		Info:    WorkerInfo{Slots: 1, MemoryMB: 1, Arch: "amd64"}}
	if _, err := NewWorker(t.Context(), own, nil); err == nil || !strings.Contains(err.Error(), "5 bytes: 32 are needed") {
		t.Errorf("a short key: %v", err)
	}
}
