package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/internal/webterm"
)

const (
	terminals = 8 // open at once
	// terminalIdle ends a terminal in which nobody types.
	terminalIdle = 30 * time.Minute
)

// typed returns the session that an address of a terminal names.
func (c *Console) typed(w http.ResponseWriter, r *http.Request) (s liveSession, ok bool) {
	list, err := c.sessions(r)
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return s, false
	}
	id := r.URL.Query().Get("session")
	at := slices.IndexFunc(list, func(s liveSession) bool { return s.ID == id && s.State != sessiond.Lost })
	if at < 0 {
		c.wrong(w, r, http.StatusNotFound, fmt.Errorf("%.80q is no session of yours", id))
		return s, false
	}
	return list[at], true
}

// terminal is the page of a terminal. Only it interprets terminal sequences.
func (c *Console) terminal(w http.ResponseWriter, r *http.Request) {
	if s, ok := c.typed(w, r); ok {
		c.show(w, r, "terminal.html", map[string]any{"Session": s})
	}
}

// shell is the WebSocket of a terminal's page.
func (c *Console) shell(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Origin") == "" { // browsers send it with each WebSocket
		http.Error(w, "a terminal is for the console's own page", http.StatusForbidden)
		return
	}
	s, ok := c.typed(w, r)
	if !ok {
		return
	}
	c.mu.Lock()
	if c.typing >= terminals || c.ctx.Err() != nil {
		c.mu.Unlock()
		c.wrong(w, r, http.StatusServiceUnavailable, fmt.Errorf("%d terminals are open: close one", terminals))
		return
	}
	c.typing++
	c.going.Add(1)
	ctx, cancel := context.WithDeadline(c.ctx, c.opened.Add(openTime)) // it ends with the login
	c.mu.Unlock()
	defer cancel()
	defer func() {
		c.mu.Lock()
		c.typing--
		c.mu.Unlock()
		c.going.Done()
	}()
	command := &sessiond.Command{Args: []string{"/bin/sh", "-c", "exec $(command -v bash || echo /bin/sh)"}, Endless: true,
		Input: true, Terminal: "xterm-256color", Size: &unitask.TerminalSize{Columns: 80, Rows: 24}}
	t, err := webterm.Start(ctx, webterm.Options{Waits: true, Idle: c.idle, Says: true},
		func(ctx context.Context, std webterm.Streams) (int, error) {
			std.Begun() // an error is said in the terminal
			answer, err := c.Sessions(ctx, sessiond.Request{Op: sessiond.OpExec, Session: s.ID, Command: command},
				sessiond.Streams{Stdin: std.Stdin, Stdout: std.Stdout, Stderr: io.Discard, Resized: std.Sizes})
			if err == nil && answer.Result == nil {
				err = errors.New("the session's process gave no result")
			}
			if err != nil {
				return -1, err
			}
			return answer.Result.ExitCode, nil
		})
	if err != nil {
		c.wrong(w, r, http.StatusConflict, err)
		return
	}
	defer t.End()
	t.Serve(ctx, w, r)
}
