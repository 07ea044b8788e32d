package session

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"syscall"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/policy"
)

// Sessions of container images. Commands have the user, the variables and the working folder of the image, and its
// entry point does not run. Steps go to the image's own interpreters, which it may lack.

// containerTrustFile is trustFile in a container image: its user may have no home.
const containerTrustFile = supervisor.DriverDir + "ca.pem"

// OfContainer reports whether the session's image is a container's.
func (s *Session) OfContainer() bool {
	im := s.made.Code.Image
	return im != nil && im.Payload.Container
}

// containerSteps returns the language of steps that name none: the one of a name, shell for "".
func containerSteps(name string) (*language.Language, error) {
	if name == "" {
		name = "shell"
	}
	l, _, err := language.Named(name)
	if err != nil {
		return nil, policy.Bad("language", fmt.Sprintf("%.40q", name), "%v", err)
	}
	return l, nil
}

// containerFiles returns the folders that a session adds to a container image, and the library with which the image's
// Node survives a fork. The image's own working folder stays as it is.
func (s *Session) containerFiles(arch image.Arch) (list []program.File) {
	for _, dir := range []string{contract.WorkDir, supervisor.DriverDir} {
		list = append(list, program.File{File: guest.File{Path: path.Clean(dir), Mode: fs.ModeDir | 0o755, User: true}})
	}
	if library := s.manager.Engine.Images.Parts().NodeLibrary(arch); library != "" {
		list = append(list, program.TextFile(contract.Library, library))
	}
	return list
}

// lacks returns the error of a step whose interpreter did not start.
func (s *Session) lacks(l supervisor.Language, err error) error {
	if s.OfContainer() && errors.Is(err, syscall.ENOENT) {
		return policy.Bad("language", l.Name, "can't be run in this session: the image %s has no %s; name another language, "+
			"or run commands, which work", s.Image, l.Args[0])
	}
	return policy.Bad("language", l.Name,
		"can't be run in this session, which has the %s image: %v; its other interpreters continue", s.Image, err)
}

// copies returns the error of a command of the image that copies folders and did not start.
func (s *Session) copies(name string, err error) error {
	var failed *supervisor.StartError
	if s.OfContainer() && errors.As(err, &failed) {
		return fmt.Errorf("copy %s: the image %s has no %s, which copies folders in it: copy single files", name, s.Image,
			failed.Name)
	}
	return fmt.Errorf("copy %s: %w", name, err)
}
