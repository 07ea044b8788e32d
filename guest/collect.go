package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"os"

	"github.com/unitask/unitask/guest/contract"
)

// Sink receives the files and other entries of /out, one after the other. An error from it ends Collect.
type Sink interface {
	// Begin receives an entry: its kind (0 means a regular file), its permissions and its path below /out. None
	// of these can be trusted.
	Begin(kind os.FileMode, perm os.FileMode, path string) error
	// Large receives the path of a regular file that is not sent because it has more bytes than the limit still
	// allows.
	Large(path string) error
	// Data receives the next bytes of the regular file from the last Begin.
	Data(p []byte) error
}

// kinds maps the letters in an artifact's frame. Any other letter means irregular.
var kinds = map[byte]os.FileMode{contract.KindFile: 0, contract.KindLink: os.ModeSymlink,
	contract.KindPipe: os.ModeNamedPipe, contract.KindSocket: os.ModeSocket}

// Collect requests the entries of /out; most is the maximum size of all files together, in bytes. It may be called
// once, after the code has ended and its End reports entries. If standard input was being sent when the code ended, the
// current frame is finished first. A guest that does not read it blocks Collect until ctx ends.
func (c *Conn) Collect(ctx context.Context, to Sink, most int64) error {
	stop := context.AfterFunc(ctx, c.abort)
	defer stop()
	if f := c.feed.Load(); f != nil {
		f.wait()
	}
	if err := c.send(contract.FrameCollect, binary.BigEndian.AppendUint64(nil, uint64(max(most, 0)))); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return ErrGone
	}
	file := false // a file was begun
	for {
		kind, payload, err := c.read()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, new(*ProtocolError)):
			return err
		case err != nil:
			return ErrGone
		case kind == contract.FrameArtifactsEnd:
			return nil
		case kind == contract.FrameArtifact && len(payload) > contract.ArtifactHead && payload[0] == contract.KindLarge:
			file = false
			err = to.Large(string(payload[contract.ArtifactHead:]))
		case kind == contract.FrameArtifact && len(payload) > contract.ArtifactHead:
			what, known := kinds[payload[0]]
			if !known {
				what = os.ModeIrregular
			}
			file = what == 0
			err = to.Begin(what, os.FileMode(binary.BigEndian.Uint32(payload[1:]))&os.ModePerm,
				string(payload[contract.ArtifactHead:]))
		case kind == contract.FrameArtifactData && file:
			err = to.Data(payload)
		default:
			err = violation("frame %q among the artifacts", kind)
		}
		if err != nil {
			return err
		}
	}
}
