package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/regular"
	"github.com/unitask/unitask/internal/userdir"
	"github.com/unitask/unitask/policy"
)

// recorded returns the request of a record, and its id, with its secrets' values from the current environment.
func (a *app) recorded(cmd *cobra.Command, args []string, rt *unitask.Runtime, f runFlags) (req unitask.Request,
	id string, err error) {
	var other error
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		switch flag.Name {
		case "replay", "owner", "json", "policy", "accel", "pcap", "verbose", "home", "cold", "out", "out-replace", "raw",
			"keep-on-crash", "with-secrets", "tty", "interactive":
		default:
			other = fmt.Errorf("--%s does not go with --replay: the record has it", flag.Name)
		}
	})
	if len(args) > 0 {
		other = fmt.Errorf("unexpected argument %q: the record has the code and its arguments", args[0])
	}
	if other != nil {
		return req, "", usage(other)
	}
	id, err = rt.Runs().Find(f.replay)
	if err != nil {
		return req, "", usage(err)
	}
	req, err = rt.History().Request(id, f.owner)
	if errors.Is(err, history.ErrOwner) {
		return req, "", hint(usage(err), "--owner NAME says that you mean it")
	}
	if err != nil {
		return req, "", usage(err)
	}
	req.Cold = req.Cold || f.cold
	a.deniedThen(rt, id)
	if req.Secrets, req.SecretHosts, err = a.readSecrets(cmd.Context(), req.SecretNames()); err != nil {
		return req, "", usage(err)
	}
	return req, id, nil
}

// request builds the request from flags; codeOnStdin means that standard input contained the code.
func (a *app) request(cmd *cobra.Command, args []string, f runFlags) (req unitask.Request, codeOnStdin bool,
	err error) {
	dash := cmd.ArgsLenAtDash()
	if dash < 0 {
		dash = len(args)
	} else { // debug script has its own argument first
		dash -= cmd.Flags().NArg() - len(args)
	}
	own, rest := args[:dash], args[dash:]
	codeOnStdin = len(own) == 1 && own[0] == "-"
	changed := cmd.Flags().Changed
	if len(own) > 0 && !codeOnStdin && !changed("code") && !changed("code-file") {
		f.file, own = own[0], own[1:]
	}
	if len(own) > 0 && !codeOnStdin {
		return req, false, hint(usage(fmt.Errorf("unexpected argument %q", own[0])), "arguments for the code follow --")
	}
	sources := 0
	for _, given := range []bool{changed("code"), f.file != "" || changed("code-file"), codeOnStdin} {
		if given {
			sources++
		}
	}
	if f.exec {
		if sources > 0 {
			return req, false, hint(usage(errors.New("--exec runs a command, and no code")), "the command follows --")
		}
		sources = 1
	}
	if sources != 1 {
		return req, false, hint(usage(errors.New("give the code once: a FILE, --code STRING or -")), "unitask run --help")
	}
	if req, err = f.granted(a, cmd); err != nil {
		return req, false, err
	}
	req.Args, req.NodeArgs, req.Arch, req.Check, req.Cold, req.FreshProcess, req.KernelRetry, req.Language = rest,
		f.nodeArgs, unitask.Arch(f.arch), f.check, f.cold, f.fresh, f.retry, f.lang
	req.Exec = f.exec
	if f.ca != "" {
		text, err := os.ReadFile(f.ca)
		if err != nil {
			return req, false, usage(fmt.Errorf("--ca: %w", err))
		}
		req.CA = string(text)
	}
	if req.Env, err = parseEnv(f.env); err != nil {
		return req, false, usage(err)
	}
	dir, err := userdir.Working()
	if err != nil {
		return req, false, usage(err)
	}
	req.Dir = unitask.GuestDir(dir)
	switch {
	case f.exec:
		req.Dir = "" // the image's
	case codeOnStdin:
		req.Code, err = readCode("standard input", a.std.Stdin)
	case f.file != "":
		err = fileCode(&req, f.file)
	default:
		req.Code = f.code
	}
	if err == nil && changed("project") {
		home, homeErr := a.homeFolder()
		if homeErr != nil {
			return req, false, homeErr
		}
		var root string
		if root, err = projectRoot(f.project, f.file, home); err == nil {
			req.Dirs = append(req.Dirs, unitask.Mount{Host: root, Project: true})
		}
	}
	return req, codeOnStdin, err
}

