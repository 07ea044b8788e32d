package e2b

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/session"
)

// absolute returns a path as a user names it: ~ and relative ones begin at the user's home.
func absolute(name, user string) string {
	switch {
	case name == "~" || strings.HasPrefix(name, "~/"):
		name = homeOf(user) + name[1:]
	case !path.IsAbs(name):
		name = homeOf(user) + "/" + name
	}
	return path.Clean(name)
}

// checkPath returns an error for a path that no file can have.
func checkPath(name string) error {
	if strings.ContainsRune(name, 0) || len(name) > maxPath {
		return policy.Bad("path", fmt.Sprintf("%.80q", name), "has no NUL and at most %d bytes", maxPath)
	}
	return nil
}

// maxPath bounds a path, in bytes.
const maxPath = 4096

// files returns a sandbox's files as the user of a request sees them, and a path of the request.
func files(ctx context.Context, req connect.AnyRequest, name string) (*session.Files, string, error) {
	box := sandboxOf(ctx)
	user, err := box.userOf(req.Header())
	if err != nil {
		return nil, "", err
	}
	of, err := box.session.FilesAs(user)
	if err == nil {
		err = checkPath(name)
	}
	if err != nil {
		return nil, "", connect.NewError(connect.CodeInvalidArgument, err)
	}
	return of, absolute(name, user), nil
}

// fileError returns the protocol's form of an error.
func fileError(name string, err error) error {
	if err == nil {
		return nil
	}
	code := connect.CodeInternal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code, err = connect.CodeNotFound, fmt.Errorf("path %q does not exist", name)
	case errors.Is(err, fs.ErrExist):
		code = connect.CodeAlreadyExists
	case errors.Is(err, syscall.ENOTDIR):
		code, err = connect.CodeInvalidArgument, fmt.Errorf("path %q is not a directory", name)
	case errors.Is(err, fs.ErrPermission):
		code = connect.CodePermissionDenied
	case errors.Is(err, session.ErrTooManyFolders):
		code = connect.CodeResourceExhausted
	case statusOf(err) == 400:
		code = connect.CodeInvalidArgument
	case statusOf(err) == 429:
		code = connect.CodeResourceExhausted
	case statusOf(err) == 502:
		code = connect.CodeUnavailable
	case errors.Is(err, context.Canceled):
		code = connect.CodeCanceled
	}
	return connect.NewError(code, err)
}

// kindOf returns an entry's kind, and the mode that goes with it: a link has those of what it leads to.
func kindOf(info session.FileInfo) (fileType, fs.FileMode) {
	mode := info.Mode
	if mode&fs.ModeSymlink != 0 {
		if info.TargetMode == 0 {
			return kindSymlink, mode
		}
		mode = info.TargetMode
	}
	if mode.IsDir() {
		return kindFolder, mode
	}
	return kindFile, mode
}

// infoOf returns the protocol's form of an entry.
func infoOf(info session.FileInfo) *entryInfo {
	kind, mode := kindOf(info)
	e := &entryInfo{Name: path.Base(info.Path), Type: kind, Path: info.Path, Size: long(info.Size),
		Mode: uint32(mode.Perm()), Permissions: info.Mode.String(), Owner: info.Owner, Group: info.Group,
		Modified: info.ModTime.UTC(), Metadata: info.Metadata}
	if info.Target != "" {
		e.Target = &info.Target
	}
	return e
}

func (s *Server) stat(ctx context.Context, req *connect.Request[pathRequest]) (*connect.Response[entryMessage], error) {
	of, name, err := files(ctx, req, req.Msg.Path)
	if err != nil {
		return nil, err
	}
	info, err := of.Stat(ctx, name)
	if err != nil {
		return nil, fileError(name, err)
	}
	return connect.NewResponse(&entryMessage{infoOf(info)}), nil
}

func (s *Server) makeDir(ctx context.Context, req *connect.Request[pathRequest],
) (*connect.Response[entryMessage], error) {
	of, name, err := files(ctx, req, req.Msg.Path)
	if err != nil {
		return nil, err
	}
	box := sandboxOf(ctx)
	user, err := box.userOf(req.Header())
	if err != nil {
		return nil, err
	}
	info, err := box.makeFolder(ctx, of, user, name)
	if errors.Is(err, fs.ErrExist) {
		if is, e := of.Stat(ctx, name); e == nil && infoOf(is).Type != kindFolder {
			return nil, connect.NewError(connect.CodeInvalidArgument,
				fmt.Errorf("path %q exists and is not a directory", name))
		}
		return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory %q already exists", name))
	}
	if err != nil {
		return nil, fileError(name, err)
	}
	return connect.NewResponse(&entryMessage{infoOf(info)}), nil
}

