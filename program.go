package unitask

import (
	"cmp"
	"context"
	"crypto/x509"
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
	"github.com/unitask/unitask/record"
)

// program is a request's code, checked.
type program struct {
	language    *language.Language
	image       *language.Image
	attachable  bool // others of the user may join its machine
	text        string
	path        string // absolute, in the guest
	dir         string
	neighbours  []Neighbour
	packageType string
	args        []string
	command     bool              // args are a command of a container's image
	inImage     []string          // the command line in a container's image (adopt)
	ownDir      bool              // dir was asked for
	given       map[string]string // of env, by the request
	nodeArgs    []string
	ownProcess  string // the argument or variable that only a fresh process can heed, or ""
	env         map[string]string
	terminal    *Terminal
	tell        func(Event) // of the run
	arch        image.Arch
	ca          string
	secrets     map[string]string // all that were granted
	exposed     int               // how many of them the code itself gets
	broker      *broker.Broker    // of those that it does not get; nil where there is none
	kept        *broker.Kept      // what the guest has of another broker, which it goes on with; else nil
	check       bool              // its syntax, in place of running it
	cold        bool
	fresh       bool
	retry       bool
	cpus        float64
	session     *Session // whose machine it is; nil for one run
	layer       bool     // what comes back is what it changes of its image
	inputs      hostfiles.Set
	installed   bool           // and the packages are among them
	held        *filelock.Lock // keeps these where they are
	living      *living        // what of its network may change
	compiled    *compilation   // of what it is compiled to; nil where that is not kept
	relayed     []uint16       // ports of the guest's loopback that lead to ours
}

// close lets go of what the code has of the host.
func (p *program) close() {
	p.inputs.Close()
	p.held.Unlock()
}

// checkCode checks what of a request is no policy, and returns its program with the defaults filled in.
func checkCode(req catalog.Request) (program, error) {
	p := program{text: req.Code, path: req.Path, dir: req.Dir, neighbours: req.Neighbours, packageType: req.PackageType, args: req.Args, nodeArgs: req.NodeArgs, env: map[string]string{
		"PATH": contract.SearchPath, "HOME": contract.HomeDir, "LANG": contract.Locale,
	}}
	l, im, ext, err := req.FindLanguage()
	if err != nil {
		return program{}, err
	}
	if p.language, p.image = l, im; l != language.All[0] {
		p.packageType = "" // Node's
	}
	if p.arch, err = image.ParseArch(string(req.Arch)); err != nil {
		return program{}, policy.Bad("arch", fmt.Sprintf("%q", req.Arch), "use amd64 or arm64")
	}
	p.ca, p.check, p.cold, p.fresh, p.retry, p.cpus = req.CA, req.Check, req.Cold, req.FreshProcess, req.KernelRetry, req.CPUs
	if p.ca != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(p.ca)) {
		return program{}, policy.Bad("ca", fmt.Sprintf("of %d bytes", len(p.ca)), "holds no certificate in PEM")
	}
	p.command, p.ownDir, p.given = req.Exec, p.dir != "", map[string]string{}
	if err := p.place(req, ext); err != nil {
		return program{}, err
	}
	if err := checkNeighbours(p.neighbours, p.path); err != nil {
		return program{}, err
	}
	if err := checkVariables(req.Request, l); err != nil {
		return program{}, err
	}
	if req.Custom != nil {
		maps.Copy(p.env, req.Custom.Env)
	}
	maps.Copy(p.env, req.Env)
	maps.Copy(p.given, req.Env)
	if err := checkSecrets(req.Request); err != nil {
		return program{}, err
	}
	for _, arg := range p.nodeArgs {
		if err := l.CheckArg(arg); err != nil {
			return program{}, policy.Bad("nodeArgs", fmt.Sprintf("%.80q", arg), "%v", err)
		}
	}
	all := maps.Clone(p.env)
	maps.Copy(all, req.Secrets)
	p.ownProcess = l.NeedsProcess(p.nodeArgs, all)
	p.fresh = p.fresh || p.ownProcess != ""
	return p, nil
}

