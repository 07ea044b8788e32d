package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
)

// FileEvent is a change below a watched folder.
type FileEvent struct {
	Name string // relative to the folder; "." for the folder itself
	// Kind is create, write, remove, rename or chmod: what Go's fsnotify means. A rename tells the old name. overflow,
	// without a Name, means that changes were lost, or that a folder below is not watched.
	Kind string
}

var changes = map[byte]string{
	contract.WatchCreate: "create", contract.WatchWrite: "write", contract.WatchRemove: "remove",
	contract.WatchRename: "rename", contract.WatchChmod: "chmod", contract.WatchOverflow: "overflow",
}

// Watch calls on for each change below a folder, until ctx ends or the session does. ready is called first, when the
// watch is in place. use is called around data that is sent to the machine. The error is a syscall.Errno if the folder
// can't be watched.
func (c *Client) Watch(ctx context.Context, root bool, name string, recursive bool, use func() (func(), error),
	ready func(), on func(FileEvent)) error {
	deep := "0"
	if recursive {
		deep = "1"
	}
	w := &watching{ready: ready, on: on}
	return c.flow(ctx, Exec{Args: []string{"watch", name, deep}, Root: root, Use: use}, w.take)
}

// watching parses what the machine tells of a watch. ../init/sessionwatch.c has the format.
type watching struct {
	ready func() // nil when it was called
	on    func(FileEvent)
	text  []byte // of the incomplete event
}

func (w *watching) take(p []byte) error {
	w.text = append(w.text, p...)
	for {
		one, rest, whole := bytes.Cut(w.text, []byte{0})
		if len(one) > 2*contract.MaxPath || whole && len(one) == 0 {
			return &guest.ProtocolError{Reason: fmt.Sprintf("a change to a file of %d bytes", len(one))}
		}
		if !whole {
			return nil
		}
		kind, name := one[0], string(one[1:])
		w.text = rest
		if kind == contract.WatchReady && name == "" && w.ready != nil {
			ready := w.ready
			w.ready = nil
			ready()
			continue
		}
		is, known := changes[kind]
		if !known || (name == "") != (kind == contract.WatchOverflow) || w.ready != nil {
			return &guest.ProtocolError{Reason: fmt.Sprintf("a change to a file: %.80q", one)}
		}
		if name != "" && (path.Clean(name) != name || path.IsAbs(name) || name == ".." || strings.HasPrefix(name, "../")) {
			return &guest.ProtocolError{Reason: fmt.Sprintf("a change outside a watched folder: %.80q", name)}
		}
		w.on(FileEvent{Name: name, Kind: is})
	}
}
