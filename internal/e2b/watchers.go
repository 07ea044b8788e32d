package e2b

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"

	"connectrpc.com/connect"

	"github.com/unitask/unitask/session"
)

// maxWatchers bounds the watchers of a sandbox that clients ask for their events.
const maxWatchers = 32

// watchers are a sandbox's watchers without a stream.
type watchers struct {
	mu  sync.Mutex
	all map[string]*watcher
}

type watcher struct {
	list   eventList
	of     *session.Files
	folder string
	full   bool // with the entries
	stop   context.CancelFunc
}

// eventList holds events until they are taken.
type eventList struct {
	more chan struct{} // has an element if there is something new; nil if nobody waits

	mu   sync.Mutex
	list []fileEvent
	lost bool
}

func (l *eventList) add(e fileEvent) {
	l.mu.Lock()
	if len(l.list) >= maxEvents {
		l.list, l.lost = nil, true
	}
	if !l.lost {
		l.list = append(l.list, e)
	}
	l.mu.Unlock()
	l.wake()
}

// lose notes that events were lost.
func (l *eventList) lose() {
	l.mu.Lock()
	l.list, l.lost = nil, true
	l.mu.Unlock()
	l.wake()
}

func (l *eventList) wake() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// take removes the events; the error tells that some were lost.
func (l *eventList) take() ([]fileEvent, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	if l.lost {
		return nil, errEvents
	}
	return list, nil
}

func (s *Server) createWatcher(ctx context.Context, req *connect.Request[watchRequest],
) (*connect.Response[watcherRequest], error) {
	box := sandboxOf(ctx)
	of, name, err := files(ctx, req, req.Msg.Path)
	if err != nil {
		return nil, err
	}
	live, stop := context.WithCancel(context.Background())
	w := &watcher{of: of, folder: name, full: req.Msg.Include, stop: stop}
	id := strings.ToLower(rand.Text())
	if err := box.watchers.add(id, w); err != nil {
		stop()
		return nil, err
	}
	ready, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		err := watch(live, of, name, req.Msg, func() { close(ready) }, &w.list)
		box.watchers.remove(id)
		failed <- err
	}()
	select {
	case <-ready:
		return connect.NewResponse(&watcherRequest{id}), nil
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
		stop()
		return nil, ctx.Err()
	}
}

func (all *watchers) add(id string, w *watcher) error {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.all == nil {
		all.all = map[string]*watcher{}
	}
	if len(all.all) >= maxWatchers {
		return connect.NewError(connect.CodeResourceExhausted,
			fmt.Errorf("the sandbox has %d watchers, which is the most: remove one", maxWatchers))
	}
	all.all[id] = w
	return nil
}

func (all *watchers) remove(id string) *watcher {
	all.mu.Lock()
	defer all.mu.Unlock()
	w := all.all[id]
	delete(all.all, id)
	return w
}

func (all *watchers) find(id string) (*watcher, error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if w := all.all[id]; w != nil {
		return w, nil
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher %.80q: there is none", id))
}

func (s *Server) watcherEvents(ctx context.Context, req *connect.Request[watcherRequest],
) (*connect.Response[watcherEvents], error) {
	w, err := sandboxOf(ctx).watchers.find(req.Msg.ID)
	if err != nil {
		return nil, err
	}
	list, err := w.list.take()
	if err != nil {
		return nil, err
	}
	for i, e := range list {
		if w.full && i < maxEntries {
			list[i] = withEntry(ctx, w.of, w.folder, e)
		}
	}
	return connect.NewResponse(&watcherEvents{append([]fileEvent{}, list...)}), nil
}

// maxEntries bounds the entries that one answer looks up.
const maxEntries = 256

func (s *Server) removeWatcher(ctx context.Context, req *connect.Request[watcherRequest],
) (*connect.Response[empty], error) {
	if w := sandboxOf(ctx).watchers.remove(req.Msg.ID); w != nil {
		w.stop()
	}
	return connect.NewResponse(&empty{}), nil
}
