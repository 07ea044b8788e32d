package engine

import (
	"context"
	"encoding/json"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/internal/hostfiles"
)

// Folders are the inputs of a run that a separate template may have.
type Folders struct{ *hostfiles.Steady }

func (f Folders) Key() string { return f.Digest }

func (f Folders) Put(ctx context.Context, to *guest.Conn) error { return f.Steady.Put(ctx, to) }

func (f Folders) String() string {
	text, _ := json.Marshal(f.Steady)
	return string(text)
}
