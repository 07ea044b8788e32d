package program

import (
	"bytes"
	"io/fs"
	"path"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/compiled"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/run"
)

// Compilation is a run's use of the store of compiled programs.
type Compilation struct {
	Store   *compiled.Store
	Key     string
	Looked  bool            // Load has looked for an earlier program
	cached  bool            // there was one
	Program []byte          // the program, until the guest has it
	At      string          // its path in the guest
	draft   *compiled.Draft // of the program that the guest hands out
}

// Load returns the program that the code was compiled to before, or nil. The first call reads it.
func (c *Compilation) Load() []byte {
	if !c.Looked {
		c.Looked, c.Program = true, c.Store.Get(c.Key)
		c.cached = c.Program != nil
	}
	return c.Program
}

// Alone reports whether the compiled program depends only on the code's text, its name and its folder.
func (p *Program) Alone() bool {
	switch {
	case p.Language.Compiled == nil, p.inImage != nil, p.Command, p.Check, p.Supervisor != nil, p.Layer, p.Installed:
		return false
	case p.terminal != nil: // the compiler has the terminal, too: what is typed may end it
		return false
	case len(p.inlineFiles) > 0, len(p.nodeArgs) > 0, p.ownProcess != "", len(p.Inputs.Paths()) > 0:
		return false
	}
	all := map[string]string{"PATH": contract.SearchPath, "HOME": contract.HomeDir, "LANG": contract.Locale}
	for name, value := range p.env {
		if given, known := all[name]; name != "FORCE_COLOR" && (!known || given != value) {
			return false
		}
	}
	return len(p.Secrets) == 0 && p.Language.Compiled.Alone(p.Text, p.args)
}

// Put sends the compiled program, or asks the guest for it, and returns what the start must tell about it.
func (c *Compilation) put(conn *guest.Conn) (string, error) {
	if c == nil {
		return "", nil
	}
	if c.Load(); !c.cached {
		c.Close()
		c.draft = c.Store.New(c.Key)
		return contract.HandOut, conn.HandOut(c.draft)
	}
	above := path.Dir(path.Dir(c.At))
	for _, f := range []guest.File{
		{Path: path.Dir(above), Mode: fs.ModeDir | 0o700, User: true},
		{Path: above, Mode: fs.ModeDir | 0o755, User: true},
		{Path: path.Dir(c.At), Mode: fs.ModeDir | 0o755, User: true},
		{Path: c.At, Mode: 0o755, User: true, Size: int64(len(c.Program))},
	} {
		if err := conn.Put(f, bytes.NewReader(c.Program)); err != nil {
			return "", err
		}
	}
	return c.At, nil
}

// Patience returns how long sending the program may take.
func (c *Compilation) Patience() time.Duration {
	if c == nil || c.Load() == nil {
		return 0
	}
	return hostfiles.Patience(int64(len(c.Program)), 1)
}

// Sent frees the program: its guest has it.
func (c *Compilation) Sent() {
	if c != nil {
		c.Program = nil
	}
}

// Outcome tells whether the program was cached or kept.
func (c *Compilation) Outcome() string {
	switch {
	case c == nil:
		return ""
	case c.cached:
		return run.CompiledCached
	case c.draft != nil && c.draft.Kept():
		return run.CompiledKept
	}
	return ""
}

func (c *Compilation) Close() {
	if c != nil && c.draft != nil {
		c.draft.Discard()
	}
}
