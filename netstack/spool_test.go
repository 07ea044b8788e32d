package netstack

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

func TestSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wrote []int
		gate := make(chan struct{})
		s := newSpool(10, func(v int) { <-gate; wrote = append(wrote, v) })
		for i := range 12 {
			if took := s.put(i, 1); took != (i < 10) {
				t.Errorf("value %d: %v", i, took)
			}
			synctest.Wait() // the first is being written, and counts
		}
		close(gate)
		synctest.Wait()
		if !s.put(99, 10) {
			t.Error("no room after all was written")
		}
		s.close()
		s.close()
		if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 99}; !slices.Equal(wrote, want) {
			t.Errorf("wrote %v", wrote)
		}
		if s.put(1, 1) {
			t.Error("took a value after close")
		}
	})
}

// A disk that never recovers delays the end of a network by flushTime, and nothing is written when it does recover.
func TestAttackDiskThatNeverComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, writes := make(chan struct{}), 0
		s := newSpool(10, func(int) { writes++; <-gate })
		for i := range 5 {
			s.put(i, 1)
		}
		begin := time.Now()
		s.close()
		attack.Check(t, "a disk that stalls for good: closing takes", flushTime.String(), time.Since(begin).String())
		close(gate)
		<-s.done
		if writes != 1 {
			t.Errorf("%d writes", writes)
		}
	})
}

// isClosed reports whether a spool accepts nothing more.
func (s *spool[T]) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// stalled is a disk that accepts nothing until it is released.
type stalled struct {
	gate chan struct{}
	mu   sync.Mutex
	got  bytes.Buffer
}

func (s *stalled) Write(p []byte) (int, error) {
	<-s.gate
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.Write(p)
}

// While the disk of the log and of the capture stalls, names are answered and connections continue. After it recovers,
// the log is complete.
func TestAttackStalledDisk(t *testing.T) {
	echo := echoServer(t)
	net1 := &internet{names: map[string][]string{"e.example": {"93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:99": echo}}
	disk, gate := &stalled{gate: make(chan struct{})}, make(chan struct{})
	kept := &Capture{w: disk, left: MaxCapture}
	var decisions []Decision
	g := newGuest(t, Config{Upstream: net1.upstream(), Rules: []Rule{{Text: "e", Host: "e.example", Port: 99, Raw: true}},
		Capture: kept,
		Limits:  Limits{DNSPerSecond: 1000}, Log: func(d Decision) { <-gate; decisions = append(decisions, d) }})
	got := "goes on"
	for range 20 {
		if _, code := g.lookup("e.example"); code != 0 {
			got = "no name is answered"
		}
	}
	conn, err := g.dial("e.example", 99)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	body := bytes.Repeat([]byte("0123456789abcdef"), captureQueue*3/4/16) // it is captured on its way up, and down
	var group sync.WaitGroup
	group.Go(func() { _, _ = conn.Write(body) })
	if back, err := io.ReadAll(io.LimitReader(conn, int64(len(body)))); err != nil || !bytes.Equal(back, body) {
		got = "connections stand still"
	}
	group.Wait()
	attack.Check(t, "a disk that stalls under a run: its network", "goes on", got)
	got = "counted"
	if g.n.Stats()[DropCapture] == 0 {
		got = "not counted"
	}
	attack.Check(t, "a disk that stalls under a run: frames that the capture lost", "counted", got)
	close(gate)
	// The disk recovers when no frame comes any more: it then receives the waiting data.
	group.Go(func() { g.n.Close() })
	testwait.Until(t, "no frame comes any more", g.n.link.tap.frames.isClosed)
	close(disk.gate)
	group.Wait()
	if len(decisions) != 22 { // 21 lookups, one connection
		t.Errorf("%d decisions", len(decisions))
	}
	disk.mu.Lock()
	defer disk.mu.Unlock()
	if n := disk.got.Len(); n == 0 || n > captureQueue {
		t.Errorf("%d bytes were captured", n)
	}
}

func TestAttackCaptureWithoutEnd(t *testing.T) {
	var file bytes.Buffer
	c := NewCapture(&file)
	c.left = 1000
	n, guest := attach(t, Config{Capture: c})
	for range 100 {
		sendTo(t, guest, ethernet(0x0806, arp(1, [4]byte{10, 0, 2, 2})))
		receiveFrom(t, guest)
	}
	n.Close()
	got := "cut, and said so"
	if err := c.Err(); !errors.Is(err, ErrCaptureLimit) || !strings.Contains(err.Error(), "limit of 1024 MiB") ||
		n.Stats()[DropCapture] < 100 {
		got = "not said"
	}
	if file.Len() > pcapHead+1000 {
		got = "not cut"
	}
	attack.Check(t, "a capture beyond its limit", "cut, and said so", got)
	if (file.Len()-pcapHead)%(pcapRecord+42) != 0 {
		t.Errorf("%d bytes: half a frame", file.Len())
	}
	full := NewCapture(fullDisk{})
	if err := full.Err(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Error(err)
	}
	if err := (*Capture)(nil).Err(); err != nil {
		t.Error(err)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }
