package approval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Client lists and answers the questions of current runs in a home, in any process of the same user, and changes their
// policies.
type Client struct {
	Records *record.Store
}

const (
	questionTime = 2 * time.Second // of one process, when all are asked
	listTime     = 4 * time.Second // of all of them
	talksAtOnce  = 32
)

// Underway returns the ids of this user's current runs and sessions in this home, the oldest first.
func (c *Client) Underway() ([]string, error) {
	ids, err := c.sockets()
	return slices.DeleteFunc(ids, func(id string) bool { return !c.Records.Held(id) }), err
}

// sockets returns the ids of runs that have a socket, or left one. It looks once for each record: filepath.Glob reads
// each folder.
func (c *Client) sockets() (ids []string, err error) {
	dir, err := os.Open(c.Records.Dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, id := range names {
		if _, err := os.Lstat(filepath.Join(dir.Name(), id, controlSocket)); err == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, err
}

// Questions returns the open questions of this user's runs in this home, by run. It asks all processes at once, and
// leaves out one that does not answer soon, as one that is stopped.
func (c *Client) Questions(ctx context.Context) ([]run.Question, error) {
	ids, err := c.sockets()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	open := make([]*run.Question, len(ids))
	turns := make(chan struct{}, talksAtOnce)
	var group sync.WaitGroup
	for i, id := range ids {
		group.Go(func() {
			select {
			case turns <- struct{}{}:
				defer func() { <-turns }()
			case <-ctx.Done():
				return
			}
			one, done := context.WithTimeout(ctx, questionTime)
			defer done()
			if told, err := c.talk(one, filepath.Join(c.Records.Dir(), id), asked{}); err == nil { // else it has just ended
				open[i] = told.Open
			}
		})
	}
	group.Wait()
	list := []run.Question{}
	for _, q := range open {
		if q != nil {
			list = append(list, *q)
		}
	}
	return list, nil
}

// Question returns the open question of a run or session of this user, or nil. It returns an error if the run has ended
// or never existed.
func (c *Client) Question(ctx context.Context, id string) (*run.Question, error) {
	open, _, err := c.Asks(ctx, id)
	return open, err
}

// Asks is Question, with the file of the run's ceiling, "" for none: a permanent answer holds for that alone.
func (c *Client) Asks(ctx context.Context, id string) (open *run.Question, ceiling string, err error) {
	if id, err = c.Records.Find(id); err != nil {
		return nil, "", err
	}
	told, err := c.talk(ctx, filepath.Join(c.Records.Dir(), id), asked{})
	return told.Open, told.Ceiling, err
}

// Approve answers the open question of a run of the same user. The host must be the question's HOST:PORT. For AllowOnce
// the request must also match, if the question has one.
func (c *Client) Approve(ctx context.Context, id, host, request string, v run.Verdict) error {
	return c.answer(ctx, id, asked{Host: host, Request: request, Verdict: v})
}

// ApproveShown answers exactly this question. Any later question gets no answer, even about the same request.
func (c *Client) ApproveShown(ctx context.Context, q run.Question, v run.Verdict) error {
	return c.answer(ctx, q.RunID, asked{Host: q.Host, Request: q.Request, Until: q.Until, Verdict: v})
}

func (c *Client) answer(ctx context.Context, id string, say asked) error {
	id, err := c.Records.Find(id)
	if err != nil {
		return err
	}
	told, err := c.talk(ctx, filepath.Join(c.Records.Dir(), id), say)
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

// errUnconfirmed means that a run may have got a message and did not answer.
var errUnconfirmed = errors.New("no answer came")

// talk sends one message to a run's socket. Once the run may have got it, any error is errUnconfirmed.
func (c *Client) talk(ctx context.Context, dir string, say asked) (answer told, err error) {
	timed, cancel := context.WithTimeout(ctx, talkTime)
	defer cancel()
	conn, err := localsocket.Dial(timed, dir, controlSocket)
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	ends, _ := timed.Deadline()
	_ = conn.SetDeadline(ends)
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

// SetPolicy changes the policy of an owner's current run or session in this home. The owner "" is the user of this
// process. The run may be in any process of the same user. The error is the same for an id of another owner, an ended
// one and an unknown one.
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
