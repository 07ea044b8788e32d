package fleet_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
)

func dial(t testing.TB, url string, opts ...nats.Option) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// fill puts messages into the queue.
func fill(t testing.TB, url string, n int) {
	t.Helper()
	_, js := dial(t, url)
	for i := range n {
		if _, err := js.Publish(t.Context(), "unitask.queue."+string(unitask.HostArch())+".default.normal",
			fmt.Appendf(nil, `{"run":"no-run-%d"}`, i)); err != nil {
			t.Fatal(err)
		}
	}
}

// eavesdrop receives everything sent on any subject.
func eavesdrop(t testing.TB, url string) func() []byte {
	t.Helper()
	nc, _ := dial(t, url)
	var mu sync.Mutex
	var all bytes.Buffer
	if _, err := nc.Subscribe(">", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		all.WriteString(m.Subject)
		all.Write(m.Data)
		fmt.Fprint(&all, m.Header)
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return func() []byte {
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		return bytes.Clone(all.Bytes())
	}
}
