// Package home defines the layout of a home: the folder with parts, images, records and sessions. It returns the path
// of everything in it, and refuses a home that others could change.
package home

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/unitask/unitask/internal/userdir"
)

// Check refuses a home that another user could change. Whoever can write there can replace the kernel and the Node of
// runs, and read their records. If the home does not exist, Check creates it with mode 0700. It follows links: only the
// folder itself counts.
func Check(home string) error {
	st, err := os.Stat(home)
	if errors.Is(err, fs.ErrNotExist) {
		// Create it now, and as our own: in a folder like /tmp others could create it later. If that fails, its first user
		// reports the error.
		made := errors.Join(os.MkdirAll(filepath.Dir(home), 0o755), os.Mkdir(home, 0o700))
		if made != nil && !errors.Is(made, fs.ErrExist) {
			return nil
		}
		st, err = os.Stat(home)
	}
	switch {
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("home %s is not a folder: set UNITASK_HOME to one", home)
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("home %s may be written by other users (mode %04o): chmod go-w %s", home, st.Mode().Perm(), home)
	}
	if owner, self := int(st.Sys().(*syscall.Stat_t).Uid), os.Geteuid(); owner != self {
		return fmt.Errorf(
			"home %s belongs to another user (uid %d, this is uid %d): set UNITASK_HOME to a folder of your own", home, owner,
			self)
	}
	return nil
}

// Default is $UNITASK_HOME, or ~/.unitask.
func Default() (string, error) {
	if dir := os.Getenv("UNITASK_HOME"); dir != "" {
		return filepath.Abs(dir)
	}
	user, err := userdir.Home()
	if err != nil {
		return "", fmt.Errorf("find the home folder: %w: set UNITASK_HOME", err)
	}
	if !filepath.IsAbs(user) { // a relative one would differ in each working folder, and could come with a project
		return "", fmt.Errorf("find the home folder: HOME is %q, which is relative: give its whole path, or set UNITASK_HOME",
			user)
	}
	return filepath.Join(user, ".unitask"), nil
}

// PoolSocket is the name of the pool daemon's socket in a home.
const PoolSocket = "pool.sock"

// Dir is a home's path. Its methods return the paths in it.
type Dir string

func (d Dir) in(name ...string) string {
	return filepath.Join(append([]string{string(d)}, name...)...)
}

func (d Dir) Audit() string              { return d.in("audit") }          // the audit log, which covers all runs
func (d Dir) Cache() string              { return d.in("cache") }          // may be removed at any time
func (d Dir) Changes() string            { return d.in("changes") }        // changes to the host's files
func (d Dir) Compiled() string           { return d.in("compiled") }       // compiled programs
func (d Dir) Config() string             { return d.in("config.toml") }    // the configuration
func (d Dir) Containers() string         { return d.in("containers") }     // container images, by digest
func (d Dir) Custom() string             { return d.in("own") }            // custom images
func (d Dir) CustomFile(n string) string { return d.in("own", n+".json") } // the description of a custom image
func (d Dir) DebugHistory() string       { return d.in("debug_history") }  // what was typed
func (d Dir) Fleet() string              { return d.in("fleet") }          // the embedded server of a fleet
func (d Dir) Idempotency() string        { return d.in("idempotency") }    // answers to requests with a key
func (d Dir) ImageFiles() string         { return d.in("environments") }   // files that describe custom images
func (d Dir) Images() string             { return d.in("images") }         // disks that machines boot from
func (d Dir) Layers() string             { return d.in("layers") }         // layers of custom images
func (d Dir) Lock(n string) string       { return d.in("locks", n) }       // a file to lock
func (d Dir) Packages() string           { return d.in("packages") }       // installed packages of pip and npm
func (d Dir) PauseKey() string           { return d.in("pause.key") }      // seals paused sessions
func (d Dir) PoolLock() string           { return d.in("pool.lock") }      // held by the pool daemon
func (d Dir) PoolLog() string            { return d.in("pool.log") }       // of the pool daemon
func (d Dir) PoolSocket() string         { return d.in(PoolSocket) }       // of the pool daemon
func (d Dir) ReplHistory() string        { return d.in("repl_history") }   // what was typed
func (d Dir) Runs() string               { return d.in("runs") }           // records
func (d Dir) Sessions() string           { return d.in("sessions") }       // paused machines, the daemon's socket
func (d Dir) SigningKey() string         { return d.in("signing.key") }    // signs artifacts
func (d Dir) Skills() string             { return d.in("skills.json") }    // skills that the user trusts
func (d Dir) Tools() string              { return d.in("tools") }          // lists of tools that were reviewed
func (d Dir) Templates() string          { return d.in("templates") }      // snapshots to clone
func (d Dir) Vendor(arch string) string  { return d.in("vendor", arch) }   // parts of images
func (d Dir) Webhooks() string           { return d.in("webhooks") }       // how far webhooks have come
