package main

import (
	"context"
	"fmt"
	"io"
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

	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/offspring"
)

// member is a process in its own network namespace.
type member struct {
	cmd  *exec.Cmd
	host int // the last part of its address
	out  io.Reader
	read sync.WaitGroup // the reader of its output
}

func (m *member) link() string { return fmt.Sprintf("m%d", m.cmd.Process.Pid) }

func (m *member) kill() {
	_ = m.cmd.Process.Kill()
	m.read.Wait()
	_ = m.cmd.Wait()
}

// end ends it in an orderly way.
func (m *member) end() {
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	m.read.Wait()
	_ = m.cmd.Wait()
}

func address(host int) string { return fmt.Sprintf("10.99.%d.%d", host>>8, host&255) }

// start starts a role of this program, or a command, at an address; 0 is the next free one.
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
	return m, in.Close() // it may continue
}

// inside is the start of a member: it waits for its network, and then becomes the command.
func inside(args []string) error {
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	for _, set := range [][]string{{"link", "set", "lo", "up"}, {"addr", "add", args[0] + "/16", "dev", "eth0"},
		{"link", "set", "eth0", "up"}, {"route", "add", "default", "via", gateway}} {
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

// node starts a NATS server; the other servers are at the first addresses.
func node(args []string) error {
	opts := &server.Options{
		ServerName: args[0], Host: args[0], Port: 4222, JetStream: true, JetStreamMaxStore: 1 << 40, StoreDir: args[1],
		NoSigs: true, NoLog: true, MaxPayload: 1 << 20,
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

// answers waits until a node answers, because a worker that finds none ends.
func (f *load) answers() error {
	return patiently(func() error {
		c, err := fleet.Connect(fleet.Config{URL: f.urls(), Plain: true})
		if err == nil {
			c.Close()
		}
		return err
	})
}

// ready waits until all workers are ready.
func (f *load) ready() error {
	return patiently(func() error {
		c, err := fleet.Connect(fleet.Config{URL: f.urls(), Plain: true})
		if err != nil {
			return err
		}
		defer c.Close()
		list, err := c.Workers(context.Background())
		if err == nil && len(list) < f.workers {
			err = fmt.Errorf("%d of %d workers have come", len(list), f.workers)
		}
		return err
	})
}

func patiently(do func() error) error {
	for patience := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if err := do(); err == nil || time.Now().After(patience) {
			return err
		}
	}
}

// left returns what should be gone: machines, and the workers' temporary files.
func (f *load) left() (list []string) {
	for late := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		list = nil
		for { // orphans that were given to us
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
