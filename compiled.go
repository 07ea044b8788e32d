package unitask

import (
	"bytes"
	"io/fs"
	"path"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/compiled"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/machine"
)

// compilation is what a run has of the store of compiled programs.
type compilation struct {
	store   *compiled.Store
	key     string
	looked  bool            // for a program of before (load)
	cached  bool            // it was there
	program []byte          // it, until the guest has it
	at      string          // the path in the guest of that
	placed  int             // its length, if the guest has it in its place
	draft   *compiled.Draft // of what it is compiled to
}

// compilation is the run's, nil where what its code is compiled to is of more than the code. A program is compiled
// before any of its code runs, and nothing of the run but the text, its name and its folder is in it; so it may be
// handed to the next run of the same caller that has the same ones.
func (x *execution) compilation() *compilation {
	if !x.code.alone() || x.look != (inspection{}) {
		return nil
	}
	return &compilation{
		store: x.rt.Compiled(), at: x.code.language.Compiled.At(x.code.path),
		key: compiled.Key(x.image.Digest, string(x.image.Arch), x.rec.Owner, x.code.path, x.code.dir, x.code.text),
	}
}

// load is the program that the code was compiled to before, nil where there is none. It is read when it is first asked
// for, while QEMU starts.
func (c *compilation) load() []byte {
	if !c.looked {
		c.looked, c.program = true, c.store.Get(c.key)
		c.cached = c.program != nil
	}
	return c.program
}

// alone says that nothing goes into what the code is compiled to but its text, its name and its folder.
func (p *program) alone() bool {
	switch {
	case p.language.Compiled == nil, p.inImage != nil, p.command, p.check, p.session != nil, p.layer, p.installed:
		return false
	case p.terminal != nil: // which the compiler has, too: what is typed may end it
		return false
	case len(p.neighbours) > 0, len(p.nodeArgs) > 0, p.ownProcess != "", len(p.inputs.Paths()) > 0:
		return false
	}
	all := map[string]string{"PATH": contract.SearchPath, "HOME": contract.HomeDir, "LANG": contract.Locale}
	for name, value := range p.env {
		if given, known := all[name]; name != "FORCE_COLOR" && (!known || given != value) {
			return false
		}
	}
	return len(p.secrets) == 0 && p.language.Compiled.Alone(p.text, p.args)
}

// Compiled is the store of the programs that code was compiled to.
func (rt *Runtime) Compiled() *compiled.Store {
	return &compiled.Store{Dir: home.Dir(rt.opts.Home).Compiled()}
}

// put sends the program that the code was compiled to, or asks for it, and is what a start says of that.
func (c *compilation) put(conn *guest.Conn) (string, error) {
	if c == nil {
		return "", nil
	}
	if c.placed > 0 {
		return c.at, nil
	}
	if c.load(); !c.cached {
		c.close()
		c.draft = c.store.New(c.key)
		return contract.HandOut, conn.HandOut(c.draft)
	}
	above := path.Dir(path.Dir(c.at))
	for _, f := range []guest.File{
		{Path: path.Dir(above), Mode: fs.ModeDir | 0o700, User: true},
		{Path: above, Mode: fs.ModeDir | 0o755, User: true},
		{Path: path.Dir(c.at), Mode: fs.ModeDir | 0o755, User: true},
		{Path: c.at, Mode: 0o755, User: true, Size: int64(len(c.program))},
	} {
		if err := conn.Put(f, bytes.NewReader(c.program)); err != nil {
			return "", err
		}
	}
	return c.at, nil
}

// in says whether a machine began with the program in its place.
func (c *compilation) in(m *machine.Machine) {
	if c != nil {
		c.placed = 0
		if m.Placed() {
			c.placed = len(c.program)
		}
	}
}

// length is of the program, if it is in the guest's place.
func (c *compilation) length() int {
	if c == nil {
		return 0
	}
	return c.placed
}

// patience is how long the program may take on its way.
func (c *compilation) patience() time.Duration {
	if c == nil || c.load() == nil {
		return 0
	}
	return hostfiles.Patience(int64(len(c.program)), 1)
}

// sent frees the program: its guest has it.
func (c *compilation) sent() {
	if c != nil {
		c.program = nil
	}
}

// how is what came of it.
func (c *compilation) how() string {
	switch {
	case c == nil:
		return ""
	case c.cached:
		return CompiledCached
	case c.draft != nil && c.draft.Kept():
		return CompiledKept
	}
	return ""
}

func (c *compilation) close() {
	if c != nil && c.draft != nil {
		c.draft.Discard()
	}
}
