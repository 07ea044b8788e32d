package sessiond

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/machine"
)

// Names of files in the home's folder of sessions.
const (
	socketName = "holder.sock"
	lockName   = "holder.lock"
	listName   = "holder.json"
)

// ErrNone means that no daemon runs.
var ErrNone = errors.New("no session lives")

// folder returns the home's folder of sessions, which only its user may open.
func folder(of string) (string, error) {
	dir := home.Dir(of).Sessions()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if owner := int(st.Sys().(*syscall.Stat_t).Uid); !st.IsDir() || st.Mode().Perm()&0o077 != 0 || owner != os.Geteuid() {
		return "", fmt.Errorf("%s is not this user's alone (%s, uid %d): chmod 700, or remove it", dir, st.Mode(), owner)
	}
	return dir, nil
}

func listen(dir string) (*net.UnixListener, error) {
	_ = os.Remove(filepath.Join(dir, socketName)) // left by a killed daemon: we hold the lock
	return localsocket.Listen(dir, socketName)
}

// connect connects to the home's daemon, which must belong to this user. The error is ErrNone if none runs, or it is
// ending; it is the context's cause if that ends before the daemon greets.
func connect(ctx context.Context, home string) (*wire, error) {
	dir, err := folder(home)
	if err != nil {
		return nil, err
	}
	conn, err := localsocket.Dial(ctx, dir, socketName)
	if ctx.Err() != nil {
		if err == nil {
			conn.Close()
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, ErrNone
	}
	if err := localsocket.SameUser(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("who holds sessions at %s is another user's: %w", dir, err)
	}
	w := &wire{Conn: conn}
	_ = w.SetReadDeadline(time.Now().Add(patience))
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	_, text, err := w.receive(string(rune(kindGreeting)))
	_ = w.SetReadDeadline(time.Time{})
	switch {
	case !stop():
		err = context.Cause(ctx)
	case err != nil:
		err = ErrNone
	case string(text) != version:
		err = errors.New("the process that holds the sessions is another version's: end them by its unitask")
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return w, nil
}

// Streams are the streams of a command line.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resized        <-chan unitask.TerminalSize
}

// Do sends a request to the home's daemon. If none runs and the request needs one, it calls start. That starts a daemon
// and returns a channel that is closed when the daemon ends. Without start the error is ErrNone.
func Do(ctx context.Context, home string, req Request, streams Streams,
	start func() (ended <-chan struct{}, err error)) (Answer, error) {
	w, err := connect(ctx, home)
	var ended <-chan struct{}
	if errors.Is(err, ErrNone) && !needs(home, req) {
		start = nil
	}
	for begin := time.Now(); errors.Is(err, ErrNone) && start != nil && time.Since(begin) < patience; w,
		err = connect(ctx, home) {
		if ended == nil {
			if ended, err = start(); err != nil {
				return Answer{}, err
			}
		}
		select {
		case <-ended: // another one runs already, or it failed
			if w, err = connect(ctx, home); err == nil {
				return w.ask(ctx, req, streams)
			}
			if ended = nil; time.Since(begin) > 5*time.Second {
				return Answer{}, errors.New("the process that is to hold the session has ended")
			}
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return Answer{}, context.Cause(ctx)
		}
	}
	if errors.Is(err, ErrNone) {
		return without(home, req, err)
	}
	if err != nil {
		return Answer{}, err
	}
	return w.ask(ctx, req, streams)
}

// needs reports whether a request needs a daemon if none runs: for a new session, and for a paused one unless it
// ends.
func needs(home string, req Request) bool {
	dir, err := folder(home)
	if err != nil || req.Op == OpList || req.Op == OpEnd {
		return false
	}
	return req.Op == OpNew || slices.ContainsFunc(left(home, dir),
		func(v View) bool { return v.is(req.Session) && v.State == Paused })
}

// without answers a request if no daemon runs.
func without(home string, req Request, none error) (Answer, error) {
	dir, err := folder(home)
	if err != nil {
		return Answer{}, err
	}
	lock, err := filelock.Try(filepath.Join(dir, lockName))
	if err != nil {
		return Answer{}, none // a daemon is starting or ending
	}
	defer lock.Unlock()
	list := left(home, dir)
	if req.Op == OpList {
		return Answer{Sessions: list}, nil
	}
	for i, v := range list {
		switch {
		case !v.is(req.Session):
			continue
		case req.Op == OpEnd:
			err := forget(home, v)
			machine.RemoveLeftovers(filepath.Join(dir, v.ID))
			writeList(dir, slices.Delete(list, i, i+1))
			return Answer{}, err
		case v.State == Lost:
			return Answer{}, v.lostError()
		}
		return Answer{}, none
	}
	if req.Op == OpEnd {
		return Answer{}, forgetUnlisted(home, req.Session)
	}
	return Answer{}, errGone(cmp.Or(req.Session, req.Run))
}

// ask sends a request, and carries the streams until the answer comes.
func (w *wire) ask(ctx context.Context, req Request, streams Streams) (Answer, error) {
	defer w.Close()
	stop := context.AfterFunc(ctx, func() { w.Close() })
	defer stop()
	if req.Op == OpRun && req.Step != nil && len(req.Step.Code) > maxInline {
		step := *req.Step
		streams.Stdin, step.Code = strings.NewReader(step.Code), ""
		req.Op, req.Step = OpRunBy, &step
	}
	if err := w.sendJSON(kindRequest, req); err != nil {
		return Answer{}, err
	}
	over := make(chan struct{})
	defer close(over)
	taken := make(chan struct{}, 1)
	unread := make(chan error, 1) // why the input could not be read
	if streams.Stdin != nil {
		go func() {
			if err := w.pass(streams.Stdin, taken, over, req.Op == OpWrite || req.Op == OpUnpack); err != nil {
				unread <- err
				w.Close()
			}
		}()
	}
	if streams.Resized != nil {
		go func() {
			for {
				select {
				case size, more := <-streams.Resized:
					if !more || w.sendJSON(kindResize, size) != nil {
						return
					}
				case <-over:
					return
				}
			}
		}()
	}
	for {
		kind, text, err := w.receive(string([]rune{kindStdout, kindStderr, kindTaken, kindAnswer}))
		if ctx.Err() != nil {
			return Answer{}, failure.Cancelled(ctx)
		}
		if err != nil {
			select {
			case err := <-unread:
				return Answer{}, err
			default:
			}
			return Answer{}, fmt.Errorf("the process that holds the session has ended: %w", err)
		}
		switch kind {
		case kindStdout:
			_, err = streams.Stdout.Write(text)
		case kindStderr:
			_, err = streams.Stderr.Write(text)
		case kindTaken:
			select {
			case taken <- struct{}{}:
			default:
			}
		case kindAnswer:
			var answer Answer
			if err := json.Unmarshal(text, &answer); err != nil {
				return Answer{}, err
			}
			if answer.Error != nil {
				return answer, answer.Error
			}
			return answer, nil
		}
		if err != nil {
			return Answer{}, err
		}
	}
}

// pass sends the input, a piece at a time. If the input must be complete, a read error is returned. Otherwise it is the
// end of the input, as for a terminal that is gone.
func (w *wire) pass(from io.Reader, taken, over <-chan struct{}, whole bool) error {
	piece := make([]byte, maxPiece)
	for {
		n, err := from.Read(piece)
		if n > 0 {
			if w.send(kindInput, piece[:n]) != nil {
				return nil
			}
			select {
			case <-taken:
			case <-over:
				return nil
			}
		}
		if err != nil && !errors.Is(err, io.EOF) && whole {
			return err
		}
		if err != nil {
			_ = w.send(kindInput, nil)
			return nil
		}
	}
}
