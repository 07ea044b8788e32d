package e2b

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/session"
)

// recipe tells what a build does.
type recipe struct {
	FromImage    string      `json:"fromImage"`
	Registry     any         `json:"fromImageRegistry"`
	FromTemplate string      `json:"fromTemplate"`
	Start        string      `json:"startCmd"`
	Ready        string      `json:"readyCmd"`
	Steps        []buildStep `json:"steps"`
}

// buildStep is one step of a recipe.
type buildStep struct {
	Type  string   `json:"type"`
	Args  []string `json:"args"`
	Files string   `json:"filesHash"`
}

// baseImages are the container images that E2B's SDKs name for templates that unitask has.
var baseImages = map[string]string{"e2bdev/base": "base", "e2bdev/code-interpreter": "code-interpreter-v1"}

// check returns why a recipe can't be carried out.
func (in *recipe) check() error {
	switch {
	case in.FromTemplate != "" && in.FromImage != "":
		return policy.Bad("fromImage", "given", "goes without fromTemplate")
	case len(in.FromTemplate) > maxTemplate:
		return policy.Bad("fromTemplate", fmt.Sprintf("of %d bytes", len(in.FromTemplate)), "has at most %d", maxTemplate)
	case len(in.Steps) > maxSteps:
		return policy.Bad("steps", fmt.Sprintf("%d of them", len(in.Steps)), "may be %d at most", maxSteps)
	}
	for i, step := range in.Steps {
		action, ok := actions[step.Type]
		if !ok {
			return policy.Bad(fmt.Sprintf("steps[%d]", i), fmt.Sprintf("%.40q", step.Type),
				"has the type RUN, COPY, ENV, WORKDIR or USER")
		}
		if len(step.Args) < action.least {
			return policy.Bad(fmt.Sprintf("steps[%d]", i), step.Type, "needs %d args", action.least)
		}
	}
	return nil
}

// base returns the template that a recipe begins with.
func (in *recipe) base() (string, error) {
	if in.FromTemplate != "" {
		return in.FromTemplate, nil
	}
	if in.FromImage == "" {
		return "base", nil
	}
	if in.Registry != nil {
		return "", fmt.Errorf("image %.80q: a build has no login of its own: give it to the server's host, as docker login "+
			"does (docs/containers.md)", in.FromImage)
	}
	name, digest, _ := strings.Cut(in.FromImage, "@")
	tagged := strings.LastIndexByte(name, ':') > strings.LastIndexByte(name, '/')
	bare := name
	if tagged {
		bare = name[:strings.LastIndexByte(name, ':')]
	}
	if template := baseImages[strings.TrimPrefix(bare, "docker.io/")]; template != "" {
		return template, nil
	}
	if !tagged && digest == "" {
		return name + ":latest", nil
	}
	return in.FromImage, nil
}

// buildRun is a build in progress: a session, and what the steps so far have set.
type buildRun struct {
	server     *Server
	caller     unitask.Caller
	build      *build
	recipe     recipe
	session    *unitask.Session
	interprets bool
	step       string // base, a number from 1 on, or finalize
	user       string
	dir        string // "" is the user's home
	env        map[string]string
}

// recovering is make. If that panics, recovering logs it, and returns an error.
func (b *buildRun) recovering(ctx context.Context) (made *snapshot, err error) {
	defer func() {
		if what := recover(); what != nil {
			b.server.opts.Log.Error("e2b: panic", "what", what, "stack", string(debug.Stack()))
			made, err = nil, errors.New("a mistake of the server; its log has the details")
		}
	}()
	return b.make(ctx)
}

// make carries out the recipe and returns the paused session that it leaves.
func (b *buildRun) make(ctx context.Context) (made *snapshot, err error) {
	b.step = "base"
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if made == nil { // also after a panic
			_ = b.session.Close()
		}
	}()
	for i, step := range b.recipe.Steps {
		b.step = strconv.Itoa(i + 1)
		b.build.tell("info", b.step, fmt.Sprintf("%s %.200s", step.Type, strings.Join(step.Args, " ")))
		if err := actions[step.Type].do(b, ctx, step); err != nil {
			return nil, err
		}
	}
	b.step = "finalize"
	if err := b.boot(ctx); err != nil {
		return nil, err
	}
	for told := false; ; told = true {
		err := b.session.Pause(ctx)
		if err == nil {
			break
		}
		if !errors.As(err, new(*unitask.BusyError)) {
			return nil, err
		}
		if !told {
			why := b.server.shown(b.caller, err).Error()
			b.build.tell("warn", "finalize", "it waits until it can be paused: "+why)
		}
		select {
		case <-time.After(restPeriod):
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		}
	}
	effective := b.session.Policy.Effective
	return &snapshot{id: b.build.of.id, owner: b.caller.Name, cpus: 1, memoryMB: effective.MemoryMB,
		session: b.session, interprets: b.interprets, setup: setup{user: b.user, dir: b.dir, env: b.env}}, nil
}

