// Package program checks a request's code, and prepares what the guest gets before the code starts.
package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/netstack/broker"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Program is a request's code, checked.
type Program struct {
	Language    *language.Language
	Image       *language.Image
	Custom      *catalog.Custom // the image, if it is custom
	Attachable  bool            // the user's other processes may join its machine
	Text        string
	Path        string // absolute, in the guest
	Dir         string
	inlineFiles []run.InlineFile
	packageType string
	args        []string
	Command     bool              // args are a command of a container's image
	inImage     []string          // the command line in a container's image (adopt)
	ownDir      bool              // the request names Dir
	given       map[string]string // the request's part of env
	nodeArgs    []string
	ownProcess  string // the argument or variable that only a fresh process can apply, or ""
	env         map[string]string
	terminal    *run.Terminal
	Tell        func(run.Event) // of the run
	Arch        image.Arch
	ca          string
	Secrets     map[string]string // all granted ones
	Exposed     int               // how many of them the code itself gets
	Broker      *broker.Broker    // of the others; nil if there are none
	Kept        *broker.Kept      // of the former broker, if the guest continues with its placeholders; else nil
	Check       bool              // only the syntax is checked
	Cold        bool
	Fresh       bool
	Retry       bool
	cpus        float64
	Processes   int        // how many the code may have at once, with its threads; 0 means no limit
	Supervisor  Supervisor // of a session's machine; nil for one run
	Layer       bool       // the changes to the image come back, instead of /out
	Inputs      hostfiles.Set
	Installed   bool           // the inputs have the packages
	Held        *filelock.Lock // keeps the packages from being removed
	Compiled    *Compilation   // nil if no compiled program is kept
	Tools       []File         // clients and types of the tools that the code may call
	Relayed     []uint16       // ports of the guest's loopback that lead to the host's
}

// Supervisor is the program that the guest runs for a session, instead of code.
type Supervisor interface {
	// Files replace the program's files in the guest.
	Files(p *Program) []File
	// DriverPath is the path of the interpreter's driver, if the interpreter is the machine's only process.
	DriverPath() string
	// Started receives the variables, certificates and folder of the guest's start.
	Started(env map[string]string, ca, dir string)
}

// Close releases what the code holds of the host.
func (p *Program) Close() {
	p.Inputs.Close()
	p.Held.Unlock()
}

// RecordName returns the name of the code's file in a record.
func (p *Program) RecordName() string {
	if ext := path.Ext(p.Path); slices.Contains(p.Language.Extensions, ext) {
		return "code" + ext
	}
	return "code" + p.Language.Extensions[0]
}

// File is a file for the guest, and its content.
type File struct {
	guest.File
	Content string
}

func TextFile(at, content string) File {
	return File{guest.File{Path: at, Mode: 0o644, Size: int64(len(content))}, content}
}

// Files returns what must be in the guest before the start, in order, after the inputs.
func (p *Program) Files() []File {
	if p.Supervisor != nil {
		return p.Supervisor.Files(p)
	}
	if p.Command && !p.ownDir {
		return nil // the image has the program
	}
	files := []File{{guest.File{Path: p.Dir, Mode: fs.ModeDir | 0o755, User: !p.Inputs.Under(p.Dir)}, ""}}
	if p.Command {
		return files
	}
	of := path.Join(path.Dir(p.Path), "package.json")
	if p.packageType != "" && !p.hasInlineFile("package.json") && !p.Inputs.At(of) {
		files = append(files, TextFile(of, p.packageJSON()))
	}
	files = append(files, p.Beside()...)
	files = append(files, TextFile(p.Path, p.Text))
	if text := p.runner(); text != "" {
		files = append(files, TextFile(p.main(), text))
	}
	if p.inImage != nil {
		return files
	}
	return append(files, File{guest.File{Path: contract.MainLink, Mode: fs.ModeSymlink, Target: p.main()}, ""})
}

// InOneProcess reports whether it is a session whose interpreter is the machine's only process (Nanos).
func (p *Program) InOneProcess() bool { return p.Supervisor != nil && !p.Fresh }

// runner returns the text of a program that checks or runs the code, or "" if the code runs by itself.
func (p *Program) runner() string {
	if p.Check {
		return p.Language.Check
	}
	return p.Language.Runner
}

// main returns the path of the program that runs: the code or its runner. No file of a request can be at the runner's
// path.
func (p *Program) main() string {
	if p.runner() != "" {
		return contract.UnitaskDir + "/check" + cmp.Or(p.Language.RunnerExtension, p.Language.Extensions[0])
	}
	return p.Path
}

// argv returns its file and its arguments.
func (p *Program) argv() []string {
	switch {
	case p.inImage != nil:
		return p.inImage
	case p.InOneProcess():
		return []string{p.Supervisor.DriverPath()}
	case p.Check:
		return []string{p.main(), p.Path}
	case p.Language.Runner != "":
		return append([]string{p.main(), p.Path}, p.args...)
	}
	return append([]string{p.Path}, p.args...)
}

func (p *Program) packageJSON() string { return fmt.Sprintf("{\"type\":%q}\n", p.packageType) }

// looks reports whether the guest tells what the code leaves in its folder. The root, which an image may start in, has
// /out and /tmp, so its changes tell nothing.
func (p *Program) looks() bool { return p.Dir != "" && p.Dir != "/" && p.Supervisor == nil && !p.Layer }

// Put sends the program, and part of the inputs, into the guest and starts it.
func (p *Program) Put(ctx context.Context, conn *guest.Conn, part hostfiles.Part) error {
	if p.Supervisor != nil {
		if err := conn.Lasting(); err != nil { // first: only then does the guest keep listening
			return err
		}
	}
	if p.Layer {
		if err := conn.Layer(); err != nil {
			return err
		}
	}
	far := progress{Start: time.Now(), Tell: p.Tell}
	if err := p.Inputs.Put(ctx, conn, part, func(s hostfiles.Sent) { far.Sent(time.Now(), s) }); err != nil {
		return err
	}
	for _, f := range append(slices.Clone(p.Tools), p.Files()...) {
		if err := conn.Put(f.File, strings.NewReader(f.Content)); err != nil {
			return err
		}
	}
	if err := conn.Relay(p.Relayed); err != nil {
		return err
	}
	if err := p.limitProcesses(conn); err != nil {
		return err
	}
	if p.looks() {
		if err := conn.Look(p.Dir); err != nil {
			return err
		}
	}
	env, ca := maps.Clone(p.env), p.ca
	maps.Copy(env, p.Secrets)
	p.toolsEnv(env)
	if p.Broker != nil {
		ca += "\n" + string(p.Broker.CA())
		for name := range p.Secrets {
			if placeholder := p.Broker.Placeholder(name); placeholder != "" {
				env[name] = placeholder
			}
		}
	}
	if p.terminal != nil {
		if err := conn.Terminal(p.terminal.Size, p.terminal.Resized); err != nil {
			return err
		}
	}
	if p.ownProcess != "" {
		args, variables := p.Language.Process(p.nodeArgs, env)
		if err := conn.Process(guest.Process{Dir: p.Dir, Args: args, Env: variables}); err != nil {
			return err
		}
	}
	if p.Supervisor != nil {
		if err := conn.Session(); err != nil {
			return err
		}
		p.Supervisor.Started(env, ca, p.Dir)
	}
	at, err := p.Compiled.put(conn)
	if err != nil {
		return err
	}
	err = conn.Start(ctx, guest.Start{Argv: p.argv(), Compiled: at, Env: env, Dir: p.Dir,
		Flags: p.nodeArgs, CA: ca, ReadOnly: p.Inputs.Paths(), Session: p.InOneProcess()})
	var refused *guest.RefusedError
	if errors.As(err, &refused) {
		return p.processError(p.Language.Refused(refused.Words))
	}
	return err
}

