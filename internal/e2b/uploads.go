package e2b

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// The files of COPY steps come before the build, by a URL that needs no key. The server keeps them in unnamed files,
// which disappear when it ends.

// Limits of the files for builds.
const (
	maxUploaded     = 1 << 30 // bytes of one archive
	maxUploadedAll  = 4 << 30 // bytes of one caller's archives
	maxUploadedEach = 100     // archives of one caller
	minFree         = 1 << 30 // bytes that archives leave free on the disk
	uploadedTime    = time.Hour
	uploadPause     = time.Minute // in which more of an archive must come
	uploadRate      = 16 << 10    // bytes a second, on average
	uploadPath      = "/templates/uploads/"
)

// uploads are the archives of all callers.
type uploads struct {
	mu    sync.Mutex
	list  []*archive
	timer *time.Timer // removes old ones
}

// archive is a tar of files, or a place for one.
type archive struct {
	owner, hash, token string
	began              time.Time
	content            *os.File // nil until it has come whole
	size               int64
	coming             bool // it is being uploaded
}

// offer returns the token to upload an archive with, and whether it is here already.
func (u *uploads) offer(owner, hash string) (token string, present bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expire()
	own, oldest := 0, time.Now()
	for _, one := range u.list {
		if one.owner == owner && one.hash == hash {
			if one.content != nil {
				one.began = time.Now() // the build that asks needs it
			}
			return one.token, one.content != nil, nil
		}
		if one.owner == owner {
			own++
			if one.began.Before(oldest) {
				oldest = one.began
			}
		}
	}
	if own >= maxUploadedEach {
		return "", false, &unitask.BusyError{After: time.Until(oldest.Add(uploadedTime)),
			What: fmt.Sprintf("you have uploaded %d archives for builds, which is the most; "+
				"each is removed an hour after its last use", own)}
	}
	one := &archive{owner: owner, hash: hash, token: newToken() + newToken(), began: time.Now()}
	u.list = append(u.list, one)
	return one.token, false, nil
}

// expire removes old archives; u.mu is held.
func (u *uploads) expire() {
	kept := u.list[:0]
	for _, one := range u.list {
		if time.Since(one.began) < uploadedTime || one.coming {
			kept = append(kept, one)
		} else if one.content != nil {
			_ = one.content.Close()
		}
	}
	clear(u.list[len(kept):])
	if u.list = kept; len(kept) == 0 {
		return
	}
	if u.timer != nil {
		u.timer.Stop()
	}
	u.timer = time.AfterFunc(uploadedTime, func() { // they are on the disk, also if nobody asks any more
		u.mu.Lock()
		defer u.mu.Unlock()
		u.expire()
	})
}

// of returns the place of a token, nil if there is none.
func (u *uploads) of(token string) *archive {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, one := range u.list {
		if equal(token, one.token) && (one.coming || time.Since(one.began) < uploadedTime) {
			return one
		}
	}
	return nil
}

// reserve makes room for an archive of a size, and removes the one that was there. The disk has that many bytes free.
func (u *uploads) reserve(one *archive, size, free int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	left := int64(maxUploadedAll)
	for _, other := range u.list {
		if other.coming {
			free -= other.size
		}
		if other.owner == one.owner && other != one {
			left -= other.size
		}
	}
	switch {
	case one.coming:
		return &unitask.BusyError{What: "this archive is being uploaded", After: time.Second}
	case size > min(left, maxUploaded):
		return fmt.Errorf("an archive has %d bytes at most, yours together %d: %w", int64(maxUploaded), int64(maxUploadedAll),
			syscall.ENOSPC)
	}
	if size > 0 && free-size < minFree {
		return fmt.Errorf("the server's disk has no room for an archive of %d bytes: %w", size, syscall.ENOSPC)
	}
	if one.content != nil {
		_ = one.content.Close()
	}
	one.content, one.size, one.began, one.coming = nil, size, time.Now(), true
	return nil
}

// put sets the content of a place, nil if it did not come whole.
func (u *uploads) put(one *archive, content *os.File) {
	u.mu.Lock()
	defer u.mu.Unlock()
	one.content, one.began, one.coming = content, time.Now(), false
	if content == nil {
		one.size = 0
	}
	u.expire()
}

