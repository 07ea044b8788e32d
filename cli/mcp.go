package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/e2b"
	"github.com/unitask/unitask/internal/httpapi"
	"github.com/unitask/unitask/internal/vault"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

type mcpFlags struct {
	dir, policy, prompts, skills, pool, kernel string
	concurrent, queue                          int

	http, tokenFile, jwks, audience, issuer, url, cert, key, metricsToken string
	hosts, origins                                                        []string
	stateless, anyone, logJSON                                            bool
	drain                                                                 time.Duration
	callerConcurrent, callerPerMinute                                     int
	fleet                                                                 fleetFlags

	apis   bool   // serve the other APIs, too
	domain string // of the hosts of sandboxes
}

func (a *app) mcpCommand() *cobra.Command {
	var f mcpFlags
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve the Model Context Protocol to agents, on stdin and stdout or over HTTP",
		Long: `Mcp serves the tools run_code, inspect_run, list_runs and unitask_doctor, and for
sessions session_command, wait_command, session_files and manage_session (not with
--fleet), the records of runs as resources, and a folder of snippets as prompts.

Every call is held to a ceiling. The built-in one gives files of this folder only
(over HTTP, and of a folder that holds your home or unitask's, none), no secrets, no
packages, no images of containers and no raw TCP. It does give HTTP and TLS to every
public host that a call names. A client on stdin that can show a form asks you about
each host first; any other client asks nobody. allowNet = [] in the file gives none,
ask = ["*.example.com"] asks in any client. Each key of --policy FILE takes the place
of its own. Every .unitask.toml from here upwards may narrow it; to widen it,
the file must be trusted: unitask policy trust.

--http serves streamable HTTP at ADDR/mcp, with /healthz and /metrics beside it. On a
loopback address it serves your own processes only (where the system does not tell
whose they are, it prints a token that they need), or with --loopback-anyone every user
of this machine. Elsewhere callers need a token: --token-file, or --jwks with --audience.`,
		Example: `  unitask mcp config claude-code --write
  unitask mcp --http 127.0.0.1:7777
  unitask mcp --http 0.0.0.0:7777 --token-file tokens --tls-cert cert.pem --tls-key key.pem`,
		Args: noArgument,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.mcp(cmd, f) },
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	f.addCommon(fl)
	fl.StringVar(&f.http, "http", "", "serve streamable HTTP on HOST:PORT instead of stdin and stdout")
	f.addHTTP(fl, "with --http: ")
	f.fleet.add(cmd)
	cmd.AddCommand(a.mcpConfig(), a.mcpWrap())
	return cmd
}

// addCommon adds the flags of every server.
func (f *mcpFlags) addCommon(fl *pflag.FlagSet) {
	fl.StringVar(&f.dir, "dir", "",
		"where relative paths begin and the ceiling is looked for (default the working directory)")
	fl.StringVar(&f.policy, "policy", "", "the policy file, a ceiling on every run, which this flag trusts "+
		"(default every .unitask.toml from there upwards, see unitask policy trust)")
	fl.StringVar(&f.prompts, "prompts", "", "a folder of snippets (.js, .ts, .py, .sh), offered as prompts")
	fl.StringVar(&f.skills, "skills", "",
		"a folder of Agent Skills, offered as prompts and resources; run_code runs their scripts")
	fl.StringVar(&f.pool, "pool", "1:2", "machines to keep ready: MIN:MAX, adapted to demand; 0 for none")
	fl.StringVar(&f.kernel, "kernel", "",
		"guest kernel of the machines kept ready: linux or nanos (default nanos if its kernel is vendored, else linux)")
	fl.IntVar(&f.concurrent, "max-concurrent", 4, "concurrent runs")
	fl.IntVar(&f.queue, "max-queue", 64, "calls that may wait in the queue")
	fl.BoolVar(&f.logJSON, "log-json", false, "log as JSON")
}

