package embedded

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/attack"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/testdir"
)

func freePorts(t *testing.T, n int) (list []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		list = append(list, l.Addr().String())
	}
	return list
}

var testKey = bytes.Repeat([]byte{0x5a}, KeySize)

func routesTo(addresses ...string) (list []string) {
	for _, a := range addresses {
		list = append(list, "nats://"+a)
	}
	return list
}

// dial connects to a host's server with a plain NATS client.
func (m *member) dial(t *testing.T) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	c := m.config(t)
	nc, err := nats.Connect(c.URL, nats.UserInfo(c.User, c.Password))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// replicated checks that each stream has this number of copies, all online and up to date.
func replicated(t *testing.T, js jetstream.JetStream, copies int) error {
	list, streams := js.ListStreams(t.Context()), 0
	for info := range list.Info() {
		streams++
		if info.Config.Replicas != copies || info.Cluster == nil || len(info.Cluster.Replicas) != copies-1 {
			return fmt.Errorf("%s has %d replicas: %+v", info.Config.Name, info.Config.Replicas, info.Cluster)
		}
		for _, r := range info.Cluster.Replicas {
			if !r.Current || r.Offline {
				return fmt.Errorf("%s: the replica at %s is not there: current %v, offline %v, %d behind, seen %s ago; led by %s",
					info.Config.Name, r.Name, r.Current, r.Offline, r.Lag, r.Active, info.Cluster.Leader)
			}
		}
	}
	if list.Err() == nil && streams < 6 {
		return fmt.Errorf("%d streams", streams)
	}
	return list.Err()
}

// submit submits runs on a host, all at once, and returns how each ended.
func (m *member) submit(t *testing.T, lasts string, ids ...string) (ends func() map[string]string) {
	t.Helper()
	var submitting sync.WaitGroup
	var mu sync.Mutex
	told := map[string]string{}
	for _, id := range ids {
		client, err := fleet.Connect(m.config(t))
		if err != nil {
			t.Fatal(err)
		}
		client.RunID = id
		rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t), Fleet: client})
		if err != nil {
			t.Fatal(err)
		}
		submitting.Go(func() {
			defer client.Close()
			defer rt.Close()
			res, err := rt.Run(t.Context(), unitask.Request{Code: lasts}, unitask.IO{})
			mu.Lock()
			defer mu.Unlock()
			told[id] = "nothing"
			if res != nil {
				told[id] = string(res.Outcome) + " " + strings.TrimSpace(string(res.Stdout))
			}
			if err != nil {
				told[id] += " " + err.Error()
			}
		})
	}
	return func() map[string]string { submitting.Wait(); return told }
}

func wellEnded(t *testing.T, told map[string]string, n int) {
	t.Helper()
	if len(told) != n {
		t.Errorf("%d runs ended, not %d", len(told), n)
	}
	for id, how := range told {
		if how != "exited done" {
			t.Errorf("%s: %s", id, how)
		}
	}
}

func names(what string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("%s-%d", what, i))
	}
	return list
}

// hosts starts some hosts whose routes name the first of them.
func hosts(t *testing.T, n, named int) (list []*member) {
	dir, ports := t.TempDir(), freePorts(t, n)
	for i, port := range ports {
		list = append(list, &member{Home: filepath.Join(dir, fmt.Sprint("home-", i)), Log: filepath.Join(dir, "log"),
			Cluster: Cluster{Listen: port, Routes: routesTo(ports[:named]...), Key: testKey}})
	}
	return list
}

// Two hosts joined by routes, and later a third one: then JetStream keeps three copies of its data.
func TestRoutesGrow(t *testing.T) {
	if testing.Short() {
		t.Skip("three servers in processes of their own; not in -short")
	}
	t.Parallel()
	hosts := hosts(t, 3, 2)
	hosts[0].start(t)
	hosts[1].start(t)
	wellEnded(t, hosts[0].submit(t, "10ms", names("two", 4)...)(), 4)
	_, js := hosts[0].dial(t)
	if err := replicated(t, js, 1); err != nil {
		t.Errorf("two servers: %v", err)
	}
	if said := hosts[1].said(); !strings.Contains(said, "bears no fault") {
		t.Errorf("two servers say nothing of it: %s", said)
	}
	during := hosts[1].submit(t, "2s", names("during", 8)...)
	hosts[2].start(t)
	waitFor(t, "three servers hold three copies", func() error { return replicated(t, js, 3) })
	wellEnded(t, during(), 8)
}

