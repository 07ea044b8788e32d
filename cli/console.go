package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/netutil"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/console"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
)

const (
	consoleTime  = 10 * time.Second // for a request; its page bounds the time for the answer
	consoleBytes = 16 << 10         // of a request's head
	// consoleConnections is how many connections are served at a time. Others wait.
	consoleConnections = 64
	// browserTime is how long the file that opens a browser stays.
	browserTime = time.Minute
)

func (a *app) consoleCommand() *cobra.Command {
	var listen, file string
	var noOpen bool
	var f fleetFlags
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve pages for your browser: run code, answer questions, sessions, records, the policy",
		Long: `Ui serves pages on this host, opens your browser where there is one, and prints a link. Open
it within ten minutes: it works once. The pages run code, under the ceiling of this folder. They
show the questions that runs wait for, sessions, the policy, and the records of runs: code, output,
pictures, files, and why each connection was allowed or refused.`,
		Args: noArgument,
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, _, err := net.SplitHostPort(listen)
			if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
				return usage(fmt.Errorf("--listen %q: use a loopback address with a port, 127.0.0.1:0", listen))
			}
			rt, err := a.openWith(unitask.Options{Machines: unitask.PoolDaemon(nil)})
			if err != nil {
				return err
			}
			defer rt.Close()
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return usage(err)
			}
			defer l.Close()
			return a.serveConsole(cmd.Context(), l, a.consoleOptions(rt, l, file, f), !noOpen)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "the address, HOST:PORT, on loopback")
	cmd.Flags().StringVar(&file, "policy", "",
		"a policy file, a ceiling on runs beside each .unitask.toml from here upwards")
	cmd.Flags().BoolVar(&noOpen, "no-open", false, "open no browser")
	f.add(cmd)
	cmd.Flags().Lookup("fleet").Usage = "show the workers of this NATS server, too (default the fleet of this host)"
	return cmd
}

// consoleOptions returns what the console at a listener shows and uses.
func (a *app) consoleOptions(rt *unitask.Runtime, l net.Listener, file string, f fleetFlags) console.Options {
	home := rt.Images().Home()
	return console.Options{Host: l.Addr().String(), Approvals: rt.Approvals(), History: rt.History(),
		Run: rt.RunFor, Tables: a.consoleTables(rt, f), Home: home, Secrets: a.readSecrets,
		Sessions: func(ctx context.Context, req sessiond.Request, std sessiond.Streams) (sessiond.Answer, error) {
			return sessiond.Do(ctx, home, req, std, func() (<-chan struct{}, error) { return a.startDaemon(home) })
		},
		Policy: func() (*policy.ForPeople, error) { return policy.LoadForPeople(home, "", file) },
	}
}

func (a *app) serveConsole(ctx context.Context, l net.Listener, options console.Options, open bool) error {
	c := console.New(options)
	defer c.Close()
	server := &http.Server{Handler: c, ReadTimeout: consoleTime, IdleTimeout: time.Minute, MaxHeaderBytes: consoleBytes}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	a.ui.note("serving http://%s; this link opens it once, within ten minutes:", l.Addr())
	fmt.Fprintln(a.std.Stdout, c.Link())
	if open && a.hasBrowser() {
		closed := a.openBrowser(c.Link())
		defer closed()
	}
	if err := server.Serve(netutil.LimitListener(l, consoleConnections)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// hasBrowser reports whether somebody sits before a desktop here.
func (a *app) hasBrowser() bool {
	desktop := runtime.GOOS == "darwin" && os.Getenv("SSH_CONNECTION") == "" ||
		os.Getenv("DISPLAY") != "" || os.Getenv("WAYLAND_DISPLAY") != ""
	return desktop && isTerminal(a.std.Stdout)
}

// openBrowser opens a link in the user's browser. Other users can see a command's arguments: the link is in a file that
// only this user can read, and which closed removes.
func (a *app) openBrowser(link string) (closed func()) {
	opener := "xdg-open"
	if runtime.GOOS == "darwin" {
		opener = "open"
	}
	dir, err := os.MkdirTemp("", "unitask-ui-")
	if err != nil {
		return func() {}
	}
	closed = func() { _ = os.RemoveAll(dir) }
	page := filepath.Join(dir, "open.html")
	text := fmt.Sprintf("<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=\"0; url=%s\">", link)
	cmd := exec.Command(opener, page)
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil || cmd.Start() != nil {
		closed()
		return func() {}
	}
	go func() { _ = cmd.Wait() }()
	time.AfterFunc(browserTime, closed)
	return closed
}
