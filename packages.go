package unitask

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
	"regexp"
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
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/policy"
)

// Packages for a run: fetched and built once, by the language's own tool, in a machine that reaches the
// registries that the host is configured for and nothing else, and kept in the home. To a run they
// are a folder that it brings along.

// build is a run that installs packages, or makes a layer of an image.
type build struct {
	proxy func(host string, port uint16) *url.URL // nil is the host's
	layer bool
}

// builder is for whom and for what packages are installed.
type builder struct {
	language *language.Language
	arch     image.Arch
	runtime  string // the version of the language's program
	jail     []string
	caller   Caller
	tell     func(Event)
}

// Bounds of a build.
const (
	buildMemory = 1536 // MiB
	buildTime   = 15 * time.Minute
	buildOutput = 1 << 20
	answerTime  = 10 * time.Second // of a registry, to its first byte
)

// Packages is the store of what was built for runs.
func (rt *Runtime) Packages() *packages.Store {
	return &packages.Store{
		Dir: home.Dir(rt.opts.Home).Packages(), MaxBytes: packages.RunsBytes, MaxMany: packages.RunsMany,
		Removed: func(key string) { rt.journal.Change(audit.PackagesRemoved, map[string]any{"key": key}) },
	}
}

// RemovePackages removes what was built for runs, but for what a run under way has, and says how many sets of packages
// that were. The next run that asks for some has them built again, from what the registry then has.
func (rt *Runtime) RemovePackages(ctx context.Context) (removed int, err error) {
	store := rt.Packages()
	keys, err := store.Keys()
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		held, err := filelock.Wait(ctx, home.Dir(rt.opts.Home).Lock("packages-"+key), func() {})
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

// install puts the packages that the run is granted beside what it brings.
func (x *execution) install(ctx context.Context) error {
	if len(x.granted.Packages) == 0 || x.code.Installed {
		return nil
	}
	l := x.code.Language
	place := image.At(l.Packages.Place, x.image.Runtime)
	if own := x.code.Image.Payload.Own; own != nil && slices.Contains(x.code.Image.Payload.Folders, place) {
		return policy.Bad("packages", "with the image "+x.code.Image.Payload.Name, "which has packages of its own: add these to its file, and build it")
	}
	if x.code.Inputs.At(place) {
		return policy.Bad("packages", "with a folder at "+place, "would lie there: give the folder another path inside")
	}
	lock, err := x.rt.installed(ctx, x)
	if err != nil {
		return err
	}
	for _, p := range lock.Packages {
		x.res.Packages = append(x.res.Packages, InstalledPackage{Name: lock.System + ":" + p.Name, Version: p.Version, Digest: p.Digest})
	}
	x.code.Installed = true
	if no := program.RoomFor(&x.code.Inputs, x.image.Kernel, x.granted.MemoryMB); no != nil {
		return no
	}
	return nil
}

// installed is what is granted, built if it is not there, among the inputs.
func (rt *Runtime) installed(ctx context.Context, x *execution) (*packages.Lock, error) {
	specs := []string{}
	for _, p := range x.granted.Packages {
		specs = append(specs, p.Spec())
	}
	b := x.builder()
	var lock *packages.Lock
	err := rt.obtain(ctx, b, specs, nil, func(store *packages.Store, l *packages.Lock) error {
		lock = l
		return x.bring(store, l)
	})
	return lock, err
}

// builder is for the run: in its caller's name, and with as much of the network as that may have.
func (x *execution) builder() builder {
	caller := Caller{Name: x.rec.Owner, Via: x.rec.Via, Ceiling: x.live.Ceiling.Reaching()}
	return builder{language: x.code.Language, arch: x.code.Arch, runtime: x.image.Runtime, jail: x.granted.RequireJail, caller: caller, tell: x.streams.Events}
}

// obtain has the packages that are asked for installed if they are not there, and uses them. locked, if
// not nil, says which exactly.
func (rt *Runtime) obtain(ctx context.Context, b builder, specs []string, locked *packages.Lock, use func(*packages.Store, *packages.Lock) error) error {
	l, store := b.language, rt.Packages()
	slices.Sort(specs)
	tool, version, err := rt.images.Tool(ctx, b.arch, l.Packages.Tool)
	if err != nil {
		return failure.At("packages", err)
	}
	registry, err := hostRegistry(l.Packages, func() (string, error) { return tool, nil })
	if err != nil {
		return failure.At("packages", err)
	}
	what := fmt.Appendf(nil, "%s %s %s %s\n%q\n%q %q %q", l.Packages.System, version, b.arch, b.runtime, specs, registry.URL, registry.More, fmt.Sprint(registry.Scopes))
	sum := sha256.Sum256(what)
	want := &packages.Lock{Key: hex.EncodeToString(sum[:]), System: l.Packages.System, Asked: specs, Runtime: l.Name + " " + b.runtime, Arch: string(b.arch), Registry: packages.Shown(registry.URL)}
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
	held, err := filelock.Wait(ctx, home.Dir(rt.opts.Home).Lock("packages-"+want.Key), func() {
		b.tell(Event{Kind: EventImage, Message: "waiting for another unitask that builds these packages"})
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
		b.tell(Event{Kind: EventImage, Message: "the packages in " + before.Folder() + " are not those that were built; building them again, with the same versions and digests"})
	}
	if before == nil {
		before = locked
	}
	if rt.images.Offline != "" {
		return failure.At("packages", fmt.Errorf("%w (%s): %s would have to be fetched: a run with --offline=false does that", image.ErrOffline, rt.images.Offline, strings.Join(specs, " ")))
	}
	if err := store.Remove(""); err != nil {
		return failure.At("packages", err)
	}
	if err := rt.build(ctx, b, store, want, before, registry, tool); err != nil {
		return err
	}
	return use(store, want)
}

// bring adds what is kept to the run's inputs, if it is what was built, and keeps it there until the run is over.
func (x *execution) bring(store *packages.Store, lock *packages.Lock) (err error) {
	held, err := store.Hold(lock)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			held.Unlock()
		}
	}()
	place := image.At(x.code.Language.Packages.Place, x.image.Runtime)
	var one hostfiles.Set // looked at by itself, since it may turn out to be damaged
	defer one.Close()
	for _, to := range []*hostfiles.Set{&one, &x.code.Inputs} {
		found, err := hostfiles.Find(lock.Folder(), true)
		if err != nil {
			return failure.At("packages", err)
		}
		err = to.Add(found, place, packages.MaxBytes)
		found.Close()
		if err != nil {
			return fmt.Errorf("%w: %w", packages.ErrDamaged, err)
		}
		if to != &one {
			break
		}
		if stamp := one.Stamp(place); stamp == "" || stamp != lock.Stamp {
			if err := store.Verify(lock); err != nil {
				return err
			}
			_ = store.Restamp(lock, stamp) // only spares the next look
		}
	}
	x.code.Held = held
	return nil
}