// Three hosts joined by routes. One is killed during work, and nothing is lost; it comes back. Another host replaces
// it. A fourth one joins, which the others were not told of.
func TestRoutes(t *testing.T) {
	if os.Getenv("UNITASK_TEST_LONG") == "" {
		t.Skip("four servers in processes of their own that come and go for a minute are make long's (UNITASK_TEST_LONG=1)")
	}
	t.Parallel()
	hosts := hosts(t, 4, 3)
	hosts[3].Cluster.Routes = hosts[3].Cluster.Routes[:1]
	hosts[0].start(t)
	waitFor(t, "the first one waits", func() error {
		if said := hosts[0].said(); !strings.Contains(said, "1 of 3 are here") {
			return errors.New(said)
		}
		return nil
	})
	if _, err := Find(hosts[0].Home, fleet.Config{URL: Name}); err == nil {
		t.Error("a server that is alone takes runs")
	}
	hosts[1].start(t)
	hosts[2].start(t)
	wellEnded(t, hosts[0].submit(t, "10ms", names("three", 4)...)(), 4)
	_, js := hosts[0].dial(t)
	waitFor(t, "three servers hold three copies", func() error { return replicated(t, js, 3) })

	for _, m := range hosts[:3] {
		nc, _ := m.dial(t)
		if urls := nc.DiscoveredServers(); len(urls) > 0 {
			t.Errorf("a client is sent, with its password, to %v", urls)
		}
	}
	first := hosts[0].submit(t, "1s", names("killed", 12)...)
	second := hosts[1].submit(t, "1s", names("killed-too", 12)...)
	waitFor(t, "runs are under way", func() error {
		if text, _ := os.ReadFile(hosts[2].Log); bytes.Count(text, []byte("killed")) < 10 {
			return errors.New("not yet")
		}
		return nil
	})
	hosts[2].kill()
	wellEnded(t, first(), 12)
	wellEnded(t, second(), 12)
	wellEnded(t, hosts[1].submit(t, "10ms", names("without", 4)...)(), 4)

	hosts[2].start(t)
	wellEnded(t, hosts[2].submit(t, "10ms", names("back", 4)...)(), 4)
	waitFor(t, "the third server is back", func() error { return replicated(t, js, 3) })

	name, err := serverName(filepath.Join(hosts[2].Home, "fleet"))
	if err != nil {
		t.Fatal(err)
	}
	hosts[2].kill()
	hosts[2].Home, hosts[2].Cluster.Server = t.TempDir(), name
	hosts[2].start(t)
	wellEnded(t, hosts[2].submit(t, "10ms", names("anew", 4)...)(), 4)
	waitFor(t, "another one in its place", func() error { return replicated(t, js, 3) })

	hosts[3].start(t)
	wellEnded(t, hosts[3].submit(t, "10ms", names("fourth", 4)...)(), 4)
	// one may lag for a moment
	waitFor(t, "a fourth changes no number of copies", func() error { return replicated(t, js, 3) })

	// Without a quorum a host reports this, and the run waits for the quorum.
	hosts[2].kill()
	hosts[3].kill()
	waitFor(t, "two of four say that they are too few", func() error {
		if said := hosts[0].said(); !strings.Contains(said, "nothing is taken on until 1 more") {
			return errors.New(said)
		}
		return nil
	})
	hosts[2].start(t)
	wellEnded(t, hosts[2].submit(t, "10ms", names("again", 4)...)(), 4)
}

