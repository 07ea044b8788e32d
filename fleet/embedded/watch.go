package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// look is how often the cluster is looked at.
const look = 500 * time.Millisecond

// standing is what a server sees of its cluster.
type standing struct {
	leads    bool // somebody leads JetStream: more than half of the servers agree
	here     int  // servers that are there, this one among them
	known    int  // servers that have been there
	expected int  // servers that the quorum is of: in the beginning those that routes name
}

// quorum returns how many must be there.
func (s standing) quorum() int { return s.expected/2 + 1 }

func (s *Server) standing() (now standing) {
	info, err := s.nats.Jsz(&server.JSzOptions{})
	if err != nil || info.Meta == nil {
		return now
	}
	now = standing{leads: info.Meta.Leader != "", here: 1, known: 1, expected: info.Meta.Size}
	for _, peer := range info.Meta.Replicas {
		if peer.Name == s.nats.Name() { // while nobody leads, it is among them
			continue
		}
		now.known++
		if !peer.Offline {
			now.here++
		}
	}
	return now
}

// Replicas returns how many copies of what is in JetStream the cluster can hold now: Copies, or one where there are
// fewer servers than that.
func (s *Server) Replicas() int {
	if s.cluster && s.standing().here >= Copies {
		return Copies
	}
	return 1
}

// ready waits until JetStream's servers agree on one that leads, and says so if that takes a while.
func (s *Server) ready(ctx context.Context) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	begin, said := time.Now(), 0
	for {
		now := s.standing()
		if now.leads {
			return nil
		}
		if now.expected > 0 && time.Since(begin) > waitingTime && now.here != said {
			said = now.here
			s.log.Warn(
				fmt.Sprintf(
					"waiting for the other servers of the cluster: %d of %d are here. The first time all must be, later more than half",
					now.here, now.expected))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the other servers of the cluster: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// waitingTime is how long a start waits for others without a word.
const waitingTime = 3 * time.Second

// watch says when too few of the cluster's servers are there, and when there are enough again, until ctx ends.
func (s *Server) watch(ctx context.Context) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for before := (standing{leads: true}); ; {
		now := s.standing()
		switch {
		case now.expected == 0: // it is being closed
		case before.leads && !now.leads:
			s.log.Warn(
				fmt.Sprintf("more than half of the cluster's %d servers must be there: nothing is taken on until %d more are back",
					now.expected, max(1, now.quorum()-now.here)), "here", now.here)
		case !before.leads && now.leads:
			s.log.Warn("enough of the cluster's servers are there again", "here", now.here, "of", now.expected)
		}
		if now.leads && now.expected == 2 && before.expected != 2 {
			s.log.Warn(
				"a cluster of two servers bears no fault: while either is away nothing is taken on. Three bear the loss of one")
		}
		if now.expected > 0 {
			before = now
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// natsLog passes on what the server calls an error. Who connects to the routes' port can cause some, so they are few:
// that the other end has another key is told of beside any other, since it is what a mistake looks like.
type natsLog struct {
	log *slog.Logger

	mu       sync.Mutex
	last     [2]time.Time // any, and of strangers
	withheld [2]int       // since
}

// errorsEvery is how often an error of the server is passed on.
const errorsEvery = 10 * time.Second

// Errorf and the others are server.Logger's.
func (l *natsLog) Errorf(format string, v ...any) {
	text, kind := fmt.Sprintf("%.500s", fmt.Sprintf(format, v...)), 0
	if strings.Contains(text, errStranger.Error()) {
		kind = 1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last[kind]) < errorsEvery {
		l.withheld[kind]++
		return
	}
	l.log.Warn("NATS: "+text, "withheld", l.withheld[kind])
	l.last[kind], l.withheld[kind] = time.Now(), 0
}

func (l *natsLog) Fatalf(format string, v ...any) { l.Errorf(format, v...) }
func (l *natsLog) Noticef(string, ...any)         {}
func (l *natsLog) Warnf(string, ...any)           {}
func (l *natsLog) Debugf(string, ...any)          {}
func (l *natsLog) Tracef(string, ...any)          {}