// place says where the code lies and runs; ext is the extension of a file without a name.
func (p *program) place(req catalog.Request, ext string) error {
	p.dir, p.path = cmp.Or(p.dir, contract.WorkDir), cmp.Or(p.path, cmp.Or(p.language.Stem, "code")+ext)
	if !path.IsAbs(p.dir) {
		return policy.Bad("dir", fmt.Sprintf("%q", p.dir), "must be absolute")
	}
	p.dir = path.Clean(p.dir)
	if !path.IsAbs(p.path) {
		p.path = path.Join(p.dir, p.path)
	}
	p.path = path.Clean(p.path)
	if len(p.text) > MaxCode {
		return policy.Bad("code", fmt.Sprintf("of %d bytes", len(p.text)), "must be at most %d bytes", MaxCode)
	}
	if err := p.language.Takes(p.path, req.Language+req.Image != ""); err != nil && !p.command {
		return policy.Bad("path", fmt.Sprintf("%q", p.path), "%v", err)
	}
	if p.packageType != "" && p.packageType != "module" && p.packageType != "commonjs" {
		return policy.Bad("packageType", fmt.Sprintf("%q", p.packageType), "must be module or commonjs")
	}
	if err := checkGuestPath("path", p.path); err != nil {
		return err
	}
	return checkGuestPath("path", p.dir)
}

// checkVariables checks arguments, packages and variables.
func checkVariables(req Request, l *language.Language) error {
	for _, a := range req.Args {
		if strings.ContainsRune(a, 0) {
			return policy.Bad("args", fmt.Sprintf("%.80q", a), "must not hold a NUL byte")
		}
	}
	if err := l.CheckPackages(req.Packages); err != nil {
		return err
	}
	if err := l.CheckTexts(req); err != nil {
		return err
	}
	for name, value := range req.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return policy.Bad("env", fmt.Sprintf("%.80q", name), "a name must not be empty or hold = or a NUL byte")
		}
	}
	if n := sizeOf(req); n > contract.MaxFrame { // it would be on record, and found out by a machine
		return policy.Bad("args", fmt.Sprintf("of %d bytes, with env", n), "must have at most %d: standard input takes more", contract.MaxFrame)
	}
	return nil
}

// checkSecrets checks secrets, and what says which hosts they are bound to.
func checkSecrets(req Request) error {
	for name := range req.SecretHosts {
		if _, there := req.Secrets[name]; !there {
			return policy.Bad("secretHosts", fmt.Sprintf("%.80q", name), "is about no secret of the request")
		}
	}
	for name, value := range req.Secrets {
		_, twice := req.Env[name]
		switch {
		case len(value) < record.MinSecret:
			return policy.Bad("secrets", name, "has %d bytes: a secret of less than %d would be found everywhere", len(value), record.MinSecret)
		case strings.ContainsRune(value, 0):
			return policy.Bad("secrets", name, "must not hold a NUL byte")
		case twice:
			return policy.Bad("secrets", name, "is in env too")
		}
	}
	return nil
}

// recordName is the name of the code's file in a record.
func (p *program) recordName() string {
	if ext := path.Ext(p.path); slices.Contains(p.language.Extensions, ext) {
		return "code" + ext
	}
	return "code" + p.language.Extensions[0]
}

// sizeOf is the bytes of a request's arguments and environment.
func sizeOf(req Request) (n int) {
	for _, a := range req.Args {
		n += len(a)
	}
	for _, vars := range []map[string]string{req.Env, req.Secrets} {
		for name, value := range vars {
			n += len(name) + len(value)
		}
	}
	return n
}

// GuestDir maps a host folder to the code's working directory. It returns "", the default, if
// the guest can't have that path.
func GuestDir(dir string) string {
	if checkGuestPath("dir", dir) != nil {
		return ""
	}
	return dir
}

