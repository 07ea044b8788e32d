package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/telemetry"
	"github.com/unitask/unitask/policy"
)

type runFlags struct {
	code, file, lang, arch               string
	exec                                 bool
	env, nodeArgs                        []string
	dirMax                               *size
	project, projectMode                 string
	ca, pcap, policy, replay, owner, out string
	json, cold, fresh, outReplace, raw   bool
	keep, withSecrets, check             bool
	tty, input, retry                    bool
	fleet                                fleetFlags
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run (FILE | --code STRING | - | --image REF --exec | --replay ID) [flags] [-- ARG...]",
		Short: "Run code in a fresh machine",
		Long: `Run boots a fresh machine, runs the code in it, and destroys it.

The code is a file, the text that --code gives, or standard input (-): JavaScript or
TypeScript for Node, Python, shell for Bash, Go, a notebook (.ipynb) or SQL, by the file's extension or --lang.
Node's own rules say whether it is an ES module, CommonJS or TypeScript. Arguments
after -- reach the code; standard input, when it is not a terminal and does not hold
the code, does too. Python, shell and Go run on the linux kernel, whatever the default is (Python on nanos by ` +
			`--kernel nanos);
what they need is fetched when they are first used.

The exit code is the code's own, or: 2 for a mistake on the command line, 124 for
the time limit, 125 when unitask or the host failed, 130 when interrupted, 137 when
out of memory, 128+n when ended by signal n. --json tells these from the code's own.`,
		Example: `  unitask run --code 'console.log(process.version)'
  unitask run report.mjs --timeout 2m --memory 1G -- --month 2026-10
  unitask run --project src/main.ts
  unitask run script.py -- --verbose
  unitask run --lang shell --code 'seq 3 | paste -sd+ | bc'
  unitask run --image alpine:3.20 --exec -- cat /etc/os-release
  echo 'console.log(6 * 7)' | unitask run -`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.run(cmd, args, f) },
	}
	f.codeFlags(a, cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.replay, "replay", "",
		"rerun what this record was granted (ID, a unique prefix, or last); "+
			"can't be combined with other flags of the request")
	fl.StringVar(&f.owner, "owner", "", "with --replay: whose the record is, if not the command line's own")
	fl.StringVar(&f.out, "out", "",
		"copy what the code leaves in /out into this folder; "+
			"what exists there stays, as do names that begin with a dot and, unless the folder is empty, files that tools run")
	fl.BoolVar(&f.outReplace, "out-replace", false, "have --out replace files that exist")
	fl.StringVar(&f.pcap, "pcap", "", "write a capture of the guest's network to this file")
	fl.BoolVar(&f.retry, "kernel-retry", false,
		"with --kernel auto: rerun on linux if the code needs what nanos lacks; "+
			"only before it printed anything, and without network and standard input")
	fl.BoolVar(&f.check, "check", false,
		"only check the code's syntax, in a machine, and run nothing of it: node --check, py_compile, bash -n, gofmt -e; "+
			"what they print, and their exit code")
	fl.BoolVar(&f.cold, "cold", false, "boot the machine even if there is a template to clone")
	fl.BoolVar(&f.fresh, "fresh-process", false,
		"start a new process in the clone, so that runs share no address layout (linux)")
	fl.BoolVar(&f.keep, "keep-on-crash", false,
		"boot the machine, and keep it stopped for ten minutes when its guest crashes, for unitask debug attach")
	fl.BoolVar(&f.withSecrets, "with-secrets", false, "with --keep-on-crash: allow --secret, which a debugger can read")
	fl.BoolVar(&f.raw, "raw", false,
		"pass the code's output to a terminal unchanged; by default control sequences other than colours are escaped")
	fl.BoolVarP(&f.tty, "tty", "t", false,
		"give the code a terminal like this one: colours, size, raw input with -i (linux)")
	fl.BoolVarP(&f.input, "interactive", "i", false, "pass standard input to the code even if it is a terminal")
	resultFlag(fl, &f.json)
	f.fleet.add(cmd)
	fl.StringVar(&f.fleet.priority, "priority", "",
		"with --fleet: which of the tenant's runs go first: high, normal or low (default normal)")
	fl.StringVar(&f.fleet.runID, "run-id", "",
		"with --fleet: the run's id there; a second run of the id joins the first (default a new one)")
	return cmd
}

