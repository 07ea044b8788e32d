package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/webterm"
	"github.com/unitask/unitask/session"
)

// shell is the default command of a terminal.
var shell = []string{"/bin/sh", "-c", "exec $(command -v bash || echo /bin/sh)"}

func (s *Server) openTerminal(c *call) (*answer, error) {
	if !strings.EqualFold(c.r.Header.Get("Upgrade"), "websocket") {
		c.w.Header().Set("Upgrade", "websocket")
		return nil, &Problem{Status: http.StatusUpgradeRequired, Code: "usage",
			Detail: "the request does not ask for a WebSocket", Remedy: "connect with a WebSocket client"}
	}
	of, err := s.session(c)
	if err == nil {
		err = s.shared.Admit(c.caller)
	}
	if err != nil {
		return nil, err
	}
	leave, err := s.sessions.runs.take(c.caller.Name, maxRuns, maxRunsOf, "steps and commands that go on")
	if err != nil {
		return nil, err
	}
	defer leave()
	s.going.Add(1) // an HTTP server forgets about a connection that is a WebSocket
	defer s.going.Done()
	t, err := s.startTerminal(c, of)
	if errors.Is(err, webterm.ErrNotBegun) {
		err = ended(err.Error())
	}
	if err != nil {
		return nil, err
	}
	defer t.End() // before its place is free
	t.Serve(c.r.Context(), c.w, c.r)
	return nil, nil
}

// startTerminal starts a terminal's command, and returns once it runs.
func (s *Server) startTerminal(c *call, of *unitask.Session) (*webterm.Terminal, error) {
	size := terminalSize{Columns: uint16(c.number("columns", 80)), Rows: uint16(c.number("rows", 24))}
	does := unitask.Command{Args: shell, User: c.text("user"), Endless: true, Terminal: size.terminal()}
	if line := c.text("command"); line != "" {
		does.Args = []string{"/bin/sh", "-c", line}
	}
	return webterm.Start(c.r.Context(), webterm.Options{}, func(ctx context.Context, std webterm.Streams) (int, error) {
		shown := of.RedactTo(std.Stdout)
		does.Stdin, does.Stdout, does.Terminal.Resized = std.Stdin, shown, std.Sizes
		does.Started = func(session.Running) { std.Begun() }
		res, err := s.recovering(func() (*unitask.Result, error) { return of.Exec(ctx, does) }, func(error) {})
		_ = shown.Close()
		if res == nil {
			return -1, err
		}
		return res.ExitCode, err
	})
}
