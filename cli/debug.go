package cli

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/debug"
	"github.com/unitask/unitask/debug/attach"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/vmm"
)

func (a *app) debugCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Look into a machine with QMP, gdb and scripts",
		Long: `Debug is for developers of guests, kernels, images and of unitask itself: a console
that speaks QMP by name, steps, reads registers and memory, keeps and restores the
machine; a socket for gdb; scripts for CI. Every run under it is in its record.`,
	}
	return group(cmd, a.debugRun(), a.debugAttach(), a.debugDump(), a.debugScript(), a.debugTrace())
}

// debugFlags are the flags of a debugged run.
type debugFlags struct {
	runFlags
	gdb, noJail, withSecrets bool
}

func (f *debugFlags) add(a *app, cmd *cobra.Command) {
	f.codeFlags(a, cmd)
	fl := cmd.Flags()
	fl.BoolVar(&f.gdb, "gdb", false,
		"open a socket for gdb, and print the command that joins it, with the kernel's symbols")
	fl.BoolVar(&f.noJail, "no-jail", false, "run QEMU without its jail")
	fl.BoolVar(&f.withSecrets, "with-secrets", false, "allow --secret: a debugger can read what the guest holds")
}

func (a *app) debugRun() *cobra.Command {
	var f debugFlags
	var recording string
	cmd := &cobra.Command{
		Use:   "run (FILE | --code STRING) [flags] [-- ARG...]",
		Short: "Boot a machine for a run, stopped, and open a console on it",
		Long: `Run boots a machine for the code with its processor stopped, and opens a console.
Type help there; Tab completes commands and arguments. The run goes on as always when
you say cont, with no time limit, and the machine ends with the console. A linux kernel
is booted with nokaslr: it is where its symbols are.`,
		Example: `  unitask debug run --kernel linux --code 'console.log(1)'
  unitask debug run --gdb --code-file ./crash.js`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.debugged(cmd, args, f, func(ctx context.Context, c *debug.Console) error {
				if recording != "" {
					if err := c.StartRecording(recording); err != nil {
						return usage(err)
					}
				}
				return a.converse(ctx, c)
			})
		},
	}
	f.add(a, cmd)
	cmd.Flags().StringVar(&recording, "record", "", "write what is typed into this new file, as a script for debug script")
	return cmd
}

func (a *app) debugScript() *cobra.Command {
	var f debugFlags
	var attach string
	var write, memory bool
	cmd := &cobra.Command{
		Use:   "script FILE (--code STRING | --code-file PATH | --attach ID) [flags] [-- ARG...]",
		Short: "Run a console's commands from a file",
		Long: `Script runs a file of console commands, one a line, on a machine that it boots as
debug run does, or on one that it joins (--attach). Each line's result is a line of JSON
on stdout. The first line that fails ends it with exit code 1.

Beside the console's commands: wait serial "TEXT" 10s, wait event NAME, wait stopped,
wait end, and assert EXPRESSION, a jq expression over the last result.`,
		Example: `  unitask debug script boot.txt --kernel linux --code 'console.log(1)'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("which script? unitask debug script FILE"))
			}
			file, err := os.Open(args[0])
			if err != nil {
				return usage(err)
			}
			defer file.Close()
			drive := func(ctx context.Context, c *debug.Console) error { return a.script(ctx, c, file) }
			if attach != "" {
				return a.attached(cmd, attach, accessOf(write, memory), f.withSecrets, drive)
			}
			return a.debugged(cmd, args[1:], f, drive)
		},
	}
	f.add(a, cmd)
	fl := cmd.Flags()
	fl.StringVar(&attach, "attach", "", "join the machine of this run (ID, a unique prefix, or last)")
	fl.BoolVar(&memory, "memory-access", false, "with --attach: allow reading the guest's memory")
	fl.BoolVar(&write, "write", false, "with --attach: allow changing the machine")
	return cmd
}

func (a *app) debugTrace() *cobra.Command {
	var f runFlags
	var what unitask.Trace
	var events []string
	cmd := &cobra.Command{
		Use:   "trace (--code STRING | --code-file PATH) [--syscalls] [-d ITEM]... [--trace PATTERN]... [flags] [-- ARG...]",
		Short: "Run code, and write what its machine does into the record",
		Long: `Trace boots a machine for the code and runs it, as run does. What is asked for goes into
trace.log in the run's record while it runs: the code's system calls, items of
QEMU's log, events of QEMU. The network's decisions are in the record's netlog.jsonl.
Without any of the three flags it is the system calls. Those of the nanos kernel need a
release with klibs/strace, and an image of its own, which is built at the first trace.`,
		Example: `  unitask debug trace --kernel linux --code 'require("fs").readFileSync("/etc/passwd")'
  unitask debug trace -d int --trace 'virtio_blk_*' --code 1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, e := range events {
				what.QEMU = append(what.QEMU, "trace:"+e)
			}
			if len(what.QEMU) == 0 {
				what.Syscalls = true
			}
			rt, req, ceiling, codeOnStdin, err := a.inspected(cmd, args, f)
			if err != nil {
				return err
			}
			defer rt.Close()
			stdout, stderr := a.output(a.std.Stdout, runFlags{}), a.output(a.std.Stderr, runFlags{})
			streams := unitask.IO{Stdout: stdout, Stderr: stderr}
			if !codeOnStdin && isGiven(a.std.Stdin) {
				streams.Stdin = a.std.Stdin
			}
			res, file, err := rt.Trace(cmd.Context(), unitask.Caller{Via: unitask.ViaCLI, Ceiling: ceiling}, req, streams, what)
			err = errors.Join(err, stdout.Close(), stderr.Close())
			a.code = unitask.ExitCode(res, err)
			if st, e := os.Stat(file); e == nil {
				a.ui.note("trace: %s, %s", file, mebibytes(st.Size()))
			}
			if res != nil && err == nil {
				a.explain(res, rt)
			}
			return err
		},
	}
	f.codeFlags(a, cmd)
	fl := cmd.Flags()
	fl.BoolVar(&what.Syscalls, "syscalls", false, "the code's system calls")
	fl.StringArrayVarP(&what.QEMU, "qemu-log", "d", nil,
		"an item of QEMU's log, as its -d takes it: int, guest_errors, in_asm, …; repeatable")
	fl.StringArrayVar(&events, "trace", nil, "events of QEMU whose names are like this: virtio_blk_*; repeatable")
	fl.Int64Var(&what.Bytes, "trace-bytes", 0, "the most that is kept (default 16 MiB)")
	fl.BoolVar(&what.WithSecrets, "with-secrets", false, "allow --secret: a trace may show what the guest holds")
	return cmd
}

