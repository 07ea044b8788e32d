package netstack

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/unitask/unitask/internal/testwait"
)

// attach returns the network and the machine's end of its link as a connection.
func attach(t testing.TB, cfg Config) (*Network, net.Conn) {
	t.Helper()
	if cfg.Limits.Connections == 0 {
		cfg.Limits.Connections = 128
	}
	for _, bytes := range []*int64{&cfg.Limits.BytesUp, &cfg.Limits.BytesDown} {
		if *bytes == 0 {
			*bytes = 1 << 30
		}
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	guest, err := net.FileConn(n.GuestEnd())
	if err != nil {
		t.Fatal(err)
	}
	n.ReleaseGuestEnd()
	t.Cleanup(func() { guest.Close(); n.Close() })
	return n, guest
}

func sendTo(t testing.TB, guest net.Conn, frame []byte) {
	t.Helper()
	if _, err := guest.Write(appendFrame(nil, frame)); err != nil {
		t.Fatal(err)
	}
}

func receiveFrom(t testing.TB, guest net.Conn) []byte {
	t.Helper()
	_ = guest.SetReadDeadline(time.Now().Add(5 * time.Second))
	var h [4]byte
	if _, err := io.ReadFull(guest, h[:]); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, binary.BigEndian.Uint32(h[:]))
	if _, err := io.ReadFull(guest, frame); err != nil {
		t.Fatal(err)
	}
	return frame
}

func TestLinkAnswers(t *testing.T) {
	var decisions []Decision
	n, guest := attach(t, Config{Log: func(d Decision) { decisions = append(decisions, d) }})
	sendTo(t, guest, ethernet(0x0806, arp(1, [4]byte{10, 0, 2, 2})))
	if f := receiveFrom(t, guest); f[12] != 8 || f[13] != 6 {
		t.Errorf("%x", f)
	}
	q := dnsQuery("evil.example.", dnsmessage.TypeA)
	sendTo(t, guest, ethernet(0x0800, packetIPv4(17, udpOf(4000, 53, 8+len(q), q), nil)))
	if f := receiveFrom(t, guest); len(f) < 50 {
		t.Errorf("%x", f)
	}
	// Every SYN is answered with a reset, and nothing else.
	syn := make([]byte, 20)
	binary.BigEndian.PutUint16(syn, 40000)
	binary.BigEndian.PutUint16(syn[2:], 80)
	syn[12], syn[13] = 5<<4, 2
	binary.BigEndian.PutUint16(syn[14:], 1000)
	sendTo(t, guest, ethernet(0x0800, checksummed(packetIPv4(6, syn, nil))))
	f := receiveFrom(t, guest)
	if flags := f[14+20+13]; flags&0x04 == 0 || flags&0x02 != 0 {
		t.Errorf("TCP flags %#x", flags)
	}
	n.Close()
	if len(decisions) != 2 || decisions[0].Proto != "dns" || decisions[1].Proto != "tcp" || decisions[1].Port != 80 ||
		decisions[1].Verdict != Denied || decisions[1].Time.IsZero() {
		t.Errorf("%+v", decisions)
	}
}

// checksummed fills in a TCP packet's checksum.
func checksummed(ip []byte) []byte {
	sum := uint32(6 + len(ip) - 20)
	for i := 12; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for i := 20; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(ip[20+16:], ^uint16(sum))
	return ip
}

// A frame with a false length ends the link; it does not use more memory.
func TestLinkLyingLength(t *testing.T) {
	for _, length := range []uint32{maxFrame + 1, 1 << 24, 0xffffffff} {
		n, guest := attach(t, Config{})
		if _, err := guest.Write(binary.BigEndian.AppendUint32(nil, length)); err != nil {
			t.Fatal(err)
		}
		select {
		case <-n.Done():
		case <-time.After(5 * time.Second):
			t.Errorf("a frame of %d bytes does not end the link", length)
		}
		if _, err := n.ReceiveDatagram(t.Context()); !errors.Is(err, errLinkEnded) {
			t.Error(err)
		}
	}
}

