package console

import (
	"cmp"
	"context"
	"errors"
	"io"

	"github.com/unitask/unitask/internal/project"
	"github.com/unitask/unitask/internal/sessiond"
)

const (
	shownValues  = 20
	shownValue   = 4 << 10 // bytes of a value
	shownChanges = 500
)

// inside are what a session's page shows of its machine, each in fields of the page's data.
var inside = map[string]func(c *Console, ctx context.Context, id string, data map[string]any) error{
	"files": (*Console).filesOf, "values": (*Console).valuesOf, "changes": (*Console).changesOf,
}

// filesOf lists the session's folder.
func (c *Console) filesOf(ctx context.Context, id string, data map[string]any) error {
	answer, err := c.Sessions(ctx, sessiond.Request{Op: sessiond.OpFiles, Session: id, Path: "."}, sessiond.Streams{})
	data["Files"], data["MoreInside"] = answer.Files, answer.More
	if len(answer.Files) == 0 {
		data["Nothing"] = "Its folder has no files."
	}
	return err
}

// namedValue is a value of a session's code.
type namedValue struct{ Name, JSON string }

// valuesOf reads the session's values.
func (c *Console) valuesOf(ctx context.Context, id string, data map[string]any) error {
	answer, err := c.Sessions(ctx, sessiond.Request{Op: sessiond.OpGet, Session: id}, sessiond.Streams{})
	if err != nil {
		return err
	}
	names := answer.Names[:min(len(answer.Names), shownValues)]
	var list []namedValue
	for _, name := range names {
		value := namedValue{Name: name}
		got, err := c.Sessions(ctx, sessiond.Request{Op: sessiond.OpGet, Session: id, Name: name}, sessiond.Streams{})
		switch {
		case err != nil: // the code may have removed it, or it is no JSON
			value.JSON = err.Error()
		case len(got.Value) > shownValue:
			value.JSON = string(got.Value[:shownValue]) + "…"
		default:
			value.JSON = string(got.Value)
		}
		list = append(list, value)
	}
	data["Values"], data["MoreInside"] = list, answer.More || len(names) < len(answer.Names)
	if len(list) == 0 {
		data["Nothing"] = "It has no values: code writes them to /work/.values, and unitask session put sets them."
	}
	return nil
}

// changesOf lists what the session changed in its project.
func (c *Console) changesOf(ctx context.Context, id string, data map[string]any) error {
	from, to := io.Pipe()
	var report *project.Report
	read := make(chan error, 1)
	go func() {
		var err error
		report, err = project.Read(from, noTexts{})
		from.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		read <- err
	}()
	_, err := c.Sessions(ctx, sessiond.Request{Op: sessiond.OpChanges, Session: id}, sessiond.Streams{Stdout: to})
	to.CloseWithError(err)
	if e := <-read; err != nil || e != nil {
		return cmp.Or(err, e)
	}
	if len(report.Changes) > shownChanges {
		report.Changes, data["MoreInside"] = report.Changes[:shownChanges], true
	}
	if data["Project"] = report; len(report.Changes) == 0 {
		data["Project"], data["Nothing"] = nil, "It changed nothing in its project."
	}
	return nil
}

// noTexts keeps no texts: the report is asked for without them.
type noTexts struct{}

var errTexts = errors.New("the report has texts that nobody asked for")

func (noTexts) Write([]byte) (int, error)         { return 0, errTexts }
func (noTexts) ReadAt([]byte, int64) (int, error) { return 0, errTexts }
