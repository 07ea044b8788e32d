package unitask

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit/webhook"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/home/config"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/imagebuild"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/internal/vault"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Run runs one request. It resolves the policy, begins the record, gets the image, and opens the network. Then it gets
// a machine, connects to the guest, runs the code and finishes the record.
func (rt *Runtime) Run(ctx context.Context, req Request, streams IO) (*Result, error) {
	return rt.RunFor(ctx, Caller{Ceiling: rt.opts.Ceiling}, req, streams)
}

// RunFor runs a request for a caller, under the caller's Ceiling in place of the runtime's.
func (rt *Runtime) RunFor(ctx context.Context, caller Caller, req Request, streams IO) (*Result, error) {
	return rt.runFor(ctx, caller, catalog.Request{Request: req}, streams, engine.Purpose{})
}

// HostMemoryMB returns the most memory, in MiB, that a run's machines take at once on this host under a ceiling (nil is
// none). That is the run's own machine, or an earlier machine that installs its packages. Denied requests take none.
func (rt *Runtime) HostMemoryMB(req Request, ceiling *policy.Ceiling) int {
	asked := catalog.Request{Request: req}
	if custom, err := rt.engine.Catalog.ResolveCustom(asked, ceiling); err == nil { // it may have more than the default
		asked = custom
	}
	asked.Files, asked.Dirs = nil, nil
	granted, _, err := grantedOf(asked, ceiling)
	switch {
	case err != nil:
		return 0
	case len(granted.Packages) > 0:
		return max(granted.MemoryMB, install.MemoryMB)
	}
	return granted.MemoryMB
}

// Refused returns a *policy.FieldError if this host refuses a request under a ceiling, whatever files, code and secrets
// come with it. It returns nil if the request may run.
func (rt *Runtime) Refused(req Request, ceiling *policy.Ceiling) error {
	known := catalog.Request{Request: req}
	if custom, err := rt.engine.Catalog.ResolveCustom(known, ceiling); err == nil {
		known = custom
	}
	known.Files, known.Dirs = nil, nil
	var in hostfiles.Set
	defer in.Close()
	asked, granted, denials, err := program.Resolve(known, ceiling, &in)
	if err == nil && granted.Image == "" {
		return program.ImageDenied(asked.Image, denials)
	}
	if errors.As(err, new(*policy.FieldError)) {
		return err
	}
	return nil // the run reports other errors
}

// hasSessions returns an error if the runtime's runs go to a fleet. Such a runtime has no sessions of type Session:
// every process of the tenant reaches a fleet's sessions by their ids.
func (rt *Runtime) hasSessions() error {
	if rt.opts.Fleet == nil {
		return nil
	}
	return policy.Bad("fleet", "with a session", "has its own: fleet.Client.NewSession, `unitask session new --fleet`")
}

// HasSessions reports whether NewSession starts sessions here. It does not if the runtime's runs go to a fleet.
func (rt *Runtime) HasSessions() bool { return rt.hasSessions() == nil }

// Trace is RunFor with a trace; it returns the trace's file in the record.
func (rt *Runtime) Trace(ctx context.Context, caller Caller, req Request, std IO, what Trace) (*Result, string, error) {
	res, err := rt.runFor(ctx, caller, catalog.Request{Request: req}, std, engine.Purpose{Trace: &what})
	if res == nil {
		return nil, "", err
	}
	return res, rt.engine.Runs.Path(res.RunID, record.TraceFile), err
}

// Packages returns the store of what was built for runs.
func (rt *Runtime) Packages() *packages.Store { return rt.engine.Installer.Store() }

// RemovePackages removes the installed packages that no run used since a given time; the zero time removes all. A dry
// run only counts them.
func (rt *Runtime) RemovePackages(ctx context.Context, since time.Time, dry bool) (sets int, bytes int64, err error) {
	return rt.engine.Installer.Prune(ctx, since, dry)
}

