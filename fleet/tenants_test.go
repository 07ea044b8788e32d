package fleet_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
)

// secured is a NATS server configured as in docs/fleet.md: TLS, an account for each tenant, nkeys.
type secured struct {
	*server.Server
	ca    string
	seeds map[string]string // files, by user
}

func startSecured(t *testing.T) *secured {
	t.Helper()
	dir := t.TempDir()
	s := &secured{ca: filepath.Join(dir, "ca.pem"), seeds: map[string]string{}}
	writeCertificate(t, s.ca, filepath.Join(dir, "key.pem"))
	page, err := os.ReadFile("../docs/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```conf\n")
	conf, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/fleet.md shows no configuration of NATS")
	}
	for _, user := range []string{"ALICE-WORKER", "ALICE", "BOB-WORKER", "BOB"} {
		key, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, _ := key.PublicKey()
		seed, _ := key.Seed()
		s.seeds[user] = filepath.Join(dir, user)
		if err := os.WriteFile(s.seeds[user], seed, 0o600); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(conf, `"U-`+user+`"`) {
			t.Fatalf("the configuration of docs/fleet.md has no user %s", user)
		}
		conf = strings.ReplaceAll(conf, `"U-`+user+`"`, `"`+public+`"`)
	}
	conf = strings.NewReplacer("/etc/nats/cert.pem", s.ca, "/etc/nats/key.pem", filepath.Join(dir, "key.pem"),
		"/var/lib/nats", filepath.Join(dir, "nats"), "0.0.0.0:4222", "127.0.0.1:-1").Replace(conf)
	if err := os.WriteFile(filepath.Join(dir, "nats.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(filepath.Join(dir, "nats.conf"))
	if err != nil {
		t.Fatalf("%v\n%s", err, conf)
	}
	s.Server = startNATS(t, func(o *server.Options) { opts.NoSigs, opts.NoLog = true, true; *o = *opts })
	return s
}

func writeCertificate(t *testing.T, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der},
		key: {Type: "PRIVATE KEY", Bytes: text}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *secured) config(tenant, user string) fleet.Config {
	return fleet.Config{URL: fmt.Sprintf("tls://%s", s.Addr()), CA: s.ca, Tenant: tenant, Creds: s.seeds[user],
		Times: quick}
}

func (s *secured) worker(slots int) fleet.WorkerConfig {
	c := quickly(workerConfig("", slots))
	c.Config = s.config("", "")
	c.Tenants = []fleet.Tenant{{Name: "alice", Creds: s.seeds["ALICE-WORKER"]},
		{Name: "bob", Creds: s.seeds["BOB-WORKER"]}}
	return c
}