// codeFlags are the flags of the code and its inputs.
func (f *runFlags) codeFlags(a *app, cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&f.code, "code", "", "the code itself")
	fl.StringVar(&f.file, "code-file", "", "the file, like FILE")
	fl.StringVar(&f.lang, "lang", "", "language of the code: "+strings.Join(language.Names(), ", ")+
		"; 'unitask languages' lists more"+
		" (default by the file's extension, js without a file)")
	fl.BoolVar(&f.exec, "exec", false,
		"run the command after -- in the container image that --image names, as its entry point, variables, "+
			"folder and user have it; without one its own")
	f.policyFlags(cmd)
	f.dirMax = sizeVar(fl, "dir-max", 1, fmt.Sprintf("bytes that one --dir may bring (default %d MiB)",
		unitask.DefaultDirMax>>20))
	fl.StringVar(&f.project, "project", "",
		"the project's folder, as --dir brings it, .gitignore applied and node_modules included: "+
			"the code's git repository, or the folder of its package.json; --project=DIR names another")
	fl.Lookup("project").NoOptDefVal = codesProject
	fl.StringVar(&f.ca, "ca", "", "a PEM file of certificates to trust beside the usual ones")
	fl.StringArrayVar(&f.env, "env", nil, "NAME=VALUE for the code's environment; repeatable")
	fl.StringArrayVar(&f.nodeArgs, "node-arg", nil,
		"an argument of Node's own, as --node-arg=--expose-gc; most need the linux kernel; repeatable")
	fl.StringVar(&f.arch, "arch", "", "amd64 or arm64 (default this machine's; another is slow)")
	fl.StringVar(&a.accel, "accel", "auto", "accelerator: auto, kvm, hvf or tcg")
}

// policyFlags are the flags that the ceiling limits: one for each field of the policy.
func (f *runFlags) policyFlags(cmd *cobra.Command) {
	fl := cmd.Flags()
	for _, p := range policy.Fields {
		if p.Flag == "" {
			continue
		}
		switch p.Form() {
		case policy.Number:
			if p.Unit() > 0 {
				sizeVar(fl, p.Flag, p.Unit(), p.Usage())
			} else {
				fl.Int(p.Flag, 0, p.Usage())
			}
		case policy.Fraction:
			fl.Float64(p.Flag, 0, p.Usage())
		case policy.Switch:
			fl.Bool(p.Flag, false, p.Usage())
		case policy.Text, policy.Duration:
			fl.String(p.Flag, "", p.Usage())
		default:
			fl.StringArray(p.Flag, nil, p.Usage())
		}
	}
	fl.StringVar(&f.policy, "policy", "",
		"a policy file, a ceiling on the run beside each .unitask.toml from here upwards; "+
			"alone if you trust it (policy trust)")
}

// findCeiling reads the files that apply in the working directory, and the named one. If there are several, it
// prints which.
func (a *app) findCeiling(named string) (*policy.Ceiling, error) {
	held, err := a.foundCeiling(named)
	if err != nil {
		return nil, err
	}
	return held.Ceiling, nil
}

// foundCeiling is like findCeiling, with the ceiling's origin, also if there is no ceiling yet.
func (a *app) foundCeiling(named string) (*policy.ForPeople, error) {
	held, err := a.heldCeiling(named)
	if err == nil && len(held.Files) > 1 {
		a.ui.note("policy: %s", safe(held.String()))
	}
	if err == nil {
		for _, notice := range held.Ceiling.Notices() {
			a.ui.note("%s", safe(notice))
		}
	}
	return held, err
}

func (a *app) heldCeiling(named string) (*policy.ForPeople, error) {
	home, err := a.homeFolder()
	if err != nil {
		return nil, err
	}
	held, err := policy.LoadForPeople(home, "", named)
	return held, usageOf(err)
}

// usageOf turns an error, if there is one, into a usage error.
func usageOf(err error) error {
	if err == nil {
		return nil
	}
	return usage(err)
}

