package sessiond

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/run"
)

// waitStep is how long one of a client's waits takes.
const waitStep = time.Minute

// behind waits for a background command, or stops it. The record of its run names its session.
func (h *Daemon) behind(ctx context.Context, c *client, req Request) (Answer, error) {
	none := &Error{Code: CodeGone, Unknown: true,
		Message: fmt.Sprintf("run %.80q is no command in the background of a session that lives", req.Run)}
	rec, err := h.rt.Runs().Get(req.Run)
	if err != nil {
		return Answer{}, none
	}
	s, _ := h.find(rec.Session)
	if s == nil || rec.Session == "" {
		return Answer{}, none
	}
	if req.Op == OpStop {
		return Answer{}, s.Stop(ctx, req.Run)
	}
	var is unitask.Background
	for lost := int64(0); is.Result == nil; {
		if is, err = s.Wait(ctx, req.Run, is.Seq, waitStep); err != nil {
			return Answer{}, err
		}
		if lost += is.Lost; lost > 0 && is.Result != nil {
			brief := *is.Result
			brief.Hints = append(slices.Clip(brief.Hints), unitask.Hint{Kind: run.HintOutput, Text: fmt.Sprintf(
				"%d bytes of its output are not kept: unitask inspect --stdout %s", lost, req.Run)})
			is.Result = &brief
		}
		for _, piece := range is.Output {
			to := c.out(kindStdout)
			if piece.Stderr {
				to = c.out(kindStderr)
			}
			if _, err := to.Write(piece.Text); err != nil {
				return Answer{}, err
			}
		}
	}
	return Answer{Result: is.Result}, is.Err
}
