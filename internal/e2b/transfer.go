package e2b

import (
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/unitask/unitask/session"
)

// Limits of uploads.
const (
	maxUpload      = 4 << 30 // bytes of an upload, unpacked; the machine's memory bounds it earlier
	maxUploads     = 1000    // files in one request
	maxComposed    = 1000    // files to join
	metadataPrefix = "X-Metadata-"
	maxAttributes  = 4096 // bytes of a file's metadata
	maxAttribute   = 246  // bytes of a name
)

func newToken() string { return strings.ToLower(rand.Text()) }

// signed reports whether the URL of a request for a file has a valid signature of the sandbox's token.
func (box *sandbox) signed(r *http.Request) bool {
	q := r.URL.Query()
	if r.URL.Path != "/files" || q.Get("signature") == "" {
		return false
	}
	until, err := strconv.ParseInt(q.Get("signature_expiration"), 10, 64)
	if q.Has("signature_expiration") && (err != nil || time.Now().Unix() > until) {
		return false
	}
	return equal(q.Get("signature"), box.signature(r.Method, q))
}

// nobodysID is an id that no sandbox has.
const nobodysID = "unknown"

// signer returns the id of the sandbox whose token signed a URL.
func (s *Server) signer(r *http.Request) string {
	q := r.URL.Query()
	if len(r.URL.RawQuery) > maxPath {
		return nobodysID
	}
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.all))
	s.mu.Unlock()
	for _, box := range all {
		if equal(q.Get("signature"), box.signature(r.Method, q)) {
			return box.id
		}
	}
	return nobodysID
}

// signature returns what the signature of a URL must be.
func (box *sandbox) signature(method string, q url.Values) string {
	operation := "read"
	if method == http.MethodPost {
		operation = "write"
	}
	text := strings.Join([]string{q.Get("path"), operation, q.Get("username"), box.token}, ":")
	if q.Has("signature_expiration") {
		text += ":" + q.Get("signature_expiration")
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// badToken tells why a request to a sandbox's daemon is refused.
func badToken(r *http.Request, box *sandbox) string {
	q := r.URL.Query()
	switch {
	case q.Has("signature_expiration") && equal(q.Get("signature"), box.signature(r.Method, q)):
		return "signature is already expired"
	case q.Has("signature"):
		return "invalid signature"
	}
	return "unauthorized access, please provide a valid access token or method signing if supported"
}

// insideRoutes returns the handler of a sandbox's daemon.
func (s *Server) insideRoutes() http.Handler {
	mux := http.NewServeMux()
	with := []connect.HandlerOption{connect.WithCodec(binaryCodec{}), connect.WithCodec(jsonCodec{"json"}),
		connect.WithCodec(jsonCodec{"json; charset=utf-8"}), connect.WithReadMaxBytes(maxInput)}
	const process, filesystem = "/process.Process/", "/filesystem.Filesystem/"
	mux.Handle(process+"List", connect.NewUnaryHandler(process+"List", s.listProcesses, with...))
	mux.Handle(process+"Start", connect.NewServerStreamHandler(process+"Start", s.start, with...))
	mux.Handle(process+"Connect", connect.NewServerStreamHandler(process+"Connect", s.attach, with...))
	mux.Handle(process+"Update", connect.NewUnaryHandler(process+"Update", s.update, with...))
	mux.Handle(process+"StreamInput", connect.NewClientStreamHandler(process+"StreamInput", s.streamInput, with...))
	mux.Handle(process+"SendInput", connect.NewUnaryHandler(process+"SendInput", s.sendInput, with...))
	mux.Handle(process+"SendSignal", connect.NewUnaryHandler(process+"SendSignal", s.sendSignal, with...))
	mux.Handle(process+"CloseStdin", connect.NewUnaryHandler(process+"CloseStdin", s.closeInput, with...))
	mux.Handle(filesystem+"Stat", connect.NewUnaryHandler(filesystem+"Stat", s.stat, with...))
	mux.Handle(filesystem+"MakeDir", connect.NewUnaryHandler(filesystem+"MakeDir", s.makeDir, with...))
	mux.Handle(filesystem+"Move", connect.NewUnaryHandler(filesystem+"Move", s.move, with...))
	mux.Handle(filesystem+"ListDir", connect.NewUnaryHandler(filesystem+"ListDir", s.listDir, with...))
	mux.Handle(filesystem+"Remove", connect.NewUnaryHandler(filesystem+"Remove", s.removeFile, with...))
	mux.Handle(filesystem+"WatchDir", connect.NewServerStreamHandler(filesystem+"WatchDir", s.watchDir, with...))
	mux.Handle(filesystem+"CreateWatcher",
		connect.NewUnaryHandler(filesystem+"CreateWatcher", s.createWatcher, with...))
	mux.Handle(filesystem+"GetWatcherEvents",
		connect.NewUnaryHandler(filesystem+"GetWatcherEvents", s.watcherEvents, with...))
	mux.Handle(filesystem+"RemoveWatcher",
		connect.NewUnaryHandler(filesystem+"RemoveWatcher", s.removeWatcher, with...))
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /envs", func(w http.ResponseWriter, r *http.Request) {
		box := sandboxOf(r.Context())
		writeJSON(w, http.StatusOK, box.environment(defaultUser, nil))
	})
	mux.HandleFunc("GET /metrics", s.daemonMetrics)
	mux.HandleFunc("GET /files", s.download)
	mux.HandleFunc("POST /files", s.upload)
	mux.HandleFunc("POST /files/compose", s.compose)
	return mux
}

