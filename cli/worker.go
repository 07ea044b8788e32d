package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/fleet/embedded"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
)

type workerFlags struct {
	fleetFlags
	embedded, logJSON   bool
	slots, pool, policy string
	metrics, token      string
	memory              *size
	tenants             []string
	replicas            int
	sessionKeys         []string
	key                 string
	drain               time.Duration
	cluster             clusterFlags
}

func (a *app) workerCommand() *cobra.Command {
	var f workerFlags
	cmd := &cobra.Command{
		Use:   "worker (--nats URL | --embedded) [flags]",
		Short: "Run what a fleet's queue holds, on this host",
		Long: `Worker takes runs from NATS JetStream, runs each in a fresh machine of this host,
and sends back what comes of it. It takes no more than it has room for.

Every run is held to this host's ceiling (--policy), whatever its submitter allows.
On SIGTERM, and on unitask fleet drain, it takes nothing more on and ends when its
runs have, or after --drain: what may be run twice then goes back into the queue.

The process itself keeps within some 400 MiB, whatever tenants send (384 MiB and
4 MiB a slot, unless GOMEMLIMIT says otherwise); --memory is for machines.`,
		Example: `  unitask worker --embedded
  unitask worker --embedded --cluster-listen :6222 --cluster-key cluster.key --routes ` +
			`nats://a:6222,nats://b:6222,nats://c:6222
  unitask worker --nats tls://nats.example.com:4222 --nats-creds worker.creds --slots 8
  unitask run --fleet embedded --code 'console.log(1)'`,
		Args: noArgument,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.worker(cmd, f) },
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&f.url, "nats", "", "the NATS server: nats://HOST:PORT or tls://HOST:PORT, several with commas")
	fl.BoolVar(&f.embedded, "embedded", false,
		"start a NATS server in this process, on a free port of 127.0.0.1, or where --nats says; "+
			"run --fleet embedded finds it")
	f.cluster.add(cmd)
	fl.StringVar(&f.slots, "slots", "auto", "runs at once; auto is as many as processors, and as the memory holds")
	f.memory = sizeVar(fl, "memory", 1<<20, "memory for machines, in all (default three quarters of this host's)")
	fl.StringVar(&f.pool, "pool", "1:2", "machines to keep ready: MIN:MAX, adapted to demand; 0 for none")
	fl.StringVar(&f.policy, "policy", "",
		"a policy file, a ceiling on every run beside each .unitask.toml from here upwards; "+
			"alone if you trust it (policy trust)")
	fl.DurationVar(&f.drain, "drain", 30*time.Second, "how long runs get to end when the worker goes")
	fl.IntVar(&f.replicas, "replicas", 1,
		"copies that JetStream keeps of the queue and of what lies in it: 1, 3 or 5; "+
			"with --routes 3 as soon as there are three servers")
	fl.StringArrayVar(&f.sessionKeys, "session-key", nil,
		"FILE of 64 hex digits (openssl rand -hex 32): workers that have the same resume each other's paused sessions; "+
			"TENANT=FILE is one tenant's own; repeatable")
	fl.StringVar(&f.key, "worker-key", "",
		"a FILE of 64 hex digits (openssl rand -hex 32), the worker's private key: "+
			"submitters with --worker-keys send secrets to those that they list (default one of its own, until it ends)")
	fl.StringVar(&f.metrics, "metrics", "", "serve /metrics for Prometheus, and /healthz, at HOST:PORT")
	fl.StringVar(&f.token, "metrics-token", "",
		"a FILE of the token that /metrics is read with (Authorization: Bearer); an address that is not loopback needs it")
	fl.BoolVar(&f.logJSON, "log-json", false, "log as JSON")
	f.access(cmd)
	fl.StringArrayVar(&f.tenants, "tenant", nil,
		"a tenant to work for, NAME, or NAME=CREDS for each of several: "+
			"a file of credentials into the tenant's own account (default "+fleet.DefaultTenant+")")
	cmd.AddCommand(a.workerClaudeCommand())
	return cmd
}

// defaultMachineMB is the memory of a run that does not request an amount.
const defaultMachineMB = 512

