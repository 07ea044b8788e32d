package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// frame is a frame of a hostile guest.
type frame struct {
	kind    byte
	payload string
}

type attackFramesRow struct {
	stage, name string
	then        func(net.Conn)
	want        string
}

// attackFramesRows are the cases of TestAttackFrames.
func attackFramesRows(
	raw func(b ...byte) func(net.Conn), send func(frames ...frame) func(net.Conn),
	hangUp func(then func(net.Conn)) func(net.Conn), artifact func(kind byte, path string) frame, ended string,
	flood func(f frame) func(net.Conn),
) []attackFramesRow {
	return append([]attackFramesRow{
		// Length.
		{"hello", "a length of 4 GiB", raw(0xff, 0xff, 0xff, 0xff, 'h'), "broke the protocol"},
		{"hello", "a hello one byte too long", send(frame{'h', strings.Repeat(" ", maxJSON+1)}), "broke the protocol"},
		{"run", "output one byte too long", raw(0, 0x10, 0, 1, 'o'), "broke the protocol"},
		{"run", "an exit of a megabyte", raw(0, 0x10, 0, 0, 'x'), "broke the protocol"},
		{"run", "a length that never comes", hangUp(raw(0, 0, 1, 0, 'o', 'b')), "gone"},
		{"run", "half a header", hangUp(raw(0, 0)), "gone"},
		{"collect", "an artifact's name of 5000 bytes", send(artifact('f', strings.Repeat("x", 5000))), "broke the protocol"},
		{"collect", "an artifact without a name", send(frame{'a', "f\x00\x00\x00\x00"}), "broke the protocol"},
		{"collect", "an artifact without a mode", send(frame{'a', "f\x00"}), "broke the protocol"},
		{"collect", "an artifact of nothing", send(frame{'a', ""}), "broke the protocol"},
		{"collect", "data one byte too long", func(c net.Conn) { send(artifact('f', "x"))(c); raw(0, 0x10, 0, 1, 'd')(c) },
			"broke the protocol"},
		// Type.
		{"hello", "a type of its own", raw(0, 0, 0, 0, 'Q'), "broke the protocol"},
		{"hello", "HTTP", raw([]byte("HTTP/1.1 200 OK\r\n\r\n")...), "broke the protocol"},
		{"hello", "TLS", raw(22, 3, 1, 0, 5, 1, 0, 0, 1, 0), "broke the protocol"},
		{"run", "type 0", raw(0, 0, 0, 0, 0), "broke the protocol"},
		{"run", "a file, as the host sends them", send(frame{'F', "f"}), "broke the protocol"},
		{"run", "a start, as the host sends it", send(frame{'S', "{}"}), "broke the protocol"},
		{"run", "the request for artifacts, back", send(frame{'A', ""}), "broke the protocol"},
		{"run", "a type in the wrong case", send(frame{'O', "x"}), "broke the protocol"},
		// Order.
		{"hello", "output before hello", send(frame{'o', "x"}), "broke the protocol"},
		{"hello", "exit before hello", send(frame{'x', ended}), "broke the protocol"},
		{"hello", "started before hello", send(frame{'s', ""}), "broke the protocol"},
		{"start", "a second hello", send(frame{'h', goodHello}), "broke the protocol"},
		{"start", "output before the start", send(frame{'o', "x"}), "broke the protocol"},
		{"start", "an exit in place of the start", send(frame{'x', ended}), "gone"},
		{"start", "a rehearsal's end in place of the start", send(frame{'w', ""}), "broke the protocol"},
		{"start", "a program before the start", send(frame{'p', "x"}), "broke the protocol"},
		{"hello", "a program before hello", send(frame{'p', "x"}), "broke the protocol"},
		{"run", "a program that nobody asked for", send(frame{'p', "x"}), "broke the protocol"},
		{"run", "the end of one", send(frame{'p', ""}), "broke the protocol"},
		{"run", "the word that it may go on, back", send(frame{'G', ""}), "broke the protocol"},
		{"collect", "a program after the exit", send(frame{'p', "x"}), "broke the protocol"},
		{"start", "an artifact before the start", send(artifact('f', "x")), "broke the protocol"},
		{"run", "a hello while the code runs", send(frame{'h', goodHello}), "broke the protocol"},
	}, moreAttackFramesRows(raw, send, hangUp, artifact, ended, flood)...)
}