// filesOf returns the files that a request over plain HTTP names.
func filesOf(r *http.Request, user string) (*session.Files, string, error) {
	box := sandboxOf(r.Context())
	if user == "" && r.URL.Query().Has("signature") { // it signs the name of the user
		user = box.setup.usual()
	}
	if user == "" {
		var err error
		if user, err = box.userOf(r.Header); err != nil {
			return nil, "", err
		}
	}
	user, err := knownUser(user, nil)
	if err != nil {
		return nil, "", err
	}
	of, err := box.session.FilesAs(user)
	return of, user, err
}

// failFile answers with an error about a file.
func (s *Server) failFile(w http.ResponseWriter, r *http.Request, name string, err error) {
	switch {
	case connect.CodeOf(err) == connect.CodeUnauthenticated:
		writeError(w, http.StatusUnauthorized, err.Error())
	case errors.Is(err, fs.ErrNotExist):
		writeError(w, http.StatusNotFound, fmt.Sprintf("path '%s' does not exist", name))
	case errors.Is(err, syscall.EISDIR):
		writeError(w, http.StatusBadRequest, fmt.Sprintf("path '%s' is a directory", name))
	default:
		s.fail(w, r, err)
	}
}

// download sends a file.
func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	of, user, err := filesOf(r, q.Get("username"))
	if err != nil {
		s.failFile(w, r, "", err)
		return
	}
	name := absolute(q.Get("path"), user)
	if err := checkPath(name); err != nil {
		s.failFile(w, r, name, err)
		return
	}
	out := &lazyBody{w: w, header: func(h http.Header) {
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(name)}))
	}}
	if accepts(r.Header.Get("Accept-Encoding"), "gzip") {
		out.zip = gzip.NewWriter(w)
	}
	switch err := of.Read(r.Context(), name, 0, out); {
	case err == nil:
		_ = out.close()
	case !out.began:
		s.failFile(w, r, name, err)
	default: // a half of a file must not look like a whole one
		panic(http.ErrAbortHandler)
	}
}

// accepts reports whether a client takes an encoding that it names.
func accepts(header, encoding string) bool {
	for part := range strings.SplitSeq(header, ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.EqualFold(name, encoding) && !strings.HasPrefix(strings.TrimSpace(weight), "q=0") {
			return true
		}
	}
	return false
}

// lazyBody sends the header of an answer with its first bytes: an error before them has its own.
type lazyBody struct {
	w      http.ResponseWriter
	zip    *gzip.Writer // nil for none
	header func(http.Header)
	began  bool
}

func (b *lazyBody) begin() {
	if b.began {
		return
	}
	b.began = true
	b.header(b.w.Header())
	if b.zip != nil {
		b.w.Header().Set("Content-Encoding", "gzip")
	}
	b.w.WriteHeader(http.StatusOK)
}

func (b *lazyBody) Write(p []byte) (int, error) {
	b.begin()
	if b.zip != nil {
		return b.zip.Write(p)
	}
	return b.w.Write(p)
}

func (b *lazyBody) close() error {
	b.begin()
	if b.zip != nil {
		return b.zip.Close()
	}
	return nil
}

// uploaded is an uploaded file in an answer.
type uploaded struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// metadataOf returns the metadata in a request's header.
func metadataOf(h http.Header) (map[string]string, error) {
	var all map[string]string
	size := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, metadataPrefix)
		if !ok {
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		key = strings.ToLower(key)
		printable := func(c rune) bool { return c < ' ' || c > '~' }
		if key == "" || len(key) > maxAttribute || strings.ContainsFunc(key+values[0], printable) {
			return nil, fmt.Errorf("metadata %.80q: names of at most %d bytes and values are printable ASCII", key, maxAttribute)
		}
		all[key] = values[0]
		size += len("user.e2b.") + len(key) + len(values[0])
	}
	if size > maxAttributes {
		return nil, fmt.Errorf("the metadata has %d bytes, and %d is the most", size, maxAttributes)
	}
	return all, nil
}

