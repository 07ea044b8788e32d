package broker

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// The search for a run's longest values is prepared in limited time and memory, whatever they contain, because answers
// wait for it.
func TestAttackLargeSecrets(t *testing.T) {
	for name, part := range map[string]string{
		"letters and digits": "Zk3vQ8sXw1Lr7Tn5", "what every encoder escapes": "<&\"'+/ é\\zkQ8",
	} {
		sizes := []int{maxSecret, maxSecretsTogether / maxSecrets, maxEdged}
		if testing.Short() {
			sizes = sizes[:1]
		}
		for _, size := range sizes {
			cfg := Config{}
			for i := range min(maxSecrets, maxSecretsTogether/size) {
				value := (fmt.Sprintf("%04d", i) + strings.Repeat(part, size))[:size-1] + "x"
				cfg.Secrets = append(cfg.Secrets, Secret{Name: fmt.Sprint("K", i), Value: value, Hosts: []Host{host}})
			}
			b, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			begin := time.Now()
			s := b.redactor(host, true, nil)
			took := time.Since(begin)
			runtime.GC()
			runtime.ReadMemStats(&after)
			const want = "at most 256 MiB, in at most 20 s"
			got := want
			if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > 256<<20 || took > 20*time.Second {
				got = fmt.Sprintf("%d MiB, in %s", held>>20, took)
			}
			attack.Check(t, fmt.Sprintf("%d secrets of %d bytes, of %s", len(cfg.Secrets), size, name), want, got)
			runtime.KeepAlive(s)
		}
	}
}

// More are refused before a machine starts. A secret with several bindings counts once.
func TestSecretsTogether(t *testing.T) {
	var cfg Config
	for i := range maxSecretsTogether / maxSecret {
		s := Secret{Name: fmt.Sprint("K", i), Value: strings.Repeat("x", maxSecret), Hosts: []Host{host}}
		cfg.Secrets = append(cfg.Secrets, s, s)
	}
	if _, err := New(cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Secrets = append(cfg.Secrets, Secret{Name: "MORE", Value: "12345678", Hosts: []Host{host}})
	const want = `secret "MORE": the secrets that are bound to hosts have more than 32768 bytes together`
	if _, err := New(cfg); err == nil || err.Error() != want {
		t.Error(err)
	}
}