// moreAttackFramesRows are the other half.
func moreAttackFramesRows(
	raw func(b ...byte) func(net.Conn), send func(frames ...frame) func(net.Conn),
	hangUp func(then func(net.Conn)) func(net.Conn), artifact func(kind byte, path string) frame, ended string,
	flood func(f frame) func(net.Conn),
) []attackFramesRow {
	return []attackFramesRow{
		{"run", "a second start", send(frame{'s', ""}), "broke the protocol"},
		{"run", "a rehearsal's end", send(frame{'w', ""}), "broke the protocol"},
		{"run", "an artifact while the code runs", send(artifact('f', "x")), "broke the protocol"},
		{"run", "artifacts' end while the code runs", send(frame{'z', ""}), "broke the protocol"},
		{"collect", "output after the exit", send(frame{'o', "late"}), "broke the protocol"},
		{"collect", "a second exit", send(frame{'x', ended}), "broke the protocol"},
		{"collect", "a hello after the exit", send(frame{'h', goodHello}), "broke the protocol"},
		{"collect", "data of no file", send(frame{'d', "x"}), "broke the protocol"},
		{"collect", "data of a link", send(artifact('l', "x"), frame{'d', "x"}), "broke the protocol"},
		{"collect", "data of a pipe", send(artifact('p', "x"), frame{'d', "x"}), "broke the protocol"},
		// Value.
		{"hello", "another version", send(frame{'h', `{"version":2,"kernel":"linux"}`}), "broke the protocol"},
		{"hello", "no version", send(frame{'h', `{}`}), "broke the protocol"},
		{"hello", "a kernel of its own", send(frame{'h', `{"version":1,"kernel":"\u001b]52;"}`}), "broke the protocol"},
		{"hello", "one key too many", send(frame{'h', `{"version":1,"kernel":"linux","evil":1}`}), "broke the protocol"},
		{"hello", "a key twice", send(frame{'h', `{"version":2,"version":1,"kernel":"linux"}`}), "broke the protocol"},
		{"hello", "a key in capitals", send(frame{'h', `{"VERSION":1,"kernel":"linux"}`}), "broke the protocol"},
		{"hello", "something behind the value", send(frame{'h', goodHello + `{"version":2}`}), "broke the protocol"},
		{"hello", "nesting without end", send(frame{'h', strings.Repeat("[", maxJSON)}), "broke the protocol"},
		{"run", "exit code 256", send(frame{'x', `{"code":256,"signal":0,"oom":false,"out":false}`}), "broke the protocol"},
		{"run", "exit code -1", send(frame{'x', `{"code":-1,"signal":0,"oom":false,"out":false}`}), "broke the protocol"},
		{"run", "exit code 1e0", send(frame{'x', `{"code":1e0,"signal":0,"oom":false,"out":false}`}), "broke the protocol"},
		{"run", "exit code 2^64", send(frame{'x', `{"code":18446744073709551616,"signal":0,"oom":false,"out":false}`}),
			"broke the protocol"},
		{"run", "signal 65", send(frame{'x', `{"code":0,"signal":65,"oom":false,"out":false}`}), "broke the protocol"},
		{"run", "signal -9", send(frame{'x', `{"code":0,"signal":-9,"oom":false,"out":false}`}), "broke the protocol"},
		{"run", "an exit of nothing", send(frame{'x', ""}), "broke the protocol"},
		{"run", "an exit of null", send(frame{'x', "null"}), "broke the protocol"},
		{"run", "an exit that leaves keys out", send(frame{'x', `{"code":0}`}), "broke the protocol"},
		{"run", "two exits in one frame", send(frame{'x', ended + ended}), "broke the protocol"},
		// Floods.
		{"run", "endless output", flood(frame{'o', strings.Repeat("x", 60<<10)}), "waits"},
		{"run", "endless empty frames", flood(frame{'e', ""}), "waits"},
		{"collect", "endless entries", flood(artifact('l', "x")), "waits"},
		{"collect", "endless data", func(c net.Conn) {
			send(artifact('f', "x"))(c)
			flood(frame{'d',
				strings.Repeat("x", 60<<10)})(c)
		}, "waits"},
		{"collect", "silence", func(net.Conn) {}, "waits"},
		{"start", "silence instead of the start", func(net.Conn) {}, "waits"},
		{"hello", "silence instead of hello", func(net.Conn) {}, "waits"},
		{"hello", "a byte and then nothing", raw(0), "waits"},
	}
}

