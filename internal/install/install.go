// Package install installs packages of pip and npm for runs. Each set is fetched and built once, by the language's own
// tool, in a machine that reaches the registries that the host is configured for and nothing else; then it is kept in
// the home, and a run has it as a folder that it brings along. The package starts no machine itself: the Runner, which
// the front door passes, does. Runs and builds of images call it; it never decides what a request is granted.
package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Runner runs a request in a machine for a caller. With a nil Build it is an ordinary run.
type Runner func(ctx context.Context, caller run.Caller, req catalog.Request, build *Build) (*run.Result, error)

// Build says how a run differs that installs packages, or makes a layer of an image.
type Build struct {
	Proxy func(host string, port uint16) *url.URL // nil is the host's
	Layer bool                                    // what comes back is what it changes of its image
}

// Installer installs packages.
type Installer struct {
	Home    string
	Images  *image.Store
	Records *record.Store
	Journal *audit.Journal
	Proxy   func(host string, port uint16) *url.URL // the host's, nil is none
	Run     Runner
}

// Target says for which caller, language and architecture packages are installed.
type Target struct {
	Language *language.Language
	Arch     image.Arch
	Runtime  string // the version of the language's program
	Jail     []string
	Caller   run.Caller
	Tell     func(run.Event)
}

// Bounds of a build.
const (
	MemoryMB    = 1536
	Timeout     = 15 * time.Minute
	OutputBytes = 1 << 20
	MaxLockText = 8 << 20          // bytes of the lock that a machine writes
	probeTime   = 10 * time.Second // of a registry, to its first byte
)

// Store is the store of what was built for runs.
func (in *Installer) Store() *packages.Store {
	return &packages.Store{
		Dir: home.Dir(in.Home).Packages(), MaxBytes: packages.RunsBytes, MaxMany: packages.RunsMany,
		Removed: func(key string) { in.Journal.Change(audit.PackagesRemoved, map[string]any{"key": key}) },
	}
}

// RemoveAll removes what was built for runs, but for what a run under way has, and says how many sets of packages that
// were. The next run that asks for some has them built again, from what the registry then has.
func (in *Installer) RemoveAll(ctx context.Context) (removed int, err error) {
	store := in.Store()
	keys, err := store.Keys()
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		held, err := filelock.Wait(ctx, home.Dir(in.Home).Lock("packages-"+key), func() {})
		if err != nil {
			return removed, err
		}
		gone, err := store.Drop(key)
		held.Unlock()
		if err != nil {
			return removed, err
		}
		if gone {
			removed++
		}
	}
	return removed, store.Remove("")
}

