package guest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"

	"github.com/unitask/unitask/guest/contract"
)

// Rehearsal is a throw-away program.
type Rehearsal struct {
	Text    string // ends in a newline
	File    string // its file name
	Comment string // begins a comment in its language
}

// Rehearse does all steps of a run with a throw-away program. So the code that every run uses is compiled, and
// translated if the machine is emulated. Afterwards the guest waits for its seed, as before. No random state remains.
// The last rehearsal before a snapshot leaves no garbage. bring, if not nil, puts files into the guest, which stay.
func Rehearse(ctx context.Context, n Network, program Rehearsal, last bool,
	bring func(context.Context, *Conn) error) error {
	kind := "again"
	if last {
		kind = "last"
	}
	err := rehearse(ctx, n, program, kind, bring)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	return nil
}

func rehearse(ctx context.Context, n Network, program Rehearsal, kind string,
	bring func(context.Context, *Conn) error) error {
	if err := ask(ctx, n, []byte(contract.WordRehearse),
		func(p []byte) bool { return string(p) == contract.WordRehearse }); err != nil {
		return err
	}
	c, err := Connect(ctx, n)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, c.abort)
	defer stop()
	if bring != nil {
		if err := bring(ctx, c); err != nil {
			return err
		}
	}
	// The text is new each time, so that it is compiled again. The folder is new, so that it is searched again, also in
	// a clone of a template from another process. preload.js removes it.
	name := rand.Text()
	dir, code := "/tmp/.rehearsal-"+name, program.Text+program.Comment+" "+name+"\n"
	for _, f := range []File{
		{Path: dir, Mode: os.ModeDir | 0o755, User: true},
		{Path: dir + "/" + program.File, Mode: 0o644, Size: int64(len(code))},
		{Path: dir + "/main", Mode: os.ModeSymlink, Target: dir + "/" + program.File},
	} {
		if err := c.Put(f, strings.NewReader(code)); err != nil {
			return err
		}
	}
	text, err := startFrame(Start{Argv: []string{dir + "/main"}, Env: map[string]string{"HOME": "/", "PATH": "/"},
		Dir: dir}, kind)
	if err != nil {
		return err
	}
	if err := c.send(contract.FrameStart, text); err != nil {
		return err
	}
	for {
		frame, _, err := c.read()
		if err != nil {
			return err
		}
		if frame == contract.FrameRehearsed {
			break
		}
		if frame != contract.FrameStdout && frame != contract.FrameStderr {
			return violation("frame %q in a rehearsal", frame)
		}
	}
	c.Close()
	for {
		p, err := n.ReceiveDatagram(ctx)
		if err != nil || string(p) == contract.WordForgotten {
			return err
		}
	}
}
