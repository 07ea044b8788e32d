package unitask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/policy"
)

// Mount is a file or folder of the host that the code may read.
type Mount struct {
	// Host is its path on the host; a relative one is taken from the working directory.
	Host string
	// Guest is its path inside; "" is the same, made absolute.
	Guest string
}

// ParseMount takes PATH, or PATH:/GUESTPATH.
func ParseMount(s string) Mount {
	if i := strings.LastIndex(s, ":/"); i > 0 {
		return Mount{s[:i], s[i+1:]}
	}
	return Mount{Host: s}
}

// IgnoreFile names, in gitignore's syntax, what a folder does not bring along. Each
// folder may have one, for itself and what is below.
const IgnoreFile = ".unitaskignore"

// Bounds of what a run brings along.
const (
	DefaultDirMax = 256 << 20
	maxInputs     = 100_000
	maxIgnore     = 1 << 20
	maxDepth      = 128
)

// inputs are the files of the host that a run brings along. Each mount is opened
// once, what was opened is what the ceiling is held against, and what is below is
// reached from there: exchanging a folder or a link afterwards leads nowhere.
type inputs struct {
	mounts  []*mount
	entries []input
	bytes   int64
}

// mount is an opened file or folder.
type mount struct {
	policy.Mount
	file *os.File // of a file
	root *os.Root // of a folder
}

// input is one thing to be put into the guest.
type input struct {
	guest.File
	open func() (*os.File, error) // a regular file's content
	kept bool                     // what open returns is open for as long as the run is
}

// openMounts opens what a request asks for.
func (in *inputs) openMounts(field string, list []Mount, dirs bool) (opened []policy.Mount, err error) {
	for _, m := range list {
		bad := func(reason string) error {
			return &policy.FieldError{Field: field, Value: fmt.Sprintf("%.200q", m.Host), Reason: reason}
		}
		switch {
		case m.Host == "":
			return nil, bad("is no path")
		case strings.ContainsRune(m.Host, 0) || len(m.Host) > maxPath:
			return nil, bad(fmt.Sprintf("is no path: it must have no NUL byte and at most %d bytes", maxPath))
		}
		host, err := filepath.Abs(m.Host)
		if err != nil {
			return nil, bad(err.Error())
		}
		to := m.Guest
		if to == "" {
			to = host
		}
		if err := checkGuestPath(field, to); err != nil {
			return nil, err
		}
		to = path.Clean(to)
		switch {
		case !utf8.ValidString(to):
			return nil, bad("is not UTF-8 text: name a path inside, as PATH:/GUESTPATH")
		case policy.Within(outDir, to):
			return nil, bad(outDir + " is for what comes back")
		case slices.ContainsFunc(in.mounts, func(o *mount) bool { return o.Guest == to }):
			return nil, bad("is not the only one at " + to)
		}
		o := &mount{Mount: policy.Mount{Host: host, Guest: to}}
		in.mounts = append(in.mounts, o)
		if err := o.open(dirs); err != nil {
			return nil, bad(err.Error())
		}
		opened = append(opened, o.Mount)
	}
	return opened, nil
}

// outDir is where the code leaves what is to come back.
const outDir = "/out"

// open opens the mount and finds out where that led.
func (m *mount) open(dir bool) error {
	var err error
	var at *os.File
	if dir {
		if m.root, err = os.OpenRoot(m.Host); err == nil {
			at, err = m.root.Open(".")
		}
	} else {
		at, err = os.OpenFile(m.Host, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		m.file = at
	}
	if err != nil {
		return plain(err)
	}
	if dir {
		defer at.Close()
	}
	st, err := at.Stat()
	switch {
	case err != nil:
		return plain(err)
	case !dir && st.IsDir():
		return errors.New("is a folder: --dir brings folders")
	case !dir && !st.Mode().IsRegular():
		return errors.New("is a " + kindOf(st.Mode()) + ": only regular files can be given")
	}
	m.Real, err = realPath(at)
	return err
}

// plain is an error without the operation and the path, which the caller names.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func kindOf(mode fs.FileMode) string {
	switch mode.Type() {
	case fs.ModeNamedPipe:
		return "pipe"
	case fs.ModeSocket:
		return "socket"
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		return "device"
	case fs.ModeDir:
		return "folder"
	case fs.ModeSymlink:
		return "link"
	}
	return "special file"
}