// Ensure has the packages that are asked for installed if they are not there, and uses them. locked, if not nil, says
// which exactly.
func (in *Installer) Ensure(ctx context.Context, to Target, specs []string, locked *packages.Lock,
	use func(*packages.Store, *packages.Lock) error) error {
	l, store := to.Language, in.Store()
	slices.Sort(specs)
	tool, version, err := in.Images.Tool(ctx, to.Arch, l.Packages.Tool)
	if err != nil {
		return failure.At("packages", err)
	}
	registry, err := hostRegistry(l.Packages, func() (string, error) { return tool, nil })
	if err != nil {
		return failure.At("packages", err)
	}
	what := fmt.Appendf(nil, "%s %s %s %s\n%q\n%q %q %q", l.Packages.System, version, to.Arch, to.Runtime, specs, registry.URL, registry.More, fmt.Sprint(registry.Scopes))
	sum := sha256.Sum256(what)
	want := &packages.Lock{Key: hex.EncodeToString(sum[:]), System: l.Packages.System, Asked: specs, Runtime: l.Name + " " + to.Runtime, Arch: string(to.Arch), Registry: packages.Shown(registry.URL)}
	lock, err := store.Get(want.Key)
	if locked != nil && (err != nil || !slices.Equal(lock.Packages, locked.Packages)) { // others than a run without a lock gets
		sum = sha256.Sum256(fmt.Appendf(what, "\nlocked %q %s", locked.Packages, locked.Npm))
		want.Key = hex.EncodeToString(sum[:])
		lock, err = store.Get(want.Key)
	}
	if err == nil {
		if err = use(store, lock); err == nil {
			return nil
		}
	}
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, packages.ErrDamaged) { // it may have gone meanwhile, to make room
		return err
	}
	held, err := filelock.Wait(ctx, home.Dir(in.Home).Lock("packages-"+want.Key), func() {
		to.Tell(run.Event{Kind: run.EventImage, Message: "waiting for another unitask that builds these packages"})
	})
	if err != nil {
		return failure.At("packages", err)
	}
	defer held.Unlock()
	before, err := store.Get(want.Key)
	if err == nil { // somebody else has just built them, or they are damaged
		if err = use(store, before); err == nil {
			return nil
		}
		if !errors.Is(err, packages.ErrDamaged) && !errors.Is(err, fs.ErrNotExist) { // that went meanwhile, to make room
			return err
		}
	}
	if errors.Is(err, packages.ErrDamaged) && before != nil {
		to.Tell(run.Event{Kind: run.EventImage, Message: "the packages in " + before.Folder() + " are not those that were built; building them again, with the same versions and digests"})
	}
	if before == nil {
		before = locked
	}
	if in.Images.Offline != "" {
		return failure.At("packages", fmt.Errorf("%w (%s): %s would have to be fetched: a run with --offline=false does that", image.ErrOffline, in.Images.Offline, strings.Join(specs, " ")))
	}
	if err := store.Remove(""); err != nil {
		return failure.At("packages", err)
	}
	if err := in.build(ctx, to, store, want, before, registry, tool); err != nil {
		return err
	}
	return use(store, want)
}

// Mount adds what is kept to a run's inputs, at its place in the guest, if it is what was built. It stays in the store
// until held is let go of.
func Mount(store *packages.Store, lock *packages.Lock, place string, inputs *hostfiles.Set) (held *filelock.Lock, err error) {
	held, err = store.Hold(lock)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			held.Unlock()
			held = nil
		}
	}()
	var one hostfiles.Set // looked at by itself, since it may turn out to be damaged
	defer one.Close()
	for _, to := range []*hostfiles.Set{&one, inputs} {
		found, err := hostfiles.Find(lock.Folder(), true)
		if err != nil {
			return held, failure.At("packages", err)
		}
		err = to.Add(found, place, packages.MaxBytes)
		found.Close()
		if err != nil {
			return held, fmt.Errorf("%w: %w", packages.ErrDamaged, err)
		}
		if to != &one {
			break
		}
		if stamp := one.Stamp(place); stamp == "" || stamp != lock.Stamp {
			if err := store.Verify(lock); err != nil {
				return held, err
			}
			_ = store.Restamp(lock, stamp) // only spares the next look
		}
	}
	return held, nil
}

// Plan is what the program in the machine is told.
type Plan struct {
	Tool   string            `json:"tool"`
	Place  string            `json:"place"`
	URL    string            `json:"url"`
	More   []string          `json:"more,omitempty"`
	Scopes map[string]string `json:"scopes,omitempty"`
	Plain  []string          `json:"plain,omitempty"`
	CA     bool              `json:"ca,omitempty"`
	// authorities are the variables that name a file of certificates, of what may be started while a package is built.
	Authorities []string           `json:"authorities"`
	Specs       []string           `json:"specs"`
	Lock        []packages.Package `json:"lock,omitempty"`
	Npm         json.RawMessage    `json:"npm,omitempty"`
}