// Connections that a server refuses, and data that is never sent in clear.
func TestSecured(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	startWorker(t, s.worker(2), script{})
	rt, _ := submitter(t, s.config("alice", "ALICE"))
	if res, err := rt.Run(t.Context(), unitask.Request{Code: "out fine"}, unitask.IO{}); err != nil ||
		string(res.Stdout) != "fine\n" {
		t.Errorf("%v %s", err, asJSON(res))
	}
	plain := startNATS(t, nil)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		change func(*fleet.Config)
		says   string
	}{
		"nobody":         {func(c *fleet.Config) { c.Creds = "" }, "uthoriz"},
		"an unknown CA":  {func(c *fleet.Config) { c.CA = "" }, "certificate"},
		"another's name": {func(c *fleet.Config) { c.Tenant = "bob" }, "no worker has been here for tenant bob"},
		"a server in clear": {func(c *fleet.Config) { c.URL, c.Creds = "tls://"+plain.Addr().String(), "" },
			"secure connection not available"},
		"another host":       {func(c *fleet.Config) { c.URL, c.CA = "nats://192.0.2.1:4222", "" }, "--nats-plain"},
		"one of two":         {func(c *fleet.Config) { c.URL += ",nats://192.0.2.1:4222"; c.CA = "" }, "--nats-plain"},
		"a password":         {func(c *fleet.Config) { c.URL = "tls://me:hunter2@127.0.0.1:1" }, "***@"},
		"no address":         {func(c *fleet.Config) { c.URL = "127.0.0.1:4222" }, "use tls://"},
		"no file":            {func(c *fleet.Config) { c.Creds = "/no/such" }, "/no/such"},
		"a file of no seed":  {func(c *fleet.Config) { c.Creds = empty }, "neither a JWT"},
		"a tenant with dots": {func(c *fleet.Config) { c.Tenant = "a.b" }, "a.b"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			c := s.config("alice", "ALICE")
			row.change(&c)
			client, err := fleet.Connect(c)
			if err == nil {
				rt, e := unitask.Open(unitask.Options{Home: testdir.Private(t), Fleet: client})
				if e != nil {
					t.Fatal(e)
				}
				_, err = rt.Run(t.Context(), unitask.Request{Code: "out x"}, unitask.IO{})
				rt.Close()
				client.Close()
			}
			if err == nil || !strings.Contains(err.Error(), row.says) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v does not say %q", err, row.says)
			}
		})
	}
	t.Run("two tenants of one account", func(t *testing.T) {
		c := s.worker(2)
		c.Tenants[1].Creds = s.seeds["ALICE-WORKER"]
		w, err := fleet.NewWorker(t.Context(), c, script{})
		if err == nil {
			w.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "alice and bob have the same NATS account") {
			t.Errorf("%v", err)
		}
	})
}

// Two tenants have valid credentials. One of them has all rights in his account and attacks the other one and the
// worker. Her runs continue as if he were not there.
func TestAttackTenants(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	config := s.worker(2)
	config.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	w := startWorker(t, config, script{log})
	auth, err := nats.NkeyOptionFromSeed(s.seeds["BOB-WORKER"])
	if err != nil {
		t.Fatal(err)
	}
	nc, js := dial(t, "tls://"+s.Addr().String(), auth, nats.RootCAs(s.ca))
	heard := make(chan *nats.Msg, 1<<16)
	if _, err := nc.ChanSubscribe(">", heard); err != nil {
		t.Fatal(err)
	}
	gate := filepath.Join(dir, "gate")
	alice := func(code string) (res *unitask.Result, err error) {
		rt, client := submitter(t, s.config("alice", "ALICE"))
		client.RunID = "hers"
		return rt.Run(context.Background(), unitask.Request{Code: code, Secrets: map[string]string{"KEY": "her-own-secret"},
			Timeout: time.Hour}, unitask.IO{})
	}
	bob, _ := submitter(t, s.config("bob", "BOB"))
	arch := string(unitask.HostArch())
	type end struct {
		res *unitask.Result
		err error
	}
	hers := make(chan end, 1)
	hisTime, stop := context.WithCancel(t.Context())
	var his sync.WaitGroup
	defer func() { stop(); his.Wait() }()

	// The attacker uses all his room, and his queue is full of nonsense.
	for range 20 {
		his.Go(func() { _, _ = bob.Run(hisTime, unitask.Request{Code: "out his\nwait " + gate + "-his"}, unitask.IO{}) })
	}
	waitFor(t, func() bool { return len(lines(log)) == 1 })
	for i := range 200 {
		if _, err := js.Publish(t.Context(), "unitask.queue."+arch+".bob.high",
			fmt.Appendf(nil, `{"run":"nonsense-%d"}`, i)); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		res, err := alice("secret KEY\nout hers-only\nwait " + gate + "\nout done\nartifact a")
		hers <- end{res, err}
	}()
	waitFor(t, func() bool { return len(lines(log)) == 2 }) // although he has 19 more waiting
	attack.Check(t, "a tenant with 20 runs and 200 that are nonsense: who is started next", "hers", lines(log)[1])

	// While her run executes, he attacks her in every way.
	forgeAsTenant(t, w, arch, nc, js)
	if err := note(gate, ""); err != nil {
		t.Fatal(err)
	}
	e := <-hers
	got := fmt.Sprint(e.err)
	if e.err == nil {
		got = fmt.Sprintf("%s, %d artifacts, retried %q", e.res.Stdout, len(e.res.Artifacts), e.res.Retried)
	}
	attack.Check(t, "a tenant cancels, forges, asks for, ends and deletes another's run",
		"14 bytes\nhers-only\ndone\n, 1 artifacts, retried \"\"", got)
	if err := note(gate+"-his", ""); err != nil {
		t.Fatal(err)
	}

	// The attacker has broken only his own buckets, which are created again, so he can work as well.
	waitFor(t, func() bool {
		rt, _ := submitter(t, s.config("bob", "BOB"))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		res, err := rt.Run(ctx, unitask.Request{Code: "out again"}, unitask.IO{})
		return err == nil && string(res.Stdout) == "again\n"
	})
	hearAsTenant(t, nc, heard)
}

