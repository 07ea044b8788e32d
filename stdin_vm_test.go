package unitask_test

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
)

// Standard input also ends when init has processes beside the code: one relays a loopback port, another one sends the
// trace.
func TestStdinEnds(t *testing.T) {
	t.Parallel()
	needVM(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	request := unitask.Request{Kernel: unitask.Linux, Timeout: 40 * time.Second,
		Code: `let all = ""; process.stdin.on("data", (d) => all += d).on("end", () => console.log(all, "and its end"))`}
	for _, row := range []struct {
		name string
		run  func(io unitask.IO) (*unitask.Result, error)
	}{
		{"a relay", func(io unitask.IO) (*unitask.Result, error) {
			req := request
			req.AllowTCP = []string{"127.0.0.1:" + strconv.Itoa(server.Addr().(*net.TCPAddr).Port)}
			return rt.Run(t.Context(), req, io)
		}},
		{"a trace", func(io unitask.IO) (*unitask.Result, error) {
			res, _, err := rt.Trace(t.Context(), unitask.Caller{}, request, io, unitask.Trace{Syscalls: true})
			return res, err
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			res, err := row.run(unitask.IO{Stdin: strings.NewReader("x")})
			if err != nil {
				t.Fatal(err)
			}
			if string(res.Stdout) != "x and its end\n" || res.ExitCode != 0 || res.TimedOut {
				t.Errorf("%+v, stdout %q, stderr %q", res, res.Stdout, res.Stderr)
			}
		})
	}
}
