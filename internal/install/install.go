// Package install installs packages of pip and npm for runs. The language's own tool fetches and builds each set once,
// in a machine that reaches only the registries that the host is configured for. The home then keeps the set, and a run
// gets it as a folder. The package starts no machine itself: the Runner, which the front door passes, does. Runs and
// builds of images call it; it never decides what a request is granted.
package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/disuse"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Runner runs a request in a machine for a caller. With a nil Build it is an ordinary run.
type Runner func(ctx context.Context, caller run.Caller, req catalog.Request, build *Build) (*run.Result, error)

// Build tells how a run differs that installs packages or makes a layer of an image.
type Build struct {
	Proxy func(host string, port uint16) *url.URL // nil is the host's
	Layer bool                                    // its changes to the image come back, instead of /out
}

// Installer installs packages.
type Installer struct {
	Home    string
	Images  *image.Store
	Records *record.Store
	Journal *audit.Journal
	Proxy   func(host string, port uint16) *url.URL // the host's, nil is none
	Run     Runner
	// Compilers returns the image in which packages are compiled, built on first use. Nobody may call it under a lock of
	// packages: the image's build takes its own lock first, and then locks of packages.
	Compilers func(ctx context.Context, to Target) (*catalog.Custom, error)
}

// Target is the caller, image and architecture that packages are installed for.
type Target struct {
	Language *language.Language
	Image    string // bundled, whose version of the language the packages are for
	Arch     image.Arch
	Runtime  string // the version of the language's program
	Jail     []string
	Caller   run.Caller
	Tell     func(run.Event)
	// Compilers is the image with compilers in which packages are installed; nil means the language's own. Building means
	// that an image is built with the packages: if they need a compiler, the build gets a NoCompilerError.
	Compilers *catalog.Custom
	Building  bool
}

func (to Target) tell(message string) { to.Tell(run.Event{Kind: run.EventImage, Message: message}) }

// Bounds of a build.
const (
	MemoryMB    = 1536
	Timeout     = 15 * time.Minute
	CompileTime = 45 * time.Minute // instead of Timeout, if something is compiled
	OutputBytes = 1 << 20
	// MaxProcesses is what a policy allows at most: compilers start many.
	MaxProcesses = 2048
	MaxLockText  = 8 << 20          // bytes of the lock that a machine writes
	probeTime    = 10 * time.Second // of a registry, to its first byte
)

// Store returns the store of packages that were built for runs.
func (in *Installer) Store() *packages.Store {
	return &packages.Store{
		Dir: home.Dir(in.Home).Packages(), MaxBytes: packages.RunsBytes, MaxMany: packages.RunsMany,
		Removed: func(key string) { in.Journal.Change(audit.PackagesRemoved, map[string]any{"key": key}) },
	}
}

// Prune removes sets of packages that were built for runs. It spares those that were used since a time (the zero time
// spares none) or that a current run has. It returns how many sets it removed, and their bytes; a dry run only counts.
// A later run that asks for such packages builds them again, from what the registry then has.
func (in *Installer) Prune(ctx context.Context, since time.Time, dryRun bool) (sets int, bytes int64, err error) {
	rule := disuse.Rule{Since: since, DryRun: dryRun}
	var freed disuse.Freed
	store := in.Store()
	keys, err := store.Keys()
	if err != nil {
		return freed.Count, freed.Bytes, err
	}
	for _, key := range keys {
		held, err := filelock.Wait(ctx, home.Dir(in.Home).Lock("packages-"+key), func() {})
		if err != nil {
			return freed.Count, freed.Bytes, err
		}
		size, used, gone := store.Unheld(key)
		if gone = gone && !rule.Spares(used); gone && !rule.DryRun {
			gone, err = store.Drop(key)
		}
		held.Unlock()
		if err != nil {
			return freed.Count, freed.Bytes, err
		}
		if gone {
			freed.Add(size)
		}
	}
	if rule.DryRun {
		return freed.Count, freed.Bytes, nil
	}
	return freed.Count, freed.Bytes, store.Remove("")
}

// installation is a requested set of packages.
type installation struct {
	*Installer
	to       Target
	store    *packages.Store
	registry *packages.Registry
	tool     string         // the file of pip or npm
	asked    []byte         // the text that its key is the digest of
	want     *packages.Lock // what must be built, and later what was built
}

