package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/session"
)

// fileInfo is an entry in an answer.
type fileInfo struct {
	Path     string    `json:"path"`
	Kind     string    `json:"kind"`
	Size     int64     `json:"size"`
	Mode     string    `json:"mode"`
	Modified time.Time `json:"modified"`
	Owner    string    `json:"owner"`
	Group    string    `json:"group"`
	Target   string    `json:"target,omitempty"`
}

func infoOf(is session.FileInfo) fileInfo {
	kind := "other"
	switch is.Mode.Type() {
	case 0:
		kind = "file"
	case fs.ModeDir:
		kind = "folder"
	case fs.ModeSymlink:
		kind = "link"
	}
	return fileInfo{is.Path, kind, is.Size, fmt.Sprintf("%04o", is.Mode.Perm()), is.ModTime.UTC(), is.Owner, is.Group,
		is.Target}
}

// files returns the files of the path's session as a user sees them. names are checked.
func (s *Server) files(c *call, user string, names ...string) (*session.Files, error) {
	for _, name := range names {
		if strings.ContainsRune(name, 0) {
			return nil, policy.Bad("path", fmt.Sprintf("%.80q", name), "has a NUL byte")
		}
	}
	of, err := s.session(c)
	if err != nil {
		return nil, err
	}
	return of.FilesAs(cmp.Or(user, "user"))
}

// named returns the error of an operation on a file with only the caller's name for the file. An absolute path in the
// original error may be the host's, and would be hidden. Other errors stay as they are.
func named(c *call, name string, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	p := problemOf(err)
	if p.Code != "file" { // such as the host's
		return err
	}
	p.Detail = quoted(name) + ": " + errno.Error()
	switch {
	case errors.Is(err, fs.ErrPermission):
		p.Remedy = "take a folder of the code's user, such as /work, or user root in a session with root"
	case !errors.Is(err, syscall.ENOSPC):
		p.Remedy = "GET /v1/sessions/" + c.text("id") + "/files/list shows what is there"
	}
	return p
}

// entry answers with an entry.
func entry(status int, info session.FileInfo, err error) (*answer, error) {
	return &answer{Status: status, Body: infoOf(info)}, err
}

func (s *Server) statFile(c *call) (*answer, error) {
	of, err := s.files(c, c.text("user"), c.text("path"))
	if err != nil {
		return nil, err
	}
	info, err := of.Stat(c.r.Context(), c.text("path"))
	return entry(http.StatusOK, info, named(c, c.text("path"), err))
}

func (s *Server) listFiles(c *call) (*answer, error) {
	of, err := s.files(c, c.text("user"), c.text("path"))
	if err != nil {
		return nil, err
	}
	name := cmp.Or(c.text("path"), ".")
	list, more, err := of.List(c.r.Context(), name, int(c.number("depth", 1)))
	entries := make([]fileInfo, 0, len(list))
	for _, info := range list {
		entries = append(entries, infoOf(info))
	}
	return &answer{Body: map[string]any{"entries": entries, "more": more}}, named(c, name, err)
}

func (s *Server) removeFile(c *call) (*answer, error) {
	of, err := s.files(c, c.text("user"), c.text("path"))
	if err != nil {
		return nil, err
	}
	err = of.Remove(c.r.Context(), c.text("path"))
	return &answer{Status: http.StatusNoContent}, named(c, c.text("path"), err)
}

func (s *Server) moveFile(c *call) (*answer, error) {
	var in struct{ From, To, User string }
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	of, err := s.files(c, in.User, in.From, in.To)
	if err != nil {
		return nil, err
	}
	info, err := of.Move(c.r.Context(), in.From, in.To)
	return entry(http.StatusOK, info, named(c, in.From+" to "+in.To, err))
}

func (s *Server) makeFolder(c *call) (*answer, error) {
	var in struct{ Path, User string }
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	of, err := s.files(c, in.User, in.Path)
	if err != nil {
		return nil, err
	}
	info, err := of.MakeDir(c.r.Context(), in.Path)
	return entry(http.StatusCreated, info, named(c, in.Path, err))
}