// checkGuestPath says what is wrong with a path inside.
func checkGuestPath(field, p string) error {
	reason := ""
	switch {
	case !path.IsAbs(p):
		reason = "must be absolute"
	case strings.ContainsRune(p, 0) || len(p) > hostfiles.MaxPath:
		reason = fmt.Sprintf("must have no NUL byte and at most %d bytes", hostfiles.MaxPath)
	case reserved(path.Clean(p)):
		reason = "is not a path the guest can have: it keeps /dev, /proc, /sys, /usr, /lib, /etc, /bin and /unitask for itself; give another one"
	default:
		return nil
	}
	return policy.Bad(field, fmt.Sprintf("%.80q", p), "%s", reason)
}

// reserved says that a path lies where the guest's own files are.
func reserved(p string) bool {
	for _, dir := range strings.Split(contract.Reserved, ":") {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return p == "/"
}

// file is one that the guest gets, and what is in it.
type file struct {
	guest.File
	content string
}

func textFile(at, content string) file {
	return file{guest.File{Path: at, Mode: 0o644, Size: int64(len(content))}, content}
}

// files is what must be in the guest before the start, in order, after the inputs.
func (p *program) files() []file {
	if p.session != nil {
		return p.session.files(p)
	}
	if p.command && !p.ownDir {
		return nil // it is the image's
	}
	files := []file{{guest.File{Path: p.dir, Mode: fs.ModeDir | 0o755, User: !p.inputs.Under(p.dir)}, ""}}
	if p.command {
		return files
	}
	of := path.Join(path.Dir(p.path), "package.json")
	if p.packageType != "" && !p.hasNeighbour("package.json") && !p.inputs.At(of) {
		files = append(files, textFile(of, p.packageJSON()))
	}
	files = append(files, p.beside()...)
	files = append(files, textFile(p.path, p.text))
	if text := p.runner(); text != "" {
		files = append(files, textFile(p.main(), text))
	}
	if p.inImage != nil {
		return files
	}
	return append(files, file{guest.File{Path: contract.MainLink, Mode: fs.ModeSymlink, Target: p.main()}, ""})
}

// inOneProcess says that it is a session whose interpreter is the machine's only process (Nanos).
func (p *program) inOneProcess() bool { return p.session != nil && !p.fresh }

// runner is the text of a program that checks the code, or runs it, "" where the code is what runs.
func (p *program) runner() string {
	if p.check {
		return p.language.Check
	}
	return p.language.Runner
}

// main is the program that runs: the code, or its runner, which lies where nothing of the request can.
func (p *program) main() string {
	if p.runner() != "" {
		return contract.UnitaskDir + "/check" + cmp.Or(p.language.RunnerExtension, p.language.Extensions[0])
	}
	return p.path
}

// argv is its file and its arguments.
func (p *program) argv() []string {
	switch {
	case p.inImage != nil:
		return p.inImage
	case p.inOneProcess():
		return []string{p.session.driver().Path}
	case p.check:
		return []string{p.main(), p.path}
	case p.language.Runner != "":
		return append([]string{p.main(), p.path}, p.args...)
	}
	return append([]string{p.path}, p.args...)
}

func (p *program) packageJSON() string { return fmt.Sprintf("{\"type\":%q}\n", p.packageType) }

// put sends the program, and part of the inputs, into the guest and starts it.
func (p *program) put(ctx context.Context, conn *guest.Conn, part hostfiles.Part) error {
	if p.session != nil {
		if err := conn.Lasting(); err != nil { // first: the guest keeps a way in for who says so
			return err
		}
	}
	if p.layer {
		if err := conn.Layer(); err != nil {
			return err
		}
	}
	far := progress{start: time.Now(), tell: p.tell}
	if err := p.inputs.Put(ctx, conn, part, func(s hostfiles.Sent) { far.sent(time.Now(), s) }); err != nil {
		return err
	}
	for _, f := range p.files() {
		if err := conn.Put(f.File, strings.NewReader(f.content)); err != nil {
			return err
		}
	}
	if err := conn.Relay(p.relayed); err != nil {
		return err
	}
	env, ca := maps.Clone(p.env), p.ca
	maps.Copy(env, p.secrets)
	if p.broker != nil {
		ca += "\n" + string(p.broker.CA())
		for name := range p.secrets {
			if placeholder := p.broker.Placeholder(name); placeholder != "" {
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
		args, variables := p.language.Process(p.nodeArgs, env)
		if err := conn.Process(guest.Process{Dir: p.dir, Args: args, Env: variables}); err != nil {
			return err
		}
	}
	if p.session != nil {
		if err := conn.Session(); err != nil {
			return err
		}
		p.session.started(env, ca, p.dir)
	}
	at, err := p.compiled.put(conn)
	if err != nil {
		return err
	}
	err = conn.Start(ctx, guest.Start{Argv: p.argv(), Compiled: at, Placed: p.compiled.length(), Env: env, Dir: p.dir, Flags: p.nodeArgs, CA: ca, ReadOnly: p.inputs.Paths(), Session: p.inOneProcess()})
	var refused *guest.RefusedError
	if errors.As(err, &refused) {
		return p.processError(p.language.Refused(refused.Words))
	}
	return err
}

// processError says what is wrong with the argument or variable that wants a process of
// its own.
func (p *program) processError(reason string) error {
	field := "env"
	if strings.HasPrefix(p.ownProcess, "-") {
		field = "nodeArgs"
	}
	return policy.Bad(field, p.ownProcess, "%s", reason)
}

// on gives the code what only its streams ask for: a terminal, colours.
func (p *program) on(streams IO) {
	if t := streams.Terminal; t != nil {
		p.terminal, p.fresh = t, true
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

// kernel is the kernel of the run, where k is granted, "" for any.
func (p *program) kernel(k image.Kernel) (image.Kernel, error) {
	if p.image.Payload.Own != nil {
		if k != "" && k != image.Linux {
			return k, policy.Bad("kernel", string(k), "does not run images of one's own: use linux")
		}
		k = image.Linux
	}
	k, err := p.language.KernelFor(k)
	if err != nil {
		return k, err
	}
	if p.check && k != "" && k != image.Linux {
		return k, policy.Bad("check", "with kernel "+string(k), "starts a process, which needs the linux kernel")
	}
	if p.check {
		k = image.Linux
	}
	if p.session != nil && k == image.Nanos && p.language != language.All[0] {
		return k, policy.Bad("kernel", string(k), "has sessions of JavaScript only: use linux")
	}
	if p.session != nil { // whose commands are processes, where it has some
		p.fresh = p.fresh || k != image.Nanos
	}
	if p.ownProcess != "" && k != "" && k != image.Linux {
		return k, p.processError("is read when the language starts, which in a machine with the " + string(k) + " kernel it has: needs the linux kernel")
	}
	if p.terminal != nil && k != "" && k != image.Linux {
		return k, policy.Bad("kernel", string(k), "has no terminals: use linux")
	}
	return language.FreshKernel(k, p.fresh, p.cpus)
}

// progress tells how far files have come, if they take long.
type progress struct {
	start, last time.Time
	tell        func(Event)
}

// progressEvery is how often that is reported, and how long it takes before the first report.
const progressEvery = 500 * time.Millisecond

func (p *progress) sent(now time.Time, s hostfiles.Sent) {
	took := now.Sub(p.start)
	if took < progressEvery || now.Sub(p.last) < progressEvery {
		return
	}
	p.last = now
	// A file costs as much time as this many bytes.
	const perFile = 16 << 10
	done := float64(s.Bytes) + float64(s.Files)*perFile
	all := float64(s.AllBytes) + float64(s.AllFiles)*perFile
	left := time.Duration(float64(took) * (all - done) / max(done, 1))
	p.tell(Event{Kind: EventFiles, Message: fmt.Sprintf("%d of %d files, %d of %d MiB are in the machine; some %d s more",
		s.Files, s.AllFiles, s.Bytes>>20, s.AllBytes>>20, int(left.Seconds())+1)})
}
