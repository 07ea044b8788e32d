package codexexec

import (
	"bytes"
	"errors"
	"io/fs"
	"net/url"
	"path"
	"strings"
	"syscall"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/session"
)

// path returns the path in the machine that a file: URI of the client means. host is the project's folder on the host
// if the client has named the path by it, else "".
func (s *server) path(uri string) (name, host string, err error) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Host != "" && u.Host != "localhost" || !path.IsAbs(u.Path) {
		return "", "", fail(codeParams, "%.200q is no file: URI with an absolute path", uri)
	}
	if len(u.Path) > contract.MaxPath || strings.ContainsRune(u.Path, 0) {
		return "", "", fail(codeParams, "a path must have %d bytes at most, and no NUL", contract.MaxPath)
	}
	name = path.Clean(u.Path)
	for _, host := range []string{s.Host, s.RealHost} {
		if rest, below := cutFolder(name, host); below {
			return path.Join(s.Guest, rest), host, nil
		}
	}
	return name, "", nil
}

// cutFolder returns a path relative to a folder, if it is the folder or below it.
func cutFolder(name, folder string) (rest string, below bool) {
	if folder == "" || name == folder {
		return "", folder != ""
	}
	return strings.CutPrefix(name, strings.TrimSuffix(folder, "/")+"/")
}

// uri returns the client's URI of a path in the machine. host is as path returns it.
func (s *server) uri(name, host string) string {
	if rest, below := cutFolder(name, s.Guest); host != "" && below {
		name = path.Join(host, rest)
	}
	return (&url.URL{Scheme: "file", Path: name}).String()
}

// fileError is the protocol's error for that of an operation on files.
func fileError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fail(codeMissing, "%v", err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrInvalid),
		errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTEMPTY):
		return fail(codeRequest, "%v", err)
	}
	return err
}

type pathParams struct {
	Path      string `json:"path"`
	Recursive *bool  `json:"recursive"`
	Force     *bool  `json:"force"`
}

// at reads the parameters of a request about one path.
func (s *server) at(m message) (name, host string, p pathParams, err error) {
	if p, err = params[pathParams](m); err == nil {
		name, host, err = s.path(p.Path)
	}
	return name, host, p, err
}

// environment describes the machine. It offers nothing that is optional.
func (s *server) environment(*session.Session, message) (any, error) {
	return map[string]any{
		"shell": map[string]any{"name": path.Base(s.Shell), "path": s.Shell}, "cwd": s.uri(s.Guest, ""),
		"platformOs": "linux", "temporaryDirectories": []string{}, "tempDir": "file:///tmp",
		"capabilities": map[string]any{"networkProxyLaunch": false, "capabilityDiscoverySandbox": false,
			"environmentConfigRead": false, "sandboxedFileStreaming": false},
	}, nil
}

func (s *server) readFile(in *session.Session, m message) (any, error) {
	name, _, _, err := s.at(m)
	if err != nil {
		return nil, err
	}
	text, err := in.ReadFile(s.ctx, name, 0, maxRead+1)
	if err == nil && len(text) > maxRead {
		return nil, fail(codeRequest, "%s has over %d bytes: open it, and read blocks", name, maxRead)
	}
	return map[string]any{"dataBase64": bytesOf(text)}, fileError(err)
}

// bytesOf returns bytes that JSON has as a text, never as null.
func bytesOf(text []byte) []byte { return append([]byte{}, text...) }

type handleParams struct {
	HandleID string `json:"handleId"`
	Path     string `json:"path"`
	Offset   int64  `json:"offset"`
	Len      int64  `json:"len"`
}

