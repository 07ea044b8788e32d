package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unixPair returns the two ends of a connection.
func unixPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		conn, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			a = conn.(*net.UnixConn)
		} else {
			b = conn.(*net.UnixConn)
		}
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// Whatever a client sends to the pool's daemon, and whatever a daemon answers: both sides return, nothing is given out
// unasked, and nothing stays open.
func FuzzLease(f *testing.F) {
	f.Add([]byte(`{"op":"clone","key":"x"}` + "\n"))
	f.Add([]byte(`{"op":"status"}` + "\n{"))
	f.Add([]byte(`{"ok":true,"pid":1,"pooled":true}` + "\n" + `{"code":0}` + "\n"))
	f.Add(bytes.Repeat([]byte("x"), poolMessage+1))
	f.Fuzz(func(t *testing.T, text []byte) {
		line, _, _ := bytes.Cut(text, []byte("\n"))
		var meant leaseRequest
		asks := json.Unmarshal(line, &meant) == nil && meant.Op == "clone" && len(line) < poolMessage
		taken := false
		s := newLeaseServer(lender{
			take:   func(context.Context, leaseRequest) (loan, error) { taken = true; return nil, errNoClone },
			status: func() PoolStatus { return PoolStatus{} },
			close:  func() {},
		}, func() {})
		client, server := unixPair(t)
		served := make(chan struct{})
		go func() {
			defer close(served)
			s.serve(server)
			server.Close()
		}()
		_, _ = client.Write(text)
		_ = client.CloseWrite()
		_ = client.SetReadDeadline(time.Now().Add(10 * time.Second))
		if answer, err := io.ReadAll(client); err != nil && !errors.Is(err, unix.ECONNRESET) || len(answer) > poolMessage ||
			bytes.Count(answer, []byte("\n")) > 1 {
			t.Errorf("%d bytes of an answer, %v", len(answer), err)
		}
		<-served
		if taken && !asks {
			t.Errorf("%q: a machine was taken", line)
		}

		run, daemon := unixPair(t)
		go func() {
			_, _ = io.CopyN(io.Discard, daemon, 1)
			_, _ = daemon.Write(text)
			daemon.Close()
		}()
		if m, err := leaseOn(t.Context(), run, testSpec(128)); err == nil {
			m.Close()
			t.Errorf("%q: a machine without descriptors", text)
		}
	})
}
