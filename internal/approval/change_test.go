package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// The answer does not reveal whether an id is another caller's, has ended, or never existed.
func TestAttackPolicyOfAnother(t *testing.T) {
	const id = "20261123T000000-aaaaaaaa"
	c, _, a := asking(t, id) // its record has no owner: it belongs to nobody
	a.Live = &egress.LiveRules{}
	for _, row := range []struct{ name, owner, id string }{
		{"another caller's", "alice", id}, {"the user's, of what is nobody's", "", id},
		{"that never was", "", "20261123T000000-ffffffff"}, {"empty", "", ""}, {"a path", "", "../" + id},
		{"last", "", "last"}, {"a part of another's", "alice", "2026"}, {"an escape", "", "\x1b[2J"},
	} {
		err := c.SetPolicy(t.Context(), row.owner, row.id, run.PolicyChange{AllowNet: []string{"a.example"}})
		attack.Check(
			t,
			"an id to change the policy of: "+row.name,
			fmt.Sprintf("no run or session %.80q of yours is under way", row.id),
			fmt.Sprint(err),
		)
	}
	var group sync.WaitGroup
	for range 20 { // besides questions and answers; it has no machine
		group.Go(func() { a.handle(asked{Policy: &run.PolicyChange{DenyNet: []string{"a.example"}}}) })
		group.Go(func() { a.handle(asked{}) })
	}
	group.Wait()
	attack.Check(
		t,
		"a change before there is a machine",
		"its machine has not started yet",
		a.handle(asked{Policy: &run.PolicyChange{DenyNet: []string{"a.example"}}}).Error,
	)
}

// A change or an answer that a run received and did not confirm may be in effect. The error does not say that there is
// no such run.
func TestAttackPolicyUnconfirmed(t *testing.T) {
	const id = "20261123T000000-aaaaaaaa"
	for _, row := range []struct {
		name string
		hear func(*net.UnixConn)
	}{
		{"closes at once", func(*net.UnixConn) {}},
		{"reads it, and closes", func(c *net.UnixConn) { _ = json.NewDecoder(c).Decode(&asked{}) }},
		{"answers no JSON", func(c *net.UnixConn) { _ = json.NewDecoder(c).Decode(&asked{}); fmt.Fprint(c, "<html>") }},
		{"answers a half", func(c *net.UnixConn) { _ = json.NewDecoder(c).Decode(&asked{}); fmt.Fprint(c, `{"error": "x`) }},
	} {
		c := &Client{Records: record.Open(testdir.Private(t))}
		dir := filepath.Join(c.Records.Dir(), id)
		rec, err := json.Marshal(
			record.Record{
				SchemaVersion: 1,
				ID:            id,
				Owner:         run.Caller{}.WithDefaults().Name,
				Status:        record.Running,
				Created:       time.Now(),
			},
		)
		if err = errors.Join(err, os.MkdirAll(dir, 0o700)); err == nil {
			err = os.WriteFile(filepath.Join(dir, "run.json"), rec, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		l, err := localsocket.Listen(dir, controlSocket)
		if err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		group.Go(func() { localsocket.Serve(l, 1, &group, row.hear) })
		changed := c.SetPolicy(t.Context(), "", id, run.PolicyChange{DenyNet: []string{"a.example"}})
		answered := c.Approve(t.Context(), id, "a.example:443", "", run.Deny)
		l.Close()
		group.Wait()
		attack.Check(
			t,
			"a change of policy that the run "+row.name,
			"true",
			fmt.Sprint(strings.Contains(fmt.Sprint(changed), "did not confirm it")),
		)
		attack.Check(
			t,
			"an answer that the run "+row.name,
			"true",
			fmt.Sprint(strings.Contains(fmt.Sprint(answered), "did not confirm it")),
		)
	}
}

// A silent connected process does not delay the end of a run; one that waits for an answer gets it.
func TestAttackSilentProcess(t *testing.T) {
	_, dir, a := asking(t, "20261123T000000-aaaaaaaa")
	a.talk = time.Hour
	l, err := localsocket.Listen(dir, "other.sock")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() { a.listen(l, &group) })
	var silent []*net.UnixConn
	for _, begins := range []string{"", "{", `{"host": "a.exa`} {
		conn, err := localsocket.Dial(t.Context(), dir, "other.sock")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(begins)); err != nil {
			t.Fatal(err)
		}
		silent = append(silent, conn)
	}
	asks, err := localsocket.Dial(t.Context(), dir, "other.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer asks.Close()
	if _, err := asks.Write([]byte("{}\n")); err != nil {
		t.Fatal(err)
	}
	var got told
	if err := json.NewDecoder(asks).Decode(&got); err != nil || got.Open == nil { // so that the others were accepted
		t.Fatal(got, err)
	}
	l.Close()
	over, cancel := context.WithTimeout(t.Context(), time.Minute)
	go func() { group.Wait(); cancel() }()
	<-over.Done()
	seen := "let go"
	if errors.Is(over.Err(), context.DeadlineExceeded) {
		seen = "waited for"
	}
	attack.Check(t, "silent processes when a run ends", "let go", seen)
	for _, conn := range silent {
		if n, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("a silent process was told %d bytes", n)
		}
	}
}
