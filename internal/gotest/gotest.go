// Package gotest runs go test and reads its events, for commands that report the outcome.
package gotest

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
)

// Event is a line of go test -json (cmd/test2json), or of go build -json.
type Event struct {
	Action, Package, ImportPath, Test, Output, FailedBuild string
	Elapsed                                                float64 // seconds
}

// maxLine limits a line of events, in bytes. Each line of a test's output is an event.
const maxLine = 16 << 20

// Run runs go test with the flags. It calls each with every event, in order, and plain with every other line. failed
// reports whether go test failed; err means that the events could not be read to their end.
func Run(flags []string, stderr io.Writer, each func(Event), plain func(string)) (failed bool, err error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, flags...)...)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return true, err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e Event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			plain(lines.Text())
			continue
		}
		each(e)
	}
	if err = lines.Err(); err != nil {
		_, _ = io.Copy(io.Discard, out)
	}
	end := cmd.Wait()
	if !errors.As(end, new(*exec.ExitError)) {
		err = errors.Join(err, end)
	}
	return end != nil, err
}