// begin starts the session of the template that the recipe begins with.
func (b *buildRun) begin(ctx context.Context) error {
	base, err := b.recipe.base()
	if err != nil {
		return err
	}
	box := &sandbox{id: newID(), template: base, caller: b.caller, building: true}
	b.build.tell("info", b.step, "FROM "+base)
	if err := b.server.begin(ctx, box, b.build.memoryMB); err != nil {
		return err
	}
	b.session, b.dir, b.user = box.session, box.setup.dir, box.setup.usual()
	b.interprets = box.interprets
	maps.Copy(b.env, box.setup.env)
	return nil
}

// run runs a program of the machine as a user, and logs what it prints.
func (b *buildRun) run(ctx context.Context, user string, args ...string) error {
	box := &sandbox{id: b.build.id, template: b.build.of.id, envs: b.env}
	out := &logWriter{to: b.build, step: b.step}
	until, _ := ctx.Deadline()
	res, err := b.session.Exec(ctx, unitask.Command{Args: args, Dir: b.folder(user), User: user,
		Env: box.environment(user, nil), Timeout: max(time.Second, min(time.Until(until), b.session.LongestStep())),
		Stdout: out, Stderr: out, ResultBytes: 1})
	out.flush()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	case res.Outcome != unitask.OutcomeExited:
		return fmt.Errorf("%s: %s", res.Outcome, res.Error)
	case res.ExitCode != 0:
		return fmt.Errorf("the command's exit code is %d", res.ExitCode)
	}
	return nil
}

// folder returns the folder in which a user's commands run.
func (b *buildRun) folder(user string) string {
	if b.dir != "" {
		return b.dir
	}
	return homeOf(user)
}

// actions are the types of steps, with the number of arguments that they need.
var actions = map[string]struct {
	least int
	do    func(*buildRun, context.Context, buildStep) error
}{
	"RUN":     {1, (*buildRun).runStep},
	"COPY":    {2, (*buildRun).copyStep},
	"ENV":     {2, (*buildRun).envStep},
	"WORKDIR": {1, (*buildRun).workdirStep},
	"USER":    {1, (*buildRun).userStep},
}

func (b *buildRun) runStep(ctx context.Context, step buildStep) error {
	user := b.user
	if len(step.Args) > 1 && step.Args[1] != "" {
		var err error
		if user, err = knownUser(step.Args[1], nil); err != nil {
			return err
		}
	}
	return b.run(ctx, user, "/bin/bash", "-l", "-c", step.Args[0])
}

func (b *buildRun) envStep(_ context.Context, step buildStep) error {
	if len(step.Args)%2 != 0 {
		return errors.New("ENV needs pairs of name and value")
	}
	more := map[string]string{}
	for pair := range slices.Chunk(step.Args, 2) {
		more[pair[0]] = pair[1]
	}
	if err := checkNames(more); err != nil {
		return err
	}
	maps.Copy(b.env, more)
	if sizeOf(b.env) > maxMetadata {
		return fmt.Errorf("the template's variables have more than %d bytes", maxMetadata)
	}
	return nil
}

func (b *buildRun) workdirStep(ctx context.Context, step buildStep) error {
	dir := step.Args[0]
	if !path.IsAbs(dir) {
		dir = path.Join(b.folder(b.user), dir)
	}
	if err := b.run(ctx, "root", "/bin/sh", "-c", `test -d "$1" || { mkdir -p -- "$1" && chown "$2" -- "$1"; }`, "sh", dir,
		b.user); err != nil {
		return err
	}
	b.dir = path.Clean(dir)
	return nil
}

func (b *buildRun) userStep(_ context.Context, step buildStep) error {
	user, err := knownUser(step.Args[0], nil)
	if err == nil {
		b.user = user
	}
	return err
}

// copyScript unpacks the files of a COPY step, as Dockerfiles have it: the contents of a folder, or a file, or what a
// pattern names. Its arguments are the archive, the source, the target, the owner, and the mode or "".
const copyScript = `set -eu
shopt -s dotglob
archive=$1 source=$2 target=$3 owner=$4 mode=$5
from=$(mktemp -d)
trap 'rm -rf -- "$from" "$archive"' EXIT
tar -x -f "$archive" -C "$from" --no-same-owner
cd -- "$from"
if [ -n "$mode" ]; then chmod -R -- "$mode" .; fi
chown -hR -- "$owner" .
case $source in *[*?[]*) many=1 ;; *) many= ;; esac
folder() { [ -d "$1" ] || { mkdir -p -- "$1" && chown -- "$owner" "$1"; }; }
put() {
	if [ -d "$1" ] && [ ! -L "$1" ] && [ -z "$many" ]; then
		folder "$target" && cp -a -- "$1/." "$target/"
	elif [ -n "$many" ] || [ -d "$target" ] || [ "${target%/}" != "$target" ]; then
		folder "$target" && cp -a -- "$1" "$target/"
	else
		folder "$(dirname -- "$target")" && cp -aT -- "$1" "$target"
	fi
}
found=
IFS=
for name in $source; do
	if [ -e "$name" ] || [ -L "$name" ]; then found=1; put "$name"; fi
done
if [ -z "$found" ]; then echo "nothing in the files is named $source" >&2; exit 1; fi
`

