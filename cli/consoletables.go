package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/fleet/embedded"
	"github.com/unitask/unitask/internal/console"
	"github.com/unitask/unitask/internal/doctor"
)

// consoleTables makes the tables of the console's pages, as the commands print them.
func (a *app) consoleTables(rt *unitask.Runtime, f fleetFlags) map[string]func(context.Context) ([]console.Table,
	error) {
	return map[string]func(context.Context) ([]console.Table, error){
		console.TablesImages: func(ctx context.Context) ([]console.Table, error) { return imageTables(ctx, rt) },
		console.TablesDisk: func(ctx context.Context) ([]console.Table, error) {
			_, t, err := diskTable(ctx, rt)
			if err != nil {
				t.Note = "What is not used can't be told: " + err.Error()
			}
			return []console.Table{t}, nil
		},
		console.TablesPool: func(context.Context) ([]console.Table, error) {
			st, err := unitask.PoolDaemonStatus(rt.Images().Home())
			if errors.Is(err, unitask.ErrNoPool) {
				return []console.Table{{Note: "No pool is up; unitask pool up starts one."}}, nil
			}
			if err != nil {
				return nil, err
			}
			return []console.Table{poolTable(st)}, nil
		},
		console.TablesFleet: func(ctx context.Context) ([]console.Table, error) { return f.tables(ctx, a) },
		console.TablesDoctor: func(ctx context.Context) ([]console.Table, error) {
			return []console.Table{doctorTable(examine(ctx, rt))}, nil
		},
	}
}

// tables returns the workers and the queue of the fleet that the flags name, or of the one of this host. It returns
// none if there is no fleet.
func (f fleetFlags) tables(ctx context.Context, a *app) ([]console.Table, error) {
	given := f.url != ""
	if !given {
		f.url = embedded.Name
	}
	c, err := f.config(a)
	if err != nil && !given {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	client, err := fleet.Connect(c)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	workers, err := client.Workers(ctx)
	if err != nil {
		return nil, err
	}
	queue, err := client.Queue(ctx)
	if err != nil {
		return nil, err
	}
	list := []console.Table{workerTable(workers)}
	for _, d := range queue {
		list = append(list, console.Table{Note: depthLine(d)})
	}
	return list, nil
}

func doctorTable(r *doctor.Report) console.Table {
	t := console.Table{Head: "RESULT|CHECK|DETAIL|REMEDY", Note: r.Verdict}
	for _, c := range r.Checks {
		t.Rows = append(t.Rows, []string{sign(c.OK), c.Name, c.Detail, c.Remedy})
	}
	for _, acc := range r.Accelerators {
		if acc.OK {
			t.Rows = append(t.Rows, []string{sign(true), "accel", fmt.Sprintf("%s boots in %s", acc.Accel,
				secondsOf(acc.BootMs)), ""})
		} else {
			t.Rows = append(t.Rows, []string{"-", "accel", fmt.Sprintf("%s: %s", acc.Accel, acc.Reason), ""})
		}
	}
	return t
}