// addHTTP adds the flags of a server over HTTP; with begins their texts.
func (f *mcpFlags) addHTTP(fl *pflag.FlagSet, with string) {
	fl.BoolVar(&f.anyone, "loopback-anyone", false, with+"on a loopback address, serve every user of this machine")
	fl.StringVar(&f.tokenFile, "token-file", "", with+"a file of callers, one NAME TOKEN per line")
	fl.StringVar(&f.metricsToken, "metrics-token", "", with+"a file with the token that reads /metrics "+
		"(default only processes of your own read it, on a loopback address)")
	fl.StringVar(&f.jwks, "jwks", "", with+"accept JSON Web Tokens signed by a key of this URL")
	fl.StringVar(&f.audience, "audience", "", "with --jwks: the aud that tokens must have")
	fl.StringVar(&f.issuer, "issuer", "", "with --jwks: the iss that tokens must have")
	fl.StringVar(&f.url, "url", "", "with --jwks: where clients reach this server (default the audience)")
	fl.StringVar(&f.cert, "tls-cert", "", with+"a PEM file of the certificate chain")
	fl.StringVar(&f.key, "tls-key", "", with+"a PEM file of its key")
	fl.StringArrayVar(&f.hosts, "allow-host", nil, with+"a host name that requests may use; repeatable")
	fl.StringArrayVar(&f.origins, "allow-origin", nil, with+"a web origin that may call; repeatable")
	fl.BoolVar(&f.stateless, "stateless", false,
		with+"no sessions for older clients either, for load balancers without affinity")
	fl.DurationVar(&f.drain, "drain", 30*time.Second, with+"on SIGTERM, how long current runs get to finish")
	fl.IntVar(&f.callerConcurrent, "caller-concurrent", 0, with+"concurrent runs per caller (default no limit)")
	fl.IntVar(&f.callerPerMinute, "caller-per-minute", 0, with+"runs per minute per caller, and ten times "+
		"as many listings and readings of records (default no limit)")
}

// mcp serves until the input ends or the command is stopped.
func (a *app) mcp(cmd *cobra.Command, f mcpFlags) error {
	size, err := unitask.ParsePoolSize(f.pool)
	if err != nil {
		return usage(err)
	}
	if err := checkMCPFlags(cmd, f); err != nil {
		return err
	}
	home, err := a.homeFolder()
	if err != nil {
		return err
	}
	held, err := policy.LoadForModels(home, f.dir, f.policy, f.http != "")
	if err != nil {
		return usage(err)
	}
	httpOpts, err := f.httpOptions()
	if err != nil {
		return usage(err)
	}
	secrets, err := a.vault()
	if err != nil {
		return err
	}
	strangers := f.strangers(httpOpts.Auth, held.Ceiling, secrets)
	if len(strangers) > 0 && httpOpts.Auth != nil {
		return usage(errors.New(strangers[0]))
	}
	token := ""
	if httpOpts.NeedsToken() {
		httpOpts.Auth, token = mcp.NewToken()
	}
	if f.http != "" { // before images are built
		if err := httpOpts.Check(); err != nil {
			return usage(err)
		}
	}
	log := a.openMCPLog(f)
	warnOfCeiling(log, held)
	for _, why := range strangers {
		log.Warn(why)
	}
	progress := mcp.NewProgress(logEvents(cmd.Context(), log))
	opts := unitask.Options{Home: a.home, StoreBytes: a.store.n, Offline: a.mayNotFetch(),
		Events: progress.Event, Machines: unitask.Pool(size,
			unitask.MachineClass{Kernel: unitask.Kernel(f.kernel)})}
	client, err := f.fleet.open(a)
	if err != nil {
		return err
	}
	if client != nil { // its workers have machines ready
		defer client.Close()
		opts.Fleet, opts.Machines = client, unitask.Templates()
	}
	rt, err := unitask.Open(opts)
	if err != nil {
		return err
	}
	defer rt.Close()
	server, err := mcp.New(rt, mcp.Options{Vault: secrets, Progress: progress, Version: version(), Dir: f.dir,
		Ceiling: held.Ceiling, Policy: held, Prompts: f.prompts, Skills: f.skills,
		MaxConcurrent: f.concurrent, MaxQueue: f.queue, CallerConcurrent: f.callerConcurrent,
		CallerPerMinute: f.callerPerMinute, Log: log})
	if err != nil {
		return usage(err)
	}
	defer server.Close()
	if f.http == "" {
		return server.ServeStdio(cmd.Context(), a.std.Stdin, a.std.Stdout)
	}
	if f.apis {
		own := httpapi.New(httpapi.Options{Runtime: rt, Shared: server, Version: version(), Log: log})
		defer own.Wait()
		boxes := e2b.New(e2b.Options{Runtime: rt, Caller: server.Caller, Admit: server.Admit, Hide: server.Hide,
			Context: server.Context(), Tokens: httpOpts.Auth != nil, Domain: f.domain, Log: log})
		defer boxes.Wait()
		defer server.Close() // which ends what these wait for
		httpOpts.APIs = []mcp.API{own, boxes}
	}
	return a.serveMCPOverHTTP(cmd.Context(), server, httpOpts, token)
}

// checkMCPFlags returns an error if a flag is given without the flag that it needs.
func checkMCPFlags(cmd *cobra.Command, f mcpFlags) error {
	needing := []struct {
		value, flag string
		names       []string
	}{
		{f.http, "http", []string{"loopback-anyone", "token-file", "metrics-token", "jwks", "tls-cert", "tls-key",
			"allow-host", "allow-origin", "stateless", "drain"}},
		{f.jwks, "jwks", []string{"audience", "issuer", "url"}},
	}
	for _, need := range needing {
		for _, name := range need.names {
			if need.value == "" && cmd.Flags().Changed(name) {
				return usage(fmt.Errorf("--%s needs --%s", name, need.flag))
			}
		}
	}
	return nil
}

