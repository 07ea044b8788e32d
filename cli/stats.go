package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/record"
)

// maxCounted bounds the records that stats reads, the newest first.
const maxCounted = 5000

// stats is what stats prints.
type stats struct {
	Running  int             `json:"running"`        // runs and sessions under way, of all processes
	More     bool            `json:"more,omitempty"` // there are older records, which were not read
	Sessions []sessiond.View `json:"sessions"`
	Host     machine.HostUse `json:"host"`
}

func (a *app) statsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stats",
		Short: "Show what runs here, and how busy this host is",
		Long: `Show how many runs and sessions are under way in this home, in all processes, your
sessions of unitask session, and this host's processors, memory and disk. A server's queue
and limits are the resource unitask://stats of unitask mcp.`,
		Args: cobra.NoArgs,
		RunE: a.withRuntime(func(cmd *cobra.Command, _ []string, rt *unitask.Runtime) error {
			s := stats{Sessions: []sessiond.View{}, Host: machine.UseOfHost(rt.Images().Home())}
			running, next, err := rt.History().Page(history.Filter{Status: string(record.Running), Looked: maxCounted})
			if err != nil {
				return err
			}
			s.Running, s.More = len(running), next != ""
			answer, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpList}, sessiond.Streams{})
			if err != nil && !errors.Is(err, sessiond.ErrNone) {
				return err
			}
			s.Sessions = append(s.Sessions, answer.Sessions...)
			return a.report(s, func() { a.printStats(&s) })
		}),
	}
}

func (a *app) printStats(s *stats) {
	states := map[string]int{}
	for _, one := range s.Sessions {
		states[one.State]++
	}
	load := "-"
	if len(s.Host.Load) == 3 {
		load = fmt.Sprintf("%.2f, %.2f, %.2f", s.Host.Load[0], s.Host.Load[1], s.Host.Load[2])
	}
	of := func(free, all int64) string {
		return fmt.Sprintf("%s free of %s", mebibytes(free), mebibytes(all))
	}
	running := count(s.Running, "run") + ", with those of sessions"
	if s.More {
		running += fmt.Sprintf(", of the newest %d", maxCounted)
	}
	a.ui.fact("running", "%s", running)
	a.ui.fact("sessions", "%d running, %d paused", states[sessiond.Running], states[sessiond.Paused])
	a.ui.fact("processors", "%d, load %s", s.Host.Processors, load)
	a.ui.fact("memory", "%s", of(s.Host.MemoryFree, s.Host.MemoryBytes))
	a.ui.fact("disk", "%s", of(s.Host.DiskFree, s.Host.DiskBytes))
}
