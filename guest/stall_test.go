package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/testwait"
)

// startBehind starts the code after n empty files.
func startBehind(c *Conn, files int) error {
	for i := range files {
		if err := c.Put(File{Path: fmt.Sprint("/", i)}, nil); err != nil {
			return err
		}
	}
	return c.Start(context.Background(), Start{})
}

// gonetErrors is a connection whose errors at a deadline are gVisor's: a timeout that is not os.ErrDeadlineExceeded.
type gonetErrors struct{ net.Conn }

type gonetTimeout struct{}

func (gonetTimeout) Error() string { return "i/o timeout" }

func (gonetTimeout) Timeout() bool { return true }

func (gonetTimeout) Temporary() bool { return true }

func (c gonetErrors) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, gonetError(err)
}

func (c gonetErrors) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, gonetError(err)
}

func gonetError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return gonetTimeout{}
	}
	return err
}

// A guest that reads nothing, or never starts the code, does not delay a run.
func TestStalls(t *testing.T) {
	for name, c := range map[string]struct {
		guest func(net.Conn) // its end, after the hello
		do    func(*Conn) error
		want  string
	}{
		"files": {func(net.Conn) {}, func(c *Conn) error {
			return c.Put(File{Path: "/x", Size: 1 << 20}, bytes.NewReader(make([]byte, 1<<20)))
		}, "put /x: the guest took no more files for 20s"},
		"the start": {func(n net.Conn) { _, _ = io.Copy(io.Discard, n) }, func(c *Conn) error {
			return c.Start(context.Background(), Start{})
		}, "start: the guest did not start the code for 20s"},
		"the start, behind files": {func(n net.Conn) { _, _ = io.Copy(io.Discard, n) }, func(c *Conn) error {
			return startBehind(c, 2000)
		}, "start: the guest did not start the code for 30s"},
		"the start, behind very many": {func(n net.Conn) { _, _ = io.Copy(io.Discard, n) }, func(c *Conn) error {
			return startBehind(c, 50_000)
		}, "start: the guest did not start the code for 1m40s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer theirs.Close()
				w := &wire{conn: gonetErrors{ours}, datagrams: make(chan []byte, 1), gone: make(chan struct{})}
				go func() {
					_, _ = theirs.Write(appendFrame(nil, contract.FrameHello, []byte(`{"version":1,"kernel":"linux"}`)))
					c.guest(theirs)
				}()
				conn, err := Connect(t.Context(), w)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				begin := time.Now()
				if err := c.do(conn); err == nil || err.Error() != c.want || time.Since(begin) > maxStalls*stallTime {
					t.Errorf("%v after %s, want %q", err, time.Since(begin), c.want)
				}
			})
		})
	}
}

// The time limits before the code do not apply while it runs.
func TestSlowCodeIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		w := &wire{conn: ours, datagrams: make(chan []byte, 1), gone: make(chan struct{})}
		go func() {
			_, _ = theirs.Write(appendFrame(nil, contract.FrameHello, []byte(`{"version":1,"kernel":"linux"}`)))
			var header [contract.HeaderSize]byte
			for {
				if _, err := io.ReadFull(theirs, header[:]); err != nil {
					return
				}
				_, _ = io.CopyN(io.Discard, theirs, int64(binary.BigEndian.Uint32(header[:])))
				kind := header[4]
				if kind == contract.FrameStart {
					_, _ = theirs.Write(appendFrame(nil, contract.FrameStarted, nil))
				}
				if kind == contract.FrameStdinEnd {
					testwait.Pass(3 * stallTime)
					_, _ = theirs.Write(appendFrame(nil, contract.FrameExit, []byte(`{"code":3,"signal":0,"oom":false,"out":false}`)))
				}
			}
		}()
		conn, err := Connect(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.Put(File{Path: "/x", Size: 1}, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
		testwait.Pass(3 * stallTime)
		if err := conn.Start(t.Context(), Start{}); err != nil {
			t.Fatal(err)
		}
		if end, err := conn.Stream(t.Context(), nil, io.Discard, io.Discard); err != nil || end.Code != 3 {
			t.Errorf("%+v %v", end, err)
		}
	})
}
