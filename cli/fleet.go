package cli

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/fleet/embedded"
	"github.com/unitask/unitask/internal/console"
)

// fleetFlags describe how to reach a fleet.
type fleetFlags struct {
	url, tenant, creds, ca, cert, key, runID, priority, workerKeys string
	plain                                                          bool
}

// add adds the flags of a command that submits.
func (f *fleetFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.url, "fleet", "",
		"run on the workers of this NATS server, nats://HOST:PORT or tls://HOST:PORT; "+
			"embedded is the one of unitask worker --embedded")
	cmd.Flags().StringVar(&f.tenant, "tenant", "", "whose part of the fleet it is (default "+fleet.DefaultTenant+")")
	cmd.Flags().StringVar(&f.workerKeys, "worker-keys", "",
		"a FILE of the public keys of the workers that secrets are sent to, one a line, "+
			"64 hex digits each (default any worker)")
	f.access(cmd)
}

// access adds the flags for the connection to NATS.
func (f *fleetFlags) access(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.creds, "nats-creds", "", "a file of NATS credentials: a user's JWT with its seed, or an nkey's seed")
	fl.StringVar(&f.ca, "nats-ca", "", "a PEM file of the certificates that the NATS server's is signed by")
	fl.StringVar(&f.cert, "nats-cert", "", "a PEM file of the certificate that this end shows the NATS server")
	fl.StringVar(&f.key, "nats-key", "", "a PEM file of its key")
	fl.BoolVar(&f.plain, "nats-plain", false, "allow nats://, which is in clear, to another host")
}

// config returns the configuration to reach the fleet.
func (f *fleetFlags) config(a *app) (c fleet.Config, err error) {
	if (f.cert == "") != (f.key == "") {
		return c, usage(errors.New("--nats-cert and --nats-key go together"))
	}
	if f.tenant != "" {
		if err := fleet.CheckTenant(f.tenant); err != nil {
			return c, usage(fmt.Errorf("--tenant: %w", err))
		}
	}
	home, err := a.homeFolder()
	if err != nil {
		return c, err
	}
	c, err = embedded.Find(home, fleet.Config{URL: f.url, Tenant: f.tenant, Creds: f.creds, CA: f.ca, Cert: f.cert,
		Key: f.key, Plain: f.plain})
	if err == nil && f.workerKeys != "" {
		if c.WorkerKeys, err = readWorkerKeys(f.workerKeys); err != nil {
			return c, usage(err)
		}
	}
	return c, err
}

// maxKeyFile bounds the file of workers' keys, in bytes.
const maxKeyFile = 1 << 20

// readWorkerKeys reads a file of public keys. An empty file would allow any worker, and is an error.
func readWorkerKeys(file string) (keys [][]byte, err error) {
	st, err := os.Stat(file)
	if err == nil && st.Size() > maxKeyFile {
		err = fmt.Errorf("has %s: %s is the most", mebibytes(st.Size()), mebibytes(maxKeyFile))
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, fmt.Errorf("--worker-keys %s: %w", file, err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		key, err := hex.DecodeString(line)
		if err != nil || len(key) != 32 {
			return nil, fmt.Errorf("--worker-keys %s: %.80q is not 64 hex digits: a worker with --worker-key prints its own",
				file, line)
		}
		keys = append(keys, key)
	}
	if keys == nil {
		return nil, fmt.Errorf("--worker-keys %s: has none", file)
	}
	return keys, nil
}

// open connects to the named fleet; nil means none.
func (f *fleetFlags) open(a *app) (*fleet.Client, error) {
	if f.url == "" {
		if f.tenant+f.creds+f.ca+f.cert+f.key+f.runID+f.priority+f.workerKeys != "" || f.plain {
			return nil, usage(errors.New("--tenant, --run-id, --priority, --worker-keys and --nats-… go with --fleet"))
		}
		return nil, nil
	}
	priority, err := fleet.ParsePriority(f.priority)
	if err != nil {
		return nil, usage(fmt.Errorf("--priority: %w", err))
	}
	for patience := time.Now().Add(embeddedPatience); ; time.Sleep(100 * time.Millisecond) {
		c, err := f.config(a)
		var client *fleet.Client
		if err == nil {
			client, err = fleet.Connect(c)
		}
		switch {
		case err == nil:
			client.RunID, client.Priority = f.runID, priority
			return client, nil
		case f.url != embedded.Name || time.Now().After(patience):
			return nil, err
		}
	}
}

// embeddedPatience bounds how long a command waits for a worker that was started just before it.
const embeddedPatience = 30 * time.Second

func (a *app) fleetCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "fleet",
		Short: "Look at the workers and runs of a fleet",
		Long: `Fleet shows what a fleet's workers and queue hold, and has workers go. A fleet is
NATS with JetStream, and one unitask worker on each host.`,
	}, a.fleetStatus(), a.fleetRuns(), a.fleetDrain(), a.fleetPermissions())
}

// withFleet provides a command with the fleet of --fleet while it runs.
func (a *app) withFleet(cmd *cobra.Command, do func(*cobra.Command, []string, *fleet.Client) error) *cobra.Command {
	var f fleetFlags
	f.add(cmd)
	cmd.Flags().Lookup("fleet").DefValue = embedded.Name
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.url == "" {
			f.url = embedded.Name
		}
		client, err := f.open(a)
		if err != nil {
			return err
		}
		defer client.Close()
		return do(cmd, args, client)
	}
	return cmd
}