// hostile sets the headers of an answer whose bytes come from a machine: a browser saves them, and never shows them.
func hostile(h http.Header, kind, name string) {
	h.Set("Content-Type", kind)
	h.Set("Content-Disposition", cmp.Or(mime.FormatMediaType("attachment", map[string]string{"filename": name}),
		"attachment"))
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
}

// span is a part of a file, in bytes; length -1 is the rest.
type span struct{ from, length int64 }

// errEnough ends the reading of a part of a file.
var errEnough = errors.New("that is the part")

// partWriter sends the header of an answer with its first bytes, because an error before them has its own. It ends with
// errEnough after a part's bytes.
type partWriter struct {
	w      http.ResponseWriter
	begin  func() // sends the header
	began  bool
	length int64 // bytes that are left; negative means any number
}

func (p *partWriter) start() {
	if !p.began {
		p.began = true
		p.begin()
	}
}

func (p *partWriter) Write(text []byte) (int, error) {
	p.start()
	all := len(text)
	if p.length >= 0 {
		text = text[:min(int64(len(text)), p.length)]
		p.length -= int64(len(text))
	}
	if n, err := p.w.Write(text); err != nil {
		return n, err
	}
	if p.length == 0 {
		return all, errEnough
	}
	return all, nil
}

// finish ends an answer that began with p. An error after its first bytes ends the connection: a half of a file must
// not look like a whole one.
func (p *partWriter) finish(err error) (*answer, error) {
	switch {
	case err == nil, errors.Is(err, errEnough):
		p.start()
	case !p.began:
		return nil, err
	default:
		panic(http.ErrAbortHandler)
	}
	return nil, nil
}

func (s *Server) readFile(c *call) (*answer, error) {
	name := c.text("path")
	of, err := s.files(c, c.text("user"), name)
	if err != nil {
		return nil, err
	}
	box, err := s.session(c)
	if err != nil {
		return nil, err
	}
	part, status := span{int64(c.number("offset", 0)), int64(c.number("length", -1))}, http.StatusOK
	h := c.w.Header()
	ranged := false
	whole := len(box.Policy.Effective.Secrets) == 0 // else redaction changes sizes
	if !whole && part.from > 0 {
		return nil, &Problem{Status: http.StatusConflict, Code: "secrets",
			Detail: "a session with secrets sends files from their beginning: a secret that begins before the offset would show",
			Remedy: "leave offset out"}
	}
	if text := c.text("Range"); text != "" && whole && part == (span{0, -1}) {
		if part, ranged, err = s.rangeOf(c.r.Context(), of, name, text, h); err != nil {
			return nil, named(c, name, err)
		}
	}
	if ranged {
		status = http.StatusPartialContent
	}
	out := &partWriter{w: c.w, length: part.length, begin: func() {
		hostile(h, "application/octet-stream", path.Base(name))
		if whole {
			h.Set("Accept-Ranges", "bytes")
		}
		c.w.WriteHeader(status)
	}}
	shown := box.RedactTo(out)
	err = of.Read(c.r.Context(), name, part.from, shown)
	if err == nil {
		err = shown.Close()
	}
	if err != nil && !errors.Is(err, errEnough) {
		h.Del("Content-Range")
	}
	return out.finish(named(c, name, err))
}

// rangeOf returns the part of a file that a Range header names, and sets Content-Range. ok is false for a header that
// is ignored: of other units, or with several ranges.
func (s *Server) rangeOf(ctx context.Context, of *session.Files, name, text string, h http.Header) (part span, ok bool,
	err error) {
	spec, is := strings.CutPrefix(text, "bytes=")
	first, last, two := strings.Cut(spec, "-")
	from, badFrom := strconv.ParseUint(first, 10, 62)
	to, badTo := strconv.ParseUint(last, 10, 62)
	if !is || !two || badFrom != nil && first != "" || badTo != nil && last != "" || first == "" && last == "" ||
		first != "" && last != "" && to < from {
		return span{0, -1}, false, nil
	}
	info, err := of.Stat(ctx, name)
	if err == nil && info.Target != "" {
		info, err = of.Stat(ctx, info.Target)
	}
	if err != nil {
		return part, false, err
	}
	size := uint64(max(0, info.Size))
	switch {
	case first == "": // the last bytes
		from, to = size-min(to, size), size-1
	case last == "" || to >= size:
		to = size - 1
	}
	if from >= size {
		h.Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		return part, false, &Problem{Status: http.StatusRequestedRangeNotSatisfiable, Code: "range",
			Detail: fmt.Sprintf("the file has %d bytes", size)}
	}
	h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, size))
	return span{int64(from), int64(to - from + 1)}, true, nil
}