func (a *app) debugAttach() *cobra.Command {
	var write, memory, secrets bool
	cmd := &cobra.Command{
		Use:   "attach ID",
		Short: "Open a console on the machine of a run that runs now",
		Long: `Attach joins the machine of a run of yours that runs now, also one of the pool or of
an MCP server. It may only look (query-*, hmp info) unless --memory or --write says
more. Leaving it changes nothing, but for a machine that run --keep-on-crash keeps: quit
ends that one.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.attached(cmd, args[0], accessOf(write, memory), secrets, a.converse)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&memory, "memory", false, "allow reading the guest's memory")
	fl.BoolVar(&write, "write", false, "allow changing the machine")
	fl.BoolVar(&secrets, "with-secrets", false, "allow it even if the guest holds secrets, which can then be read")
	return cmd
}

func (a *app) debugDump() *cobra.Command {
	var out string
	var secrets bool
	cmd := &cobra.Command{
		Use:   "dump ID -o FILE",
		Short: "Write the memory of a machine that runs now as an ELF core",
		Args:  cobra.ExactArgs(1),
		RunE: a.withRuntime(func(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
			if out == "" {
				return usage(errors.New("-o FILE says where to"))
			}
			monitor, rec, err := rt.Consoles().Join(cmd.Context(), args[0], vmm.AccessMemory, secrets)
			if err != nil {
				return attachError(err)
			}
			defer monitor.Disconnect()
			n, err := dump(cmd.Context(), monitor, rec.Machine.MemoryMB, out)
			if err != nil {
				return err
			}
			a.ui.note("%s: %s", out, mebibytes(n))
			return nil
		}),
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "the file, which must not exist")
	cmd.Flags().BoolVar(&secrets, "with-secrets", false,
		"allow it even if the guest holds secrets, which the file then contains")
	return cmd
}

// dump writes a machine's memory to a new file of mode 0600, or leaves no file.
func dump(ctx context.Context, monitor *vmm.Monitor, memoryMB int, name string) (int64, error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, usage(err)
	}
	n, err := attach.Dump(ctx, monitor, memoryMB, file)
	if e := file.Close(); err == nil {
		err = e
	}
	if err != nil {
		_ = os.Remove(name)
	}
	return n, err
}

func accessOf(write, memory bool) vmm.Access {
	switch {
	case write:
		return vmm.AccessWrite
	case memory:
		return vmm.AccessMemory
	}
	return vmm.AccessRead
}

func attachError(err error) error {
	if errors.Is(err, record.ErrNotFound) {
		return usage(err)
	}
	return err
}