// room returns the number of runs at once, and the memory for them.
func (f *workerFlags) room() (slots, memoryMB int, err error) {
	memoryMB = int(f.memory.n)
	if memoryMB == 0 {
		memoryMB = 4 << 10
		if total, _ := machine.HostMemory(); total < math.MaxInt64 {
			memoryMB = int(total / 4 * 3 >> 20)
		}
	}
	if f.slots == "auto" {
		return max(1, min(runtime.NumCPU(), memoryMB/defaultMachineMB)), memoryMB, nil
	}
	if slots, err = strconv.Atoi(f.slots); err != nil || slots < 1 || slots > 1000 {
		return 0, 0, usage(fmt.Errorf("--slots %s: use auto, or a number from 1 to 1000", f.slots))
	}
	return slots, memoryMB, nil
}

// whom returns the tenants that the worker serves; none means the default tenant, with the credentials of the
// command.
func (f *workerFlags) whom() (list []fleet.Tenant, err error) {
	for _, text := range f.tenants {
		name, creds, named := strings.Cut(text, "=")
		switch err := fleet.CheckTenant(name); {
		case err != nil:
			return nil, usage(fmt.Errorf("--tenant: %w", err))
		case named && creds == "":
			return nil, usage(fmt.Errorf("--tenant %s: name the file of its credentials", text))
		case named && (f.embedded || f.creds != ""):
			return nil,
				usage(fmt.Errorf("--tenant %s: has credentials of its own, so leave out --embedded and --nats-creds",
					text))
		case !named && len(f.tenants) > 1:
			return nil, usage(fmt.Errorf("--tenant %s: several tenants have an account each: use --tenant %s=CREDS", text, text))
		case named:
			list = append(list, fleet.Tenant{Name: name, Creds: creds})
		default:
			f.tenant = name
		}
	}
	return list, nil
}

// check reports flags that exclude each other; it returns the cluster that the flags name, nil for none.
func (f *workerFlags) check() (*embedded.Cluster, error) {
	if f.url == "" && !f.embedded {
		return nil, hint(usage(errors.New("name the NATS server with --nats, or give --embedded")), "unitask worker --help")
	}
	cluster, err := f.cluster.read(f.embedded)
	if err != nil {
		return nil, usage(err)
	}
	switch f.replicas {
	case 1, 3, 5:
		return cluster, nil
	}
	return nil, usage(fmt.Errorf("--replicas %d: use 1, 3 or 5", f.replicas))
}

// workerLog returns a worker's log on standard error.
func (a *app) workerLog(asJSON bool) *slog.Logger {
	level := map[bool]slog.Level{false: slog.LevelWarn, true: slog.LevelInfo}[a.verbose]
	return slog.New(logHandler(a.std.Stderr, asJSON, level))
}

func (a *app) worker(cmd *cobra.Command, f workerFlags) error {
	cluster, err := f.check()
	if err != nil {
		return err
	}
	tenants, err := f.whom()
	if err != nil {
		return err
	}
	slots, memoryMB, err := f.room()
	if err != nil {
		return err
	}
	fleet.LimitMemory(slots)
	keys, err := f.readKeys(tenants, cluster)
	if err != nil {
		return usage(err)
	}
	pool, err := unitask.ParsePoolSize(f.pool)
	if err != nil {
		return usage(err)
	}
	ceiling, err := a.findCeiling(f.policy)
	if err != nil {
		return err
	}
	home, err := a.homeFolder()
	if err != nil {
		return err
	}
	log := a.workerLog(f.logJSON)
	config, announce := fleet.Config{}, func() error { return nil }
	var replicasNow func() int
	if f.embedded {
		server, err := embedded.Start(cmd.Context(), home, embedded.Options{Listen: f.url, Cluster: cluster, Log: log})
		if err != nil {
			return err
		}
		defer server.Close()
		config, announce = server.Config(), server.Announce
		config.Tenant = f.tenant
		if !cmd.Flags().Changed("replicas") {
			replicasNow = server.Replicas
		}
	} else if config, err = f.config(a); err != nil {
		return err
	}
	rt, err := a.openWith(unitask.Options{Ceiling: ceiling, Machines: unitask.Pool(pool, unitask.MachineClass{})})
	if err != nil {
		return err
	}
	defer rt.Close()
	info, err := describeWorker(cmd.Context(), rt, ceiling)
	if err != nil {
		return err
	}
	info.Embedded, info.Slots, info.MemoryMB = f.embedded, slots, memoryMB
	w, err := fleet.NewWorker(cmd.Context(), fleet.WorkerConfig{Config: config, Tenants: tenants, Info: info,
		Drain: f.drain, Replicas: f.replicas, ReplicasNow: replicasNow, SessionKey: keys.session, Key: keys.own,
		Log: log}, fleet.OnHost(rt, ceiling))
	if err != nil {
		return err
	}
	defer w.Close()
	if f.metrics != "" {
		at, stop, err := serveMetrics(cmd.Context(), f.metrics, metricsHandler(w, rt.Pool, keys.metrics))
		if err != nil {
			return err
		}
		defer stop()
		a.ui.note("metrics at http://%s/metrics", at)
	}
	if f.key != "" {
		a.ui.note("public key %x", w.Info().Key)
	}
	if err := announce(); err != nil {
		return err
	}
	a.ui.note("worker %s at %s: %s at once, %d MiB for machines", w.Info().ID, config.URL, count(slots, "run"), memoryMB)
	return w.Run(cmd.Context())
}

// workerKeys are the contents of a worker's key files.
type workerKeys struct {
	session, own []byte // nil means a generated one
	metrics      string // "" means that everybody may read them
}

// readKeys reads the files that the flags name, and stores the tenants' session keys with them.
func (f *workerFlags) readKeys(tenants []fleet.Tenant, cluster *embedded.Cluster) (k workerKeys, err error) {
	if k.session, err = f.readSessionKeys(tenants); err == nil && k.session == nil && cluster != nil {
		k.session, err = cluster.SessionKey()
	}
	if err == nil && f.key != "" {
		k.own, err = readKey("--worker-key", f.key)
	}
	if err == nil && f.token != "" && f.metrics == "" {
		err = errors.New("--metrics-token goes with --metrics")
	}
	if err == nil && f.metrics != "" {
		k.metrics, err = readMetricsToken(f.metrics, f.token)
	}
	return k, err
}

// describeWorker returns a worker's description of its host.
func describeWorker(ctx context.Context, rt *unitask.Runtime, ceiling *policy.Ceiling) (info fleet.WorkerInfo,
	err error) {
	arch := unitask.HostArch()
	info = fleet.WorkerInfo{Version: version(), Arch: string(arch), Images: language.Images(),
		Kernels: []string{string(unitask.Linux)}}
	info.Host, _ = os.Hostname()
	if rt.Images().Best(arch) == unitask.Nanos {
		info.Kernels = append(info.Kernels, string(unitask.Nanos))
	}
	jail, err := rt.Jail(ctx)
	if err != nil {
		return info, err
	}
	for _, l := range jail.Layers {
		if l.Holds {
			info.Jail = append(info.Jail, l.Name)
		}
	}
	if policy.ForFleet(ceiling).TakesImages() {
		info.Images = append(info.Images, policy.ShippedImages)
	}
	return info, nil
}

// readSessionKeys reads the keys that workers share. The key for all tenants is nil if none is named. The keys of some
// tenants are stored with them.
func (f *workerFlags) readSessionKeys(tenants []fleet.Tenant) (all []byte, err error) {
	for _, text := range f.sessionKeys {
		file, into := text, &all
		if name, of, named := strings.Cut(text, "="); named {
			i := slices.IndexFunc(tenants, func(t fleet.Tenant) bool { return t.Name == name })
			if i < 0 {
				return nil, fmt.Errorf("--session-key %s: there is no --tenant %s=CREDS", text, name)
			}
			file, into = of, &tenants[i].SessionKey
		}
		if *into != nil {
			return nil, fmt.Errorf("--session-key %s: there is another one for that already", text)
		}
		if *into, err = readKey("--session-key", file); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// readSecretFile reads a small file that a flag names, and that only its owner may read.
func readSecretFile(flag, file string) ([]byte, error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s %s: others can read it: chmod 600 %s", flag, file, file)
	}
	if st.Size() > maxSecretFile {
		return nil, fmt.Errorf("%s %s: has %s: %s is the most", flag, file, mebibytes(st.Size()), mebibytes(maxSecretFile))
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return text, nil
}

// maxSecretFile bounds such a file, in bytes.
const maxSecretFile = 4 << 10

// readKey reads the key file that a flag names.
func readKey(flag, file string) ([]byte, error) {
	text, err := readSecretFile(flag, file)
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("%s %s: is not 64 hex digits: make one with openssl rand -hex 32", flag, file)
	}
	return key, nil
}
