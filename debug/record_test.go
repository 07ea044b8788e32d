package debug

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

type file struct{ bytes.Buffer }

func (*file) Close() error { return nil }

// A recorded session can be repeated with the same effect.
func TestRecord(t *testing.T) {
	answer := func(command string) string {
		if command == "human-monitor-command" {
			return `"RIP=0000000000001000"`
		}
		return `{"running": false, "status": "paused"}`
	}
	c, _ := open(t, answer)
	var f file
	c.Record = func(name string) (io.WriteCloser, error) {
		if name == "exists" {
			return nil, errors.New("exists")
		}
		return &f, nil
	}
	do := func(line string) {
		t.Helper()
		if _, err := c.Do(t.Context(), line); err != nil && !errors.Is(err, ErrQuit) {
			t.Errorf("%s: %v", line, err)
		}
	}
	if _, err := c.Do(t.Context(), "record exists"); err == nil {
		t.Error("a file that exists was taken")
	}
	do("query-status") // not recorded yet
	do("record session.txt")
	do("help")
	do("query-status")
	if _, err := c.Do(t.Context(), "mem 0 0"); err == nil {
		t.Error("a wrong command was taken")
	}
	do("cont")
	c.Feed("stdout", []byte("one\nthe \"last\" line\nhalf a"))
	c.Feed("serial", []byte("[ 0.1] not the same twice\n"))
	c.note(func() { c.events = append(c.events, "RESUME", "STOP") })
	do("query-status")
	c.Feed("stdout", []byte(" line\nawaited\nbehind\n"))
	do(`wait stdout "awaited"`)
	c.Ended("exited, exit code 0")
	do("stop")
	do("record")
	do("query-block")
	do("quit")
	want := strings.Join([]string{
		"query-status",
		"# mem 0 0: mem 0 0: a length from 1 to 65536",
		"cont",
		"wait stopped 1m0s",
		`wait stdout "the \"last\" line" 1m0s`,
		"query-status",
		`wait stdout "awaited"`,
		`wait stdout "behind" 1m0s`,
		"wait end 1m0s",
		"stop", ""}, "\n")
	header, got, _ := strings.Cut(f.String(), "\n")
	if got != want || !strings.HasPrefix(header, "# ") {
		t.Errorf("%s\n%s", header, got)
	}

	again, _ := open(t, answer)
	again.Feed("stdout", []byte("one\nthe \"last\" line\nhalf a line\nawaited\nbehind\n"))
	again.Ended("exited, exit code 0")
	if err := again.Script(t.Context(), &f.Buffer, func(Line) {}); err != nil {
		t.Error(err)
	}
}

// A recording has a size limit, and reports once that it was reached.
func TestRecordBound(t *testing.T) {
	var f file
	r := &recording{file: &f, left: 100}
	for i := range 1000 {
		r.line(fmt.Sprintf("query-status # %d", i))
	}
	if f.Len() > 200 || strings.Count(f.String(), "longer than a recording") != 1 {
		t.Errorf("%q", f.String())
	}
}
