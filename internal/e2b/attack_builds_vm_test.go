package e2b

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

// A caller deletes templates whose builds go on, to have more builds at once than it may.
func TestAttackDeletedBuilds(t *testing.T) {
	a := newAPI(t, true)
	begin := func(i int) (status int) {
		in := a.want(http.StatusAccepted, "POST", "/v3/templates", object{"name": fmt.Sprint("x", i), "memoryMB": 512})
		at := fmt.Sprintf("/v2/templates/%s/builds/%s", in["templateID"], in["buildID"])
		status, _ = a.send("POST", at, object{"fromTemplate": "shell", "steps": steps([]string{"RUN", "sleep 1000"})}, nil)
		return status
	}
	one := begin(0)
	attack.Check(t, "a build", "202", fmt.Sprint(one))
	attack.Check(t, "a second one", "202", fmt.Sprint(begin(1)))
	attack.Check(t, "a third one", "429", fmt.Sprint(begin(2)))
	testwait.Within(t, time.Minute, "the first build's step", func() bool {
		_, text := a.send("GET", "/templates/x0", nil, nil)
		_, build, _ := strings.Cut(string(text), `"buildID":"`)
		_, log := a.send("GET", "/templates/x0/builds/"+build[:36]+"/logs", nil, nil)
		return strings.Contains(string(log), "RUN sleep")
	})
	for i := range 2 {
		a.want(http.StatusNoContent, "DELETE", fmt.Sprint("/templates/x", i), nil)
	}
	ended := testwait.Holds(30*time.Second, func() bool {
		a.e2b.builder.mu.Lock()
		defer a.e2b.builder.mu.Unlock()
		return len(a.e2b.builder.current) == 0
	})
	attack.Check(t, "the builds of deleted templates", "ended", map[bool]string{true: "ended", false: "go on"}[ended])
}

// A caller's ended builds keep as much of their logs as all of them may.
func TestAttackBuildLogs(t *testing.T) {
	var b builder
	var all []*build
	for i := range 10 {
		one := &build{id: fmt.Sprint(i), state: waiting, tags: []string{fmt.Sprint(i)}}
		if err := b.begin("loud", "mallory", one); err != nil {
			t.Fatal(err)
		}
		if err := b.start(one, func() {}); err != nil {
			t.Fatal(err)
		}
		for range 600 {
			one.tell("info", "1", strings.Repeat("x", maxLogLine))
		}
		b.finish(one, &snapshot{}, nil)
		one.tell("info", "1", strings.Repeat("x", 100<<10)) // by the start command
		all = append(all, one)
	}
	bytes := 0
	for _, one := range all {
		for _, e := range one.log {
			bytes += len(e.Message)
		}
	}
	attack.Check(t, "the logs of ten builds", "bounded", map[bool]string{true: "bounded",
		false: fmt.Sprint(bytes)}[bytes <= maxKeptLogs])
	if last := all[len(all)-1].log; len(last) < 100 {
		t.Errorf("the last build's log has %d lines", len(last))
	}
}

// A build that was removed since a request found it neither starts nor gets tags: nothing would ever end what it makes.
func TestAttackRemovedBuilds(t *testing.T) {
	var b builder
	begin := func() *build {
		one := &build{id: uuid.NewString(), state: waiting, tags: []string{usualTag}}
		if err := b.begin("mine", "mallory", one); err != nil {
			t.Fatal(err)
		}
		return one
	}
	outcome := func(err error) string {
		return map[bool]string{true: "not found", false: fmt.Sprint(err)}[errors.Is(err, fs.ErrNotExist)]
	}
	swept := begin()
	for range maxUntagged {
		begin()
	}
	last := begin()
	if err := b.start(last, func() {}); err != nil {
		t.Fatal(err)
	}
	b.finish(last, &snapshot{}, nil)
	attack.Check(t, "the start of a build that was swept", "not found", outcome(b.start(swept, func() {})))
	b.remove("mine", "mallory")
	attack.Check(t, "a tag of a build whose template is deleted", "not found", outcome(b.tag(last, []string{"x"})))
	attack.Check(t, "the start of one", "not found", outcome(b.start(last, func() {})))
}

// A build that ends by a mistake of the server leaves no session. A template whose session has ended is gone.
func TestAttackLostBuilds(t *testing.T) {
	a := newAPI(t, true)
	type action = struct {
		least int
		do    func(*buildRun, context.Context, buildStep) error
	}
	var session *unitask.Session
	actions["PANIC"] = action{0, func(b *buildRun, _ context.Context, _ buildStep) error {
		session = b.session
		panic("a mistake")
	}}
	defer delete(actions, "PANIC")
	is := a.built(nil, "broken", object{"fromTemplate": "shell", "steps": steps([]string{"PANIC"})})
	ended := testwait.Holds(10*time.Second, func() bool {
		select {
		case <-session.Done():
			return true
		default:
			return false
		}
	})
	attack.Check(t, "a build that panics", "error, its session ended", fmt.Sprintf("%s, its session %s", is.Status,
		map[bool]string{true: "ended", false: "lives"}[ended]))
	if is = a.built(nil, "lost", object{"fromTemplate": "shell"}); is.Status != ready {
		t.Fatalf("%+v", is)
	}
	_, made := a.e2b.builder.find("lost", unitask.LocalOwner(os.Geteuid())).now()
	if err := made.session.Close(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the build has gone", func() bool {
		status, _ := a.send("GET", "/templates/aliases/lost", nil, nil)
		return status == http.StatusNotFound
	})
}

// A sandbox of a snapshot gets no more network than its request wants.
func TestAttackSnapshotNetwork(t *testing.T) {
	a := newAPI(t, true)
	closed := func(hosts ...string) object {
		return object{"network": object{"denyOut": []string{everything}, "allowOut": hosts}}
	}
	for name, with := range map[string]object{"some": closed("a.example"), "odd": closed(everything), "open": {}} {
		b := a.create(nil, with)
		a.want(http.StatusCreated, "POST", "/sandboxes/"+b.id+"/snapshots", object{"name": name})
	}
	for _, c := range []struct {
		snapshot, name string
		want           object
		status         int
	}{
		{"some", "nothing", object{"allow_internet_access": false}, 400}, {"some", "another host", closed("b.example"), 400},
		{"some", "the same host", closed("a.example"), 201}, {"odd", "nothing", object{"allow_internet_access": false}, 400},
		{"open", "nothing", closed(), 400}, {"open", "everything", object{}, 201},
	} {
		c.want["templateID"], c.want["timeout"] = c.snapshot, 60
		status, text := a.send("POST", "/v2/sandboxes", c.want, nil)
		attack.Check(t, "a sandbox of a snapshot with "+c.snapshot+" hosts that wants "+c.name, fmt.Sprint(c.status),
			fmt.Sprint(status))
		if status == http.StatusCreated && !strings.Contains(string(text), "sandboxID") {
			t.Errorf("%s", text)
		}
	}
}
