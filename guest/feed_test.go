package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	nic "gvisor.dev/gvisor/pkg/tcpip/link/loopback"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/unitask/unitask/guest/contract"
)

// gvisorPair returns a connected pair of gVisor's TCP connections, as a machine's network provides them. Unlike the
// kernel, they do not serialize two writers.
func gvisorPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	if err := s.CreateNIC(1, nic.New()); err != nil {
		t.Fatal(err)
	}
	addr := tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4([4]byte{127, 0, 0, 1}), Port: 7}
	if err := s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: addr.Addr.WithPrefix()}, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	l, err := gonet.ListenTCP(s, addr, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = gonet.DialContextTCP(t.Context(), s, addr, ipv4.ProtocolNumber); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close(); s.Destroy() })
	return a, b
}

// withGuestOver is withGuest over a given pair of connections.
func withGuestOver(t *testing.T, host, inside net.Conn, guest func(net.Conn)) *wire {
	t.Helper()
	w := &wire{conn: host, datagrams: make(chan []byte, 1000), gone: make(chan struct{})}
	var group sync.WaitGroup
	group.Go(func() { guest(inside) })
	t.Cleanup(func() {
		for _, c := range []net.Conn{inside, host} {
			_ = c.SetDeadline(time.Unix(1, 0))
			c.Close()
		}
		group.Wait()
	})
	return w
}

// hostFrame reads a frame from the host; an error means a malformed frame.
func hostFrame(c net.Conn) (kind byte, payload []byte, err error) {
	var h [contract.HeaderSize]byte
	if _, err := io.ReadFull(c, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[:4])
	if n > contract.MaxFrame || !strings.ContainsRune("FDLHWSGIZA", rune(h[4])) {
		return 0, nil, fmt.Errorf("the host broke the protocol: a frame of type %q with %d bytes", h[4], n)
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(c, payload)
	return h[4], payload, err
}

// zeros is an endless standard input.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// start connects, and starts a program.
func start(t *testing.T, w *wire) *Conn {
	t.Helper()
	c, err := Connect(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.Start(t.Context(), Start{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// A program that ends while standard input is being sent keeps its artifacts: the request for artifacts does not
// truncate a frame of the input.
func TestCollectWhileStdinIsSent(t *testing.T) {
	t.Parallel()
	rounds := 100
	if testing.Short() {
		rounds = 20
	}
	for round := range rounds {
		host, inside := gvisorPair(t)
		broken := make(chan error, 1)
		c := start(t, withGuestOver(t, host, inside, func(inside net.Conn) {
			sendFrame(inside, 'h', goodHello)
			for {
				kind, _, err := hostFrame(inside)
				switch {
				case err != nil:
					broken <- err
					return
				case kind == contract.FrameStart:
					sendFrame(inside, 's', "")
				case kind == contract.FrameStdin:
					// The program ends without reading the frames that are still on their way. The guest reads them
					// after its end.
					sendFrame(inside, 'x', `{"code":0,"signal":0,"oom":false,"out":true}`)
					broken <- drainUntilCollect(inside)
					return
				}
			}
		}))
		end, err := c.Stream(t.Context(), zeros{}, io.Discard, io.Discard)
		if err != nil || !end.Out {
			t.Fatalf("round %d: %+v %v", round, end, err)
		}
		var s taken
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err = c.Collect(ctx, &s, 1<<20)
		cancel()
		if err != nil || fmt.Sprint(s.log) != `[---------- 0000 "a.txt" x]` {
			t.Fatalf("round %d: %v %v; the guest: %v", round, s.log, err, <-broken)
		}
		if err := <-broken; err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		c.Close()
	}
}

// drainUntilCollect reads the remaining input, and answers the frame that asks for artifacts. That frame must be
// complete and the last one.
func drainUntilCollect(c net.Conn) error {
	for {
		kind, payload, err := hostFrame(c)
		switch {
		case err != nil:
			return err
		case kind == contract.FrameCollect && len(payload) == 8:
			sendFrame(c, 'a', "f\x00\x00\x00\x00a.txt")
			sendFrame(c, 'd', "x")
			sendFrame(c, 'z', "")
			return nil
		case kind != contract.FrameStdin:
			return fmt.Errorf("a frame of type %q among standard input", kind)
		}
	}
}

// A guest reports its end and reads nothing more. Collect then waits until its context ends, and Close does not wait.
func TestCollectFromADeafGuest(t *testing.T) {
	host, inside := gvisorPair(t)
	c := start(t, withGuestOver(t, host, inside, func(inside net.Conn) {
		sendFrame(inside, 'h', goodHello)
		_, _, _ = hostFrame(inside)
		sendFrame(inside, 's', "")
		_, _, _ = hostFrame(inside) // then the host's sends fill the buffers
		sendFrame(inside, 'x', `{"code":0,"signal":0,"oom":false,"out":true}`)
	}))
	if _, err := c.Stream(t.Context(), zeros{}, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Collect(ctx, &taken{}, 1<<20); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("collect: %v", err)
	}
	c.Close()
	if err := c.send(contract.FrameCollect, nil); err == nil {
		t.Error("sent on a closed conversation")
	}
}

// A standard input without data delays nobody.
func TestStreamWithSilentStdin(t *testing.T) {
	silent, unused := io.Pipe()
	defer unused.Close()
	c := start(t, withGuest(t, func(inside net.Conn) {
		sendFrame(inside, 'h', goodHello)
		_, _, _ = hostFrame(inside)
		sendFrame(inside, 's', "")
		sendFrame(inside, 'x', `{"code":3,"signal":0,"oom":false,"out":false}`)
		_ = drainUntilCollect(inside)
	}))
	end, err := c.Stream(t.Context(), silent, io.Discard, io.Discard)
	if err != nil || end.Code != 3 {
		t.Fatalf("%+v %v", end, err)
	}
	if err := c.Collect(t.Context(), &taken{}, 1<<20); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