func (s *server) open(in *session.Session, m message) (any, error) {
	p, err := params[handleParams](m)
	if err != nil {
		return nil, err
	}
	name, _, err := s.path(p.Path)
	if err == nil && len(p.HandleID) > maxName {
		err = fail(codeRequest, "a handle's id must have %d bytes at most", maxName)
	}
	if err == nil {
		_, err = in.ReadFile(s.ctx, name, 0, 1)
	}
	if err != nil {
		return nil, fileError(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, used := s.handles[p.HandleID]; used || len(s.handles) >= maxHandles {
		return nil, fail(codeRequest, "handle %.80q is open, or %d others are", p.HandleID, maxHandles)
	}
	s.handles[p.HandleID] = name
	return map[string]any{"handleId": p.HandleID}, nil
}

func (s *server) readBlock(in *session.Session, m message) (any, error) {
	p, err := params[handleParams](m)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	name, is := s.handles[p.HandleID]
	s.mu.Unlock()
	if !is || p.Offset < 0 || p.Len < 1 || p.Len > maxBlock {
		return nil, fail(codeRequest, "handle %.80q must be open, and a block of 1 to %d bytes", p.HandleID, maxBlock)
	}
	text, err := in.ReadFile(s.ctx, name, p.Offset, p.Len)
	return map[string]any{"chunk": bytesOf(text), "eof": int64(len(text)) < p.Len}, fileError(err)
}

func (s *server) close(_ *session.Session, m message) (any, error) {
	p, err := params[handleParams](m)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	delete(s.handles, p.HandleID)
	s.mu.Unlock()
	return map[string]any{}, nil
}

func (s *server) writeFile(in *session.Session, m message) (any, error) {
	p, err := params[struct {
		Path string `json:"path"`
		Data []byte `json:"dataBase64"`
	}](m)
	if err != nil {
		return nil, err
	}
	name, _, err := s.path(p.Path)
	if err == nil {
		err = in.WriteFile(s.ctx, name, p.Data, 0o644)
	}
	return map[string]any{}, fileError(err)
}

// stat returns an entry itself.
func (s *server) stat(in *session.Session, name string) (*session.Files, session.FileInfo, error) {
	files, err := in.FilesAs("user")
	if err != nil {
		return nil, session.FileInfo{}, err
	}
	info, err := files.Stat(s.ctx, name)
	return files, info, fileError(err)
}

func (s *server) metadata(in *session.Session, m message) (any, error) {
	name, _, _, err := s.at(m)
	if err != nil {
		return nil, err
	}
	_, info, err := s.stat(in, name)
	mode := info.Mode
	if info.TargetMode != 0 {
		mode = info.TargetMode
	}
	return map[string]any{"isDirectory": mode.IsDir(), "isFile": mode.IsRegular(),
		"isSymlink": info.Mode&fs.ModeSymlink != 0, "size": info.Size, "createdAtMs": 0,
		"modifiedAtMs": info.ModTime.UnixMilli()}, err
}

func (s *server) makeDir(in *session.Session, m message) (any, error) {
	name, _, p, err := s.at(m)
	if err != nil {
		return nil, err
	}
	recursive := p.Recursive == nil || *p.Recursive
	if !recursive {
		if _, _, err := s.stat(in, path.Dir(name)); err != nil {
			return nil, err
		}
	}
	files, err := in.FilesAs("user")
	if err != nil {
		return nil, err
	}
	_, err = files.MakeDir(s.ctx, name)
	if recursive && errors.Is(err, fs.ErrExist) {
		if _, info, e := s.stat(in, name); e == nil && (info.Mode.IsDir() || info.TargetMode.IsDir()) {
			err = nil
		}
	}
	return map[string]any{}, fileError(err)
}

func (s *server) list(in *session.Session, m message) (any, error) {
	name, _, _, err := s.at(m)
	if err != nil {
		return nil, err
	}
	files, err := in.FilesAs("user")
	if err != nil {
		return nil, err
	}
	list, more, err := files.List(s.ctx, name, 1)
	if err == nil && more {
		err = fail(codeRequest, "%s has over %d entries", name, session.MaxList)
	}
	entries := []any{}
	for _, info := range list {
		mode := info.Mode
		if info.TargetMode != 0 {
			mode = info.TargetMode
		}
		entries = append(entries, map[string]any{"fileName": path.Base(info.Path), "isDirectory": mode.IsDir(),
			"isFile": mode.IsRegular()})
	}
	return map[string]any{"entries": entries}, fileError(err)
}

// maxDepth bounds a walk, in levels.
const maxDepth = 64

func (s *server) walk(in *session.Session, m message) (any, error) {
	p, err := params[struct {
		Path    string `json:"path"`
		Options struct {
			MaxDepth   int  `json:"maxDepth"`
			MaxEntries int  `json:"maxEntries"`
			Prune      bool `json:"pruneHiddenDirectories"`
		} `json:"options"`
	}](m)
	if err != nil {
		return nil, err
	}
	root, host, err := s.path(p.Path)
	if err != nil {
		return nil, err
	}
	files, err := in.FilesAs("user")
	if err != nil {
		return nil, err
	}
	list, more, err := files.List(s.ctx, root, min(max(p.Options.MaxDepth, 0)+1, maxDepth))
	if len(list) > p.Options.MaxEntries {
		list, more = list[:max(p.Options.MaxEntries, 0)], true
	}
	entries := []any{}
	for _, info := range list {
		kind := map[bool]string{true: "directory", false: "file"}[info.Mode.IsDir()]
		below := strings.TrimPrefix(path.Dir(info.Path), root)
		if info.Mode&^fs.ModePerm&^fs.ModeDir != 0 || p.Options.Prune && strings.Contains(below, "/.") {
			continue // links and devices are neither
		}
		entries = append(entries, map[string]any{"path": s.uri(info.Path, host), "kind": kind})
	}
	return map[string]any{"entries": entries, "errors": []any{}, "truncated": more}, fileError(err)
}

func (s *server) remove(in *session.Session, m message) (any, error) {
	name, _, p, err := s.at(m)
	if err != nil {
		return nil, err
	}
	files, info, err := s.stat(in, name)
	var told *callError
	if errors.As(err, &told) && told.Code == codeMissing && (p.Force == nil || *p.Force) {
		return map[string]any{}, nil
	}
	if err == nil && info.Mode.IsDir() && p.Recursive != nil && !*p.Recursive {
		if list, _, e := files.List(s.ctx, name, 1); e != nil || len(list) > 0 {
			return nil, fail(codeRequest, "remove %s: the folder is not empty", name)
		}
	}
	if err == nil {
		err = files.Remove(s.ctx, name)
	}
	return map[string]any{}, fileError(err)
}

// tool runs a program of the machine on paths, and returns what it prints.
func (s *server) tool(in *session.Session, args ...string) (string, error) {
	var out, errs bytes.Buffer
	res, err := in.Exec(s.ctx, session.Command{Args: args, Stdout: &out, Stderr: &errs, ResultBytes: 1})
	if err == nil && res.ExitCode != 0 {
		code, said := codeRequest, strings.TrimSpace(errs.String())
		if strings.Contains(said, "No such file") {
			code = codeMissing
		}
		err = fail(code, "%.400s", said)
	}
	return strings.TrimSuffix(out.String(), "\n"), err
}

func (s *server) canonicalize(in *session.Session, m message) (any, error) {
	name, host, _, err := s.at(m)
	if err != nil {
		return nil, err
	}
	real, err := s.tool(in, "realpath", "-e", "--", name)
	if err == nil && !path.IsAbs(real) {
		err = fail(codeInternal, "the machine's path can't be read")
	}
	return map[string]any{"path": s.uri(real, host)}, err
}

func (s *server) copy(in *session.Session, m message) (any, error) {
	p, err := params[struct {
		Source      string `json:"sourcePath"`
		Destination string `json:"destinationPath"`
		Recursive   bool   `json:"recursive"`
	}](m)
	if err != nil {
		return nil, err
	}
	from, _, err := s.path(p.Source)
	if err != nil {
		return nil, err
	}
	to, _, err := s.path(p.Destination)
	if err != nil {
		return nil, err
	}
	option := "-fT"
	if p.Recursive {
		option = "-faT"
	}
	_, err = s.tool(in, "cp", option, "--", from, to)
	return map[string]any{}, err
}
