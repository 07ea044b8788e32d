package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/console"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

func (a *app) poolCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "pool",
		Short: "Keep machines ready, so that runs need not wait for one",
		Long: `Pool keeps clones ready in a background process of your own. unitask run uses one
where there is one, and does without where there is not; each serves one run and
is destroyed. The process hands machines out and sees nothing else of a run: the
policy, the network, the record and the streams stay with the command that runs.`,
	}, a.poolUp(), a.poolDown(), a.poolStatus(), a.poolServe())
}

type poolFlags struct {
	size, image, kernel string
	memory              *size
	fresh               bool
	idle                time.Duration
	cpus                float64
}

func (f *poolFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&f.size, "size", "2:4", "machines that stand ready: MIN:MAX, between them as demand is")
	fl.Float64Var(&f.cpus, "cpus", 1, "processors of each machine")
	f.memory = sizeVar(fl, "memory", 1<<20, policy.FieldOf("memoryMb").Usage())
	fl.StringVar(&f.image, "image", language.Images()[0],
		"image of the machines that stand ready from the beginning: "+strings.Join(language.Images(), ", "))
	fl.StringVar(&f.kernel, "kernel", "", "guest kernel: linux or nanos (default the best there is)")
	fl.BoolVar(&f.fresh, "fresh-process", false, "machines for runs with --fresh-process")
	fl.DurationVar(&f.idle, "idle", 30*time.Minute, "go down when no run has come for so long")
}

// open checks the flags and opens a runtime with the pool that they name.
func (f *poolFlags) open(a *app, cmd *cobra.Command, serve bool) (*unitask.Runtime, error) {
	size, err := unitask.ParsePoolSize(f.size)
	if err == nil && size.Max == 0 {
		err = fmt.Errorf("pool size %q: the most must be more than 0", f.size)
	}
	if err == nil && f.idle <= 0 {
		err = fmt.Errorf("--idle %s: must be more than 0", f.idle)
	}
	if err != nil {
		return nil, usage(err)
	}
	if !serve {
		size = unitask.PoolSize{} // the flags are only checked
	}
	rt, err := a.openWith(unitask.Options{Machines: unitask.Pool(size,
		unitask.MachineClass{Image: f.image, Kernel: unitask.Kernel(f.kernel), MemoryMB: int(f.memory.n), CPUs: f.cpus,
			FreshProcess: f.fresh})})
	return rt, asFlags(cmd, err)
}

func (a *app) poolServe() *cobra.Command {
	var f poolFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the pool in the foreground",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rt, err := f.open(a, cmd, true)
			if err != nil {
				return err
			}
			defer rt.Close()
			return rt.ServePool(cmd.Context(), f.idle)
		},
	}
	f.add(cmd)
	return cmd
}

// poolUpPatience bounds the wait for the machines: a template may have to be made before.
const poolUpPatience = 2 * time.Minute

func (a *app) poolUp() *cobra.Command {
	var f poolFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the pool, and wait until its machines stand ready",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rt, err := f.open(a, cmd, false)
			if err != nil {
				return err
			}
			defer rt.Close()
			home := rt.Images().Home()
			if st, err := unitask.PoolDaemonStatus(home); err == nil {
				a.ui.note("the pool is up already, process %d; unitask pool down ends it", st.Pid)
				return nil
			}
			start := time.Now()
			ended, log, err := a.startPool(home, f)
			if err != nil {
				return err
			}
			for time.Since(start) < poolUpPatience {
				st, err := unitask.PoolDaemonStatus(home)
				switch {
				case err != nil: // it begins
				case st.Idle >= st.Min:
					a.ui.note("the pool is up, process %d: %s ready after %s", st.Pid, count(st.Idle, "machine"),
						seconds(time.Since(start)))
					return nil
				case st.Held != "" && st.Idle > 0:
					a.ui.note("the pool is up, process %d: %d of %s ready; it makes no more: %s", st.Pid, st.Idle,
						count(st.Min, "machine"), st.Held)
					return nil
				case st.Held != "":
					return fmt.Errorf("the pool makes no machine: %s", st.Held)
				}
				select {
				case <-ended:
					text, _ := os.ReadFile(log)
					return fmt.Errorf("the pool ended: %s", bytes.TrimSpace(text))
				case <-cmd.Context().Done():
					return cmd.Context().Err()
				case <-time.After(20 * time.Millisecond):
				}
			}
			return fmt.Errorf("not all machines of --size %s stand ready after %s; see unitask pool status and %s",
				f.size, poolUpPatience, log)
		},
	}
	f.add(cmd)
	return cmd
}

// startPool starts `pool serve` as a separate process, which outlives us.
func (a *app) startPool(home string, f poolFlags) (ended chan struct{}, logName string, err error) {
	logName = layout.Dir(home).PoolLog()
	log, err := os.OpenFile(logName, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, "", err
	}
	defer log.Close()
	cmd, err := detached(append(a.passOn(home), "pool", "serve", "--size", f.size, "--memory",
		strconv.FormatInt(f.memory.n, 10), "--cpus", strconv.FormatFloat(f.cpus, 'g', -1, 64), "--image", f.image, "--kernel",
		f.kernel,
		"--fresh-process="+strconv.FormatBool(f.fresh), "--idle", f.idle.String())...)
	if err != nil {
		return nil, "", err
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	ended = make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return ended, logName, nil
}

func (a *app) poolDown() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End the pool, after the runs that are under way on its machines",
		Args:  cobra.NoArgs,
		RunE: a.withRuntime(func(cmd *cobra.Command, _ []string, rt *unitask.Runtime) error {
			err := unitask.StopPoolDaemon(cmd.Context(), rt.Images().Home())
			if errors.Is(err, unitask.ErrNoPool) {
				a.ui.note("no pool is up")
				return nil
			}
			return err
		}),
	}
}

func poolTable(st *unitask.PoolStatus) console.Table {
	rows := [][]string{
		{"process", fmt.Sprintf("%d, up since %s", st.Pid, st.Started.Local().Format(time.DateTime))},
		{"ready", fmt.Sprintf("%s of %d to %d, %d MiB; %d being made", count(st.Idle, "machine"), st.Min, st.Max,
			st.MemoryMB, st.Making)},
		{"runs", fmt.Sprintf("%d under way, %d served, %d found none ready", st.Running, st.Served, st.Missed)},
	}
	if st.Held != "" {
		rows = append(rows, []string{"held", st.Held})
	}
	return console.Table{Head: "POOL|STATE", Rows: rows}
}

func (a *app) poolStatus() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the pool; exit code 1 where none is up",
		Args:  cobra.NoArgs,
		RunE: a.withRuntime(func(_ *cobra.Command, _ []string, rt *unitask.Runtime) error {
			st, err := unitask.PoolDaemonStatus(rt.Images().Home())
			if errors.Is(err, unitask.ErrNoPool) {
				a.code = 1
				a.ui.note("no pool is up; unitask pool up starts one")
				if asJSON {
					return a.ui.json(map[string]any{"up": false})
				}
				return nil
			}
			if err != nil {
				return err
			}
			if asJSON {
				return a.ui.json(st)
			}
			for _, row := range poolTable(st).Rows {
				a.ui.fact(row[0], "%s", row[1])
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}
