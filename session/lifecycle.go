package session

import (
	"context"
	"io/fs"
	"maps"
	"slices"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/approval"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// sessionRun is the view of a session for its run.
type sessionRun struct{ *Session }

// Prepare implements engine.Session.
func (s sessionRun) Prepare() (p engine.Prepared, begins bool, err error) {
	switch {
	case s.from != nil:
		s.made = s.from.run(s.Session)
	case s.revived != nil:
		s.made, err = s.revived.prepare(s.manager, s.Session)
	default:
		return p, true, nil
	}
	return s.made, false, err
}

// Begin implements engine.Session.
func (s sessionRun) Begin(p *engine.Prepared) {
	p.Granted.Denials = append(p.Granted.Denials, s.denials...)
	s.made = *p
}

// Record implements engine.Session.
func (s sessionRun) Record() *record.Run {
	if s.revived == nil {
		return nil
	}
	s.revived.taken = true
	return s.revived.rec
}

// ParentID implements engine.Session.
func (s sessionRun) ParentID() string { return s.Parent }

// ImageDigest implements engine.Session.
func (s sessionRun) ImageDigest() string {
	if s.revived == nil {
		return ""
	}
	return s.revived.digest
}

// Continue implements engine.Session.
func (s sessionRun) Continue() func(context.Context, machine.Spec, machine.Config) (*machine.Machine, error) {
	switch {
	case s.from != nil:
		return s.from.get(s.manager.Engine.Source)
	case s.revived != nil:
		return s.revived.continueFrom(s.manager.Engine.Source)
	}
	return nil
}

// Traffic implements engine.Session.
func (s sessionRun) Traffic() (up, down int64) {
	if s.revived == nil {
		return 0, 0
	}
	return s.revived.kept.BytesUp, s.revived.kept.BytesDown
}

// Serve implements engine.Session.
func (s sessionRun) Serve(ctx context.Context, x *engine.Execution, conn *guest.Conn) error {
	return s.serve(ctx, x, conn)
}

// Left implements engine.Session.
func (s sessionRun) Left() bool { return s.left || s.revived != nil && s.ID == "" }

// Approver implements engine.Session.
func (s sessionRun) Approver() run.Approver { return s.askers.ask }

// Stand implements engine.Session.
func (s sessionRun) Stand(ctx context.Context) (approval.Clock, func(), error) {
	return s.standing(ctx)
}

// KeepChanges implements engine.Session.
func (s sessionRun) KeepChanges(id string, all []run.PolicyChange) error {
	return paused.Open(s.manager.Engine.Home).WriteChanges(id, all)
}

// Files implements program.Supervisor: the drivers, in addition to the inputs.
func (s sessionRun) Files(p *program.Program) []program.File {
	// The folder belongs to the user, also if a folder of the host is placed there.
	files := []program.File{{File: guest.File{Path: p.Dir, Mode: fs.ModeDir | 0o755, User: true}}}
	if p.Image.Payload.Container {
		files = s.containerFiles(p.Arch)
	}
	files = append(files, p.Beside()...)
	if p.InOneProcess() {
		l := s.driver()
		return append(
			files,
			program.TextFile(l.Path, l.Driver),
			program.File{File: guest.File{Path: contract.MainLink, Mode: fs.ModeSymlink, Target: l.Path}, Content: ""},
		)
	}
	for _, l := range supervisor.Languages {
		files = append(files, program.TextFile(l.Path, l.Driver))
	}
	return files
}

// DriverPath implements program.Supervisor.
func (s sessionRun) DriverPath() string { return s.driver().Path }

// Started implements program.Supervisor.
func (s sessionRun) Started(env map[string]string, ca, dir string) {
	s.ca, s.dir, s.env = ca, dir, nil // a clone that did not answer may have had them before
	for _, name := range slices.Sorted(maps.Keys(env)) {
		s.env = append(s.env, name+"="+env[name])
	}
}
