// Command fleet puts load on a fleet while its parts fail, and checks the results.
//
// Three NATS servers, workers and two submitters are processes, each in its own network namespace. A bridge connects
// them and goes away at the end. Both submitters submit every run. Meanwhile this command kills a worker every few
// seconds, and a submitter once. It kills and cuts off NATS nodes in turn. Every seventh run has external effects, so
// it may run at most once. Some of the runs have machines (-machines). The others do the same at the worker without a
// machine; the same code queues, claims, fences and answers them. Each execution of a run draws a number and reports it
// to this process, so none is repeated unseen. The command needs root.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// roles are the roles of this program in its namespaces.
var roles = map[string]func(args []string) error{"inside": inside, "node": node, "submit": submit, "work": work}

// The kernel ends members with the thread that started them, so this thread must be the one that becomes the member's
// command.
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
	flag.IntVar(&f.runs, "n", 1000, "runs, each submitted twice")
	flag.IntVar(&f.machines, "machines", 10, "how many of them have a machine")
	flag.IntVar(&f.workers, "workers", 3, "workers")
	flag.IntVar(&f.slots, "slots", 16, "runs at once on each")
	flag.IntVar(&f.room, "room", 1, "machines at once on each")
	flag.IntVar(&f.atOnce, "at-once", 64, "runs at once of each submitter")
	flag.DurationVar(&f.every, "kill", 5*time.Second, "between kills of a worker")
	flag.IntVar(&f.cycle, "cycle", 24,
		"kills of workers in which a NATS node is killed once, and another one cut off once: 8 at least")
	flag.DurationVar(&f.most, "most", time.Hour, "that it may take: what has not ended then is a fault")
	flag.StringVar(&f.home, "home", os.Getenv("UNITASK_HOME"), "the workers' home, with the image of the shell")
	flag.Parse()
	f.cycle = max(f.cycle, 8)
	if err := f.outer(); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

// outer starts this program again, alone in a new network namespace.
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
	if f.dir, err = os.MkdirTemp("", "unitask-load-"); err != nil {
		return err
	}
	defer os.RemoveAll(f.dir)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil { // we find all orphans
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

// load is one execution of the test.
type load struct {
	runs, machines, workers, slots, room, atOnce, cycle int

	every     time.Duration
	most      time.Duration
	home, dir string

	hosts   int // used addresses
	nodes   [3]*member
	mu      sync.Mutex
	marks   map[string][]string // the numbers that each run has drawn
	ends    [2][]ending         // the results that each submitter received
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
	f.marks, f.kills = map[string][]string{}, map[string]int{}
	l, err := net.Listen("tcp", gateway+":9000")
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f.note(c)
		}
	}()
	return nil
}

// note records a mark and confirms it: a run continues after the confirmation.
func (f *load) note(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	line, err := bufio.NewReader(c).ReadString('\n')
	id, drawn, ok := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || !ok {
		return
	}
	f.mu.Lock()
	f.marks[id] = append(f.marks[id], drawn)
	f.mu.Unlock()
	fmt.Fprintln(c, "noted")
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", args, err, out)
	}
	return nil
}

// all starts everything, and causes failures until both submitters have the result of every run.
func (f *load) all() error {
	for i := range f.nodes {
		if err := f.startNode(i, 0); err != nil {
			return err
		}
	}
	if err := f.answers(); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(f.dir, broughtFile), bytes.Repeat([]byte("brought\n"), 20_000),
		0o600); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(f.dir, "tmp"), 0o700); err != nil {
		return err
	}
	workers := make([]*member, f.workers)
	var err error
	for i := range workers {
		if workers[i], err = f.startWorker(); err != nil {
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
	defer f.progress()()
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
		if time.Since(f.started) > f.most {
			for _, s := range submitters {
				s.kill()
			}
			continue
		}
		i := rand.IntN(len(workers))
		workers[i].kill()
		f.kills["workers killed"]++
		if workers[i], err = f.startWorker(); err != nil {
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

// breakNode breaks one node at a time, and repairs it: a cluster of three survives the loss of one.
func (f *load) breakNode(n int) error {
	i := n / f.cycle % len(f.nodes)
	switch n % f.cycle {
	case 0:
		f.nodes[i].kill()
		f.kills["nodes killed"]++
	case 2:
		if n < f.cycle { // none is down
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

// progress prints the progress every ten seconds.
func (f *load) progress() (stop func()) {
	over := make(chan struct{})
	go func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(10 * time.Second):
			}
			f.mu.Lock()
			fmt.Fprintf(os.Stderr, "%v: submitters were told of %d and %d runs, %d have begun\n",
				time.Since(f.started).Round(time.Second), len(f.ends[0]), len(f.ends[1]), len(f.marks))
			f.mu.Unlock()
		}
	}()
	return func() { close(over) }
}

func (f *load) startSubmitter(i int) (*member, error) {
	m, err := f.start(0, append([]string{"submit", f.urls(), filepath.Join(f.dir, "submitter-"+strconv.Itoa(i)), f.dir},
		numbers(f.runs, f.machines, f.atOnce)...))
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

func (f *load) startWorker() (*member, error) {
	m, err := f.start(0, append([]string{"work", f.urls(), f.home}, numbers(f.slots, f.room, f.machines)...),
		"TMPDIR="+filepath.Join(f.dir, "tmp"))
	if err == nil {
		m.read.Go(func() { _, _ = io.Copy(io.Discard, m.out) })
	}
	return m, err
}
