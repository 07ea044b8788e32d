package program

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Check checks everything in a request that the policy does not decide. It returns the program, with its defaults.
func Check(req catalog.Request) (Program, error) {
	p := Program{Text: req.Code, Path: req.Path, Dir: req.Dir, inlineFiles: req.InlineFiles, packageType: req.PackageType,
		args: req.Args, nodeArgs: req.NodeArgs, env: map[string]string{
			"PATH": contract.SearchPath, "HOME": contract.HomeDir, "LANG": contract.Locale,
		}}
	l, im, ext, err := req.FindLanguage()
	if err != nil {
		return Program{}, err
	}
	if req.Check && l.Check == "" {
		return Program{}, policy.Bad("check", "of "+l.Name, "its image declares no check: give its [language] the key check")
	}
	p.Custom = req.Custom
	if p.Language, p.Image = l, im; l != language.All[0] {
		p.packageType = "" // Node's
	}
	if p.Arch, err = image.ParseArch(string(req.Arch)); err != nil {
		return Program{}, policy.Bad("arch", fmt.Sprintf("%q", req.Arch), "use amd64 or arm64")
	}
	p.ca, p.Check, p.Cold, p.Fresh, p.Retry, p.cpus = req.CA, req.Check, req.Cold, req.FreshProcess, req.KernelRetry,
		req.CPUs
	if p.ca != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(p.ca)) {
		return Program{}, policy.Bad("ca", fmt.Sprintf("of %d bytes", len(p.ca)), "holds no certificate in PEM")
	}
	p.Command, p.ownDir, p.given = req.Exec, p.Dir != "", map[string]string{}
	if err := p.place(req, ext); err != nil {
		return Program{}, err
	}
	if err := CheckInlineFiles(p.inlineFiles, p.Path); err != nil {
		return Program{}, err
	}
	if err := checkVariables(req.Request, l); err != nil {
		return Program{}, err
	}
	if req.Custom != nil {
		maps.Copy(p.env, req.Custom.Env)
	}
	maps.Copy(p.env, req.Env)
	maps.Copy(p.given, req.Env)
	if err := checkSecrets(req.Request); err != nil {
		return Program{}, err
	}
	for _, arg := range p.nodeArgs {
		if err := l.CheckArg(arg); err != nil {
			return Program{}, policy.Bad("nodeArgs", fmt.Sprintf("%.80q", arg), "%v", err)
		}
	}
	all := maps.Clone(p.env)
	maps.Copy(all, req.Secrets)
	p.ownProcess = l.NeedsProcess(p.nodeArgs, all)
	p.Fresh = p.Fresh || p.ownProcess != ""
	return p, nil
}

// place sets the path and the folder of the code; ext is the extension of a file without a name.
func (p *Program) place(req catalog.Request, ext string) error {
	p.Dir, p.Path = cmp.Or(p.Dir, contract.WorkDir), cmp.Or(p.Path, cmp.Or(p.Language.Stem, "code")+ext)
	if !path.IsAbs(p.Dir) {
		return policy.Bad("dir", fmt.Sprintf("%q", p.Dir), "must be absolute")
	}
	p.Dir = path.Clean(p.Dir)
	if !path.IsAbs(p.Path) {
		p.Path = path.Join(p.Dir, p.Path)
	}
	p.Path = path.Clean(p.Path)
	if len(p.Text) > run.MaxCode {
		return policy.Bad("code", fmt.Sprintf("of %d bytes", len(p.Text)), "must be at most %d bytes", run.MaxCode)
	}
	if err := p.Language.Takes(p.Path, req.Language+req.Image != ""); err != nil && !p.Command {
		return policy.Bad("path", fmt.Sprintf("%q", p.Path), "%v", err)
	}
	if p.packageType != "" && p.packageType != "module" && p.packageType != "commonjs" {
		return policy.Bad("packageType", fmt.Sprintf("%q", p.packageType), "must be module or commonjs")
	}
	if err := CheckGuestPath("path", p.Path); err != nil {
		return err
	}
	return CheckGuestPath("path", p.Dir)
}

// checkVariables checks arguments, packages and variables.
func checkVariables(req run.Request, l *language.Language) error {
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
	if n := sizeOf(req); n > contract.MaxFrame { // else the record would have it, and only a machine would refuse it
		return policy.Bad("args", fmt.Sprintf("of %d bytes, with env", n), "must have at most %d: standard input takes more",
			contract.MaxFrame)
	}
	return nil
}

// checkSecrets checks secrets and the hosts that they are bound to.
func checkSecrets(req run.Request) error {
	for name := range req.SecretHosts {
		if _, there := req.Secrets[name]; !there {
			return policy.Bad("secretHosts", fmt.Sprintf("%.80q", name), "is about no secret of the request")
		}
	}
	for name, value := range req.Secrets {
		_, twice := req.Env[name]
		switch {
		case len(value) < record.MinSecret:
			return policy.Bad("secrets", name, "has %d bytes: a secret of less than %d would be found everywhere", len(value),
				record.MinSecret)
		case strings.ContainsRune(value, 0):
			return policy.Bad("secrets", name, "must not hold a NUL byte")
		case twice:
			return policy.Bad("secrets", name, "is in env too")
		}
	}
	return nil
}

// sizeOf returns the bytes of a request's arguments and environment.
func sizeOf(req run.Request) (n int) {
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
	if CheckGuestPath("dir", dir) != nil {
		return ""
	}
	return dir
}

// CheckGuestPath returns an error if the guest can't have a path.
func CheckGuestPath(field, p string) error {
	reason := ""
	switch {
	case !path.IsAbs(p):
		reason = "must be absolute"
	case strings.ContainsRune(p, 0) || len(p) > hostfiles.MaxPath:
		reason = fmt.Sprintf("must have no NUL byte and at most %d bytes", hostfiles.MaxPath)
	case reserved(path.Clean(p)):
		reason = "is not a path the guest can have: " +
			"it keeps /dev, /proc, /sys, /usr, /lib, /etc, /bin and /unitask for itself; give another one"
	default:
		return nil
	}
	return policy.Bad(field, fmt.Sprintf("%.80q", p), "%s", reason)
}

// reserved reports whether a path is in a folder of the guest's own files.
func reserved(p string) bool {
	for _, dir := range strings.Split(contract.Reserved, ":") {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return p == "/"
}