// keep lets go of the mounts that were not granted, and lists what the others bring:
// at most most bytes each, and no more in all than a machine has room for.
func (in *inputs) keep(granted []policy.Mount, most int64, memoryMB int) error {
	for _, m := range in.mounts {
		if !slices.Contains(granted, m.Mount) {
			m.close()
		}
	}
	in.mounts = slices.DeleteFunc(in.mounts, func(m *mount) bool { return m.file == nil && m.root == nil })
	for _, m := range in.mounts {
		if m.file != nil {
			st, err := m.file.Stat()
			if err != nil {
				return hostError("files", err)
			}
			m.add(in, m.Guest, st, true, func() (*os.File, error) { return m.file, nil })
			continue
		}
		w := walk{in: in, m: m, most: most}
		if err := w.folder(".", nil, nil); err != nil {
			return &policy.FieldError{Field: "dirs", Value: fmt.Sprintf("%.200q", m.Host), Reason: err.Error()}
		}
	}
	// They live in the machine's memory, of which half may be files.
	if need := int(in.bytes>>20)*2 + fileOverheadMB; in.bytes > 0 && need > memoryMB {
		return &policy.FieldError{Field: "memoryMb", Value: strconv.Itoa(memoryMB), Reason: fmt.Sprintf("has no room for %d MiB of files: %d would do", in.bytes>>20, need)}
	}
	return nil
}

// fileOverheadMB is what is left for the rest.
const fileOverheadMB = 64

// add lists a regular file.
func (m *mount) add(in *inputs, to string, st fs.FileInfo, kept bool, open func() (*os.File, error)) {
	mode := fs.FileMode(0o644)
	if st.Mode()&0o100 != 0 {
		mode = 0o755
	}
	in.entries = append(in.entries, input{guest.File{Path: to, Mode: mode, Size: st.Size(), ModTime: st.ModTime()}, open, kept})
	in.bytes += st.Size()
}

// walk lists a folder.
type walk struct {
	in   *inputs
	m    *mount
	most int64
	used int64
}

// folder lists the folder at rel, whose path's parts are given, below the mount.
func (w *walk) folder(rel string, parts []string, ignore []gitignore.Pattern) error {
	if len(parts) > maxDepth {
		return fmt.Errorf("%q lies more than %d folders deep", rel, maxDepth)
	}
	w.in.entries = append(w.in.entries, input{File: guest.File{Path: path.Join(w.m.Guest, rel), Mode: fs.ModeDir | 0o755}})
	dir, err := w.m.root.Open(rel)
	if err != nil {
		return fmt.Errorf("%q: %w", rel, plain(err))
	}
	defer dir.Close()
	own, err := w.ignored(path.Join(rel, IgnoreFile), parts)
	if err != nil {
		return err
	}
	ignore = append(slices.Clip(ignore), own...)
	match := gitignore.NewMatcher(ignore)
	for {
		list, err := dir.ReadDir(1024)
		for _, e := range list {
			below := append(slices.Clip(parts), e.Name())
			if len(ignore) > 0 && match.Match(below, e.IsDir()) {
				continue
			}
			if err := w.entry(path.Join(rel, e.Name()), below, ignore); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%q: %w", rel, plain(err))
		}
	}
}

// ignored reads a folder's IgnoreFile, if it has one.
func (w *walk) ignored(name string, domain []string) (list []gitignore.Pattern, err error) {
	f, err := w.m.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, plain(err))
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxIgnore+1))
	if err != nil || len(text) > maxIgnore {
		return nil, fmt.Errorf("%q can't be read, or has more than %d bytes", name, maxIgnore)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
			list = append(list, gitignore.ParsePattern(line, domain))
		}
	}
	return list, nil
}

