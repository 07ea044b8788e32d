package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Client sees the questions of runs that are under way in a home, in whatever process of the same user, answers them,
// and changes their policies.
type Client struct {
	Records *record.Store
}

// Questions returns those that runs of this user, in this home, ask now.
func (c *Client) Questions(ctx context.Context) ([]run.Question, error) {
	sockets, err := filepath.Glob(filepath.Join(c.Records.Dir(), "*", controlSocket))
	if err != nil {
		return nil, err
	}
	list := []run.Question{}
	for _, socket := range sockets {
		told, err := c.talk(ctx, filepath.Dir(socket), asked{})
		if err == nil && told.Open != nil { // else it has just ended
			list = append(list, *told.Open)
		}
	}
	return list, nil
}

// Question returns what a run or session of this user asks now, nil if that is nothing. The error is that it has ended,
// or never was.
func (c *Client) Question(ctx context.Context, id string) (*run.Question, error) {
	id, err := c.Records.Find(id)
	if err != nil {
		return nil, err
	}
	told, err := c.talk(ctx, filepath.Join(c.Records.Dir(), id), asked{})
	return told.Open, err
}

// Approve answers the question that a run of the same user asks now. The host must be the one that
// it asks about: HOST:PORT; and for AllowOnce the request, where it asks about one.
func (c *Client) Approve(ctx context.Context, id, host, request string, v run.Verdict) error {
	id, err := c.Records.Find(id)
	if err != nil {
		return err
	}
	told, err := c.talk(ctx, filepath.Join(c.Records.Dir(), id), asked{Host: host, Request: request, Verdict: v})
	if errors.Is(err, errUnconfirmed) {
		return fmt.Errorf(
			"run %s was sent the answer, and did not confirm it: %w; unitask inspect says whether it was taken",
			id,
			err,
		)
	}
	if err != nil {
		return fmt.Errorf("run %s asks nothing: it has ended, or has nothing to ask about: %w", id, err)
	}
	if told.Error != "" {
		return fmt.Errorf("run %s: %s", id, told.Error)
	}
	return nil
}

// errUnconfirmed is the error of what a run was told, or may have been, and did not answer.
var errUnconfirmed = errors.New("no answer came")

// talk says one thing to a run's socket. The error is errUnconfirmed from when the run may have heard it.
func (c *Client) talk(ctx context.Context, dir string, say asked) (answer told, err error) {
	timed, cancel := context.WithTimeout(ctx, talkTime)
	defer cancel()
	conn, err := localsocket.Dial(timed, dir, controlSocket)
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(talkTime))
	if err := localsocket.SameUser(conn); err != nil {
		return answer, err
	}
	err = json.NewEncoder(conn).Encode(say)
	if err == nil {
		err = json.NewDecoder(io.LimitReader(conn, talkBytes)).Decode(&answer)
	}
	if err != nil {
		return answer, fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	return answer, nil
}

// SetPolicy changes the policy of a run or session of an owner ("" is the user of this process) that is
// under way in this home, in whatever process of the same user. It is not told apart whether an
// id is another owner's, has ended, or never was.
func (c *Client) SetPolicy(ctx context.Context, owner, id string, change run.PolicyChange) error {
	none := fmt.Errorf("no run or session %.80q of yours is under way", id)
	owner = run.Caller{Name: owner}.WithDefaults().Name
	found, err := c.Records.Find(id)
	if err != nil || strings.TrimSpace(id) == "" {
		return none
	}
	rec, err := c.Records.Get(found)
	if err != nil || rec.Owner != owner {
		return none
	}
	told, err := c.talk(ctx, filepath.Join(c.Records.Dir(), found), asked{Policy: &change})
	if errors.Is(err, errUnconfirmed) {
		return fmt.Errorf(
			"run %s was sent the change, and did not confirm it: %w; it may hold: unitask inspect lists the changes",
			found,
			err,
		)
	}
	if err != nil {
		return none
	}
	if told.Error != "" {
		return fmt.Errorf("run %s: %s", found, told.Error)
	}
	return nil
}