// validOwner matches USER or USER:GROUP.
var validOwner = regexp.MustCompile(`^[a-z_][a-z0-9_-]*(:[a-z_][a-z0-9_-]*)?$`)

// copyStep copies uploaded files: its arguments are source, target, owner and mode.
func (b *buildRun) copyStep(ctx context.Context, step buildStep) error {
	args := slices.Concat(step.Args, []string{"", ""})
	source, target, owner, mode := path.Clean(args[0]), args[1], args[2], args[3]
	if path.IsAbs(source) || source == ".." || strings.HasPrefix(source, "../") {
		return fmt.Errorf("COPY: the source %.80q is not below the context", args[0])
	}
	if owner == "" {
		owner = b.user + ":" + b.user
	}
	if !validOwner.MatchString(owner) {
		return fmt.Errorf("COPY: the owner %.80q is not USER or USER:GROUP", owner)
	}
	if n, err := strconv.ParseUint(mode, 8, 16); mode != "" && (err != nil || n > 0o7777) {
		return fmt.Errorf("COPY: the mode %.20q is not octal", mode)
	}
	if !path.IsAbs(target) {
		slash := strings.HasSuffix(target, "/")
		if target = path.Join(b.folder(b.user), target); slash {
			target += "/"
		}
	}
	content, size, err := b.server.uploads.open(b.caller.Name, step.Files)
	if err != nil {
		return err
	}
	defer content.Close()
	files, err := b.session.FilesAs("root")
	if err != nil {
		return err
	}
	archive := "/tmp/.copy-" + rand.Text()
	if _, err := files.Write(ctx, archive, io.NewSectionReader(content, 0, size), 0o600, nil); err != nil {
		return err
	}
	return b.run(ctx, "root", "/bin/bash", "-c", copyScript, "copy", archive, source, target, owner, mode)
}

// readyTime bounds the wait for a template's start command, and readyPeriod is the time between two looks.
const (
	readyTime   = 5 * time.Minute
	readyPeriod = time.Second
)

// boot starts the template's start command, which continues in the sandboxes, and waits until the ready command
// succeeds.
func (b *buildRun) boot(ctx context.Context) error {
	var ended chan error
	if b.recipe.Start != "" {
		b.build.tell("info", b.step, fmt.Sprintf("START %.200s", b.recipe.Start))
		started, done := make(chan struct{}), make(chan error, 1)
		box := &sandbox{id: b.build.id, template: b.build.of.id, envs: b.env}
		out := &logWriter{to: b.build, step: b.step}
		go func() {
			res, err := b.session.Exec(context.WithoutCancel(ctx), unitask.Command{Dir: b.folder(b.user), User: b.user,
				Args: []string{"/bin/bash", "-l", "-c", b.recipe.Start}, Env: box.environment(b.user, nil), Endless: true,
				Stdout: out, Stderr: out, ResultBytes: 1, Started: func(session.Running) { close(started) }})
			if err == nil && res.ExitCode != 0 {
				err = fmt.Errorf("the start command ended with exit code %d", res.ExitCode)
			}
			done <- err
		}()
		select {
		case <-started:
		case err := <-done:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		ended = done
	}
	if b.recipe.Ready == "" {
		return nil
	}
	return b.await(ctx, ended)
}

// await waits until the ready command ends with 0.
func (b *buildRun) await(ctx context.Context, ended <-chan error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTime, fmt.Errorf("the template was not ready after %s", readyTime))
	defer cancel()
	b.build.tell("info", b.step, fmt.Sprintf("READY? %.200s", b.recipe.Ready))
	for {
		err := b.run(ctx, b.user, "/bin/bash", "-l", "-c", b.recipe.Ready)
		if err == nil {
			return nil
		}
		select {
		case failed := <-ended:
			if failed != nil {
				return failed
			}
			ended = nil // it ended with 0, as one does that only prepares
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-b.session.Done(): // or the server closes
			return err
		case <-time.After(readyPeriod):
		}
	}
}

// logWriter writes lines of output to a build's log.
type logWriter struct {
	to   *build
	step string
	rest []byte
}

// maxLogLine bounds a line, in bytes; a longer one becomes several.
const maxLogLine = 8 << 10

func (l *logWriter) Write(text []byte) (int, error) {
	l.rest = append(l.rest, text...)
	for {
		at := bytes.IndexByte(l.rest, '\n')
		if at < 0 && len(l.rest) < maxLogLine {
			return len(text), nil
		}
		if at < 0 || at > maxLogLine {
			at = maxLogLine
			l.tell(l.rest[:at])
			l.rest = l.rest[at:]
			continue
		}
		l.tell(l.rest[:at])
		l.rest = l.rest[at+1:]
	}
}

// flush writes the last line.
func (l *logWriter) flush() {
	if len(l.rest) > 0 {
		l.tell(l.rest)
		l.rest = nil
	}
}

func (l *logWriter) tell(line []byte) {
	l.to.tell("info", l.step, strings.ToValidUTF8(string(bytes.TrimSuffix(line, []byte("\r"))), "\uFFFD"))
}
