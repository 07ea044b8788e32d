package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/internal/filelock"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/realpath"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
)

// shortDigest returns twelve digits that stand for a text.
func shortDigest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
}

// hookLock excludes other hooks from the sessions of some names.
func (a *app) hookLock(ctx context.Context, name string) (*filelock.Lock, error) {
	home, err := a.homeFolder()
	if err != nil {
		return nil, err
	}
	return filelock.Wait(ctx, layout.Dir(home).Lock("hook-"+name[len(name)-1:]), func() {})
}

// sessionNamed returns the session with a name, nil if there is none.
func (a *app) sessionNamed(ctx context.Context, name string) (*sessiond.View, error) {
	answer, err := a.asked(ctx, sessiond.Request{Op: sessiond.OpList}, sessiond.Streams{})
	if err != nil && !errors.Is(err, sessiond.ErrNone) {
		return nil, err
	}
	at := slices.IndexFunc(answer.Sessions, func(s sessiond.View) bool { return s.Name == name })
	if at < 0 {
		return nil, nil
	}
	return &answer.Sessions[at], nil
}

// claudeSession returns the session with a name, or makes it, with the project at place.
func (a *app) claudeSession(cmd *cobra.Command, h claudeHook, name, project, place string) (id string, fresh bool,
	err error) {
	ctx := cmd.Context()
	lock, err := a.hookLock(ctx, name)
	if err != nil {
		return "", false, err
	}
	defer lock.Unlock()
	found, err := a.sessionNamed(ctx, name)
	if err != nil {
		return "", false, err
	}
	if found != nil && found.State != sessiond.Lost {
		return found.ID, false, nil
	}
	if found != nil { // its name becomes free
		_, _ = a.asked(ctx, sessiond.Request{Op: sessiond.OpEnd, Session: found.ID}, sessiond.Streams{})
	}
	home, err := a.homeFolder()
	if err == nil {
		err = onlyProject(project, home)
	}
	if err == nil {
		err = os.Chdir(project) // the policy is that of the project's folder
	}
	if err != nil {
		return "", false, err
	}
	req, err := h.run.session(a, cmd, name, "shell")
	if err != nil {
		return "", false, err
	}
	req.LifeMS, req.Project.Host, req.Project.Guest = policy.Millis(h.life), project, place
	answer, err := a.asked(ctx, sessiond.Request{Op: sessiond.OpNew, New: req}, sessiond.Streams{})
	if err != nil {
		return "", false, asFlags(cmd, err)
	}
	if len(answer.Sessions) != 1 {
		return "", false, errors.New("the session daemon named no session")
	}
	for _, d := range answer.Sessions[0].Denials {
		a.ui.note("denied: %s", denial(d))
	}
	return answer.Sessions[0].ID, true, nil
}

// claudeAfter answers PostToolUse: a file of the project that Claude Code wrote goes into the machine, if there is one.
func (a *app) claudeAfter(ctx context.Context, call *claudeCall) error {
	key := "file_path"
	if _, ok := call.Input["notebook_path"]; ok {
		key = "notebook_path"
	}
	name, err := call.text(key)
	if err != nil {
		return err
	}
	project, err := call.project()
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(project, name)
	if err != nil || !filepath.IsLocal(rel) {
		return nil // not a file of the project: the machine has none of these
	}
	session, err := call.name(project)
	if err != nil {
		return err
	}
	found, err := a.sessionNamed(ctx, session)
	if err != nil || found == nil || found.State == sessiond.Lost { // the next machine has the file from its beginning
		return err
	}
	place, err := guestPlace(project)
	if err != nil {
		return err
	}
	if project, err = realpath.Of(project); err != nil {
		return err
	}
	if name, err = realpath.Of(name); err != nil {
		return err
	}
	if rel, err = filepath.Rel(project, name); err != nil || !filepath.IsLocal(rel) {
		return fmt.Errorf("%s is a link that leads out of the project", key)
	}
	root, err := os.OpenRoot(project) // also if a link takes the file's place now
	if err != nil {
		return err
	}
	defer root.Close()
	if in, err := hostfiles.InProject(root, filepath.ToSlash(rel)); err != nil || !in { // .env, and its like
		return errors.Join(err, fmt.Errorf("%s is not for the machine: it is in .git, or a file such as .gitignore names it",
			rel))
	}
	f, err := root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s is no file", rel))
	}
	_, err = a.asked(ctx, sessiond.Request{Op: sessiond.OpWrite, Session: found.ID,
		Path: path.Join(place, filepath.ToSlash(rel)), Mode: uint32(st.Mode().Perm())}, sessiond.Streams{Stdin: f})
	return err
}

// claudeEnds answers SessionEnd, for which Claude Code does not wait: a process of its own ends the session.
func (a *app) claudeEnds(call *claudeCall) error {
	project, err := call.project()
	if err != nil {
		return err
	}
	name, err := call.name(project)
	if err != nil {
		return err
	}
	home, err := a.homeFolder()
	if err != nil {
		return err
	}
	cmd, err := detached(append(a.passOn(home), "hook", "claude-code", "--end", name)...)
	if err != nil {
		return err
	}
	return cmd.Start()
}

// claudeEnd ends a session, after its changes have become a proposal. If they can't, the session lives on.
func (a *app) claudeEnd(ctx context.Context, name string) error {
	lock, err := a.hookLock(ctx, name)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	found, err := a.sessionNamed(ctx, name)
	if err != nil || found == nil {
		return err
	}
	if found.State != sessiond.Lost {
		r, err := a.review(ctx, found.ID, nil, true)
		if err != nil {
			return err
		}
		defer r.close()
		if err := a.proposeReport(r.Report, r.brought, "claude-code"); err != nil {
			return err
		}
	}
	_, err = a.asked(ctx, sessiond.Request{Op: sessiond.OpEnd, Session: found.ID}, sessiond.Streams{})
	return err
}
