package unitask

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/python"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/imagefile"
	"github.com/unitask/unitask/internal/install"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/nesting"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/internal/regular"
	"github.com/unitask/unitask/policy"
)

// The build of an image of the user's own: its packages and files, what the lock file beside its description says of
// them, and the disk.

// ownLock is the file beside a description that says what exactly was installed.
type ownLock struct {
	Schema int        `json:"schema"`
	Builds []ownBuild `json:"builds"` // one for each architecture
}

type ownBuild struct {
	Arch     image.Arch         `json:"arch"`
	System   string             `json:"system,omitempty"`
	Asked    []string           `json:"asked,omitempty"`
	Packages []packages.Package `json:"packages,omitempty"`
	Npm      json.RawMessage    `json:"npm,omitempty"`
	Wanted   []string           `json:"debianAsked,omitempty"`
	Debian   []image.Deb        `json:"debian,omitempty"`
	Digest   string             `json:"digest"` // of all files that were installed
	Layer    *ownLayer          `json:"layer,omitempty"`
}

func readOwnLock(file string) (l ownLock, err error) {
	text, err := regular.Read(file, catalog.MaxLockText)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		err = nesting.Check(text, catalog.MaxLockNesting, catalog.MaxLockValues)
	}
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err == nil && l.Schema != catalog.CustomSchema {
		err = fmt.Errorf("has schema %d, not %d", l.Schema, catalog.CustomSchema)
	}
	for _, b := range l.Builds {
		if err == nil {
			err = packages.CheckLocked(b.Packages)
		}
		if err == nil {
			err = packages.CheckNpm(b.Npm)
		}
		if err == nil {
			err = image.CheckDebs(b.Debian)
		}
		if err == nil && b.Layer != nil {
			err = b.Layer.check()
		}
	}
	if err != nil {
		return l, fmt.Errorf("read %s: %w: without the file versions are chosen anew", file, err)
	}
	return l, nil
}

// at is the build of an architecture, nil where there is none.
func (l *ownLock) at(arch image.Arch) *ownBuild {
	for i := range l.Builds {
		if l.Builds[i].Arch == arch {
			return &l.Builds[i]
		}
	}
	return nil
}

// set puts a build in the place of that of its architecture.
func (l *ownLock) set(b ownBuild) {
	if have := l.at(b.Arch); have != nil {
		*have = b
		return
	}
	l.Builds = append(l.Builds, b)
}

// sameAs says that another build installed the same packages.
func (b ownBuild) sameAs(other ownBuild) bool {
	return slices.Equal(b.Packages, other.Packages) && slices.Equal(b.Debian, other.Debian)
}

// BuildImage builds an image of the user's own, from a file or from that of its name in the home's environments, with
// the versions that the lock file beside it says; it writes that file where there is none. Foreign code runs in
// machines only, and reaches no more than the runtime's ceiling allows. Runs that name the image have this one from
// the moment that it is whole.
func (rt *Runtime) BuildImage(ctx context.Context, from string, arch Arch) (*catalog.Custom, *image.Image, error) {
	leave, err := rt.enter()
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	bad := func(err error) (*catalog.Custom, *image.Image, error) {
		return nil, nil, policy.Bad("image", fmt.Sprintf("%.200q", from), "%v", err)
	}
	if arch, err = image.ParseArch(string(arch)); err != nil {
		return bad(err)
	}
	env, err := imagefile.Read(imagefile.Find(from, rt.catalog.ImageFiles()), rt.catalog.ImageFiles(), language.Images())
	if err != nil {
		return bad(err)
	}
	if env.Name == policy.BroughtImages {
		return bad(fmt.Errorf("%s is a name that images can't have: in a ceiling it stands for those that come along from other hosts", env.Name))
	}
	o := &catalog.Custom{Schema: catalog.CustomSchema, Name: env.Name, From: env.From, File: env.File, Arch: arch, Description: env.Description, Env: env.Env, Warm: env.Warm, MemoryMB: env.MemoryMB}
	if imagefile.Contained(env.From) {
		return rt.buildOver(ctx, o, env)
	}
	l := language.OfImage(env.From)
	specs, err := checkImageFile(o, env, l)
	if err == nil {
		err = stepNetwork{}.allowed(rt.opts.Ceiling, o.System, specs)
	}
	if err != nil {
		return bad(fmt.Errorf("%s: %w", env.File, err))
	}
	held, err := rt.catalog.LockCustom(ctx)
	if err != nil {
		return nil, nil, rt.buildFailed(ctx, err)
	}
	defer held.Unlock()
	lock, err := rt.fill(ctx, o, env, l, specs)
	if err != nil {
		return nil, nil, rt.buildFailed(ctx, err)
	}
	im, err := rt.finishOwn(ctx, o, l, lock)
	if err != nil {
		rt.catalog.TidyCustom()
		return nil, nil, rt.buildFailed(ctx, err)
	}
	return o, im, nil
}

