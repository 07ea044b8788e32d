package fleet_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/testdir"
)

func newKey(t *testing.T, make func() (nkeys.KeyPair, error)) (key nkeys.KeyPair, public string) {
	t.Helper()
	key, err := make()
	if err == nil {
		public, err = key.PublicKey()
	}
	if err != nil {
		t.Fatal(err)
	}
	return key, public
}

// signed returns a claim signed by the one above it in the chain.
func signed(t *testing.T, claims jwt.Claims, by nkeys.KeyPair) string {
	t.Helper()
	token, err := claims.Encode(by)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// userFile returns a file of credentials in nsc's format.
func userFile(t *testing.T, account nkeys.KeyPair, change func(*jwt.UserClaims)) (file, public string) {
	t.Helper()
	key, public := newKey(t, nkeys.CreateUser)
	claims := jwt.NewUserClaims(public)
	if change != nil {
		change(claims)
	}
	seed, err := key.Seed()
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.FormatUserConfig(signed(t, claims, account), seed)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "user.creds")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file, public
}

// Credentials that the server's configuration does not list: an operator signs accounts, which sign users.
func TestDecentralized(t *testing.T) {
	t.Parallel()
	operator, operatorID := newKey(t, nkeys.CreateOperator)
	chain := jwt.NewOperatorClaims(operatorID)
	if _, err := chain.Encode(operator); err != nil {
		t.Fatal(err)
	}
	accounts := &server.MemAccResolver{}
	account := func(name string) (nkeys.KeyPair, *jwt.AccountClaims) {
		key, id := newKey(t, nkeys.CreateAccount)
		claims := jwt.NewAccountClaims(id)
		claims.Name = name
		if name != "system" {
			claims.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: 4 << 30, Streams: 8, Consumer: 1000}
		}
		if err := accounts.Store(id, signed(t, claims, operator)); err != nil {
			t.Fatal(err)
		}
		return key, claims
	}
	alice, alices := account("alice")
	bob, _ := account("bob")
	_, system := account("system")
	ns := startNATS(t, func(o *server.Options) {
		o.TrustedOperators, o.AccountResolver, o.SystemAccount = []*jwt.OperatorClaims{chain}, accounts, system.Subject
	})
	ofAlice, _ := userFile(t, alice, nil)
	ofBob, _ := userFile(t, bob, nil)
	publish, subscribe := fleet.Permissions("alice", fleet.Normal)
	submits, submitsID := userFile(t, alice, func(c *jwt.UserClaims) {
		c.Permissions.Pub.Allow, c.Permissions.Sub.Allow, c.Permissions.Resp = publish, subscribe,
			&jwt.ResponsePermission{MaxMsgs: 1, Expires: time.Minute}
	})
	c := workerConfig(ns.ClientURL(), 2)
	c.Tenants = []fleet.Tenant{{Name: "alice", Creds: ofAlice}, {Name: "bob", Creds: ofBob}}
	startWorker(t, c, script{})
	config := func(creds string) fleet.Config {
		return fleet.Config{URL: ns.ClientURL(), Tenant: "alice", Creds: creds}
	}
	rt, client := submitter(t, config(submits))
	if res, err := rt.Run(t.Context(), unitask.Request{Code: "out fine\nsecret KEY",
		Secrets: map[string]string{"KEY": "of-some-length"}}, unitask.IO{}); err != nil ||
		string(res.Stdout) != "fine\n14 bytes\n" {
		t.Fatalf("%v %s", err, asJSON(res))
	}
	client.Priority = fleet.High // the user's permissions exclude it
	if _, err := rt.Run(t.Context(), unitask.Request{Code: "out first"}, unitask.IO{}); err == nil ||
		!strings.Contains(err.Error(), "priority high: NATS does not let this user") {
		t.Errorf("%v", err)
	}
	if runs, err := client.Runs(t.Context(), 10); err != nil || len(runs) != 1 {
		t.Errorf("what was not let in is still there: %v %s", err, asJSON(runs))
	}
	refuseStrangers(t, alice, ofBob, config)
	nc, _ := dial(t, ns.ClientURL(), nats.UserCredentials(submits))
	if _, err := nc.SubscribeSync("unitask.queue.>"); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil || !errors.Is(nc.LastError(), nats.ErrPermissionViolation) {
		t.Errorf("who only submits hears the queue: %v %v", err, nc.LastError())
	}
	// A revocation by the account takes effect at once.
	alices.Revoke(submitsID)
	token := signed(t, alices, operator)
	if err := accounts.Store(alices.Subject, token); err != nil {
		t.Fatal(err)
	}
	known, err := ns.LookupAccount(alices.Subject)
	if err != nil {
		t.Fatal(err)
	}
	ns.UpdateAccountClaims(known, alices)
	waitFor(t, func() bool {
		again, err := fleet.Connect(config(submits))
		if err == nil {
			again.Close()
		}
		return err != nil
	})
}

// refuseStrangers checks whom NATS refuses.
func refuseStrangers(t *testing.T, alice nkeys.KeyPair, ofBob string, config func(creds string) fleet.Config) {
	t.Helper()
	stranger, _ := newKey(t, nkeys.CreateAccount)
	unknown, _ := userFile(t, stranger, nil)
	late, _ := userFile(t, alice, func(c *jwt.UserClaims) { c.Expires = time.Now().Add(-time.Minute).Unix() })
	for name, row := range map[string][2]string{
		"an account that the operator has not signed": {unknown, "uthoriz"},
		"a user whose time is over":                   {late, "xpired"},
		"a user of another account":                   {ofBob, "no worker has been here for tenant alice"},
	} {
		other, err := fleet.Connect(config(row[0]))
		if err == nil {
			var mine *unitask.Runtime
			if mine, err = unitask.Open(unitask.Options{Home: testdir.Private(t), Fleet: other}); err != nil {
				t.Fatal(err)
			}
			_, err = mine.Run(t.Context(), unitask.Request{Code: "out x"}, unitask.IO{})
			mine.Close()
			other.Close()
		}
		if err == nil || !strings.Contains(err.Error(), row[1]) && !strings.Contains(err.Error(), "uthoriz") {
			t.Errorf("%s: %v does not say %q", name, err, row[1])
		}
	}
}