func readCode(name string, r io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r, unitask.MaxCode+1))
	if err != nil {
		return "", usage(fmt.Errorf("read %s: %w", name, err))
	}
	if len(text) > unitask.MaxCode {
		return "", usage(fmt.Errorf("%s holds more than %d MiB of code", name, unitask.MaxCode>>20))
	}
	return string(text), nil
}

// fileCode fills in the code, its path and what Node would read from the nearest package.json.
func fileCode(req *unitask.Request, name string) error {
	abs, err := filepath.Abs(name)
	if err != nil {
		return usage(err)
	}
	f, _, err := regular.Open(abs)
	if errors.Is(err, regular.ErrNot) {
		return usage(fmt.Errorf("%s is not a regular file", name))
	}
	if err != nil {
		err = usage(fmt.Errorf("the code's file: %w", err))
		if strings.ContainsAny(name, " ()'\"") {
			return hint(err, "--code '...' takes the code itself")
		}
		return err
	}
	defer f.Close()
	if req.Code, err = readCode(name, f); err != nil {
		return err
	}
	req.Path, req.PackageType = abs, packageType(filepath.Dir(abs))
	if req.Language == "" && req.Image == "" && filepath.Ext(abs) == "" {
		req.Language = language.OfScript(req.Code)
	}
	return nil
}

// packageType returns the type field of the nearest package.json. Like Node, it searches upwards from the folder, and
// stops at the first one or at a node_modules folder.
func packageType(dir string) string {
	for {
		text, err := regular.Read(filepath.Join(dir, "package.json"), maxPackage)
		if !errors.Is(err, fs.ErrNotExist) {
			return typeField(text)
		}
		parent := filepath.Dir(dir)
		if parent == dir || filepath.Base(dir) == "node_modules" {
			return ""
		}
		dir = parent
	}
}

// maxPackage bounds a package.json: nobody has requested reading it.
const maxPackage = 1 << 20

// typeField returns the type in a package.json, "" if it has none that Node supports.
func typeField(text []byte) string {
	var pkg map[string]json.RawMessage // a struct would accept Type and TYPE too, which Node does not
	var kind string
	if json.Unmarshal(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), &pkg) != nil ||
		json.Unmarshal(pkg["type"], &kind) != nil {
		return ""
	}
	if kind != "module" && kind != "commonjs" {
		return ""
	}
	return kind
}

// parseDuration parses a duration, or a plain number of seconds; what names the flag in errors.
func parseDuration(what, text string) (time.Duration, error) {
	s := text
	if secs, err := strconv.ParseFloat(s, 64); err == nil {
		s = strconv.FormatFloat(secs, 'f', -1, 64) + "s"
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%s %q: use a duration like 30s or 2m, or a number of seconds", what, text)
	}
	return d, nil
}

func parseEnv(list []string) (map[string]string, error) {
	env := map[string]string{}
	for _, e := range list {
		name, value, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--env %q: use NAME=VALUE", e)
		}
		env[name] = value
	}
	return env, nil
}

func parseMounts(list []string) (mounts []unitask.Mount) {
	for _, s := range list {
		mounts = append(mounts, unitask.ParseMount(s))
	}
	return mounts
}

// callerHere returns the user of this process, in its working folder.
func callerHere(ceiling *policy.Ceiling) unitask.Caller {
	dir, _ := userdir.Working() // "" means no folder
	return unitask.Caller{Via: unitask.ViaCLI, Ceiling: ceiling, HostDir: dir}
}
