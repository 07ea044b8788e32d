// Command fleet puts load on a fleet while its parts fail, and judges what comes of it.
//
// Three NATS servers, workers and two submitters are processes in network namespaces of their own, on one
// bridge, which goes when this ends. Both submitters submit every run. Meanwhile a worker is killed every few
// seconds, a submitter once, and NATS nodes are killed and cut off in turn. Every seventh run acts on the world: it
// may run once at most, which the server that it calls counts. It needs root.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// roles are what this program is in the namespaces that it makes.
var roles = map[string]func(args []string) error{"inside": inside, "node": node, "submit": submit}

// Members end with whoever started them, which the kernel notes for a thread: it is this one that becomes the
// member's command.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		if err := roles[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	var f load
	flag.IntVar(&f.runs, "n", 100, "runs, each submitted twice")
	flag.IntVar(&f.workers, "workers", 3, "workers")
	flag.IntVar(&f.slots, "slots", 1, "runs at once on each")
	flag.IntVar(&f.atOnce, "at-once", 8, "runs at once of each submitter")
	flag.DurationVar(&f.every, "kill", 5*time.Second, "between kills of a worker")
	flag.StringVar(&f.unitask, "unitask", "bin/unitask", "the program")
	flag.StringVar(&f.home, "home", os.Getenv("UNITASK_HOME"), "the workers' home, with images")
	flag.Parse()
	if err := f.outer(); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

// outer starts this program again, in a network namespace in which it is alone.
func (f *load) outer() error {
	if os.Getenv("FLEET_ALONE") == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		cmd := exec.Command(self, os.Args[1:]...)
		cmd.Env = append(os.Environ(), "FLEET_ALONE=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		return cmd.Run()
	}
	var err error
	if f.unitask, err = filepath.Abs(f.unitask); err != nil {
		return err
	}
	if f.dir, err = os.MkdirTemp("", "unitask-load-"); err != nil {
		return err
	}
	defer os.RemoveAll(f.dir)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil { // whoever is left behind is found
		return err
	}
	if err := f.network(); err != nil {
		return err
	}
	if err := f.all(); err != nil {
		log, _ := os.ReadFile(filepath.Join(f.dir, "log"))
		return fmt.Errorf("%w\n%s", err, log[max(0, len(log)-4000):])
	}
	return f.judge()
}

// load is one time that it is done.
type load struct {
	runs, workers, slots, atOnce int
	every                        time.Duration
	unitask, home, dir           string

	hosts   int // that have an address
	nodes   [3]*member
	calls   map[string]int // of runs that act on the world
	mu      sync.Mutex
	ends    [2][]ending // what each submitter was told
	kills   map[string]int
	started time.Time
	took    time.Duration
}

// gateway is this process, on the bridge.
const gateway = "10.99.0.1"

func (f *load) network() error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "fleet", "type", "bridge"},
		{"addr", "add", gateway + "/16", "dev", "fleet"},
		{"link", "set", "fleet", "up"},
	} {
		if err := ip(args...); err != nil {
			return err
		}
	}
	f.calls, f.kills = map[string]int{}, map[string]int{}
	l, err := net.Listen("tcp", gateway+":9000")
	if err != nil {
		return err
	}
	go func() { // counts who calls
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				id, err := bufio.NewReader(c).ReadString('\n')
				if err != nil {
					return
				}
				f.mu.Lock()
				f.calls[id[:len(id)-1]]++
				f.mu.Unlock()
				fmt.Fprintln(c, "noted")
			}()
		}
	}()
	return nil
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", args, err, out)
	}
	return nil
}

// ending is what a submitter is told of a run.
type ending struct {
	ID, Out, Outcome, Error string
	Retried                 bool
}

// once says which runs act on the world.
func once(n int) bool { return n%7 == 6 }

