package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"os"

	"github.com/unitask/unitask/guest/contract"
)

// Sink takes what the code left in /out, one after the other. An error of it ends
// Collect.
type Sink interface {
	// Begin receives an entry: what kind it is (0 is a regular file), its
	// permissions and its path below /out. Nothing of it can be trusted.
	Begin(kind os.FileMode, perm os.FileMode, path string) error
	// Large receives the path of a regular file that the guest does not send: it has more bytes than may still come.
	Large(path string) error
	// Data is the next bytes of the regular file that was begun last.
	Data(p []byte) error
}

// kinds are the letters of an artifact's frame. What has none of them is irregular.
var kinds = map[byte]os.FileMode{contract.KindFile: 0, contract.KindLink: os.ModeSymlink,
	contract.KindPipe: os.ModeNamedPipe, contract.KindSocket: os.ModeSocket}

// Collect asks for what the code left in /out: files of most bytes in all. It may be called once, when the code
// has ended and its End says that there is something. Where standard input was being
// sent when the code ended, the frame under way is finished first: a guest that does
// not take it keeps Collect until ctx ends.
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
	file := false // one was begun
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