// plan is what the program in the machine is told.
type plan struct {
	Tool   string            `json:"tool"`
	Place  string            `json:"place"`
	URL    string            `json:"url"`
	More   []string          `json:"more,omitempty"`
	Scopes map[string]string `json:"scopes,omitempty"`
	Plain  []string          `json:"plain,omitempty"`
	CA     bool              `json:"ca,omitempty"`
	// Authorities are the variables that name a file of certificates, of what may be started while a package is built.
	Authorities []string           `json:"authorities"`
	Specs       []string           `json:"specs"`
	Lock        []packages.Package `json:"lock,omitempty"`
	Npm         json.RawMessage    `json:"npm,omitempty"`
}

// authorities are the variables by which pip, requests, OpenSSL, curl, git, cargo, Node and npm take certificates.
var authorities = []string{"PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "NODE_EXTRA_CA_CERTS", "npm_config_cafile"}

// build installs packages in a machine, and keeps them.
func (rt *Runtime) build(ctx context.Context, b builder, store *packages.Store, want, before *packages.Lock, registry *packages.Registry, tool string) error {
	l := b.language
	way, err := rt.reach(ctx, registry)
	if err != nil {
		return failure.At("packages", err)
	}
	p := plan{Tool: "/tool/" + filepath.Base(tool), Place: image.At(l.Packages.Place, b.runtime), URL: registry.URL, More: registry.More, Scopes: registry.Scopes, CA: registry.CA != "",
		Authorities: authorities, Specs: want.Asked, Plain: way.plain}
	if before != nil {
		p.Lock, p.Npm = before.Packages, before.Npm
	}
	req := Request{
		Code: l.Packages.Program, Image: l.Images[0].Payload.Name, Kernel: image.Linux, Arch: b.arch, Dir: "/work", Cold: true,
		Files: []Mount{{Host: tool, Guest: p.Tool}}, MemoryMB: buildMemory, Timeout: buildTime, OutputBytes: buildOutput, MaxArtifacts: packages.MaxBytes + 64<<20,
		RequireJail: b.jail, AllowNet: way.nets, AllowTCP: way.tcps,
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	req.Neighbours = []Neighbour{{Name: "plan.json", Content: string(text)}}
	if p.CA {
		req.Neighbours = append(req.Neighbours, Neighbour{Name: "ca.pem", Content: registry.CA})
	}
	b.tell(Event{Kind: EventImage, Message: fmt.Sprintf("installing %s from %s, once, in a machine of its own", strings.Join(want.Asked, " "), want.Registry)})
	start := time.Now()
	res, err := rt.runFor(ctx, b.caller, catalog.Request{Request: req}, IO{Events: func(Event) {}}, inspection{build: &build{proxy: way.proxy}})
	if err != nil {
		return failure.At("packages", fmt.Errorf("install %s: %w", strings.Join(want.Asked, " "), err))
	}
	if res.Outcome != OutcomeExited || res.ExitCode != 0 {
		return rt.buildError(l, want, res)
	}
	if err := rt.keep(store, want, res); err != nil {
		return failure.At("packages", fmt.Errorf("keep %s: %w (`unitask inspect %s` has its record)", strings.Join(want.Asked, " "), err, res.RunID))
	}
	if n := want.LeftOutMany; n > 0 {
		b.tell(Event{Kind: EventImage, Message: fmt.Sprintf("left out %d links that lead out of the packages: %s", n, strings.Join(want.LeftOut, ", "))})
	}
	b.tell(Event{Kind: EventImage, Message: fmt.Sprintf("installed %d packages, %d files of %d MiB, after %.0f s", len(want.Packages), want.Files, want.Bytes>>20, time.Since(start).Seconds())})
	return rt.runs.Remove(res.RunID) // which has the files a second time
}

// keep takes what a machine has built into the store.
func (rt *Runtime) keep(store *packages.Store, want *packages.Lock, res *Result) error {
	var said struct {
		Packages []packages.Package `json:"packages"`
		Npm      json.RawMessage    `json:"npm"`
	}
	lock, err := rt.runs.OpenArtifact(res.RunID, "lock.json")
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := json.NewDecoder(io.LimitReader(lock, maxLockText)).Decode(&said); err != nil {
		return fmt.Errorf("read the lock that the machine has written: %w", err)
	}
	if err := checkLocked(said.Packages); err != nil {
		return fmt.Errorf("the lock that the machine has written %w", err)
	}
	want.Packages, want.Npm = said.Packages, said.Npm
	files, err := rt.runs.OpenArtifact(res.RunID, "packages.tar")
	if err != nil {
		return err
	}
	defer files.Close()
	if err := store.Add(want, files); err != nil {
		return err
	}
	rt.journal.Change(audit.PackagesAdded, map[string]any{"key": want.Key, "asked": want.Asked, "count": len(want.Packages), "registry": want.Registry})
	return nil
}

const (
	maxLocked   = 5000
	maxLockText = 8 << 20
)

// checkLocked says what is wrong with a lock's packages, which others have written.
func checkLocked(list []packages.Package) error {
	if len(list) > maxLocked {
		return fmt.Errorf("has %d packages", len(list))
	}
	for _, p := range list {
		if !lockedName.MatchString(p.Name) || !lockedName.MatchString(p.Version) || len(p.Digest) > 4096 || !lockedDigest.MatchString(p.Digest) {
			return fmt.Errorf("has a package %.80q %.80q", p.Name, p.Version)
		}
	}
	return nil
}

// lockedDigest is what their digests are like; npm's may be several.
var lockedDigest = regexp.MustCompile(`^(?:sha[0-9]{1,3}-[A-Za-z0-9+/=]+(?: |$))*$`)

// lockedName is what names and versions of packages are like; they are shown on terminals.
var lockedName = regexp.MustCompile(`^[A-Za-z0-9@/._+!~-]{1,214}$`)

// buildError says why packages could not be installed, by what their tool said.
func (rt *Runtime) buildError(l *language.Language, want *packages.Lock, res *Result) error {
	return policy.Bad("packages", strings.Join(want.Asked, " "), "can't be installed from %s: %s (`unitask inspect %s` has the rest)", want.Registry, rt.toolSaid(l.Packages.System, res), res.RunID)
}