// forgeAsTenant makes a tenant send messages that only workers, others and the submitter may send.
func forgeAsTenant(t *testing.T, w *fleet.Worker, arch string, nc *nats.Conn, js jetstream.JetStream) {
	t.Helper()
	for subject, text := range map[string]string{
		"unitask.cancel.alice.hers":                 "",
		"unitask.out.alice.hers":                    "forged",
		"unitask.ask.alice.hers":                    `{"what":"secrets","worker":"` + w.Info().ID + `","attempt":1}`,
		"unitask.queue." + arch + ".alice.high":     `{"run":"hers"}`,
		"$KV.unitask-runs-alice.hers":               `{"state":"ended","class":"` + arch + `"}`,
		"$JS.API.STREAM.DELETE.unitask-queue":       "",
		"$JS.API.STREAM.PURGE.KV_unitask-runs-bob":  "",
		"$JS.API.STREAM.DELETE.OBJ_unitask-files-x": "",
		"unitask.drain." + w.Info().ID:              "",
	} {
		if err := nc.Publish(subject, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"KV_unitask-runs-alice", "OBJ_unitask-files-alice"} {
		_, err := js.Stream(t.Context(), name)
		const row = "a tenant with all rights in his account reads another's "
		attack.Check(t, row+name, jetstream.ErrStreamNotFound.Error(), fmt.Sprint(err))
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "unitask-runs-alice"}) // in his own account
	if err == nil {
		_, err = kv.Put(t.Context(), "hers", []byte(`{"state":"cancelled","class":"`+arch+`"}`))
	}
	if err != nil {
		t.Error(err)
	}
	endless := jetstream.StreamConfig{Name: "all", Subjects: []string{"all"}, MaxBytes: 1 << 40}
	_, err = js.CreateStream(t.Context(), endless)
	attack.Check(t, "a tenant makes a stream of a terabyte", "refused", refusedOr(err != nil))
	ask := nats.NewMsg("unitask.drain." + w.Info().ID)
	ask.Header.Set("Drain", "1")
	msg, err := nc.RequestMsg(ask, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "a tenant drains the worker of all", "refused", refusedOr(msg.Header.Get("Refused") != ""))
}

// hearAsTenant checks what a tenant receives who subscribes to everything.
func hearAsTenant(t *testing.T, nc *nats.Conn, heard chan *nats.Msg) {
	t.Helper()
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	sawHis, heardHers := false, []string{}
	for len(heard) > 0 {
		m := <-heard
		sawHis = sawHis || strings.Contains(string(m.Data), "nonsense-")
		if holds(m.Data, "hers-only") || holds(m.Data, "her-own-secret") ||
			holds([]byte(m.Header.Get("Stream")), "hers-only") {
			heardHers = append(heardHers, m.Subject)
		}
	}
	attack.Check(t, "a tenant listens to all subjects: what he hears of another's run", "[]", fmt.Sprint(heardHers))
	if !sawHis {
		t.Error("he hears not even himself: the test says nothing")
	}
}

func refusedOr(refused bool) string {
	if refused {
		return "refused"
	}
	return "done"
}