func (a *app) fleetStatus() *cobra.Command {
	var asJSON bool
	cmd := a.withFleet(&cobra.Command{Use: "status", Short: "List workers, and what the queue holds", Args: cobra.NoArgs},
		func(cmd *cobra.Command, _ []string, c *fleet.Client) error {
			workers, err := c.Workers(cmd.Context())
			if err != nil {
				return err
			}
			queue, err := c.Queue(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				if workers == nil {
					workers = []fleet.WorkerInfo{}
				}
				return a.ui.json(struct {
					Workers []fleet.WorkerInfo `json:"workers"`
					Queue   []fleet.Depth      `json:"queue"`
				}{workers, queue})
			}
			t := workerTable(workers)
			a.ui.table(t.Head, t.Rows)
			for _, d := range queue {
				a.ui.note("%s", depthLine(d))
			}
			return nil
		})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func workerTable(workers []fleet.WorkerInfo) console.Table {
	t := console.Table{Head: "WORKER|HOST|ARCH|ACCEL|STATE|RUNS|MIB|DONE|RETRIED|LOST"}
	for _, w := range workers {
		state := "ready"
		if w.Draining {
			state = "draining"
		}
		t.Rows = append(t.Rows, []string{w.ID, safe(w.Host), safe(w.Arch), cmp.Or(safe(w.Accel), "-"), state,
			fmt.Sprintf("%d/%d", w.Running, w.Slots), fmt.Sprintf("%d/%d", w.UsedMB, w.MemoryMB),
			strconv.FormatInt(w.Done, 10), strconv.FormatInt(w.Retried, 10), strconv.FormatInt(w.Lost, 10)})
	}
	return t
}

func depthLine(d fleet.Depth) string {
	return fmt.Sprintf("queue: %s of %s for tenant %s with priority %s, those under way included",
		count(int(d.Runs), "run"), safe(d.Class), safe(d.Tenant), safe(string(d.Priority)))
}

func (a *app) fleetRuns() *cobra.Command {
	var asJSON bool
	var most int
	cmd := a.withFleet(&cobra.Command{Use: "runs", Short: "List a tenant's runs of the last day", Args: cobra.NoArgs},
		func(cmd *cobra.Command, _ []string, c *fleet.Client) error {
			runs, err := c.Runs(cmd.Context(), most)
			if err != nil {
				return err
			}
			if asJSON {
				return a.ui.json(runs)
			}
			var rows [][]string
			for _, r := range runs {
				rows = append(rows, []string{safe(r.ID), safe(string(r.State)), r.Created.Local().Format(time.DateTime),
					strconv.Itoa(r.Attempt), safe(r.Worker), safe(r.Why)})
			}
			a.ui.table("ID|STATE|CREATED|ATTEMPT|WORKER|WHY", rows)
			return nil
		})
	cmd.Flags().IntVarP(&most, "limit", "n", 20, "at most this many")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) fleetDrain() *cobra.Command {
	var all bool
	cmd := a.withFleet(&cobra.Command{Use: "drain (WORKER... | --all)",
		Short: "Have workers go when their runs have ended, and wait until they are gone"},
		func(cmd *cobra.Command, args []string, c *fleet.Client) error {
			if all == (len(args) > 0) {
				return usage(errors.New("name workers, or give --all"))
			}
			workers, err := c.Workers(cmd.Context())
			if err != nil {
				return err
			}
			server := false // this command's own server, which ends with one of them
			for _, w := range workers {
				if all {
					args = append(args, w.ID)
				}
				server = server || w.Embedded && w.Server == c.Server() && slices.Contains(args, w.ID)
			}
			for _, id := range args {
				if strings.ContainsAny(id, ".*> \t\r\n") {
					return usage(fmt.Errorf("worker %s: is no id: unitask fleet status lists them", safe(id)))
				}
				if err := c.Drain(cmd.Context(), id); err != nil && !(all && errors.Is(err, fleet.ErrNoWorker)) {
					return err
				}
			}
			home, err := a.homeFolder()
			if err != nil {
				return err
			}
			return untilGone(cmd.Context(), func() bool {
				if server {
					return embedded.Gone(home)
				}
				return !slices.ContainsFunc(args, func(id string) bool { return c.There(cmd.Context(), id) })
			})
		})
	cmd.Flags().BoolVar(&all, "all", false, "all workers")
	return cmd
}

// untilGone waits for something that is expected without a request.
func untilGone(ctx context.Context, gone func() bool) error {
	for !gone() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

func (a *app) fleetPermissions() *cobra.Command {
	var highest string
	cmd := &cobra.Command{
		Use:   "permissions TENANT",
		Short: "Print what a user of a tenant that only submits may do, for the NATS server's configuration",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := fleet.CheckTenant(args[0]); err != nil {
				return usage(err)
			}
			most, err := fleet.ParsePriority(highest)
			if err != nil {
				return usage(fmt.Errorf("--priority: %w", err))
			}
			publish, subscribe := fleet.Permissions(args[0], most)
			list := func(subjects []string) string { return "[\n    \"" + strings.Join(subjects, "\",\n    \"") + "\"\n  ]" }
			return a.report(map[string]any{"publish": publish, "subscribe": subscribe}, func() {
				fmt.Fprintf(a.std.Stdout,
					"permissions {\n  publish { allow: %s }\n  subscribe { allow: %s }\n  allow_responses: true\n}\n", list(publish),
					list(subscribe))
			})
		},
	}
	cmd.Flags().StringVar(&highest, "priority", "",
		"the highest priority that the user may ask for: high, normal or low (default normal)")
	return cmd
}