func TestDatagrams(t *testing.T) {
	n, guest := attach(t, Config{})
	n.SendDatagram([]byte("seed"))
	if f := receiveFrom(t, guest); string(f[14+28:]) != "seed" {
		t.Errorf("%x", f)
	}
	for range 3 * controlQueue { // an endlessly ringing guest fills no memory
		sendTo(t, guest, ethernet(0x0800, packetIPv4(17, udpOf(ControlPort, ControlPort, 8+4, []byte("UTD1")), nil)))
	}
	big := make([]byte, maxDatagram+1)
	sendTo(t, guest, ethernet(0x0800, packetIPv4(17, udpOf(ControlPort, ControlPort, 8+len(big), big), nil)))
	sendTo(t, guest, ethernet(0x0806, arp(1, [4]byte{10, 0, 2, 2})))
	receiveFrom(t, guest) // everything before it was handled
	if p, err := n.ReceiveDatagram(t.Context()); err != nil || string(p) != "UTD1" {
		t.Errorf("%q %v", p, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	got := 1
	for {
		p, err := n.ReceiveDatagram(ctx)
		if err != nil {
			break
		}
		if got++; len(p) > maxDatagram {
			t.Errorf("a datagram of %d bytes", len(p))
		}
	}
	if got > controlQueue+1 {
		t.Errorf("%d datagrams were kept", got)
	}
}

// A guest that does not read its data blocks nobody.
func TestGuestThatDoesNotRead(t *testing.T) {
	n, guest := attach(t, Config{})
	var batch []byte
	for range 100 {
		batch = appendFrame(batch, ethernet(0x0806, arp(1, [4]byte{10, 0, 2, 2})))
	}
	_ = guest.SetWriteDeadline(time.Now().Add(20 * time.Second))
	for range 500 {
		if _, err := guest.Write(batch); err != nil {
			t.Fatal(err)
		}
	}
	testwait.Within(t, 10*time.Second, "something is dropped", func() bool { return n.Stats()[DropOut] > 0 })
}

// Hundreds of thousands of hostile frames leave no memory and no goroutine.
func TestFrameStorm(t *testing.T) {
	runtime.GC()
	goroutines := runtime.NumGoroutine()
	n, err := New(Config{Log: func(Decision) {}})
	if err != nil {
		t.Fatal(err)
	}
	guest, err := net.FileConn(n.GuestEnd())
	if err != nil {
		t.Fatal(err)
	}
	n.ReleaseGuestEnd()
	var group sync.WaitGroup
	group.Go(func() { _, _ = io.Copy(io.Discard, guest) })
	random := rand.New(rand.NewSource(1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var batch []byte
	for i := range 200_000 {
		var frame []byte
		switch i % 4 {
		case 0: // noise
			frame = make([]byte, random.Intn(1514))
			random.Read(frame)
		case 1: // SYNs to everywhere
			syn := make([]byte, 20)
			random.Read(syn[:8])
			syn[12], syn[13] = 5<<4, 2
			frame = ethernet(0x0800, checksummed(packetIPv4(6, syn, nil)))
		case 2: // a correct header, then noise
			body := make([]byte, 20+random.Intn(200))
			random.Read(body)
			frame = ethernet(0x0800, packetIPv4(byte(random.Intn(256)), body, nil))
		default:
			q := dnsQuery("a.b.c.", dnsmessage.TypeTXT)
			frame = ethernet(0x0800, packetIPv4(17, udpOf(4000, 53, 8+len(q), q), nil))
		}
		if batch = appendFrame(batch, frame); len(batch) > 64<<10 {
			if _, err := guest.Write(batch); err != nil {
				t.Fatal(err)
			}
			batch = batch[:0]
		}
	}
	guest.Close()
	<-n.Done()
	n.Close()
	group.Wait()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("the heap grew by %d KiB", grown>>10)
	}
	testwait.Holds(2*time.Second, func() bool { return runtime.NumGoroutine() <= goroutines })
	if now := runtime.NumGoroutine(); now > goroutines {
		t.Errorf("%d goroutines, %d before", now, goroutines)
	}
}

func TestClose(t *testing.T) {
	runtime.GC()
	files := openFiles(t)
	goroutines := runtime.NumGoroutine()
	for range 50 {
		n, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if _, err := n.DialGuest(ctx, 1); err == nil {
			t.Error("dialled a guest that is not there")
		}
		cancel()
		n.Close()
		n.Close()
		if _, err := n.ReceiveDatagram(t.Context()); err == nil {
			t.Error("a datagram after Close")
		}
	}
	testwait.Holds(2*time.Second, func() bool { return runtime.NumGoroutine() <= goroutines })
	if now := runtime.NumGoroutine(); now > goroutines {
		t.Errorf("%d goroutines, %d before", now, goroutines)
	}
	if now := openFiles(t); now > files {
		t.Errorf("%d descriptors, %d before", now, files)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(fds)
}