// Limits of uploads.
const (
	maxUpload   = 4 << 30     // bytes; the machine's memory bounds it earlier
	uploadGrace = time.Minute // before a client must have brought uploadRate
	uploadRate  = 16 << 10    // bytes a second
)

// upload is the body of a request, which must come at a rate, and is bounded.
type upload struct {
	from    io.Reader
	control *http.ResponseController
	until   time.Time // when the next bytes must be there
	body    io.Closer
	closed  atomic.Bool
}

func newUpload(c *call, most int64) *upload {
	return &upload{from: http.MaxBytesReader(c.w, c.r.Body, most), control: http.NewResponseController(c.w),
		until: time.Now().Add(uploadGrace), body: c.r.Body}
}

// Close ends the upload. The connection is the server's then.
func (u *upload) Close() error {
	u.closed.Store(true)
	return u.body.Close()
}

func (u *upload) Read(p []byte) (int, error) {
	if u.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	begin := time.Now()
	_ = u.control.SetReadDeadline(u.until)
	n, err := u.from.Read(p)
	_ = u.control.SetReadDeadline(time.Time{})
	// The machine's time is not the client's: only the time of reads counts, which until allows.
	u.until = u.until.Add(time.Duration(n) * time.Second / uploadRate)
	if most := begin.Add(uploadGrace); u.until.After(most) {
		u.until = most
	}
	return n, err
}

// uploaded returns the error of an upload.
func uploaded(err error) error {
	if errors.As(err, new(*http.MaxBytesError)) {
		return wrong(http.StatusRequestEntityTooLarge, "the body has more bytes than it may")
	}
	return err
}

func (s *Server) writeFile(c *call) (*answer, error) {
	of, err := s.files(c, c.text("user"), c.text("path"))
	if err != nil {
		return nil, err
	}
	mode, err := strconv.ParseUint(cmp.Or(c.text("mode"), "644"), 8, 12)
	if err != nil {
		return nil, err
	}
	info, err := of.Write(c.r.Context(), c.text("path"), newUpload(c, maxUpload), fs.FileMode(mode).Perm(), nil)
	return entry(http.StatusOK, info, named(c, c.text("path"), uploaded(err)))
}

func (s *Server) watchFiles(c *call) (*answer, error) {
	of, err := s.files(c, c.text("user"), c.text("path"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	var mu sync.Mutex
	began := false
	control := http.NewResponseController(c.w)
	write := func(format string, values ...any) {
		mu.Lock()
		defer mu.Unlock()
		if !began {
			return
		}
		_, err := fmt.Fprintf(c.w, format, values...)
		if err != nil || control.Flush() != nil {
			cancel()
		}
	}
	beats := time.NewTicker(heartbeat)
	defer beats.Stop()
	over := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() {
		for {
			select {
			case <-beats.C:
				write(":\n\n")
			case <-over:
				return
			}
		}
	})
	err = of.Watch(ctx, cmp.Or(c.text("path"), "."), c.is("recursive", false), func() {
		mu.Lock()
		began = true
		c.w.Header().Set("Content-Type", "text/event-stream")
		c.w.Header().Set("Cache-Control", "no-store")
		c.w.WriteHeader(http.StatusOK)
		mu.Unlock()
		write("event: ready\ndata: {}\n\n")
	}, func(e session.FileEvent) {
		if e.Kind == "overflow" {
			write("event: overflow\ndata: {}\n\n")
			return
		}
		write("event: change\ndata: %s\n\n", asJSON(map[string]string{"name": e.Name, "kind": e.Kind}))
	})
	close(over)
	beating.Wait()
	if began { // its end tells all
		return nil, nil
	}
	return nil, named(c, cmp.Or(c.text("path"), "."), err)
}
