package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/offspring"
)

// member is a process in a network namespace of its own.
type member struct {
	cmd  *exec.Cmd
	host int // its address's end
	out  io.Reader
	read sync.WaitGroup // what reads its output
}

func (m *member) link() string { return fmt.Sprintf("m%d", m.cmd.Process.Pid) }

func (m *member) kill() {
	_ = m.cmd.Process.Kill()
	m.read.Wait()
	_ = m.cmd.Wait()
}

// end has it end by itself.
func (m *member) end() {
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	m.read.Wait()
	_ = m.cmd.Wait()
}

func address(host int) string { return fmt.Sprintf("10.99.%d.%d", host>>8, host&255) }

// start starts a role of this program, or a command, at an address; 0 is the next one.
func (f *load) start(host int, command []string, env ...string) (*member, error) {
	if host == 0 {
		f.hosts++
		host = 10 + f.hosts
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if roles[command[0]] != nil {
		command = append([]string{self}, command...)
	}
	m := &member{cmd: exec.Command(self, append([]string{"inside", address(host)}, command...)...), host: host}
	m.cmd.Env = append(os.Environ(), env...)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	log, err := os.OpenFile(filepath.Join(f.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m.cmd.Stderr = log
	in, err := m.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if m.out, err = m.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"link", "add", m.link(), "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(m.cmd.Process.Pid)},
		{"link", "set", m.link(), "master", "fleet", "up"},
	} {
		if err := ip(args...); err != nil {
			return nil, err
		}
	}
	return m, in.Close() // it may go on
}

// inside is the beginning of a member: it waits for its network, and becomes the command.
func inside(args []string) error {
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	for _, set := range [][]string{{"link", "set", "lo", "up"}, {"addr", "add", args[0] + "/16", "dev", "eth0"}, {"link", "set", "eth0", "up"}, {"route", "add", "default", "via", gateway}} {
		if err := ip(set...); err != nil {
			return err
		}
	}
	return syscall.Exec(args[1], args[1:], os.Environ())
}

func (f *load) urls() string {
	var list []string
	for _, n := range f.nodes {
		list = append(list, "nats://"+address(n.host)+":4222")
	}
	return strings.Join(list, ",")
}

func (f *load) startNode(i, host int) (err error) {
	args := []string{"node", address(11 + i), filepath.Join(f.dir, "node-"+strconv.Itoa(i))}
	f.nodes[i], err = f.start(host, args)
	return err
}

// node is a NATS server; the others are at the first addresses.
func node(args []string) error {
	opts := &server.Options{
		ServerName: args[0], Host: args[0], Port: 4222, JetStream: true, JetStreamMaxStore: 1 << 40, StoreDir: args[1], NoSigs: true, NoLog: true, MaxPayload: 1 << 20,
		Cluster: server.ClusterOpts{Name: "load", Host: args[0], Port: 6222, PingInterval: 2 * time.Second, MaxPingsOut: 2},
	}
	for i := range 3 {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: address(11+i) + ":6222"})
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	ns.Start()
	ns.WaitForShutdown()
	return nil
}

// ready waits until all workers are there.
func (f *load) ready() error {
	for patience := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		c, err := fleet.Connect(fleet.Config{URL: f.urls(), Plain: true})
		if err == nil {
			var list []fleet.WorkerInfo
			if list, err = c.Workers(context.Background()); err == nil && len(list) < f.workers {
				err = fmt.Errorf("%d of %d workers have come", len(list), f.workers)
			}
			c.Close()
		}
		if err == nil || time.Now().After(patience) {
			return err
		}
	}
}

func (f *load) startWorker(policy string) (*member, error) {
	m, err := f.start(0, []string{f.unitask, "--home", f.home, "worker", "--nats", f.urls(), "--nats-plain", "--replicas", "3", "--slots", strconv.Itoa(f.slots), "--pool", "0",
		"--memory", strconv.Itoa(f.slots*512) + "m", "--policy", policy}, "TMPDIR="+filepath.Join(f.dir, "tmp"))
	if err == nil {
		m.read.Go(func() { _, _ = io.Copy(io.Discard, m.out) })
	}
	return m, err
}

func runID(n int) string { return fmt.Sprintf("run-%06d", n) }

// submit submits all runs, in an order of its own, and says how each has ended.
func submit(args []string) error {
	home, which := args[1], args[4]
	runs, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	atOnce, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	order, numbers := mathrand.Perm(runs), make(chan int)
	var mu sync.Mutex
	var all sync.WaitGroup
	fails := make(chan error, atOnce)
	for range atOnce {
		all.Go(func() {
			fails <- submitter(args[0], home, numbers, func(e ending) {
				text, _ := json.Marshal(e)
				mu.Lock()
				defer mu.Unlock()
				fmt.Println(string(text))
			})
		})
	}
	for _, n := range order {
		select {
		case numbers <- n:
		case err := <-fails:
			return fmt.Errorf("submitter %s: %w", which, err)
		}
	}
	close(numbers)
	all.Wait()
	return nil
}

func submitter(urls, home string, numbers <-chan int, say func(ending)) error {
	client, err := fleet.Connect(fleet.Config{URL: urls, Plain: true})
	if err != nil {
		return err
	}
	defer client.Close()
	rt, err := unitask.Open(unitask.Options{Home: home, Fleet: client})
	if err != nil {
		return err
	}
	defer rt.Close()
	for n := range numbers {
		id := runID(n)
		client.RunID = id
		req := unitask.Request{Kernel: unitask.Linux, MemoryMB: 512, Code: fmt.Sprintf("console.log(%q, require('crypto').randomUUID())", id)}
		if once(n) {
			req.AllowTCP = []string{gateway + ":9000"}
			req.Code = fmt.Sprintf(`const s = require("net").connect(9000, %q, () => s.write(%q)); s.on("data", d => { console.log(%q, String(d)); s.end() })`, gateway, id+"\n", id)
		}
		for {
			res, err := rt.Run(context.Background(), req, unitask.IO{})
			var busy *unitask.BusyError
			if errors.As(err, &busy) {
				time.Sleep(busy.After)
				continue
			}
			e := ending{ID: id}
			if res != nil {
				e.Out, e.Outcome, e.Retried = string(res.Stdout), string(res.Outcome), res.Retried != ""
			}
			if err != nil {
				e.Error = err.Error()
			}
			say(e)
			break
		}
	}
	return nil
}

// left is what should not be there any more: machines, and what workers had in folders for a while.
func (f *load) left() (list []string) {
	for late := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		list = nil
		for { // those that were left to us
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		for _, p := range offspring.All() {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
			list = append(list, fmt.Sprintf("process %d, %.200q,", p.PID, line))
		}
		names, _ := filepath.Glob(filepath.Join(f.dir, "tmp", "unitask-fleet-*"))
		list = append(list, names...)
		if len(list) == 0 || time.Now().After(late) {
			return list
		}
	}
}