func (rt *Runtime) buildFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("cancelled: %w", context.Cause(ctx))
	}
	var field *policy.FieldError
	if errors.As(err, &field) {
		return err
	}
	return failure.Host("image", err)
}

// check holds what a description says against the image that it begins with, and returns its packages.
func checkImageFile(o *catalog.Custom, env *imagefile.Environment, l *language.Language) (specs []string, err error) {
	if o.Name == language.ContainerName {
		return nil, fmt.Errorf("%s is a name that images can't have", o.Name)
	}
	if len(env.Run)+len(env.Network) > 0 {
		return nil, fmt.Errorf("run: %s has no steps: begin with a container image, as from = \"debian:12\"", env.From)
	}
	for system, list := range map[string][]string{policy.Pip: env.Pip, policy.Npm: env.Npm} {
		for _, text := range list {
			if err := l.CheckPackages([]string{system + ":" + text}); err != nil {
				var field *policy.FieldError
				if errors.As(err, &field) {
					err = fmt.Errorf("%s: %s %s", system, field.Value, field.Reason)
				}
				return nil, err
			}
			rule, _ := policy.ParsePackage(system + ":" + text)
			specs = append(specs, rule.Spec())
		}
	}
	if len(specs) > 0 {
		o.Folders = append(o.Folders, l.Packages.Place)
		o.System = l.Packages.System
	}
	if len(o.Warm) > 0 && l.Name != "python" {
		return nil, fmt.Errorf("warm is for images with Python: %s has %s", env.From, l.Name)
	}
	if o.MemoryMB > 0 {
		if _, _, err := policy.Resolve(policy.Request{MemoryMB: o.MemoryMB}, nil); err != nil {
			return nil, err
		}
	}
	for _, f := range env.Files {
		top, _, _ := strings.Cut(f.Guest[1:], "/")
		taken := []string{"/tmp", contract.OutDir, path.Dir(contract.HomeDir), contract.WorkDir, "/root", "/sbin", "/lost+found", "/node_modules"}
		if checkGuestPath("files", f.Guest) != nil || !catalog.Top.MatchString(top) || slices.ContainsFunc(taken, func(dir string) bool { return "/"+top == dir }) {
			return nil, fmt.Errorf("files: %s is not where an image can have files: use a folder like /opt, /srv or /data", f.Guest)
		}
		if !slices.Contains(o.Folders, "/"+top) {
			o.Folders = append(o.Folders, "/"+top)
		}
	}
	slices.Sort(o.Folders)
	for _, spec := range env.Debian {
		if err := image.CheckDebSpec(spec); err != nil {
			return nil, fmt.Errorf("debian: %w", err)
		}
	}
	all := slices.Concat(l.Image(o.From).Payload.Folders, o.Folders)
	if len(o.Folders) > catalog.MaxTops || len(strings.Join(all, "\n")) > catalog.MaxFolders {
		return nil, fmt.Errorf("files: lie in %d folders at the root, which are too many or have too long names: put them into one", len(o.Folders))
	}
	return specs, nil
}