// upload writes the files of a request.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	of, user, err := filesOf(r, q.Get("username"))
	if err != nil {
		s.failFile(w, r, "", err)
		return
	}
	metadata, err := metadataOf(r.Header)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	body, err := bodyOf(w, r)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	done := []uploaded{}
	put := func(name string, from io.Reader) bool {
		name = absolute(name, user)
		err := checkPath(name)
		var info session.FileInfo
		if err == nil {
			info, err = sandboxOf(r.Context()).writeFile(r.Context(), of, user, name, from, metadata)
		}
		if err != nil {
			s.failFile(w, r, name, err)
			return false
		}
		done = append(done, uploaded{path.Base(name), name, "file", info.Metadata})
		return true
	}
	kind, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch kind {
	case "application/octet-stream":
		if q.Get("path") == "" {
			writeError(w, http.StatusBadRequest, "the query needs a path")
			return
		}
		if !put(q.Get("path"), body) {
			return
		}
	case "multipart/form-data":
		if err := eachPart(body, params["boundary"], q.Get("path"), put); err != nil {
			if !errors.Is(err, errAnswered) {
				writeError(w, http.StatusBadRequest, err.Error())
			}
			return
		}
	default:
		writeError(w, http.StatusBadRequest, fmt.Sprintf("content type %.80q: use multipart/form-data, or "+
			"application/octet-stream", kind))
		return
	}
	writeJSON(w, http.StatusOK, done)
}

// errAnswered means that the request has its answer already.
var errAnswered = errors.New("answered")

// eachPart calls put for each file of a form. named, if given, is the path of the only one.
func eachPart(body io.Reader, boundary, named string, put func(string, io.Reader) bool) error {
	form := multipart.NewReader(body, boundary)
	for n := 0; ; n++ {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) && n > 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the form: %w", err)
		}
		_, of, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		name := of["filename"]
		if part.FormName() != "file" {
			continue
		}
		if named != "" {
			name = named
		}
		switch {
		case name == "":
			return errors.New("a file of the form has no name, and the query has no path")
		case n >= maxUploads || n > 0 && named != "":
			return fmt.Errorf("the form has too many files: %d at most, and one with a path in the query", maxUploads)
		case !put(name, part):
			return errAnswered
		}
	}
}

// bodyOf returns the plain bytes of a request's body, bounded.
func bodyOf(w http.ResponseWriter, r *http.Request) (io.Reader, error) {
	body := io.Reader(http.MaxBytesReader(w, r.Body, maxUpload))
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		return body, nil
	case "gzip":
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return nil, fmt.Errorf("the body is not gzip: %w", err)
		}
		return &boundedReader{unzipped, maxUpload}, nil
	default:
		return nil, fmt.Errorf("content encoding %.40q: use gzip, or none", encoding)
	}
}

// boundedReader fails after a number of bytes.
type boundedReader struct {
	io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the body has more than %d bytes", int64(maxUpload))
	}
	return n, err
}

// compose joins files.
func (s *Server) compose(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Sources     []string `json:"source_paths"`
		Destination string   `json:"destination"`
		User        string   `json:"username"`
	}
	if !readBody(w, r, &in) {
		return
	}
	of, user, err := filesOf(r, in.User)
	if err != nil {
		s.failFile(w, r, "", err)
		return
	}
	if len(in.Sources) == 0 || len(in.Sources) > maxComposed || in.Destination == "" {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("give 1 to %d source_paths, and a destination", maxComposed))
		return
	}
	names := make([]string, len(in.Sources))
	for i, name := range in.Sources {
		names[i] = absolute(name, user)
	}
	to := absolute(in.Destination, user)
	if err := checkPath(to); err != nil {
		s.failFile(w, r, to, err)
		return
	}
	info, err := of.Concatenate(r.Context(), names, to)
	if err != nil {
		s.failFile(w, r, to, err)
		return
	}
	writeJSON(w, http.StatusOK, uploaded{path.Base(to), to, "file", info.Metadata})
}

// readSmall reads a file of a sandbox that its kernel makes up.
func (box *sandbox) readSmall(ctx context.Context, name string) (string, error) {
	of, err := box.session.FilesAs(defaultUser)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = of.Read(ctx, name, 0, &limitedWriter{&text, 64 << 10})
	return text.String(), err
}

// limitedWriter drops everything beyond a number of bytes.
type limitedWriter struct {
	to   io.Writer
	left int
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	_, _ = l.to.Write(p[:n])
	return len(p), nil
}