// BuildImage builds a custom image, from a file or from the file with that name in the home's environments. It uses the
// versions in the lock file beside that file, or writes a lock file if there is none. Foreign code runs in machines
// only, and reaches no more than the runtime's ceiling allows. Runs that name the image use it once it is complete.
func (rt *Runtime) BuildImage(ctx context.Context, from string, arch Arch) (*CustomImage, *image.Image, error) {
	leave, err := rt.enter()
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	b := imagebuild.Builder{Catalog: rt.engine.Catalog, Installer: rt.engine.Installer, Ceiling: rt.opts.Ceiling,
		RequireJail: rt.opts.RequireJail}
	return b.Build(ctx, from, arch)
}

// runFor runs a request, and lets a developer inspect its machine.
func (rt *Runtime) runFor(ctx context.Context, caller Caller, req catalog.Request, streams IO, purpose engine.Purpose,
) (*Result, error) {
	return rt.engine.Run(ctx, caller, req, streams, purpose)
}

// NewSession starts a session and returns when its machine waits for steps. If ctx ends before that, no session starts;
// afterwards ctx has no effect. With Options.Fleet the error is a *FieldError: fleet.Client.NewSession starts a fleet's
// sessions.
func (rt *Runtime) NewSession(ctx context.Context, req SessionRequest) (*Session, error) {
	return rt.NewSessionFor(ctx, Caller{Ceiling: rt.opts.Ceiling}, req)
}

// NewSessionFor starts a session for a caller, under the caller's Ceiling.
func (rt *Runtime) NewSessionFor(ctx context.Context, caller Caller, req SessionRequest) (*Session, error) {
	return rt.sessions.Start(ctx, caller, req)
}

// Revive resumes a session from its last pause: a paused session without a process (PausedSession), or one whose
// process died. If the session did something since the pause, that is lost, and the first step's Hint says so. The
// caller must be the one for whom the session was made, and its Ceiling must still grant what the session was granted.
// Secrets has the values of the secrets that are bound to hosts. The error is a SessionError if no such session exists.
// It is a *machine.OtherHostError in a HostError if the machine can't continue on this host; the session is then
// unchanged. Once the machine continues, the end of ctx has no effect, because the state on the disk is then old.
func (rt *Runtime) Revive(ctx context.Context, caller Caller, id string, secrets map[string]string) (*Session, error) {
	return rt.sessions.Revive(ctx, caller, id, secrets)
}

// ConfigFile is a home's configuration file, in TOML; it may be missing. Its keys are offline
// (Options.Offline), requireJail (Options.RequireJail), tables of webhook (Webhooks), and where secrets
// are: secrets, callerSecrets, secretHelpers and registries (Vault).
const ConfigFile = config.File

// DefaultHome returns $UNITASK_HOME, or ~/.unitask.
func DefaultHome() (string, error) { return home.Default() }

// Webhooks returns the webhooks in a home's configuration, after a check.
func Webhooks(dir string) ([]webhook.Hook, error) { return config.Webhooks(dir) }

// Vault returns the sources of secrets in a home's configuration, after a check.
func Vault(dir string) (*vault.Vault, error) { return config.Vault(dir) }

// Resolve returns what a request would be granted under a ceiling (nil is none), and what it would be denied. It looks
// at the files and folders that the request names.
func Resolve(req Request, ceiling *policy.Ceiling) (policy.Effective, []policy.Denial, error) {
	return grantedOf(catalog.Request{Request: req}, ceiling)
}

func grantedOf(req catalog.Request, ceiling *policy.Ceiling) (policy.Effective, []policy.Denial, error) {
	var in hostfiles.Set
	defer in.Close()
	ref, err := req.Reference()
	if err == nil && req.Image != "" && ref == "" && req.Custom == nil && !policy.IsImageName(req.Image) {
		err = policy.Bad("image", fmt.Sprintf("%.80q", req.Image), "must be a name of small letters, digits, _ and -")
	}
	if err != nil { // not in any run
		return policy.Effective{}, nil, err
	}
	_, eff, denials, err := program.Resolve(req, ceiling, &in)
	return eff, denials, err
}