// fill installs the packages, and puts all that the image brings into the store; nil if that is nothing.
func (rt *Runtime) fill(ctx context.Context, o *catalog.Custom, env *imagefile.Environment, l *language.Language, specs []string) (*packages.Lock, error) {
	all := &packages.Lock{System: o.System, Asked: specs, Arch: string(o.Arch), Runtime: l.Name, Links: len(env.Debian) > 0}
	if len(specs)+len(env.Debian)+len(env.Files) == 0 {
		return nil, nil
	}
	if len(specs)+len(env.Debian) == 0 {
		return all, rt.keepOwn(all, env, "", "", "")
	}
	lockFile := strings.TrimSuffix(env.File, imagefile.Extension) + catalog.LockFileEnds
	locks, err := readOwnLock(lockFile)
	if err != nil {
		return nil, err
	}
	slices.Sort(specs)
	was, now := locks.at(o.Arch), ownBuild{Arch: o.Arch, System: o.System, Asked: specs}
	debs, err := rt.unpackDebian(ctx, o, env, l, was, &now)
	if err != nil {
		return nil, err
	}
	if debs != "" {
		defer os.RemoveAll(filepath.Dir(debs))
	}
	if len(specs)+len(now.Debian)+len(env.Files) == 0 { // all of it is in the image
		return nil, nil
	}
	if len(specs) == 0 {
		err = rt.keepOwn(all, env, "", "", debs)
	} else {
		err = rt.fillPackages(ctx, o, env, l, was, &now, func(kept *packages.Lock, place string) error {
			all.Packages, all.Npm = kept.Packages, kept.Npm
			return rt.keepOwn(all, env, kept.Folder(), place, debs)
		})
	}
	if err != nil {
		return nil, err
	}
	if now.Debian != nil {
		now.Digest = all.Digest
	}
	if was != nil && was.sameAs(now) && was.Digest != now.Digest {
		rt.opts.Events(Event{Kind: EventImage, Message: "the packages are those of " + lockFile + ", and have left other files than then"})
	}
	locks.set(now)
	if err := locks.write(lockFile); err != nil {
		return nil, err
	}
	o.Packages, o.Debian = all.Packages, now.Debian
	return all, nil
}

// fillPackages installs what pip or npm is asked for, as it is locked, and uses it at its place in the guest.
func (rt *Runtime) fillPackages(ctx context.Context, o *catalog.Custom, env *imagefile.Environment, l *language.Language, was, now *ownBuild, use func(kept *packages.Lock, place string) error) error {
	var locked *packages.Lock
	if was != nil && was.System == o.System && slices.Equal(was.Asked, now.Asked) {
		locked = &packages.Lock{Packages: was.Packages, Npm: was.Npm}
	}
	im, err := rt.images.With(l.Image(o.From).Payload).Obtain(ctx, image.Linux, o.Arch)
	if err != nil {
		return err
	}
	place := image.At(l.Packages.Place, im.Runtime)
	if place != l.Packages.Place {
		o.Runtime = im.Runtime
		o.Folders[slices.Index(o.Folders, l.Packages.Place)] = place
	}
	b := install.Target{Language: l, Arch: o.Arch, Runtime: im.Runtime, Jail: rt.opts.RequireJail, Caller: Caller{Ceiling: rt.opts.Ceiling.Reaching()}.WithDefaults(), Tell: rt.opts.Events}
	return rt.installer().Ensure(ctx, b, now.Asked, locked, func(store *packages.Store, kept *packages.Lock) error {
		held, err := store.Hold(kept)
		if err != nil {
			return err
		}
		defer held.Unlock()
		if err := store.Verify(kept); err != nil {
			return err
		}
		now.Packages, now.Npm, now.Digest = kept.Packages, kept.Npm, kept.Digest
		return use(kept, place)
	})
}