// limitProcesses leaves room for the session's program beside the code's processes: it is in their control group, and
// starts each command.
func (p *Program) limitProcesses(conn *guest.Conn) error {
	if p.Processes == 0 || conn.Hello.Kernel != contract.KernelLinux {
		return nil
	}
	most := p.Processes
	if p.Supervisor != nil {
		most++
	}
	return conn.Processes(most)
}

// processError returns the error about an argument or variable that needs a fresh process.
func (p *Program) processError(reason string) error {
	field := "env"
	if strings.HasPrefix(p.ownProcess, "-") {
		field = "nodeArgs"
	}
	return policy.Bad(field, p.ownProcess, "%s", reason)
}

// On gives the code what its streams ask for: a terminal, colours.
func (p *Program) On(streams run.IO) {
	if t := streams.Terminal; t != nil {
		p.terminal, p.Fresh = t, true
		if _, given := p.env["TERM"]; !given {
			p.env["TERM"] = cmp.Or(t.Name, "xterm-256color")
			p.given["TERM"] = p.env["TERM"]
		}
		return
	}
	for _, name := range []string{"FORCE_COLOR", "NO_COLOR", "NODE_DISABLE_COLORS"} {
		if _, given := p.env[name]; given {
			return
		}
	}
	if streams.Colors != "" {
		p.env["FORCE_COLOR"] = streams.Colors
		p.given["FORCE_COLOR"] = streams.Colors
	}
}

// Kernel returns the run's kernel if k is granted; "" means any.
func (p *Program) Kernel(k image.Kernel) (image.Kernel, error) {
	if p.Image.Payload.Custom != nil {
		if k != "" && k != image.Linux {
			return k, policy.Bad("kernel", string(k), "does not run images of one's own: use linux")
		}
		k = image.Linux
	}
	k, err := p.Language.KernelFor(k)
	if err != nil {
		return k, err
	}
	if p.Check && k != "" && k != image.Linux {
		return k, policy.Bad("check", "with kernel "+string(k), "starts a process, which needs the linux kernel")
	}
	if p.Check {
		k = image.Linux
	}
	if k == "" && !p.Command && p.Supervisor == nil && slices.Contains(p.Language.LinuxFiles, path.Ext(p.Path)) {
		k = image.Linux
	}
	if p.Supervisor != nil && k == image.Nanos && p.Language != language.All[0] {
		return k, policy.Bad("kernel", string(k), "has sessions of JavaScript only: use linux")
	}
	if p.Supervisor != nil { // a session's commands are processes
		p.Fresh = p.Fresh || k != image.Nanos
	}
	if p.ownProcess != "" && k != "" && k != image.Linux {
		return k, p.processError("is read when the language starts, which in a machine with the " + string(k) +
			" kernel it has: needs the linux kernel")
	}
	if p.terminal != nil && k != "" && k != image.Linux {
		return k, policy.Bad("kernel", string(k), "has no terminals: use linux")
	}
	return language.FreshKernel(k, p.Fresh, p.cpus)
}

// progress tells how many files have arrived, if they take long.
type progress struct {
	Start, last time.Time
	Tell        func(run.Event)
}

// progressEvery is the time between two reports, and before the first.
const progressEvery = 500 * time.Millisecond

func (p *progress) Sent(now time.Time, s hostfiles.Sent) {
	took := now.Sub(p.Start)
	if took < progressEvery || now.Sub(p.last) < progressEvery {
		return
	}
	p.last = now
	// A file costs as much time as this many bytes.
	const perFile = 16 << 10
	done := float64(s.Bytes) + float64(s.Files)*perFile
	all := float64(s.AllBytes) + float64(s.AllFiles)*perFile
	left := time.Duration(float64(took) * (all - done) / max(done, 1))
	p.Tell(run.Event{Kind: run.EventFiles,
		Message: fmt.Sprintf("%d of %d files, %d of %d MiB are in the machine; some %d s more",
			s.Files, s.AllFiles, s.Bytes>>20, s.AllBytes>>20, int(left.Seconds())+1)})
}