// granted returns the fields of a request that the policy decides: their wire form, from the given flags and the
// defaults of others.
func (f *runFlags) granted(a *app, cmd *cobra.Command) (req unitask.Request, err error) {
	if err := f.applyDefaults(a, cmd); err != nil {
		return req, err
	}
	wire := map[string]any{}
	var secrets map[string]string
	var hosts map[string][]string
	for _, p := range policy.Fields {
		flag := cmd.Flags().Lookup(p.Flag)
		if flag == nil || !flag.Changed {
			continue
		}
		list, _ := cmd.Flags().GetStringArray(p.Flag)
		switch p.Form() {
		case policy.Number:
			n, _ := cmd.Flags().GetInt(p.Flag)
			if s, ok := flag.Value.(*size); ok {
				n = int(s.n)
			}
			if n == 0 { // 0 means the default in a request
				least, most := p.Bounds()
				must := fmt.Sprintf("must be from %.0f to %.0f", least, most)
				return req, usage(fmt.Errorf("--%s %s: %s%s", p.Flag, flag.Value, must, inUnits(flag, must)))
			}
			wire[p.Key] = n
		case policy.Fraction:
			n, _ := cmd.Flags().GetFloat64(p.Flag)
			if least, most := p.Bounds(); !(n >= least && n <= most) { // 0 is the default; JSON has no infinity
				return req, usage(fmt.Errorf("--%s %s: must be from %g to %g", p.Flag, flag.Value, least, most))
			}
			wire[p.Key] = n
		case policy.Switch:
			wire[p.Key] = flag.Value.String() == "true"
		case policy.Text:
			wire[p.Key] = flag.Value.String()
		case policy.Duration:
			d, err := parseDuration("--"+p.Flag, flag.Value.String())
			if err != nil {
				return req, usage(err)
			}
			wire[p.Key] = policy.Millis(d)
		case policy.List:
			wire[p.Key] = list
		case policy.Mounts:
			wire[p.Key] = parseMounts(list)
		case policy.Names:
			if secrets, hosts, err = a.readSecrets(cmd.Context(), list); err != nil {
				return req, usage(err)
			}
		}
	}
	text, err := json.Marshal(wire)
	if err != nil {
		return req, err
	}
	if err := json.Unmarshal(text, &req); err != nil {
		return req, usage(err)
	}
	req.Secrets, req.SecretHosts = secrets, hosts
	req.AllowNet = append(req.AllowNet, policy.HTTPHosts(policy.Asked(req))...)
	if f.dirMax != nil { // policy show has no such flag
		req.DirMax = f.dirMax.n
	}
	return req, nil
}

func (a *app) run(cmd *cobra.Command, args []string, f runFlags) error {
	var req unitask.Request
	var codeOnStdin bool
	var err error
	if f.owner != "" && f.replay == "" {
		return usage(errors.New("--owner goes with --replay"))
	}
	if f.replay == "" {
		if req, codeOnStdin, err = a.request(cmd, args, f); err != nil {
			return err
		}
	}
	ceiling, err := a.findCeiling(f.policy)
	if err != nil {
		return err
	}
	var rt *unitask.Runtime
	opts := unitask.Options{Ceiling: ceiling,
		Machines: unitask.PoolDaemon(func(sh unitask.MachineClass) { a.warmLater(rt.Images().Home(), sh) })}
	client, err := f.fleet.open(a)
	if err != nil {
		return err
	}
	if client != nil {
		defer client.Close()
		opts.Fleet = client
	}
	rt, err = a.openWith(opts)
	if err != nil {
		return err
	}
	defer rt.Close()
	if id, yes := a.replaysSession(rt, f); yes {
		return a.replaySession(cmd, args, rt, f, id, ceiling)
	}
	replayed := ""
	if f.replay != "" {
		if req, replayed, err = a.recorded(cmd, args, rt, f); err != nil {
			return err
		}
	}
	streams, ended, err := a.runStreams(f, codeOnStdin)
	if err != nil {
		return err
	}
	if f.pcap != "" {
		file, err := os.Create(f.pcap)
		if err != nil {
			return usage(fmt.Errorf("--pcap: %w", err))
		}
		defer file.Close()
		streams.Capture = file
	}
	ctx, stop := context.WithCancelCause(telemetry.FromEnvironment(cmd.Context()))
	defer stop(nil)
	restore, err := a.interactive(f, &streams, stop)
	if err != nil {
		return err
	}
	streams.Approve, streams.ToolsOf = a.approver(f), replayed
	res, err := rt.RunFor(ctx, callerHere(ceiling), req, streams)
	restore()
	if f.replay == "" {
		err = asFlags(cmd, err)
	}
	if e := ended(); e != nil {
		err = errors.Join(err, e)
	}
	a.code = unitask.ExitCode(res, err)
	if f.json && res != nil {
		return a.ui.json(res)
	}
	if res != nil && err == nil {
		a.explain(res, rt)
		a.inOut(res, f)
	}
	if res != nil && err != nil {
		return hint(err, "unitask inspect "+res.RunID)
	}
	return err
}

