package httpapi

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/hostfiles"
)

// Limits of folders on their way, which are on the host's disk meanwhile.
const (
	maxFolders   = 8 // at once, of all callers
	maxFoldersOf = 2 // of one caller
	tarType      = "application/x-tar"
)

// asJSON returns a value in JSON.
func asJSON(value any) []byte {
	text, _ := json.Marshal(value)
	return text
}

// folderError returns the problem of a folder that can't be copied.
func folderError(err error) error {
	if one := new(hostfiles.FolderError); errors.As(err, &one) {
		return &Problem{Status: http.StatusUnprocessableEntity, Code: "folder", Detail: one.Error()}
	}
	return err
}

// enterFolder begins the copy of a folder.
func (s *Server) enterFolder(c *call) (leave func(), err error) {
	if strings.ContainsRune(c.text("path"), 0) {
		return nil, wrong(http.StatusUnprocessableEntity, "the path has a NUL byte")
	}
	return s.sessions.folders.take(c.caller.Name, maxFolders, maxFoldersOf, "folders on their way")
}

func (s *Server) readFolder(c *call) (*answer, error) {
	of, err := s.session(c)
	if err != nil {
		return nil, err
	}
	if len(of.Policy.Effective.Secrets) > 0 {
		return nil, &Problem{Status: http.StatusConflict, Code: "secrets",
			Detail: "a session with secrets sends no folders: their files would not be redacted",
			Remedy: "GET /v1/sessions/" + of.ID + "/files reads one file"}
	}
	leave, err := s.enterFolder(c)
	if err != nil {
		return nil, err
	}
	defer leave()
	name := c.text("path")
	out := &partWriter{w: c.w, length: -1, begin: func() {
		hostile(c.w.Header(), tarType, path.Base(name)+".tar")
		c.w.WriteHeader(http.StatusOK)
	}}
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		_, err := s.recovering(func() (*unitask.Result, error) { return nil, plainTar(r, out) }, func(error) {})
		r.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		sent <- err
	}()
	err = of.Send(c.r.Context(), name, w)
	w.CloseWithError(err)
	if e := <-sent; err == nil {
		err = e
	}
	return out.finish(named(c, name, folderError(err)))
}

// errCut means that a folder's tar did not come whole.
var errCut = errors.New("the folder was cut off on its way")

// plainTar turns the tar of hostfiles.SendFolder into one with the folder's contents alone.
func plainTar(from io.Reader, to io.Writer) error {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	for {
		h, err := in.Next()
		if err != nil {
			if err == io.EOF {
				err = errCut
			}
			return err
		}
		if h.Name == hostfiles.FolderWhole {
			if err := out.Close(); err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, from)
			return err
		}
		h.Name = strings.TrimPrefix(h.Name, hostfiles.FolderName+"/")
		if h.Name == "" { // the folder itself
			h.Name = "./"
		}
		delete(h.PAXRecords, "path")
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}

func (s *Server) writeFolder(c *call) (*answer, error) {
	sent := c.r.Header.Get("Content-Type") // many clients send files without one
	if kind, _, err := mime.ParseMediaType(sent); sent != "" && (err != nil || kind != tarType) {
		return nil, wrong(http.StatusUnsupportedMediaType, "the body's Content-Type is not "+tarType)
	}
	of, err := s.session(c)
	if err != nil {
		return nil, err
	}
	leave, err := s.enterFolder(c)
	if err != nil {
		return nil, err
	}
	defer leave()
	err = of.Receive(c.r.Context(), c.text("path"), newUpload(c, hostfiles.MaxFolderArchive))
	leave()
	if err == nil {
		return &answer{Status: http.StatusCreated}, nil
	}
	return nil, fmt.Errorf("unpack: %w", folderError(uploaded(err)))
}