// authorities are the variables by which pip, requests, OpenSSL, curl, git, cargo, Node and npm take certificates.
var authorities = []string{"PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "NODE_EXTRA_CA_CERTS", "npm_config_cafile"}

// NewPlan is a plan by which packages are installed from a registry, at a place in the guest.
func NewPlan(place string, registry *packages.Registry, routes Routes, asked []string) Plan {
	return Plan{Place: place, URL: registry.URL, More: registry.More, Scopes: registry.Scopes, CA: registry.CA != "",
		Authorities: authorities, Specs: asked, Plain: routes.Plain}
}

// build installs packages in a machine, and keeps them.
func (in *Installer) build(ctx context.Context, to Target, store *packages.Store, want, before *packages.Lock, registry *packages.Registry, tool string) error {
	l := to.Language
	routes, err := in.reach(ctx, registry)
	if err != nil {
		return failure.At("packages", err)
	}
	p := NewPlan(image.At(l.Packages.Place, to.Runtime), registry, routes, want.Asked)
	p.Tool = "/tool/" + filepath.Base(tool)
	if before != nil {
		p.Lock, p.Npm = before.Packages, before.Npm
	}
	req := run.Request{
		Code: l.Packages.Program, Image: l.Images[0].Payload.Name, Kernel: image.Linux, Arch: to.Arch, Dir: "/work", Cold: true,
		Files: []run.Mount{{Host: tool, Guest: p.Tool}}, MemoryMB: MemoryMB, Timeout: Timeout, OutputBytes: OutputBytes, MaxArtifacts: packages.MaxBytes + 64<<20,
		RequireJail: to.Jail, AllowNet: routes.Nets, AllowTCP: routes.TCPs,
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	req.Neighbours = []run.Neighbour{{Name: "plan.json", Content: string(text)}}
	if p.CA {
		req.Neighbours = append(req.Neighbours, run.Neighbour{Name: "ca.pem", Content: registry.CA})
	}
	to.Tell(run.Event{Kind: run.EventImage, Message: fmt.Sprintf("installing %s from %s, once, in a machine of its own", strings.Join(want.Asked, " "), want.Registry)})
	start := time.Now()
	res, err := in.Run(ctx, to.Caller, catalog.Request{Request: req}, &Build{Proxy: routes.Proxy})
	if err != nil {
		return failure.At("packages", fmt.Errorf("install %s: %w", strings.Join(want.Asked, " "), err))
	}
	if res.Outcome != run.OutcomeExited || res.ExitCode != 0 {
		return in.buildError(l, want, res)
	}
	if err := in.store(store, want, res); err != nil {
		return failure.At("packages", fmt.Errorf("keep %s: %w (`unitask inspect %s` has its record)", strings.Join(want.Asked, " "), err, res.RunID))
	}
	if n := want.LeftOutMany; n > 0 {
		to.Tell(run.Event{Kind: run.EventImage, Message: fmt.Sprintf("left out %d links that lead out of the packages: %s", n, strings.Join(want.LeftOut, ", "))})
	}
	to.Tell(run.Event{Kind: run.EventImage, Message: fmt.Sprintf("installed %d packages, %d files of %d MiB, after %.0f s", len(want.Packages), want.Files, want.Bytes>>20, time.Since(start).Seconds())})
	return in.Records.Remove(res.RunID) // which has the files a second time
}

// store takes what a machine has built into the store.
func (in *Installer) store(store *packages.Store, want *packages.Lock, res *run.Result) error {
	var said struct {
		Packages []packages.Package `json:"packages"`
		Npm      json.RawMessage    `json:"npm"`
	}
	lock, err := in.Records.OpenArtifact(res.RunID, "lock.json")
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := json.NewDecoder(io.LimitReader(lock, MaxLockText)).Decode(&said); err != nil {
		return fmt.Errorf("read the lock that the machine has written: %w", err)
	}
	if err := packages.CheckLocked(said.Packages); err != nil {
		return fmt.Errorf("the lock that the machine has written %w", err)
	}
	want.Packages, want.Npm = said.Packages, said.Npm
	files, err := in.Records.OpenArtifact(res.RunID, "packages.tar")
	if err != nil {
		return err
	}
	defer files.Close()
	if err := store.Add(want, files); err != nil {
		return err
	}
	in.Journal.Change(audit.PackagesAdded, map[string]any{"key": want.Key, "asked": want.Asked, "count": len(want.Packages), "registry": want.Registry})
	return nil
}

// buildError says why packages could not be installed, by what their tool said.
func (in *Installer) buildError(l *language.Language, want *packages.Lock, res *run.Result) error {
	return policy.Bad("packages", strings.Join(want.Asked, " "), "can't be installed from %s: %s (`unitask inspect %s` has the rest)", want.Registry, in.ToolError(l.Packages.System, res), res.RunID)
}