// Ensure installs the requested packages if they are missing, and uses them. locked, if not nil, lists exactly which.
func (in *Installer) Ensure(ctx context.Context, to Target, specs []string, locked *packages.Lock,
	use func(*packages.Store, *packages.Lock) error) error {
	i, err := in.find(ctx, to, specs)
	if err != nil {
		return failure.At("packages", err)
	}
	lock, err := i.stored(locked)
	if err == nil {
		err = use(i.store, lock)
	}
	if !toBuild(err) {
		return err
	}
	err = i.ensure(ctx, locked, use)
	var none *NoCompilerError
	if to.Building || in.Compilers == nil || !errors.As(err, &none) {
		return err
	}
	to.tell(strings.Join(specs, " ") + " is to be compiled: installing again, in an image with compilers")
	if i.to.Compilers, err = in.Compilers(ctx, to); err != nil {
		if ctx.Err() == nil {
			return none.WithoutCompilers(err)
		}
		return failure.At("packages", err)
	}
	return i.ensure(ctx, locked, use)
}

// ensure builds the packages if they are still missing, and uses them.
func (i *installation) ensure(ctx context.Context, locked *packages.Lock,
	use func(*packages.Store, *packages.Lock) error) error {
	to := i.to
	held, err := filelock.Wait(ctx, home.Dir(i.Home).Lock("packages-"+i.want.Key), func() {
		to.tell("waiting for another unitask that builds these packages")
	})
	if err != nil {
		return failure.At("packages", err)
	}
	defer held.Unlock()
	before, err := i.store.Get(i.want.Key)
	if err == nil { // another process has just built them, or they are damaged
		if err = use(i.store, before); !toBuild(err) {
			return err
		}
	}
	if errors.Is(err, packages.ErrDamaged) && before != nil {
		to.tell("the packages in " + before.Folder() + " are not those that were built; " +
			"building them again, with the same versions and digests")
	}
	if before == nil {
		before = locked
	}
	if i.Images.Offline != "" {
		return failure.At("packages", fmt.Errorf("%w (%s): %s would have to be fetched: a run with --offline=false does that",
			image.ErrOffline, i.Images.Offline, strings.Join(i.want.Asked, " ")))
	}
	if err := i.store.Remove(""); err != nil {
		return failure.At("packages", err)
	}
	if err := i.build(ctx, before); err != nil {
		return err
	}
	return use(i.store, i.want)
}

// toBuild reports whether packages must be built: they are missing, were removed to make room, or are damaged.
func toBuild(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, packages.ErrDamaged)
}

// find fills in the tool, the registry and the key of the requested packages.
func (in *Installer) find(ctx context.Context, to Target, specs []string) (*installation, error) {
	l := to.Language
	slices.Sort(specs)
	tool, version, err := in.Images.Parts().Tool(ctx, to.Arch, l.Packages.Tool)
	if err != nil {
		return nil, err
	}
	registry, err := hostRegistry(l.Packages, func() (string, error) { return tool, nil })
	if err != nil {
		return nil, err
	}
	i := &installation{Installer: in, to: to, store: in.Store(), registry: registry, tool: tool}
	i.asked = fmt.Appendf(nil, "%s %s %s %s\n%q\n%q %q %q", l.Packages.System, version, to.Arch, to.Runtime, specs,
		registry.URL, registry.More, fmt.Sprint(registry.Scopes))
	i.want = &packages.Lock{Key: keyOf(i.asked), System: l.Packages.System, Asked: specs,
		Runtime: l.Name + " " + to.Runtime, Arch: string(to.Arch), Registry: packages.Shown(registry.URL)}
	return i, nil
}

func keyOf(asked []byte) string {
	sum := sha256.Sum256(asked)
	return hex.EncodeToString(sum[:])
}

// stored returns the stored packages. If the locked ones differ from those of a run without a lock, they have a
// separate key.
func (i *installation) stored(locked *packages.Lock) (*packages.Lock, error) {
	lock, err := i.store.Get(i.want.Key)
	if locked == nil || err == nil && slices.Equal(lock.Packages, locked.Packages) {
		return lock, err
	}
	i.want.Key = keyOf(fmt.Appendf(i.asked, "\nlocked %q %s", locked.Packages, locked.Npm))
	return i.store.Get(i.want.Key)
}

// Mount adds stored packages to a run's inputs, at their place in the guest, unless they are damaged. They stay in the
// store until the lock is released.
func Mount(store *packages.Store, lock *packages.Lock, place string, inputs *hostfiles.Set) (
	_ *filelock.Lock, err error) {
	held, err := store.Hold(lock)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			held.Unlock()
		}
	}()
	var one hostfiles.Set // checked alone, since it may be damaged
	defer one.Close()
	for _, to := range []*hostfiles.Set{&one, inputs} {
		found, err := hostfiles.Find(lock.Folder(), true)
		if err != nil {
			return nil, failure.At("packages", err)
		}
		err = to.Add(found, place, packages.MaxBytes)
		found.Close()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", packages.ErrDamaged, err)
		}
		if to != &one {
			break
		}
		if stamp := one.Stamp(place); stamp == "" || stamp != lock.Stamp {
			if err := store.Verify(lock); err != nil {
				return nil, err
			}
			_ = store.Restamp(lock, stamp) // only saves time later
		}
	}
	return held, nil
}
