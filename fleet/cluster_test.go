package fleet_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
)

// cluster is three NATS servers in this process.
type cluster struct {
	nodes [3]*server.Server
	opts  [3]*server.Options
}

func startCluster(t testing.TB) *cluster {
	t.Helper()
	return startClusterWith(t, nil)
}

// startClusterWith starts a cluster and lets a test change the options of all servers at once.
func startClusterWith(t testing.TB, change func(*cluster)) *cluster {
	t.Helper()
	c := &cluster{}
	var routes []*url.URL
	for i := range c.opts { // ports first: each server gets the others' ports
		c.opts[i] = &server.Options{
			ServerName: fmt.Sprintf("node-%d", i), Host: "127.0.0.1", Port: -1, JetStream: true, JetStreamMaxStore: 1 << 40,
			StoreDir: t.TempDir(), NoSigs: true, NoLog: true, MaxPayload: 1 << 20,
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: freePort(t)},
		}
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", c.opts[i].Cluster.Port)})
	}
	for i := range c.opts {
		c.opts[i].Routes = routes
	}
	if change != nil {
		change(c)
	}
	for i := range c.nodes {
		ns, err := server.NewServer(c.opts[i])
		if err != nil {
			t.Fatal(err)
		}
		c.nodes[i] = ns
		ns.Start()
	}
	t.Cleanup(func() {
		for i := range c.nodes {
			c.kill(i)
		}
	})
	waitFor(t, func() bool {
		leaders, whole := 0, true
		for _, ns := range c.nodes {
			if ns.JetStreamIsLeader() {
				leaders++
			}
			whole = whole && ns.JetStreamIsCurrent()
		}
		return leaders == 1 && whole
	})
	return c
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (c *cluster) kill(i int) {
	c.nodes[i].Shutdown()
	c.nodes[i].WaitForShutdown()
}

// url lists the nodes, beginning with one of them.
func (c *cluster) url(first int) string {
	var list []string
	for i := range c.nodes {
		list = append(list, c.nodes[(first+i)%len(c.nodes)].ClientURL())
	}
	return strings.Join(list, ",")
}

// load is the set of runs that a submitter's process submits.
type load struct {
	URL, Home string
	IDs       []string
	Lasts     string // each run; "" is 50ms
}

// ending is a run's result at the submitter.
type ending struct{ ID, Out, Outcome, Error string }

// mayRunOnce reports which runs have a network.
func mayRunOnce(id string) bool { return strings.HasSuffix(id, "7") }

// submitAll submits runs, eight at a time, and reports how each ends.
func submitAll(l load, say func(ending)) {
	ids := make(chan string)
	var submitting sync.WaitGroup
	for range 8 {
		submitting.Go(func() {
			client, err := fleet.Connect(fleet.Config{URL: l.URL, Times: quick})
			var rt *unitask.Runtime
			if err == nil {
				defer client.Close()
				rt, err = unitask.Open(unitask.Options{Home: l.Home, Fleet: client})
			}
			for id := range ids {
				if err != nil {
					say(ending{ID: id, Error: err.Error()})
					continue
				}
				client.RunID = id
				req := unitask.Request{Code: "out " + id + "\nsleep " + cmp.Or(l.Lasts, "50ms") + "\nout done"}
				if mayRunOnce(id) {
					req.AllowNet = []string{"example.com"}
				}
				res, err := rt.Run(context.Background(), req, unitask.IO{})
				e := ending{ID: id}
				if res != nil {
					e.Out, e.Outcome = string(res.Stdout), string(res.Outcome)
				}
				if err != nil {
					e.Error = err.Error()
				}
				say(e)
			}
			if rt != nil {
				rt.Close()
			}
		})
	}
	for _, id := range l.IDs {
		ids <- id
	}
	close(ids)
	submitting.Wait()
}

// submitterProcess is the process of a submitter, which the tests kill.
func submitterProcess(text string) int {
	var l load
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var mu sync.Mutex
	submitAll(l, func(e ending) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(asJSON(e))
	})
	return 0
}

// startSubmitter starts a submitter's process; ends closes when it has ended.
func startSubmitter(t testing.TB, l load) (cmd *exec.Cmd, ends chan ending) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(self)
	cmd.Env = append(os.Environ(), "FLEET_TEST_SUBMIT="+asJSON(l))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	ends = make(chan ending, len(l.IDs))
	go func() {
		defer close(ends)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e ending
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				ends <- e
			}
		}
	}()
	return cmd, ends
}

// Two submitters submit the same runs to a cluster of three, while a worker, a submitter and a node are killed. Every
// run ends once, with the same result for both, or is lost if it must not be repeated. hack/fleet tests more.
func TestFaults(t *testing.T) {
	t.Parallel()
	const runs = 50
	c := startCluster(t)
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	_, kill := startProcess(t, c.url(0), log, "FLEET_TEST_REPLICAS=3")
	startProcess(t, c.url(1), log, "FLEET_TEST_REPLICAS=3")
	var ids []string
	for n := range runs {
		ids = append(ids, fmt.Sprintf("run-%03d", n))
	}
	_, first := startSubmitter(t, load{c.url(2), filepath.Join(dir, "first"), ids, ""})
	slices.Reverse(ids)
	second, ends := startSubmitter(t, load{c.url(1), filepath.Join(dir, "second"), ids, ""})
	// Each fault comes after this number of started runs.
	faults := []func(){
		func() {
			_ = second.Process.Kill()
			for range ends {
			}
			_, ends = startSubmitter(t, load{c.url(1), filepath.Join(dir, "second"), ids, ""})
		},
		func() { kill(); startProcess(t, c.url(2), log, "FLEET_TEST_REPLICAS=3") },
		func() { c.kill(1) }, // the second submitter's and a worker's
	}
	for i, fault := range faults {
		waitFor(t, func() bool { return len(lines(log)) >= (i+1)*runs/(len(faults)+2) })
		fault()
	}
	told := map[string][]ending{}
	for _, of := range []chan ending{first, ends} {
		for e := range of {
			told[e.ID] = append(told[e.ID], e)
		}
	}
	judge(t, ids, told, log)
}

// judge checks the ends of runs that two submitters have both submitted: once, with the same result, or lost if a
// repetition is forbidden. The log has the starts.
func judge(t *testing.T, ids []string, told map[string][]ending, log string) {
	t.Helper()
	started := map[string]int{}
	for _, id := range lines(log) {
		started[id]++
	}
	lost, again := 0, 0
	for _, id := range ids {
		both := told[id]
		switch {
		case len(both) != 2 || both[0].Outcome != both[1].Outcome || both[0].Out != both[1].Out && both[0].Outcome != "lost":
			t.Errorf("%s ended as %v", id, both)
		case both[0].Outcome == "lost" && mayRunOnce(id):
			lost++
		case both[0].Outcome != "exited" || both[0].Out != id+"\ndone\n":
			t.Errorf("%s ended as %v", id, both)
		}
		if mayRunOnce(id) && started[id] > 1 {
			t.Errorf("%s may run once, and was started %d times", id, started[id])
		}
		again += started[id] - 1
	}
	t.Logf("%d runs, %d lost, %d made again", len(ids), lost, max(0, again))
}