// A cluster's options are checked before anything listens, and a home has only one server.
func TestOptions(t *testing.T) {
	t.Parallel()
	ports := freePorts(t, 2)
	good := Cluster{Listen: ports[0], Routes: routesTo(ports[1]), Key: testKey}
	for _, row := range []struct {
		change func(*Cluster)
		says   string
	}{
		{func(c *Cluster) { c.Key = nil }, "has 0 bytes: 32"},
		{func(c *Cluster) { c.Key = testKey[:16] }, "has 16 bytes: 32"},
		{func(c *Cluster) { c.Listen = "" }, "use HOST:PORT"},
		{func(c *Cluster) { c.Listen = "127.0.0.1" }, "use HOST:PORT"},
		{func(c *Cluster) { c.Listen = "127.0.0.1:0" }, "use HOST:PORT"},
		{func(c *Cluster) { c.Listen = "127.0.0.1:65536" }, "use HOST:PORT"},
		{func(c *Cluster) { c.Routes = nil }, "0 routes"},
		{func(c *Cluster) { c.Routes = make([]string, maxRoutes+1) }, "65 routes"},
		{func(c *Cluster) { c.Routes = []string{""} }, "nats://HOST:PORT"},
		{func(c *Cluster) { c.Routes = []string{"nats://"} }, "nats://HOST:PORT"},
		{func(c *Cluster) { c.Routes = []string{"nats://a"} }, "nats://HOST:PORT"},
		{func(c *Cluster) { c.Routes = []string{"http://a:1"} }, "nats://HOST:PORT"},
		{func(c *Cluster) { c.Routes = []string{"nats://a:1/x"} }, "nats://HOST:PORT"},
		{func(c *Cluster) { c.Routes = []string{"nats://u:p@a:1"} }, "nats://HOST:PORT"},
		{func(c *Cluster) { c.Name = "a b" }, "name of the cluster"},
		{func(c *Cluster) { c.Name = "../x" }, "name of the cluster"},
		{func(c *Cluster) { c.Server = strings.Repeat("x", 65) }, "name of the server"},
		{func(c *Cluster) { c.Server = "a.b" }, "name of the server"},
	} {
		c := good
		row.change(&c)
		if _, err := Start(t.Context(), t.TempDir(), Options{Cluster: &c}); err == nil ||
			!strings.Contains(err.Error(), row.says) {
			t.Errorf("%+v: %v, not %q", c, err, row.says)
		}
	}
	for _, listen := range []string{"nats://0.0.0.0:4222", "nats://10.0.0.1:4222", "tls://127.0.0.1:4222",
		"nats://u:p@127.0.0.1:4222", "127.0.0.1:4222"} {
		if _, err := Start(t.Context(), t.TempDir(), Options{Listen: listen}); err == nil {
			t.Errorf("it listens at %s", listen)
		}
	}
	taken, err := net.Listen("tcp", ports[0])
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, err := Start(t.Context(), t.TempDir(), Options{Cluster: &good}); err == nil ||
		!strings.Contains(err.Error(), "address already in use") {
		t.Errorf("on a port that is taken: %v", err)
	}

	home := t.TempDir()
	s, err := Start(t.Context(), home, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), home, Options{}); err == nil || !strings.Contains(err.Error(), "UNITASK_HOME") {
		t.Errorf("a second one in a home: %v", err)
	}
	name := s.nats.Name()
	s.Close()
	if s, err = Start(t.Context(), home, Options{}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.nats.Name() != cmp.Or(name, "?") || s.Replicas() != 1 {
		t.Errorf("it was %s and is %s, with %d replicas", name, s.nats.Name(), s.Replicas())
	}
}

// The address of a killed server is not used: another process may have its port by now, and would get the password and
// the runs.
func TestAttackKilled(t *testing.T) {
	home := t.TempDir()
	s, err := Start(t.Context(), home, Options{})
	if err == nil {
		err = s.Announce()
	}
	if err != nil {
		t.Fatal(err)
	}
	at := s.at
	for _, url := range []string{Name, at.URL} {
		if c, err := Find(home, fleet.Config{URL: url}); err != nil || c.URL != at.URL || c.Password != at.Password {
			t.Errorf("%s: %+v %v", url, c, err)
		}
	}
	left, err := os.ReadFile(filepath.Join(layout.Dir(home).Fleet(), file))
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	// As SIGKILL leaves it.
	if err := os.WriteFile(filepath.Join(layout.Dir(home).Fleet(), file), left, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Find(home, fleet.Config{URL: Name})
	if err == nil || !strings.Contains(err.Error(), "no embedded fleet is under way") {
		t.Errorf("a server that was killed: %v", err)
	}
	attack.Check(t, "the password, for who has the port of a server that was killed", "", c.Password)
	c, err = Find(home, fleet.Config{URL: at.URL}) // another server may own it now
	attack.Check(t, "the same, by its address", "<nil>", fmt.Sprint(c.Password, err))
	if s, err = Start(t.Context(), home, Options{}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := Find(home, fleet.Config{URL: Name}); err == nil { // it has not written its address yet
		t.Error("the address of the one before is found")
	}
}