// all starts everything, and breaks things until both submitters have been told of every run.
func (f *load) all() error {
	for i := range f.nodes {
		if err := f.startNode(i, 0); err != nil {
			return err
		}
	}
	policy := filepath.Join(f.dir, "worker.toml")
	if err := os.WriteFile(policy, []byte("memoryMb = 512\nallowTcp = [\""+gateway+":9000\"]\n"), 0o600); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(f.dir, "tmp"), 0o700); err != nil {
		return err
	}
	workers := make([]*member, f.workers)
	var err error
	for i := range workers {
		if workers[i], err = f.startWorker(policy); err != nil {
			return err
		}
	}
	if err := f.ready(); err != nil {
		return err
	}
	f.started = time.Now()
	var submitters [2]*member
	for i := range submitters {
		if submitters[i], err = f.startSubmitter(i); err != nil {
			return err
		}
	}
	over := make(chan struct{})
	for n := 1; ; n++ {
		select {
		case <-over:
			f.took = time.Since(f.started)
			for _, m := range append(workers, submitters[:]...) {
				m.end()
			}
			for _, node := range f.nodes {
				node.kill()
			}
			return nil
		case <-time.After(f.every):
		}
		i := rand.IntN(len(workers))
		workers[i].kill()
		f.kills["workers killed"]++
		if workers[i], err = f.startWorker(policy); err != nil {
			return err
		}
		if n == 2 {
			submitters[1].kill()
			f.kills["submitters killed"]++
			f.mu.Lock()
			f.ends[1] = nil
			f.mu.Unlock()
			if submitters[1], err = f.startSubmitter(1); err != nil {
				return err
			}
			go func() { submitters[0].read.Wait(); submitters[1].read.Wait(); close(over) }()
		}
		if err := f.breakNode(n); err != nil {
			return err
		}
	}
}

// breakNode breaks one node at a time, and mends it: a cluster of three stands the loss of one.
func (f *load) breakNode(n int) error {
	i := n / 8 % len(f.nodes)
	switch n % 8 {
	case 0:
		f.nodes[i].kill()
		f.kills["nodes killed"]++
	case 2:
		if n < 8 { // none is down
			return nil
		}
		return f.startNode(i, f.nodes[i].host)
	case 5:
		f.kills["nodes cut off"]++
		return ip("link", "set", f.nodes[i].link(), "down")
	case 7:
		return ip("link", "set", f.nodes[i].link(), "up")
	}
	return nil
}

func (f *load) startSubmitter(i int) (*member, error) {
	m, err := f.start(0, []string{"submit", f.urls(), filepath.Join(f.dir, "submitter-"+strconv.Itoa(i)), strconv.Itoa(f.runs), strconv.Itoa(f.atOnce), strconv.Itoa(i)})
	if err != nil {
		return nil, err
	}
	m.read.Go(func() {
		for lines := bufio.NewScanner(m.out); lines.Scan(); {
			var e ending
			if json.Unmarshal(lines.Bytes(), &e) != nil {
				continue
			}
			f.mu.Lock()
			f.ends[i] = append(f.ends[i], e)
			f.mu.Unlock()
		}
	})
	return m, nil
}

// judge says what is wrong with how it ended.
func (f *load) judge() error {
	tally, faults := map[string]int{}, []string{}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	byID := map[string][]ending{}
	for _, list := range f.ends {
		for _, e := range list {
			byID[e.ID] = append(byID[e.ID], e)
		}
	}
	for n := range f.runs {
		id := runID(n)
		both, calls := byID[id], f.calls[id]
		if len(both) != 2 {
			fault("%s: %d of 2 submitters were told of it", id, len(both))
			continue
		}
		if both[0].Outcome != both[1].Outcome || both[0].Outcome == "exited" && both[0].Out != both[1].Out {
			fault("%s ended in two ways: %+v", id, both)
		}
		tally[both[0].Outcome]++
		if both[0].Retried || both[1].Retried {
			tally["made again"]++
		}
		switch {
		case once(n) && calls > 1:
			fault("%s may act once, and acted %d times", id, calls)
		case both[0].Outcome == "lost" && !once(n):
			fault("%s is lost, and may be made again: %s", id, both[0].Error)
		case both[0].Outcome == "exited" && once(n) && calls != 1:
			fault("%s has ended, and acted %d times", id, calls)
		case both[0].Outcome != "exited" && both[0].Outcome != "lost":
			fault("%s ended as %s: %s", id, both[0].Outcome, both[0].Error)
		}
	}
	for _, what := range f.left() {
		fault("%s is left", what)
	}
	for what, n := range f.kills {
		tally[what] = n
	}
	fmt.Printf("%d runs submitted twice in %v: %v\n", f.runs, f.took.Round(time.Second), tally)
	slices.Sort(faults)
	if log, err := os.ReadFile(filepath.Join(f.dir, "log")); err == nil && len(faults) > 0 {
		fmt.Printf("%s", log[max(0, len(log)-4000):])
	}
	for _, line := range faults[:min(len(faults), 40)] {
		fmt.Println(line)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%d faults", len(faults))
	}
	return nil
}