// open returns a caller's archive, and its size. The caller closes it: the archive itself may be removed meanwhile.
func (u *uploads) open(owner, hash string) (content *os.File, size int64, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, one := range u.list {
		if one.owner == owner && one.hash == hash && one.content != nil {
			fd, err := unix.FcntlInt(one.content.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return nil, 0, &unitask.HostError{Op: "open the archive", Err: err}
			}
			one.began = time.Now()
			return os.NewFile(uintptr(fd), "archive"), one.size, nil
		}
	}
	return nil, 0, fmt.Errorf("files %.80q have not been uploaded, or were last used more than %s ago: %w", hash,
		uploadedTime, fs.ErrNotExist)
}

// uploadLink tells where the files of a COPY step go.
func (s *Server) uploadLink(w http.ResponseWriter, r *http.Request) {
	hash := r.PathValue("hash")
	if len(hash) > 128 {
		s.fail(w, r, policy.Bad("hash", fmt.Sprintf("of %d bytes", len(hash)), "has at most 128"))
		return
	}
	token, present, err := s.uploads.offer(s.opts.Caller(r).Name, hash)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	to := scheme + "://" + r.Host + uploadPath + token
	writeJSON(w, http.StatusCreated, map[string]any{"present": present, "url": to})
}

// uploader returns the caller to whom the URL of an upload belongs, "" for another URL.
func (s *Server) uploader(r *http.Request) string {
	if token, is := strings.CutPrefix(r.URL.Path, uploadPath); is {
		if one := s.uploads.of(token); one != nil {
			return one.owner
		}
	}
	return ""
}

// takeUpload takes the files of a COPY step.
func (s *Server) takeUpload(w http.ResponseWriter, r *http.Request) {
	one := s.uploads.of(r.PathValue("token"))
	if one == nil {
		writeError(w, http.StatusNotFound, "there is no such upload: ask for its URL again")
		return
	}
	if r.ContentLength < 0 {
		writeError(w, http.StatusLengthRequired, "the archive needs a Content-Length")
		return
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.opts.Runtime.Images().Home(), &st); err != nil {
		s.fail(w, r, &unitask.HostError{Op: "store the archive", Err: err})
		return
	}
	if err := s.uploads.reserve(one, r.ContentLength, int64(st.Bavail)*int64(st.Bsize)); err != nil {
		s.fail(w, r, err)
		return
	}
	content, err := s.receive(w, r)
	s.uploads.put(one, content)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// receive returns a file with the body of a request, which has Content-Length bytes.
func (s *Server) receive(w http.ResponseWriter, r *http.Request) (*os.File, error) {
	content, err := s.unnamed()
	if err != nil {
		return nil, &unitask.HostError{Op: "store the archive", Err: err}
	}
	from := &steadyBody{from: r.Body, control: http.NewResponseController(w), began: time.Now()}
	if _, err = io.Copy(content, from); err == nil {
		return content, nil
	}
	_ = content.Close()
	if from.failed == nil { // else it is the client's error
		return nil, &unitask.HostError{Op: "store the archive", Err: err}
	}
	return nil, policy.Bad("archive", "incomplete", "did not come whole: each minute something must come, and %d bytes "+
		"a second on average", uploadRate)
}

// steadyBody is a body that must come at a rate: its place is the caller's meanwhile.
type steadyBody struct {
	from    io.Reader
	control *http.ResponseController
	began   time.Time
	bytes   int64
	failed  error
}

func (b *steadyBody) Read(p []byte) (int, error) {
	until := b.began.Add(uploadPause + time.Duration(b.bytes/uploadRate)*time.Second)
	if soon := time.Now().Add(uploadPause); soon.Before(until) {
		until = soon
	}
	_ = b.control.SetReadDeadline(until)
	n, err := b.from.Read(p)
	_ = b.control.SetReadDeadline(time.Time{})
	if b.bytes += int64(n); err != nil && err != io.EOF {
		b.failed = err
	}
	return n, err
}

// unnamed returns a new file in the home that has no name.
func (s *Server) unnamed() (*os.File, error) {
	f, err := os.CreateTemp(s.opts.Runtime.Images().Home(), ".upload-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
