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

// look is the time between checks of the cluster.
const look = 500 * time.Millisecond

// standing is a server's view of its cluster.
type standing struct {
	leads    bool // JetStream has a leader: more than half of the servers agree
	here     int  // present servers, including this one
	known    int  // servers seen so far
	expected int  // servers that the quorum is counted from: at first those of the routes
}

// quorum returns the number of servers that must be present.
func (s standing) quorum() int { return s.expected/2 + 1 }

func (s *Server) standing() (now standing) {
	info, err := s.nats.Jsz(&server.JSzOptions{})
	if err != nil || info.Meta == nil {
		return now
	}
	now = standing{leads: info.Meta.Leader != "", here: 1, known: 1, expected: info.Meta.Size}
	for _, peer := range info.Meta.Replicas {
		if peer.Name == s.nats.Name() { // without a leader, this server is in the list
			continue
		}
		now.known++
		if !peer.Offline {
			now.here++
		}
	}
	return now
}

// Replicas returns the number of replicas that the cluster can store now: Copies, or one if there are fewer servers.
func (s *Server) Replicas() int {
	if s.cluster && s.standing().here >= Copies {
		return Copies
	}
	return 1
}

// ready waits until JetStream's servers have elected a leader, and logs a line if that takes long.
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
					"waiting for the other servers of the cluster: %d of %d are here. "+
						"The first time all must be, later more than half",
					now.here, now.expected))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the other servers of the cluster: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// waitingTime is how long a start waits for others before it logs that.
const waitingTime = 3 * time.Second

// watch logs when too few of the cluster's servers are present, and when there are enough again, until ctx ends.
func (s *Server) watch(ctx context.Context) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for before := (standing{leads: true}); ; {
		now := s.standing()
		switch {
		case now.expected == 0: // the server is closing
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

// natsLog logs the server's errors. Anyone who connects to the routes' port can cause errors, so natsLog limits their
// rate. A wrong key at the other end has its own limit, since it is a likely mistake.
type natsLog struct {
	log *slog.Logger

	mu       sync.Mutex
	last     [2]time.Time // of any error, and of a wrong key
	withheld [2]int       // errors since last
}

// errorsEvery is the time between logged errors of the server.
const errorsEvery = 10 * time.Second

// Errorf and the other methods implement server.Logger.
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
