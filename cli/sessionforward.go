package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/internal/sessiond"
)

func (a *app) sessionForward() *cobra.Command {
	return &cobra.Command{
		Use:   "forward SESSION [HOSTPORT:]PORT...",
		Short: "Have ports of this host's loopback lead to ports of a session's machine",
		Long: `Forward has 127.0.0.1:HOSTPORT, or any port that is free, lead to a TCP port of the
machine, until it is interrupted or the session ends. It prints a line for each: where it is
reached, and the machine's port. Anything on this host may connect to it.`,
		Example: `  unitask session forward build 8000
  unitask session forward build 8080:80 0:5432`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := sessiond.Request{Op: sessiond.OpForward, Session: args[0]}
			for _, text := range args[1:] {
				p, err := parsePorts(text)
				if err != nil {
					return usage(err)
				}
				req.Ports = append(req.Ports, p)
			}
			_, err := a.asked(cmd.Context(), req, sessiond.Streams{Stdout: a.std.Stdout})
			return asFlags(cmd, err)
		},
	}
}

// parsePorts parses [HOSTPORT:]PORT. Without HOSTPORT, any free port is used.
func parsePorts(text string) (p sessiond.Port, err error) {
	host, guest, both := strings.Cut(text, ":")
	if !both {
		host, guest = "", host
	}
	host = cmp.Or(host, "0")
	h, err1 := strconv.ParseUint(host, 10, 16)
	g, err2 := strconv.ParseUint(guest, 10, 16)
	if err1 != nil || err2 != nil || g == 0 {
		return p, fmt.Errorf("%.40q is not a port, or HOSTPORT:PORT, of 1 to 65535", text)
	}
	return sessiond.Port{Host: int(h), Guest: int(g)}, nil
}