// openMCPLog logs to standard error: standard output is the protocol's.
func (a *app) openMCPLog(f mcpFlags) *slog.Logger {
	level := slog.LevelWarn
	if a.verbose || f.http != "" {
		level = slog.LevelInfo
	}
	return slog.New(logHandler(a.std.Stderr, f.logJSON, level))
}

// warnOfCeiling logs the keys of policy files that are ignored.
func warnOfCeiling(log *slog.Logger, held *policy.ForModels) {
	for file := held; file != nil; file = file.Above {
		for _, w := range file.Ignored {
			log.Warn("the ceiling's file may only narrow the built-in ceiling; a key is ignored", "file", file.File,
				"key", w.Key, "value", w.Value, "why", "it "+file.Why, "remedy", file.Remedy())
		}
	}
}

// logEvents returns a sink of events that logs them.
func logEvents(ctx context.Context, log *slog.Logger) func(unitask.Event) {
	return func(e unitask.Event) {
		level := slog.LevelDebug
		switch e.Kind {
		case unitask.EventTransfer:
			return
		case unitask.EventStore:
			level = slog.LevelWarn
		case unitask.EventImage: // a call waits for it
			level = slog.LevelInfo
		}
		log.Log(ctx, level, e.Message, "event", e.Kind)
	}
}

// serveMCPOverHTTP prints the address, and the token if it made one.
func (a *app) serveMCPOverHTTP(ctx context.Context, server *mcp.Server, opts mcp.HTTPOptions, token string) error {
	if os.Getenv("GOMEMLIMIT") == "" { // near the limit, unused memory is collected more often
		debug.SetMemoryLimit(mcp.UsualMemory)
	}
	return server.ServeHTTP(ctx, opts, func(at net.Addr) {
		scheme := "http"
		if opts.TLS != nil {
			scheme = "https"
		}
		if len(opts.APIs) == 0 {
			a.ui.note("serving %s://%s/mcp", scheme, at)
		} else {
			a.ui.note("serving %[1]s://%[2]s: its own HTTP API at /v1 (/openapi.json describes it), MCP at /mcp, "+
				"and E2B's API with E2B_API_URL=%[1]s://%[2]s E2B_SANDBOX_URL=%[1]s://%[2]s", scheme, at)
		}
		if token != "" {
			a.ui.note("this system does not tell whose connections are; "+
				"callers need this token, made for this start: %s", token)
		}
	})
}

// strangers logs tables of principals and of callers' secrets that match no caller of the server. A caller whose name
// differs gets the whole ceiling, and everybody's secrets.
func (f *mcpFlags) strangers(auth *mcp.Auth, ceiling *policy.Ceiling, secrets *vault.Vault) (list []string) {
	if f.http == "" {
		return nil
	}
	tables := ceiling.Tables()
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		if why := auth.Nobody(name); why != "" {
			list = append(list, fmt.Sprintf("%s is for no caller: %s", tables[name], why))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(secrets.Callers)) {
		if why := auth.Nobody(name); why != "" {
			list = append(list, fmt.Sprintf("callerSecrets.%q is for no caller: %s", name, why))
		}
	}
	return list
}

func logHandler(w io.Writer, asJSON bool, level slog.Level) slog.Handler {
	if asJSON {
		return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})
	}
	return slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})
}

// httpOptions checks and returns the flags of the HTTP side.
func (f *mcpFlags) httpOptions() (opts mcp.HTTPOptions, err error) {
	opts = mcp.HTTPOptions{Addr: f.http, Hosts: f.hosts, Origins: f.origins, Anyone: f.anyone, Stateless: f.stateless,
		Drain: f.drain}
	switch {
	case f.tokenFile != "" && f.jwks != "":
		return opts, errors.New("give --token-file or --jwks, not both")
	case f.tokenFile != "":
		opts.Auth, err = mcp.TokenFile(f.tokenFile)
	case f.jwks != "":
		opts.Auth, err = mcp.JWTs(mcp.JWTOptions{JWKS: f.jwks, Audience: f.audience, Issuer: f.issuer, URL: f.url})
	}
	if err != nil {
		return opts, err
	}
	if f.metricsToken != "" {
		if opts.MetricsToken, err = readMetricsToken("", f.metricsToken); err != nil {
			return opts, err
		}
	}
	if (f.cert == "") != (f.key == "") {
		return opts, errors.New("--tls-cert and --tls-key go together")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return opts, fmt.Errorf("--tls-cert: %w", err)
		}
		opts.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
			NextProtos: []string{"h2", "http/1.1"}}
	}
	return opts, nil
}