// write writes the lock file, if it says something else.
func (l ownLock) write(file string) error {
	l.Schema = catalog.CustomSchema
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if have, err := os.ReadFile(file); err == nil && string(have) == string(text) {
		return nil
	}
	return atomicfile.Write(file, text, 0o644)
}

// keepOwn puts the packages of a folder, what of the guest's root another one has, and an environment's files, into the
// store of own images.
func (rt *Runtime) keepOwn(all *packages.Lock, env *imagefile.Environment, folder, place, root string) error {
	r, w := io.Pipe()
	go func() {
		to := tar.NewWriter(w)
		err := env.WriteTo(to)
		if err == nil && folder != "" {
			err = imagefile.WriteFolder(to, folder, place)
		}
		if err == nil && root != "" {
			err = imagefile.WriteRoot(to, root)
		}
		if err == nil {
			err = to.Close()
		}
		w.CloseWithError(err)
	}()
	store := catalog.CustomStore(rt.opts.Home)
	if err := store.Remove(""); err != nil {
		return err
	}
	err := store.Add(all, r)
	r.CloseWithError(errors.New("the store takes no more")) // which ends the goroutine
	return err
}

// finishOwn builds the disk, imports ahead what is to be, and has the name lead to the image.
func (rt *Runtime) finishOwn(ctx context.Context, o *catalog.Custom, l *language.Language, lock *packages.Lock) (*image.Image, error) {
	if lock != nil {
		o.Key, o.Digest, o.Bytes = lock.Key, lock.Digest, lock.Bytes
	}
	if err := o.Arrange(rt.opts.Home); err != nil {
		return nil, err
	}
	im, err := rt.images.With(o.Row.Payload).Obtain(ctx, image.Linux, o.Arch)
	if err != nil {
		return nil, err
	}
	if len(o.Warm) > 0 {
		if err := rt.tryImports(ctx, o, l); err != nil {
			return nil, err
		}
	}
	if err := rt.nameOwn(o, map[string]any{"image": im.Digest}); err != nil {
		return nil, err
	}
	return im, nil
}

// nameOwn has the name lead to the image, which is whole.
func (rt *Runtime) nameOwn(o *catalog.Custom, audited map[string]any) error {
	o.Built = time.Now().UTC().Truncate(time.Second)
	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(home.Dir(rt.opts.Home).Custom(), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(home.Dir(rt.opts.Home).CustomFile(o.Name), append(text, '\n'), 0o600); err != nil {
		return err
	}
	maps.Copy(audited, map[string]any{"names": []string{o.Name}, "from": o.From, "file": o.File, "packages": len(o.Packages) + len(o.Debian), "built": true})
	rt.journal.Change(audit.ImageAdded, audited)
	rt.catalog.TidyCustom()
	return nil
}

// tryImports finds out, in a machine, whether what is to be imported ahead can be.
func (rt *Runtime) tryImports(ctx context.Context, o *catalog.Custom, l *language.Language) error {
	code := "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
	req := catalog.Request{Custom: o, Request: Request{Code: code, Language: l.Name, Image: o.Name, Arch: o.Arch, Args: o.Warm, MemoryMB: o.MemoryMB, Cold: true, Timeout: python.DataPatience, RequireJail: rt.opts.RequireJail}}
	res, err := rt.runBuild(ctx, Caller{}, req, nil)
	if err != nil {
		return err
	}
	if res.Outcome != OutcomeExited || res.ExitCode != 0 {
		last := strings.TrimSpace(string(res.Stderr))
		last = last[strings.LastIndexByte(last, '\n')+1:]
		return policy.Bad("image", o.File, "warm: %s can't be imported: %.300q %s(`unitask inspect %s` has the rest)", strings.Join(o.Warm, ", "), last, res.Error, res.RunID)
	}
	return rt.runs.Remove(res.RunID)
}
