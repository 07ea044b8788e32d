package engine

import (
	"github.com/unitask/unitask/internal/compiled"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/program"
)

// compilation returns the compiled program that the run uses or makes, or nil if the code can't share one. Code is
// compiled before it runs, from its text, its name and its folder alone. So later runs of the same caller with the
// same three may use the result.
func (x *Execution) compilation() *program.Compilation {
	if !x.Code.Alone() || x.purpose != (Purpose{}) {
		return nil
	}
	return &program.Compilation{
		Store: &compiled.Store{Dir: home.Dir(x.engine.Home).Compiled()}, At: x.Code.Language.Compiled.At(x.Code.Path),
		Key: compiled.Key(x.Image.Digest, string(x.Image.Arch), x.Rec.Owner, x.Code.Path, x.Code.Dir, x.Code.Text),
	}
}
