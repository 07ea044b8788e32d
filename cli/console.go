package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/netutil"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/console"
)

const (
	consoleTime  = 10 * time.Second // for a request, and for its answer
	consoleBytes = 16 << 10         // of a request's head
	// consoleConnections is how many connections are served at a time. Others wait.
	consoleConnections = 64
)

func (a *app) consoleCommand() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve pages for your browser: questions of runs, and records with their network",
		Long: `Ui serves pages on this host, and prints a link. Open it within ten minutes: it
works once. The pages show the questions that runs wait for, with buttons to answer, and the
records of runs: code, output, files, and why each connection was allowed or refused.`,
		Args: noArgument,
		RunE: a.withRuntime(func(cmd *cobra.Command, _ []string, rt *unitask.Runtime) error {
			host, _, err := net.SplitHostPort(listen)
			if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
				return usage(fmt.Errorf("--listen %q: use a loopback address with a port, 127.0.0.1:0", listen))
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return usage(err)
			}
			c := console.New(l.Addr().String(), rt.Approvals(), rt.History())
			server := &http.Server{Handler: c, ReadTimeout: consoleTime, WriteTimeout: consoleTime,
				MaxHeaderBytes: consoleBytes}
			defer context.AfterFunc(cmd.Context(), func() { server.Close() })()
			a.ui.note("serving http://%s; this link opens it once, within ten minutes:", l.Addr())
			fmt.Fprintln(a.std.Stdout, c.Link())
			if err := server.Serve(netutil.LimitListener(l, consoleConnections)); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "the address, HOST:PORT, on loopback")
	return cmd
}