// A hostile agent: each row is what it sends at one stage of the conversation, and the expected result. "broke the
// protocol" ends the run with that error. "gone" means that the guest disconnected. "waits" ends with the caller's
// deadline, and uses no more memory than a frame.
func TestAttackFrames(t *testing.T) {
	const (
		ended = `{"code":0,"signal":0,"oom":false,"out":true}`
	)
	send := func(frames ...frame) func(net.Conn) {
		return func(c net.Conn) {
			for _, f := range frames {
				sendFrame(c, f.kind, f.payload)
			}
		}
	}
	raw := func(b ...byte) func(net.Conn) { return func(c net.Conn) { _, _ = c.Write(b) } }
	hangUp := func(then func(net.Conn)) func(net.Conn) {
		return func(c net.Conn) { then(c); c.Close() }
	}
	artifact := func(kind byte, path string) frame { return frame{'a', string(kind) + "\x00\x00\x01\xa4" + path} }
	flood := func(f frame) func(net.Conn) {
		b := bytes.Repeat(appendFrame(nil, f.kind, []byte(f.payload)), 1+(32<<10)/(len(f.payload)+5))
		return func(c net.Conn) {
			for {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}
	}
	for _, row := range attackFramesRows(raw, send, hangUp, artifact, ended, flood) {
		t.Run(row.stage+"/"+row.name, func(t *testing.T) {
			t.Parallel()
			w := withGuest(t, func(c net.Conn) {
				defer func() { _, _ = io.Copy(io.Discard, c) }()
				if row.stage == "hello" {
					row.then(c)
					return
				}
				sendFrame(c, 'h', goodHello)
				_, _, _ = hostFrame(c) // the start
				if row.stage == "start" {
					row.then(c)
					return
				}
				sendFrame(c, 's', "")
				if row.stage == "run" {
					row.then(c)
					return
				}
				sendFrame(c, 'x', ended)
				_, _, _ = hostFrame(c) // the end of standard input, or the request
				row.then(c)
			})
			// A waiting stage waits until its deadline, which starts with the stage.
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			stage, err := converse(ctx, w, func(stage string) {
				if row.want == "waits" && stage == row.stage {
					time.AfterFunc(100*time.Millisecond, func() { cancel(context.DeadlineExceeded) })
				}
			})
			attack.Check(t, row.stage+": "+row.name, row.want+" at "+row.stage, verdict(err)+" at "+stage)
		})
	}
}

// converse runs a whole conversation and returns how far it came.
func converse(ctx context.Context, w *wire, enter func(stage string)) (stage string, err error) {
	enter("hello")
	c, err := Connect(ctx, w)
	if err != nil {
		return "hello", err
	}
	defer c.Close()
	enter("start")
	if err := c.Start(ctx, Start{}); err != nil {
		return "start", err
	}
	enter("run")
	if _, err := c.Stream(ctx, nil, io.Discard, io.Discard); err != nil {
		return "run", err
	}
	enter("collect")
	return "collect", c.Collect(ctx, discard{}, 1<<20)
}

type discard struct{}

func (discard) Begin(_, _ os.FileMode, _ string) error { return nil }
func (discard) Large(string) error                     { return nil }
func (discard) Data([]byte) error                      { return nil }

func verdict(err error) string {
	switch {
	case err == nil:
		return "taken"
	case errors.As(err, new(*ProtocolError)):
		return "broke the protocol"
	case errors.Is(err, ErrGone):
		return "gone"
	case errors.Is(err, context.DeadlineExceeded):
		return "waits"
	}
	return fmt.Sprintf("error %v", err)
}
