package mcp

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"github.com/unitask/unitask"
)

// A call receives the progress of fetches and builds until its code starts. A remote caller gets only its own run's
// progress, without the host's paths. A session's later events contain nothing of the call that started it.
func TestProgressOfCalls(t *testing.T) {
	p := NewProgress(func(unitask.Event) {})
	hide := newHider("/srv/agents", "/root/.unitask")
	near := &live{token: "near", wake: make(chan struct{}, 1)}
	far := &live{token: "far", wake: make(chan struct{}, 1)}
	nearEvents, nearDone := p.of(unitask.Caller{Name: "local:root"}, near, hide)
	farEvents, farDone := p.of(unitask.Caller{Name: "token:bob", Via: unitask.ViaHTTP}, far, hide)
	defer farDone()
	p.Event(unitask.Event{Kind: unitask.EventImage, Message: "building the image secret-project"})
	p.Event(unitask.Event{Kind: unitask.EventStore, Message: "old runs were removed"})
	nearEvents(unitask.Event{Kind: unitask.EventImage, RunID: "R", Message: "installing a\x1b[31m"})
	farEvents(unitask.Event{Kind: unitask.EventImage, RunID: "S", Message: "reading /root/.unitask/cache"})
	if want := []string{"building the image secret-project", `installing a\x1b[31m`}; !slices.Equal(near.said, want) {
		t.Errorf("%q", near.said)
	}
	if len(far.said) != 1 || strings.Contains(far.said[0], "root") || !strings.HasPrefix(far.said[0], "reading ") {
		t.Errorf("%q", far.said)
	}
	nearEvents(unitask.Event{Kind: unitask.EventStarted, RunID: "R"})
	p.Event(unitask.Event{Kind: unitask.EventImage, Message: "another one's image"})
	nearEvents(unitask.Event{Kind: unitask.EventImage, RunID: "R", Message: "late"})
	if len(near.said) != 2 {
		t.Errorf("after the start: %q", near.said)
	}
	nearDone()
	held := weak.Make(near)
	near = nil
	for range 3 {
		runtime.GC()
	}
	if held.Value() != nil {
		t.Error("the events hold a call that has ended")
	}
	runtime.KeepAlive(nearEvents)
}