func (w *walk) entry(rel string, parts []string, ignore []gitignore.Pattern) error {
	if len(w.in.entries) >= maxInputs {
		return fmt.Errorf("has more than %d files: %s names what is not needed", maxInputs, IgnoreFile)
	}
	st, err := w.m.root.Lstat(rel)
	if err != nil {
		return fmt.Errorf("%q: %w", rel, plain(err))
	}
	to := path.Join(w.m.Guest, rel)
	if len(to) > maxPath {
		return fmt.Errorf("%.80q…: its path inside has more than %d bytes", rel, maxPath)
	}
	switch st.Mode().Type() {
	case 0:
		if w.used += st.Size(); w.used > w.most {
			return fmt.Errorf("has more than %d bytes: --dir-max allows more, %s names what is not needed", w.most, IgnoreFile)
		}
		w.m.add(w.in, to, st, false, func() (*os.File, error) { return w.m.root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0) })
	case fs.ModeDir:
		return w.folder(rel, parts, ignore)
	case fs.ModeSymlink:
		target, err := w.link(rel)
		if err != nil {
			return fmt.Errorf("%q is a link that %w: %s can leave it out", rel, err, IgnoreFile)
		}
		w.in.entries = append(w.in.entries, input{File: guest.File{Path: to, Mode: fs.ModeSymlink, Target: target}})
	default:
		return fmt.Errorf("%q is a %s, which can't be given: %s can leave it out", rel, kindOf(st.Mode()), IgnoreFile)
	}
	return nil
}

// link returns a link's target for the guest, if the link stays inside of the mount.
func (w *walk) link(rel string) (string, error) {
	target, err := w.m.root.Readlink(rel)
	if err != nil {
		return "", plain(err)
	}
	if len(target) > maxPath {
		return "", errors.New("is too long")
	}
	inside, where := target, path.Join(path.Dir(rel), target)
	if filepath.IsAbs(target) { // the same place inside, where the folder may have another path
		where = ".."
		for _, base := range []string{w.m.Host, w.m.Real} {
			if policy.Within(base, path.Clean(target)) {
				where, _ = filepath.Rel(base, path.Clean(target))
				inside = path.Join(w.m.Guest, where)
			}
		}
	}
	if !filepath.IsLocal(where) {
		return "", fmt.Errorf("leads out of the folder, to %.200q", target)
	}
	if _, err := w.m.root.Stat(where); err != nil && !errors.Is(err, fs.ErrNotExist) { // by way of another link
		return "", fmt.Errorf("leads to %.200q: %w", target, plain(err))
	}
	return inside, nil
}

// kernel is the kernel for a run that asks for one, or for none: Nanos takes no name
// that is not UTF-8.
func (in *inputs) kernel(k image.Kernel) (image.Kernel, error) {
	if k == image.Linux {
		return k, nil
	}
	for _, e := range in.entries {
		if utf8.ValidString(e.Path) {
			continue
		}
		if k != "" {
			return k, &policy.FieldError{Field: "dirs", Value: fmt.Sprintf("%.200q", e.Path), Reason: "has a name that is not UTF-8 text, which the " + string(k) + " kernel can't hold: use linux, or leave it out with " + IgnoreFile}
		}
		return image.Linux, nil
	}
	return k, nil
}

// put sends everything into the guest.
func (in *inputs) put(ctx context.Context, conn *guest.Conn) error {
	for _, e := range in.entries {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := e.put(conn); err != nil {
			return err
		}
	}
	return nil
}

func (e input) put(conn *guest.Conn) error {
	if e.open == nil {
		return conn.Put(e.File, nil)
	}
	f, err := e.open()
	if err != nil {
		return &guest.ContentError{Path: e.Path, Err: err}
	}
	st, err := f.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Size() != e.Size) {
		err = errors.New("it was changed meanwhile")
	}
	if err == nil {
		err = conn.Put(e.File, io.NewSectionReader(f, 0, e.Size))
	} else {
		err = &guest.ContentError{Path: e.Path, Err: err}
	}
	if !e.kept {
		f.Close()
	}
	return err
}

// at says that a mount brings something to a path.
func (in *inputs) at(p string) bool {
	return slices.ContainsFunc(in.entries, func(e input) bool { return e.Path == p })
}

// under says that a path lies in a folder that is mounted.
func (in *inputs) under(p string) bool {
	return slices.ContainsFunc(in.mounts, func(m *mount) bool { return m.root != nil && policy.Within(m.Guest, p) })
}

// paths are where the mounts are.
func (in *inputs) paths() (list []string) {
	for _, m := range in.mounts {
		list = append(list, m.Guest)
	}
	return list
}

// patience is how long it may take to send it all.
func (in *inputs) patience() time.Duration {
	return time.Duration(in.bytes>>20)*time.Second + time.Duration(len(in.entries))*10*time.Millisecond
}

func (in *inputs) close() {
	for _, m := range in.mounts {
		m.close()
	}
}

func (m *mount) close() {
	if m.file != nil {
		m.file.Close()
	}
	if m.root != nil {
		m.root.Close()
	}
	m.file, m.root = nil, nil
}
