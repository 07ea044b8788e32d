package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask/internal/attack"
)

// A list reads no more of a tenant's account than its limit, in keys and in bytes.
func TestAttackLists(t *testing.T) {
	t.Parallel()
	_, js := served(t)
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "many"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		if _, err := kv.Put(t.Context(), fmt.Sprintf("k%02d", i), []byte(strings.Repeat("x", 97))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := kv.Put(t.Context(), "long", make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(t.Context(), "k01"); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		most bound
		late bool
		want string
	}{
		{"all of them", bound{100, 1 << 20, 500}, false, "59 from k00 to k59"},
		{"too many keys", bound{20, 1 << 20, 500}, false, "20 from k00 to k20"},
		{"too many bytes", bound{100, 2000, 500}, false, "20 from k00 to k20"},
		{"a long value", bound{100, 1 << 20, 5000}, false, "60 from k00 to long"},
		{"those written last", bound{5, 1 << 20, 5000}, keysLate, "4 from k57 to long"},
	} {
		var keys []string
		if err := list(t.Context(), js, "many", row.most, row.late,
			func(key string, _ []byte) { keys = append(keys, key) }); err != nil {
			t.Fatal(err)
		}
		got := "nothing"
		if len(keys) > 0 {
			slices.Sort(keys)
			got = fmt.Sprintf("%d from %s to %s", len(keys), keys[0], keys[len(keys)-1])
		}
		attack.Check(t, "a list of a tenant's: "+row.name, row.want, got)
	}
	if s, err := js.Stream(t.Context(), "KV_many"); err != nil || s.CachedInfo().State.Consumers != 0 {
		t.Errorf("consumers are left: %v", err)
	}
}

// If messages arrive too fast, a listener keeps no more than its limit.
func TestAttackEar(t *testing.T) {
	t.Parallel()
	_, js := served(t)
	nc := js.Conn()
	for _, row := range []struct {
		name            string
		messages, bytes int
		size, want      int
	}{{"many messages", 10, 1 << 20, 1, 10}, {"large messages", 100, 10_000, 2_990, 3},
		{"one that is too large", 100, 1000, 2000, 0}} {
		e, err := hear(nc, "subject", row.messages, row.bytes)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			if err := nc.PublishMsg(&nats.Msg{Subject: "subject", Data: make([]byte, row.size)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		var kept int
		for limit := time.Now().Add(time.Minute); ; {
			if n, _, err := e.sub.Pending(); err != nil || n == 0 || time.Now().After(limit) {
				break
			}
		}
		for e.last() != nil {
			kept++
		}
		e.close()
		attack.Check(t, "a worker sends its submitter "+row.name, fmt.Sprint(row.want), fmt.Sprint(min(kept, row.want+1)))
	}
}

// A worker that keeps sending does not stop its submitter from reading the later data.
func TestAttackEndlessOutput(t *testing.T) {
	t.Parallel()
	_, js := served(t)
	nc := js.Conn()
	e, err := hear(nc, "endless", 10, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	taken := 0
	more := func(*nats.Msg) {
		if taken++; taken < 100 {
			if err := errors.Join(nc.Publish("endless", []byte("x")), nc.Flush()); err != nil {
				t.Error(err)
			}
		}
	}
	more(nil)
	e.drain(more)
	attack.Check(t, "a worker sends without end, of 10 messages that may wait", "20 at most",
		map[bool]string{true: "20 at most"}[taken <= 21])
}
