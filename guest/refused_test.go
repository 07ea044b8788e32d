package guest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/unitask/unitask/guest/contract"
)

// The arguments of a separate process are limited before they are sent.
func TestProcessBounds(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	c := &Conn{w: bufio.NewWriterSize(ours, 16)}
	long := make([]string, contract.MaxStrings+1)
	for i := range long {
		long[i] = "x"
	}
	for name, p := range map[string]struct {
		Process
		want string
	}{
		"usual":          {Process{Dir: "/w", Args: []string{"--x"}, Env: []string{"A=b"}}, ""},
		"too many":       {Process{Args: long}, "is the most"},
		"an empty one":   {Process{Args: []string{""}}, "is empty"},
		"a NUL byte":     {Process{Env: []string{"A=\x00"}}, "NUL byte"},
		"too many bytes": {Process{Args: []string{strings.Repeat("x", contract.MaxProcess)}}, "is the most"},
	} {
		if err := c.Process(p.Process); (err == nil) != (p.want == "") ||
			err != nil && !strings.Contains(err.Error(), p.want) {
			t.Errorf("%s: %v, expected %q", name, err, p.want)
		}
	}
	theirs.Close()
	for name, err := range map[string]error{"process": c.Process(Process{}), "relay": c.Relay([]uint16{1}),
		"terminal": c.Terminal(Size{80, 24}, nil)} {
		if !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%s, when the guest is gone: %v", name, err)
		}
	}
}

// Errors name their subject and their cause.
func TestErrors(t *testing.T) {
	for want, err := range map[string]error{
		"put /x: EOF":                               &ContentError{Path: "/x", Err: io.EOF},
		"the guest broke the protocol: a":           violation("%s", "a"),
		"ended with exit code 9 before its start: ": &RefusedError{Words: "bad option", End: End{Code: 9}},
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
	if !errors.Is(&ContentError{Err: io.EOF}, io.EOF) {
		t.Error("the cause is lost")
	}
}
