package fleet_test

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
)

// NATS is away for longer than a lease and comes back: current runs continue, and end once.
func TestServerBack(outer *testing.T) {
	outer.Parallel()
	store := outer.TempDir()
	ns := startNATS(outer, func(o *server.Options) { o.StoreDir = store })
	outer.Run("while it runs", func(t *testing.T) {
		dir := t.TempDir()
		log, gate := filepath.Join(dir, "log"), filepath.Join(dir, "gate")
		for range 2 { // the other one could wrongly take it over
			startWorker(t, quickly(workerConfig(ns.ClientURL(), 2)), script{log})
		}
		rt, client := submitter(t, fleet.Config{URL: ns.ClientURL(), Times: quick})
		over := make(chan *unitask.Result, 1)
		go func() {
			res, err := rt.Run(context.Background(), unitask.Request{Code: "out before\nwait " + gate + "\nout after",
				AllowNet: []string{"example.com"}}, unitask.IO{})
			if err != nil {
				t.Error(err)
			}
			over <- res
		}()
		waitFor(t, func() bool { return len(lines(log)) == 1 })
		port := ns.Addr().(*net.TCPAddr).Port
		ns.Shutdown()
		ns.WaitForShutdown()
		if err := note(gate, ""); err != nil { // it ends meanwhile
			t.Fatal(err)
		}
		time.Sleep(quick.Lease + quick.Lease/4)
		startNATS(outer, func(o *server.Options) { o.StoreDir, o.Port = store, port })
		if res := <-over; res == nil || string(res.Stdout) != "before\nafter\n" || res.Retried != "" {
			t.Errorf("%s", asJSON(res))
		}
		if ran := lines(log); len(ran) != 1 {
			t.Errorf("it was started %d times", len(ran))
		}
		waitFor(t, func() bool { queue, err := client.Queue(t.Context()); return err == nil && len(queue) == 0 })
	})
}

// wire is a TCP relay that can be cut: connections through it then receive nothing more, and are not closed.
type wire struct {
	listener net.Listener
	mu       sync.Mutex
	cut      bool
	conns    []net.Conn
}

func startWire(t testing.TB, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: l}
	var relays sync.WaitGroup
	relays.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			w.mu.Lock()
			if w.cut { // as if nobody were there
				near.Close()
				far.Close()
			}
			w.conns = append(w.conns, near, far)
			w.mu.Unlock()
			for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
				relays.Go(func() {
					_, _ = io.Copy(throughWire{w, pair[0]}, pair[1])
					near.Close()
					far.Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.mu.Lock()
		for _, c := range w.conns {
			c.Close()
		}
		w.mu.Unlock()
		relays.Wait()
	})
	return w
}

type throughWire struct {
	w  *wire
	to net.Conn
}

func (c throughWire) Write(p []byte) (int, error) {
	c.w.mu.Lock()
	cut := c.w.cut
	c.w.mu.Unlock()
	if cut {
		return len(p), nil // lost
	}
	return c.to.Write(p)
}

func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if !cut { // a connection that lost data is useless
		for _, c := range w.conns {
			c.Close()
		}
	}
}

// who returns which held runner produced a result.
func who(res *unitask.Result) string {
	if len(res.Hints) == 0 {
		return ""
	}
	return res.Hints[0].Subject
}

// held is a Runner whose runs print the runner's name, and end when they may.
type held struct {
	name    string
	started chan struct{}
	may     chan struct{}
}

func (held) MemoryMB(string, unitask.Request) int { return 1 }

func (h held) Run(ctx context.Context, job fleet.Job) (fleet.Done, error) {
	h.started <- struct{}{}
	<-h.may
	_, _ = io.WriteString(job.Stdout, h.name)
	hints := []unitask.Hint{{Kind: "module", Subject: h.name}}
	return fleet.Done{Result: &unitask.Result{Outcome: unitask.OutcomeExited, Hints: hints}}, nil
}

// A worker is cut off while it executes a repeatable run. Another worker repeats it. The first one ends its run
// meanwhile, comes back, and can't overwrite the result.
func TestPartition(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	relay := startWire(t, ns.Addr().String())
	first := held{"first", make(chan struct{}, 1), make(chan struct{})}
	w := startWorker(t, quickly(workerConfig("nats://"+relay.listener.Addr().String(), 1)), first)
	rt, client := submitter(t, fleet.Config{URL: ns.ClientURL(), Times: quick})
	over := make(chan *unitask.Result, 1)
	go func() {
		res, err := rt.Run(context.Background(), unitask.Request{Code: "x"}, unitask.IO{})
		if err != nil {
			t.Error(err)
		}
		over <- res
	}()
	<-first.started
	relay.set(true)
	second := held{"second", make(chan struct{}, 1), make(chan struct{})}
	close(second.may)
	startWorker(t, quickly(workerConfig(ns.ClientURL(), 1)), second)
	res := <-over
	if res == nil || who(res) != "second" || res.Retried == "" {
		t.Fatalf("%s", asJSON(res))
	}
	close(first.may) // it ends without knowing
	relay.set(false)
	waitFor(t, func() bool { return w.Info().Running == 0 })
	runs, err := client.Runs(t.Context(), 10)
	if err != nil || len(runs) != 1 || runs[0].State != fleet.Ended || runs[0].Worker == w.Info().ID ||
		runs[0].Attempt != 2 {
		t.Errorf("%v %s", err, asJSON(runs))
	}
	again, other := submitter(t, fleet.Config{URL: ns.ClientURL(), Times: quick})
	other.RunID = runs[0].ID
	res, err = again.Run(t.Context(), unitask.Request{Code: "x"}, unitask.IO{})
	if err != nil || who(res) != "second" {
		t.Errorf("who joins later has %v %s", err, asJSON(res))
	}
}