func (s *Server) move(ctx context.Context, req *connect.Request[moveRequest]) (*connect.Response[entryMessage], error) {
	of, from, err := files(ctx, req, req.Msg.Source)
	if err != nil {
		return nil, err
	}
	_, to, err := files(ctx, req, req.Msg.Destination)
	if err != nil {
		return nil, err
	}
	info, err := of.Move(ctx, from, to)
	if err != nil {
		return nil, fileError(from, err)
	}
	return connect.NewResponse(&entryMessage{infoOf(info)}), nil
}

// maxDepth bounds the levels of a list.
const maxDepth = 64

func (s *Server) listDir(ctx context.Context, req *connect.Request[listRequest]) (*connect.Response[entryList], error) {
	of, name, err := files(ctx, req, req.Msg.Path)
	if err != nil {
		return nil, err
	}
	list, more, err := of.List(ctx, name, min(max(1, int(req.Msg.Depth)), maxDepth))
	if err != nil {
		return nil, fileError(name, err)
	}
	if more {
		return nil, connect.NewError(connect.CodeResourceExhausted,
			fmt.Errorf("path %q has more than %d entries: list a folder in it, or less deep", name, session.MaxList))
	}
	out := &entryList{Entries: make([]entryInfo, 0, len(list))}
	for _, info := range list {
		out.Entries = append(out.Entries, *infoOf(info))
	}
	return connect.NewResponse(out), nil
}

func (s *Server) removeFile(ctx context.Context, req *connect.Request[pathRequest]) (*connect.Response[empty], error) {
	of, name, err := files(ctx, req, req.Msg.Path)
	if err != nil {
		return nil, err
	}
	if err := of.Remove(ctx, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fileError(name, err)
	}
	return connect.NewResponse(&empty{}), nil
}

// eventKinds are the kinds of a session's events.
var eventKinds = map[string]eventType{"create": 1, "write": 2, "remove": 3, "rename": 4, "chmod": 5}

// unfinished begins the name of a file that a session writes, before it has its own.
const unfinished = ".unitask-"

// watch calls ready when a folder is watched, and on for each change of it. A file that a session wrote shows the
// changes that E2B's way of writing makes.
func watch(ctx context.Context, of *session.Files, name string, in *watchRequest, ready func(),
	to *eventList) error {
	on, lost := to.add, to.lose
	wrote := false
	err := of.Watch(ctx, name, in.Recursive, ready, func(e session.FileEvent) {
		kinds := []string{e.Kind}
		switch {
		case e.Kind == "overflow":
			lost()
			return
		case strings.HasPrefix(path.Base(e.Name), unfinished) && len(path.Base(e.Name)) == len(unfinished)+6:
			wrote = wrote || e.Kind == "rename"
			return
		case wrote && e.Kind == "create":
			wrote, kinds = false, []string{"create", "chmod", "write"}
		}
		for _, kind := range kinds {
			if kind := eventKinds[kind]; kind != 0 {
				on(fileEvent{Name: e.Name, Type: kind})
			}
		}
	})
	return fileError(name, err)
}

// withEntry adds the entry that an event is about, if it is still there.
func withEntry(ctx context.Context, of *session.Files, folder string, e fileEvent) fileEvent {
	if info, err := of.Stat(ctx, path.Join(folder, e.Name)); err == nil {
		e.Entry = infoOf(info)
	}
	return e
}

// maxEvents bounds the events that wait for a client.
const maxEvents = 10_000

// errEvents means that a client reads too slowly, or that too much changes.
var errEvents = connect.NewError(connect.CodeResourceExhausted,
	fmt.Errorf("more than %d changes wait to be read: watch fewer files", maxEvents))

// watchDir streams the changes of a folder.
func (s *Server) watchDir(ctx context.Context, req *connect.Request[watchRequest],
	stream *connect.ServerStream[watchMessage]) error {
	of, name, err := files(ctx, req, req.Msg.Path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready, failed := make(chan struct{}), make(chan error, 1)
	var list eventList
	list.more = make(chan struct{}, 1)
	go func() {
		failed <- watch(ctx, of, name, req.Msg, func() { close(ready) }, &list)
	}()
	select {
	case <-ready:
	case err := <-failed:
		return err
	}
	if err := stream.Send(&watchMessage{Start: &empty{}}); err != nil {
		return err
	}
	ticker := time.NewTicker(keepalive)
	defer ticker.Stop()
	for {
		events, err := list.take()
		for _, e := range events {
			if req.Msg.Include {
				e = withEntry(ctx, of, name, e)
			}
			if err := stream.Send(&watchMessage{Filesystem: &e}); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		select {
		case <-list.more:
		case err := <-failed:
			if !sandboxOf(ctx).ready() {
				cutOff()
			}
			return err
		case <-ticker.C:
			if err := stream.Send(&watchMessage{Keepalive: &empty{}}); err != nil {
				return err
			}
		}
	}
}