// runStreams returns the streams of a run from its flags, except a capture; ended is called afterwards and closes
// them.
func (a *app) runStreams(f runFlags, codeOnStdin bool) (streams unitask.IO, ended func() error, err error) {
	ended = func() error { return nil }
	switch {
	case f.json && (f.tty || f.input) || codeOnStdin && f.input:
		return streams, ended, usage(errors.New("-t and -i go neither with --json nor with code on standard input"))
	case f.withSecrets && !f.keep:
		return streams, ended, usage(errors.New("--with-secrets says what --keep-on-crash may do: give both"))
	case f.keep:
		streams.Keep = &unitask.Keep{WithSecrets: f.withSecrets}
	}
	if err := a.readsFolder(); err != nil {
		return streams, ended, err
	}
	if err := f.outFolder(); err != nil {
		return streams, ended, err
	}
	streams.Out, streams.OutReplace = f.out, f.outReplace
	if !codeOnStdin && isGiven(a.std.Stdin) && !(f.retry && isEmpty(a.std.Stdin)) {
		streams.Stdin = a.std.Stdin
	}
	if !f.json {
		stdout, stderr := a.output(a.std.Stdout, f), a.output(a.std.Stderr, f)
		ended = func() error { return errors.Join(stdout.Close(), stderr.Close()) }
		streams.Stdout, streams.Stderr = stdout, stderr
		streams.Colors = colors(a.std.Stdout, os.Getenv)
	}
	return streams, ended, nil
}

// deniedThen prints what a replay does not request again.
func (a *app) deniedThen(rt *unitask.Runtime, id string) {
	var denials []policy.Denial
	if rec, err := rt.Runs().Get(id); err != nil || rec.Denials == nil || json.Unmarshal(rec.Denials, &denials) != nil {
		return
	}
	for _, d := range denials {
		a.ui.note("denied then, and not asked for again: %s %s", d.Field, safe(d.Requested))
	}
}

// warmLater starts a separate process that makes the template for the next run like this one. This run does not
// wait for it; it exits by itself after some seconds. If it fails, the next run boots.
func (a *app) warmLater(home string, sh unitask.MachineClass) {
	cmd, err := detached(append(a.passOn(home), "image", "build", "--warm", "--image", sh.Image, "--kernel",
		string(sh.Kernel), "--arch", string(sh.Arch), "--memory", strconv.Itoa(sh.MemoryMB), "--cpus",
		strconv.FormatFloat(cmp.Or(sh.CPUs, 1), 'g', -1, 64),
		"--fresh-process="+strconv.FormatBool(sh.FreshProcess), "--folders", sh.Folders)...)
	if err == nil && cmd.Start() == nil {
		_ = cmd.Process.Release()
	}
}

// isGiven reports whether the code gets standard input even without -i: it is no terminal, and can be read (nohup's
// can't).
func isGiven(s any) bool {
	f, ok := s.(*os.File)
	if !ok {
		return true
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE != unix.O_WRONLY && !isTerminal(f)
}

// isEmpty reports whether a stream never has data: it is /dev/null.
func isEmpty(s any) bool {
	f, ok := s.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	null, e := os.Stat(os.DevNull)
	return err == nil && e == nil && os.SameFile(st, null)
}

// output returns one of our streams for the code's output. Control sequences are shown on a terminal instead of being
// sent to it, unless --raw is given. With -t, sequences that move the cursor and erase are sent.
func (a *app) output(to io.Writer, f runFlags) io.WriteCloser {
	a.ui.coloured = a.ui.coloured || f.raw || f.tty
	if !f.raw && isTerminal(to) {
		return &terminal{w: to, moves: f.tty, typed: f.tty && f.input, uncoloured: !f.tty && noColors()}
	}
	return asItIs{to}
}

// outFolder creates the folder of --out before the run, so that a bad folder does not cost a run.
func (f *runFlags) outFolder() error {
	if f.outReplace && f.out == "" {
		return usage(errors.New("--out-replace says what --out may do: give both"))
	}
	if f.out == "" {
		return nil
	}
	if err := os.MkdirAll(f.out, 0o755); err != nil {
		return usage(fmt.Errorf("--out: %w", err))
	}
	return nil
}

type asItIs struct{ io.Writer }

func (asItIs) Close() error { return nil }
